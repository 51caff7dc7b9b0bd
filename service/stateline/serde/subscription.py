"""Records between the two sides of a join by foreign key, and rows of the store of subscriptions.

A row of the left table subscribes to the row of the right table that it names. By Kafka Streams' classes
(`SubscriptionWrapperSerde`, `SubscriptionResponseWrapperSerde`, `CombinedKeySchema`), in topics and on disk:

    registration := 1:i8 ‖ instruction:i8 ‖ hash:16 ‖ primary key ‖ partition of the left row:i32
    response     := 0:i8 ‖ hash:16 ‖ value of the right row, or nothing
    store's key  := length:i32 of the foreign key ‖ foreign key ‖ primary key

The first byte has the bit 80 if there is no hash, because there is no left value. A registration of version 0 has no
partition. The store's value is the registration. Never change.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

from stateline.serde.binding import PartsSerde, TwoPartsSerde
from stateline.serde.plain import shown
from stateline_store import InvalidArgumentError

DROP, DROP_AND_ANSWER, SUBSCRIBE, SUBSCRIBE_IF_THERE = range(4)
"""Instructions: answer nothing; answer null; always answer; answer if there is a right row. The first two end the
subscription."""

_VERSION, _NO_HASH = 1, 0x80
_HEAD, _INT = struct.Struct(">BB"), struct.Struct(">i")
_HASH_BYTES = 16


class Subscription(NamedTuple):
    """`hash` is of the left value; None for no value. `partition` is the left row's; None: the primary key's."""

    instruction: int
    hash: bytes | None
    primary_key: Any
    partition: int | None


class SubscriptionAnswer(NamedTuple):
    """`hash` is the subscription's. `value` is the right row's; None for no row."""

    hash: bytes | None
    value: Any


def write_subscription(given: Subscription) -> bytes:
    """Return the bytes. The primary key is bytes, and the partition is known."""
    flag = _NO_HASH if given.hash is None else 0
    head = _HEAD.pack(_VERSION | flag, given.instruction)
    return b"%b%b%b%b" % (head, given.hash or b"", given.primary_key, _INT.pack(given.partition or 0))


def read_subscription(data: bytes) -> Subscription:
    """Return it with the primary key as bytes. Raises `InvalidArgumentError`."""
    start, version = _HEAD.size, data[0] & ~_NO_HASH if data else -1
    hash_end = start if data and data[0] & _NO_HASH else start + _HASH_BYTES
    end = len(data) - (_INT.size if version == _VERSION else 0)
    if version not in (0, _VERSION) or end < hash_end or data[1] > SUBSCRIBE_IF_THERE:
        raise InvalidArgumentError(f"{shown(data)} is no subscription of a join by foreign key.")
    partition = _INT.unpack_from(data, end)[0] if version == _VERSION else None
    return Subscription(data[1], data[start:hash_end] or None, data[hash_end:end], partition)


def write_answer(hash_: bytes | None, value: bytes | None) -> bytes:
    """Return the bytes. An empty value reads as None."""
    return (bytes([_NO_HASH]) if hash_ is None else b"\0" + hash_) + (value or b"")


def read_answer(data: bytes) -> SubscriptionAnswer:
    """Return it with the value as bytes. Raises `InvalidArgumentError`."""
    end = 1 if data[:1] == bytes([_NO_HASH]) else 1 + _HASH_BYTES
    if data[:1] not in (b"\0", bytes([_NO_HASH])) or len(data) < end:
        raise InvalidArgumentError(f"{shown(data)} is no answer of a join by foreign key.")
    return SubscriptionAnswer(data[1:end] or None, data[end:] or None)


def subscribers_of(foreign_key: bytes) -> bytes:
    """Return the prefix of the store's keys with this foreign key."""
    return _INT.pack(len(foreign_key)) + foreign_key


@dataclass(frozen=True, slots=True)
class SubscriptionSerde(PartsSerde):
    """`Subscription` with a primary key of the serde `inner`. In JSON it has the same names, the hash as hexadecimal
    digits."""

    @property
    def name(self) -> str:
        return f"subscription-{self.inner.name}"

    def serialize(self, value: Any) -> bytes:
        given = Subscription(*value)
        return write_subscription(given._replace(primary_key=self.inner.serialize(given.primary_key)))

    def deserialize(self, data: bytes) -> Subscription:
        read = read_subscription(data)
        return read._replace(primary_key=self.inner.deserialize(read.primary_key))

    def check(self, data: bytes) -> None:
        self.inner.check(read_subscription(data).primary_key)

    def to_json(self, data: bytes) -> Any:
        read = read_subscription(data)
        hash_ = None if read.hash is None else read.hash.hex()
        return {**read._asdict(), "hash": hash_, "primary_key": self.inner.key_to_json(read.primary_key)}


@dataclass(frozen=True, slots=True)
class AnswerSerde(PartsSerde):
    """`SubscriptionAnswer` with a value of the serde `inner`. In JSON it has the same names, the hash as hexadecimal
    digits."""

    @property
    def name(self) -> str:
        return f"answer-{self.inner.name}"

    def serialize(self, value: Any) -> bytes:
        hash_, right = value
        return write_answer(hash_, None if right is None else self.inner.serialize(right))

    def deserialize(self, data: bytes) -> SubscriptionAnswer:
        read = read_answer(data)
        return read if read.value is None else read._replace(value=self.inner.deserialize(read.value))

    def check(self, data: bytes) -> None:
        if (value := read_answer(data).value) is not None:
            self.inner.check(value)

    def to_json(self, data: bytes) -> Any:
        read = read_answer(data)
        value = None if read.value is None else self.inner.to_json(read.value)
        return {"hash": None if read.hash is None else read.hash.hex(), "value": value}


@dataclass(frozen=True, slots=True)
class SubscriberSerde(TwoPartsSerde):
    """Keys of the store: (foreign key, primary key), in text and JSON an array of both. `inner` is the serde of the
    foreign key, `other` that of the primary key."""

    @property
    def name(self) -> str:
        return f"subscriber-{self.other.name}-{self.inner.name}"

    def serialize(self, value: Any) -> bytes:
        foreign, primary = self._parts(value)
        return subscribers_of(self.inner.serialize(foreign)) + self.other.serialize(primary)

    def deserialize(self, data: bytes) -> tuple[Any, Any]:
        foreign, primary = self._split(data)
        return self.inner.deserialize(foreign), self.other.deserialize(primary)

    def from_json(self, value: Any) -> bytes:
        foreign, primary = self._parts(value)
        return subscribers_of(self.inner.from_json(foreign)) + self.other.from_json(primary)

    def to_json(self, data: bytes) -> Any:
        foreign, primary = self._split(data)
        return [self.inner.key_to_json(foreign), self.other.key_to_json(primary)]

    @staticmethod
    def _parts(value: Any) -> tuple[Any, Any]:
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise InvalidArgumentError(f"{shown(value)} is no subscriber: it is [foreign key, primary key].")
        return value[0], value[1]

    @staticmethod
    def _split(data: bytes) -> tuple[bytes, bytes]:
        end = _INT.size + (_INT.unpack_from(data)[0] if len(data) >= _INT.size else -1)
        if not _INT.size <= end <= len(data):
            raise InvalidArgumentError(f"{shown(data)} is no subscriber of a join by foreign key.")
        return data[_INT.size : end], data[end:]
