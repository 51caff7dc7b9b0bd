"""The rows of a statement in a format of HTTP. Pure.

JSON is an array of objects, or `{"rows", "columns", …}` with an envelope. Times are ISO 8601 in UTC, integers are
exact, bytes are base64url, JSON values are JSON. NaN and infinities are null in JSON. Infinite times are `infinity`.
"""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson
import pyarrow as pa

from stateline.server.contract.formats import ARROW, CSV, NDJSON
from stateline_store import SqlInvalidError

_JSON_TYPE = b"arrow.json"
_STEP_ROWS = 2_000
_INFINITE = {True: 2**31 - 1, False: 2**63 - 1}
"""DuckDB's infinite dates, and timestamps."""


def rendered(table: pa.Table, media_type: str, envelope: Mapping[str, Any] | None) -> bytes:
    """Return the bytes of an answer. An `envelope` is for JSON alone: its members come after the rows."""
    if media_type == ARROW:
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()
    names = _distinct(table.schema.names)
    if media_type == CSV:
        return _csv(table, names)
    lines = [orjson.dumps(dict(zip(names, row, strict=True)), default=_shown) for row in _rows(table, as_json=True)]
    if media_type == NDJSON:
        return b"".join(line + b"\n" for line in lines)
    rows = b"[" + b",".join(lines) + b"]"
    if envelope is None:
        return rows
    columns = [{"name": name, "type": str(field.type)} for name, field in zip(names, table.schema, strict=True)]
    return orjson.dumps({"rows": orjson.Fragment(rows), "columns": columns, **envelope})


def _csv(table: pa.Table, names: Sequence[str]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")  # RFC 4180
    writer.writerow(names)
    for row in _rows(table, as_json=False):
        writer.writerow([_cell(value) for value in row])
    return text.getvalue().encode()


def _rows(table: pa.Table, *, as_json: bool) -> Iterable[Sequence[Any]]:
    converts: list[Callable[[Any], Any] | None] = [
        _json if as_json and _is_json(field) else None for field in table.schema
    ]
    for batch in table.to_batches(_STEP_ROWS):
        columns = [_values(column) for column in batch.columns]
        for at, convert in enumerate(converts):
            if convert is not None:
                columns[at] = list(map(convert, columns[at]))
        yield from zip(*columns, strict=True)


def _values(column: pa.Array) -> list[Any]:
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
        return scalar.cast(pa.utf8()).as_py()


def _is_json(field: pa.Field) -> bool:
    if isinstance(field.type, pa.JsonType):
        return True
    return bool(field.metadata) and field.metadata.get(b"ARROW:extension:name") == _JSON_TYPE


def _json(value: str | None) -> Any:
    return None if value is None else orjson.Fragment(value)


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the names, each once: a repeated one gets a number."""
    found: list[str] = []
    for name in names:
        number, tried = 1, name
        while tried in found:
            tried = f"{name}_{number}"
            number += 1
        found.append(tried)
    return found


def _shown(value: Any) -> Any:
    match value:
        case Decimal():
            return orjson.Fragment(format(value, "f"))
        case int():  # beyond 64 bits
            return orjson.Fragment(str(value))
        case bytes():
            return base64.urlsafe_b64encode(value).rstrip(b"=").decode("ascii")
        case timedelta():
            return value.total_seconds()
        case UUID():
            return str(value)
    return str(value)


def _cell(value: Any) -> Any:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case datetime() | date() | time():
            return value.isoformat()
        case dict() | list():
            return orjson.dumps(value, default=_shown).decode()
        case Decimal() | bytes() | timedelta():
            shown = _shown(value)
            return format(value, "f") if isinstance(value, Decimal) else shown
    return value
