"""Collect the figures that workers of this state directory write once a second (`deployment.workers.figures`).

A worker that cannot write its file sends them over its socket.

Names are Kafka Streams' in Prometheus' style: `commit-latency-avg` is ``stateline_commit_latency_avg_seconds``.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stateline.deployment.json_files import decoded
from stateline.deployment.workers.figures import StoreFigures, WorkerFigures, figures_path, instance_of
from stateline.deployment.workers.instance_file import instances_directory, lock_path
from stateline.server.telemetry.store_metrics import MAX_PARTITIONS
from stateline_store import DamagedDataError
from stateline_store.inspection.inspection import lock_holder

_log = logging.getLogger(__name__)

_FiguresByWorker = Mapping[str, WorkerFigures]
"""Worker → its figures."""


class FiguresReader:
    """Reads the files of an application's workers whenever it is asked. Thread-safe: it keeps nothing. `unwritten` is
    `Workers.unwritten_figures`."""

    def __init__(self, application: Path, unwritten: Callable[[], Mapping[str, bytes]] = dict) -> None:
        self._application = application
        self._unwritten = unwritten

    def read(self) -> _FiguresByWorker:
        """Return each worker's last figures. Workers that do not live or have an unreadable file are left out."""
        unwritten = self._unwritten()
        try:
            names = {instance_of(name) for name in os.listdir(instances_directory(self._application))}
        except OSError:
            names = set()  # no worker has started yet; /readyz reports an unreadable directory
        found = {name: self._figures_of(name, unwritten) for name in sorted({*filter(None, names), *unwritten})}
        return {name: figures for name, figures in found.items() if figures is not None}

    def _figures_of(self, name: str, unwritten: Mapping[str, bytes]) -> WorkerFigures | None:
        if name in unwritten:
            return decoded(WorkerFigures, unwritten[name])
        if lock_holder(lock_path(self._application, name))[0] is False:
            return None  # killed
        path = figures_path(self._application, name)
        try:
            return decoded(WorkerFigures, path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, DamagedDataError) as error:
            _log.warning("%s cannot be read, and its worker has no metrics (%s): restart it", path, error)
            return None


class _Of(NamedTuple):
    """A number of a worker: the attribute of its figures, the metric, and its meaning."""

    attribute: str
    metric: str
    about: str


