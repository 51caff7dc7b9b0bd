"""ExpiryIndex: the times at which keys may expire, in memory, one entry a key, made again when a store is opened.

An entry is a hint, and the row counts. So another put of a key costs nothing here. The key is looked at when its first
timestamp is due, and comes back with its present timestamp.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable


class ExpiryIndex:
    """Keys by timestamp, in milliseconds. Not thread-safe."""

    def __init__(self, entries: Iterable[tuple[int, bytes]] = ()) -> None:
        """Index these (timestamp, key), each key once."""
        self._heap = list(entries)
        heapq.heapify(self._heap)
        self._earliest = {key: timestamp for timestamp, key in self._heap}

    def __len__(self) -> int:
        return len(self._earliest)

    def add(self, key: bytes, timestamp: int) -> None:
        """Have the key looked at when this timestamp is due, unless it is due before."""
        known = self._earliest.get(key)
        if known is None or timestamp < known:
            self._earliest[key] = timestamp
            heapq.heappush(self._heap, (timestamp, key))

    def take(self, before: int, most: int) -> list[tuple[int, bytes]]:
        """Take out and return (timestamp, key) of up to `most` keys with timestamps before this one."""
        taken: list[tuple[int, bytes]] = []
        while self._heap and self._heap[0][0] < before and len(taken) < most:
            entry = heapq.heappop(self._heap)
            if self._earliest.get(entry[1]) == entry[0]:  # else it has moved to an earlier one, and was looked at
                del self._earliest[entry[1]]
                taken.append(entry)
        return taken
