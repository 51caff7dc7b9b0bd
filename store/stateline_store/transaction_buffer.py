"""TransactionBuffer: what a store has staged since its last commit, by key.

A staged None is a tombstone: it hides the base's row until the commit deletes it. Reads of the owner merge
the buffer over the base in key order (`merge_over`). Rollback drops everything.

Bytes are counted exactly as ``len(key) + len(value) + ENTRY_OVERHEAD`` per staged key; an overwrite counts
the new entry in place of the old one, so the count shrinks with it.
"""

from __future__ import annotations

import operator
from collections.abc import Generator, Iterable

from stateline_store.errors import InvalidArgumentError
from stateline_store.scan import EVERY_KEY, KeyRange, Scan, StoreIterator
from stateline_store.sorted_map import MaybeRow, SortedMap

# Estimated for 64-bit CPython: two bytes headers (33 each), a dict slot at its usual load (about 50), a
# pointer in the key list (8), rounded up for the allocator's size classes.
ENTRY_OVERHEAD = 130


class TransactionBuffer(SortedMap):
    """Staged puts and deletes: a SortedMap that knows its size. Not thread-safe: the store's owner uses it.

    `rows` may be read directly (`key in buffer.rows` tells a staged delete, whose value is None, from a key
    that is not staged); it is replaced by writes, so take it anew each time.
    """

    __slots__ = ("bytes_staged",)

    def __init__(self) -> None:
        super().__init__()
        self.bytes_staged = 0

    def __len__(self) -> int:
        return len(self._version.rows)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Stage one put, or one delete when the value is None. Raises `InvalidArgumentError` unless both
        are bytes.
        """
        if type(key) is not bytes or (type(value) is not bytes and value is not None):
            raise InvalidArgumentError(f"A row is (bytes, bytes or None), not ({key!r:.60}, {value!r:.60}).")
        # The hot path of processors: what `SortedMap.put` does, in the same breath as the size, without a second call.
        version = self._version
        if version.pins:
            version = self._writable()
        rows = version.rows
        if key in rows:
            old = rows[key]
            self.bytes_staged += (len(value) if value else 0) - (len(old) if old else 0)
        else:
            version.tail.append(key)
            self.bytes_staged += len(key) + (len(value) if value else 0) + ENTRY_OVERHEAD
        rows[key] = value

    def put_all(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Stage many at once; the last of equal keys stays. Stages nothing when one of them is refused."""
        try:
            rows = dict(entries)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"A row is (bytes, bytes or None); nothing was staged: {error}.") from error
        self.take(rows)

    def take(self, rows: dict[bytes, bytes | None]) -> None:
        """Stage these rows, all or (on `InvalidArgumentError`) nothing. The dict is the buffer's from then
        on.
        """
        added = _checked_size(rows)
        staged = self._version.rows
        if staged:
            for key in staged.keys() & rows.keys():
                added -= _size(key, staged[key])
        self.update(rows)
        self.bytes_staged += added

    def clear(self) -> None:
        """Drop everything: a rollback, or a commit that has gone through. Open scans go on."""
        super().clear()
        self.bytes_staged = 0

    def merge_over(self, base: StoreIterator, keys: KeyRange = EVERY_KEY, *, reverse: bool = False) -> StoreIterator:
        """The base's rows with the staged ones over them, in key order. Closing it closes the base.

        `base` must cover the same range in the same direction.
        """
        return Scan(_merge(self.scan(keys, reverse=reverse), base, reverse)) if self._version.rows else base


def _merge(staged: Scan[MaybeRow], base: StoreIterator, reverse: bool) -> Generator[tuple[bytes, bytes], None, None]:
    comes_before = operator.gt if reverse else operator.lt
    with staged, base:
        row = next(base, None)
        for key, value in staged:
            while row is not None and comes_before(row[0], key):
                yield row
                row = next(base, None)
            if row is not None and row[0] == key:
                row = next(base, None)
            if value is not None:
                yield key, value
        if row is not None:
            yield row
            yield from base


def _size(key: bytes, value: bytes | None) -> int:
    return len(key) + (0 if value is None else len(value)) + ENTRY_OVERHEAD


def _checked_size(rows: dict[bytes, bytes | None]) -> int:
    # Joining checks each type in C, far quicker than a loop, and yields the lengths that are needed anyway.
    try:
        keys = len(b"".join(rows))
        values = len(b"".join([value for value in rows.values() if value is not None]))
    except TypeError as error:
        raise InvalidArgumentError(f"A row is (bytes, bytes or None); nothing was staged: {error}.") from error
    return keys + values + ENTRY_OVERHEAD * len(rows)
