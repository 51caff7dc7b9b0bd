"""Queries as values (IQv2: KIP-796, 805, 806, 960, 968, 992, and what Kafka Streams has no query for).

`stateline_store.reads.queries` runs them, and lists the kinds of stores and the answers. Queries can be compared,
pickled and sent to another process. Thread-safe: they never change.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, TypeVar

from stateline_store.reads.versioned_reads import VersionedRecord
from stateline_store.rows.windowed_keys import Windowed
from stateline_store.scan import Scan, Value, ValueAndTimestamp

_Result = TypeVar("_Result", covariant=True)


class Order(enum.Enum):
    """The order of a scan. Keys compare as serialized bytes, versions by their time."""

    ANY = "any"
    ASCENDING = "ascending"
    DESCENDING = "descending"


class Query(Generic[_Result]):
    """A question to one store, as a value. Its type parameter is the answer's type."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class KeyQuery(Query[bytes | None]):
    """The value of a key."""

    key: bytes


@dataclass(frozen=True, slots=True)
class TimestampedKeyQuery(Query[ValueAndTimestamp | None]):
    """The value of a key, and its timestamp."""

    key: bytes


@dataclass(frozen=True, slots=True)
class KeysQuery(Query[list[tuple[bytes, Value]]]):
    """The values of the existing ones of these keys, of one state, in the order given. Raises `InvalidArgumentError` if
    they have more than `most_bytes`, keys included. None: no limit."""

    keys: tuple[bytes, ...]
    most_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RangeQuery(Query[Scan[tuple[bytes, bytes]]]):
    """The entries from `lower` to `upper`, both included, None open. Any order is ascending."""

    lower: bytes | None = None
    upper: bytes | None = None
    order: Order = Order.ANY


@dataclass(frozen=True, slots=True)
class TimestampedRangeQuery(Query[Scan[tuple[bytes, ValueAndTimestamp]]]):
    """The entries from `lower` to `upper`, both included, None open, with timestamps. Any order is ascending."""

    lower: bytes | None = None
    upper: bytes | None = None
    order: Order = Order.ANY


@dataclass(frozen=True, slots=True)
class PrefixQuery(Query[Scan[tuple[bytes, Value]]]):
    """The entries whose key begins with `prefix`. Any order is ascending."""

    prefix: bytes
    order: Order = Order.ANY


@dataclass(frozen=True, slots=True)
class WindowKeyQuery(Query[Scan[tuple[int, Value]]]):
    """The windows of a key that start from `time_from` to `time_to` (ms, both included, None open). Any order is the
    oldest first."""

    key: bytes
    time_from: int | None = None
    time_to: int | None = None
    order: Order = Order.ANY


@dataclass(frozen=True, slots=True)
class WindowRangeQuery(Query[Scan[tuple[Windowed, Value]]]):
    """The windows of all keys that start from `time_from` to `time_to` (ms, both included, None open) in a window
    store, or the sessions of `key`, by their end, in a session store. Give times or a key. Any order is ascending: by
    segment of time, then key and time."""

    key: bytes | None = None
    time_from: int | None = None
    time_to: int | None = None
    order: Order = Order.ANY


@dataclass(frozen=True, slots=True)
class SessionKeyQuery(Query[Scan[tuple[Windowed, Value]]]):
    """The sessions of a key that end at `time_from` or later and start at `time_to` or earlier (ms, None open). Any
    order is by their end, the earliest first."""

    key: bytes
    time_from: int | None = None
    time_to: int | None = None
    order: Order = Order.ANY


@dataclass(frozen=True, slots=True)
class SessionRangeQuery(Query[Scan[tuple[Windowed, Value]]]):
    """The sessions of all keys that end from `time_from` to `time_to` (ms, both included, None open). Any order is by
    key, then end and start."""

    time_from: int | None = None
    time_to: int | None = None
    order: Order = Order.ANY


@dataclass(frozen=True, slots=True)
class VersionedKeyQuery(Query[VersionedRecord | None]):
    """The latest version of a key, or the one that was valid at `as_of` (ms)."""

    key: bytes
    as_of: int | None = None


@dataclass(frozen=True, slots=True)
class VersionedKeysQuery(Query[list[tuple[bytes, VersionedRecord]]]):
    """The latest versions of these keys, or those that were valid at `as_of` (ms). `most_bytes` limits as in
    `KeysQuery`."""

    keys: tuple[bytes, ...]
    as_of: int | None = None
    most_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MultiVersionedKeyQuery(Query[Scan[VersionedRecord]]):
    """The versions of a key that were valid at some time from `time_from` to `time_to` (ms, both included, None open).
    Any order is the newest first."""

    key: bytes
    time_from: int | None = None
    time_to: int | None = None
    order: Order = Order.ANY


@dataclass(frozen=True, slots=True)
class VersionedRangeQuery(Query[Scan[tuple[bytes, VersionedRecord]]]):
    """The latest versions of the keys from `lower` to `upper`, both included, None open, or those that were valid at
    `as_of` (ms). Keys without such a version are left out."""

    lower: bytes | None = None
    upper: bytes | None = None
    as_of: int | None = None
    order: Order = Order.ANY


@dataclass(frozen=True, slots=True)
class VersionedPrefixQuery(Query[Scan[tuple[bytes, VersionedRecord]]]):
    """The latest versions of the keys that begin with `prefix`, or those that were valid at `as_of` (ms)."""

    prefix: bytes
    as_of: int | None = None
    order: Order = Order.ANY


@dataclass(frozen=True, slots=True)
class CountQuery(Query[int]):
    """The approximate number of rows. Staged rows may count twice."""


@dataclass(frozen=True, slots=True)
class PositionQuery(Query[None]):
    """No value, only the Position that each answer has."""
