"""When keys may expire: in memory, one entry a key, made anew when a store is opened.

An entry is a hint: the row says what holds. So what is put again costs nothing here; its key is looked at when the
first timestamp that it had is due, and comes back with the one that it has then.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable


class ExpiryIndex:
    """Keys by timestamp, in milliseconds. Not thread-safe."""

    def __init__(self, entries: Iterable[tuple[int, bytes]] = ()) -> None:
        """`entries` are (timestamp, key), each key once."""
        self._heap = list(entries)
        heapq.heapify(self._heap)
        self._earliest = {key: timestamp for timestamp, key in self._heap}

    def __len__(self) -> int:
        return len(self._earliest)

    def add(self, key: bytes, timestamp: int) -> None:
        """The key is to be looked at when this timestamp is due, unless it is looked at before."""
        known = self._earliest.get(key)
        if known is None or timestamp < known:
            self._earliest[key] = timestamp
            heapq.heappush(self._heap, (timestamp, key))

    def take(self, before: int, most: int) -> list[tuple[int, bytes]]:
        """(timestamp, key) of up to `most` keys with timestamps before this one, which are not in it any more."""
        taken: list[tuple[int, bytes]] = []
        while self._heap and self._heap[0][0] < before and len(taken) < most:
            entry = heapq.heappop(self._heap)
            if self._earliest.get(entry[1]) == entry[0]:  # else it has moved to an earlier one, and was looked at
                del self._earliest[entry[1]]
                taken.append(entry)
        return taken
