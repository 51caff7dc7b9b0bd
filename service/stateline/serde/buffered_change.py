"""A change of a table, or a row of a stream, that is held back: a row of its store, in the bytes of Kafka Streams.

It is the changelog's value (`InMemoryTimeOrderedKeyValueChangeBuffer`, version 3, and
`RocksDBTimeOrderedKeyValueBuffer`). On disk and in topics: never change. All numbers are big-endian.

    value   := context ‖ prior ‖ old ‖ new ‖ time:i64
    context := timestamp:i64 ‖ offset:i64 ‖ length:i32 ‖ topic ‖ partition:i32 ‖ count:i32 ‖ count × header
    header  := length:i32 ‖ name ‖ length:i32 or -1 ‖ content
    prior, old, new := length:i32 or -1 for none ‖ bytes; old is -2 if it equals prior

`prior` is the table's value before the first change that the row stands for, `old` and `new` are those of the last one.
`time` is the timestamp of the first one. A changelog record has the header ``v`` = 0x03, a delete has none. A row of a
stream has only `new`, the time 0, and no header.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stateline.serde.binding import PartsSerde
from stateline.serde.record_members import headers_of
from stateline_store import DamagedDataError
from stateline_store.rows.headers import Headers
from stateline_store.rows.timestamped_rows import TIMESTAMP

_HEAD = struct.Struct(">qqi")
_PLACE = struct.Struct(">ii")
_LENGTH = struct.Struct(">i")
_NONE, _AS_PRIOR = -1, -2


class BufferedChange(NamedTuple):
    """One row, with values as bytes. `topic`, `partition`, `offset` and `headers` are those of the input record of the
    last change."""

    timestamp_ms: int
    offset: int
    topic: str
    partition: int
    headers: Headers
    prior: Any
    old: Any
    new: Any
    time_ms: int

    def packed(self) -> bytes:
        topic, parts = self.topic.encode(), []
        for name, content in self.headers:
            parts += [_sized(name.encode()), _sized(content)]
        same = self.old is not None and self.old == self.prior
        return b"".join(
            [
                _HEAD.pack(self.timestamp_ms, self.offset, len(topic)),
                topic,
                _PLACE.pack(self.partition, len(self.headers)),
                *parts,
                _sized(self.prior),
                _LENGTH.pack(_AS_PRIOR) if same else _sized(self.old),
                _sized(self.new),
                TIMESTAMP.pack(self.time_ms),
            ]
        )

    def size(self, key: bytes) -> int:
        """Return the bytes that Kafka Streams counts for ``maxBytes``."""
        headers = sum(len(name) + len(content or b"") for name, content in self.headers)
        old = b"" if self.old is None or self.old == self.prior else self.old
        values = len(self.prior or b"") + len(old) + len(self.new or b"")
        return TIMESTAMP.size + len(key) + values + _HEAD.size + len(self.topic) + headers


def read_buffered(value: bytes) -> BufferedChange:
    """Read a row. Raises `DamagedDataError`."""
    try:
        timestamp_ms, offset, length = _HEAD.unpack_from(value)
        at = _HEAD.size + length
        topic = value[_HEAD.size : at].decode()
        partition, count = _PLACE.unpack_from(value, at)
        at, headers = at + _PLACE.size, []
        for _ in range(count):
            name, at = _part(value, at)
            content, at = _part(value, at)
            headers.append(((name or b"").decode(), content))
        prior, at = _part(value, at)
        is_prior = _LENGTH.unpack_from(value, at)[0] == _AS_PRIOR
        old, at = (prior, at + _LENGTH.size) if is_prior else _part(value, at)
        new, at = _part(value, at)
        (time_ms,) = TIMESTAMP.unpack_from(value, at)
    except (struct.error, UnicodeDecodeError) as error:
        raise DamagedDataError(f"{value!r:.100} is no change or row that is held back: {error}.") from error
    if at + TIMESTAMP.size != len(value):
        raise DamagedDataError(f"{value!r:.100} is no change or row that is held back: it has another length.")
    return BufferedChange(timestamp_ms, offset, topic, partition, tuple(headers), prior, old, new, time_ms)


@dataclass(frozen=True, slots=True)
class BufferedChangeSerde(PartsSerde):
    """`BufferedChange` with values of the serde `inner`. In JSON it has its names. Raises `DamagedDataError` for other
    bytes. `is_change`: rows are changes of a table, not rows of a stream."""

    is_change: bool = field(default=False, compare=False)

    @property
    def name(self) -> str:
        return f"held-back-{self.inner.name}"

    def serialize(self, value: Any) -> bytes:
        return _with_values(value, self.inner.serialize).packed()

    def deserialize(self, data: bytes) -> BufferedChange:
        return _with_values(read_buffered(data), self.inner.deserialize)

    def check(self, data: bytes) -> None:
        _with_values(read_buffered(data), self.inner.check)

    def to_json(self, data: bytes) -> Any:
        change = read_buffered(data)
        return {**_with_values(change, self.inner.to_json)._asdict(), "headers": headers_of(change.headers)}


def _with_values(change: BufferedChange, of: Callable[[Any], Any]) -> BufferedChange:
    prior, old, new = (None if value is None else of(value) for value in (change.prior, change.old, change.new))
    return change._replace(prior=prior, old=old, new=new)


def _sized(part: bytes | None) -> bytes:
    return _LENGTH.pack(_NONE) if part is None else _LENGTH.pack(len(part)) + part


def _part(value: bytes, at: int) -> tuple[bytes | None, int]:
    """Return what begins at this place, and where it ends."""
    (length,) = _LENGTH.unpack_from(value, at)
    at += _LENGTH.size
    return (None, at) if length < 0 else (value[at : at + length], at + length)
