"""A task: one partition of one subtopology, with its stores, its lock and what was read and not yet committed.

    CREATED ──open──► RESTORING ──restored──► RUNNING
       └─────────────────┴──────────┬───────────┘
                                  close
                                    ▼
                                  CLOSED

A task decides nothing about when to commit: the worker stages, commits and closes all its tasks together.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping, Sequence

from stateline.log.interface import Record
from stateline.stores import MAX_RECORD_BYTES
from stateline.topology import StoreDefinition, Subtopology, Topic
from stateline.worker.changelog import position_of_input, stage
from stateline.worker.failures import FailureHandler
from stateline.worker.processing import ProcessorRunner
from stateline.worker.reading import NO_KEY, readable, typed
from stateline.worker.records import OutputRecord
from stateline.worker.topic_ids import recreated, remember
from stateline_store import (
    DamagedDataError,
    InvalidArgumentError,
    IsolationLevel,
    KeyValueStore,
    Position,
    StateDirectory,
    StatelineError,
    StoreContext,
    StoreState,
    TaskLock,
    TopicPartition,
)

logger = logging.getLogger(__name__)


class TaskState(enum.StrEnum):
    """Where a task is in its life."""

    CREATED = "created"
    RESTORING = "restoring"
    RUNNING = "running"
    CLOSED = "closed"


_MOVES = {
    TaskState.CREATED: {TaskState.RESTORING, TaskState.CLOSED},
    TaskState.RESTORING: {TaskState.RUNNING, TaskState.CLOSED},
    TaskState.RUNNING: {TaskState.CLOSED},
    TaskState.CLOSED: set[TaskState](),
}


class Task:
    """One owner thread: the worker's. `next_offsets` is the input processed so far, as offsets to go on from."""

    def __init__(
        self,
        subtopology: Subtopology,
        partition: int,
        application_id: str,
        directory: StateDirectory,
        failures: FailureHandler,
        *,
        sync: bool = False,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        self.id = subtopology.task_id(partition)
        self.subtopology = subtopology
        self.partition = partition
        self.state = TaskState.CREATED
        self.definitions: dict[str, StoreDefinition] = {d.name: d for d in subtopology.stores}
        self.stores: dict[str, KeyValueStore] = {d.name: d.build() for d in subtopology.stores}
        self.next_offsets: dict[TopicPartition, int] = {}
        self.committed_next_offsets: dict[TopicPartition, int] = {}
        self._application_id = application_id
        self._directory = directory
        self._failures = failures
        self._sync = sync
        self._max_record_bytes = max_record_bytes
        self._topics = {topic.name: topic for topic in subtopology.sources}
        self._tables = {t: [self.stores[d.name] for d in subtopology.tables(t)] for t in self._topics}
        self._fed_by = {topic.name: subtopology.stores_fed_by(topic.name) for topic in subtopology.sources}
        self._lock: TaskLock | None = None
        self._runners: dict[str, list[ProcessorRunner]] = {}

    @property
    def sources(self) -> list[TopicPartition]:
        """This task's partition of every source topic."""
        return [TopicPartition(topic.name, self.partition) for topic in self.subtopology.sources]

    def changelog(self, store: str) -> TopicPartition | None:
        """The partition that a store can be rebuilt from, or None."""
        topic = self.definitions[store].changelog(self._application_id)
        return None if topic is None else TopicPartition(topic, self.partition)

    def reads_by_group(self, topic: str) -> bool:
        """Whether the group's committed offset says where to go on, and not the tables' own offsets.

        So it must be when reading a record again would do more than put it into a table again.
        """
        return bool(self.subtopology.readers(topic)) or self._failures.writes_dead_letters

    @property
    def staged_bytes(self) -> int:
        """Memory that the next commit of this task frees."""
        return sum(store.approximate_num_uncommitted_bytes for store in self.stores.values())

    @property
    def dirty(self) -> bool:
        """Whether input was processed that is not committed yet."""
        return self.next_offsets != self.committed_next_offsets

    def open(self) -> None:
        """Take the task's directory and open its stores: they may have to be restored before `run`.

        Raises `LockedError` while another process holds the task; the task can then be opened again later.
        """
        self._lock = self._directory.lock_task(self.id)
        try:
            for name in self.stores:
                self._init(name)
        except BaseException:
            for store in self.stores.values():
                store.close()
            self._release()
            raise
        self._move(TaskState.RESTORING)
        self._publish(StoreState.RESTORING)

    def settle_topics(self, ids: Mapping[str, str]) -> None:
        """Let go of what was made from topics that were deleted and created anew since (`ids`: topic → topic id)."""
        directory = self._directory.task(self.id)
        own = {topic: ids[topic] for topic in self._topics if topic in ids}
        for topic in recreated(directory, own):
            logger.warning("Topic %s was created anew: task %s rebuilds its tables of it", topic, self.id)
            for name in self._fed_by[topic]:
                if self.definitions[name].source is not None:
                    self.rebuild(name)
                else:
                    self.stores[name].forget(topic)
        remember(directory, own)

    def rebuild(self, name: str) -> None:
        """Delete this store's data and open it empty: its changelog and its offset do not fit together."""
        self.stores[name].close()
        self.stores[name].wipe()
        self._init(name)

    def run(
        self,
        next_offsets: Mapping[TopicPartition, int],
        positions: Mapping[str, Position],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        """Restored: take records from these offsets on.

        `positions` says of a store what it reflects at least, beyond what it says itself; `ends` is where the input
        ended when the restore began.
        """
        self._move(TaskState.RUNNING)
        self._forget_what_is_not_there(ends)
        for name, position in positions.items():
            store = self.stores[name]
            topics = [topic for topic, names in self._fed_by.items() if name in names]
            store.advance(Position({t: position.offsets[t] for t in topics if t in position.offsets}))
            if store.position(IsolationLevel.READ_UNCOMMITTED) != store.position(IsolationLevel.READ_COMMITTED):
                store.commit({})
        self.next_offsets = dict(next_offsets)
        self.committed_next_offsets = dict(next_offsets)
        for processor in self.subtopology.processors:
            definitions = {d.name: d for d in processor.stores}
            stores = [(definition, self.stores[name]) for name, definition in definitions.items()]
            runner = ProcessorRunner(processor, stores, self._failures, self._max_record_bytes)
            self._runners.setdefault(processor.source.name, []).append(runner)
        self._publish(StoreState.ACTIVE)

    def process(self, records: Sequence[Record]) -> list[OutputRecord]:
        """Stage the effect of records of one source partition, in offset order; what is to be written out.

        Tables alone take the records together. With processors each record goes through the tables and then
        through every processor before the next one: what they look up is of that moment.
        """
        if not records:
            return []
        last = records[-1]
        source = TopicPartition(last.topic, last.partition)
        topic = self._topics[last.topic]
        runners = self._runners.get(last.topic, [])
        outputs: list[OutputRecord] = []
        if runners:
            for record in records:
                outputs += self._process_one(topic, record, runners)
        else:
            self._stage_in_tables(topic, readable(topic, records, self._failures, key_required=True))
        outputs += self._failures.take_dead_letters()
        self.next_offsets[source] = last.offset + 1
        self._advance(source.topic, position_of_input(records[-1:]))
        return outputs

    def _process_one(self, topic: Topic, record: Record, runners: Sequence[ProcessorRunner]) -> list[OutputRecord]:
        try:
            values = typed(topic, record)
        except InvalidArgumentError as error:
            self._failures.cannot_read(record, error)
            return []
        if record.key is None and self._tables[topic.name]:
            # One decision for the record: what its table refuses, no processor sees.
            self._failures.cannot_read(record, InvalidArgumentError(NO_KEY))
            return []
        self._stage_in_tables(topic, [record])
        return [output for runner in runners for output in runner.process(record, values)]

    def logged_stores(self) -> list[tuple[TopicPartition, KeyValueStore]]:
        """Stores whose changes are written to a changelog of their own, with its partition."""
        found = [(self.changelog(name), store) for name, store in self.stores.items()]
        return [(tp, store) for tp, store in found if tp is not None and tp not in self.sources]

    def commit_stores(self, written: Mapping[TopicPartition, int]) -> None:
        """Commit every store; `written` has the last changelog offset of each partition written by this commit.

        Every store is tried even if one fails; the first failure is raised then. Other processes see it with
        `announce_commits`.
        """
        failures: list[StatelineError] = []
        for name, store in self.stores.items():
            try:
                store.commit(self._changelog_offset(name, written), announce=False)
            except StatelineError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        self.committed_next_offsets = dict(self.next_offsets)

    def commit_unlogged_stores(self) -> None:
        """Commit the stores that nothing can rebuild; the input must not be committed before it is in them."""
        for name, store in self.stores.items():
            if self.changelog(name) is None:
                store.commit({}, announce=False)

    def announce_commits(self) -> None:
        """Let readers in other processes see what the stores have committed."""
        for store in self.stores.values():
            store.announce_commit()

    def publish_staged(self) -> None:
        """Tell readers in other processes what is staged."""
        for store in self.stores.values():
            store.publish_staged()

    def close(self) -> None:
        """Drop what is staged, close the stores and let the directory go. A second call does nothing."""
        if self.state is TaskState.CLOSED:
            return
        for store in self.stores.values():
            store.close()
        self._release()
        self._move(TaskState.CLOSED)

    def _stage_in_tables(self, topic: Topic, records: Sequence[Record]) -> None:
        """Stage records that the topic's serdes have read."""
        for store in self._tables[topic.name]:
            seen = store.position(IsolationLevel.READ_UNCOMMITTED).get(topic.name, self.partition)
            # A table that is ahead of the group's offsets takes no record twice: an old one would undo a newer.
            ahead = seen is not None and records and records[0].offset <= seen
            stage(store, [r for r in records if r.offset > (seen or 0)] if ahead else records)

    def _forget_what_is_not_there(self, ends: Mapping[TopicPartition, int]) -> None:
        """A changelog can bring back the Position of a topic that was deleted and created anew, shorter, since."""
        for store in self.stores.values():
            for (topic, partition), offset in list(store.position(IsolationLevel.READ_COMMITTED)):
                if offset >= ends.get(TopicPartition(topic, partition), offset + 1):
                    logger.warning("Store %s has offset %d of %s, which ends before it", store.name, offset, topic)
                    store.forget(topic)

    def _changelog_offset(self, store: str, written: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """What a store's commit corresponds to in its changelog; of a table, the last input record."""
        changelog = self.changelog(store)
        if changelog is None:
            return {}
        if changelog in self.next_offsets:
            # A table that is ahead of the input, because the group's offsets were lost, stays where it is.
            reached = max(self.next_offsets[changelog] - 1, self.stores[store].committed_offset(changelog) or 0)
            return {changelog: reached} if self.next_offsets[changelog] > 0 else {}
        return {changelog: written[changelog]} if changelog in written else {}

    def _advance(self, topic: str, position: Position) -> None:
        for name in self._fed_by.get(topic, ()):
            self.stores[name].advance(position)

    def _publish(self, state: StoreState) -> None:
        for store in self.stores.values():
            store.set_state(state)

    def _move(self, to: TaskState) -> None:
        if to not in _MOVES[self.state]:
            raise AssertionError(f"Task {self.id} cannot go from {self.state} to {to}.")
        self.state = to

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _init(self, name: str) -> None:
        """Open a store. One that is provably damaged is deleted, it alone, if its changelog can rebuild it."""
        store, changelog = self.stores[name], self.changelog(name)
        context = StoreContext(self.id, self._directory.task(self.id), changelog, sync=self._sync)
        try:
            store.init(context)
        except DamagedDataError as error:
            if changelog is None:
                raise
            logger.error("Store %s of task %s is deleted and rebuilt from %s: %s", name, self.id, changelog, error)
            store.close()
            store.wipe()
            store.init(context)
