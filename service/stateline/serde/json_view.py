"""How values that JSON has no type for stand in answers: bytes as base64, a decimal as its text, digit for digit, times
as ISO 8601 with a Z for UTC, a UUID as text. Pure."""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import Any

import orjson

from stateline.serde.plain import shown
from stateline_store import InvalidArgumentError


def json_text(value: Any) -> bytes:
    """The JSON of this value. Raises `InvalidArgumentError` for what has none."""
    try:
        return orjson.dumps(value, default=_plain, option=orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError as error:
        raise InvalidArgumentError(f"{shown(value)} cannot be shown as JSON: {error}.") from error


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, set | frozenset):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no JSON")
