"""Keep a store's staged changes since its last commit, by key.

A staged None is a tombstone. It hides the base's row until the commit deletes it. The owner's reads merge the buffer
over the base in key order (`merge_over`). A rollback drops everything. Each staged key counts ``len(key) + len(value) +
ENTRY_OVERHEAD`` bytes. An overwrite counts only the new entry.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Mapping
from operator import itemgetter
from types import NoneType
from typing import Any, TypeAlias

from stateline_store.errors import InvalidArgumentError
from stateline_store.rows.segments import SegmentRange
from stateline_store.rows.sorted_map import SortedMap, SortedVersion, primed
from stateline_store.rows.suffixed_rows import SuffixedRange
from stateline_store.scan import EVERY_KEY, LARGEST_CHUNK, KeyRange, Scan, StoreIterator

# Estimated for 64-bit CPython: two bytes headers (33 each), a dict slot at its usual load (about 50), a
# pointer in the key list (8), rounded up for the allocator's size classes.
ENTRY_OVERHEAD = 130


class TransactionBuffer(SortedMap):
    """Staged puts and deletes, with their size in bytes. Not thread-safe: only the store's owner uses it.

    `rows` may be read directly. A staged delete is a key with the value None. Writes replace `rows`, so read the
    attribute each time.
    """

    __slots__ = ("_undo", "bytes_staged")

    def __init__(self) -> None:
        super().__init__()
        self.bytes_staged = 0
        # Keys put since the savepoint, with their earlier staged value (None: not staged). None without a savepoint.
        self._undo: list[tuple[bytes, tuple[bytes | None] | None]] | None = None

    def __len__(self) -> int:
        return len(self._version.rows)

    @property
    def version(self) -> object:
        """The version that a scan from now on keeps. Each write during an open scan makes another object."""
        return self._version

    def put(self, key: bytes, value: bytes | None) -> None:
        """Stage a put, or a delete for None. Raises `InvalidArgumentError` unless both are bytes."""
        if type(key) is not bytes or (type(value) is not bytes and value is not None):
            raise InvalidArgumentError(f"A row is (bytes, bytes or None), not ({key!r:.60}, {value!r:.60}).")
        version = self._version
        if version.pins:
            version = self._writable()
        rows = version.rows
        if self._undo is not None:
            self._undo.append((key, (rows[key],) if key in rows else None))
        if key in rows:
            old = rows[key]
            self.bytes_staged += (len(value) if value else 0) - (len(old) if old else 0)
        else:
            self.bytes_staged += len(key) + (len(value) if value else 0) + ENTRY_OVERHEAD
        rows[key] = value

    def put_all(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Stage many changes. The last of equal keys counts. If one is refused, nothing is staged."""
        try:
            rows = dict(entries)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"A row is (bytes, bytes or None); nothing was staged: {error}.") from error
        self.take(rows)

    def take(self, rows: dict[bytes, bytes | None]) -> None:
        """Stage these rows. `InvalidArgumentError` stages none. The buffer owns the dict afterwards."""
        added = _checked_size(rows)
        staged = self._version.rows
        if self._undo is not None:
            self._undo += [(key, (staged[key],) if key in staged else None) for key in rows]
        if staged:
            for key in staged.keys() & rows.keys():
                added -= row_bytes(key, staged[key])
        self.update(rows)
        self.bytes_staged += added

    def clear(self) -> None:
        """Drop everything, after a rollback or a commit. Open scans continue."""
        super().clear()
        self.bytes_staged = 0
        self._undo = None

    def savepoint(self) -> None:
        """Set the point that `rollback_to_savepoint` goes back to. An earlier savepoint is forgotten."""
        self._undo = []

    def rollback_to_savepoint(self) -> None:
        """Drop the changes since `savepoint`, and forget it. Nothing happens without one."""
        undo, self._undo = self._undo or [], None
        first = dict(reversed(undo))  # the value before the first of several puts of a key
        self.bytes_staged -= sum(row_bytes(key, self._version.rows[key]) for key in first)
        self.remove([key for key, before in first.items() if before is None])
        kept = {key: before[0] for key, before in first.items() if before is not None}
        self.update(kept)
        self.bytes_staged += rows_bytes(kept)

    def merge_over(
        self, base: StoreIterator, keys: KeyRange | SegmentRange = EVERY_KEY, *, reverse: bool = False
    ) -> StoreIterator:
        """Scan the base's rows with the staged ones over them, in key order. Closing it closes the base. `base` must
        cover the same range in the same direction."""
        if not self._version.rows:
            return base
        version, names, low, high = self._pinned(keys)
        if not isinstance(keys, SuffixedRange):
            return Scan.of_chunks(primed(_merged(version, names, low, high, base, reverse, None)))
        names = keys.sorted(names[low:high])
        return Scan.of_chunks(primed(_merged(version, names, 0, len(names), base, reverse, keys.order)))


