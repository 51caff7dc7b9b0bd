"""How a worker's tasks come and go with the partitions that its group gives it (Kafka Streams' `TaskManager`).

`docs/design/rebalances.md` has the table of what happens to a task. A suspended task that the group does not mention
for 20 s is closed: its new owner may wait for its files.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack

from stateline.deployment.stores.resets import Reset
from stateline.log.interface import Consumer
from stateline.worker.context import WorkerContext
from stateline.worker.restore.backed_up_tasks import BackedUpTasks
from stateline.worker.restore.format_upgrades import FormatUpgrades
from stateline.worker.restore.missed_input import start_with_missed_input
from stateline.worker.restore.restore_plan import plans
from stateline.worker.restore.restorer import Restorer
from stateline.worker.standbys.standby_tasks import StandbyTasks
from stateline.worker.tasks.task import Task, TaskState
from stateline.worker.tasks.task_settings import TaskSettings
from stateline.worker.tasks.tasks import Tasks, close_together
from stateline.worker.tasks.topic_watch import TopicWatch
from stateline_store import DoesNotExistError, LockedError, LogUnavailableError, StorageError, TopicPartition
from stateline_store.task_id import TaskId

logger = logging.getLogger(__name__)

# How long a task may be held by another process (its previous owner closing down) before this is an error.
_LOCK_PATIENCE_S = 60.0
# Shorter than that, so that another process that waits for a suspended task gets it.
_SUSPENDED_PATIENCE_S = 20.0
_OPEN = (TaskState.RESTORING, TaskState.RUNNING, TaskState.SUSPENDED)


class TaskManager:
    """It commits nothing: `suspend`, `revoke` and `drop_all` drop everything uncommitted. `forget` drops the records of
    a source that are kept elsewhere."""

    def __init__(
        self,
        context: WorkerContext,
        tasks: Tasks,
        topics: TopicWatch,
        settings: TaskSettings,
        standbys: StandbyTasks,
        forget: Callable[[TopicPartition], None],
    ) -> None:
        self._tasks = tasks
        self._context = context
        self._topics = topics
        self._settings = settings
        self._standbys = standbys
        self._forget = forget
        self._backed_up = BackedUpTasks(context)
        self._restorer = Restorer(context.log, context.figures.restored)
        self.upgrades = FormatUpgrades(context)
        self._locked_since: dict[TaskId, float] = {}  # tasks whose directory another process holds
        self._fetching: set[TaskId] = set()  # tasks whose stores come from a backup
        self._suspended_since_s = 0.0

    def say_reset(self, reset: Reset | None) -> None:
        """The worker's directory follows this reset, the newest. Backups from before it are not restored."""
        self._backed_up.reset = reset

    @property
    def waiting(self) -> Collection[TaskId]:
        return self._locked_since.keys() | self._fetching

    @property
    def is_restoring(self) -> bool:
        return self._restorer.busy

    def assign(self, partitions: Collection[TopicPartition], consumer: Consumer) -> None:
        """Take these partitions. Close suspended tasks of others."""
        changed = self._topics.remember(partitions)
        self._resume({*partitions}, changed, consumer)
        added: list[Task] = []
        for subtopology in self._context.topology.subtopologies:
            names = {topic.name for topic in subtopology.sources}
            for number in sorted({tp.partition for tp in partitions if tp.topic in names}):
                if (task_id := subtopology.task_id(number)) not in self._tasks.all:
                    task = self._standbys.take(task_id) or Task(subtopology, number, self._settings)
                    self._tasks.add(task)
                    consumer.pause(task.topology.sources)
                    added.append(task)
        self._open(added)
        self._context.files.say_topology(self._topics.found, self._topics.counted)

    def give_back(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            if (task := self._tasks.by_source.get(partition)) is not None and task.state in _OPEN:
                task.give_back()

    def suspend(self) -> None:
        """The group takes all partitions, and will assign them again. Only running tasks stay open for that."""
        dropped: list[Task] = []
        for task in self._tasks.all.values():
            if task.state is TaskState.RUNNING and not task.processing.dirty:
                task.suspend()
                self._stop_reading(task)
            else:
                if task.state in _OPEN:
                    task.give_back()
                dropped.append(task)
        self._drop_these(dropped, says_only=None)
        self._suspended_since_s = time.monotonic()

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        found = map(self._tasks.by_source.get, partitions)
        self._drop_these(list(dict.fromkeys(task for task in found if task is not None)), says_only=None)

    def drop_all(self) -> None:
        self._drop_these(list(self._tasks.all.values()))

    def close(self) -> None:
        with ExitStack() as last_first:
            last_first.callback(self._backed_up.close)
            last_first.callback(self._restorer.close)
            last_first.callback(self.upgrades.close)
            last_first.callback(self.drop_all)

    def _resume(self, partitions: Collection[TopicPartition], changed: Collection[str], consumer: Consumer) -> None:
        suspended = self._tasks.in_state(TaskState.SUSPENDED)
        ends: dict[TopicPartition, int] = {}
        kept = [task for task in suspended if all(s in partitions for s in task.topology.sources)]
        kept = [task for task in kept if task.topology.log_topics().isdisjoint(changed)]
        if kept:
            # In this order: another worker's commit writes changelogs before offsets.
            sources = [source for task in kept for source in task.topology.sources]
            committed = self._context.admin.committed(self._context.topology.application_id, sources)
            changelogs = {changelog for task in kept for changelog, _ in task.topology.logged}
            ends = {changelog: end for changelog, (_, end) in self._context.admin.bounds(changelogs).items()}
            kept = [task for task in kept if task.is_as_left(committed, ends)]
        self._drop_these([task for task in suspended if task not in kept])
        for task in kept:
            task.resume(ends)
            self._read(task, task.processing.next_offsets, consumer)
            consumer.resume(task.topology.sources)

    def open_waiting(self) -> None:
        """Open tasks that other processes have released. Close those that were suspended for 20 s. Raises `LockedError`
        if another process holds a task for 60 s."""
        if self.waiting:
            self._open([self._tasks.all[task_id] for task_id in self.waiting])
        if time.monotonic() - self._suspended_since_s > _SUSPENDED_PATIENCE_S:
            self._drop_these(self._tasks.in_state(TaskState.SUSPENDED))

    def run_restored(self, timeout_s: float, consumer: Consumer) -> bool:
        """Restore one slice, and run restored tasks. Returns whether there was one. Raises as
        `start_with_missed_input`."""
        restored = self._restorer.advance(timeout_s)
        for task, plan in restored:
            start = start_with_missed_input(task, plan, self._context.topology)
            task.run(start)
            self._read(task, start.next_offsets, consumer)
            consumer.resume(task.topology.sources)
            if task.taken_over_s is not None:
                took_s = time.monotonic() - task.taken_over_s
                self._context.figures.promoted(took_s)
                logger.info("Task %s, a standby here until now, runs after %.3f s", task.id, took_s)
        return bool(restored)

    def _open(self, tasks: Sequence[Task]) -> None:
        opened = [task for task in tasks if self._is_opened(task)]
        if opened:
            try:
                planned = plans(opened, self._context.log, self._context.admin, self._context.topology.application_id)
            except DoesNotExistError as error:  # deleted since, and perhaps created again at once
                raise LogUnavailableError(str(error)) from error
            for task, plan in zip(opened, planned, strict=True):
                self._restorer.add(task, plan)

    def _is_opened(self, task: Task) -> bool:
        """Open it, unless another process holds its directory: the task waits then. A former standby is open."""
        if task.taken_over_s is not None:
            return True
        if not self._backed_up.is_ready(task, self._topics.ids):
            self._fetching.add(task.id)
            return False
        self._fetching.discard(task.id)
        try:
            task.open()
        except LockedError as error:
            if task.id not in self._locked_since:
                logger.info("Task %s waits for its previous owner: %s", task.id, error)
            since = self._locked_since.setdefault(task.id, time.monotonic())
            if time.monotonic() - since > _LOCK_PATIENCE_S:
                raise
            return False
        self._locked_since.pop(task.id, None)
        task.settle_topics(self._topics.ids)
        return True

    def _read(self, task: Task, next_offsets: Mapping[TopicPartition, int], consumer: Consumer) -> None:
        for source, offset in next_offsets.items():
            consumer.seek(source, offset)
        self.upgrades.add(task)

    def _stop_reading(self, task: Task) -> None:
        self._restorer.remove(task.id)
        self.upgrades.remove(task.id)
        for source in task.topology.sources:
            self._forget(source)

    def _drop_these(self, tasks: Collection[Task], *, says_only: type[StorageError] | None = StorageError) -> None:
        """Close these tasks, several at a time. If closing fails, `Task.open` mends the task later, as after a crash.
        Raises the first error that is not one of `says_only`, which are logged."""
        for task in tasks:
            self._locked_since.pop(task.id, None)
            self._fetching.discard(task.id)
            self._backed_up.forget(task.id)
            self._stop_reading(task)
        errors: list[Exception] = []
        for task, error in close_together(tasks):
            self._tasks.remove(task)
            if says_only is not None and isinstance(error, says_only):
                logger.warning("Task %s is not closed in order: %s", task.id, error)
            elif error is not None:
                errors.append(error)
        if errors:
            raise errors[0]
