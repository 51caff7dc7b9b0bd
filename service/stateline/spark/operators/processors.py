"""What tables and joins keep between micro-batches: processors for `transformWithState` in Row mode.

They see a key and values as texts (`operators.packing`) and times in microseconds. All they know of a key is
one row of state, so that a key costs one read and one write in a micro-batch. Rows of one key come in any order, of
both sides of a join mixed: each processor sorts them. One call sees all rows that a key has in the micro-batch.

The names and types of states are in checkpoints: never change.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

import orjson
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)

from stateline import serdes
from stateline_store import RecordError

Value = dict[str, Any]
"""A row of values as JSON has it: times and dates as ISO texts, binary as base64."""
Aggregator = Callable[[Value, Value], Value | None]
"""Of an aggregate and a row's value, or another aggregate, makes the new one; None: there is none, as without rows."""

LEFT, RIGHT = 0, 1  # the sides of a join
_SHOWN_CHARACTERS = 200  # of a group in an error

_Group = Row("group", "sign", "value", "at")
_Total = Row("group", "value", "at")
_Joined = Row("key", "left", "right", "deleted", "at")
_Session = Row("key", "start", "last", "value")


class _Processor(StatefulProcessor):
    """A processor with one row of state, whose type is `state_ddl`, that gives rows of the type `returns`."""

    state_ddl: str
    returns: str

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state: ValueState = handle.getValueState("state", self.state_ddl)

    def close(self) -> None:
        """Nothing is held."""


