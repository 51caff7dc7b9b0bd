"""Rows of an operator's store, ``timestamp ‖ value``, whether the store keeps headers (KIP-1271) or not.

A row has the headers of the record that caused its last change. So has the changelog's record of a delete. The DSL of
Kafka Streams 4.4.0 writes none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from stateline.log.interface import Headers, Record
from stateline.processing.changelog import origin
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Changes, Rows
from stateline_store import TransactionalStore, VersionedStore
from stateline_store.rows.headers import join_headers, split_headers, without_headers
from stateline_store.rows.timestamped_rows import TIMESTAMP
from stateline_store.rows.versioned_rows import LATEST

_WIDTH = TIMESTAMP.size
_Batch = TypeVar("_Batch", Rows, Changes)


def rows_of(store: TransactionalStore, keys: Sequence[bytes]) -> list[bytes | None]:
    """Return the rows of these stored keys, None for an absent key, without headers. A versioned store gives the latest
    versions, by the plain keys."""
    if isinstance(store, VersionedStore):
        return store.get_rows([LATEST + key for key in keys])
    rows = store.get_rows(keys)
    return [None if row is None else bare_row(row) for row in rows] if store.headers else rows


def headers_of(store: TransactionalStore, keys: Sequence[bytes]) -> list[Headers]:
    """Return the headers of the rows of these stored keys: none of an absent key, or if the store keeps none."""
    if not store.headers or not keys:
        return [()] * len(keys)
    return [() if row is None else split_headers(row[_WIDTH:])[1] for row in store.get_rows(keys)]


def keep_rows(
    store: TransactionalStore,
    keys: Iterable[bytes],
    rows: Sequence[bytes | None],
    stamps: Sequence[int] = (),
    records: Sequence[Record] = (),
    stream_time_ms: int = -1,
) -> None:
    """Stage these rows, None deletes. A store with headers keeps those of their `records`, and these timestamps of
    deletes."""
    if not store.headers:
        store.put_rows(dict(zip(keys, rows, strict=True)), stream_time_ms)
        return
    keys = list(keys)
    pairs = zip(rows, records, strict=True)
    joined = [None if row is None else _with_headers(row, record) for row, record in pairs]
    store.put_rows(dict(zip(keys, joined, strict=True)), stream_time_ms)
    places = [place for place, row in enumerate(rows) if row is None]
    store.keep_origins({store.changelog_key(keys[n]): origin(stamps[n], records[n].headers) for n in places})


def with_fitting_headers(
    batch: _Batch,
    keys: Sequence[bytes],
    values: Sequence[bytes | None],
    store: TransactionalStore,
    context: OperatorContext,
) -> _Batch:
    """Return the batch without records that their headers make too large for the changelog of a store with headers.
    ``processing.exception.handler`` handles these."""
    if not store.headers or not any(record.headers for record in batch.records):
        return batch
    pairs = zip(keys, values, strict=True)
    fitting = context.each(store.name, batch.records, pairs, lambda pair: context.refuse_too_large(*pair, store))
    return batch.pick([place for place, _ in fitting])


def bare_row(row: bytes) -> bytes:
    """Return a row of a store with headers without them."""
    return row[:_WIDTH] + without_headers(row[_WIDTH:])


def bare_value(store: TransactionalStore, value: bytes) -> bytes:
    """Return a value, as a store's own reads give it, without headers."""
    return without_headers(value) if store.headers else value


def _with_headers(row: bytes, record: Record) -> bytes:
    return row[:_WIDTH] + join_headers(row[_WIDTH:], record.headers)
