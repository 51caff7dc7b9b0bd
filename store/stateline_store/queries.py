"""Queries as values (IQv2: KIP-796, 805, 806, 960, 968, 992), and their execution on one partition.

`run` needs nothing but a reader and the store's schema, so that the owner's store, a secondary in another process and a
store in memory answer the same, at both isolation levels. A query never writes.

| query                  | asks                                | result                                        |
|------------------------|-------------------------------------|-----------------------------------------------|
| KeyQuery               | key-value                           | bytes, None when absent                       |
| TimestampedKeyQuery    | timestamped key-value               | ValueAndTimestamp, None when absent           |
| RangeQuery             | key-value                           | scan of (key, bytes)                          |
| TimestampedRangeQuery  | timestamped key-value               | scan of (key, ValueAndTimestamp)              |
| WindowKeyQuery         | window                              | scan of (start, value)                        |
| WindowRangeQuery       | window (by start), session (by key) | scan of (Windowed, value)                     |
| VersionedKeyQuery      | versioned                           | VersionedRecord, None when there was no value |
| MultiVersionedKeyQuery | versioned                           | scan of VersionedRecord                       |

A window's value is bytes, or ValueAndTimestamp in a timestamped store. Any other pair of query and store raises
`UnknownQueryTypeError`. The Position of an answer is the reader's at the moment of `run`: a scan shows that state to
its end, whatever is committed meanwhile.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from stateline_store.errors import InvalidArgumentError, NotUpToBoundError, UnknownQueryTypeError
from stateline_store.layout import StoreKind
from stateline_store.position import Position, PositionBound
from stateline_store.readers import Reader
from stateline_store.scan import Scan, ValueAndTimestamp
from stateline_store.segments import Segments
from stateline_store.session_reads import SessionReads
from stateline_store.store_schema import StoreSchema
from stateline_store.timestamped_rows import split, values_of, with_timestamps
from stateline_store.versioned_reads import VersionedReads, VersionedRecord
from stateline_store.window_reads import WindowReads
from stateline_store.windowed_keys import MAX_TIMESTAMP_MS, Windowed

Result = TypeVar("Result", covariant=True)
WindowValue: TypeAlias = bytes | ValueAndTimestamp


class Order(enum.Enum):
    """The order of a scan. Keys compare as serialized bytes, versions by their time."""

    ANY = "any"
    ASCENDING = "ascending"
    DESCENDING = "descending"


class Query(Generic[Result]):
    """A question to one store, as a value; its type says what comes back."""

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
class RangeQuery(Query[Scan[tuple[bytes, bytes]]]):
    """The entries from `lower` to `upper`, both included, None open. Any order is ascending."""

    lower: bytes | None = None
    upper: bytes | None = None
    order: Order = Order.ANY


@dataclass(frozen=True, slots=True)
class TimestampedRangeQuery(Query[Scan[tuple[bytes, ValueAndTimestamp]]]):
    """As `RangeQuery`, with timestamps."""

    lower: bytes | None = None
    upper: bytes | None = None
    order: Order = Order.ANY


@dataclass(frozen=True, slots=True)
class WindowKeyQuery(Query[Scan[tuple[int, WindowValue]]]):
    """The windows of a key that start from `time_from` to `time_to` (ms, both included, None open). Any order is the
    oldest first."""

    key: bytes
    time_from: int | None = None
    time_to: int | None = None
    order: Order = Order.ANY


@dataclass(frozen=True, slots=True)
class WindowRangeQuery(Query[Scan[tuple[Windowed, WindowValue]]]):
    """Of a window store, the windows of all keys that start from `time_from` to `time_to` (ms, both included, None
    open); of a session store, the sessions of `key`, by their end. Give the one or the other. Any order is ascending:
    segment by segment of time, by key and then time within one."""

    key: bytes | None = None
    time_from: int | None = None
    time_to: int | None = None
    order: Order = Order.ANY


@dataclass(frozen=True, slots=True)
class VersionedKeyQuery(Query[VersionedRecord | None]):
    """The latest version of a key, or the one that was valid at `as_of` (ms)."""

    key: bytes
    as_of: int | None = None


@dataclass(frozen=True, slots=True)
class MultiVersionedKeyQuery(Query[Scan[VersionedRecord]]):
    """The versions of a key that were valid at some time from `time_from` to `time_to` (ms, both included, None open).
    Any order is the newest first."""

    key: bytes
    time_from: int | None = None
    time_to: int | None = None
    order: Order = Order.ANY


@dataclass(frozen=True, slots=True)
class QueryResult(Generic[Result]):
    """An answer, and the Position of the state that it shows."""

    result: Result
    position: Position


def run(
    query: Query[Result],
    reader: Reader,
    schema: StoreSchema,
    *,
    bound: PositionBound | None = None,
    partition: int = 0,
) -> QueryResult[Result]:
    """Answer a query from one partition's state, as it is now. For the reader's thread.

    Raises `UnknownQueryTypeError` when this kind of store cannot answer it, `InvalidArgumentError` for a value that
    cannot be used, `NotUpToBoundError` when the state is behind `bound` (ask again later), or what the reader raises.
    """
    answer = _ANSWERS.get((type(query), schema.kind))
    if answer is None or not _can_answer(type(query), schema):
        able = sorted(kind.__name__ for kind, store in _ANSWERS if store == schema.kind and _can_answer(kind, schema))
        raise UnknownQueryTypeError(
            f"A {schema} store cannot answer a {type(query).__name__}; it answers: {', '.join(able)}."
        )
    _check(query, schema)
    position = reader.position
    if bound is not None and not bound.is_met(position, partition):
        raise NotUpToBoundError(
            f"Partition {partition} is at {position.to_json()}, behind the bound {bound.position.to_json()}: ask again."
        )
    return QueryResult(answer(query, reader, schema), position)


def _can_answer(query: type[Query[Any]], schema: StoreSchema) -> bool:
    return schema.timestamped or query not in _TIMESTAMPED


def _check(query: Query[Any], schema: StoreSchema) -> None:
    """Refuse what no state can make right, before the bound is looked at: nobody shall wait for it in vain."""
    by_key = not isinstance(query, WindowRangeQuery) or query.key is not None
    names: Iterable[str] = query.__slots__  # the fields of a dataclass
    for name in names:
        value = getattr(query, name)
        types, words = _ACCEPTED[name]
        if not isinstance(value, types) and (by_key or name != "key"):
            raise InvalidArgumentError(f"{name} of a {type(query).__name__} is {words}, not {value!r:.60}.")
    if not isinstance(query, WindowRangeQuery):
        return
    has_times = query.time_from is not None or query.time_to is not None
    if schema.kind == "window" and query.key is not None:
        raise InvalidArgumentError("A WindowRangeQuery of a window store takes time_from and time_to, not a key.")
    if schema.kind == "session" and (query.key is None or has_times):
        raise InvalidArgumentError("A WindowRangeQuery of a session store takes a key, and no times.")


def _key(query: KeyQuery, reader: Reader, schema: StoreSchema) -> bytes | None:
    stored = reader.get(query.key)
    return stored if stored is None or not schema.timestamped else split(stored).value


def _timestamped_key(query: TimestampedKeyQuery, reader: Reader, schema: StoreSchema) -> ValueAndTimestamp | None:
    del schema
    stored = reader.get(query.key)
    return None if stored is None else split(stored)


def _range(query: RangeQuery, reader: Reader, schema: StoreSchema) -> Scan[tuple[bytes, bytes]]:
    rows = reader.range(query.lower, query.upper, reverse=query.order is Order.DESCENDING)
    return values_of(rows) if schema.timestamped else rows


def _timestamped_range(
    query: TimestampedRangeQuery, reader: Reader, schema: StoreSchema
) -> Scan[tuple[bytes, ValueAndTimestamp]]:
    del schema
    return with_timestamps(reader.range(query.lower, query.upper, reverse=query.order is Order.DESCENDING))


def _window_key(query: WindowKeyQuery, reader: Reader, schema: StoreSchema) -> Scan[tuple[int, WindowValue]]:
    first, last = _times(query)
    rows = _windows(reader, schema).fetch(query.key, first, last, reverse=query.order is Order.DESCENDING)
    return with_timestamps(rows) if schema.timestamped else rows


def _window_range(query: WindowRangeQuery, reader: Reader, schema: StoreSchema) -> Scan[tuple[Windowed, WindowValue]]:
    first, last = _times(query)
    rows = _windows(reader, schema).fetch_all(first, last, reverse=query.order is Order.DESCENDING)
    return with_timestamps(rows) if schema.timestamped else rows


def _sessions_of_key(
    query: WindowRangeQuery, reader: Reader, schema: StoreSchema
) -> Scan[tuple[Windowed, WindowValue]]:
    assert query.key is not None
    rows = SessionReads(reader, _segments(schema)).fetch(query.key, reverse=query.order is Order.DESCENDING)
    return with_timestamps(rows) if schema.timestamped else rows


def _version(query: VersionedKeyQuery, reader: Reader, schema: StoreSchema) -> VersionedRecord | None:
    reads = VersionedReads(reader, _segments(schema))
    return reads.get(query.key) if query.as_of is None else reads.get_as_of(query.key, query.as_of)


def _versions(query: MultiVersionedKeyQuery, reader: Reader, schema: StoreSchema) -> Scan[VersionedRecord]:
    ascending = query.order is Order.ASCENDING
    reads = VersionedReads(reader, _segments(schema))
    return reads.get_versions(query.key, query.time_from, query.time_to, ascending=ascending)


def _windows(reader: Reader, schema: StoreSchema) -> WindowReads:
    return WindowReads(reader, _segments(schema), schema.window_size_ms, retain_duplicates=schema.retain_duplicates)


def _segments(schema: StoreSchema) -> Segments:
    if schema.segments is None:
        raise InvalidArgumentError(f"A schema of kind {schema.kind!r} needs `segments`.")
    return schema.segments


def _times(query: WindowKeyQuery | WindowRangeQuery) -> tuple[int, int]:
    first, last = query.time_from, query.time_to
    return 0 if first is None else first, MAX_TIMESTAMP_MS if last is None else last


_ACCEPTED: dict[str, tuple[tuple[type, ...], str]] = {
    "key": ((bytes,), "bytes"),
    "lower": ((bytes, type(None)), "bytes or None"),
    "upper": ((bytes, type(None)), "bytes or None"),
    "time_from": ((int, type(None)), "milliseconds or None"),
    "time_to": ((int, type(None)), "milliseconds or None"),
    "as_of": ((int, type(None)), "milliseconds or None"),
    "order": ((Order,), "an Order"),
}
_TIMESTAMPED = (TimestampedKeyQuery, TimestampedRangeQuery)
# Typed by `Query[Result]` and the functions above; the table itself cannot say that each pair fits.
_ANSWERS: dict[tuple[type[Any], StoreKind], Callable[[Any, Reader, StoreSchema], Any]] = {
    (KeyQuery, "key_value"): _key,
    (TimestampedKeyQuery, "key_value"): _timestamped_key,
    (RangeQuery, "key_value"): _range,
    (TimestampedRangeQuery, "key_value"): _timestamped_range,
    (WindowKeyQuery, "window"): _window_key,
    (WindowRangeQuery, "window"): _window_range,
    (WindowRangeQuery, "session"): _sessions_of_key,
    (VersionedKeyQuery, "versioned"): _version,
    (MultiVersionedKeyQuery, "versioned"): _versions,
}
