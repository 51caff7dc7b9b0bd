"""The rows of a left or outer join of streams that still wait for a partner.

A key-value store keeps them (`stateline.serde.unmatched`). A changelog record has the time of the row that caused it.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TypeAlias

from stateline.processing.changelog import origin
from stateline.serde.unmatched import ENTRY, NOTHING, appended, values_of
from stateline_store import KeyValueStore, TransactionalStore
from stateline_store.rows.windowed_keys import MAX_TIMESTAMP_MS

_MOST_BYTES = 8 * 1024 * 1024  # of what is remembered of one join and partition; twice that for a moment
_ENTRY_BYTES = 130  # of a remembered row besides its key's: the head of the key, its places in a set and in a heap

Unmatched: TypeAlias = tuple[bytes, bool, bytes, None, int]
"""A row's key, whether it is of the left side, its value, no partner, and its timestamp."""


class UnmatchedRows:
    """One task's, for one thread. A row of the left side is closed when stream time is more than the first of
    `closed_after` milliseconds behind its own, one of the right side by the second.

    It remembers the keys of the entries up to `_known_to_ms`: those that close next, if all take too much memory.
    """

    def __init__(self, store: TransactionalStore, closed_after: tuple[int, int]) -> None:
        if not isinstance(store, KeyValueStore):
            raise AssertionError(f"Store {store.name!r} keeps no values by key.")
        self._store, self._closed_after = store, closed_after
        self._names: set[bytes] = set()
        self._next: tuple[list[bytes], list[bytes]] = [], []  # heaps, of right rows and of left rows
        self._known_to_ms, self._bytes = -1, 0
        self._look_further()

    def put(self, at_ms: int, is_left: bool, key: bytes, value: bytes) -> None:
        name = ENTRY.pack(at_ms, is_left) + key
        self._put(name, appended(self._store.get(name), is_left, value), at_ms)
        if at_ms <= self._known_to_ms and name not in self._names:
            self._remember(name)
            if self._bytes > 2 * _MOST_BYTES:
                self._forget_later_ones()

    def drop(self, at_ms: int, is_left: bool, key: bytes, partner_ms: int) -> None:
        """Forget the rows of this key, time and side: they have a partner. Kafka Streams forgets all of them, too."""
        name = ENTRY.pack(at_ms, is_left) + key
        if name in self._names if at_ms <= self._known_to_ms else self._store.get(name) is not None:
            self._put(name, None, partner_ms)
            self._forget(name)

    def take_closed(self, now_ms: int) -> list[Unmatched]:
        """Remove the rows for which no partner can come any more, and return them by time, right ones first."""
        names = self._take_names(now_ms)
        while self._known_to_ms < min(now_ms - min(self._closed_after), MAX_TIMESTAMP_MS):
            self._look_further()
            names += self._take_names(now_ms)
        found = list[Unmatched]()
        for name in sorted(names):
            at_ms, is_left = ENTRY.unpack_from(name)
            values = values_of(self._store.get(name) or NOTHING)
            found += [(name[ENTRY.size :], bool(is_left), value, None, at_ms) for value in values]
            self._put(name, None, now_ms)
        return found

    def _take_names(self, now_ms: int) -> list[bytes]:
        found = []
        for is_left, heap in enumerate(self._next):
            first_open = ENTRY.pack(min(max(0, now_ms - self._closed_after[not is_left]), MAX_TIMESTAMP_MS), 0)
            while heap and heap[0] < first_open:
                name = heappop(heap)
                if name in self._names:  # it was not dropped
                    self._forget(name)
                    found.append(name)
        return found

    def _put(self, name: bytes, value: bytes | None, at_ms: int) -> None:
        self._store.put(name, value)
        self._store.keep_origins({name: origin(at_ms, ())})

    def _remember(self, name: bytes) -> None:
        self._names.add(name)
        self._bytes += _ENTRY_BYTES + len(name)
        heappush(self._next[ENTRY.unpack_from(name)[1]], name)

    def _forget(self, name: bytes) -> None:
        if name in self._names:
            self._names.remove(name)
            self._bytes -= _ENTRY_BYTES + len(name)

    def _look_further(self) -> None:
        """Remember more entries, of whole milliseconds."""
        after, most = ENTRY.pack(self._known_to_ms + 1, 0), self._bytes + _MOST_BYTES
        with self._store.range(after, None) as entries:
            for name, _ in entries:
                at_ms = ENTRY.unpack_from(name)[0]
                if self._bytes >= most and at_ms > self._known_to_ms:
                    return
                self._remember(name)
                self._known_to_ms = at_ms
        self._known_to_ms = MAX_TIMESTAMP_MS

    def _forget_later_ones(self) -> None:
        names = sorted(self._names)
        self._names, self._next, self._bytes, self._known_to_ms = set(), ([], []), 0, -1
        for name in names:
            at_ms = ENTRY.unpack_from(name)[0]
            if self._bytes >= _MOST_BYTES and at_ms > self._known_to_ms:
                return
            self._remember(name)
            self._known_to_ms = at_ms
