"""The rows of a left or outer join of streams that still wait for a partner.

A key-value store keeps them (`stateline.serde.unmatched`). A changelog record has the time of the row that caused it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from stateline.processing.changelog import origin
from stateline.processing.operators.leaving_rows import Leaving, LeavingRows
from stateline.serde.unmatched import ENTRY, NOTHING, appended, values_of
from stateline_store import KeyValueStore, TransactionalStore
from stateline_store.rows.windowed_keys import MAX_TIMESTAMP_MS

Unmatched: TypeAlias = tuple[bytes, bool, bytes, None, int]
"""A row's key, whether it is of the left side, its value, no partner, and its timestamp."""


class UnmatchedRows:
    """One task's, for one thread. A row of the left side is closed when stream time is more than the first of
    `closed_after` milliseconds behind its own, one of the right side by the second."""

    def __init__(self, store: TransactionalStore, closed_after: tuple[int, int]) -> None:
        if not isinstance(store, KeyValueStore):
            raise AssertionError(f"Store {store.name!r} keeps no values by key.")
        self._store, self._closed_after = store, closed_after
        self._leaving = LeavingRows(self._entries)

    def put(self, at_ms: int, is_left: bool, key: bytes, value: bytes) -> None:
        name = ENTRY.pack(at_ms, is_left) + key
        self._put(name, appended(self._store.get(name), is_left, value), at_ms)
        self._leaving.add((self._entry(at_ms, is_left, name),))

    def drop(self, at_ms: int, is_left: bool, key: bytes, partner_ms: int) -> None:
        """Forget the rows of this key, time and side: they have a partner. Kafka Streams forgets all of them, too."""
        name = ENTRY.pack(at_ms, is_left) + key
        entry = self._entry(at_ms, is_left, name)
        is_there = self._leaving.has(entry)
        if is_there or (is_there is None and self._store.get(name) is not None):
            self._put(name, None, partner_ms)
            self._leaving.drop(entry)

    def take_closed(self, now_ms: int) -> list[Unmatched]:
        """Remove the rows for which no partner can come any more, and return them by time, right ones first."""
        found = list[Unmatched]()
        for name in sorted(name for _, name in self._leaving.take(now_ms - 1)):
            at_ms, is_left = ENTRY.unpack_from(name)
            values = values_of(self._store.get(name) or NOTHING)
            found += [(name[ENTRY.size :], bool(is_left), value, None, at_ms) for value in values]
            self._put(name, None, now_ms)
        return found

    def _put(self, name: bytes, value: bytes | None, at_ms: int) -> None:
        self._store.put(name, value)
        self._store.keep_origins({name: origin(at_ms, ())})

    def _entry(self, at_ms: int, is_left: bool, name: bytes) -> Leaving:
        return at_ms + self._closed_after[not is_left], name

    def _entries(self, from_ms: int) -> Iterator[Leaving]:
        """The store is in the order of timestamps: behind the rows that fit there are none that leave before them."""
        soonest_ms, latest_ms = min(self._closed_after), max(self._closed_after)
        first = ENTRY.pack(min(max(0, from_ms - latest_ms), MAX_TIMESTAMP_MS), 0)
        with self._store.range(first, None) as entries:
            for name, _ in entries:
                at_ms, is_left = ENTRY.unpack_from(name)
                if at_ms + soonest_ms > self._leaving.unknown_from_ms:
                    return
                yield self._entry(at_ms, is_left, name)
