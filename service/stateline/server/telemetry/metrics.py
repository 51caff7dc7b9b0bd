"""Prometheus metrics: requests by route and by store, and figures of the server.

Labels come from closed sets: templates of routes, declared stores, two levels, the reasons of `problems`. So clients
cannot make series. No metric of requests has both route and store, so the series do not multiply.

One process keeps its counts in memory. With several processes (`processes`), each answers for all. They keep their
counts in files of one directory (prometheus_client's multiprocess mode), under a number instead of the pid. A restarted
process continues its predecessor's counts, so counts never go back, and no files are left. Gauges of stores are the
answering process's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest, values
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from stateline.deployment.backup_figures import BackupFigures
from stateline.deployment.workers.instance_file import instance_path, lock_path, locked_instances, starts
from stateline.model.topology import Topology
from stateline.server.certificates import Certificates
from stateline.server.changes.routes import ChangeRoutes
from stateline.server.cluster_view import ClusterPipelines
from stateline.server.nodes.nodes import Nodes
from stateline.server.nodes.own_map import OwnMap
from stateline.server.readiness import ServerReadiness
from stateline.server.snapshots.sweeper import SnapshotSweeper
from stateline.server.state.cursors import Cursors
from stateline.server.state.partitions import Partitions
from stateline.server.telemetry.node_metrics import CertificateCollector, LinkCollector, NodeCounts, seen_links
from stateline.server.telemetry.pipelines import PipelineCollector
from stateline.server.telemetry.request_counts import BUCKETS_S, LATENCY, RequestCounts
from stateline.server.telemetry.store_metrics import StoreCollector, noticed
from stateline.server.telemetry.workers_metrics import FiguresReader, WorkerCollector
from stateline_store.inspection.inspection import lock_holder

# prometheus_client's environment variable for the directory that several processes share.
SHARED_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"

_log = logging.getLogger(__name__)

# Between two writes of a process's counts. A killed process loses this much of them.
_SHARE_INTERVAL_S = 0.5

# `_created` would double the series of counters. Prometheus recognizes resets without it.
disable_created_metrics()  # type: ignore[no-untyped-call]  # it has types for a part of itself only


def share_metrics(directory: Path, number: int) -> None:
    """Make this process number `number` of those that keep their metrics in `directory`. Call it before `create_app`.

    No two live processes may have the same number. The directory belongs to the caller.
    """
    os.environ[SHARED_DIRECTORY] = str(directory)
    # prometheus_client has types for a part of itself only
    values.ValueClass = values.MultiProcessValue(lambda: number)  # type: ignore[no-untyped-call]


class WorkerLives(Collector):
    """Which workers live, and how often they started. For one thread at a time."""

    def __init__(self, application: Path) -> None:
        self._application = application
        self._seen: set[str] = set()  # alive, since this server started

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("stateline_worker_up", "1 while the worker's process lives, else 0.", labels=("worker",))
        started = CounterMetricFamily(
            "stateline_worker_starts", "Starts of workers of this name in this state directory.", labels=("worker",)
        )
        alive = 0
        for name in locked_instances(self._application):
            lives = lock_holder(lock_path(self._application, name))[0]
            alive += lives is True
            if lives:
                self._seen.add(name)
            is_missed = name in self._seen or instance_path(self._application, name).exists()  # a killed one leaves it
            if lives or (lives is False and is_missed):
                up.add_metric((name,), float(lives))
            if (times := starts(self._application, name)) is not None:
                started.add_metric((name,), times)
        yield up
        yield started
        yield GaugeMetricFamily("stateline_workers", "Live workers of the server's state directory.", value=alive)


class BackupCollector(Collector):
    """Figures of this node's backups. For one thread at a time."""

    def __init__(self, application: Path) -> None:
        self._application = application

    def collect(self) -> Iterator[Metric]:
        found = BackupFigures.read(self._application)
        yield GaugeMetricFamily(
            "stateline_backup_last_timestamp_seconds",
            "When this node's newest backup of all its tasks was made, since the epoch; 0 before the first.",
            value=found.last_ms / 1000,
        )
        tasks = GaugeMetricFamily(
            "stateline_backup_task_last_timestamp_seconds",
            "When this node last backed up this task, of all tasks with stores on disk; 0 if it never did.",
            labels=("task",),
        )
        for task, at_ms in found.tasks.items():
            tasks.add_metric((task,), at_ms / 1000)
        yield tasks
        counts = (
            ("stateline_backup_made", "Backups of all its tasks that this node made.", found.made),
            (
                "stateline_backup_failures",
                "Backups of this node that failed, or lack one of its tasks.",
                found.failed,
            ),
            ("stateline_backup_written_bytes", "Bytes that this node wrote to backup.location.", found.written_bytes),
            ("stateline_backup_written_files", "Files that this node wrote there.", found.written_files),
        )
        for name, told, value in counts:
            yield CounterMetricFamily(name, told, value=value)


