"""Rows of a store as records of its changelog, and how they are produced (`changelog` describes the records)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias, TypeGuard

from stateline.log.interface import Headers, LogRow, Producer
from stateline.processing.changelog import with_own
from stateline.serde.plain import shown
from stateline_store import InvalidArgumentError, StateStore, TopicPartition, TransactionalStore
from stateline_store.rows.headers import split_headers
from stateline_store.rows.timestamped_rows import split
from stateline_store.state_store import Change

OwnRow: TypeAlias = tuple[bytes | None, bytes | None, int, Headers]


def staged_rows(store: StateStore, now_ms: int) -> list[LogRow]:
    """Return what the store has staged since its last commit. Tombstones, and rows without timestamps, get `now_ms`."""
    return log_rows(store.staged_changes(), now_ms)


def log_rows(changes: Iterable[Change], now_ms: int) -> list[LogRow]:
    """Return changes of a store as rows of its changelog. Those without a timestamp get `now_ms`."""
    return [
        (key, value, now_ms if timestamp is None else timestamp if timestamp > 0 else 0)
        for key, value, timestamp in changes
    ]


def produce_rows(
    producer: Producer,
    changelog: TopicPartition,
    store: StateStore,
    rows: Sequence[LogRow],
    last_headers: Headers = (),
    headers: Headers = (),
) -> None:
    """Queue rows of this store, like `Producer.produce_all`."""
    if has_own(store):
        produce_with_own(producer, *changelog, rows_with_own(store, rows), last_headers, headers)
    else:
        producer.produce_all(*changelog, rows, last_headers, headers)


def produce_with_own(
    producer: Producer, topic: str, partition: int, rows: Sequence[OwnRow], last_headers: Headers, headers: Headers
) -> None:
    """Queue the rows of a store with headers, like `Producer.produce_all`, each with its own headers before others."""
    last = len(rows) - 1
    for at, (key, value, timestamp_ms, own) in enumerate(rows):
        all_headers = with_own(own, (*last_headers, *headers) if at == last else headers)
        try:
            producer.produce(topic, key, value, timestamp_ms=timestamp_ms, headers=all_headers, partition=partition)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"Key {shown(key)}: {error}") from error


def rows_with_own(store: TransactionalStore, rows: Iterable[LogRow]) -> list[OwnRow]:
    """Return staged rows with their own headers apart. A change with an origin has the timestamp and headers of that:
    a delete in a store with headers, any in a store without."""
    origins, found = store.origins, list[OwnRow]()
    for key, stored, timestamp_ms in rows:
        kept = origins.get(key or b"") if stored is None or not store.headers else None
        value, own = split_headers(stored) if store.headers and stored is not None else (stored, ())
        if kept is not None:
            stamped = split(kept)
            timestamp_ms, own = max(stamped.timestamp, 0), split_headers(stamped.value)[1]
        found.append((key, value, timestamp_ms, own))
    return found


def has_own(store: StateStore) -> TypeGuard[TransactionalStore]:
    """Whether changelog records of this store's staged changes may have headers of their own."""
    return isinstance(store, TransactionalStore) and (store.headers or bool(store.origins))