def with_state(
    rows: DataFrame, key: str, processor: _Processor, time_mode: Literal["None", "EventTime"] = "None"
) -> DataFrame:
    """What the processor gives for these rows, in update mode."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PySpark's remark on new pandas versions; none is used
        return rows.groupBy(key).transformWithState(processor, processor.returns, "Update", time_mode)


class PreviousGroups(_Processor):
    """Of each key the group and value that it last had, so that they can be taken out of it.

    In: `key`, `group` (null: no member of any), `value`, `at`, `order`. Out: `group`, `sign` (-1: the value that was
    there, 1: the new one), `value`, `at`; nothing for a change that changes nothing.
    """

    state_ddl = "group string, value string"
    returns = "group string, sign int, value string, at bigint"

    def handleInputRows(self, key: Any, rows: Iterator[Row], times: TimerValues) -> Iterator[Row]:  # noqa: N802  # Spark's name
        newest = _newest(key[0], rows)
        old = self._state.get()
        new = (newest.group, newest.value) if newest.group is not None else None
        if old == new:
            return
        if new is None:
            self._state.clear()
        else:
            self._state.update(new)
        if old is not None:
            yield _Group(old[0], -1, old[1], newest.at)
        if new is not None:
            yield _Group(new[0], 1, new[1], newest.at)


@dataclass
class GroupTotals(_Processor):
    """An aggregate of each group's members.

    `add` and `subtract` make a new aggregate of one and a member's value; `initial` is that of no member, None: the
    first member's value. Values that left are subtracted before others are added. Where one of them gave None, the
    next value is added to `initial`, and those that leave before are not subtracted. What leaves is made by `result` of
    the group and its aggregate; None: it is the aggregate. In: what `PreviousGroups` gives.
    Out: `group`, `value` (null: the group has no member any more, or no aggregate), `at`.
    """

    initial: Value | None
    add: Aggregator
    subtract: Aggregator
    result: Callable[[str, Value], Value] | None = None
    state_ddl = "members bigint, aggregate string, at bigint"
    returns = "group string, value string, at bigint"

    def handleInputRows(self, key: Any, rows: Iterator[Row], times: TimerValues) -> Iterator[Row]:  # noqa: N802  # Spark's name
        state = self._state.get()
        members, text, at = state or (0, None, None)
        aggregate: Value | None = serdes.json.deserialize(text.encode()) if text is not None else None
        for row in sorted(rows, key=lambda row: (row.sign, row.at or 0)):
            members += row.sign
            at = _later(at, row.at)
            aggregate = self._changed(aggregate, row.sign, serdes.json.deserialize(row.value.encode()))
        had_result = text is not None
        text = result = None
        if members > 0 and aggregate is not None:
            text = serdes.json.serialize(aggregate).decode()
            result = serdes.json.serialize(self.result(key[0], aggregate)).decode() if self.result else text
        if members > 0:
            self._state.update((members, text, at))
        else:
            self._state.clear()
        if had_result or result is not None:
            yield _Total(key[0], result, at)

    def _changed(self, aggregate: Value | None, sign: int, value: Value) -> Value | None:
        if sign < 0:
            return None if aggregate is None else self.subtract(aggregate, value)
        if aggregate is None:
            aggregate = self.initial
        return value if aggregate is None else self.add(aggregate, value)


@dataclass(frozen=True)
class Sum:
    """Adds (or, with `sign` -1, takes away) the columns' numbers; null counts as 0.

    Exact, so that what was added can be taken out again: totals of integers are integers of any size, those of doubles
    texts of fractions (``"5404319552844595/18014398509481984"``), which `rounded` makes numbers of. A total that is a
    double itself, as earlier versions kept it, is read as well.
    """

    columns: tuple[str, ...]
    sign: int = 1

    def __call__(self, totals: Value, value: Value) -> Value:
        return {name: self._changed(totals[name], value[name] or 0) for name in self.columns}

    def _changed(self, total: int | float | str, number: int | float) -> int | str:
        if isinstance(total, int) and isinstance(number, int):
            return total + self.sign * number
        return str(Fraction(total) + self.sign * Fraction(number))


def rounded(group: str, totals: Value) -> Value:
    """The sums as numbers: integers as they are, others as the nearest double.

    Raises `RecordError` for a sum that no BIGINT or DOUBLE holds.
    """
    return {name: _number(group, name, total) for name, total in totals.items()}


def _number(group: str, name: str, total: int | str) -> int | float:
    if isinstance(total, int):
        if -(1 << 63) <= total < 1 << 63:
            return total
        shown, kind, way_out = str(total), "BIGINT", "cast to double or with fewer rows (filter)"
    else:
        try:
            return float(Fraction(total))
        except OverflowError:
            exact = Fraction(total)
            shown, kind = f"{Decimal(exact.numerator) / exact.denominator:.3g}", "DOUBLE"
            way_out = "made smaller or with fewer rows (filter)"
    raise RecordError(
        f"The sum of {name!r} in the group {group[:_SHOWN_CHARACTERS]} is {shown}, more than {kind} holds: start "
        f"over with the column {way_out}, as docs/operators.md says; what the state has added stays in it."
    )


@dataclass
class JoinTables(_Processor):
    """The newest value of each side. In: `key`, `side`, `value` (null: deleted), `at`, `order`.

    Out: `key`, `left`, `right`, `deleted`, `at` (the later of both sides'); one row for a key that has a result or
    had one.
    """

    how: Literal["inner", "left", "outer"]
    state_ddl = "left string, left_at bigint, right string, right_at bigint"
    returns = "key string, left string, right string, deleted boolean, at bigint"

    def handleInputRows(self, key: Any, rows: Iterator[Row], times: TimerValues) -> Iterator[Row]:  # noqa: N802  # Spark's name
        state = self._state.get() or (None, None, None, None)
        sides = {LEFT: (state[0], state[1]), RIGHT: (state[2], state[3])}
        had_result = self._has_result(state[0], state[2])
        changes = list(rows)
        for side in {row.side for row in changes}:
            newest = _newest(key[0], (row for row in changes if row.side == side))
            sides[side] = (newest.value, newest.at)
        (left, left_at), (right, right_at) = sides[LEFT], sides[RIGHT]
        if left is None and right is None:
            self._state.clear()
        else:
            self._state.update((left, left_at, right, right_at))
        has_result = self._has_result(left, right)
        if has_result or had_result:
            at = _later(left_at, right_at)
            yield _Joined(key[0], left if has_result else None, right if has_result else None, not has_result, at)

    def _has_result(self, left: str | None, right: str | None) -> bool:
        if self.how == "inner":
            return left is not None and right is not None
        return left is not None or (self.how == "outer" and right is not None)


@dataclass
class JoinStreamWithTable(_Processor):
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
        ready = [row for row in waiting if _ms_up(row[0]) <= watermark_ms]
        left = waiting[len(ready) :]
        for at, _, value in ready:
            found = next((version[2] for version in reversed(versions) if version[0] <= at), None)
            if found is not None or self.how == "left":
                yield _Joined(key, value, found, False, at)
        passed = sum(_ms_up(version[0]) <= watermark_ms for version in versions)
        kept = versions[max(passed - 1, 0) :]
        if left or len(kept) > 1 or (kept and (passed == 0 or kept[0][2] is not None)):
            self._state.update((orjson.dumps(kept).decode(), orjson.dumps(left).decode()))
        else:
            self._state.clear()  # nothing waits, and there is no value
        if left and (timer_at is None or _ms_up(left[0][0]) != _ms_up(timer_at)):
            self._handle.registerTimer(_ms_up(left[0][0]))


@dataclass
class Sessions(_Processor):
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
        self._keep([each for each in self._open() if _ms_up(each[1] + self.gap_us) > watermark_ms], watermark_ms)
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
        self._handle.registerTimer(max(_ms_up(sessions[0][1] + self.gap_us), watermark_ms + 1))


def _newest(key: str, rows: Iterable[Row]) -> Row:
    """Raises `RecordError` when that could be one or another."""
    changes = list(rows)
    newest: Row = max(changes, key=lambda row: row.order)
    if any(row.order == newest.order and row != newest for row in changes):
        raise RecordError(
            f"A table has two rows of one micro-batch with the key {key[:_SHOWN_CHARACTERS]}, and nothing tells which "
            "is the newer: add a column _order to what table_of is given, or another column to its key."
        )
    return newest


def _later(one: int | None, other: int | None) -> int | None:
    known = [at for at in (one, other) if at is not None]
    return max(known) if known else None


def _at_and_order(entry: list[Any]) -> tuple[int, int]:
    return entry[0], entry[1]


def _ms_up(microseconds: int) -> int:
    """Milliseconds, rounded up: timers and watermarks know no smaller unit."""
    return -(-microseconds // 1000)