@dataclass(eq=False, repr=False)
class Metrics:
    """The metrics of one server process. For the event loop's thread only."""

    _topology: Topology
    _application: Path
    _partitions: Partitions
    _cursors: Cursors
    _readiness: ServerReadiness
    _certificates: Certificates
    _nodes: Nodes | None
    _own_map: OwnMap
    _cluster_pipelines: ClusterPipelines
    _figures: FiguresReader
    _snapshots: SnapshotSweeper
    _changes: ChangeRoutes
    _backs_up: bool

    def __post_init__(self) -> None:
        self.stores = frozenset(self._topology.all_stores)
        self.in_progress = self.lines_dropped = 0
        counted = CollectorRegistry()
        self.requests, self._load, self._links_counts = RequestCounts(counted), Load(counted), NodeCounts(counted)
        shared = os.environ.get(SHARED_DIRECTORY)
        self.shared = shared is not None
        self._sources = [CollectorRegistry() if shared else counted, CollectorRegistry()]
        if shared:
            MultiProcessCollector(self._sources[0], shared)  # type: ignore[no-untyped-call]  # as above
        self._stores, self._links = StoreCollector(), LinkCollector()
        self._pipelines = PipelineCollector(self._cluster_pipelines.own)
        own = [self._stores, self._links, CertificateCollector(self._certificates), self._pipelines]
        own.append(WorkerCollector(self._figures))
        if self._backs_up:
            own.append(BackupCollector(self._application))
        if self._topology.subtopologies or self._topology.global_tables:
            own.append(WorkerLives(self._application))
        for collector in own:
            self._sources[1].register(collector)
        self._writing = asyncio.Lock()
        self._began_s, self._text = -math.inf, b""

    async def text(self) -> bytes:
        """Return everything in Prometheus' text format, of all processes that share their metrics.

        A thread writes one text at a time. Requests that arrive meanwhile share the next one."""
        asked_s = time.monotonic()
        async with self._writing:
            if self._began_s < asked_s:
                self._began_s = time.monotonic()
                self._take()
                self._stores.ready = not await self._readiness.reasons_not_ready()
                self._stores.seen = noticed(self._partitions)
                self._pipelines.reported = self._cluster_pipelines.reported()
                self._pipelines.elsewhere = self._cluster_pipelines.elsewhere()
                self._links.seen = seen_links(self._nodes, self._own_map)
                self._text = await asyncio.to_thread(lambda: b"".join(map(generate_latest, self._sources)))
            return self._text

    async def queries(self) -> list[tuple[float | None, float]]:
        """Return pairs of a duration in seconds, and the number of all processes' queries that took at most that. The
        last duration is None."""
        self._take()
        return await asyncio.to_thread(self._query_buckets)

    def _query_buckets(self) -> list[tuple[float | None, float]]:
        counts = dict.fromkeys((*BUCKETS_S, math.inf), 0.0)
        latency = [metric for metric in self._sources[0].collect() if metric.name == LATENCY]
        for sample in (sample for metric in latency for sample in metric.samples if sample.name.endswith("_bucket")):
            if sample.labels["level"]:  # empty unless the request is a query
                counts[float(sample.labels["le"])] += sample.value
        return [(None if edge == math.inf else edge, count) for edge, count in counts.items()]

    async def keep_shared(self) -> None:
        """Share this process's counts with the others, until cancelled."""
        try:
            while True:
                try:
                    self._take()
                except Exception:  # noqa: BLE001 - a defect; without this task other processes would miss the counts
                    _log.exception("Metrics could not be shared")
                await asyncio.sleep(_SHARE_INTERVAL_S)
        finally:
            self.requests.flush()

    def _take(self) -> None:
        self.requests.flush()
        gauges = {
            "http_requests_in_progress": self.in_progress,
            "http_requests_waiting": self._readiness.waiting,
            "secondaries_open": self._partitions.open_count,
            "cursors_open": len(self._cursors),
            "cursors_held_bytes": self._cursors.held_bytes,
            "cursors_oldest_seconds": self._cursors.oldest_age_s,
            "snapshots": self._snapshots.figures.count,
            "snapshots_kept_bytes": self._snapshots.figures.kept_bytes,
            "change_feeds_open": self._changes.figures.open,
            "change_feeds_lag_seconds": self._changes.figures.lag_s,
        }
        with contextlib.suppress(OSError):  # /readyz reports the directory's fault; the last figures stay
            disk = shutil.disk_usage(self._application.parent)
            gauges |= {"state_disk_free_bytes": disk.free, "state_disk_size_bytes": disk.total}
        counts = {
            "secondaries_opened": self._partitions.opened_count,
            "secondary_catch_ups": self._partitions.catch_ups,
            "access_log_lines_dropped": self.lines_dropped,
        }
        self._load.set(gauges, counts)
        if self._nodes is not None:
            self._links_counts.take(self._nodes.traffic)


