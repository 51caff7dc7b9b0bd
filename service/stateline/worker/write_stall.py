"""How long the write of a commit holds a worker, by what writes took so far. Pure.

RocksDB's binding keeps Python's lock while it writes a batch, and while a server's secondary reads that. So the more
rows a store partition has staged, the longer nobody is answered, here and there.
"""

from __future__ import annotations

# The longest that one write should take. What a slice stages comes on top of it.
MOST_S = 0.003
_FEWEST_ROWS = 100  # of a write that tells something
_MOST_GROWTH = 2.0  # of the estimate: a write during which the process stood still tells nothing


class WriteStall:
    """Of a task's stores; begins with what rows of a hundred bytes take."""

    def __init__(self) -> None:
        self._row_s = 1e-6

    def learn(self, rows: int, seconds: float) -> None:
        """So many rows of one store took so long to write."""
        if rows >= _FEWEST_ROWS:
            self._row_s = min((3 * self._row_s + seconds / rows) / 4, _MOST_GROWTH * self._row_s)

    def is_long(self, rows: int) -> bool:
        """Whether a write of so many rows will take as long as one should at most. Of few rows it cannot be helped."""
        return rows >= _FEWEST_ROWS and rows * self._row_s >= MOST_S
