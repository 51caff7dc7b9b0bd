"""Shows values without a JSON type in answers. Pure.

Bytes are base64, a decimal is its text, digit for digit, a time is ISO 8601 with a Z for UTC, a UUID is text."""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import Any

import orjson

from stateline.serde.plain import shown
from stateline_store import InvalidArgumentError


def json_text(value: Any) -> bytes:
    """Return the value's JSON. Raises `InvalidArgumentError` if it has none."""
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