_COUNTERS = (
    _Of("totals.commits", "commit", "Commits since the worker started."),
    _Of("totals.forced_commits", "forced_commits", "Commits before their time, to free memory."),
    _Of("totals.commit_seconds", "commit_seconds", "Time spent in commits."),
    _Of("totals.processed", "process", "Records processed since the worker started."),
    _Of("totals.process_seconds", "process_seconds", "Time spent in processing."),
    _Of("totals.restored", "restore", "Changelog records read since the worker started."),
    _Of("totals.followed", "standby_records", "Changelog records read for standbys since the worker started."),
    _Of("totals.follow_seconds", "standby_seconds", "Time spent on changelog records of standbys."),
    _Of("totals.promotions", "promotions", "Standbys that took their tasks over since the worker started."),
    _Of("totals.promotion_seconds", "promotion_seconds", "Time until promoted standbys ran, from their assignment."),
    _Of("skipped", "skipped_records", "Records left out by a policy."),
    _Of("dead_lettered", "dead_lettered_records", "Records sent to the dead-letter topic."),
    _Of("dropped_by_operators", "operators_dropped_records", "Records that operators of streams dropped."),
)
_GAUGES = (
    _Of("rates.commits", "commit_rate", "Commits per second, in the last 30 s."),
    _Of("commit_latency.avg_s", "commit_latency_avg_seconds", "Mean time of a commit in the last 30 s."),
    _Of("commit_latency.max_s", "commit_latency_max_seconds", "Longest commit in the last 30 s."),
    _Of("ratios.commit", "commit_ratio", "Share of the time spent in commits, in the last 30 s."),
    _Of("rates.processed", "process_rate", "Records processed per second, in the last 30 s."),
    _Of("ratios.process", "process_ratio", "Share of the time spent in processing, in the last 30 s."),
    _Of("rates.restored", "restore_rate", "Changelog records read per second, in the last 30 s."),
    _Of("rates.followed", "standby_rate", "Changelog records read for standbys per second, in the last 30 s."),
    _Of("uncommitted_bytes", "uncommitted_bytes", "About how many bytes the next commit frees."),
    _Of("uncommitted_max_bytes", "uncommitted_max_bytes", "The worker's share of the limit. -1: no limit."),
    _Of("block_cache_usage", "rocksdb_block_cache_usage_bytes", "Bytes of its stores in RocksDB's block cache."),
)
# RocksDB's property → metric and what it is, summed over the partitions of a store that the worker has.
PROPERTIES = {
    "num-entries-active-mem-table": ("num_entries_active_mem_table", "Entries in the active memtable."),
    "num-deletes-active-mem-table": ("num_deletes_active_mem_table", "Deletes in the active memtable."),
    "num-entries-imm-mem-tables": ("num_entries_imm_mem_tables", "Entries in memtables that wait for a flush."),
    "num-deletes-imm-mem-tables": ("num_deletes_imm_mem_tables", "Deletes in memtables that wait for a flush."),
    "num-immutable-mem-table": ("num_immutable_mem_table", "Memtables that wait for a flush."),
    "cur-size-active-mem-table": ("cur_size_active_mem_table_bytes", "Size of the active memtable."),
    "cur-size-all-mem-tables": ("cur_size_all_mem_tables_bytes", "Size of memtables that are not flushed."),
    "size-all-mem-tables": ("size_all_mem_tables_bytes", "Size of all memtables, pinned ones included."),
    "mem-table-flush-pending": ("mem_table_flush_pending", "Partitions where a flush waits."),
    "num-running-flushes": ("num_running_flushes", "Running flushes."),
    "compaction-pending": ("compaction_pending", "Partitions where a compaction waits."),
    "num-running-compactions": ("num_running_compactions", "Running compactions."),
    "estimate-pending-compaction-bytes": ("estimate_pending_compaction_bytes", "Bytes that compactions must rewrite."),
    "total-sst-files-size": ("total_sst_files_size_bytes", "Size of table files, those of snapshots included."),
    "live-sst-files-size": ("live_sst_files_size_bytes", "Size of the table files in use."),
    "num-live-versions": ("num_live_versions", "Versions of the list of files in use."),
    "estimate-num-keys": ("estimate_num_keys", "RocksDB's estimate of stored rows."),
    "estimate-table-readers-mem": ("estimate_table_readers_mem_bytes", "Memory of table readers, without the cache."),
    "background-errors": ("background_errors", "Background errors since the store was opened."),
    "is-write-stopped": ("is_write_stopped", "Partitions where RocksDB takes no writes."),
}


class WorkerCollector(Collector):
    """The metrics of workers. A latency is left out without a commit."""

    def __init__(self, figures: FiguresReader) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        found = self._figures.read()
        yield from (_filled(_counter(one.metric, one.about), one.attribute, found) for one in _COUNTERS)
        yield from (_filled(_gauge(one.metric, one.about), one.attribute, found) for one in _GAUGES)
        yield _age(found)
        yield _lag(found)
        yield from _standbys(found)
        yield _dropped(found)
        yield from _steps(found)
        yield from _stores(found)
        yield from _rocksdb(found)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, attribute: str, found: _FiguresByWorker) -> Metric:
    of = attrgetter(attribute)
    for worker, figures in found.items():
        if (value := of(figures)) is not None:
            family.add_metric([worker], value)
    return family


def _age(found: _FiguresByWorker) -> Metric:
    gauge = _gauge("worker_figures_age_seconds", "Age of the worker's figures, which it writes every second.")
    for worker, figures in found.items():
        gauge.add_metric([worker], max(0.0, time.time() - figures.updated_at_ms / 1000))
    return gauge


def _lag(found: _FiguresByWorker) -> Metric:
    gauge = _gauge("input_lag_records", "Offsets of its input that a task has not read.", "task", "topic")
    for worker, figures in found.items():
        for task, topics in figures.lag.items():
            for topic, lag in topics.items():
                gauge.add_metric([worker, task, topic], lag)
    return gauge


