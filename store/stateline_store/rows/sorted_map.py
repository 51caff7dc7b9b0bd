"""SortedMap: a dict of bytes that can also be scanned in key order, cheaply between writes.

Strategy: writes go to the dict, which keeps its keys in the order in which they came. The first scan after them takes
those that came last and lets timsort merge them into the keys that are sorted already, so that interleaved writes and
scans cost one merge, not one sort. A scan pins the version that it reads; the first write after it copies that
version, if a scan of it is still open.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TypeVar

from stateline_store.rows.segments import SegmentRange
from stateline_store.rows.suffixed_rows import SuffixedRange, by_key, by_key_down
from stateline_store.scan import EVERY_KEY, FIRST_CHUNK, LARGEST_CHUNK, KeyRange, Scan

MaybeRow = tuple[bytes, bytes | None]
Row = TypeVar("Row")


class SortedVersion:
    """Rows, and their keys in order: of all rows but the newest, unless some were `removed` since."""

    __slots__ = ("keys", "pins", "removed", "rows")

    def __init__(self, rows: dict[bytes, bytes | None], keys: list[bytes]) -> None:
        self.rows = rows
        self.keys = keys
        self.removed = False
        self.pins = 0

    def sort(self) -> None:
        if self.removed:
            keys = [key for key in self.keys if key in self.rows]
            known = set(keys)  # what was removed and came again is among them, wherever it stands in the rows
            keys += [key for key in self.rows if key not in known]
        elif len(self.rows) > len(self.keys):
            keys = [*self.keys, *islice(reversed(self.rows), len(self.rows) - len(self.keys))]
        else:
            return
        keys.sort()
        self.keys, self.removed = keys, False  # together: what breaks off before has changed nothing


class SortedMap:
    """Bytes → bytes or None (a tombstone, a value like any other here). Not thread-safe."""

    __slots__ = ("_version",)

    def __init__(self) -> None:
        self._version = SortedVersion({}, [])

    @property
    def rows(self) -> dict[bytes, bytes | None]:
        """The present rows, for reading only, until the next write."""
        return self._version.rows

    def update(self, rows: dict[bytes, bytes | None]) -> None:
        """Add these rows, over the existing ones."""
        self._writable().rows.update(rows)

    def remove(self, keys: Iterable[bytes]) -> None:
        """Remove these keys, also absent ones."""
        version = self._writable()
        for key in keys:
            if key in version.rows:
                del version.rows[key]
                version.removed = True

    def clear(self) -> None:
        """Remove everything. Open scans continue."""
        self._version = SortedVersion({}, [])

    def scan(self, keys: KeyRange | SegmentRange = EVERY_KEY, *, reverse: bool = False) -> Scan[MaybeRow]:
        """Scan the rows of this range in key order, as they are now."""
        version, names, low, high = self._pinned(keys)
        chunks = primed(_chunks(version, names, low, high, reverse))
        if isinstance(keys, SuffixedRange):
            chunks = by_key_down(chunks, keys) if reverse else by_key(chunks, partial(_between, version, names), keys)
        return Scan.of_chunks(chunks)

    def _pinned(self, keys: KeyRange | SegmentRange) -> tuple[SortedVersion, list[bytes], int, int]:
        """Pin the rows of this range as they are now: a version, and keys in order with the part of them inside the
        range. Give the pin back."""
        version = self._version
        version.sort()
        if isinstance(keys, SegmentRange):
            names = keys.of_sorted(version.keys)
            low, high = 0, len(names)
        else:
            names = version.keys
            low = bisect_left(names, keys.start)
            high = len(names) if keys.end is None else bisect_left(names, keys.end, low)
        version.pins += 1
        return version, names, low, high

    def _writable(self) -> SortedVersion:
        version = self._version
        if version.pins:
            version.sort()
            version = self._version = SortedVersion(dict(version.rows), list(version.keys))
        return version


def _chunks(
    version: SortedVersion, keys: list[bytes], low: int, high: int, reverse: bool
) -> Generator[list[MaybeRow], None, None]:
    rows, size = version.rows, FIRST_CHUNK
    try:
        yield []  # `primed`
        while low < high:
            first, last = (max(low, high - size), high) if reverse else (low, min(high, low + size))
            chunk = [(key, rows[key]) for key in keys[first:last]]
            yield chunk[::-1] if reverse else chunk
            low, high = (low, first) if reverse else (last, high)
            size = min(size * 4, LARGEST_CHUNK)
    finally:
        version.pins -= 1


def _between(version: SortedVersion, names: list[bytes], keys: KeyRange) -> Iterator[list[MaybeRow]]:
    rows = version.rows
    low = bisect_left(names, keys.start)
    high = len(names) if keys.end is None else bisect_left(names, keys.end, low)
    for at in range(low, high, LARGEST_CHUNK):
        yield [(key, rows[key]) for key in names[at : min(at + LARGEST_CHUNK, high)]]


def primed(chunks: Generator[list[Row], None, None]) -> Generator[list[Row], None, None]:
    """Yield these chunks after an empty one, which starts the generator. A started generator gives its pin back when it
    is closed, also before its first row is taken."""
    next(chunks)
    return chunks
