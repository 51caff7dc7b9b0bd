"""`WriteStall`: how long the next write of a task's stores holds readers up. Pure."""

from __future__ import annotations

# The longest that one write should take. The rows of one slice come on top.
MOST_S = 0.003
_FEWEST_ROWS = 100  # a write of fewer rows says nothing about the time per row
_MOST_GROWTH = 2.0  # of the estimate: a write during which the process was stopped says nothing


class WriteStall:
    """Estimates how long a write of a task's stores takes. Begins with the time that rows of 100 bytes take.

    RocksDB's binding keeps Python's lock while it writes a batch, and while a server's secondary reads that batch. So
    the more rows a store partition has staged, the longer readers wait, in this process and in servers.
    """

    def __init__(self) -> None:
        self._row_s = 1e-6

    def learn(self, rows: int, seconds: float) -> None:
        if rows >= _FEWEST_ROWS:
            self._row_s = min((3 * self._row_s + seconds / rows) / 4, _MOST_GROWTH * self._row_s)

    def is_long(self, rows: int) -> bool:
        """Return whether writing so many rows takes `MOST_S` or longer. False for few rows: no commit could be
        smaller."""
        return rows >= _FEWEST_ROWS and rows * self._row_s >= MOST_S
