"""How keys and values become bytes, text in a URL, and JSON in an answer.

| serde   | bytes (Kafka's own serializers write the same) | text in a path or parameter | JSON            |
|---------|------------------------------------------------|-----------------------------|-----------------|
| string  | UTF-8                                          | as it is                    | string          |
| json    | JSON text, kept byte for byte                  | JSON text                   | the stored text |
| bytes   | as they are                                    | base64url                   | base64; a key: base64url |
| int32   | 4 bytes, big-endian, two's complement          | decimal                     | number          |
| int64   | 8 bytes, big-endian, two's complement          | decimal                     | number          |
| float64 | 8 bytes, big-endian, IEEE 754                  | decimal                     | number; null for NaN, inf |

Every method raises `InvalidArgumentError`, showing the offending value, for what it cannot read. Thread-safe.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from typing import Any, Protocol

import orjson

from stateline_store import InvalidArgumentError


class Serde(Protocol):
    """One type of key or value. Those in `stateline.serdes` are ready-made; an application may bring its own."""

    @property
    def name(self) -> str:
        """The type's name, as the server shows it."""

    def serialize(self, value: Any) -> bytes:
        """The bytes of a value."""

    def deserialize(self, data: bytes) -> Any:
        """The value of these bytes."""

    def check(self, data: bytes) -> None:
        """Raise unless `deserialize` would accept these bytes; cheaper where it can be."""

    def parse_text(self, text: str) -> bytes:
        """The bytes of a value written as text in a path or a parameter."""

    def from_json(self, value: Any) -> bytes:
        """The bytes of a value that stood in a JSON body."""

    def to_json(self, data: bytes) -> Any:
        """What orjson should write for these bytes as a value."""

    def key_to_json(self, data: bytes) -> Any:
        """What orjson should write for these bytes as a key."""


def shown(value: object, limit: int = 60) -> str:
    """`repr` of a value, cut short for a message."""
    text = repr(value[: limit + 1]) if isinstance(value, str | bytes) else repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


class StringSerde:
    """UTF-8 text."""

    name = "string"

    def serialize(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise InvalidArgumentError(f"{shown(value)} is not a string.")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(f"{shown(value)} cannot be written as UTF-8.") from error

    def deserialize(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"{shown(data)} is not UTF-8 text.") from error

    def check(self, data: bytes) -> None:
        if not data.isascii():
            self.deserialize(data)

    parse_text = serialize
    from_json = serialize
    to_json = deserialize
    key_to_json = deserialize


class JsonSerde:
    """Any JSON value; stored text is never rewritten."""

    name = "json"

    def serialize(self, value: Any) -> bytes:
        try:
            return orjson.dumps(value)
        except orjson.JSONEncodeError as error:
            raise InvalidArgumentError(f"{shown(value)} cannot be written as JSON: {error}.") from error

    def deserialize(self, data: bytes) -> Any:
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise InvalidArgumentError(f"{shown(data)} is not JSON: {error}.") from error

    def check(self, data: bytes) -> None:
        self.deserialize(data)

    def parse_text(self, text: str) -> bytes:
        data = StringSerde().serialize(text)
        self.check(data)
        return data

    from_json = serialize

    def to_json(self, data: bytes) -> Any:
        return orjson.Fragment(data)

    key_to_json = to_json


class BytesSerde:
    """Bytes as they are."""

    name = "bytes"

    def serialize(self, value: Any) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise InvalidArgumentError(f"{shown(value)} is not bytes.")
        return bytes(value)

    def deserialize(self, data: bytes) -> bytes:
        return data

    def check(self, data: bytes) -> None:
        del data  # every byte string is good

    def parse_text(self, text: str) -> bytes:
        padded = text + "=" * (-len(text) % 4)
        try:
            return base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError) as error:
            raise InvalidArgumentError(f"{shown(text)} is not base64url.") from error

    def from_json(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise InvalidArgumentError(f"{shown(value)} is not a base64url string.")
        return self.parse_text(value)

    def to_json(self, data: bytes) -> str:
        return base64.b64encode(data).decode()

    def key_to_json(self, data: bytes) -> str:
        return base64.urlsafe_b64encode(data).decode()


class IntegerSerde:
    """A signed integer of `size` bytes, big-endian."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self._size = size
        self._limit = 1 << (8 * size - 1)

    def serialize(self, value: Any) -> bytes:
        if isinstance(value, bool) or not isinstance(value, int) or not -self._limit <= value < self._limit:
            raise InvalidArgumentError(
                f"{shown(value)} is not an {self.name}: an integer from {-self._limit} to {self._limit - 1}."
            )
        return value.to_bytes(self._size, "big", signed=True)

    def deserialize(self, data: bytes) -> int:
        self.check(data)
        return int.from_bytes(data, "big", signed=True)

    def check(self, data: bytes) -> None:
        if len(data) != self._size:
            raise InvalidArgumentError(f"{shown(data)} is not an {self.name}: it has {len(data)} bytes.")

    def parse_text(self, text: str) -> bytes:
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
            raise InvalidArgumentError(f"{shown(text)} is not an {self.name}: decimal digits are.")
        return self.serialize(int(text))

    from_json = serialize
    to_json = deserialize
    key_to_json = deserialize


class FloatSerde:
    """A double, big-endian."""

    name = "float64"

    def serialize(self, value: Any) -> bytes:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidArgumentError(f"{shown(value)} is not a number.")
        return struct.pack(">d", value)

    def deserialize(self, data: bytes) -> float:
        self.check(data)
        number: float = struct.unpack(">d", data)[0]
        return number

    def check(self, data: bytes) -> None:
        if len(data) != 8:
            raise InvalidArgumentError(f"{shown(data)} is not a float64: it has {len(data)} bytes.")

    def parse_text(self, text: str) -> bytes:
        try:
            return self.serialize(float(text))
        except ValueError as error:
            raise InvalidArgumentError(f"{shown(text)} is not a number.") from error

    from_json = serialize

    def to_json(self, data: bytes) -> float | None:
        number = self.deserialize(data)
        return number if math.isfinite(number) else None  # JSON has no NaN and no infinity

    key_to_json = to_json
