"""Keys as text: what a path and a parameter have, and `key_text` of an answer. The text of a key finds that key.

| type                        | text                                                                       |
|-----------------------------|----------------------------------------------------------------------------|
| json                        | its JSON text, byte for byte                                               |
| float64                     | decimal; `NaN`, `Infinity`, `-Infinity`, `NaN:` and 16 hexadecimal digits  |
| model, msgpack, *windowed   | its JSON where that has all of its bytes, else `base64:` and base64url     |
| subscriber, unmatched       | the same                                                                   |
| avro, protobuf, json_schema | `base64:` and base64url, which needs no registry                           |
| all others                  | as the type reads it                                                       |

Pure, and thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import orjson

from stateline.serde.model import ModelSerde
from stateline.serde.packed import MsgpackSerde
from stateline.serde.plain import BytesSerde, FloatSerde, JsonSerde, Serde, StringSerde
from stateline.serde.registered import RegisteredSerde, innermost
from stateline.serde.scalars import UuidSerde
from stateline.serde.shown_as_json import SHOWN_AS_JSON
from stateline.serde.subscription import SubscriberSerde
from stateline.serde.unmatched import UnmatchedKeySerde
from stateline.serde.windowed import TimeWindowedSerde, WindowedSerde
from stateline_store import InvalidArgumentError

_BYTES = "base64:"  # begins no JSON text
_STRING, _BINARY = StringSerde(), BytesSerde()
_PARTS = ("key", "lower", "upper", "prefix")
Q = TypeVar("Q")


def key_text(serde: Serde, data: bytes) -> str | None:
    """Return the text of a key that its JSON does not find again; None for other keys."""
    text_of = _TEXTS.get(type(serde))
    return None if text_of is None else text_of(serde, data)


def may_have_text(serde: Serde) -> bool:
    """Whether `key_text` has something to say of any key of this type."""
    return type(serde) in _TEXTS


def key_of_text(serde: Serde, text: str) -> bytes:
    """The bytes of the key with this text. Raises `InvalidArgumentError`."""
    if text.startswith(_BYTES) and _TEXTS.get(type(serde)) in (_bytes, _json_or_bytes):
        return _BINARY.parse_text(text.removeprefix(_BYTES))
    return serde.parse_text(text)


def other_spellings(serde: Serde, keys: Iterable[bytes]) -> dict[bytes, bytes]:
    """Return the keys that may be stored in another form, with this form: UUIDs in lower case."""
    if type(serde) is not UuidSerde:
        return {}
    return {key: lower for key in keys if (lower := key.lower()) != key}


def in_lower_case(serde: Serde, query: Q) -> Q | None:
    """This query of a key or a range with its UUIDs in lower case; None where it has none that are not."""
    if type(serde) is not UuidSerde:
        return None
    parts = {name: part for name in _PARTS if isinstance(part := getattr(query, name, None), bytes)}
    lowered = {name: part.lower() for name, part in parts.items()}
    return None if lowered == parts else replace(query, **lowered)  # type: ignore[type-var]  # a dataclass


def _bytes(serde: Serde, data: bytes) -> str:
    return _BYTES + _BINARY.key_to_json(data)


def _json_or_bytes(serde: Serde, data: bytes) -> str:
    if not isinstance(innermost(serde), RegisteredSerde):
        with suppress(InvalidArgumentError):
            text = orjson.dumps(serde.key_to_json(data)).decode()
            if serde.parse_text(text) == data:
                return text
    return _bytes(serde, data)


_TEXTS: dict[type, Callable[[Any, bytes], str | None]] = {
    **dict.fromkeys(SHOWN_AS_JSON, _bytes),
    **dict.fromkeys((ModelSerde, MsgpackSerde, WindowedSerde, TimeWindowedSerde), _json_or_bytes),
    **dict.fromkeys((SubscriberSerde, UnmatchedKeySerde), _json_or_bytes),
    JsonSerde: lambda serde, data: _STRING.deserialize(data),
    FloatSerde: FloatSerde.special_text,
}
