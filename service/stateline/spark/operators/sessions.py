"""Sessions whose results are updated as they grow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues

from stateline import serdes
from stateline.spark.operators.processors import Aggregator, StateProcessor, Value, ms_up
from stateline.spark.operators.sorted_state import Place, SortedEntries, SortedState

_Session = Row("key", "start", "last", "value")


@dataclass
class Sessions(StateProcessor):
    """Keeps sessions of each key: rows at most `gap_us` apart belong to one. In: `key`, `value`, `at`, `order`. Out:
    `key`, `start`, `last` (the times of the first and last row), `value` (null: the session was merged into another, or
    has no aggregate), one row per changed session. A session is deleted when the watermark has passed its end, or `add`
    returned None."""

    gap_us: int
    initial: Value
    add: Aggregator
    merge: Aggregator
    returns = "key string, start bigint, last bigint, value string"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._sessions = SortedState(handle, "sessions")  # start, last, aggregate

    def handleInputRows(self, key: Any, rows: Iterator[Row], times: TimerValues) -> Iterator[Row]:  # noqa: N802  # Spark's name
        sessions = self._sessions.entries()
        first = sessions.first
        was: dict[Place, str | None] = {}  # of those that rows have touched
        grown: dict[Place, Value] = {}
        for row in sorted(rows, key=lambda row: (row.at, row.order)):
            self._add(sessions, was, grown, row.at, serdes.json.deserialize(row.value.encode()))
        new = {place: serdes.json.serialize(aggregate).decode() for place, aggregate in grown.items()}
        for place, text in new.items():
            sessions.put((*place, text))
        self._keep(sessions, first, times.getCurrentWatermarkInMs())
        for start, last in was.keys() - new.keys():
            yield _Session(key[0], start, last, None)
        for (start, last), text in new.items():
            if was.get((start, last)) != text:
                yield _Session(key[0], start, last, text)

    def handleExpiredTimer(self, key: Any, timerValues: TimerValues, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803  # Spark's names
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        sessions = self._sessions.entries()
        first = sessions.first
        while sessions.first and ms_up(sessions.first[1] + self.gap_us) <= watermark_ms:
            sessions.remove_first()
        self._keep(sessions, first, watermark_ms)
        return iter(())

    def _add(
        self, sessions: SortedEntries, was: dict[Place, str | None], grown: dict[Place, Value], at: int, value: Value
    ) -> None:
        """Move the sessions that a row touches from `sessions` to `grown`, with the row added."""
        touched: list[tuple[Place, Value]] = [(place, grown.pop(place)) for place in self._near(grown, at)]
        while (found := sessions.up_to(at + self.gap_us)) is not None and found[1] >= at - self.gap_us:
            start, last, text = sessions.remove(found[:2])
            was[start, last] = text
            touched.append(((start, last), serdes.json.deserialize((text or "").encode())))
        place, aggregate = (at, at), None
        for (start, last), other in sorted(touched, key=lambda each: each[0]):
            place = min(place[0], start), max(place[1], last)
            aggregate = other if aggregate is None else self.merge(aggregate, other)
        aggregate = self.add(self.initial if aggregate is None else aggregate, value)
        if aggregate is not None:
            grown[place] = aggregate

    def _near(self, grown: dict[Place, Value], at: int) -> list[Place]:
        """Return the session that grew last, if it is near. Rows come in order of time, so no other can be."""
        last = next(reversed(grown), None)
        return [last] if last is not None and last[0] - self.gap_us <= at <= last[1] + self.gap_us else []

    def _keep(self, sessions: SortedEntries, first: Place | None, watermark_ms: int) -> None:
        """Save, and set a timer for the first session's end unless it is `first`, which has one."""
        sessions.save()
        if sessions.first and sessions.first != first:
            # Rows up to the watermark still arrive in the micro-batch that moved it.
            self._handle.registerTimer(max(ms_up(sessions.first[1] + self.gap_us), watermark_ms + 1))
