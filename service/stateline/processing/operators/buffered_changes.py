"""Changes and rows that are held back, in a key-value store (`stateline.serde.buffered_change`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from stateline.log.interface import Headers
from stateline.processing.changelog import BUFFER_VERSION, origin
from stateline.serde.buffered_change import BufferedChange, read_buffered
from stateline_store import KeyValueStore, TransactionalStore
from stateline_store.rows.timestamped_rows import TIMESTAMP

_MOST_BYTES = 8 * 1024 * 1024  # of what is remembered of one store and partition; twice that for a moment
_ENTRY_BYTES = 130  # of a remembered row besides its key's: a tuple, a number, the head of the key, a place in the heap


class BufferedChanges:
    """One task's, for one thread. Only this writes the store. `size` is in bytes, 0 unless it is `sized`. `headers` are
    those of changelog records. `see` is called with the key of each row that is there at first. Rows leave by their
    times, then by their keys.

    It remembers the times and keys of the rows that leave next, in a heap. If they take too much memory, it forgets the
    later ones, and looks through the store when the others have left.
    """

    def __init__(
        self,
        store: TransactionalStore,
        *,
        sized: bool = False,
        headers: Headers = BUFFER_VERSION,
        see: Callable[[bytes], None] = lambda key: None,
    ) -> None:
        if not isinstance(store, KeyValueStore):
            raise AssertionError(f"Store {store.name!r} keeps no values by key.")
        self._store, self._sized, self._headers = store, sized, headers
        self._changed: dict[bytes, bytes | None] = {}  # in this slice
        self._next: list[tuple[int, bytes]] = []
        self._known_to: tuple[int, bytes] | None = None  # None: all are known
        self._bytes = 0
        self.count, self.size, self.newest_ms = 0, 0, -1
        self._look_further(self._counted(see))

    def find(self, key: bytes, stored: bytes | None) -> BufferedChange | None:
        """Return the row of a key. `stored` is what the store had before the slice."""
        row = self._changed.get(key, stored)
        return None if row is None else read_buffered(row)

    def put(self, key: bytes, before: BufferedChange | None, change: BufferedChange, packed: bytes) -> None:
        """Hold back a change. `before` is the row of the key now, whose time it has."""
        self._changed[key] = packed
        if self._sized:
            self.size += change.size(key) - (0 if before is None else before.size(key))
        if before is None:
            self.count += 1
            self._remember((change.time_ms, key))

    def first(self) -> tuple[int, bytes] | None:
        """Return the time and key of the row that leaves next; None if there is none."""
        if not self._next and self.count:
            self._stage(0)
            self._look_further(self._entries())
        return self._next[0] if self._next else None

    def take_first(self) -> tuple[bytes, BufferedChange]:
        """Remove the row that leaves next."""
        _, key = heappop(self._next)
        self._bytes -= _ENTRY_BYTES + len(key)
        row = self._changed[key] if key in self._changed else self._store.get(key)
        change = read_buffered(row or b"")
        self._changed[key] = None
        self.count -= 1
        self.size -= change.size(key) if self._sized else 0
        return key, change

    def flush(self, now_ms: int) -> None:
        """Stage the changes of a slice. The changelog's deletes have this time."""
        self._stage(now_ms)
        self._changed.clear()

    def _stage(self, now_ms: int) -> None:
        if self._changed:
            self._store.put_rows(dict(self._changed))
            self._store.keep_origins({key: self._origin(row, now_ms) for key, row in self._changed.items()})

    def _look_further(self, entries: Iterator[tuple[int, bytes]]) -> None:
        self._next, self._known_to, self._bytes = [], None, 0
        for entry in entries:
            self._remember(entry)

    def _remember(self, entry: tuple[int, bytes]) -> None:
        if self._known_to is not None and entry > self._known_to:
            return
        heappush(self._next, entry)
        self._bytes += _ENTRY_BYTES + len(entry[1])
        if self._bytes > 2 * _MOST_BYTES and len(self._next) > 1:
            self._forget_later_ones()

    def _forget_later_ones(self) -> None:
        self._next.sort()  # a sorted list is a heap
        while self._bytes > _MOST_BYTES and len(self._next) > 1:
            self._bytes -= _ENTRY_BYTES + len(self._next.pop()[1])
        self._known_to = self._next[-1]

    def _entries(self) -> Iterator[tuple[int, bytes]]:
        with self._store.all() as rows:
            for key, row in rows:
                yield TIMESTAMP.unpack_from(row, len(row) - TIMESTAMP.size)[0], key

    def _counted(self, see: Callable[[bytes], None]) -> Iterator[tuple[int, bytes]]:
        """Yield the entries, and count them."""
        with self._store.all() as rows:
            for key, row in rows:
                change = read_buffered(row)
                see(key)
                self.count += 1
                self.size += change.size(key) if self._sized else 0
                self.newest_ms = max(self.newest_ms, change.timestamp_ms)
                yield change.time_ms, key

    def _origin(self, row: bytes | None, now_ms: int) -> bytes:
        return origin(now_ms, ()) if row is None else origin(TIMESTAMP.unpack_from(row)[0], self._headers)
