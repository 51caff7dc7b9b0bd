"""Read columns of Arrow, as SQL answers have them, as Python values. Pure.

Infinite times are the texts `infinity` and `-infinity`, because Python has none. Times beyond the years 1 to 9999 are
texts in ISO 8601 with a sign, such as `+40000-01-01T00:00:00+00:00`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, timedelta
from typing import Any

import pyarrow as pa

from stateline.serde.plain import JsonSerde
from stateline_store import SqlInvalidError

_JSON = JsonSerde()
_JSON_TYPE = b"arrow.json"
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # in a second
_INFINITE = {True: 2**31 - 1, False: 2**63 - 1}
"""DuckDB's infinite dates, and timestamps."""


def values_of(column: pa.Array) -> list[Any]:
    """Return a Python value for each row. Raises `SqlInvalidError` for times beyond the years 1 to 9999 in a list or
    struct."""
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):  # Python has no infinite times, and none after the year 9999
        return [_far(scalar) for scalar in column]


def _far(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError) as error:
        if not (pa.types.is_temporal(scalar.type) and hasattr(scalar, "value")):
            raise SqlInvalidError(
                f"The result has a {scalar.type} with a time beyond the years 1 to 9999. Cast it to VARCHAR."
            ) from error
        if abs(scalar.value) == _INFINITE[pa.types.is_date(scalar.type)]:
            return "infinity" if scalar.value > 0 else "-infinity"
        return _expanded(scalar)


def _expanded(scalar: pa.Scalar) -> str:
    """Return a date or timestamp in ISO 8601 with its sign and as many digits of the year as it has. Arrow's own cast
    knows years up to 32767 alone."""
    if pa.types.is_date(scalar.type):
        days, at = scalar.value, ""
    else:
        days, units = divmod(scalar.value, 86_400 * _UNITS[scalar.type.unit])
        seconds, fraction = divmod(units, _UNITS[scalar.type.unit])
        shown = f".{fraction * 10**6 // _UNITS[scalar.type.unit]:06}" if fraction else ""
        zone = "" if scalar.type.tz is None else "+00:00"
        at = f"T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{shown}{zone}"
    # The calendar repeats itself every 400 years, which are 146,097 days.
    periods, day = divmod(days, 146_097)
    near = date(1970, 1, 1) + timedelta(days=day)
    year = near.year + 400 * periods
    return f"{'-' if year < 0 else '+'}{abs(year):04}-{near.month:02}-{near.day:02}{at}"


def is_json(field: pa.Field) -> bool:
    """Whether the column has JSON texts: Arrow's canonical extension `arrow.json`."""
    if isinstance(field.type, pa.JsonType):
        return True
    return bool(field.metadata) and field.metadata.get(b"ARROW:extension:name") == _JSON_TYPE


def distinct_names(names: Sequence[str]) -> list[str]:
    """Return the names, each once: a repeated one gets a number."""
    found: list[str] = []
    for name in names:
        number, tried = 1, name
        while tried in found:
            tried = f"{name}_{number}"
            number += 1
        found.append(tried)
    return found


def python_values(field: pa.Field, column: pa.ChunkedArray) -> Sequence[Any]:
    """Return a Python value for each row: JSON texts as lists and dicts, maps as dicts, whole decimals as int. Raises
    like `values_of`."""
    values = [value for chunk in column.chunks for value in values_of(chunk)]
    converts = _from_json if is_json(field) else conversion(field.type)
    return values if converts is None else [None if value is None else converts(value) for value in values]


def _from_json(text: str) -> Any:
    return _JSON.deserialize(text.encode())


def _interval(value: pa.MonthDayNano) -> timedelta | pa.MonthDayNano:
    months, days, nanoseconds = value
    is_short = not months and abs(days) < timedelta.max.days
    return timedelta(days, microseconds=nanoseconds // 1000) if is_short else value


def conversion(kind: pa.DataType, *, for_json: bool = False) -> Callable[[Any], Any] | None:
    """Return what makes Python's int, dict and timedelta of Arrow's whole decimals, maps and intervals; None for a type
    without any. An interval with months stays. For JSON, decimals and intervals stay, and maps whose keys are no text
    are lists of pairs."""
    if pa.types.is_decimal(kind):
        return int if kind.scale == 0 and not for_json else None
    if pa.types.is_interval(kind):
        return None if for_json else _interval
    if pa.types.is_map(kind):
        of_key, of_item = _or_same(kind.key_type, for_json), _or_same(kind.item_type, for_json)
        if for_json and not pa.types.is_string(kind.key_type):
            return lambda pairs: [[of_key(key), of_item(item)] for key, item in pairs]
        return lambda pairs: {of_key(key): of_item(item) for key, item in pairs}
    if pa.types.is_struct(kind):
        of_members = {field.name: _or_same(field.type, for_json) for field in kind}
        return lambda members: {name: of_members[name](member) for name, member in members.items()}
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        of_each = _or_same(kind.value_type, for_json)
        return lambda items: [of_each(item) for item in items]
    return None


def _or_same(kind: pa.DataType, for_json: bool) -> Callable[[Any], Any]:
    converts = conversion(kind, for_json=for_json)
    return (lambda value: value) if converts is None else lambda value: None if value is None else converts(value)
