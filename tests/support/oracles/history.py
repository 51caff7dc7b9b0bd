"""What each key's value was at any Position, and what had come by then, of the applications of the crash
tests and of nodes under faults."""

from __future__ import annotations

import threading
from bisect import bisect_right


class History:
    """What each key's value was at each offset of its partition, as far as it was asked. Thread-safe."""

    def __init__(self, inputs: list[list[tuple[bytes, int]]]) -> None:
        self._inputs = inputs
        self._seen = [0] * len(inputs)
        self._offsets: list[dict[bytes, list[int]]] = [{} for _ in inputs]
        self._values: list[dict[bytes, list[tuple[int, list[int]]]]] = [{} for _ in inputs]
        self._times: list[dict[bytes, dict[int, list[int]]]] = [{} for _ in inputs]
        self._lock = threading.Lock()

    def at(self, partition: int, key: bytes, offset: int) -> tuple[int, list[int]] | None:
        """(newest value, [count, sum]) of this key when the input up to `offset` was applied; None before the first."""
        with self._lock:
            self._learn(partition, offset)
            index = bisect_right(self._offsets[partition].get(key, []), offset)
            return self._values[partition][key][index - 1] if index else None

    def came(self, partition: int, key: bytes, offset: int) -> dict[int, int]:
        """How often each value of this key came in the input up to `offset`; by value."""
        with self._lock:
            self._learn(partition, offset)
            times = self._times[partition].get(key, {})
            return {value: n for value in sorted(times) if (n := bisect_right(times[value], offset))}

    def nth(self, partition: int, key: bytes, n: int) -> list[int]:
        """[count, sum] of this key when it had come so often."""
        with self._lock:
            self._learn(partition, len(self._inputs[partition]) - 1)
            return self._values[partition][key][n - 1][1]

    def record(self, partition: int, offset: int) -> tuple[bytes, int]:
        """The key and the value of the input at this place."""
        return self._inputs[partition][offset]

    def _learn(self, partition: int, offset: int) -> None:
        for at in range(self._seen[partition], offset + 1):
            key, value = self._inputs[partition][at]
            values = self._values[partition].setdefault(key, [])
            count, total = values[-1][1] if values else (0, 0)
            values.append((value, [count + 1, total + value]))
            self._offsets[partition].setdefault(key, []).append(at)
            self._times[partition].setdefault(key, {}).setdefault(value, []).append(at)
        self._seen[partition] = max(self._seen[partition], offset + 1)
