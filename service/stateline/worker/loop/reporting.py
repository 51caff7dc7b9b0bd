"""The figures that a worker publishes once a second: a file beside its instance file, which servers read for metrics.

If the file cannot be written, on a full disk for example, servers get them over the worker's query socket. Nothing here
asks a broker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from stateline.deployment.stores.topology_file import GLOBAL_TABLES
from stateline.deployment.workers.figures import StandbyLag, StepFigures, WorkerFigures
from stateline.log.interface import Consumer
from stateline.worker.context import WorkerContext
from stateline.worker.restore.global_tables import GlobalTables
from stateline.worker.tasks.task import Task, TaskState
from stateline_store import RetryLaterError, StatelineError, TopicPartition, TransactionalStore
from stateline_store.clock import now_ms
from stateline_store.rocksdb.options import block_cache

T = TypeVar("T")

logger = logging.getLogger(__name__)

_INTERVAL_S = 1.0
_OPEN = (TaskState.RESTORING, TaskState.RUNNING, TaskState.SUSPENDED)


class Reporter:
    """One worker's, on its thread. `unwritten` are the newest figures if their file could not be written, and None
    otherwise."""

    def __init__(
        self,
        context: WorkerContext,
        global_tables: GlobalTables,
        standby_lags: Callable[[], Mapping[str, StandbyLag]],
    ) -> None:
        """`standby_lags` is as `StandbyAssignment.lags`."""
        self._figures = context.figures
        self._standby_lags = standby_lags
        self._instance = context.files.registration
        self._failures = context.failures
        self._uncommitted_max_bytes = context.config.worker_uncommitted_max_bytes
        self._global_tables = global_tables
        self._due_s = time.monotonic()
        self.unwritten: WorkerFigures | None = None

    def report_if_due(
        self, tasks: Collection[Task], consumer: Consumer | None, waiting: Callable[[TopicPartition], int]
    ) -> None:
        """Publish once a second. Other calls cost a look at the clock. `waiting` counts the unprocessed records of a
        partition that were read. `consumer` may be None while no task runs."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + _INTERVAL_S
        figures = self._published(now_s, tasks, consumer, waiting)
        try:
            self._instance.publish_figures(figures)
            self.unwritten = None
        except RetryLaterError as error:
            if self.unwritten is None:
                logger.warning("Servers get this worker's figures over its socket until this is mended: %s", error)
            self.unwritten = figures

    def _published(
        self,
        now_s: float,
        tasks: Collection[Task],
        consumer: Consumer | None,
        waiting: Callable[[TopicPartition], int],
    ) -> WorkerFigures:
        """Return the figures, by task and store. Unknown figures are left out. Global tables count as one more task."""
        opened = [task for task in tasks if task.state in _OPEN]
        running = [task for task in opened if task.state is TaskState.RUNNING]
        work, whole = self._figures.sample(now_s), self._global_tables
        dropped = {str(task.id): sum(s.dropped_records for _, s in task.stores.transactional) for task in opened}
        return WorkerFigures(
            instance=self._instance.instance,
            updated_at_ms=now_ms(),
            totals=work.totals,
            rates=work.rates,
            ratios=work.ratios,
            commit_latency=work.commit_latency,
            skipped=self._failures.skipped,
            dead_lettered=self._failures.dead_lettered,
            dropped_by_operators=self._failures.dropped,
            uncommitted_bytes=sum(task.staged_bytes for task in running),
            uncommitted_max_bytes=self._uncommitted_max_bytes,
            block_cache_usage=block_cache().get_usage(),
            lag=_with({str(task.id): _lag(task, consumer, waiting) for task in running}, _global_lag(whole)),
            dropped=dropped,
            rocksdb=_with(
                {str(task.id): _properties(task.stores.transactional) for task in opened},
                _properties(whole.stores.items()),
            ),
            standbys=self._standby_lags(),
            stores=_with({str(task.id): task.stores.figures(now_s) for task in opened}, whole.figures(now_s)),
            steps={name: StepFigures(step.taken, dict(step.dropped)) for name, step in self._failures.steps.items()},
        )


def _lag(task: Task, consumer: Consumer | None, waiting: Callable[[TopicPartition], int]) -> dict[str, int]:
    """Return the lag by topic as of the last poll. Empty if the consumer fails: the next poll raises the error."""
    if consumer is None:
        return {}
    try:
        found = {source: consumer.lag(source) for source in task.topology.sources}
    except StatelineError:
        return {}
    return {source.topic: lag + waiting(source) for source, lag in found.items() if lag is not None}


def _global_lag(tables: GlobalTables) -> dict[str, int]:
    """Return the lag of global tables, empty if it is unknown."""
    try:
        return tables.lag()
    except StatelineError:
        return {}


def _with(tasks: dict[str, T], global_tables: T) -> dict[str, T]:
    """Add global tables to tasks, if there are any."""
    return {**tasks, GLOBAL_TABLES: global_tables} if global_tables else tasks


def _properties(stores: Iterable[tuple[str, TransactionalStore]]) -> dict[str, dict[str, int]]:
    found = {name: _properties_of(store) for name, store in stores}
    return {name: properties for name, properties in found.items() if properties}


def _properties_of(store: TransactionalStore) -> dict[str, int]:
    """Return the engine's properties. Empty for a store that fails: its next read or commit raises the error."""
    try:
        return dict(store.engine_properties())
    except StatelineError:
        return {}
