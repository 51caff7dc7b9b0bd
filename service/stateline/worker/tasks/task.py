"""A task's life: one partition of one subtopology, with its stores and its lock, from its directory to its end.

| from → to              | by                  | what happens                                                      |
|------------------------|---------------------|-------------------------------------------------------------------|
| CREATED → RESTORING    | `open`              | the directory is locked, the stores are open                      |
| CREATED → STANDBY      | `follow`            | the same, for another node's task: the stores follow their        |
|                        |                     | changelogs (`standby_tasks`)                                      |
| STANDBY → RESTORING    | `take_over`         | the task is this worker's now, and its stores read the rest       |
| RESTORING → RUNNING    | `run`               | the stores are restored; it processes records and commits         |
| RUNNING → SUSPENDED    | `suspend`           | the group assigns it again; its stores answer as of the last      |
|                        |                     | commit, and nothing is written                                    |
| SUSPENDED → RUNNING    | `resume`            | no other worker has changed it meanwhile (`is_as_left`)           |
| any but CLOSED → CLOSED| `close`             | staged writes are dropped, stores and lock are released           |

`task_processing` is what a task does with records, `commit_marks` what its commits write beside rows. A task does not
decide when to commit: the worker stages, commits and closes all its tasks together.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Mapping
from dataclasses import replace

from stateline.model.topology import Subtopology
from stateline.processing.event_times import PARTITION_TIME, UNKNOWN_MS
from stateline.worker.files.topic_ids import recreated, remember, unchanged
from stateline.worker.tasks.commit_marks import NO_EPOCHS, CommitMarks, EpochNumbers
from stateline.worker.tasks.task_processing import TaskProcessing
from stateline.worker.tasks.task_settings import TaskSettings, TaskStart, TaskTopology
from stateline.worker.tasks.task_stores import TaskStores
from stateline_store import IsolationLevel, Position, StoreState, TaskLock, TopicPartition, TransactionalStore
from stateline_store.clock import boot_ms

logger = logging.getLogger(__name__)


class TaskState(enum.StrEnum):
    CREATED = "created"
    STANDBY = "standby"
    RESTORING = "restoring"
    RUNNING = "running"
    SUSPENDED = "suspended"
    CLOSED = "closed"


_MOVES = {
    TaskState.CREATED: {TaskState.RESTORING, TaskState.STANDBY, TaskState.CLOSED},
    TaskState.STANDBY: {TaskState.RESTORING, TaskState.CLOSED},
    TaskState.RESTORING: {TaskState.RUNNING, TaskState.CLOSED},
    TaskState.RUNNING: {TaskState.SUSPENDED, TaskState.CLOSED},
    TaskState.SUSPENDED: {TaskState.RUNNING, TaskState.CLOSED},
    TaskState.CLOSED: set[TaskState](),
}


class Task:
    """`recreated` topics have another id than when this task was open last. `taken_over_s` is when a standby became
    this worker's (`time.monotonic`), `suspended_at_ms` when the task was suspended (`boot_ms`); else None."""

    def __init__(self, subtopology: Subtopology, partition: int, settings: TaskSettings) -> None:
        self.topology = TaskTopology(subtopology, partition, settings.application_id, settings.parts)
        self.id = self.topology.id
        self.settings = settings
        self.state = TaskState.CREATED
        self.taken_over_s: float | None = None
        self.suspended_at_ms: int | None = None
        self._whole: dict[str, int] = {}
        self.directory = settings.directory.task(str(self.id))
        self.recreated: frozenset[str] = frozenset()
        self._same_topics: frozenset[str] = frozenset()
        self.stores = TaskStores(
            self.id,
            self.directory,
            self.topology.definitions,
            self.topology.changelogs,
            exactly_once=settings.exactly_once,
            sync=settings.sync,
            upgrade_mode=settings.upgrade_mode,
        )
        self.marks = CommitMarks(self.topology, self.stores, settings.epoch_numbers, exactly_once=settings.exactly_once)
        self._lock: TaskLock | None = None
        self._processing: TaskProcessing | None = None

    @property
    def processing(self) -> TaskProcessing:
        if self._processing is None:
            raise AssertionError(f"Task {self.id} does not run yet.")
        return self._processing

    @property
    def reads_by_group(self) -> bool:
        return self.topology.subtopology.is_read_by_group(dead_letters=self.settings.failures.writes_dead_letters)

    @property
    def staged_bytes(self) -> int:
        return sum(store.approximate_num_uncommitted_bytes for store in self.stores.by_name.values())

    def open(self) -> None:
        """Lock the task's directory and open its stores. They may have to be restored before `run`. Raises
        `LockedError` while another process holds the task. `open` may then be called again."""
        self._open(is_standby=False)
        self._move(TaskState.RESTORING)
        self.stores.publish(StoreState.RESTORING)

    def follow(self) -> None:
        """Lock the directory and open the stores as a standby. Its caller publishes their state."""
        self._open(is_standby=True)
        self._move(TaskState.STANDBY)

    def take_over(self, whole: Mapping[str, int]) -> None:
        """The group has given this standby's task to this worker. It may have to be restored before `run`. `whole` has
        the changelog offsets of stores whose Position covers all their rows."""
        self._move(TaskState.RESTORING)
        self._whole = dict(whole)
        self.taken_over_s = time.monotonic()

    def standby_offset(self, name: str) -> int | None:
        """Return the changelog offset of a store that can be read as a standby; -1 for an empty store. None if its task
        has never run here and it was not taken over whole, or its restore has written rows without their Position."""
        store, offset = self.stores.by_name[name], self.stores.offsets.committed(name)
        if self.state is not TaskState.RESTORING:
            return -1 if offset is None else offset
        if name not in self._whole or not isinstance(store, TransactionalStore) or store.restore_remaining:
            return None
        return self._whole[name] if offset is None else max(offset, self._whole[name])

    def _open(self, *, is_standby: bool) -> None:
        self._lock = self.settings.directory.lock_task(str(self.id))
        try:
            self.stores.open(is_standby=is_standby)
        except BaseException:
            self._release()
            raise

    def settle_topics(self, ids: Mapping[str, str]) -> None:
        """Forget topics that were deleted and created again since. `ids` are the topic ids now."""
        changelogs = {changelog.topic for changelog, _ in self.topology.logged}
        own = {topic: ids[topic] for topic in self.topology.log_topics() if topic in ids}
        self._same_topics = frozenset(unchanged(self.directory, own))
        self.recreated = frozenset(recreated(self.directory, own))
        for topic in sorted(self.recreated - changelogs):
            fed = self.topology.fed_by[topic]
            tables = [name for name in fed if self.topology.definitions[name].source is not None]
            rebuilt = f": task {self.id} rebuilds {', '.join(tables)}" if tables else ""
            logger.warning("Topic %s was created again%s", topic, rebuilt)
            for name in fed:
                if name in tables:
                    self.stores.rebuild(name)
                else:
                    self.stores.forget(name, topic)
        lost = [log.topic for log, name in self.topology.logged if self.stores.furthest_offset(name) is not None]
        if self.recreated.isdisjoint(lost):  # otherwise the task is refused because of the old id
            remember(self.directory, own)

    def is_same_topic(self, topic: str) -> bool:
        return topic in self._same_topics

    def run(self, start: TaskStart) -> None:
        """The stores are restored: take records from `start` on."""
        self.marks.take_over(start.ends)
        self._forget_what_is_not_there(start.ends)
        for name, position in start.positions.items():
            self._advance_restored(name, position)
        self.stores.announce()
        start = replace(start, partition_times={**start.partition_times, **self._times_of_tables()})
        self._processing = TaskProcessing(self.topology, self.stores, self.settings, start)
        self._move(TaskState.RUNNING)  # whoever looks at running tasks asks what they process
        self.stores.formats.drop_plain(self.stores.offsets.committed)
        self.stores.publish(StoreState.ACTIVE)

    def commit_stores(self, written: Mapping[TopicPartition, int], epochs: EpochNumbers = NO_EPOCHS) -> None:
        """Commit every store. `written` has the last changelog offset of each partition written by this commit,
        `epochs` the numbers of the epochs that end with it (`LOADING` for none). A failure does not keep the others
        from their commit. The first failure is raised. Other processes see the commit after `TaskStores.announce`."""
        next_offsets = self.processing.next_offsets
        self.stores.commit(
            {
                name: self.marks.changelog_offset(name, written, next_offsets) | self._beside_rows(name, epochs)
                for name in self.topology.definitions
            }
        )
        self.processing.committed()
        self.marks.wrote(written)

    def commit_unlogged_stores(self, epochs: EpochNumbers = NO_EPOCHS) -> None:
        """Commit the stores that nothing can rebuild. Their input must not be committed before."""
        for name in self.topology.unlogged:
            self.stores.commit_one(name, self._beside_rows(name, epochs))

    def commit_restored(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit the rows that were restored so far, as of no whole epoch."""
        self.stores.commit_one(name, {**offsets, **self._beside_rows(name, NO_EPOCHS)})

    def _beside_rows(self, name: str, epochs: EpochNumbers) -> dict[TopicPartition, int]:
        times = {} if self._processing is None else self._processing.time_marks(name)
        return {**times, **self.marks.epoch_numbers(name, epochs)}

    def suspend(self) -> None:
        """Keep the stores open without writing: everything is committed, and others may own this task from now on."""
        self._move(TaskState.SUSPENDED)
        self.suspended_at_ms = boot_ms()
        self.give_back()

    def give_back(self) -> None:
        """Publish that others may own this task from now on. Readers in other processes must hear of it first."""
        self.stores.publish(StoreState.STANDBY)

    def is_as_left(self, committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> bool:
        """Return whether no other worker has changed this suspended task. `committed` are the group's offsets of its
        sources, `ends` the ends of its changelogs, with open transactions."""
        for source in self.topology.sources if self.reads_by_group else ():
            if committed.get(source, 0) != self.processing.next_offsets[source]:
                return False
        return self.marks.are_newest(ends)

    def resume(self, ends: Mapping[TopicPartition, int]) -> None:
        """Continue from `next_offsets`: no other worker has changed the task. `ends`: see `is_as_left`. A worker that
        had the task and has not written yet is a former owner from now on."""
        self._move(TaskState.RUNNING)
        self.suspended_at_ms = None
        self.marks.take_over(ends)
        self.stores.publish(StoreState.ACTIVE)

    def close(self) -> None:
        """Drop staged writes, close the stores and release the directory. A second call does nothing."""
        if self.state is TaskState.CLOSED:
            return
        try:
            dirty = self._processing is not None and self._processing.dirty
            self.stores.close(clean=self.state in (TaskState.RUNNING, TaskState.SUSPENDED) and not dirty)
        finally:
            self._release()
            self._move(TaskState.CLOSED)

    def _advance_restored(self, name: str, position: Position) -> None:
        topics = [topic for topic, names in self.topology.fed_by.items() if name in names]
        self.stores.advance(name, Position({t: position.offsets[t] for t in topics if t in position.offsets}))
        committed = self.stores.position(name, IsolationLevel.READ_COMMITTED)
        if self.stores.position(name, IsolationLevel.READ_UNCOMMITTED) != committed:
            self.stores.commit_one(name, {})

    def _times_of_tables(self) -> dict[TopicPartition, int]:
        """Return the partition times of topics that are read from their tables' own offsets. The tables keep them."""
        found: dict[TopicPartition, int] = {}
        for source in () if self.reads_by_group else self.topology.sources:
            stores = (self.stores.by_name[name] for name in self.topology.tables[source.topic])
            times = [s.committed_offset(PARTITION_TIME) for s in stores if isinstance(s, TransactionalStore)]
            # The table that is furthest behind says where the topic is read from.
            found[source] = min((UNKNOWN_MS if at is None else at for at in times), default=UNKNOWN_MS)
        return found

    def _forget_what_is_not_there(self, ends: Mapping[TopicPartition, int]) -> None:
        """Forget Positions beyond a topic's end: a changelog may have those of a deleted topic of the same name."""
        for name in self.topology.definitions:
            for (topic, partition), offset in list(self.stores.position(name, IsolationLevel.READ_COMMITTED)):
                if offset >= ends.get(TopicPartition(topic, partition), offset + 1):
                    logger.warning("Store %s has offset %d of %s, which ends before it", name, offset, topic)
                    self.stores.forget(name, topic)

    def _move(self, to: TaskState) -> None:
        if to not in _MOVES[self.state]:
            raise AssertionError(f"Task {self.id} cannot go from {self.state} to {to}.")
        self.state = to
        self.settings.moved()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
