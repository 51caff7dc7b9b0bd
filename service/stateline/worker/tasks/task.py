"""A task's life: one partition of one subtopology, with its stores and its lock, from its directory to its end.

| from → to              | by                  | what happens                                                      |
|------------------------|---------------------|-------------------------------------------------------------------|
| CREATED → RESTORING    | `open`              | the directory is locked, the stores are open                      |
| CREATED → STANDBY      | `follow`            | as `open`, of a task that another node has: its stores follow     |
|                        |                     | their changelogs (`standby_tasks`)                                |
| STANDBY → RESTORING    | `take_over`         | it is this worker's now: its stores read the rest                 |
| RESTORING → RUNNING    | `run`               | the stores are restored: it processes records and commits         |
| RUNNING → SUSPENDED    | `suspend`           | the group decides anew who has it; its stores stay open and       |
|                        |                     | answer, as of the last commit, and nothing is written             |
| SUSPENDED → RUNNING    | `resume`            | nobody else has gone on with it meanwhile (`is_as_left`)          |
| any but CLOSED → CLOSED| `close`             | what is staged is dropped, stores and lock are let go             |

What it does with records is `task_processing`, what its commits write beside rows `commit_marks`. It decides nothing
about when to commit: the worker stages, commits and closes all its tasks together.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Mapping
from types import MappingProxyType

from stateline.model.topology import Subtopology
from stateline.processing.event_times import PARTITION_TIME, UNKNOWN_MS
from stateline.worker.files.topic_ids import recreated, remember, unchanged
from stateline.worker.tasks.commit_marks import NO_EPOCHS, CommitMarks, EpochNumbers
from stateline.worker.tasks.task_processing import TaskProcessing
from stateline.worker.tasks.task_settings import TaskSettings
from stateline.worker.tasks.task_stores import TaskStores
from stateline.worker.tasks.task_topology import TaskTopology
from stateline_store import IsolationLevel, Position, StoreState, TaskLock, TopicPartition, TransactionalStore
from stateline_store.clock import boot_ms

logger = logging.getLogger(__name__)


class TaskState(enum.StrEnum):
    """Where a task is in its life."""

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
    """One owner thread: the worker's. `recreated` are topics with another id than when this task was open last;
    `taken_over_s` is when a standby became this worker's (`time.monotonic`), None of any other; `suspended_at_ms` since
    when it is suspended (`boot_ms`), None while it is not."""

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
        """What it does with records, once it runs."""
        if self._processing is None:
            raise AssertionError(f"Task {self.id} does not run yet.")
        return self._processing

    def reads_by_group(self, topic: str) -> bool:
        """As `Subtopology.is_read_by_group`."""
        dead_letters = self.settings.failures.writes_dead_letters
        return self.topology.subtopology.is_read_by_group(topic, dead_letters=dead_letters)

    @property
    def staged_bytes(self) -> int:
        """Memory that the next commit of this task frees."""
        return sum(store.approximate_num_uncommitted_bytes for store in self.stores.by_name.values())

    def open(self) -> None:
        """Take the task's directory and open its stores: they may have to be restored before `run`.

        Raises `LockedError` while another process holds the task; the task can then be opened again later.
        """
        self._open(is_standby=False)
        self._move(TaskState.RESTORING)
        self.stores.publish(StoreState.RESTORING)

    def follow(self) -> None:
        """As `open`, as a standby of a task that another node has. Whoever follows says what is left of it."""
        self._open(is_standby=True)
        self._move(TaskState.STANDBY)

    def take_over(self, whole: Mapping[str, int]) -> None:
        """The group has given this standby's task to this worker: it may have to be restored before `run`. `whole` are
        the stores that have the Position of all that they have, with the changelog offset that goes with it."""
        self._move(TaskState.RESTORING)
        self._whole = dict(whole)
        self.taken_over_s = time.monotonic()

    def standby_offset(self, name: str) -> int | None:
        """The changelog offset of a store that can be read as a standby: one of a task that has run, or one that was
        taken over whole, unless its restore has put rows into it whose Position is still to come. None of any other;
        -1 for one that has nothing."""
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
        """Let go of what was made from topics that were deleted and created anew since (`ids`: topic → topic id)."""
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
        if self.recreated.isdisjoint(lost):  # else the old id is what the refusal rests on
            remember(self.directory, own)

    def is_same_topic(self, topic: str) -> bool:
        """Whether this topic is known to be the one that it was when this task was open last."""
        return topic in self._same_topics

    def run(
        self,
        next_offsets: Mapping[TopicPartition, int],
        positions: Mapping[str, Position],
        ends: Mapping[TopicPartition, int],
        partition_times: Mapping[TopicPartition, int] = MappingProxyType({}),
        fed: Mapping[TopicPartition, str | None] = MappingProxyType({}),
        fed_before: Mapping[TopicPartition, str | None] = MappingProxyType({}),
    ) -> None:
        """Restored: take records from these offsets on.

        `partition_times` are those that the group has with its offsets, as `EventTimes` kept them. `positions` says
        of a store what it reflects at least, beyond what it says itself; `ends` is where the input and the changelogs
        ended when the restore began. `fed` and `fed_before` as `TaskProcessing`.
        """
        self.marks.take_over(ends)
        self._forget_what_is_not_there(ends)
        for name, position in positions.items():
            self._advance_restored(name, position)
        self.stores.announce()
        known = {**partition_times, **self._times_of_tables()}
        self._processing = TaskProcessing(
            self.topology, self.stores, self.settings, next_offsets, known, fed, fed_before
        )
        self._move(TaskState.RUNNING)  # whoever looks at running tasks asks what they process
        self.stores.formats.drop_plain(self.stores.offsets.committed)
        self.stores.publish(StoreState.ACTIVE)

    def commit_stores(self, written: Mapping[TopicPartition, int], epochs: EpochNumbers = NO_EPOCHS) -> None:
        """Commit every store; `written` has the last changelog offset of each partition written by this commit, and
        `epochs` the numbers of the epochs that end with it (`LOADING` where there is none).

        Every store is tried even if one fails; the first failure is raised then. Other processes see it when
        `TaskStores.announce` is called.
        """
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
        """Commit the stores that nothing can rebuild; the input must not be committed before it is in them."""
        for name in self.topology.unlogged:
            self.stores.commit_one(name, self._beside_rows(name, epochs))

    def commit_restored(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit what was restored so far of a store: of no whole epoch."""
        self.stores.commit_one(name, {**offsets, **self._beside_rows(name, NO_EPOCHS)})

    def _beside_rows(self, name: str, epochs: EpochNumbers) -> dict[TopicPartition, int]:
        times = {} if self._processing is None else self._processing.time_marks(name)
        return {**times, **self.marks.epoch_numbers(name, epochs)}

    def suspend(self) -> None:
        """Everything is committed, and others may own this task from now on: keep the stores as they are."""
        self._move(TaskState.SUSPENDED)
        self.suspended_at_ms = boot_ms()
        self.give_back()

    def give_back(self) -> None:
        """Others may own this task from now on: readers in other processes hear of it before anything else is done."""
        self.stores.publish(StoreState.STANDBY)

    def is_as_left(self, committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> bool:
        """Whether no other worker has gone on with this suspended task.

        `committed` are the group's offsets of its sources, `ends` where its changelogs end, open transactions counted.
        """
        for source in self.topology.sources:
            if self.reads_by_group(source.topic) and committed.get(source, 0) != self.processing.next_offsets[source]:
                return False
        return self.marks.are_newest(ends)

    def resume(self, ends: Mapping[TopicPartition, int]) -> None:
        """Nobody else has gone on with it: go on from `next_offsets`. `ends` as `is_as_left`; who had it and has not
        written yet is a former owner from now on."""
        self._move(TaskState.RUNNING)
        self.suspended_at_ms = None
        self.marks.take_over(ends)
        self.stores.publish(StoreState.ACTIVE)

    def close(self) -> None:
        """Drop what is staged, close the stores and let the directory go. A second call does nothing."""
        if self.state is TaskState.CLOSED:
            return
        try:
            dirty = self._processing is not None and self._processing.dirty
            self.stores.close(clean=self.state in (TaskState.RUNNING, TaskState.SUSPENDED) and not dirty)
        finally:
            self._release()
            self._move(TaskState.CLOSED)

    def _advance_restored(self, name: str, position: Position) -> None:
        """Say in a store that it reflects this of the topics that feed it."""
        topics = [topic for topic, names in self.topology.fed_by.items() if name in names]
        self.stores.advance(name, Position({t: position.offsets[t] for t in topics if t in position.offsets}))
        committed = self.stores.position(name, IsolationLevel.READ_COMMITTED)
        if self.stores.position(name, IsolationLevel.READ_UNCOMMITTED) != committed:
            self.stores.commit_one(name, {})

    def _times_of_tables(self) -> dict[TopicPartition, int]:
        """The partition times of topics that the tables' own offsets are read by: they have them beside these."""
        found: dict[TopicPartition, int] = {}
        for source in self.topology.sources:
            if self.reads_by_group(source.topic):
                continue
            stores = (self.stores.by_name[name] for name in self.topology.tables[source.topic])
            times = [s.committed_offset(PARTITION_TIME) for s in stores if isinstance(s, TransactionalStore)]
            # Where they differ the one that is behind says where to read on.
            found[source] = min((UNKNOWN_MS if at is None else at for at in times), default=UNKNOWN_MS)
        return found

    def _forget_what_is_not_there(self, ends: Mapping[TopicPartition, int]) -> None:
        """A changelog can bring back the Position of a topic that was deleted and created anew, shorter, since."""
        for name in self.topology.definitions:
            for (topic, partition), offset in list(self.stores.position(name, IsolationLevel.READ_COMMITTED)):
                if offset >= ends.get(TopicPartition(topic, partition), offset + 1):
                    logger.warning("Store %s has offset %d of %s, which ends before it", name, offset, topic)
                    self.stores.forget(name, topic)

    def _move(self, to: TaskState) -> None:
        if to not in _MOVES[self.state]:
            raise AssertionError(f"Task {self.id} cannot go from {self.state} to {to}.")
        self.state = to

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
