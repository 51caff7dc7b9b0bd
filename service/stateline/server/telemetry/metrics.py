"""Prometheus metrics: requests by route and by store, and what the server knows of itself.

Labels come from closed sets: routes by their template, stores that the application declares, two levels, the reasons
of `problems`. So clients cannot make series; and no metric of requests has both, route and store, so there are not as
many series as their product.

One process keeps its counts in memory. Of several processes (`processes`) any may be asked, and answers for all: they
keep their counts in files of one directory, prometheus_client's multiprocess mode. There each process has a number
rather than its pid, and one that was started again counts on where the dead one ended: what is answered never goes
back, and no files are left behind. Gauges of stores are the answering process's view of what all of them read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import shutil
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
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from stateline.deployment.workers.instance_file import instance_path, lock_path, locked_instances, starts
from stateline.server.changes.routes import ChangeRoutes
from stateline.server.serving import Serving
from stateline.server.snapshots.sweeper import SnapshotSweeper
from stateline.server.telemetry.node_metrics import CertificateCollector, LinkCollector, NodeCounts, seen_links
from stateline.server.telemetry.pipelines import PipelineCollector
from stateline.server.telemetry.request_counts import BUCKETS_S, LATENCY, RequestCounts
from stateline.server.telemetry.store_metrics import StoreCollector, noticed
from stateline.server.telemetry.workers_metrics import FiguresReader, WorkerCollector
from stateline_store.inspection.inspection import lock_holder

# Where prometheus_client keeps what several processes share; its own name.
SHARED_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"

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


class WorkerLives(Collector):
    """The metrics. For one thread at a time."""

    def __init__(self, application: Path) -> None:
        self._application = application
        self._seen: set[str] = set()  # alive, since this server started

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(
            "stateline_worker_up",
            "1 while the worker's process lives, else 0.",
            labels=("worker",),
        )
        started = CounterMetricFamily(
            "stateline_worker_starts", "Starts of workers of this name in this state directory.", labels=("worker",)
        )
        alive = 0
        for name in locked_instances(self._application):
            lives = lock_holder(lock_path(self._application, name))[0]
            alive += lives is True
            if lives:
                self._seen.add(name)
            if lives or (lives is False and self._is_missed(name)):
                up.add_metric((name,), float(lives))
            if (times := starts(self._application, name)) is not None:
                started.add_metric((name,), times)
        yield up
        yield started
        yield GaugeMetricFamily("stateline_workers", "Live workers of the server's state directory.", value=alive)

    def describe(self) -> Iterable[Metric]:
        return ()  # registering asks for nothing

    def _is_missed(self, name: str) -> bool:
        """Whether it lived lately: one that was killed leaves its file."""
        return name in self._seen or instance_path(self._application, name).exists()


class Metrics:
    """The metrics of one server process. For the event loop's thread only."""

    def __init__(self, serving: Serving, snapshots: SnapshotSweeper, changes: ChangeRoutes) -> None:
        self.stores = frozenset(serving.topology.all_stores)
        self.snapshots, self.changes = snapshots, changes
        self.in_progress = 0
        self.lines_dropped = 0
        self._serving = serving
        self._counted = CollectorRegistry()
        self.requests = RequestCounts(self._counted)
        self._load = Load(self._counted)
        self._nodes = NodeCounts(self._counted)
        shared = os.environ.get(SHARED_DIRECTORY)
        self._sources = [CollectorRegistry() if shared else self._counted, CollectorRegistry()]
        if shared:
            MultiProcessCollector(self._sources[0], shared)  # type: ignore[no-untyped-call]  # as above
        self._stores = StoreCollector()
        self._sources[1].register(self._stores)
        self._links = LinkCollector()
        self._sources[1].register(self._links)
        self._sources[1].register(CertificateCollector(serving.certificates))
        state_dir, application = serving.config.state_dir, serving.topology.application_id
        self._pipelines = PipelineCollector(serving.pipelines)
        self._sources[1].register(self._pipelines)
        figures = FiguresReader(state_dir / application, serving.workers.unwritten_figures)
        self._sources[1].register(WorkerCollector(figures))
        if serving.topology.subtopologies or serving.topology.global_tables:
            self._sources[1].register(WorkerLives(state_dir / application))
        self.shared = shared is not None
        self._writing = asyncio.Lock()
        self._began_s, self._text = -math.inf, b""

    async def text(self) -> bytes:
        """Everything in Prometheus' text format, of all processes that share their metrics. It is written by a thread,
        one at a time: who asks meanwhile gets the next one, together with all others that wait."""
        asked_s = time.monotonic()
        async with self._writing:
            if self._began_s < asked_s:
                self._began_s = time.monotonic()
                self._take()
                self._stores.ready = not await self._serving.reasons_not_ready()
                self._stores.seen = noticed(self._serving.partitions)
                self._pipelines.reported = self._serving.pipelines_reported()
                self._pipelines.elsewhere = self._serving.pipelines_elsewhere()
                self._links.seen = seen_links(self._serving.nodes, self._serving.own_map)
                self._text = await asyncio.to_thread(self._written)
            return self._text

    async def queries(self) -> list[tuple[float | None, float]]:
        """How many queries took no longer than so many seconds, of all processes; the last edge is None, for all."""
        self._take()
        return await asyncio.to_thread(self._query_buckets)

    def _query_buckets(self) -> list[tuple[float | None, float]]:
        counts = dict.fromkeys((*BUCKETS_S, math.inf), 0.0)
        latency = [metric for metric in self._sources[0].collect() if metric.name == LATENCY]
        for sample in (sample for metric in latency for sample in metric.samples if sample.name.endswith("_bucket")):
            if sample.labels["level"]:  # of all else it is empty
                counts[float(sample.labels["le"])] += sample.value
        return [(None if edge == math.inf else edge, count) for edge, count in counts.items()]

    def _written(self) -> bytes:
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
        if self._serving.nodes is not None:
            self._nodes.take(self._serving.nodes.traffic)

    @property
    def serving(self) -> Serving:
        """What is measured."""
        return self._serving


