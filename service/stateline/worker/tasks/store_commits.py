"""How long commits of stores take: KIP-892's metrics, and how long the next write will hold readers up. Pure.

A commit costs three additions. Rate, average and maximum are those of the last 30 s, as in `figures`.

RocksDB's binding keeps Python's lock while it writes a batch, and while a server's secondary reads that batch. So the
more rows a store partition has staged, the longer readers wait, in this process and in servers.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from stateline.deployment.workers.figures import StoreFigures
from stateline.worker.files.figures import WINDOW_S

# The longest that one write should take. The rows of one slice come on top.
MOST_S = 0.003
_FEWEST_ROWS = 100  # a write of fewer rows says nothing about the time per row
_MOST_GROWTH = 2.0  # of the estimate: a write during which the process was stopped says nothing


class _Sample(NamedTuple):
    """The totals of a moment, and the slowest commit since the sample before."""

    at_s: float
    commits: int
    seconds: float
    slowest_s: float


class StoreCommits:
    """One store's, on the worker's thread. Times are seconds of one clock that never goes back."""

    def __init__(self, now_s: float) -> None:
        self._commits, self._seconds, self._slowest_s = 0, 0.0, 0.0
        self._samples = deque([_Sample(now_s, 0, 0.0, 0.0)])

    def committed(self, seconds: float) -> None:
        """`StateStore.commit` came back after so long."""
        self._commits += 1
        self._seconds += seconds
        self._slowest_s = max(self._slowest_s, seconds)

    def sample(self, now_s: float, uncommitted_bytes: int) -> StoreFigures:
        """The figures as of now, and the beginning of the next sample: ask about once a second. `uncommitted_bytes` is
        what the store says."""
        samples = self._samples
        while len(samples) > 1 and samples[1].at_s <= now_s - WINDOW_S:
            samples.popleft()
        first = samples[0]
        samples.append(_Sample(now_s, self._commits, self._seconds, self._slowest_s))
        self._slowest_s = 0.0
        commits = self._commits - first.commits
        rate = commits / max(now_s - first.at_s, 1e-3)
        if not commits:
            return StoreFigures(rate, None, None, uncommitted_bytes)
        slowest_s = max(sample.slowest_s for sample in list(samples)[1:])
        return StoreFigures(rate, (self._seconds - first.seconds) / commits, slowest_s, uncommitted_bytes)


class WriteStall:
    """Estimates how long a write of a task's stores takes. Begins with the time that rows of 100 bytes take."""

    def __init__(self) -> None:
        self._row_s = 1e-6

    def learn(self, rows: int, seconds: float) -> None:
        """So many rows of one store took so long to write."""
        if rows >= _FEWEST_ROWS:
            self._row_s = min((3 * self._row_s + seconds / rows) / 4, _MOST_GROWTH * self._row_s)

    def is_long(self, rows: int) -> bool:
        """Return whether a write of so many rows takes at least `MOST_S`. False for few rows: no commit could be
        smaller."""
        return rows >= _FEWEST_ROWS and rows * self._row_s >= MOST_S
