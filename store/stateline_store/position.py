"""Position: how far into its input a store has read, and the bound that a query may put on it.

Rules (KIP-796, `Position` and `PositionBound` of Kafka Streams):

- A Position maps topic → partition → offset of the last *input* record applied. It never goes back:
  `merge` takes the larger offset of each partition.
- A bound is met when, for every topic that it names, **this task's own partition number** has been seen at
  least up to the bound's offset. Entries for other partitions say nothing about this task. A topic that the
  bound names for this partition and that the store has never seen is *not* met. An empty bound always is.

Encoding, version 0, big-endian (on disk and in changelog headers: never change):

    position := 0x00 nTopics:i32 topic* padding
    topic    := length:i32 utf8 nPartitions:i32 (partition:i32 offset:i64)*

Kafka Streams sizes its buffer by mistake in bits, so zeros follow the content: the whole is
``8 + 32 + Σ (32 + length + 32 + 96 × nPartitions)`` bytes long. The padding is kept for byte equality and
ignored when reading. Topics and partitions are written in ascending order (Kafka Streams: in hash order).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from stateline_store.errors import DamagedDataError, InvalidArgumentError, NewerFormatError

_VERSION = 0  # on disk: never change
_I32 = struct.Struct(">i")
_PAIR = struct.Struct(">iq")


class TopicPartition(NamedTuple):
    """A partition of a topic. `str()` is ``topic-partition``, the key of Kafka Streams' offset rows."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Position:
    """An immutable topic → partition → offset map. Offsets are of the last record applied. A partition without an
    applied record is absent. Thread-safe: it never changes. Build one with `Position.of`, grow one with `merge`."""

    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Mapping[TopicPartition, int] | Iterable[tuple[TopicPartition, int]]) -> Position:
        """Return a Position of these offsets. If a partition is named twice, the larger offset counts."""
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        offsets: dict[str, dict[int, int]] = {}
        for (topic, partition), offset in pairs:
            seen = offsets.setdefault(topic, {})
            seen[partition] = max(offset, seen.get(partition, offset))
        return cls(offsets)

    def __bool__(self) -> bool:
        return bool(self.offsets)

    def __iter__(self) -> Iterator[tuple[TopicPartition, int]]:
        for topic, partitions in self.offsets.items():
            for partition, offset in partitions.items():
                yield TopicPartition(topic, partition), offset

    def get(self, topic: str, partition: int) -> int | None:
        """Return the offset last applied of one partition, None before the first."""
        return self.offsets.get(topic, {}).get(partition)

    def merge(self, other: Position) -> Position:
        """Return a new Position with the larger offset of every partition of both."""
        if not other.offsets:
            return self
        if not self.offsets:
            return other
        return Position.of([*self, *other])

    def encode(self) -> bytes:
        """Return the version 0 bytes described above, padding included."""
        parts = [bytes((_VERSION,)), _I32.pack(len(self.offsets))]
        size = 8 + 32
        for topic in sorted(self.offsets):
            name, partitions = topic.encode(), self.offsets[topic]
            parts += [_I32.pack(len(name)), name, _I32.pack(len(partitions))]
            parts += [_PAIR.pack(*pair) for pair in sorted(partitions.items())]
            size += 32 + len(name) + 32 + 96 * len(partitions)
        return b"".join(parts).ljust(size, b"\0")

    @classmethod
    def decode(cls, data: bytes, where: object = "This") -> Position:
        """Read version 0 bytes. Bytes after the content are ignored. Raises `DamagedDataError` if the bytes end early
        or hold a negative length, `NewerFormatError` for another version. Both name `where`."""
        if data and data[0] != _VERSION:
            raise NewerFormatError.of(where, f"Position version {data[0]}", f"version {_VERSION}")
        try:
            return cls(_decode(data))
        except (struct.error, UnicodeDecodeError, IndexError) as error:
            raise DamagedDataError(f"These {len(data)} bytes are not a Position: {error}") from error

    def to_json(self) -> dict[str, dict[str, int]]:
        """Return topic → partition (as text) → offset, the JSON of the HTTP contract."""
        return {
            topic: {str(partition): offset for partition, offset in sorted(partitions.items())}
            for topic, partitions in sorted(self.offsets.items())
        }

    @classmethod
    def from_json(cls, value: object) -> Position:
        """Read the JSON of `to_json`. Raises `InvalidArgumentError` that shows the wrong part."""
        if not isinstance(value, dict):
            raise InvalidArgumentError(f"A position is an object of topic → partition → offset, not {_shown(value)}.")
        return cls({topic: _partitions_from_json(topic, part) for topic, part in value.items()})


def _decode(data: bytes) -> dict[str, dict[int, int]]:
    at = 1
    offsets: dict[str, dict[int, int]] = {}
    (topics,) = _I32.unpack_from(data, at)
    at += 4
    for _ in range(topics):
        (length,) = _I32.unpack_from(data, at)
        at += 4
        if not 0 <= length <= len(data) - at:
            raise DamagedDataError(f"A topic name of {length} bytes does not fit in a Position.")
        topic = data[at : at + length].decode()
        at += length
        (pairs,) = _I32.unpack_from(data, at)
        at += 4
        offsets[topic] = dict(_PAIR.unpack_from(data, at + 12 * i) for i in range(pairs))
        at += 12 * max(pairs, 0)
    return offsets


def _partitions_from_json(topic: str, part: object) -> dict[int, int]:
    if not isinstance(part, dict):
        raise InvalidArgumentError(f"In a position, topic {topic!r} maps partitions to offsets, not {_shown(part)}.")
    offsets: dict[int, int] = {}
    for partition, offset in part.items():
        if not (isinstance(partition, str) and partition.isascii() and partition.isdigit()):
            raise InvalidArgumentError(f"{_shown(partition)} is not a partition number of topic {topic!r}.")
        if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 2**63:
            raise InvalidArgumentError(
                f"{_shown(offset)} is not an offset of {topic}-{partition}: an integer from 0 is."
            )
        offsets[int(partition)] = offset
    return offsets


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)  # as the asker wrote it: it came as JSON
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True, slots=True)
class PositionBound:
    """The least Position that a query accepts. `PositionBound()` accepts any."""

    position: Position = Position()

    def is_unbounded(self) -> bool:
        """Whether every Position is accepted."""
        return not self.position.offsets

    def is_met(self, seen: Position, partition: int | None) -> bool:
        """Return whether a task of this partition number that has seen `seen` satisfies the bound (rules above). None
        is for a global store, which has every partition: all partitions of the bound are compared."""
        for topic, partitions in self.position.offsets.items():
            for number, wanted in partitions.items():
                if partition is not None and number != partition:
                    continue
                offset = seen.get(topic, number)
                if offset is None or offset < wanted:
                    return False
        return True
