"""Versioned tables: by the rules of Kafka Streams (KIP-914), `filter`, `map_values` and `to_stream` take every change,
also one with a smaller timestamp than the latest of its key. Joins and groups take the latest versions alone
(`KTableSource`, `KTableKTableInnerJoin`, `KTableRepartitionMap`). A change that is too late for the history is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

from stateline.log.interface import Record
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Changes
from stateline.processing.operators.stored_rows import rows_of
from stateline_store import NOT_PUT, TransactionalStore, VersionedStore
from stateline_store.rows.timestamped_rows import TIMESTAMP


class VersionedTableSource:
    """Each record that a topic's versioned table takes is a change. If the group's offsets were lost, a table is ahead
    of the records: an older one than the latest version is no latest change then."""

    def __init__(self, table: str, context: OperatorContext) -> None:
        self._store = _versioned(context.stores[table])
        self._latest: dict[bytes, tuple[int, bytes | None]] = {}  # before the slice: timestamp, and value
        self._now_ms = -1

    def before(self, records: Sequence[Record]) -> None:
        first: dict[bytes, int] = {}
        for record in records:
            if record.key is not None:
                first[record.key] = min(record.timestamp_ms, first.get(record.key, record.timestamp_ms))
        width, self._now_ms = TIMESTAMP.size, self._store.stream_time_ms
        for (key, at_ms), row in zip(first.items(), rows_of(self._store, list(first)), strict=True):
            if row is None:
                self._latest[key] = self._store.deleted_after(key, at_ms), None
            else:
                self._latest[key] = TIMESTAMP.unpack_from(row)[0], row[width:]

    def read(self, records: Sequence[Record]) -> Changes:
        old, are_latest, places, history_ms = [], [], [], self._store.segments.retention_ms
        for place, record in enumerate(records):
            key, at_ms = record.key, record.timestamp_ms
            if key is None or at_ms < self._now_ms - history_ms:
                continue
            self._now_ms = max(self._now_ms, at_ms)
            latest_ms, value = self._latest[key]
            places.append(place)
            old.append(value)
            are_latest.append(at_ms >= latest_ms)
            if at_ms >= latest_ms:
                self._latest[key] = at_ms, record.value
        self._latest = {}
        taken = [records[place] for place in places]
        keys, new = [record.key or b"" for record in taken], [record.value for record in taken]
        return Changes(keys, old, new, [record.timestamp_ms for record in taken], taken, are_latest)


class KeepVersions:
    """Puts every change into a versioned store, and gives those that it takes. Late ones are dropped and counted."""

    def __init__(self, store: str, context: OperatorContext) -> None:
        self._store, self._context = _versioned(context.stores[store]), context

    def process(self, changes: Changes) -> Changes:
        old, are_latest, places = [], [], []
        for place, (key, new, at_ms) in enumerate(zip(changes.keys, changes.new, changes.timestamps, strict=True)):
            found = self._store.get(key)
            valid_to = self._store.put(key, new, at_ms)
            if valid_to != NOT_PUT:
                places.append(place)
                old.append(None if found is None else found.value)
                are_latest.append(valid_to is None)
        self._context.failures.drop(len(changes.keys) - len(places), "late")
        return changes.pick(places)._replace(old=old, are_latest=are_latest)


class LatestVersions:
    """Takes every change of a versioned table, gives each key once: from its latest value before the slice to that
    behind it. Changes that are no latest versions are left out."""

    def __init__(self, context: OperatorContext) -> None:
        del context

    def process(self, changes: Changes) -> Changes:
        old, last = dict[bytes, bytes | None](), dict[bytes, int]()
        for place, (key, is_latest) in enumerate(zip(changes.keys, changes.are_latest, strict=True)):
            if is_latest:
                old.setdefault(key, changes.old[place])
                last[key] = place
        kept = changes.pick(list(last.values()))
        return kept._replace(keys=list(last), old=[old[key] for key in last], are_latest=())


def _versioned(store: TransactionalStore) -> VersionedStore:
    if not isinstance(store, VersionedStore):
        raise AssertionError(f"Store {store.name!r} keeps no versions.")
    return store
