"""What a worker counts of its own work. Pure: it is told of whole batches, and of the time.

The costs are a few additions for each slice of work, poll and commit, none for a record. Rates, and the average and
maximum of latencies, are of the last 30 seconds, as Kafka Streams' are by default; totals are since the worker's start.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

# Kafka Streams' `metrics.sample.window.ms`.
WINDOW_S = 30.0


class _Totals(NamedTuple):
    """Everything that only grows. Seconds are those of work, not of the clock."""

    commits: int
    forced_commits: int
    commit_seconds: float
    processed: int
    process_seconds: float
    restored: int


@dataclass(frozen=True, slots=True)
class _Sample:
    """The totals of a moment, and the slowest commit since the sample before."""

    at_s: float
    totals: _Totals
    slowest_s: float


class Figures:
    """One worker's, on its thread. Times are seconds of one clock that never goes back."""

    def __init__(self, now_s: float) -> None:
        self._totals = _Totals(0, 0, 0.0, 0, 0.0, 0)
        self._slowest_s = 0.0
        self._samples = deque([_Sample(now_s, self._totals, 0.0)])

    def processed(self, records: int, seconds: float) -> None:
        """A slice of records went through tables and processors."""
        totals = self._totals
        self._totals = totals._replace(
            processed=totals.processed + records, process_seconds=totals.process_seconds + seconds
        )

    def restored(self, records: int) -> None:
        """So many records were read from changelogs."""
        self._totals = self._totals._replace(restored=self._totals.restored + records)

    def committed(self, seconds: float, *, forced: bool) -> None:
        """A commit succeeded. `forced`: it came before its time, to free memory."""
        totals = self._totals
        self._totals = totals._replace(
            commits=totals.commits + 1,
            forced_commits=totals.forced_commits + forced,
            commit_seconds=totals.commit_seconds + seconds,
        )
        self._slowest_s = max(self._slowest_s, seconds)

    def sample(self, now_s: float) -> dict[str, Any]:
        """The figures as of now, and the beginning of the next sample: ask about once a second.

        ``totals`` as counted, and of the last 30 seconds ``rates`` (per second), ``ratios`` (share of the time) and
        ``commit_latency`` (``avg_s`` and ``max_s``; null without a commit).
        """
        samples, totals = self._samples, self._totals
        while len(samples) > 1 and samples[1].at_s <= now_s - WINDOW_S:
            samples.popleft()
        first = samples[0]
        samples.append(_Sample(now_s, totals, self._slowest_s))
        self._slowest_s = 0.0
        before, after = first.totals._asdict(), totals._asdict()
        grown = {name: total - before[name] for name, total in after.items()}
        elapsed_s = max(now_s - first.at_s, 1e-3)
        commits = grown["commits"]
        slowest_s = max(sample.slowest_s for sample in list(samples)[1:])
        return {
            "totals": after,
            "rates": {name: grown[name] / elapsed_s for name in ("commits", "processed", "restored")},
            "ratios": {name: min(grown[f"{name}_seconds"] / elapsed_s, 1.0) for name in ("commit", "process")},
            "commit_latency": {
                "avg_s": grown["commit_seconds"] / commits if commits else None,
                "max_s": slowest_s if commits else None,
            },
        }
