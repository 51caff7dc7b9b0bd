"""A record's key, value and headers as people are shown them, in JSON. Pure.

What is no text of its type is in `key_base64`, `value_base64`, as it is. So is a JSON value that is null itself.
"""

from __future__ import annotations

import base64
import math
from typing import Any

from stateline.log.interface import Headers
from stateline.serde.plain import Serde
from stateline_store import InvalidArgumentError


def members_of(data: bytes | None, name: str, serde: Serde | None) -> dict[str, Any]:
    """A key or value as a member of the object. `serde` None: of unknown type, text if it is UTF-8."""
    if data is None:
        return {name: None}
    try:
        if serde is None:
            return {name: data.decode()}
        said = serde.key_to_json(data) if name == "key" else serde.to_json(data)
        serde.check(data)
    except (UnicodeDecodeError, InvalidArgumentError):
        return {f"{name}_base64": _base64(data)}
    no_number = isinstance(said, float) and not math.isfinite(said)
    is_lost = no_number or (serde.name == "json" and data.strip() == b"null")
    return {f"{name}_base64": _base64(data)} if is_lost else {name: said}


def headers_of(headers: Headers) -> list[list[Any]]:
    """Names and values, each a text, null, or an object with its base64."""
    return [[name, None if value is None else _text(value)] for name, value in headers]


def _text(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": _base64(value)}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
