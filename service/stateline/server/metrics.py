"""Prometheus metrics: requests by route and status, and what each store partition's notice says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stateline.server.partitions import Partitions

_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 60.0)
_LABELS = ["task", "store"]


class Metrics:
    """The metrics of one server process."""

    def __init__(self, partitions: Partitions) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_StoreCollector(partitions))
        self._requests = Counter(
            "stateline_http_requests", "Requests answered.", ["route", "status"], registry=self._registry
        )
        self._latency = Histogram(
            "stateline_http_request_seconds",
            "Time to answer, waiting for a bound included.",
            ["route"],
            registry=self._registry,
            buckets=_BUCKETS_S,
        )
        self._series: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def observe(self, route: str, status: int, seconds: float) -> None:
        """One request was answered."""
        series = self._series.get((route, status))
        if series is None:  # looking labels up takes longer than a point read of the store
            series = self._requests.labels(route, str(status)), self._latency.labels(route)
            self._series[route, status] = series
        series[0].inc()
        series[1].observe(seconds)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)


class MeasuringMiddleware:
    """Observes every HTTP request under its route's name, ``unmatched`` when no route took it."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500  # unless an answer begins

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        began_s = time.perf_counter()
        try:
            await self._app(scope, receive, watch)
        finally:
            route = getattr(scope.get("endpoint"), "__name__", "unmatched")
            self._metrics.observe(route, status, time.perf_counter() - began_s)


class _StoreCollector(Collector):
    """Reads the notices of the secondaries that are open, when asked."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    def collect(self) -> Iterator[Metric]:
        gauges = {
            "committed_at_ms": _gauge("committed_at_ms", "Time of the newest commit, ms since the epoch."),
            "commit_number": _gauge("commit_number", "Number of the newest commit."),
            "staged_records": _gauge("staged_records", "Records staged and not committed."),
            "staged_bytes": _gauge("staged_bytes", "Bytes staged and not committed."),
            "restore_remaining": _gauge("restore_remaining", "Records that a restore still has to apply."),
            "state": _gauge("state", "0 closed, 1 restoring, 2 active, 3 standby."),
        }
        for task_id, store, reader in self._partitions.opened():
            notice: Any = reader.notice
            for name, gauge in gauges.items():
                gauge.add_metric([task_id, store], float(getattr(notice, name)))
        yield from gauges.values()


def _gauge(name: str, about: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"stateline_store_{name}", about, labels=_LABELS)
