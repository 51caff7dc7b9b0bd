"""Restore: bring the stores of a task up to the log before it takes new records.

Each store says itself up to where it has applied its changelog (`committed_offset`, the last applied record). The
rest of the changelog is read from there, in slices, between which the worker answers queries and polls its group.

| store                                | changelog            | restored up to                                  |
|--------------------------------------|----------------------|-------------------------------------------------|
| logged                               | its changelog topic  | the end it had when the restore began           |
| table that nothing else reads        | its source topic     | not at all: the task starts at the store's offset |
| table beside a processor             | its source topic     | the group's committed offset                    |

"At the end" is ``next_offset >= end``: control records and compacted offsets may follow the last record. A store whose
offset lies before the log's first kept record cannot know what it missed: that store alone is wiped and rebuilt.
"""

from __future__ import annotations

import itertools
import logging
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field

from stateline.log.interface import Admin, Consumer, Log, Record
from stateline.topology import Topic
from stateline.worker.changelog import end_of_last_commit, position_of_changelog, position_of_input, stage
from stateline.worker.reading import readable
from stateline.worker.task import Task
from stateline_store import (
    DamagedDataError,
    IsolationLevel,
    KeyValueStore,
    Position,
    RetryLaterError,
    StoreState,
    TopicPartition,
)

logger = logging.getLogger(__name__)

_SLICE_RECORDS = 5_000
# Restored records are committed in batches of about this much memory: large enough for fast sorted batches.
_BATCH_BYTES = 8 * 1024 * 1024
# Without a Position for so many records, the changelog was not written by Stateline: they are taken as they are.
_HELD_RECORDS = 200_000


@dataclass(slots=True)
class StoreRestore:
    """What one store still has to read: from `next_offset` up to, not including, `end`.

    `table_of` is the topic of a table; such records meet the serdes again, as they did when they were first read.
    `held` is the beginning of a commit whose end, with the Position, was not read yet.
    """

    store: KeyValueStore
    changelog: TopicPartition
    next_offset: int
    end: int
    table_of: Topic | None
    restored: int = 0
    held: list[Record] = field(default_factory=list)

    @property
    def remaining(self) -> int:
        """Offsets left to read; some of them may hold no record."""
        return max(0, self.end - self.next_offset)


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """Where a task begins: what its stores must restore first, then the input offsets to go on from.

    `positions` says of some stores what they reflect, once restored, by what the group has committed; `ends` is
    where the input ended, which no Position can have passed.
    """

    restores: tuple[StoreRestore, ...]
    next_offsets: Mapping[TopicPartition, int]
    positions: Mapping[str, Position]
    ends: Mapping[TopicPartition, int]


def plan(task: Task, admin: Admin, group: str) -> TaskPlan:
    """Read offsets from the log and the stores, and decide. The task is open.

    Raises `DamagedDataError` when a changelog has lost what its store still has.
    """
    committed = admin.committed(group, task.sources)
    position = Position.of({source: offset - 1 for source, offset in committed.items() if offset > 0})
    next_offsets: dict[TopicPartition, int] = {}
    restores: list[StoreRestore] = []
    positions: dict[str, Position] = {}
    ends: dict[TopicPartition, int] = {}
    for topic in task.subtopology.sources:
        source = TopicPartition(topic.name, task.partition)
        first, ends[source] = _bounds(admin, source)
        next_offsets[source], table_restores = _plan_source(task, topic, first, ends[source], committed.get(source))
        restores += table_restores
    for changelog, store in task.logged_stores():
        first, end = _bounds(admin, changelog)
        restores.append(StoreRestore(store, changelog, _resume_logged(task, store, changelog, first, end), end, None))
        if end > 0:
            # A commit writes changelogs before offsets: who is at the changelog's end has seen what the group has.
            # An empty changelog proves nothing: the store may be new.
            positions[store.name] = position
    return TaskPlan(tuple(r for r in restores if r.remaining), next_offsets, positions, ends)


def _plan_source(
    task: Task, topic: Topic, first: int, end: int, committed: int | None
) -> tuple[int, list[StoreRestore]]:
    source = TopicPartition(topic.name, task.partition)
    tables = [task.stores[definition.name] for definition in task.subtopology.tables(source.topic)]
    resumes = [(table, _resume_table(task, table, source, first, end)) for table in tables]
    if not task.reads_by_group(topic.name):
        return min((offset for _, offset in resumes), default=first), []
    start = first if committed is None else max(committed, first)
    return start, [StoreRestore(table, source, offset, start, topic) for table, offset in resumes]


def _bounds(admin: Admin, partition: TopicPartition) -> tuple[int, int]:
    """First offset kept, and the end with open transactions counted: a predecessor's may just be committing."""
    first, _ = admin.watermarks(partition)
    return first, admin.log_end(partition)


def _resume_table(task: Task, store: KeyValueStore, source: TopicPartition, first: int, end: int) -> int:
    """The next offset to read. A table is what its topic says: one that no longer fits it is rebuilt."""
    offset = store.committed_offset(source)
    if offset is None:
        return first
    if not first <= offset + 1 <= end:
        return _rebuild(task, store, source, first, end)
    return offset + 1


def _resume_logged(task: Task, store: KeyValueStore, changelog: TopicPartition, first: int, end: int) -> int:
    """The next offset to read. A changelog that ends before its store is the one that lost something."""
    offset = store.committed_offset(changelog)
    if offset is None:
        return first
    if offset + 1 > end:
        raise DamagedDataError(
            f"Store {store.name!r} of task {task.id} has changelog offset {offset}, but {changelog} ends at {end}: the "
            "topic was deleted or this is another cluster. Bring the topic back; or, to begin anew without the store's "
            f"data, stop the workers and delete {store.name!r} below the task's directory."
        )
    return _rebuild(task, store, changelog, first, end) if offset + 1 < first else offset + 1


