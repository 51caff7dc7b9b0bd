"""Groups of a table's rows: which group each key is in, and the aggregate of each group's members."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import TimerValues

from stateline import serdes
from stateline.spark.operators.processors import SHOWN_CHARACTERS, Aggregator, KeyProcessor, Value, later, newest_row
from stateline_store import RecordError

_Group = Row("group", "sign", "value", "at")
_Total = Row("group", "value", "at")


class PreviousGroups(KeyProcessor):
    """Of each key the group and value that it last had, so that they can be taken out of it.

    In: `key`, `group` (null: no member of any), `value`, `at`, `order`. Out: `group`, `sign` (-1: the value that was
    there, 1: the new one), `value`, `at`; nothing for a change that changes nothing.
    """

    state_ddl = "group string, value string"
    returns = "group string, sign int, value string, at bigint"

    def handleInputRows(self, key: Any, rows: Iterator[Row], times: TimerValues) -> Iterator[Row]:  # noqa: N802  # Spark's name
        newest = newest_row(key[0], rows)
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
class GroupTotals(KeyProcessor):
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
            at = later(at, row.at)
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
        f"The sum of {name!r} in the group {group[:SHOWN_CHARACTERS]} is {shown}, more than {kind} holds: start "
        f"over with the column {way_out}, as docs/operators.md says; what the state has added stays in it."
    )