class Load:
    """The gauges and counters of this process. They are read when asked, so requests pay nothing for them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, about: str, mode: Literal["sum", "max"] = "sum") -> Gauge:
            gauge = Gauge(f"stateline_{name}", about, registry=registry, multiprocess_mode=mode)
            gauge.set(0)  # what a dead predecessor of the same number left
            return gauge

        def counter(name: str, about: str) -> Counter:
            return Counter(f"stateline_{name}", about, registry=registry)

        self._in_progress = gauge("http_requests_in_progress", "Requests in progress, including open change feeds.")
        self._waiting = gauge("http_requests_waiting", "Requests that wait for a commit, a worker or a body.")
        self._open = gauge("secondaries_open", "Open store partitions.")
        self._cursors = gauge("cursors_open", "States kept for a next page.")
        self._held = gauge("cursors_held_bytes", "About how many bytes of entries cursors keep in memory.")
        self._oldest = gauge("cursors_oldest_seconds", "Age of the oldest state kept for a next page.", "max")
        self._snapshots = gauge("snapshots", "Snapshots that exist, counted every 10 s.", "max")
        self._kept = gauge("snapshots_kept_bytes", "Bytes on disk that only snapshots keep, counted every 10 s.", "max")
        self._feeds = gauge("change_feeds_open", "Change feeds with a reader.")
        self._feed_lag = gauge("change_feeds_lag_seconds", "How far the slowest change feed is behind.", "max")
        self._disk_free = gauge("state_disk_free_bytes", "Free bytes of the file system of state.dir.", "max")
        self._disk_size = gauge("state_disk_size_bytes", "Size of the file system of state.dir.", "max")
        self._opened = counter("secondaries_opened", "Store partitions opened so far.")
        self._catch_ups = counter("secondary_catch_ups", "How often an open partition followed its owner's commits.")
        self._dropped = counter("access_log_lines_dropped", "Lines left out of the access log: writing was too slow.")
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
        with contextlib.suppress(OSError):  # /readyz says what is wrong with the directory; the last figures stay
            disk = shutil.disk_usage(serving.config.state_dir)
            self._disk_free.set(disk.free)
            self._disk_size.set(disk.total)
        now = (partitions.opened_count, partitions.catch_ups, metrics.lines_dropped)
        counters = (self._opened, self._catch_ups, self._dropped)
        for counter, count, before in zip(counters, now, self._before, strict=True):
            counter.inc(count - before)
        self._before = now