def _standbys(found: _FiguresByWorker) -> Iterator[Metric]:
    records = _gauge("standby_lag_records", "Offsets of its changelogs that a standby lacks.", "task")
    seconds = _gauge("standby_lag_seconds", "For how long a standby has lacked offsets.", "task")
    for worker, figures in found.items():
        for task, lag in figures.standbys.items():
            if lag.records is not None:
                records.add_metric([worker, task], lag.records)
            if lag.ms is not None:
                seconds.add_metric([worker, task], lag.ms / 1000)
    yield records
    yield seconds


def _dropped(found: _FiguresByWorker) -> Metric:
    counter = _counter("dropped_records", "Puts that were too late for their store.", "task")
    for worker, figures in found.items():
        for task, dropped in figures.dropped.items():
            counter.add_metric([worker, task], dropped)
    return counter


def _steps(found: _FiguresByWorker) -> Iterator[Metric]:
    taken = _counter("step_records", "Records that a step was given.", "step")
    dropped = _counter("step_dropped_records", "Records that a step dropped, by reason.", "step", "reason")
    for worker, figures in found.items():
        for name, step in figures.steps.items():
            taken.add_metric([worker, name], step.taken)
            for reason, count in step.dropped.items():
                dropped.add_metric([worker, name, reason], count)
    yield taken
    yield dropped


def _stores(found: _FiguresByWorker) -> Iterator[Metric]:
    """Yield KIP-892's metrics, of each store of each task. Beyond `MAX_PARTITIONS`, `task` is empty."""
    figures = [
        (worker, task, store, each)
        for worker, told in found.items()
        for task, stores in told.stores.items()
        for store, each in stores.items()
    ]
    if len(figures) > MAX_PARTITIONS:
        figures = _by_store(figures)
    rate = _gauge("store_commit_rate", "Commits of a store per second, in the last 30 s.", "task", "store")
    average = _gauge("store_commit_latency_avg_seconds", "Mean time of a commit in the last 30 s.", "task", "store")
    slowest = _gauge("store_commit_latency_max_seconds", "Longest commit in the last 30 s.", "task", "store")
    uncommitted = _gauge("store_uncommitted_bytes", "About how many bytes its next commit frees.", "task", "store")
    for worker, task, store, each in figures:
        rate.add_metric([worker, task, store], each.commit_rate)
        uncommitted.add_metric([worker, task, store], each.uncommitted_bytes)
        if each.commit_latency_avg_s is not None and each.commit_latency_max_s is not None:
            average.add_metric([worker, task, store], each.commit_latency_avg_s)
            slowest.add_metric([worker, task, store], each.commit_latency_max_s)
    yield from (rate, average, slowest, uncommitted)


def _by_store(figures: list[tuple[str, str, str, StoreFigures]]) -> list[tuple[str, str, str, StoreFigures]]:
    by_store: dict[tuple[str, str], list[StoreFigures]] = {}
    for worker, _, store, each in figures:
        by_store.setdefault((worker, store), []).append(each)
    return [(worker, "", store, _as_one(partitions)) for (worker, store), partitions in by_store.items()]


def _as_one(partitions: list[StoreFigures]) -> StoreFigures:
    """Return sums, the average over all commits, and the slowest one."""
    rate = sum(each.commit_rate for each in partitions)
    seconds = sum(each.commit_rate * (each.commit_latency_avg_s or 0.0) for each in partitions)
    slowest_s = max((each.commit_latency_max_s for each in partitions if each.commit_latency_max_s), default=None)
    return StoreFigures(rate, seconds / rate if rate else None, slowest_s, sum(p.uncommitted_bytes for p in partitions))


def _rocksdb(found: _FiguresByWorker) -> Iterator[Metric]:
    """Yield sums over each store's partitions: twenty series per partition would be too many."""
    sums: Counter[tuple[str, str, str]] = Counter()  # property, worker, store
    for worker, figures in found.items():
        for stores in figures.rocksdb.values():
            for store, properties in stores.items():
                for name, value in properties.items():
                    sums[name, worker, store] += value
    gauges = {name: _gauge(f"rocksdb_{metric}", about, "store") for name, (metric, about) in PROPERTIES.items()}
    for (name, worker, store), value in sums.items():
        if name in gauges:
            gauges[name].add_metric([worker, store], value)
    yield from gauges.values()


def _gauge(name: str, about: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"stateline_{name}", about, labels=("worker", *labels))


def _counter(name: str, about: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"stateline_{name}", about, labels=("worker", *labels))
