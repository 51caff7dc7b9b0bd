"""`execute`: runs a query on one partition's reader.

The store library's engine (`stateline_store.reads.queries`) runs it. Its results become entries here. A scan gives a
page of entries at a time. If it has more, it stays open, and its rest has the state of its first entries. Synchronous
and pure: a query never writes, and the reader must not move while it runs. The server runs this on secondaries, and the
worker on uncommitted state and on stores in memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stateline.query.kinds import entries_of
from stateline.query.open_scan import OpenScan
from stateline.query.values import CopyStatus, Failure, Outcome, PartitionAnswer, QueryRows, Terms
from stateline_store import (
    CountQuery,
    IsolationLevel,
    KeyQuery,
    KeysQuery,
    NotActiveError,
    NotUpToBoundError,
    PositionQuery,
    Query,
    RangeQuery,
    Reader,
    SessionRangeQuery,
    StoreSchema,
    VersionedKeyQuery,
    VersionedKeysQuery,
    VersionedRangeQuery,
    WindowRangeQuery,
    queries,
)

OF_ALL_KEYS = (WindowRangeQuery, SessionRangeQuery)
"""Queries whose rows can come as they are stored (`Terms.stored_rows`)."""
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
    result = answer.result
    if terms.stored_rows and isinstance(query, OF_ALL_KEYS):
        result.close()
        result = queries.stored_rows(query, reader, schema)
    return PartitionAnswer(_rows(query, result, schema, terms.limit), answer.position, copy)


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
    scan = entries_of(query, result, schema)
    try:
        rows = OpenScan(scan).rows(limit)
    except BaseException:
        scan.close()
        raise
    if isinstance(query, WindowRangeQuery) and schema.segments is not None:
        return replace(rows, interval_ms=schema.segments.interval_ms)
    return rows


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