_GAUGES: Mapping[str, tuple[str, Literal["sum", "max"]]] = {
    "http_requests_in_progress": ("Requests in progress, including open change feeds.", "sum"),
    "http_requests_waiting": ("Requests that wait for a commit, a worker or a body.", "sum"),
    "secondaries_open": ("Open store partitions.", "sum"),
    "cursors_open": ("States kept for a next page.", "sum"),
    "cursors_held_bytes": ("About how many bytes of entries cursors keep in memory.", "sum"),
    "cursors_oldest_seconds": ("Age of the oldest state kept for a next page.", "max"),
    "snapshots": ("Snapshots that exist, counted every 10 s.", "max"),
    "snapshots_kept_bytes": ("Bytes on disk that only snapshots keep, counted every 10 s.", "max"),
    "change_feeds_open": ("Change feeds with a reader.", "sum"),
    "change_feeds_lag_seconds": ("How far the slowest change feed is behind.", "max"),
    "state_disk_free_bytes": ("Free bytes of the file system of state.dir.", "max"),
    "state_disk_size_bytes": ("Size of the file system of state.dir.", "max"),
}
_COUNTERS = {
    "secondaries_opened": "Store partitions opened so far.",
    "secondary_catch_ups": "How often an open partition followed its owner's commits.",
    "access_log_lines_dropped": "Lines left out of the access log: writing was too slow.",
}


class Load:
    """The gauges and counters of this process. They are set when asked for, so requests pay nothing for them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges = {
            name: Gauge(f"stateline_{name}", about, registry=registry, multiprocess_mode=mode)
            for name, (about, mode) in _GAUGES.items()
        }
        for gauge in self._gauges.values():
            gauge.set(0)  # what a dead predecessor of the same number left
        self._counters = {
            name: Counter(f"stateline_{name}", about, registry=registry) for name, about in _COUNTERS.items()
        }
        self._before = dict.fromkeys(_COUNTERS, 0)

    def set(self, gauges: Mapping[str, float], counts: Mapping[str, int]) -> None:
        """Set these gauges. `counts` are totals since the start of this process."""
        for name, value in gauges.items():
            self._gauges[name].set(value)
        for name, count in counts.items():
            self._counters[name].inc(count - self._before[name])
        self._before |= counts