Rows: TypeAlias = list[tuple[bytes, bytes]]
_Order: TypeAlias = Callable[[bytes], Any] | None
_key = itemgetter(0)


def _merged(
    version: SortedVersion, keys: list[bytes], low: int, high: int, base: StoreIterator, reverse: bool, order: _Order
) -> Generator[Rows, None, None]:
    """Yield each chunk of the base with the staged rows before its end, then the other staged rows. `order` of None
    orders by the keys themselves."""
    rows = version.rows
    try:
        yield []  # `primed`
        for chunk in base.chunks():
            if not chunk:
                continue
            last = chunk[-1][0] if order is None else order(chunk[-1][0])
            if reverse:
                after, high = high, bisect_left(keys, last, low, high, key=order)
                yield from _overlaid(chunk, keys[high:after], rows, reverse, order)
            else:
                before, low = low, bisect_right(keys, last, low, high, key=order)
                yield from _overlaid(chunk, keys[before:low], rows, reverse, order)
        rest = keys[low:high][::-1] if reverse else keys[low:high]
        for at in range(0, len(rest), LARGEST_CHUNK):
            yield [(key, value) for key in rest[at : at + LARGEST_CHUNK] if (value := rows[key]) is not None]
    finally:
        base.close()
        version.pins -= 1


def _overlaid(
    chunk: Rows, keys: list[bytes], rows: dict[bytes, bytes | None], reverse: bool, order: _Order
) -> Generator[Rows, None, None]:
    """Merge the staged rows of `keys`, which ascend, into the chunk: in pieces when there are many, because a reader of
    a few rows must not wait for all staged ones."""
    if reverse:
        chunk.reverse()
    while len(keys) > LARGEST_CHUNK:
        if reverse:
            keys, some = keys[:-LARGEST_CHUNK], keys[-LARGEST_CHUNK:]
            at = _place(chunk, some[0], order)
            chunk, piece = chunk[:at], chunk[at:]
        else:
            some, keys = keys[:LARGEST_CHUNK], keys[LARGEST_CHUNK:]
            at = _place(chunk, some[-1], order, behind=True)
            piece, chunk = chunk[:at], chunk[at:]
        _overlay(piece, some, rows, order)
        yield piece[::-1] if reverse else piece
    _overlay(chunk, keys, rows, order)
    yield chunk[::-1] if reverse else chunk


def _overlay(chunk: Rows, keys: list[bytes], rows: dict[bytes, bytes | None], order: _Order) -> None:
    """Put the staged rows of `keys` into the ascending rows of `chunk`, in place."""
    at = 0
    for key in keys:
        at = _place(chunk, key, order, at)
        value = rows[key]
        there = at < len(chunk) and chunk[at][0] == key
        if value is None:
            if there:
                del chunk[at]
        elif there:
            chunk[at] = (key, value)
        else:
            chunk.insert(at, (key, value))


def _place(chunk: Rows, key: bytes, order: _Order, low: int = 0, *, behind: bool = False) -> int:
    bisect = bisect_right if behind else bisect_left
    if order is None:
        return bisect(chunk, key, low, key=_key)
    return bisect(chunk, order(key), low, key=lambda row: order(row[0]))


def row_bytes(key: bytes, value: bytes | None) -> int:
    """Return the counted bytes of a row in memory. A value of None is a tombstone."""
    return len(key) + (0 if value is None else len(value)) + ENTRY_OVERHEAD


def rows_bytes(rows: Mapping[bytes, bytes | None]) -> int:
    """Return the counted bytes of all rows."""
    values: Iterable[bytes] = filter(None, rows.values())
    return sum(map(len, rows)) + sum(map(len, values)) + ENTRY_OVERHEAD * len(rows)


def _checked_size(rows: dict[bytes, bytes | None]) -> int:
    kinds = {*map(type, rows)}, {*map(type, rows.values())}  # in C, far quicker than a loop
    if not (kinds[0] <= {bytes} and kinds[1] <= {bytes, NoneType}):
        strange = next(
            row for row in rows.items() if type(row[0]) is not bytes or type(row[1]) not in (bytes, NoneType)
        )
        raise InvalidArgumentError(f"A row is (bytes, bytes or None); nothing was staged, because of {strange!r:.100}.")
    return rows_bytes(rows)
