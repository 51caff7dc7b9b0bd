"""KnownKeys: a set of keys that forgets some of them, in 9 to 18 bytes a key.

A table of 64-bit hashes, one in each slot. A key takes the slot of its hash from another key, which is forgotten. Two
keys of one hash are taken for one: one pair in 2^64.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping

_LEAST_SLOTS, _MOST_SLOTS = 1 << 10, 1 << 22  # 32 MiB
_EMPTY = -1  # no hash in Python has this value


class KnownKeys:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._slots = array("q", [_EMPTY]) * _LEAST_SLOTS
        self._used = 0

    def unknown(self, rows: Mapping[bytes, bytes | None], least: bytes) -> list[bytes]:
        """Return the keys of these rows that are not in the set, or whose row is less than this."""
        slots, mask = self._slots, len(self._slots) - 1
        return [key for key, row in rows.items() if slots[(at := hash(key)) & mask] != at or row < least]  # type: ignore[operator]

    def add(self, keys: Iterable[bytes]) -> None:
        """Add these keys."""
        slots, mask = self._slots, len(self._slots) - 1
        hashes = [*map(hash, keys)]
        self._used += [slots[at & mask] for at in hashes].count(_EMPTY)
        for at in hashes:
            slots[at & mask] = at
        if self._used > len(slots) * 3 // 5 and len(slots) < _MOST_SLOTS:
            self._grow(4 if self._used > len(slots) * 9 // 10 else 2)

    def remove(self, keys: Iterable[bytes]) -> None:
        """Forget these keys."""
        slots, mask = self._slots, len(self._slots) - 1
        for at in map(hash, keys):
            if slots[at & mask] == at:
                slots[at & mask] = _EMPTY
                self._used -= 1

    def _grow(self, times: int) -> None:
        slots = array("q", [_EMPTY]) * min(times * len(self._slots), _MOST_SLOTS)
        mask = len(slots) - 1
        for at in self._slots:
            if at != _EMPTY:
                slots[at & mask] = at
        self._slots, self._used = slots, len(slots) - slots.count(_EMPTY)
