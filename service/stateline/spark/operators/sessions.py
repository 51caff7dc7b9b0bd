"""Sessions that are updated as they grow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import TimerValues

from stateline import serdes
from stateline.spark.operators.processors import Aggregator, KeyProcessor, Value, ms_up

_Session = Row("key", "start", "last", "value")


@dataclass
class Sessions(KeyProcessor):
    """Sessions of each key: rows at most `gap_us` apart belong to one.

    In: `key`, `value`, `at`, `order`. Out: `key`, `start`, `last` (the first and the last row's time), `value` (null:
    the session became part of another, or has no aggregate any more), one row for each session that changed. A session
    is forgotten when the watermark has passed its end, or `add` gave None.
    """

    gap_us: int
    initial: Value
    add: Aggregator
    merge: Aggregator
    state_ddl = "sessions string"  # [[start, last, aggregate], …], oldest first
    returns = "key string, start bigint, last bigint, value string"

    def handleInputRows(self, key: Any, rows: Iterator[Row], times: TimerValues) -> Iterator[Row]:  # noqa: N802  # Spark's name
        before = self._open()
        sessions = before
        for row in sorted(rows, key=lambda row: (row.at, row.order)):
            sessions = self._with(sessions, row.at, serdes.json.deserialize(row.value.encode()))
        self._keep(sessions, times.getCurrentWatermarkInMs())
        old = {(start, last): aggregate for start, last, aggregate in before}
        new = {(start, last): aggregate for start, last, aggregate in sessions}
        for start, last in old.keys() - new.keys():
            yield _Session(key[0], start, last, None)
        for (start, last), aggregate in new.items():
            if old.get((start, last)) != aggregate:
                yield _Session(key[0], start, last, serdes.json.serialize(aggregate).decode())

    def handleExpiredTimer(  # noqa: N802  # Spark's name
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803  # Spark's name
        expiredTimerInfo: Any,  # noqa: N803  # Spark's name
    ) -> Iterator[Row]:
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        self._keep([each for each in self._open() if ms_up(each[1] + self.gap_us) > watermark_ms], watermark_ms)
        return iter(())

    def _open(self) -> list[list[Any]]:
        state = self._state.get()
        return serdes.json.deserialize(state[0].encode()) if state else []

    def _with(self, sessions: list[list[Any]], at: int, value: Value) -> list[list[Any]]:
        start, last, aggregate, others = at, at, None, []
        for each in sessions:
            if each[0] - self.gap_us <= at <= each[1] + self.gap_us:
                start, last = min(start, each[0]), max(last, each[1])
                aggregate = each[2] if aggregate is None else self.merge(aggregate, each[2])
            else:
                others.append(each)
        aggregate = self.add(self.initial if aggregate is None else aggregate, value)
        grown = [] if aggregate is None else [[start, last, aggregate]]
        return sorted([*others, *grown], key=lambda session: session[0])

    def _keep(self, sessions: list[list[Any]], watermark_ms: int) -> None:
        if not sessions:
            self._state.clear()
            return
        self._state.update((serdes.json.serialize(sessions).decode(),))
        # Rows up to the watermark still come in the micro-batch that moved it.
        self._handle.registerTimer(max(ms_up(sessions[0][1] + self.gap_us), watermark_ms + 1))
