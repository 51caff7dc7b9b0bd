"""How many queries there were and how long they took, between two looks at their counts. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class TimedCounts(NamedTuple):
    """What was counted at a time: how many took no longer than so many seconds; the last edge is None."""

    at_s: float
    buckets: Sequence[tuple[float | None, float]]


class QueryTimes(NamedTuple):
    """`per_s` since the look before, the quantiles over all looks that were given; None for not known."""

    per_s: float | None
    p50_ms: float | None
    p99_ms: float | None

    @classmethod
    def between(cls, looks: Sequence[TimedCounts]) -> QueryTimes:
        """Of these looks, the newest last."""
        if len(looks) < 2:
            return cls(None, None, None)
        first, before, now = looks[0], looks[-2], looks[-1]
        counts = [count - was for (_, was), (_, count) in zip(first.buckets, now.buckets, strict=True)]
        edges = [math.inf if edge is None else edge for edge, _ in now.buckets]
        grown = max(0.0, now.buckets[-1][1] - before.buckets[-1][1])
        return cls(
            grown / (now.at_s - before.at_s), _quantile_ms(edges, counts, 0.5), _quantile_ms(edges, counts, 0.99)
        )


def _quantile_ms(edges: Sequence[float], counts: Sequence[float], quantile: float) -> float | None:
    """Interpolated within its bucket, as Prometheus does; None where nothing was counted, or counting began anew."""
    if counts[-1] <= 0 or min(counts) < 0:
        return None
    rank = quantile * counts[-1]
    at = next(number for number, count in enumerate(counts) if count >= rank)
    lower, below = (0.0, 0.0) if at == 0 else (edges[at - 1], counts[at - 1])
    if edges[at] == math.inf:
        return 1000 * lower
    return 1000 * (lower + (edges[at] - lower) * (rank - below) / (counts[at] - below))
