"""Counts of every request: how many, how long they took, how many bytes and entries were answered.

Counting costs less than a read here. prometheus_client's metrics take a lock each, and in several processes write to a
file. So they get the counts now and then (`flush`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram

LATENCY = "stateline_http_request_seconds"
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 60.0)


class Answered(NamedTuple):
    """One answered request. `store` is empty if it was of none."""

    route: str
    store: str
    level: str
    outcome: str


def add_observed(histogram: Histogram, buckets: Iterable[int], seconds: float) -> None:
    """Add many observations to a histogram: how many in which bucket, and their sum. `Histogram` has a public method
    for one only."""
    histogram._sum.inc(seconds)
    for bucket, more in zip(histogram._buckets, buckets, strict=True):
        bucket.inc(more)


class RequestCounts:
    """One per server process, in `registry`. For the event loop's thread only."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"stateline_{name}", about, labels, registry=registry)

        self._requests = counter("http_requests", "Requests answered.", "route", "level", "outcome")
        about = "Time to answer, including the wait for a bound."
        # Without outcomes: each of its series is seventeen.
        self._latency = Histogram(LATENCY, about, ("route", "level"), registry=registry, buckets=BUCKETS_S)
        self._of_store = counter("store_requests", "Requests answered, by store.", "store", "outcome")
        self._size = counter("http_response_bytes", "Bytes of bodies.", "store")
        self._rows = counter("http_response_rows", "Entries answered.", "store")
        self._series: dict[Answered, _Series] = {}

    def observe(self, answered: Answered, seconds: float, size: int, rows: int) -> None:
        """Count one answered request: its duration, bytes of the body, and number of entries."""
        series = self._series.get(answered)
        if series is None:
            series = self._series[answered] = self._new_series(answered)
        series.buckets[bisect_left(BUCKETS_S, seconds)] += 1
        series.seconds += seconds
        series.size += size
        series.rows += rows

    def flush(self) -> None:
        """Add to the registry what was observed since the last time."""
        for series in self._series.values():
            series.flush()

    def _new_series(self, answered: Answered) -> _Series:
        route, store, level, outcome = answered
        return _Series(
            (self._requests.labels(route, level, outcome), self._of_store.labels(store, outcome)),
            self._latency.labels(route, level),
            self._size.labels(store),
            self._rows.labels(store),
        )


class _Series:
    """Requests with the same labels: their metrics, and what these lack."""

    __slots__ = ("_latency", "_requests", "_rows", "_size", "buckets", "rows", "seconds", "size")

    def __init__(self, requests: Iterable[Counter], latency: Histogram, size: Counter, rows: Counter) -> None:
        self._requests, self._latency, self._size, self._rows = requests, latency, size, rows
        self._begin()

    def flush(self) -> None:
        if not (count := sum(self.buckets)):
            return
        for requests in self._requests:
            requests.inc(count)
        add_observed(self._latency, self.buckets, self.seconds)
        self._size.inc(self.size)
        self._rows.inc(self.rows)
        self._begin()

    def _begin(self) -> None:
        self.buckets = [0] * (len(BUCKETS_S) + 1)  # the last is of what took longer than all of them
        self.seconds = 0.0
        self.size = self.rows = 0
