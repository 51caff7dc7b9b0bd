"""Joins two tables, or a stream with a table as of each row's time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues

from stateline.spark.operators.processors import StateProcessor, TableProcessor, later, ms_up, newest_row
from stateline.spark.operators.sorted_state import Place, SortedEntries, SortedState
from stateline.spark.operators.state_requests import Entry

LEFT, RIGHT = 0, 1  # the sides of a join


class SideChange(NamedTuple):
    """A new value of a key on one side. None deletes the key. `at` is microseconds since 1970."""

    key: str
    side: int
    value: str | None
    at: int | None
    order: int


_Joined = Row("key", "left", "right", "deleted", "at")


@dataclass
class JoinTables(TableProcessor):
    """Joins the newest values of both sides. In: `key`, `side`, `value` (null: deleted), `at`, `order`. Out: `key`,
    `left`, `right`, `deleted`, `at` (the later of both sides). One row for a key that has a result or had one."""

    how: Literal["inner", "left", "outer"]
    takes = SideChange
    state_ddl = "left string, left_at bigint, right string, right_at bigint"
    returns = "key string, left string, right string, deleted boolean, at bigint"

    def changed(self, key: str, rows: list[Any], state: Any) -> tuple[Entry | None, Iterable[Row]]:
        left, left_at, right, right_at = state or (None, None, None, None)
        had_result = self._has_result(left, right)
        if of_left := [row for row in rows if row.side == LEFT]:
            newest = newest_row(key, of_left)
            left, left_at = newest.value, newest.at
        if of_right := [row for row in rows if row.side == RIGHT]:
            newest = newest_row(key, of_right)
            right, right_at = newest.value, newest.at
        has_result = self._has_result(left, right)
        leaves = []
        if has_result or had_result:
            at = later(left_at, right_at)
            leaves = [_Joined(key, left if has_result else None, right if has_result else None, not has_result, at)]
        return None if left is None and right is None else (left, left_at, right, right_at), leaves

    def _has_result(self, left: str | None, right: str | None) -> bool:
        if self.how == "inner":
            return left is not None and right is not None
        return left is not None or (self.how == "outer" and right is not None)


@dataclass
class JoinStreamWithTable(StateProcessor):
    """Joins each row of the stream with the table's value as of the row's time. A row waits until the watermark has
    passed its time. A later row is joined at once, with the versions still kept: those newer than the watermark, and
    one before it. In: `key`, `side` (LEFT: the stream), `value`, `at`, `order`. Out: `key`, `left`, `right`, `deleted`
    (false), `at`."""

    how: Literal["inner", "left"]
    returns = JoinTables.returns

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._versions = SortedState(handle, "versions")  # at, order, value or null
        self._waiting = SortedState(handle, "waiting")  # at, order, value

    def handleInputRows(self, key: Any, rows: Iterator[Row], times: TimerValues) -> Iterator[Row]:  # noqa: N802  # Spark's name
        versions, waiting = self._versions.entries(), self._waiting.entries()
        timer_at = waiting.first
        for row in sorted(rows, key=lambda row: (row.at or 0, row.order)):
            (waiting if row.side == LEFT else versions).put((row.at or 0, row.order, row.value))
        yield from self._settled(key[0], versions, waiting, times.getCurrentWatermarkInMs(), timer_at)

    def handleExpiredTimer(self, key: Any, timerValues: TimerValues, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803  # Spark's names
        versions, waiting = self._versions.entries(), self._waiting.entries()
        yield from self._settled(key[0], versions, waiting, timerValues.getCurrentWatermarkInMs(), None)

    def _settled(
        self, key: str, versions: SortedEntries, waiting: SortedEntries, watermark_ms: int, timer_at: Place | None
    ) -> Iterator[Row]:
        """Join the rows that may be joined, keep the rest. A timer is set for `timer_at` already."""
        while waiting.first and ms_up(waiting.first[0]) <= watermark_ms:
            at, _, value = waiting.remove_first()
            found = versions.up_to(at)
            right = found[2] if found is not None else None
            if right is not None or self.how == "left":
                yield _Joined(key, value, right, False, at)
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
