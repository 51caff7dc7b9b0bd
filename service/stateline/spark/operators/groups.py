"""Groups of a table's rows: the group of each key, and the aggregate of each group's members."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from pyspark.sql import Row

from stateline import serdes
from stateline.spark.operators.processors import SHOWN_CHARACTERS, Aggregator, TableProcessor, Value, later, newest_row
from stateline.spark.operators.state_requests import Entry
from stateline_store import RecordError


class Membership(NamedTuple):
    """The group of a key (None: no group) and its value. `at` is microseconds since 1970."""

    key: str
    group: str | None
    value: str
    at: int | None
    order: int


class GroupChange(NamedTuple):
    """A value that leaves its group (`sign` -1) or joins it (1)."""

    group: str
    sign: int
    value: str
    at: int | None


_Group = Row("group", "sign", "value", "at")
_Total = Row("group", "value", "at")


class PreviousGroups(TableProcessor):
    """Keeps the last group and value of each key, to take them out of that group. In: `key`, `group` (null: none),
    `value`, `at`, `order`. Out: `group`, `sign` (-1: the old value, 1: the new one), `value`, `at`. A change without
    effect gives no rows."""

    takes = Membership
    state_ddl = "group string, value string"
    returns = "group string, sign int, value string, at bigint"

    def changed(self, key: str, rows: list[Any], state: Any) -> tuple[Entry | None, Iterable[Row]]:
        newest = newest_row(key, rows)
        new = (newest.group, newest.value) if newest.group is not None else None
        leaves = []
        if state is not None and new != tuple(state):
            leaves.append(_Group(state[0], -1, state[1], newest.at))
        if new is not None and (state is None or new != tuple(state)):
            leaves.append(_Group(new[0], 1, new[1], newest.at))
        return new, leaves


@dataclass
class GroupTotals(TableProcessor):
    """Keeps an aggregate of each group's members.

    `add` and `subtract` return a new aggregate from one and a member's value. `initial` is the aggregate of no members.
    If it is None, the first value is the first aggregate. Values are subtracted before others are added. If a function
    returns None, the next value is added to `initial`, and values that leave before are ignored. `result` makes the
    output from the group and its aggregate. In: the rows of `PreviousGroups`. Out: `group`, `value` (null: no member or
    aggregate is left), `at`.
    """

    initial: Value | None
    add: Aggregator
    subtract: Aggregator
    result: Callable[[str, Value], Value] | None = None
    takes = GroupChange
    state_ddl = "members bigint, aggregate string, at bigint"
    returns = "group string, value string, at bigint"

    def changed(self, key: str, rows: list[Any], state: Any) -> tuple[Entry | None, Iterable[Row]]:
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
            result = serdes.json.serialize(self.result(key, aggregate)).decode() if self.result else text
        leaves = [_Total(key, result, at)] if had_result or result is not None else []
        return (members, text, at) if members > 0 else None, leaves

    def _changed(self, aggregate: Value | None, sign: int, value: Value) -> Value | None:
        if sign < 0:
            return None if aggregate is None else self.subtract(aggregate, value)
        if aggregate is None:
            aggregate = self.initial
        return value if aggregate is None else self.add(aggregate, value)


@dataclass(frozen=True)
class Sum:
    """Adds the columns' numbers, or subtracts them with `sign` -1. Null counts as 0. Sums are exact, so that values can
    be taken out again. Sums of integers are integers of any size. Sums of doubles are texts of fractions
    (``"5404319552844595/18014398509481984"``), which `rounded` turns into numbers."""

    columns: tuple[str, ...]
    sign: int = 1

    def __call__(self, totals: Value, value: Value) -> Value:
        return {name: self._changed(totals[name], value[name] or 0) for name in self.columns}

    def _changed(self, total: int | float | str, number: int | float) -> int | str:
        if isinstance(total, int) and isinstance(number, int):
            return total + self.sign * number
        return str(Fraction(total) + self.sign * Fraction(number))


def rounded(group: str, totals: Value) -> Value:
    """Return the sums as numbers: integers unchanged, others as the nearest double. Raises `RecordError` for a sum that
    no BIGINT or DOUBLE holds."""
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
