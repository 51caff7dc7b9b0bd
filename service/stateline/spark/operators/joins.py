"""Joins of two tables, and of a stream with a table as of each row's time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import orjson
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import TimerValues

from stateline.spark.operators.processors import KeyProcessor, TableProcessor, later, ms_up, newest_row
from stateline.spark.operators.state_requests import Entry

LEFT, RIGHT = 0, 1  # the sides of a join


class SideChange(NamedTuple):
    """A new value of a key on one side; without `value` the key is deleted. `at`: microseconds since 1970."""

    key: str
    side: int
    value: str | None
    at: int | None
    order: int


_Joined = Row("key", "left", "right", "deleted", "at")


@dataclass
class JoinTables(TableProcessor):
    """The newest value of each side. In: `key`, `side`, `value` (null: deleted), `at`, `order`.

    Out: `key`, `left`, `right`, `deleted`, `at` (the later of both sides'); one row for a key that has a result or
    had one.
    """

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
class JoinStreamWithTable(KeyProcessor):
    """Each row of the stream beside the table's value as of the row's time.

    A row waits until the watermark has passed its time; one that comes later than that is joined at once, with what is
    still known. In: `key`, `side` (LEFT: the stream), `value`, `at`, `order`. Out: `key`, `left`, `right`, `deleted`
    (false), `at`. Of the versions, those that are newer than the watermark are kept, and one before it.
    """

    how: Literal["inner", "left"]
    # versions: [[at, order, value or null], …], oldest first; waiting: [[at, order, value], …], in that order
    state_ddl = "versions string, waiting string"
    returns = JoinTables.returns

    def handleInputRows(self, key: Any, rows: Iterator[Row], times: TimerValues) -> Iterator[Row]:  # noqa: N802  # Spark's name
        versions, waiting = self._lists()
        first_before = waiting[0][0] if waiting else None
        for row in rows:
            (waiting if row.side == LEFT else versions).append([row.at or 0, row.order, row.value])
        versions.sort(key=_at_and_order)
        waiting.sort(key=_at_and_order)
        yield from self._settled(key[0], versions, waiting, times.getCurrentWatermarkInMs(), first_before)

    def handleExpiredTimer(  # noqa: N802  # Spark's name
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803  # Spark's name
        expiredTimerInfo: Any,  # noqa: N803  # Spark's name
    ) -> Iterator[Row]:
        versions, waiting = self._lists()
        yield from self._settled(key[0], versions, waiting, timerValues.getCurrentWatermarkInMs(), None)

    def _lists(self) -> tuple[list[list[Any]], list[list[Any]]]:
        versions, waiting = self._state.get() or ("[]", "[]")
        return orjson.loads(versions), orjson.loads(waiting)

    def _settled(
        self, key: str, versions: list[list[Any]], waiting: list[list[Any]], watermark_ms: int, timer_at: int | None
    ) -> Iterator[Row]:
        """Join what may be joined, keep the rest. `timer_at`: a timer stands for this time already."""
        ready = [row for row in waiting if ms_up(row[0]) <= watermark_ms]
        left = waiting[len(ready) :]
        for at, _, value in ready:
            found = next((version[2] for version in reversed(versions) if version[0] <= at), None)
            if found is not None or self.how == "left":
                yield _Joined(key, value, found, False, at)
        passed = sum(ms_up(version[0]) <= watermark_ms for version in versions)
        kept = versions[max(passed - 1, 0) :]
        if left or len(kept) > 1 or (kept and (passed == 0 or kept[0][2] is not None)):
            self._state.update((orjson.dumps(kept).decode(), orjson.dumps(left).decode()))
        else:
            self._state.clear()  # nothing waits, and there is no value
        if left and (timer_at is None or ms_up(left[0][0]) != ms_up(timer_at)):
            self._handle.registerTimer(ms_up(left[0][0]))


def _at_and_order(entry: list[Any]) -> tuple[int, int]:
    return entry[0], entry[1]
