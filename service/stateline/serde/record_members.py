"""A record's key, value and headers in JSON, to show them to people. Pure.

Bytes that are no text of their type are in `key_base64` or `value_base64`. So is a JSON value that is null itself.
"""

from __future__ import annotations

import base64
import math
from typing import Any

from stateline.serde.plain import Serde
from stateline_store import DamagedDataError, InvalidArgumentError
from stateline_store.rows.headers import Headers


def members_of(data: bytes | None, name: str, serde: Serde | None) -> dict[str, Any]:
    """Return a key or value as a member of the object. `serde` None: of unknown type, text if it is UTF-8."""
    if data is None:
        return {name: None}
    try:
        if serde is None:
            return {name: data.decode()}
        said = serde.key_to_json(data) if name == "key" else serde.to_json(data)
        serde.check(data)
    except (UnicodeDecodeError, InvalidArgumentError, DamagedDataError):
        return {f"{name}_base64": _base64(data)}
    no_number = isinstance(said, float) and not math.isfinite(said)
    is_lost = no_number or (serde.name == "json" and data.strip() == b"null")
    return {f"{name}_base64": _base64(data)} if is_lost else {name: said}


def headers_of(headers: Headers) -> list[list[Any]]:
    """Return names and values. A value is text, null, or an object with its base64."""
    return [[name, None if value is None else _text(value)] for name, value in headers]


def _text(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": _base64(value)}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
