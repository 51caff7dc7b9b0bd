"""Which rows of a store leave next, by time: in memory as far as they fit, then looked for in the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import TypeAlias

_MOST_BYTES = 8 * 1024 * 1024  # of what is remembered of one store and partition; twice that for a moment
_ENTRY_BYTES = 190  # of an entry besides its key's: a tuple, a number, the head of the key, places in a heap and a set

Leaving: TypeAlias = tuple[int, bytes]
"""The time at which a row leaves, and its key."""

_NONE: Leaving = (-(2**65), b"")
_ALL: Leaving = (2**65, b"")


class LeavingRows:
    """One task's, for one thread. It remembers the rows that leave next. If they take too much memory, it forgets the
    later ones, and looks through the store when the others have left.

    `look` gives the rows of the store that leave at a time or later, and may give others. Rows before `known_from_ms`
    have left. `is_empty`: the store has no rows yet.
    """

    def __init__(
        self, look: Callable[[int], Iterable[Leaving]], *, known_from_ms: int | None = None, is_empty: bool = False
    ) -> None:
        self._look, self._bytes = look, 0
        self._heap: list[Leaving] = []
        self._there: set[Leaving] = set()
        self._unknown = _ALL if is_empty else _NONE if known_from_ms is None else (known_from_ms, b"")

    @property
    def unknown_from_ms(self) -> int:
        """The time from which rows may be in the store alone."""
        return self._unknown[0]

    def has(self, row: Leaving) -> bool | None:
        """Whether this row is there, None if only the store knows."""
        return row in self._there if row < self._unknown else None

    def add(self, rows: Iterable[Leaving]) -> None:
        """Take up rows that the store has now."""
        there, heap = self._there, self._heap
        for row in rows:
            if row < self._unknown and row not in there:
                there.add(row)
                heappush(heap, row)
                self._bytes += _ENTRY_BYTES + len(row[1])
                if self._bytes > 2 * _MOST_BYTES and len(heap) > 1:
                    self._forget_later_ones()

    def drop(self, row: Leaving) -> None:
        """Forget a row that the store has no more."""
        if row in self._there:
            self._there.remove(row)
            self._bytes -= _ENTRY_BYTES + len(row[1])

    def first(self) -> Leaving | None:
        """Return the row that leaves next, None if there is none."""
        while (row := self._head()) is None and self._unknown != _ALL:
            self._look_further(_NONE[0])
        return row

    def pop(self) -> bytes:
        """Forget the row that `first` has returned, and return its key."""
        self.drop(row := heappop(self._heap))
        return row[1]

    def take(self, up_to_ms: int) -> list[Leaving]:
        """Return the rows that leave up to this time, in order, and forget them."""
        taken = list[Leaving]()
        while (row := self._head()) is not None and row[0] <= up_to_ms:
            self.drop(row)
            taken.append(row)
        return taken + self._look_further(up_to_ms) if self._unknown[0] <= up_to_ms else taken

    def _head(self) -> Leaving | None:
        while self._heap and self._heap[0] not in self._there:  # it was dropped
            heappop(self._heap)
        return self._heap[0] if self._heap else None

    def _look_further(self, up_to_ms: int) -> list[Leaving]:
        """Remember the next rows of the store. Return those up to this time instead, however many."""
        first, self._unknown = self._unknown, _ALL
        due = list[Leaving]()
        for row in self._look(first[0]):
            if row >= first:
                if row[0] <= up_to_ms:
                    due.append(row)
                else:
                    self.add((row,))
        return sorted(due)

    def _forget_later_ones(self) -> None:
        rows = sorted(self._there)
        while self._bytes > _MOST_BYTES and len(rows) > 1:
            self._unknown = rows.pop()
            self.drop(self._unknown)
        self._heap[:] = rows  # a sorted list is a heap
