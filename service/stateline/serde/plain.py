"""How keys and values become bytes, text in a URL, and JSON in an answer.

| serde   | bytes (Kafka's own serializers write the same) | text in a path or parameter | JSON            |
|---------|------------------------------------------------|-----------------------------|-----------------|
| string  | UTF-8                                          | as it is                    | string          |
| json    | JSON text, kept byte for byte; integers exact  | JSON text                   | the stored text |
| bytes   | as they are                                    | base64url                   | base64; a key: base64url |
| int32   | 4 bytes, big-endian, two's complement          | decimal                     | number          |
| int64   | 8 bytes, big-endian, two's complement          | decimal                     | number          |
| float64 | 8 bytes, big-endian, IEEE 754                  | decimal                     | number; null for NaN, inf |

Keys of topics of windows and sessions: `stateline.serde.windowed`. Keys that their JSON does not find again:
`stateline.serde.key_text`.

Every method raises `InvalidArgumentError`, showing the offending value, for what it cannot read. Thread-safe.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
from collections.abc import Callable
from typing import Any, Protocol

import orjson

from stateline.serde.json_nulls import not_finite
from stateline_store import InvalidArgumentError


class Serde(Protocol):
    """A type of keys or values. `stateline.serdes` has ready-made ones; an application may define its own."""

    @property
    def name(self) -> str:
        """The type's name, as the server shows it."""

    def serialize(self, value: Any) -> bytes:
        """The bytes of a value."""

    def deserialize(self, data: bytes) -> Any:
        """The value of these bytes."""

    def check(self, data: bytes) -> None:
        """Raise unless `deserialize` would accept these bytes. May be faster than `deserialize`."""

    def parse_text(self, text: str) -> bytes:
        """Return the bytes of a value that a path or a parameter has as text."""

    def from_json(self, value: Any) -> bytes:
        """Return the bytes of a value from a JSON body."""

    def to_json(self, data: bytes) -> Any:
        """Return an object that orjson writes for these bytes of a value."""

    def key_to_json(self, data: bytes) -> Any:
        """Return an object that orjson writes for these bytes of a key."""


def type_name(serde: Serde) -> str:
    """Return the name under which a store keeps this type: Stateline's own by the serde's name, others by their class
    without its module (code moves) and the serde's name. On disk: never change."""
    kind, inner = type(serde), getattr(serde, "inner", None)
    if kind.__module__.partition(".")[0] != __name__.partition(".")[0]:
        return f"{kind.__qualname__} ({serde.name})"
    return serde.name if inner is None else f"{serde.name.removesuffix(inner.name)}{type_name(inner)}"


def shown(value: object, limit: int = 60) -> str:
    """Return `repr` of a value, cut short for a message."""
    try:
        text = repr(value[: limit + 1]) if isinstance(value, str | bytes) else repr(value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        return f"a {type(value).__name__} that is too long to be shown"
    return shortened(text, limit)


_BREAKS = bytes.maketrans(b"\r\n", b"  ")


def one_line(text: bytes) -> bytes:
    """Return stored JSON text without line breaks between its parts."""
    return text.translate(_BREAKS) if b"\n" in text or b"\r" in text else text


def shortened(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def check_serde(given: object) -> None:
    """Raise `InvalidArgumentError` unless this can be the type of keys or values. A class or a function cannot."""
    if isinstance(given, type) or not callable(getattr(given, "deserialize", None)):
        raise InvalidArgumentError(
            f"{shown(given)} is no serde: use serdes.string, serdes.json, serdes.int64 or another of stateline.serdes, "
            "or an object of your own that has what stateline.serde.plain.Serde has."
        )


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
    """JSON values. Stored text is never rewritten, and integers of any size are exact.

    orjson reads an integer over 64 bits as a float, and cannot write it. The standard library reads such documents.
    Their digits are put into the text that orjson writes."""

    name = "json"

    def serialize(self, value: Any) -> bytes:
        """Returns the JSON text of the value, of every type that orjson writes. Raises for NaN and infinities, which
        orjson writes as null. Tuples are read as lists, dataclasses as dicts, times and UUIDs as text."""
        load: Callable[[bytes], Any] = orjson.loads
        try:
            try:
                data = orjson.dumps(value)
            except orjson.JSONEncodeError:
                data, load = orjson.dumps(_with_digits(value)), load_exactly
            if data.find(b"null") < 0:  # in a third of the time that `in` takes
                return data
            read = load(data)
            found = None if read == value else not_finite(value, read)
        except (orjson.JSONEncodeError, ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"{shown(value)} cannot be written as JSON: {error}.") from error
        if found is not None:
            place = f" at {shown(found.place)}" if found.place else ""
            raise InvalidArgumentError(
                f"{shown(value)} cannot be written as JSON: {found.number!r}{place} is no JSON number. Give None or a "
                "finite number."
            )
        return data

    def deserialize(self, data: bytes) -> Any:
        try:
            if len(data) < _SMALL and _ROW not in data.translate(_DIGITS_AS_ZEROS):  # most are: no further call
                return orjson.loads(data)
            return load_exactly(data) if holds_large_integer(data) else orjson.loads(data)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"{shown(data)} is not JSON that can be read: {error}.") from error

    def check(self, data: bytes) -> None:
        try:
            orjson.loads(data)
        except orjson.JSONDecodeError:  # or an integer of more than 300 digits
            self.deserialize(data)

    def parse_text(self, text: str) -> bytes:
        data = StringSerde().serialize(text)
        self.check(data)
        return data

    from_json = serialize

    def to_json(self, data: bytes) -> Any:
        return orjson.Fragment(data)

    key_to_json = to_json


# Finds integers of 19 and more digits, which 64 bits may not hold. Every such integer has four digits in a row among
# every fourth byte, so a look at a quarter of a large document clears most of them. (0.3 µs for 130 bytes, a seventh of
# orjson's time for large documents; a regular expression takes five times as long.)
_SMALL = 1000
_ROW = b"0" * 19
_DIGITS_AS_ZEROS = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else 32 for byte in range(256))
_LARGE = re.compile(rb"-[0-9]{19}|[0-9]{20}")
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1  # what orjson reads and writes as integers


