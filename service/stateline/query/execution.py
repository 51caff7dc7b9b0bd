"""How a query is run on one partition's Reader, and how the entries of several partitions become one answer.

What runs it is the store library's engine (`stateline_store.queries`); here its results become entries, of which a
scan has a page at a time. Synchronous and pure: a query never writes, and the reader must not move while it is run. A
scan that has more than it may give is left open; whoever asks for its rest gets the state that the first entries came
from. The same code answers in the server (secondaries), in the worker (uncommitted state, stores in memory) and
wherever else a Reader is at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from operator import itemgetter
from typing import Any

from stateline.query.open_scan import OpenScan
from stateline.query.values import CopyStatus, Entry, Failure, Outcome, PartitionAnswer, QueryRows, ScanQuery, Terms
from stateline_store import (
    CountQuery,
    IsolationLevel,
    KeyQuery,
    KeysQuery,
    MultiVersionedKeyQuery,
    NotActiveError,
    NotUpToBoundError,
    PositionQuery,
    PrefixQuery,
    Query,
    RangeQuery,
    Reader,
    Scan,
    SessionKeyQuery,
    SessionRangeQuery,
    StoreSchema,
    VersionedKeyQuery,
    VersionedKeysQuery,
    VersionedPrefixQuery,
    VersionedRangeQuery,
    VersionedRecord,
    Windowed,
    WindowIterator,
    WindowKeyQuery,
    WindowRangeQuery,
    queries,
    window_end_ms,
)
from stateline_store.scan import LARGEST_CHUNK, LARGEST_CHUNK_BYTES
from stateline_store.windowed_keys import session_order, window_key

_OF_ONE_KEY = (KeyQuery, VersionedKeyQuery)


def execute(
    query: Query[Any],
    reader: Reader,
    schema: StoreSchema,
    partition: int,
    terms: Terms,
    copy: CopyStatus,
    *,
    has_all_partitions: bool = False,
) -> Outcome:
    """Answer a query from one partition, or say why not. Synchronous: the reader must not move meanwhile. The schema is
    that of stored values (`StoreSchema.of_stored_values`): who shows them takes them apart.

    The bound is checked against the reader's own position: what it has committed, or, when it reads
    uncommitted records, that merged with what is pending; of a global table, which `has_all_partitions`, for each
    partition. A scan that has more to give is the asker's, as an `OpenScan` in the rows' `rest`. Errors of the store
    itself pass through, and `UnknownQueryTypeError` and `InvalidArgumentError` of `queries.run`.
    """
    uncommitted_standby = copy.served_by == "standby" and terms.isolation_level is IsolationLevel.READ_UNCOMMITTED
    if uncommitted_standby or (terms.require_active and copy.served_by != "active"):
        return Failure(_not_active(terms.store, partition, copy), reader.position)
    # These find nothing, too: the store would warn in the log of each such request.
    if isinstance(query, RangeQuery) and schema.kind == "key_value" and _is_reversed(query):
        query = KeysQuery(())
    elif isinstance(query, VersionedRangeQuery) and schema.kind == "versioned" and _is_reversed(query):
        query = VersionedKeysQuery(())
    try:
        bounded = None if has_all_partitions else partition
        answer = queries.run(query, reader, schema, bound=terms.bound, partition=bounded)
    except NotUpToBoundError:
        return Failure(_behind(terms.store, partition), reader.position)
    return PartitionAnswer(_rows(query, answer.result, schema, terms.limit), answer.position, copy)


def _is_reversed(query: RangeQuery | VersionedRangeQuery) -> bool:
    return query.lower is not None and query.upper is not None and query.lower > query.upper


def _rows(query: Query[Any], result: Any, schema: StoreSchema, limit: int) -> QueryRows:
    if isinstance(query, _OF_ONE_KEY):  # first, and no `match`, which takes longer: most queries are
        return QueryRows() if result is None else QueryRows(((query.key, result),))
    match query:
        case KeysQuery() | VersionedKeysQuery():
            return QueryRows(result)
        case CountQuery():
            return QueryRows(count=result)
        case PositionQuery():
            return QueryRows()
    scan = _entries(query, result, schema)
    try:
        rows = OpenScan(scan).rows(limit)
    except BaseException:
        scan.close()
        raise
    if isinstance(query, WindowRangeQuery) and schema.segments is not None:
        return replace(rows, interval_ms=schema.segments.interval_ms)
    return rows


def _entries(query: Query[Any], result: Scan[Any], schema: StoreSchema) -> Scan[Entry]:
    """The same scan, of entries that say which key they are of."""
    match query:
        case WindowKeyQuery(key):
            return Scan.of_chunks(_of_key(key, schema.window_size_ms, result))
        case MultiVersionedKeyQuery(key):
            return Scan.of_chunks(_with_key(key, result))
    return result


def _of_key(key: bytes, size_ms: int, windows: WindowIterator) -> Generator[list[tuple[Windowed, bytes]], None, None]:
    with windows:
        for chunk in windows.chunks():
            yield [(Windowed(key, start_ms, window_end_ms(start_ms, size_ms)), value) for start_ms, value in chunk]


def _with_key(
    key: bytes, versions: Scan[VersionedRecord]
) -> Generator[list[tuple[bytes, VersionedRecord]], None, None]:
    with versions:
        chunk, size = list[tuple[bytes, VersionedRecord]](), 0
        for version in versions:
            chunk.append((key, version))
            size += len(version.value)
            if size >= LARGEST_CHUNK_BYTES or len(chunk) == LARGEST_CHUNK:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk


def sort_key(query: ScanQuery, intervals_ms: set[int]) -> Callable[[Any], Any] | None:
    """What orders the entries of all partitions as each of them has its own, up or down.

    `intervals_ms` are those of the partitions. None when they differ, because the retention was changed: then the
    partitions' entries have no common order.
    """
    match query:
        case RangeQuery() | PrefixQuery() | VersionedRangeQuery() | VersionedPrefixQuery():
            return itemgetter(0)
        case WindowRangeQuery():
            if len(intervals_ms) > 1:
                return None
            interval_ms = next(iter(intervals_ms), 1) or 1
            # By the row's own bytes: of keys of which one begins with another they are not in the order of the keys.
            return lambda entry: (entry[0].start_ms // interval_ms, window_key(entry[0].key, entry[0].start_ms))
        case WindowKeyQuery():
            return lambda entry: entry[0].start_ms
        case SessionRangeQuery():
            return session_order
        case SessionKeyQuery():
            return lambda entry: (entry[0].end_ms, entry[0].start_ms)
        case MultiVersionedKeyQuery():
            return lambda entry: entry[1].timestamp


def _behind(store: str, partition: int) -> NotUpToBoundError:
    return NotUpToBoundError(
        f"Partition {partition} of {store!r} is still behind position_bound: wait longer (wait_ms), ask "
        "again, or ask with a lower bound."
    )


def _not_active(store: str, partition: int, copy: CopyStatus) -> NotActiveError:
    return NotActiveError(
        f"Partition {partition} of {store!r} is {copy.served_by} here: ask again in a moment, or without "
        "require_active, at isolation_level=read_committed."
    )
