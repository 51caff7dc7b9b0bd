"""Queries (`query_types`) run on one partition: what a library's caller asks, and what every request over HTTP runs.

`run` needs nothing but a reader and the store's schema, so that the owner's store, a secondary in another process and a
store in memory answer the same, at both isolation levels. A query never writes.

| query                  | asks                                | result                                        |
|------------------------|-------------------------------------|-----------------------------------------------|
| KeyQuery               | key-value                           | bytes, None when absent                       |
| TimestampedKeyQuery    | timestamped key-value               | ValueAndTimestamp, None when absent           |
| KeysQuery              | key-value                           | list of (key, value) of those that are there  |
| RangeQuery             | key-value                           | scan of (key, bytes)                          |
| TimestampedRangeQuery  | timestamped key-value               | scan of (key, ValueAndTimestamp)              |
| PrefixQuery            | key-value                           | scan of (key, value)                          |
| WindowKeyQuery         | window                              | scan of (start, value)                        |
| WindowRangeQuery       | window (by start), session (by key) | scan of (Windowed, value)                     |
| SessionKeyQuery        | session                             | scan of (Windowed, value)                     |
| SessionRangeQuery      | session                             | scan of (Windowed, value)                     |
| VersionedKeyQuery      | versioned                           | VersionedRecord, None when there was no value |
| VersionedKeysQuery     | versioned                           | list of (key, VersionedRecord)                |
| MultiVersionedKeyQuery | versioned                           | scan of VersionedRecord                       |
| VersionedRangeQuery    | versioned                           | scan of (key, VersionedRecord)                |
| VersionedPrefixQuery   | versioned                           | scan of (key, VersionedRecord)                |
| CountQuery             | every kind                          | int                                           |
| PositionQuery          | every kind                          | None                                          |

A value is bytes, or ValueAndTimestamp in a timestamped store. Any other pair of query and store raises
`UnknownQueryTypeError`. The Position of an answer is the reader's at the moment of `run`: a scan shows that state to
its end, whatever is committed meanwhile.

`CONTRIBUTING.md`, "Add a kind of query", has all steps, from `_NAMES` of the package (the public names of each module)
to `docs/generate.py`. In this module, a new kind needs its row above, a function, and an entry in these tables:

- `_ANSWERS`: (query, kind of store) → the function that answers it
- `_TIMESTAMPED`: queries that only timestamped stores answer
- `_ACCEPTED`: annotation of a query's field → the accepted types, and their names in an error. It needs an entry only
  for an annotation that no query has yet
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from stateline_store.errors import InvalidArgumentError, NotUpToBoundError, UnknownQueryTypeError
from stateline_store.layout import STORE_KINDS, StoreKind
from stateline_store.position import Position, PositionBound
from stateline_store.reads.query_types import (
    CountQuery,
    KeyQuery,
    KeysQuery,
    MultiVersionedKeyQuery,
    Order,
    PositionQuery,
    PrefixQuery,
    Query,
    RangeQuery,
    SessionKeyQuery,
    SessionRangeQuery,
    TimestampedKeyQuery,
    TimestampedRangeQuery,
    VersionedKeyQuery,
    VersionedKeysQuery,
    VersionedPrefixQuery,
    VersionedRangeQuery,
    WindowKeyQuery,
    WindowRangeQuery,
)
from stateline_store.reads.readers import Reader
from stateline_store.reads.session_reads import SessionReads
from stateline_store.reads.versioned_reads import VersionedReads, VersionedRecord
from stateline_store.reads.window_reads import WindowReads
from stateline_store.rows.segments import Segments
from stateline_store.rows.store_schema import StoreSchema
from stateline_store.rows.timestamped_rows import split, values_of, with_timestamps
from stateline_store.rows.windowed_keys import MAX_TIMESTAMP_MS, Windowed
from stateline_store.scan import KeyRange, Scan, Value, ValueAndTimestamp

Result = TypeVar("Result")
Found = TypeVar("Found")
Name = TypeVar("Name")


@dataclass(frozen=True, slots=True)
class QueryResult(Generic[Result]):
    """An answer, and the Position of its state."""

    result: Result
    position: Position


def run(
    query: Query[Result],
    reader: Reader,
    schema: StoreSchema,
    *,
    bound: PositionBound | None = None,
    partition: int | None = 0,
) -> QueryResult[Result]:
    """Answer a query from one partition's present state, or from a global store's, whose `partition` is None. For the
    reader's thread.

    Raises `UnknownQueryTypeError` if this kind of store cannot answer it, `InvalidArgumentError` for a value that
    cannot be used, `NotUpToBoundError` if the state is behind `bound` (ask again later), or the reader's errors.
    """
    kind = type(query)
    answer = _ANSWERS.get((kind, schema.kind))
    if answer is None or (kind in _TIMESTAMPED and not schema.timestamped):
        able = ", ".join(sorted(each.__name__ for each in answered_by(schema)))
        raise UnknownQueryTypeError(f"A {schema} store cannot answer a {kind.__name__}; it answers: {able}.")
    for name, types, words in _FIELDS[kind]:
        if not isinstance(getattr(query, name), types):
            raise InvalidArgumentError(f"{name} of a {kind.__name__} is {words}, not {getattr(query, name)!r:.60}.")
    if isinstance(query, WindowRangeQuery):
        _check_key_or_times(query, schema)
    position = reader.position
    if bound is not None and not bound.is_met(position, partition):
        which = "The store" if partition is None else f"Partition {partition}"
        raise NotUpToBoundError(
            f"{which} is at {position.to_json()}, behind the bound {bound.position.to_json()}: ask again."
        )
    return QueryResult(answer(query, reader, schema), position)


def answered_by(schema: StoreSchema) -> list[type[Query[Any]]]:
    """Return the queries that a store of this schema answers."""
    return [
        query for query, kind in _ANSWERS if kind == schema.kind and (schema.timestamped or query not in _TIMESTAMPED)
    ]


def _check_key_or_times(query: WindowRangeQuery, schema: StoreSchema) -> None:
    """Refuse a query that no state can answer, before the bound is compared, so that nobody waits in vain."""
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


def _keys(query: KeysQuery, reader: Reader, schema: StoreSchema) -> list[tuple[bytes, Value]]:
    stored = _there(query, reader.get, len)
    return [(key, split(value)) for key, value in stored] if schema.timestamped else list[Any](stored)


def _range(query: RangeQuery, reader: Reader, schema: StoreSchema) -> Scan[tuple[bytes, bytes]]:
    rows = reader.range(query.lower, query.upper, reverse=_is_down(query))
    return values_of(rows) if schema.timestamped else rows


def _timestamped_range(
    query: TimestampedRangeQuery, reader: Reader, schema: StoreSchema
) -> Scan[tuple[bytes, ValueAndTimestamp]]:
    del schema
    return with_timestamps(reader.range(query.lower, query.upper, reverse=_is_down(query)))


def _prefix(query: PrefixQuery, reader: Reader, schema: StoreSchema) -> Scan[tuple[bytes, Value]]:
    return _shown(reader.prefix_scan(query.prefix, reverse=_is_down(query)), schema)


def _window_key(query: WindowKeyQuery, reader: Reader, schema: StoreSchema) -> Scan[tuple[int, Value]]:
    reads = _windows(reader, schema)
    return _shown(reads.fetch(query.key, *_times(query), reverse=_is_down(query)), schema)


def _window_range(query: WindowRangeQuery, reader: Reader, schema: StoreSchema) -> Scan[tuple[Windowed, Value]]:
    return _shown(_windows(reader, schema).fetch_all(*_times(query), reverse=_is_down(query)), schema)


def stored_rows(
    query: WindowRangeQuery | SessionRangeQuery, reader: Reader, schema: StoreSchema
) -> Scan[tuple[bytes, bytes]]:
    """Scan the rows of this query of all keys as they are stored. `run` checks the query."""
    if isinstance(query, SessionRangeQuery):
        return SessionReads(reader, _segments(schema)).stored(*_times(query), reverse=_is_down(query))
    return _windows(reader, schema).stored(*_times(query), reverse=_is_down(query))


def _sessions(
    query: SessionKeyQuery | WindowRangeQuery, reader: Reader, schema: StoreSchema
) -> Scan[tuple[Windowed, Value]]:
    assert query.key is not None
    reads = SessionReads(reader, _segments(schema))
    return _shown(reads.find_sessions(query.key, *_times(query), reverse=_is_down(query)), schema)


def _sessions_of_all_keys(
    query: SessionRangeQuery, reader: Reader, schema: StoreSchema
) -> Scan[tuple[Windowed, Value]]:
    reads = SessionReads(reader, _segments(schema))
    return _shown(reads.sessions_of_all_keys(*_times(query), reverse=_is_down(query)), schema)


def _version(query: VersionedKeyQuery, reader: Reader, schema: StoreSchema) -> VersionedRecord | None:
    reads = VersionedReads(reader, _segments(schema))
    return reads.get(query.key) if query.as_of is None else reads.get_as_of(query.key, query.as_of)


def _version_of_keys(
    query: VersionedKeysQuery, reader: Reader, schema: StoreSchema
) -> list[tuple[bytes, VersionedRecord]]:
    reads, as_of = VersionedReads(reader, _segments(schema)), query.as_of
    get = reads.get if as_of is None else lambda key: reads.get_as_of(key, as_of)
    return _there(query, get, lambda version: len(version.value))


def _versions(query: MultiVersionedKeyQuery, reader: Reader, schema: StoreSchema) -> Scan[VersionedRecord]:
    ascending = query.order is Order.ASCENDING
    reads = VersionedReads(reader, _segments(schema))
    return reads.get_versions(query.key, query.time_from, query.time_to, ascending=ascending)


def _version_range(
    query: VersionedRangeQuery | VersionedPrefixQuery, reader: Reader, schema: StoreSchema
) -> Scan[tuple[bytes, VersionedRecord]]:
    if isinstance(query, VersionedRangeQuery):
        keys = KeyRange.between(query.lower, query.upper)
    else:
        keys = KeyRange.prefixed(query.prefix)
    return VersionedReads(reader, _segments(schema)).get_range(keys, query.as_of, reverse=_is_down(query))


def _there(
    query: KeysQuery | VersionedKeysQuery, get: Callable[[bytes], Found | None], value_bytes: Callable[[Found], int]
) -> list[tuple[bytes, Found]]:
    """Return (key, value) of the existing keys. Raises `InvalidArgumentError` if they have more than `most_bytes`."""
    found, size, most = list[tuple[bytes, Found]](), 0, query.most_bytes
    for key in query.keys:
        value = get(key)
        if value is None:
            continue
        found.append((key, value))
        size += len(key) + value_bytes(value)
        if most is not None and size > most:
            raise too_large(size)
    return found


def too_large(size: int) -> InvalidArgumentError:
    """Return the error for a query of keys whose values, with the keys, have too many bytes."""
    return InvalidArgumentError(f"The values of these keys have more than {size} bytes: ask for fewer keys.")


def _shown(rows: Scan[tuple[Name, bytes]], schema: StoreSchema) -> Scan[tuple[Name, Value]]:
    found: Scan[Any] = with_timestamps(rows) if schema.timestamped else rows
    return found


def _is_down(query: Any) -> bool:
    return query.order is Order.DESCENDING


def _windows(reader: Reader, schema: StoreSchema) -> WindowReads:
    return WindowReads(reader, _segments(schema), schema.window_size_ms, retain_duplicates=schema.retain_duplicates)


def _segments(schema: StoreSchema) -> Segments:
    if schema.segments is None:
        raise InvalidArgumentError(f"A schema of kind {schema.kind!r} needs `segments`.")
    return schema.segments


def _times(query: WindowKeyQuery | WindowRangeQuery | SessionKeyQuery | SessionRangeQuery) -> tuple[int, int]:
    first, last = query.time_from, query.time_to
    return 0 if first is None else first, MAX_TIMESTAMP_MS if last is None else last


_TIMESTAMPED = frozenset[type[Any]]((TimestampedKeyQuery, TimestampedRangeQuery))
# Typed by `Query[Result]` and the functions above; the table itself cannot say that each pair fits.
_ANSWERS: dict[tuple[type[Query[Any]], StoreKind], Callable[[Any, Reader, StoreSchema], Any]] = {
    (KeyQuery, "key_value"): _key,
    (TimestampedKeyQuery, "key_value"): _timestamped_key,
    (KeysQuery, "key_value"): _keys,
    (RangeQuery, "key_value"): _range,
    (TimestampedRangeQuery, "key_value"): _timestamped_range,
    (PrefixQuery, "key_value"): _prefix,
    (WindowKeyQuery, "window"): _window_key,
    (WindowRangeQuery, "window"): _window_range,
    (WindowRangeQuery, "session"): _sessions,
    (SessionKeyQuery, "session"): _sessions,
    (SessionRangeQuery, "session"): _sessions_of_all_keys,
    (VersionedKeyQuery, "versioned"): _version,
    (VersionedKeysQuery, "versioned"): _version_of_keys,
    (MultiVersionedKeyQuery, "versioned"): _versions,
    (VersionedRangeQuery, "versioned"): _version_range,
    (VersionedPrefixQuery, "versioned"): _version_range,
    **{(CountQuery, kind): lambda query, reader, schema: reader.approximate_num_entries() for kind in STORE_KINDS},
    **{(PositionQuery, kind): lambda query, reader, schema: None for kind in STORE_KINDS},  # `run` gives the Position
}
# The type of a field, as its class declares it → the types that it accepts, and that in words.
_ACCEPTED: dict[str, tuple[tuple[type, ...], str]] = {
    "bytes": ((bytes,), "bytes"),
    "bytes | None": ((bytes, type(None)), "bytes or None"),
    "tuple[bytes, ...]": ((tuple,), "a tuple of bytes"),
    "int | None": ((int, type(None)), "milliseconds or None"),
    "Order": ((Order,), "an Order"),
}


def _checks(query: type[Any]) -> tuple[tuple[str, tuple[type, ...], str], ...]:
    """Field, what it accepts, and that in words."""
    checks = {field.name: _ACCEPTED[str(field.type)] for field in fields(query)}
    if query is WindowRangeQuery:  # the stores that take its key need it
        checks["key"] = ((bytes, type(None)), "bytes")
    if "most_bytes" in checks:
        checks["most_bytes"] = ((int, type(None)), "a number of bytes or None")
    return tuple((name, *accepted) for name, accepted in checks.items())


_FIELDS: dict[type[Query[Any]], tuple[tuple[str, tuple[type, ...], str], ...]] = {
    query: _checks(query) for query, _ in _ANSWERS
}
QUERIES: dict[str, type[Any]] = {query.__name__: query for query, _ in _ANSWERS}
"""Every query that there is, a dataclass, by the name of its class: for who sends them elsewhere."""
