"""Build the timestamped files of stores, while the plain ones serve (KIP-258, ``upgrade.mode = in_place``).

They are built from the changelogs, between the worker's slices, and then follow them. The worker logs when a store has
caught up. When every worker has logged it for all its stores, unset `upgrade.from` and start the workers again. They
open the timestamped files, restore the rest and delete the plain ones.

A crash loses nothing: the built files have their own offsets.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from stateline.model.restore_start import RestoreStart, start_of_logged
from stateline.model.table_topics import forgets
from stateline.model.topic import Topic
from stateline.processing.changelog import OWNER_EPOCH
from stateline.worker.context import WorkerContext
from stateline.worker.restore.restore_plan import TaskPlan
from stateline.worker.restore.restorer import Restorer
from stateline.worker.restore.store_restore import RestoredStore, StoreRestore
from stateline.worker.tasks.task import Task
from stateline_store import IsolationLevel, StoreContext, StoreState, TopicPartition, TransactionalStore
from stateline_store.errors import DamagedDataError
from stateline_store.steps import reached
from stateline_store.task_id import TaskId

logger = logging.getLogger(__name__)

# How often the changelogs are read after a store has caught up.
_FOLLOW_INTERVAL_S = 1.0


@dataclass(slots=True)
class _Build:
    """A store that is being built from `changelog`. `table_of` is the topic of a table. `keeps_rows`: it keeps its rows
    if its changelog deletes the next record. `has_markers`: transactions write that changelog."""

    store: TransactionalStore
    context: StoreContext
    changelog: TopicPartition
    table_of: Topic | None
    keeps_rows: bool
    has_markers: bool
    ready: bool = False


class FormatUpgrades:
    """The builds of one worker's tasks, on its thread. Does nothing, and costs nothing, without an upgrade."""

    def __init__(self, context: WorkerContext) -> None:
        self._admin = context.admin
        self._restorer = Restorer(context.log, level=logging.DEBUG)  # following would fill the log
        self._tasks: dict[TaskId, tuple[Task, list[_Build]]] = {}
        self._looked_at = 0.0

    @property
    def is_busy(self) -> bool:
        return any(not build.ready for _, builds in self._tasks.values() for build in builds)

    def add(self, task: Task) -> None:
        """Build the timestamped files of this running task's stores, where they are to be upgraded."""
        if names := task.stores.formats.to_build():
            builds: list[_Build] = []
            self._tasks[task.id] = (task, builds)  # before the first is open: `remove` closes the opened ones
            for name in names:
                builds.append(self._opened(task, name))
                reached("upgrade:build-opened")
            self._looked_at = 0.0

    def remove(self, task_id: TaskId) -> None:
        if task_id in self._tasks:
            _, builds = self._tasks.pop(task_id)
            self._restorer.remove(task_id)
            for build in builds:
                build.store.close()

    def advance(self) -> None:
        if not self._tasks:
            return
        if self._restorer.busy:
            for task, _ in self._restorer.advance(0.0):
                self._note_ready(task)
            reached("upgrade:build-advanced")
        elif time.monotonic() - self._looked_at > _FOLLOW_INTERVAL_S:
            self._looked_at = time.monotonic()
            for task, builds in self._tasks.values():
                self._restorer.add(task, self._plan(builds))

    def close(self) -> None:
        for task_id in list(self._tasks):
            self.remove(task_id)
        self._restorer.close()

    def _opened(self, task: Task, name: str) -> _Build:
        definition, changelog = task.topology.definitions[name], task.topology.changelogs.get(name)
        store = definition.build()
        if changelog is None or not isinstance(store, TransactionalStore):
            raise AssertionError(f"Store {name!r} cannot be built from a changelog.")
        context = StoreContext(str(task.id), task.directory, changelog, types=definition.types)
        keeps_rows, has_markers = definition.source is not None or forgets(definition), task.settings.exactly_once
        build = _Build(store, context, changelog, definition.source, keeps_rows, has_markers)
        try:
            store.init(build.context)
        except DamagedDataError as error:
            logger.warning("The new files of %s of task %s are deleted and built again: %s", name, task.id, error)
            _begin_anew(build)
        if changelog.topic in task.recreated:
            _begin_anew(build)
        store.set_state(StoreState.RESTORING)
        logger.info("Upgrading %s of task %s: timestamped files are built beside the plain ones", name, task.id)
        return build

    def _plan(self, builds: list[_Build]) -> TaskPlan:
        restores = [self._plan_one(build) for build in builds]
        return TaskPlan(tuple(each for each in restores if each.remaining))

    def _plan_one(self, build: _Build) -> StoreRestore:
        store, changelog = build.store, build.changelog
        first, end = self._admin.watermarks(changelog)
        offset = store.committed_offset(changelog)
        start = start_of_logged(
            offset, first, forgets=build.keeps_rows, has_markers=build.has_markers, has_all_input=False
        )
        if offset is not None and (start.anew or (start.at > end and start.at > self._admin.log_end(changelog))):
            logger.warning("The new files of %s are at offset %d, but %s holds %d to %d: they are built again",
                           store.name, offset, changelog, first, end - 1)  # fmt: skip
            _begin_anew(build)
            start = RestoreStart(first)
        has_commits = bool(store.position(IsolationLevel.READ_COMMITTED))
        epoch = 0 if build.table_of else store.committed_offset(OWNER_EPOCH) or 0
        of = RestoredStore(store, store.commit, changelog, build.table_of, build.context.types, owner_epoch=epoch)
        return StoreRestore(of, start.at, end, has_commits=has_commits)

    def _note_ready(self, task: Task) -> None:
        for build in self._tasks[task.id][1]:
            build.store.set_state(StoreState.STANDBY, 0)
            if not build.ready:
                build.ready = True
                logger.info(
                    "Store %s of task %s is ready with timestamps. When every worker has said so of all its stores, "
                    "unset upgrade.from and start the workers again.",
                    build.store.name, task.id,
                )  # fmt: skip
                reached("upgrade:build-ready")


def _begin_anew(build: _Build) -> None:
    build.store.close()
    build.store.wipe()
    build.store.init(build.context)
