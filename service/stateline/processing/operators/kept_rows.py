"""The rows of one side of a join of streams: in its window store, and the newest of them in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import TypeAlias

from stateline.log.interface import Record
from stateline.processing.changelog import origin
from stateline_store import TransactionalStore, WindowStore

_TIME = itemgetter(0)
_MOST_BYTES = 8 * 1024 * 1024  # of rows that are remembered of one side and partition
_ROW_BYTES = 180  # of a remembered row besides its value: a tuple, two numbers, its share of the dict

_Kept: TypeAlias = tuple[int, bytes]  # timestamp and value


class KeptRows:
    """The rows of one side: its window store, and by key, in the order of time, those of memory. These are all rows
    from `_known_from_ms` on, and the older ones of the keys in `_whole`. Only the operator writes the store, and after
    a rollback there is a new operator."""

    def __init__(self, store: TransactionalStore, *, repeats: bool) -> None:
        if not isinstance(store, WindowStore):
            raise AssertionError(f"Store {store.name!r} keeps no windows.")
        self._store = store
        self._rows: dict[bytes, list[_Kept]] = {}
        self._whole: set[bytes] = set()
        self._added: list[tuple[bytes, int, bytes | None, Record]] = []
        self._bytes = 0
        self._known_from_ms = store.stream_time_ms + 1
        self.stream_time_ms = -1 if repeats else store.stream_time_ms

    def between(self, key: bytes, from_ms: int, to_ms: int) -> Sequence[_Kept]:
        """Return the rows of this key and these times, both included, that the retention does not hide, by time."""
        first_ms = max(from_ms, self._oldest_ms)
        if first_ms < self._known_from_ms and key not in self._whole:
            self._read(key)
        rows = self._rows.get(key)
        if rows is None:
            return ()
        if rows[0][0] >= first_ms and rows[-1][0] <= to_ms:
            return rows
        return rows[bisect_left(rows, first_ms, key=_TIME) : bisect_right(rows, to_ms, key=_TIME)]

    def add(self, key: bytes, at_ms: int, value: bytes | None, record: Record) -> None:
        """Keep a row, and find it from now on. `flush` puts it into the store. Without a value it only takes a number
        there."""
        self._added.append((key, at_ms, value, record))
        if value is None:
            return
        self.stream_time_ms = max(self.stream_time_ms, at_ms)
        if at_ms < self._known_from_ms and key not in self._whole:
            return
        rows = self._rows.get(key)
        if rows is None:
            rows = self._rows[key] = []
            self._bytes += len(key)
        if rows and rows[-1][0] > at_ms:
            rows.insert(bisect_right(rows, at_ms, key=_TIME), (at_ms, value))
        else:
            rows.append((at_ms, value))
        self._bytes += _ROW_BYTES + len(value)

    def flush(self) -> None:
        """Put added rows into the store, and forget some if too many are remembered."""
        if self._added:
            added, self._added = self._added, []
            stored = self._store.put_duplicates((key, at_ms, value) for key, at_ms, value, _ in added)
            origins = {
                self._store.changelog_key(name): origin(at_ms, record.headers)
                for name, (_, at_ms, _, record) in zip(stored, added, strict=True)
                if record.headers
            }
            if origins:
                self._store.keep_origins(origins)
        if self._bytes > _MOST_BYTES:
            self._forget()

    @property
    def _oldest_ms(self) -> int:
        return self.stream_time_ms - self._store.segments.retention_ms + 1

    def _read(self, key: bytes) -> None:
        """Remember all rows of this key."""
        self.flush()
        with self._store.kept(key) as found:  # input that comes again sees rows that the store hides already
            rows = list(found)
        self._whole.add(key)
        if rows:
            self._rows[key] = rows
        self._bytes += len(key) + sum(_ROW_BYTES + len(value) for _, value in rows) + _ROW_BYTES

    def _forget(self) -> None:
        """Forget rows that the retention hides, and the older half of the others."""
        times = sorted(at_ms for rows in self._rows.values() for at_ms, _ in rows)
        later_half_ms = times[len(times) // 2] + 1 if times else 0
        self._known_from_ms = max(self._known_from_ms, self._oldest_ms, later_half_ms)
        live = ((key, rows[bisect_left(rows, self._known_from_ms, key=_TIME) :]) for key, rows in self._rows.items())
        self._rows, self._whole = {key: rows for key, rows in live if rows}, set()
        self._bytes = sum(map(len, self._rows))
        self._bytes += sum(_ROW_BYTES + len(value) for rows in self._rows.values() for _, value in rows)