def _rebuild(task: Task, store: KeyValueStore, log: TopicPartition, first: int, end: int) -> int:
    logger.warning(
        "Store %s of task %s stands at offset %s, but %s holds %d to %d: it is deleted and rebuilt from there.",
        store.name, task.id, store.committed_offset(log), log, first, end - 1,
    )  # fmt: skip
    task.rebuild(store.name)
    return first


class Restorer:
    """Reads changelogs for the tasks that need it. One worker's; used between its slices of work."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._consumer: Consumer | None = None
        self._tasks: dict[str, tuple[Task, TaskPlan]] = {}
        self._pending: list[StoreRestore] = []

    def add(self, task: Task, task_plan: TaskPlan) -> None:
        """Restore this task; `advance` returns it when it is done (at once when there is nothing to read)."""
        for restore in task_plan.restores:
            restore.store.set_state(StoreState.RESTORING, restore.remaining)
            logger.info("Restoring %s of task %s: %d offsets", restore.store.name, task.id, restore.remaining)
        self._tasks[task.id] = (task, task_plan)
        self._reassign()

    def remove(self, task_id: str) -> None:
        """Forget a task. What its stores have restored so far is committed, so that the next owner reads the rest."""
        if task_id not in self._tasks:
            return
        _, task_plan = self._tasks.pop(task_id)
        for restore in task_plan.restores:
            if restore.remaining:
                _commit_quietly(restore)
        self._reassign()

    @property
    def busy(self) -> bool:
        """Whether a task waits for `advance`."""
        return bool(self._tasks)

    def advance(self, timeout_s: float) -> list[tuple[Task, TaskPlan]]:
        """Read and apply one slice; the tasks that are restored now, with their plan."""
        if self._consumer is not None:
            slices = by_partition(self._consumer.poll(_SLICE_RECORDS, timeout_s))
            for restore in self._pending:
                _apply(restore, slices.get(restore.changelog, []))
            self._finish(self._consumer)
        done = [(task, p) for task, p in self._tasks.values() if not any(r.remaining for r in p.restores)]
        for task, _ in done:
            del self._tasks[task.id]
        return done

    def close(self) -> None:
        """Release the consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _finish(self, consumer: Consumer) -> None:
        """Commit the stores that are through, and stop reading their changelogs."""
        for restore in self._pending:
            at = consumer.next_offset(restore.changelog)
            if not restore.remaining or (at is not None and at >= restore.end):
                _stage_changelog(restore, len(restore.held))
                restore.next_offset = restore.end
                _commit(restore)
                logger.info("Restored %s from %s: %d records",
                            restore.store.name, restore.changelog, restore.restored)  # fmt: skip
        if any(not restore.remaining for restore in self._pending):
            self._reassign()

    def _reassign(self) -> None:
        """Read what is pending, each changelog from where the furthest behind of its stores stands."""
        self._pending = [r for _, p in self._tasks.values() for r in p.restores if r.remaining]
        if not self._pending:
            self.close()
            return
        if self._consumer is None:
            self._consumer = self._log.consumer()
        starts: dict[TopicPartition, int] = {}
        for restore in self._pending:
            at = starts.get(restore.changelog, restore.next_offset)
            starts[restore.changelog] = min(at, restore.next_offset)
        self._consumer.assign(starts)


def _apply(restore: StoreRestore, records: list[Record]) -> None:
    """Stage records, commits as wholes: half of one would be ahead of its Position."""
    records = [record for record in records if restore.next_offset <= record.offset < restore.end]
    if not records:
        return
    restore.next_offset = records[-1].offset + 1
    if restore.table_of is not None:
        _stage_table(restore, restore.table_of, records)
    else:
        whole = end_of_last_commit(records)
        if whole:
            whole += len(restore.held)
        restore.held += records
        _stage_changelog(restore, len(restore.held) if len(restore.held) > _HELD_RECORDS else whole)
    if restore.store.approximate_num_uncommitted_bytes >= _BATCH_BYTES:
        _commit(restore)


def _stage_table(restore: StoreRestore, topic: Topic, records: list[Record]) -> None:
    seen = restore.store.position(IsolationLevel.READ_UNCOMMITTED).get(*restore.changelog)
    new = [record for record in records if seen is None or record.offset > seen]
    stage(restore.store, readable(topic, new, None, key_required=True))
    restore.store.advance(position_of_input(records))
    restore.restored += len(records)


def _stage_changelog(restore: StoreRestore, count: int) -> None:
    records, restore.held = restore.held[:count], restore.held[count:]
    stage(restore.store, records)
    restore.store.advance(position_of_changelog(records))
    restore.restored += len(records)


def _commit(restore: StoreRestore) -> None:
    applied = restore.held[0].offset if restore.held else restore.next_offset
    if restore.restored:
        restore.store.commit({restore.changelog: applied - 1})
    restore.store.set_state(StoreState.RESTORING, restore.remaining)


def _commit_quietly(restore: StoreRestore) -> None:
    try:
        _commit(restore)
    except RetryLaterError as error:
        logger.warning("What was restored of %s is not kept and will be read again: %s", restore.store.name, error)


def by_partition(records: list[Record]) -> dict[TopicPartition, list[Record]]:
    """The records of each partition, in their order."""
    groups: dict[TopicPartition, list[Record]] = {}
    # Records come in runs of one partition: run by run this takes a fifth of the time.
    for source, run in itertools.groupby(records, operator.attrgetter("topic", "partition")):
        groups.setdefault(TopicPartition(*source), []).extend(run)
    return groups
