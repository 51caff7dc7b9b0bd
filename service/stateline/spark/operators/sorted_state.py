"""Sorted entries of one key. A change costs the same for a few entries and for a hundred thousand.

An entry is two numbers, which order it, and a text. Up to `LEAF` entries are one row of a `ValueState`, so that most
keys cost one read and one write. More entries are in **leaves**, rows of a `MapState`, and the `ValueState` has the
first numbers of each leaf. A change reads and writes that index and one leaf. Checkpoints keep this format
(docs/formats/pipelines.md): never change.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessorHandle, ValueState

from stateline.spark.operators import state_requests

LEAF = 128  # entries
_COLUMNS = "first array<bigint>, second array<bigint>, text array<string>"
_LAST = 1 << 64  # beyond each number

Place = tuple[int, int]
Entry = tuple[int, int, str | None]


class SortedState:
    """The named state of a processor that keeps entries of each key."""

    def __init__(self, handle: StatefulProcessorHandle, name: str) -> None:
        self.root: ValueState = handle.getValueState(name, f"{_COLUMNS}, leaves array<bigint>")
        self.leaves: MapState = handle.getMapState(f"{name}_leaves", "leaf bigint", _COLUMNS)

    def entries(self) -> SortedEntries:
        return SortedEntries(self)


@dataclass
class _Leaf:
    number: int
    first: Place
    entries: list[Entry] | None  # None: not read yet
    is_changed: bool = False


class SortedEntries:
    """The entries of one key. `save` keeps changes."""

    def __init__(self, state: SortedState) -> None:
        self._state = state
        self._kept = state.root.get()
        first, second, text, numbers = self._kept or ((), (), (), ())
        self._leaves: list[_Leaf] = []
        if numbers:
            self._leaves = [_Leaf(*each, None) for each in zip(numbers, zip(first, second, strict=True), strict=True)]
        elif first:
            self._leaves = [_Leaf(0, (first[0], second[0]), list(zip(first, second, text, strict=True)))]
        self._next_number = max(numbers, default=0) + 1
        self._gone: list[int] = []

    @property
    def first(self) -> Place | None:
        """Return the first entry's numbers, or None."""
        return self._leaves[0].first if self._leaves else None

    @property
    def second(self) -> Place | None:
        """Return the second entry's numbers, or None."""
        if not self._leaves:
            return None
        entries = self._read(self._leaves[0])
        if len(entries) > 1:
            return entries[1][:2]
        return self._leaves[1].first if len(self._leaves) > 1 else None

    def up_to(self, first: int) -> Entry | None:
        """Return the last entry whose first number is not larger, or None."""
        found = bisect_right(self._leaves, (first, _LAST), key=_first_of_leaf) - 1
        if found < 0:
            return None
        entries = self._read(self._leaves[found])
        return entries[bisect_right(entries, (first, _LAST), key=_place) - 1]

    def put(self, entry: Entry) -> None:
        """Add an entry, after those with the same numbers."""
        if not self._leaves:
            self._leaves.append(_Leaf(0, entry[:2], []))
        number = max(bisect_right(self._leaves, entry[:2], key=_first_of_leaf) - 1, 0)
        entries = self._changing(number)
        insort_right(entries, entry, key=_place)
        if len(entries) > LEAF:
            # Entries in order fill leaves. Others split a leaf in halves.
            half = LEAF if entries[-1] is entry else LEAF // 2
            self._leaves.insert(number + 1, _Leaf(self._next_number, entries[half][:2], entries[half:], True))
            self._next_number += 1
            del entries[half:]
        self._leaves[number].first = entries[0][:2]

    def remove(self, place: Place) -> Entry:
        """Remove and return the entry with these numbers. It must exist once."""
        number = bisect_right(self._leaves, place, key=_first_of_leaf) - 1
        entries = self._changing(number)
        return self._taken(number, bisect_left(entries, place, key=_place))

    def remove_first(self) -> Entry:
        """Remove and return the first entry. It must exist."""
        self._changing(0)
        return self._taken(0, 0)

    def save(self) -> None:
        leaves = self._leaves
        root: tuple[Any, ...]
        if len(leaves) == 1 and leaves[0].entries is not None:
            self._gone.append(leaves[0].number)
            root = (*_columns(leaves[0].entries), [])
            leaves = []
        else:
            firsts = [[leaf.first[number] for leaf in leaves] for number in (0, 1)]
            root = (*firsts, [], [leaf.number for leaf in leaves])
        stored = set(self._kept[3]) if self._kept is not None else set()
        changes: dict[Any, Any] = {(number,): None for number in self._gone if number in stored}
        changes |= {(leaf.number,): _columns(leaf.entries) for leaf in leaves if leaf.is_changed and leaf.entries}
        state_requests.change(self._state.leaves, changes)
        if not self._leaves:
            self._state.root.clear()
        elif root != self._kept:
            self._state.root.update(root)

    def _read(self, leaf: _Leaf) -> list[Entry]:
        if leaf.entries is None:
            (found,) = state_requests.entries(self._state.leaves, [(leaf.number,)])
            assert found is not None
            leaf.entries = list(zip(*found, strict=True))
        return leaf.entries

    def _changing(self, number: int) -> list[Entry]:
        self._leaves[number].is_changed = True
        return self._read(self._leaves[number])

    def _taken(self, number: int, place: int) -> Entry:
        leaf = self._leaves[number]
        entries = self._read(leaf)
        taken = entries.pop(place)
        if entries:
            leaf.first = entries[0][:2]
        else:
            self._gone.append(leaf.number)
            del self._leaves[number]
        return taken


def _place(entry: Entry) -> Place:
    return entry[:2]


_first_of_leaf = attrgetter("first")


def _columns(entries: Sequence[Entry]) -> tuple[list[int], list[int], list[str | None]]:
    return [entry[0] for entry in entries], [entry[1] for entry in entries], [entry[2] for entry in entries]
