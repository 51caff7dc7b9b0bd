"""Rows of the store of a left or outer join of streams: those that still wait for a partner.

In the bytes of Kafka Streams (`TimestampedKeyAndJoinSideSerializer`, `ListSerde` of `LeftOrRightValueSerializer`). On
disk and in topics: never change.

    key   := timestamp:i64 ‖ side:i8 (1 left, 0 right) ‖ key of the row
    value := 1:i8 ‖ count:i32 ‖ count × ( length:i32 ‖ side:i8 ‖ value of a row )

Rows of one key, time and side share an entry.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from stateline.serde.binding import PartsSerde, TwoPartsSerde
from stateline.serde.plain import Serde, shown
from stateline_store import DamagedDataError, InvalidArgumentError

ENTRY = struct.Struct(">qb")
"""The beginning of an entry's key: the timestamp in milliseconds, and whether the row is of the left side."""

_LIST = struct.Struct(">bi")
_ITEM = struct.Struct(">ib")
_VARIABLE_SIZE = 1
NOTHING = _LIST.pack(_VARIABLE_SIZE, 0)

Side: TypeAlias = Literal["left", "right"]
_SIDES: tuple[Side, Side] = "right", "left"


class UnmatchedKey(NamedTuple):
    timestamp: int
    side: Side
    key: Any


def appended(values: bytes | None, is_left: bool, value: bytes) -> bytes:
    """Return the entry with one more row."""
    count = 0 if values is None else _LIST.unpack_from(values)[1]
    rest = b"" if values is None else values[_LIST.size :]
    return _LIST.pack(_VARIABLE_SIZE, count + 1) + rest + _ITEM.pack(len(value) + 1, is_left) + value


def values_of(values: bytes) -> Iterator[bytes]:
    """Yield the rows' values of an entry. Raises `DamagedDataError`."""
    try:
        strategy, count = _LIST.unpack_from(values)
        at = _LIST.size
        for _ in range(count):
            length, _ = _ITEM.unpack_from(values, at)
            at += _ITEM.size + length - 1
            yield values[at - length + 1 : at]
    except struct.error as error:
        raise DamagedDataError(f"{values!r:.100} is no list of rows that wait for a partner: {error}.") from error
    if strategy != _VARIABLE_SIZE or at != len(values):
        raise DamagedDataError(f"{values!r:.100} is no list of rows that wait for a partner.")


@dataclass(frozen=True, slots=True)
class UnmatchedKeySerde(PartsSerde):
    """`UnmatchedKey` with a key of the serde `inner`; in text and JSON an array of the three."""

    @property
    def name(self) -> str:
        return f"unmatched-{self.inner.name}"

    def serialize(self, value: Any) -> bytes:
        at_ms, side, key = _parts(value)
        return ENTRY.pack(at_ms, _SIDES.index(side)) + self.inner.serialize(key)

    def deserialize(self, data: bytes) -> UnmatchedKey:
        return UnmatchedKey(*_read(data), self.inner.deserialize(data[ENTRY.size :]))

    def from_json(self, value: Any) -> bytes:
        at_ms, side, key = _parts(value)
        return ENTRY.pack(at_ms, _SIDES.index(side)) + self.inner.from_json(key)

    def to_json(self, data: bytes) -> Any:
        return [*_read(data), self.inner.key_to_json(data[ENTRY.size :])]


@dataclass(frozen=True, slots=True)
class UnmatchedValuesSerde(TwoPartsSerde):
    """The values of rows of one entry, a list. `inner` is the serde of left values, `other` that of right ones."""

    @property
    def name(self) -> str:
        return f"unmatched-{self.other.name}-{self.inner.name}"

    def serialize(self, value: Any) -> bytes:
        return self.from_json(value)

    def deserialize(self, data: bytes) -> list[Any]:
        return [self._of(data).deserialize(value) for value in values_of(data)]

    def to_json(self, data: bytes) -> Any:
        return [self._of(data).to_json(value) for value in values_of(data)]

    def _of(self, data: bytes) -> Serde:
        is_left = len(data) >= _LIST.size + _ITEM.size and _ITEM.unpack_from(data, _LIST.size)[1]
        return self.inner if is_left else self.other


def _parts(value: Any) -> tuple[int, Side, Any]:
    if not isinstance(value, list | tuple) or len(value) != 3 or value[1] not in _SIDES or type(value[0]) is not int:
        raise InvalidArgumentError(f'{shown(value)} is no such key: it is [timestamp, "left" or "right", key].')
    return value[0], value[1], value[2]


def _read(data: bytes) -> tuple[int, Side]:
    if len(data) < ENTRY.size or data[ENTRY.size - 1] > 1:
        raise InvalidArgumentError(f"{shown(data)} is no key of a row that waits for a partner.")
    at_ms, is_left = ENTRY.unpack_from(data)
    return at_ms, _SIDES[is_left]
