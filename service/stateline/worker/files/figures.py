"""Counts a worker's own work and its stores' commits (KIP-892's metrics). Pure.

The costs are a few additions for each slice of work, poll and commit, none for a record. Rates, and the average and
maximum of latencies, are those of the last 30 s, as in Kafka Streams by default. Totals count since the worker's start.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

from stateline.deployment.workers.figures import CommitLatency, Rates, Ratios, StoreFigures, Totals

# Kafka Streams' `metrics.sample.window.ms`.
WINDOW_S = 30.0


T = TypeVar("T")


class _Samples(Generic[T]):
    """The totals of the last 30 s, sample by sample, each with its slowest commit."""

    def __init__(self, now_s: float, totals: T) -> None:
        self.slowest_s = 0.0
        self._samples = deque([(now_s, totals, 0.0)])

    def next(self, now_s: float, totals: T) -> tuple[T, float, float]:
        """Begin the next sample. Returns the totals at the beginning of the 30 s, the seconds since then, and the
        slowest commit since then."""
        samples = self._samples
        while len(samples) > 1 and samples[1][0] <= now_s - WINDOW_S:
            samples.popleft()
        first_s, before, _ = samples[0]
        samples.append((now_s, totals, self.slowest_s))
        self.slowest_s = 0.0
        return before, max(now_s - first_s, 1e-3), max(slowest_s for _, _, slowest_s in list(samples)[1:])


class Work(NamedTuple):
    """Totals as counted. The rest is of the last 30 seconds."""

    totals: Totals
    rates: Rates
    ratios: Ratios
    commit_latency: CommitLatency


class Figures:
    """Times are seconds of one clock that never goes back."""

    def __init__(self, now_s: float) -> None:
        self._totals = Totals(0, 0, 0.0, 0, 0.0, 0, 0, 0.0, 0, 0.0)
        self._samples = _Samples(now_s, self._totals)

    @property
    def commits(self) -> int:
        return self._totals.commits

    def processed(self, records: int, seconds: float) -> None:
        self._count(processed=records, process_seconds=seconds)

    def restored(self, records: int) -> None:
        self._count(restored=records)

    def followed(self, records: int, seconds: float) -> None:
        self._count(followed=records, follow_seconds=seconds)

    def promoted(self, seconds: float) -> None:
        self._count(promotions=1, promotion_seconds=seconds)

    def committed(self, seconds: float, *, forced: bool) -> None:
        """Count a commit. `forced`: it came before its time, to free memory."""
        self._count(commits=1, forced_commits=int(forced), commit_seconds=seconds)
        self._samples.slowest_s = max(self._samples.slowest_s, seconds)

    def _count(self, **more: Any) -> None:
        self._totals = replace(self._totals, **{name: getattr(self._totals, name) + n for name, n in more.items()})

    def sample(self, now_s: float) -> Work:
        """Return the figures as of now, and begin the next sample. Call it about once a second."""
        totals = self._totals
        before, elapsed_s, slowest_s = self._samples.next(now_s, totals)
        commits = totals.commits - before.commits
        committing_s = totals.commit_seconds - before.commit_seconds
        processing_s = totals.process_seconds - before.process_seconds
        processed, restored = totals.processed - before.processed, totals.restored - before.restored
        followed = totals.followed - before.followed
        return Work(
            totals,
            Rates(commits / elapsed_s, processed / elapsed_s, restored / elapsed_s, followed / elapsed_s),
            Ratios(min(committing_s / elapsed_s, 1.0), min(processing_s / elapsed_s, 1.0)),
            CommitLatency(committing_s / commits, slowest_s) if commits else CommitLatency(None, None),
        )


class StoreCommits:
    """One store's, on the worker's thread. Times are seconds of one clock that never goes back."""

    def __init__(self, now_s: float) -> None:
        self._commits, self._seconds = 0, 0.0
        self._samples = _Samples(now_s, (0, 0.0))

    def committed(self, seconds: float) -> None:
        self._commits += 1
        self._seconds += seconds
        self._samples.slowest_s = max(self._samples.slowest_s, seconds)

    def sample(self, now_s: float, uncommitted_bytes: int) -> StoreFigures:
        """Return the figures as of now, and begin the next sample. Call it about once a second."""
        before, elapsed_s, slowest_s = self._samples.next(now_s, (self._commits, self._seconds))
        commits, seconds = self._commits - before[0], self._seconds - before[1]
        if not commits:
            return StoreFigures(0.0, None, None, uncommitted_bytes)
        return StoreFigures(commits / elapsed_s, seconds / commits, slowest_s, uncommitted_bytes)
