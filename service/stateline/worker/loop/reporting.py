"""The figures that a worker publishes once a second: a file beside its instance file, which servers read for metrics.

If the file cannot be written, on a full disk for example, servers get them over the worker's query socket. Nothing here
asks a broker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
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
    """`unwritten` are the newest figures if their file could not be written, else None."""

    def __init__(
        self, context: WorkerContext, global_tables: GlobalTables, standby_lags: Callable[[], Mapping[str, StandbyLag]]
    ) -> None:
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
        """Publish once a second. `waiting` counts the unprocessed records of a partition that were read."""
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
        self, now_s: float, tasks: Collection[Task], consumer: Consumer | None, waiting: Callable[[TopicPartition], int]
    ) -> WorkerFigures:
        opened = [task for task in tasks if task.state in _OPEN]
        running = [task for task in opened if task.state is TaskState.RUNNING]
        work, whole = self._figures.sample(now_s), self._global_tables
        lags: dict[str, Mapping[str, int]] = {
            str(task.id): _known(partial(_lag, task, consumer, waiting)) for task in running
        }
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
            lag=_with(lags, _known(whole.lag)),
            dropped=dropped,
            rocksdb=_with(
                {str(task.id): _properties(task.stores.transactional) for task in opened},
                _properties(whole.stores.items()),
            ),
            standbys=self._standby_lags(),
            stores=_with({str(task.id): task.stores.figures(now_s) for task in opened}, whole.figures(now_s)),
            steps={name: StepFigures(step.taken, dict(step.dropped)) for name, step in self._failures.steps.items()},
        )


def _known(ask: Callable[[], Mapping[str, int]]) -> dict[str, int]:
    """Return these figures. Empty if a store or the consumer fails: its next read, commit or poll raises the error."""
    try:
        return dict(ask())
    except StatelineError:
        return {}


def _lag(task: Task, consumer: Consumer | None, waiting: Callable[[TopicPartition], int]) -> dict[str, int]:
    """Return the lag by topic as of the last poll."""
    found = {} if consumer is None else {source: consumer.lag(source) for source in task.topology.sources}
    return {source.topic: lag + waiting(source) for source, lag in found.items() if lag is not None}


def _with(tasks: dict[str, T], global_tables: T) -> dict[str, T]:
    return {**tasks, GLOBAL_TABLES: global_tables} if global_tables else tasks


def _properties(stores: Iterable[tuple[str, TransactionalStore]]) -> dict[str, dict[str, int]]:
    """Return the engine's properties by store."""
    found = {name: _known(store.engine_properties) for name, store in stores}
    return {name: properties for name, properties in found.items() if properties}
