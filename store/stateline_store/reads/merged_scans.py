"""Merges several scans of stored rows into one, in an order that each of them has."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Sequence
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

from stateline_store.scan import Scan, StoreIterator

Row = TypeVar("Row")


class ScanSource(NamedTuple, Generic[Row]):
    """A scan, and a function of its chunks: it returns rows in the same order, fewer or none if some are left out."""

    scan: StoreIterator
    shown: Callable[[list[tuple[bytes, bytes]]], list[Row]]


class _Part(Generic[Row]):
    """One source: its unread rows, and the end of what was read, None for the end of the scan."""

    __slots__ = ("_chunks", "_end_of", "_shown", "end", "rows")

    def __init__(self, source: ScanSource[Row], end_of: Callable[[bytes], Any]) -> None:
        self._chunks, self._shown, self._end_of = source.scan.chunks(), source.shown, end_of
        self.rows: list[Row] = []
        self.end: Any = None

    def read(self) -> bool:
        """Read a chunk. Returns False for an empty one, which leaves `end` unchanged."""
        chunk = next(self._chunks, None)
        if chunk:
            self.rows += self._shown(chunk)
            self.end = self._end_of(chunk[-1][0])
        elif chunk is None:
            self.end = None
        return chunk is None or bool(chunk)

    def take(self, count: int) -> list[Row]:
        taken, self.rows = self.rows[:count], self.rows[count:]
        return taken


def merged(
    sources: Sequence[ScanSource[Row]], order: Callable[[Row], Any], end_of: Callable[[bytes], Any], *, reverse: bool
) -> Scan[Row]:
    """Scan the rows of all these scans by `order`, down if `reverse`. `end_of` is the order of a stored key. A chunk of
    each is in memory. Closing it closes them all.

    A scan that shows few of its rows gives empty chunks, so that the reader can let others run in between.
    """
    return Scan.of_chunks(_merged(sources, order, end_of, reverse))


def _merged(
    sources: Sequence[ScanSource[Row]], order: Callable[[Row], Any], end_of: Callable[[bytes], Any], reverse: bool
) -> Generator[list[Row], None, None]:
    try:
        if len(sources) == 1:
            for chunk in sources[0].scan.chunks():
                yield sources[0].shown(chunk)
            return
        parts = [_Part(source, end_of) for source in sources]
        for part in parts:
            while not part.read():
                yield []
        while open_ends := [part.end for part in parts if part.end is not None]:
            # Behind this one something may come that was not read yet.
            end = max(open_ends) if reverse else min(open_ends)
            yield _up_to(parts, order, end, reverse)
            for part in parts:
                if part.end == end:
                    part.read()
        yield sorted(chain.from_iterable(part.rows for part in parts), key=order, reverse=reverse)
    finally:
        for source in sources:
            source.scan.close()


def _up_to(parts: Sequence[_Part[Row]], order: Callable[[Row], Any], end: Any, reverse: bool) -> list[Row]:

    def is_behind(row: Row) -> bool:
        return bool(order(row) < end if reverse else order(row) > end)

    taken = [part.take(bisect_left(part.rows, True, key=is_behind)) for part in parts if part.rows]
    return taken[0] if len(taken) == 1 else sorted(chain.from_iterable(taken), key=order, reverse=reverse)
