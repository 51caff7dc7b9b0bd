"""SortedMap: a dict of bytes that can also be scanned in key order, cheaply between writes.

Strategy: writes go to the dict, and new keys to an unsorted tail. The first scan after them sorts the tail
and lets timsort merge the two runs, so that interleaved writes and scans cost one merge, not one sort. A scan
pins the version that it reads; the first write after it copies that version, if a scan of it is still open.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterable

from stateline_store.scan import EVERY_KEY, KeyRange, Scan

MaybeRow = tuple[bytes, bytes | None]


class _Version:
    """Rows, their keys in order, and keys not yet in order. `dead` keys are still listed but no longer in
    `rows`.
    """

    __slots__ = ("dead", "keys", "pins", "rows", "tail")

    def __init__(self, rows: dict[bytes, bytes | None], keys: list[bytes]) -> None:
        self.rows = rows
        self.keys = keys
        self.tail: list[bytes] = []
        self.dead: set[bytes] = set()
        self.pins = 0

    def sort(self) -> None:
        if self.tail:
            self.tail.sort()
            self.keys += self.tail
            self.keys.sort()
            self.tail = []
        if self.dead:
            self.keys = [key for key in self.keys if key not in self.dead]
            self.dead = set()


class SortedMap:
    """Bytes → bytes or None (a tombstone, a value like any other here). Not thread-safe."""

    __slots__ = ("_version",)

    def __init__(self) -> None:
        self._version = _Version({}, [])

    @property
    def rows(self) -> dict[bytes, bytes | None]:
        """The rows as they are now: for reading only, and only until the next write."""
        return self._version.rows

    def update(self, rows: dict[bytes, bytes | None]) -> None:
        """Take in these rows, over what is there."""
        version = self._writable()
        known = version.rows
        if not known and not version.dead:
            version.tail = list(rows)
        elif version.dead:
            version.tail += [key for key in rows if key not in known and key not in version.dead]
            version.dead.difference_update(rows)
        else:
            version.tail += [key for key in rows if key not in known]
        known.update(rows)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Take in one row."""
        version = self._writable()
        if key not in version.rows:
            if key in version.dead:
                version.dead.discard(key)
            else:
                version.tail.append(key)
        version.rows[key] = value

    def remove(self, keys: Iterable[bytes]) -> None:
        """Forget these keys; one that is not there is passed over."""
        version = self._writable()
        for key in keys:
            if key in version.rows:
                del version.rows[key]
                version.dead.add(key)

    def clear(self) -> None:
        """Forget everything. Open scans go on."""
        self._version = _Version({}, [])

    def scan(self, keys: KeyRange = EVERY_KEY, *, reverse: bool = False) -> Scan[MaybeRow]:
        """The rows of this range in key order, pinned as they are now."""
        version = self._version
        version.sort()
        low = bisect_left(version.keys, keys.start)
        high = len(version.keys) if keys.end is None else bisect_left(version.keys, keys.end)
        if low >= high:
            return Scan(_nothing())
        version.pins += 1
        return Scan(_rows(version, low, high, reverse))

    def _writable(self) -> _Version:
        version = self._version
        if version.pins:
            version.sort()
            version = self._version = _Version(dict(version.rows), list(version.keys))
        return version


def _rows(version: _Version, low: int, high: int, reverse: bool) -> Generator[MaybeRow, None, None]:
    # A scan dropped before its first row never gets here and leaves its pin: that costs one copy, no more.
    keys, rows = version.keys, version.rows
    try:
        for at in range(high - 1, low - 1, -1) if reverse else range(low, high):
            key = keys[at]
            yield key, rows[key]
    finally:
        version.pins -= 1


def _nothing() -> Generator[MaybeRow, None, None]:
    yield from ()
