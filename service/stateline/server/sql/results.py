"""The rows of a statement in a format of HTTP. Pure.

JSON is an array of objects, or `{"rows", "columns", …}` with an envelope. Times are ISO 8601 in UTC, integers are
exact, bytes are base64url, JSON values are JSON. NaN and infinities are null in JSON. Infinite times are `infinity`.
Intervals are durations of ISO 8601. Maps are objects if their keys are text, else lists of pairs.
"""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from stateline.serde.arrow_values import conversion, distinct_names, is_json, values_of
from stateline.serde.plain import one_line
from stateline.server.contract.formats import ARROW, CSV, NDJSON

_STEP_ROWS = 2_000
# Python's first and last time, in microseconds.
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999


def rendered(table: pa.Table, media_type: str, envelope: Mapping[str, Any] | None) -> bytes:
    """Return the bytes of an answer. An `envelope` is for JSON alone: its members come after the rows."""
    if media_type == ARROW:
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()
    names = distinct_names(table.schema.names)
    if media_type == CSV:
        return _csv(table, names)
    lines = [orjson.dumps(dict(zip(names, row, strict=True)), default=_shown) for row in _rows(table, as_json=True)]
    if media_type == NDJSON:
        return b"".join(one_line(line) + b"\n" for line in lines)
    rows = b"[" + b",".join(lines) + b"]"
    if envelope is None:
        return rows
    columns = [{"name": name, "type": str(field.type)} for name, field in zip(names, table.schema, strict=True)]
    return orjson.dumps({"rows": orjson.Fragment(rows), "columns": columns, **envelope})


def _csv(table: pa.Table, names: Sequence[str]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")  # RFC 4180
    writer.writerow(names)
    writer.writerows(_rows(table, as_json=False))
    return text.getvalue().encode()


def _rows(table: pa.Table, *, as_json: bool) -> Iterable[Sequence[Any]]:
    converts = [_of_json(field) if as_json else _of_csv(field.type) for field in table.schema]
    for batch in table.to_batches(_STEP_ROWS):
        columns = [_times(column) or values_of(column) for column in batch.columns]
        for at, convert in enumerate(converts):
            if convert is not None:
                columns[at] = [None if value is None else convert(value) for value in columns[at]]
        yield from zip(*columns, strict=True)


def _times(column: pa.Array) -> list[str | None] | None:
    """Return times in ISO 8601, None for a column that has others, or times beyond Python's. A `datetime` for each
    takes ten times as long."""
    kind = column.type
    if not pa.types.is_timestamp(kind) or kind.unit == "ns" or kind.tz not in (None, "UTC"):
        return None
    try:
        in_us = column.cast(pa.timestamp("us", kind.tz))
    except pa.ArrowInvalid:  # beyond 64 bits
        return None
    bounds = pc.min_max(in_us.view(pa.int64()))
    first, last = bounds["min"].as_py(), bounds["max"].as_py()
    if first is not None and not _FIRST_US <= first <= last <= _LAST_US:
        return None
    zone = "" if kind.tz is None else "+00:00"
    text = pc.strftime(in_us, format=f"%Y-%m-%dT%H:%M:%S{zone}", locale="C")
    shown: list[str | None] = pc.replace_substring_regex(text, r"\.000000(\+00:00)?$", r"\1").to_pylist()
    return shown


def _of_json(field: pa.Field) -> Callable[[Any], Any] | None:
    return _json if is_json(field) else conversion(field.type, for_json=True)


def _of_csv(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return what makes a cell of a value that is there. `csv` itself writes text, numbers, and null as nothing."""
    if pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return None
    converts = conversion(kind, for_json=True)
    return _cell if converts is None else lambda value: _cell(converts(value))


def _json(value: str) -> Any:
    return orjson.Fragment(value)


def _shown(value: Any) -> Any:
    match value:
        case Decimal():
            return orjson.Fragment(format(value, "f"))
        case int():  # beyond 64 bits
            return orjson.Fragment(str(value))
        case bytes():
            return base64.urlsafe_b64encode(value).rstrip(b"=").decode("ascii")
        case pa.MonthDayNano():
            return _duration(value)
    return str(value)


def _duration(value: pa.MonthDayNano) -> str:
    """Return an interval in ISO 8601: `P1Y2M3DT4H5M6.7S`. Months, days and time each have a sign of their own."""
    months, days, nanoseconds = value
    sign = -1 if nanoseconds < 0 else 1
    seconds, rest = divmod(abs(nanoseconds), 10**9)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    year, month = divmod(abs(months), 12)
    date = _parts((year, "Y"), (month, "M"), sign=-1 if months < 0 else 1) + _parts((days, "D"))
    time = _parts((hour, "H"), (minute, "M"), sign=sign)
    if second or rest:
        time += f"{'-' * (sign < 0)}{f'{second}.{rest:09d}'.rstrip('0').rstrip('.')}S"
    return f"P{date}{'T' + time if time else ''}" if date or time else "PT0S"


def _parts(*parts: tuple[int, str], sign: int = 1) -> str:
    return "".join(f"{sign * number}{unit}" for number, unit in parts if number)


def _cell(value: Any) -> Any:
    match value:
        case bool():
            return "true" if value else "false"
        case datetime() | date() | time():
            return value.isoformat()
        case dict() | list():
            return orjson.dumps(value, default=_shown).decode()
        case Decimal() | bytes() | pa.MonthDayNano():
            shown = _shown(value)
            return format(value, "f") if isinstance(value, Decimal) else shown
    return value
