"""Changes and rows that are held back, in a key-value store (`stateline.serde.buffered_change`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stateline.log.interface import Headers
from stateline.processing.changelog import BUFFER_VERSION, origin
from stateline.processing.operators.leaving_rows import Leaving, LeavingRows
from stateline.serde.buffered_change import BufferedChange, read_buffered
from stateline_store import KeyValueStore, TransactionalStore
from stateline_store.rows.timestamped_rows import TIMESTAMP


class BufferedChanges:
    """One task's, for one thread. Only this writes the store. `size` is in bytes, 0 unless it is `sized`. `headers` are
    those of changelog records. `see` is called with the key of each row that is there at first. Rows leave by their
    times, then by their keys."""

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
        self._leaving = LeavingRows(self._entries, is_empty=True)
        self.count, self.size, self.newest_ms = 0, 0, -1
        self._leaving.add(self._counted(see))

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
            self._leaving.add(((change.time_ms, key),))

    def first(self) -> Leaving | None:
        """Return the time and key of the row that leaves next; None if there is none."""
        return self._leaving.first()

    def take_first(self) -> tuple[bytes, BufferedChange]:
        """Remove the row that `first` has returned."""
        key = self._leaving.pop()
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

    def _entries(self, from_ms: int) -> Iterator[Leaving]:
        """Yield all entries: the store is in the order of keys."""
        del from_ms
        self._stage(0)
        with self._store.all() as rows:
            for key, row in rows:
                yield TIMESTAMP.unpack_from(row, len(row) - TIMESTAMP.size)[0], key

    def _counted(self, see: Callable[[bytes], None]) -> Iterator[Leaving]:
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