def holds_large_integer(data: bytes) -> bool:
    """Whether JSON text may have an integer that orjson would change. Rarely true of other text."""
    if len(data) >= _SMALL and b"0000" not in data[::4].translate(_DIGITS_AS_ZEROS):
        return False
    return _ROW in data.translate(_DIGITS_AS_ZEROS) and _LARGE.search(data) is not None


def load_exactly(data: bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Return the value of JSON text with exact integers. `pairs` makes an object of its members, by default a dict.

    Raises `ValueError` for text that is not JSON and for integers over 4300 digits, Python's limit. Raises
    `RecursionError` for too deep nesting."""
    return json.loads(
        data.decode(),
        object_pairs_hook=pairs,
        parse_int=_integer,
        parse_float=_finite,
        parse_constant=_no_constant,
    )


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"the integer {text[:40]}... has {len(text)} digits, and at most 4300 are read") from error


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:40]} is beyond what a double holds")
    return number


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _with_digits(value: Any) -> Any:
    """The same for orjson, with integers that it does not write as text to be put in."""
    if isinstance(value, dict):
        return {name: _with_digits(member) for name, member in value.items()}
    if isinstance(value, list) or type(value) is tuple:  # orjson writes no subclass of tuple
        return [_with_digits(item) for item in value]
    if isinstance(value, int) and not _LEAST <= value <= _MOST:
        return orjson.Fragment(str(int(value)))
    return value


class BytesSerde:
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


_NAN_BITS = re.compile(r"NaN:([0-9a-f]{16})")


class FloatSerde:
    """A double, big-endian."""

    name = "float64"

    def serialize(self, value: Any) -> bytes:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidArgumentError(f"{shown(value)} is not a number.")
        try:
            return struct.pack(">d", value)
        except (OverflowError, struct.error) as error:  # an integer of more than 300 digits
            raise InvalidArgumentError(f"{shown(value)} is beyond what a float64 holds.") from error

    def deserialize(self, data: bytes) -> float:
        self.check(data)
        number: float = struct.unpack(">d", data)[0]
        return number

    def check(self, data: bytes) -> None:
        if len(data) != 8:
            raise InvalidArgumentError(f"{shown(data)} is not a float64: it has {len(data)} bytes.")

    def parse_text(self, text: str) -> bytes:
        bits = _NAN_BITS.fullmatch(text)
        try:
            number = float(text) if bits is None else self.deserialize(bytes.fromhex(bits[1]))
        except ValueError as error:
            raise InvalidArgumentError(f"{shown(text)} is not a number.") from error
        if bits is not None and not math.isnan(number):
            raise InvalidArgumentError(f"{shown(text)} is not a NaN: its exponent has a bit that is 0.")
        if math.isinf(number) and any(character.isdigit() for character in text):
            raise InvalidArgumentError(f"{shown(text)} is beyond what a float64 holds.")
        return self.serialize(number)

    from_json = serialize

    def to_json(self, data: bytes) -> float | None:
        number = self.deserialize(data)
        return number if math.isfinite(number) else None  # JSON has no NaN and no infinity

    key_to_json = to_json

    def special_text(self, data: bytes) -> str | None:
        """The text of a number that JSON does not have, which `parse_text` reads as the same bytes; None of others."""
        number = self.deserialize(data)
        if math.isnan(number):
            return "NaN" if data == _NAN else f"NaN:{data.hex()}"
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(number)


_NAN = FloatSerde().serialize(math.nan)  # that of Python and of Java
