"""The tasks of a worker: how they come and go with the partitions that its group gives it.

| what the group does                            | what becomes of a task                                              |
|------------------------------------------------|---------------------------------------------------------------------|
| gives a partition                              | opened, restored, run; waits while another process holds it         |
| takes a partition                              | closed, after a commit                                              |
| takes all, to say soon who gets what           | suspended after a commit: it stays open and answers                 |
| gives a suspended one back, as it was left     | goes on at once: nothing is closed, opened or restored              |
| gives a suspended one back, gone on with since | closed and opened: it restores what another worker wrote            |
| says nothing for long                          | a suspended one is closed: who has it now may wait for its files    |
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from stateline.log.interface import Admin, Consumer
from stateline.model.task_id import TaskId
from stateline.model.topology import Subtopology, Topology
from stateline.worker.format_upgrades import FormatUpgrades
from stateline.worker.restore import Restorer, plans
from stateline.worker.task import Task, TaskState
from stateline.worker.task_settings import TaskSettings
from stateline.worker.topic_watch import TopicWatch
from stateline_store import DoesNotExistError, LockedError, LogUnavailableError, TopicPartition

logger = logging.getLogger(__name__)

# How long a task may be held by another process (its previous owner closing down) before this is an error.
_LOCK_PATIENCE_S = 60.0
# Shorter than that: who waits for a task that is suspended here gets it.
_SUSPENDED_PATIENCE_S = 20.0


class Tasks:
    """One worker's, on its thread. `by_source` finds a task by a partition that it reads.

    It decides nothing about commits: what is not committed before `suspend`, `revoke` and `drop_all` is dropped.
    """

    def __init__(
        self,
        topology: Topology,
        admin: Admin,
        restorer: Restorer,
        upgrades: FormatUpgrades,
        topics: TopicWatch,
        settings: TaskSettings,
        forget: Callable[[TopicPartition], None],
    ) -> None:
        """`forget` drops what is kept elsewhere of a source's records."""
        self.by_source: dict[TopicPartition, Task] = {}
        self._topology = topology
        self._admin = admin
        self._restorer = restorer
        self._upgrades = upgrades
        self._topics = topics
        self._settings = settings
        self._forget = forget
        self._by_id: dict[TaskId, Task] = {}
        self._by_store: dict[tuple[str, int], Task] = {}
        self._locked_since: dict[TaskId, float] = {}  # tasks whose directory another process holds
        self._suspended_since_s = 0.0

    @property
    def all(self) -> Mapping[TaskId, Task]:
        """Every task by its id."""
        return self._by_id

    @property
    def running(self) -> list[Task]:
        """Those that take records."""
        return self._in(TaskState.RUNNING)

    def dirty(self) -> list[Task]:
        """Those with something to commit."""
        return [task for task in self.running if task.processing.dirty]

    @property
    def waiting(self) -> Collection[TaskId]:
        """The ids of those whose directory another process holds."""
        return self._locked_since

    def of_store(self, store: str, partition: int) -> Task | None:
        """The task with this partition of a store, or None when this worker has not got it."""
        return self._by_store.get((store, partition))

    def _in(self, state: TaskState) -> list[Task]:
        return [task for task in self._by_id.values() if task.state is state]

    # ---- what the group does

    def assign(self, partitions: Collection[TopicPartition], consumer: Consumer) -> None:
        """These are the worker's now, with what is suspended among them; other suspended tasks are not any more."""
        changed = self._topics.remember(partitions)
        self._resume({*partitions}, changed, consumer)
        added: list[Task] = []
        for subtopology in self._topology.subtopologies:
            names = {topic.name for topic in subtopology.sources}
            for number in sorted({tp.partition for tp in partitions if tp.topic in names}):
                if subtopology.task_id(number) not in self._by_id:
                    added.append(self._add(subtopology, number, consumer))
        self._open(added)

    def suspend(self) -> None:
        """The group takes everything, and will say who gets what. Only what runs is kept open for that."""
        for task in list(self._by_id.values()):
            if task.state is TaskState.RUNNING and not task.processing.dirty:
                task.suspend()
                self._stop_reading(task)
            else:
                self._drop(task)
        self._suspended_since_s = time.monotonic()

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """These are not the worker's any more."""
        for partition in partitions:
            if (task := self.by_source.get(partition)) is not None:
                self._drop(task)

    def drop_all(self) -> None:
        """Close every task; what is staged is dropped."""
        self._drop_these(list(self._by_id.values()))

    def _resume(self, partitions: Collection[TopicPartition], changed: Collection[str], consumer: Consumer) -> None:
        suspended = self._in(TaskState.SUSPENDED)
        ends: dict[TopicPartition, int] = {}
        kept = [task for task in suspended if all(s in partitions for s in task.topology.sources)]
        kept = [task for task in kept if task.topology.log_topics().isdisjoint(changed)]
        if kept:
            # In this order: another worker's commit writes changelogs before offsets.
            sources = [source for task in kept for source in task.topology.sources]
            committed = self._admin.committed(self._topology.application_id, sources)
            changelogs = {changelog for task in kept for changelog, _ in task.topology.logged}
            ends = {changelog: end for changelog, (_, end) in self._admin.bounds(changelogs).items()}
            kept = [task for task in kept if task.is_as_left(committed, ends)]
        self._drop_these([task for task in suspended if task not in kept])
        for task in kept:
            task.resume(ends)
            self._read(task, task.processing.next_offsets, consumer)

    # ---- opening and closing

    def open_waiting(self) -> None:
        """Open the tasks that other processes have let go, and close those that have been suspended for long.

        Raises `LockedError` when a task was held for a minute.
        """
        if self._locked_since:
            self._open([self._by_id[task_id] for task_id in self._locked_since])
        if time.monotonic() - self._suspended_since_s > _SUSPENDED_PATIENCE_S:
            self._drop_these(self._in(TaskState.SUSPENDED))

    def run_restored(self, timeout_s: float, consumer: Consumer) -> bool:
        """Go on with restoring; a task that is through takes records from now on. Whether there was one."""
        restored = self._restorer.advance(timeout_s)
        for task, plan in restored:
            task.run(plan.next_offsets, plan.proven_positions(), plan.ends)
            self._read(task, plan.next_offsets, consumer)
            consumer.resume(task.topology.sources)
        return bool(restored)

    def _add(self, subtopology: Subtopology, partition: int, consumer: Consumer) -> Task:
        task = Task(subtopology, partition, self._settings)
        self._by_id[task.id] = task
        self.by_source.update(dict.fromkeys(task.topology.sources, task))
        self._by_store.update({(store, partition): task for store in task.topology.definitions})
        consumer.pause(task.topology.sources)
        return task

    def _open(self, tasks: Sequence[Task]) -> None:
        """Open these tasks and plan their restores together."""
        opened = [task for task in tasks if self._is_opened(task)]
        if opened:
            try:
                planned = plans(opened, self._admin, self._topology.application_id)
            except DoesNotExistError as error:  # deleted since, and perhaps made anew at once
                raise LogUnavailableError(str(error)) from error
            for task, plan in zip(opened, planned, strict=True):
                self._restorer.add(task, plan)

    def _is_opened(self, task: Task) -> bool:
        """Open it, unless another process still holds its directory: the task waits then."""
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
        self._upgrades.add(task)

    def _stop_reading(self, task: Task) -> None:
        self._restorer.remove(task.id)
        self._upgrades.remove(task.id)
        for source in task.topology.sources:
            self._forget(source)

    def _drop_these(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            self._drop(task)

    def _drop(self, task: Task) -> None:
        self._locked_since.pop(task.id, None)
        self._stop_reading(task)
        task.close()
        self._by_id.pop(task.id, None)
        for source in task.topology.sources:
            self.by_source.pop(source, None)
        for store in task.topology.definitions:
            self._by_store.pop((store, task.topology.partition), None)
