"""What a worker counts of its own work. Pure: it is told of whole batches, and of the time.

The costs are a few additions for each slice of work, poll and commit, none for a record. Rates, and the average and
maximum of latencies, are of the last 30 seconds, as Kafka Streams' are by default; totals are since the worker's start.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from stateline.deployment.workers.figures import CommitLatency, Rates, Ratios, Totals

# Kafka Streams' `metrics.sample.window.ms`.
WINDOW_S = 30.0


@dataclass(frozen=True, slots=True)
class _Sample:
    """The totals of a moment, and the slowest commit since the sample before."""

    at_s: float
    totals: Totals
    slowest_s: float


class Work(NamedTuple):
    """What a worker has done: `totals` as counted, the rest of the last 30 seconds."""

    totals: Totals
    rates: Rates
    ratios: Ratios
    commit_latency: CommitLatency


class Figures:
    """One worker's, on its thread. Times are seconds of one clock that never goes back."""

    def __init__(self, now_s: float) -> None:
        self._totals = Totals(0, 0, 0.0, 0, 0.0, 0, 0, 0.0, 0, 0.0)
        self._slowest_s = 0.0
        self._samples = deque([_Sample(now_s, self._totals, 0.0)])

    @property
    def commits(self) -> int:
        """How many commits have succeeded."""
        return self._totals.commits

    def processed(self, records: int, seconds: float) -> None:
        """A slice of records went through tables and processors."""
        self._count(processed=records, process_seconds=seconds)

    def restored(self, records: int) -> None:
        """So many records were read from changelogs."""
        self._count(restored=records)

    def followed(self, records: int, seconds: float) -> None:
        """So many records were read for standbys, and staged and committed there."""
        self._count(followed=records, follow_seconds=seconds)

    def promoted(self, seconds: float) -> None:
        """A standby runs now, so long after its task was given to this worker."""
        self._count(promotions=1, promotion_seconds=seconds)

    def committed(self, seconds: float, *, forced: bool) -> None:
        """A commit succeeded. `forced`: it came before its time, to free memory."""
        self._count(commits=1, forced_commits=int(forced), commit_seconds=seconds)
        self._slowest_s = max(self._slowest_s, seconds)

    def _count(self, **more: Any) -> None:
        self._totals = replace(self._totals, **{name: getattr(self._totals, name) + n for name, n in more.items()})

    def sample(self, now_s: float) -> Work:
        """The figures as of now, and the beginning of the next sample: ask about once a second."""
        samples, totals = self._samples, self._totals
        while len(samples) > 1 and samples[1].at_s <= now_s - WINDOW_S:
            samples.popleft()
        first = samples[0]
        samples.append(_Sample(now_s, totals, self._slowest_s))
        self._slowest_s = 0.0
        before, elapsed_s = first.totals, max(now_s - first.at_s, 1e-3)
        commits = totals.commits - before.commits
        committing_s = totals.commit_seconds - before.commit_seconds
        processing_s = totals.process_seconds - before.process_seconds
        processed, restored = totals.processed - before.processed, totals.restored - before.restored
        followed = totals.followed - before.followed
        slowest_s = max(sample.slowest_s for sample in list(samples)[1:])
        return Work(
            totals,
            Rates(commits / elapsed_s, processed / elapsed_s, restored / elapsed_s, followed / elapsed_s),
            Ratios(min(committing_s / elapsed_s, 1.0), min(processing_s / elapsed_s, 1.0)),
            CommitLatency(committing_s / commits, slowest_s) if commits else CommitLatency(None, None),
        )
