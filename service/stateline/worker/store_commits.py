"""What the commits of a store of a task took, KIP-892's metrics. Pure: it is told of each commit, and of the time.

A commit costs three additions; rate, average and maximum are of the last 30 seconds, as those of `figures`.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from stateline.deployment.worker_figures import StoreFigures
from stateline.worker.figures import WINDOW_S


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
