"""Prometheus metrics: requests by route, store, isolation level and outcome, and what the server knows of itself.

Labels come from closed sets: routes by their template, stores that the application declares, two levels, the reasons
of `problems`. So clients cannot make series.

One process keeps its counts in memory. Of several processes (`processes`) any may be asked, and answers for all: they
keep their counts in files of one directory, prometheus_client's multiprocess mode. There each process has a number
rather than its pid, and one that was started again counts on where the dead one ended: what is answered never goes
back, and no files are left behind. Gauges of stores are the answering process's view of what all of them read.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
    values,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from stateline.server.changes import ChangeRoutes
from stateline.server.pipelines import PipelineCollector, PipelineStates
from stateline.server.request_counts import RequestCounts
from stateline.server.serving import Serving
from stateline.server.snapshots import SnapshotRoutes
from stateline.server.workers_metrics import WorkerCollector, WorkerFigures

# Where prometheus_client keeps what several processes share; its own name.
SHARED_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"

_PARTITION = ("task", "store")
_log = logging.getLogger(__name__)

# How old may be what another process tells; one that is killed takes as much of its counts with it.
_SHARE_INTERVAL_S = 0.5

# They are a series more for each counter; Prometheus sees resets without them.
disable_created_metrics()  # type: ignore[no-untyped-call]  # it has types for a part of itself only


def share_metrics(directory: Path, number: int) -> None:
    """Make this process number `number` of those that keep their metrics in `directory`. Before `create_app`.

    No two processes that live may have the same number. The directory belongs to the caller.
    """
    os.environ[SHARED_DIRECTORY] = str(directory)
    # prometheus_client has types for a part of itself only
    values.ValueClass = values.MultiProcessValue(lambda: number)  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of one server process. For the event loop's thread only."""

    def __init__(self, serving: Serving, snapshots: SnapshotRoutes, changes: ChangeRoutes) -> None:
        self.stores = frozenset(serving.topology.stores)
        self.snapshots, self.changes = snapshots, changes
        self.in_progress = 0
        self.lines_dropped = 0
        self._serving = serving
        self._counted = CollectorRegistry()
        self.requests = RequestCounts(self._counted)
        self._load = _Load(self._counted)
        shared = os.environ.get(SHARED_DIRECTORY)
        self._sources = [CollectorRegistry() if shared else self._counted, CollectorRegistry()]
        if shared:
            MultiProcessCollector(self._sources[0], shared)  # type: ignore[no-untyped-call]  # as above
        self._sources[1].register(_StoreCollector(serving))
        state_dir, application = serving.config.state_dir, serving.topology.application_id
        self._sources[1].register(PipelineCollector(PipelineStates(serving.topology, state_dir)))
        self._sources[1].register(WorkerCollector(WorkerFigures(state_dir / application)))
        self.shared = shared is not None

    def text(self) -> bytes:
        """Everything in Prometheus' text format, of all processes that share their metrics."""
        self._take()
        return b"".join(map(generate_latest, self._sources))

    async def keep_shared(self) -> None:
        """Show the other processes how this one stands, until cancelled."""
        try:
            while True:
                try:
                    self._take()
                except Exception:  # noqa: BLE001 - a defect; without this task the others would miss all counts
                    _log.exception("Metrics could not be shared")
                await asyncio.sleep(_SHARE_INTERVAL_S)
        finally:
            self.requests.flush()

    def _take(self) -> None:
        self.requests.flush()
        self._load.take(self)

    @property
    def serving(self) -> Serving:
        """What is measured."""
        return self._serving


class _Load:
    """How this process stands at the moment. Read when asked, so that requests pay nothing for it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, about: str, mode: Literal["sum", "max"] = "sum") -> Gauge:
            gauge = Gauge(f"stateline_{name}", about, registry=registry, multiprocess_mode=mode)
            gauge.set(0)  # what a dead predecessor of the same number left
            return gauge

        def counter(name: str, about: str) -> Counter:
            return Counter(f"stateline_{name}", about, registry=registry)

        self._in_progress = gauge("http_requests_in_progress", "Requests that are being answered.")
        self._waiting = gauge("http_requests_waiting", "Of these, those that wait: for a commit, a worker, a body.")
        self._open = gauge("secondaries_open", "Store partitions that are open.")
        self._cursors = gauge("cursors_open", "States that are kept for the next page.")
        self._held = gauge("cursors_held_bytes", "About how many bytes of entries they keep in memory.")
        self._oldest = gauge("cursors_oldest_seconds", "How long the oldest of them has been kept.", "max")
        self._snapshots = gauge("snapshots", "Snapshots that there are.", "max")
        self._kept = gauge("snapshots_kept_bytes", "Bytes on disk that snapshots alone keep.", "max")
        self._feeds = gauge("change_feeds_open", "Change feeds that are being read.")
        self._feed_lag = gauge("change_feeds_lag_seconds", "How far the slowest of them is behind.", "max")
        self._opened = counter("secondaries_opened", "Store partitions that were opened.")
        self._catch_ups = counter("secondary_catch_ups", "How often an open one followed its owner's commits.")
        self._dropped = counter("access_log_lines_dropped", "Lines that were left out, because writing was too slow.")
        self._before = (0, 0, 0)

    def take(self, metrics: Metrics) -> None:
        """Look at everything now."""
        serving = metrics.serving
        partitions = serving.partitions
        self._in_progress.set(metrics.in_progress)
        self._waiting.set(serving.waiting)
        self._open.set(partitions.open_count)
        self._cursors.set(len(serving.cursors))
        self._held.set(serving.cursors.held_bytes)
        self._oldest.set(serving.cursors.oldest_age_s)
        self._snapshots.set(metrics.snapshots.figures.count)
        self._kept.set(metrics.snapshots.figures.kept_bytes)
        self._feeds.set(metrics.changes.figures.open)
        self._feed_lag.set(metrics.changes.figures.lag_s)
        now = (partitions.opened_count, partitions.catch_ups, metrics.lines_dropped)
        counters = (self._opened, self._catch_ups, self._dropped)
        for counter, count, before in zip(counters, now, self._before, strict=True):
            counter.inc(count - before)
        self._before = now


class _StoreCollector(Collector):
    """Reads the notices of the secondaries that are open, when asked."""

    _NOTICED = (
        ("committed_at_ms", "Time of the newest commit, ms since the epoch."),
        ("commit_number", "Number of the newest commit."),
        ("staged_records", "Records staged and not committed."),
        ("staged_bytes", "Bytes staged and not committed."),
        ("restore_remaining", "Records that a restore still has to apply."),
        ("state", "0 closed, 1 restoring, 2 active, 3 standby."),
    )

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def collect(self) -> Iterator[Metric]:
        gauges = {name: _gauge(name, about) for name, about in self._NOTICED}
        age = _gauge("commit_age_seconds", "How long ago the newest commit was made; absent before the first.")
        for task_id, store, reader in self._serving.partitions.opened():
            notice = reader.notice
            for name, gauge in gauges.items():
                gauge.add_metric([task_id, store], float(getattr(notice, name)))
            if notice.committed_at_ms:
                age.add_metric([task_id, store], max(0.0, time.time() - notice.committed_at_ms / 1000))
        yield from gauges.values()
        yield age
        ready = GaugeMetricFamily("stateline_server_ready", "1 when /readyz answers 200.")
        ready.add_metric([], float(not self._serving.reasons_not_ready()))
        yield ready

    def describe(self) -> Iterable[Metric]:
        return ()  # registering asks for nothing


def _gauge(name: str, about: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"stateline_store_{name}", about, labels=_PARTITION)
