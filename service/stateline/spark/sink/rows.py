"""Values of a result one by one, as Python has them: for types and values that Arrow's kernels have no text for. Pure.

`stateline.spark.sink.json_texts` and `stateline.spark.sink.encoding` do the rest, a column at a time.
"""

from __future__ import annotations

import base64
import math
from datetime import date
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa

SHOWN_CHARACTERS = 300  # of a row in an error
_JSON_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_NAIVE_UTC | orjson.OPT_NON_STR_KEYS


def plain(array: pa.Array) -> list[Any]:
    """The values as Python's; maps are dicts. Bytes of a text that are not UTF-8 come as U+FFFD."""
    if pa.types.is_string(array.type) and not is_utf8(array):
        return [None if data is None else data.decode(errors="replace") for data in array.cast(pa.binary()).to_pylist()]
    return array.to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]  # pyarrow is untyped


def is_utf8(array: pa.Array) -> bool:
    """Whether all bytes of a column of texts are; Spark does not look when it reads binary as text."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def json_text(value: Any) -> str:
    """The value as JSON: times are ISO 8601 in UTC, decimals text, binary base64, NaN and infinities null."""
    return orjson.dumps(value, default=_other, option=_JSON_OPTIONS).decode()


def times_as_text(value: Any) -> Any:
    """The value with its times as ISO 8601, as keys of type json have them: ``2013-01-01T05:00:00+00:00``. In topics:
    never change."""
    if isinstance(value, dict):
        return {name: times_as_text(member) for name, member in value.items()}
    if isinstance(value, list):
        return [times_as_text(item) for item in value]
    return value.isoformat() if isinstance(value, date) else value  # a datetime is a date


def is_finite(value: Any) -> bool:
    """Whether a value holds neither NaN nor an infinity."""
    if isinstance(value, dict):
        return all(is_finite(part) for pair in value.items() for part in pair)
    if isinstance(value, list):
        return all(map(is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def key_text(value: Any) -> str:
    """A key column's value as text: times as in the JSON, a struct as its JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return json_text(value).strip('"')
    return str(value)


def _other(value: Any) -> Any:
    """JSON for what orjson does not know."""
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no JSON form")
