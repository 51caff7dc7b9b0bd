"""KnownKeys: a set of keys that forgets some of them when it is full, in 10 to 20 bytes a key.

A table of 64-bit hashes. A hash has three places. If all are taken, it takes the first one, and the hash there moves on
to its next place, and so on (a cuckoo table). Two keys of one hash are taken for one: one pair in 2^64.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

_LEAST_SLOTS, _MOST_SLOTS = 1 << 10, 1 << 22  # 32 MiB
_SHIFTS = (0, 21, 42)  # of the bits of a hash that are its places
_MOST_MOVES = 50
_EMPTY = -1  # no hash in Python has this value


class KnownKeys:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._slots = array("q", [_EMPTY]) * _LEAST_SLOTS
        self._used = 0

    def unknown(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return those of these keys that are not in the set. It looks at most of them once, in 0.1 microseconds."""
        slots, mask = self._slots, len(self._slots) - 1
        left = [key for key in keys if slots[(at := hash(key)) & mask] != at]
        return [key for key in left if slots[(at := hash(key)) >> 21 & mask] != at and slots[at >> 42 & mask] != at]

    def add(self, keys: Sequence[bytes]) -> None:
        """Add these keys."""
        while self._used + len(keys) > len(self._slots) * 4 // 5 and len(self._slots) < _MOST_SLOTS:
            old, self._used = self._slots, 0
            self._slots = array("q", [_EMPTY]) * (2 * len(old))
            self._add(each for each in old if each != _EMPTY)
        self._add(map(hash, keys))

    def remove(self, keys: Iterable[bytes]) -> None:
        """Forget these keys."""
        slots, mask = self._slots, len(self._slots) - 1
        for at in map(hash, keys):
            for shift in _SHIFTS:  # it may be in several places
                if slots[place := at >> shift & mask] == at:
                    slots[place] = _EMPTY
                    self._used -= 1

    def _add(self, hashes: Iterable[int]) -> None:
        slots, mask, used = self._slots, len(self._slots) - 1, 0
        most = _MOST_MOVES if self._used < len(slots) * 9 // 10 else 1  # in a full table nearly all moves are in vain
        for at in hashes:
            held = slots[place := at & mask]
            if held == _EMPTY:
                slots[place] = at
                used += 1
            elif held != at:
                used += self._move(at, place, most)
        self._used += used

    def _move(self, at: int, place: int, most: int) -> int:
        """Put a hash in this place, and move others on, at most so often. Returns how many more places are taken."""
        slots, mask = self._slots, len(self._slots) - 1
        for _ in range(most):
            first, second, third = at & mask, at >> 21 & mask, at >> 42 & mask
            if at in (slots[first], slots[second], slots[third]):
                return 0
            for free in (second, third, first):
                if slots[free] == _EMPTY:
                    slots[free] = at
                    return 1
            place = second if place == first else third if place == second else first
            at, slots[place] = slots[place], at
        return 0
