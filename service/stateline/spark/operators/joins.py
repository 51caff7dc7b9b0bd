"""Joins a stream with a table as of each row's time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues

from stateline.spark.operators.processors import StateProcessor, ms_up
from stateline.spark.operators.sorted_state import Place, SortedEntries, SortedState

LEFT, RIGHT = 0, 1  # the sides of a join

_Joined = Row("left", "right")


@dataclass
class JoinStreamWithTable(StateProcessor):
    """Joins each row of the stream with the table's value as of the row's time. A row waits until the watermark has
    passed its time. A later row is joined at once, with the versions still kept: those newer than the watermark, and
    one before it. In: `key`, `side` (LEFT: the stream), `value`, `at`, `order`. Out: `left`, `right`."""

    how: Literal["inner", "left"]
    returns = "left string, right string"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._versions = SortedState(handle, "versions")  # at, order, value or null
        self._waiting = SortedState(handle, "waiting")  # at, order, value

    def handleInputRows(self, key: Any, rows: Iterator[Row], times: TimerValues) -> Iterator[Row]:  # noqa: N802  # Spark's name
        versions, waiting = self._versions.entries(), self._waiting.entries()
        timer_at = waiting.first
        for row in sorted(rows, key=lambda row: (row.at or 0, row.order)):
            (waiting if row.side == LEFT else versions).put((row.at or 0, row.order, row.value))
        yield from self._settled(versions, waiting, times.getCurrentWatermarkInMs(), timer_at)

    def handleExpiredTimer(self, key: Any, timerValues: TimerValues, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803  # Spark's names
        versions, waiting = self._versions.entries(), self._waiting.entries()
        yield from self._settled(versions, waiting, timerValues.getCurrentWatermarkInMs(), None)

    def _settled(
        self, versions: SortedEntries, waiting: SortedEntries, watermark_ms: int, timer_at: Place | None
    ) -> Iterator[Row]:
        """Join the rows that may be joined, keep the rest. A timer is set for `timer_at` already."""
        while waiting.first and ms_up(waiting.first[0]) <= watermark_ms:
            at, _, value = waiting.remove_first()
            found = versions.up_to(at)
            right = found[2] if found is not None else None
            if right is not None or self.how == "left":
                yield _Joined(value, right)
        while versions.second and ms_up(versions.second[0]) <= watermark_ms:
            versions.remove_first()
        if versions.first and ms_up(versions.first[0]) <= watermark_ms:
            oldest = versions.up_to(versions.first[0])
            if oldest is not None and oldest[2] is None:
                versions.remove_first()  # a deletion means the same as no version
        versions.save()
        waiting.save()
        if waiting.first and (timer_at is None or ms_up(waiting.first[0]) != ms_up(timer_at[0])):
            self._handle.registerTimer(ms_up(waiting.first[0]))
