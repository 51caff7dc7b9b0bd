"""Rows of an operator's store, ``timestamp ‖ value``, whether the store keeps headers (KIP-1271) or not.

As in Kafka Streams' DSL, a row has the headers of the record that caused its last change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stateline.log.interface import Record
from stateline_store import TransactionalStore
from stateline_store.rows.headers import join_headers, without_headers
from stateline_store.rows.timestamped_rows import TIMESTAMP

_WIDTH = TIMESTAMP.size


def rows_of(store: TransactionalStore, keys: Sequence[bytes]) -> list[bytes | None]:
    """Return the rows of these stored keys, None for an absent key, without headers."""
    rows = store.get_rows(keys)
    return [None if row is None else bare_row(row) for row in rows] if store.headers else rows


def keep_rows(
    store: TransactionalStore,
    keys: Iterable[bytes],
    rows: Sequence[bytes | None],
    records: Sequence[Record] = (),
    stream_time_ms: int = -1,
) -> None:
    """Stage these rows, None deletes. A store with headers keeps those of their `records`."""
    if store.headers:
        pairs = zip(rows, records, strict=True)
        rows = [None if row is None else _with_headers(row, record) for row, record in pairs]
    store.put_rows(dict(zip(keys, rows, strict=True)), stream_time_ms)


def bare_row(row: bytes) -> bytes:
    """Return a row of a store with headers without them."""
    return row[:_WIDTH] + without_headers(row[_WIDTH:])


def bare_value(store: TransactionalStore, value: bytes) -> bytes:
    """Return a value, as a store's own reads give it, without headers."""
    return without_headers(value) if store.headers else value


def _with_headers(row: bytes, record: Record) -> bytes:
    return row[:_WIDTH] + join_headers(row[_WIDTH:], record.headers)
