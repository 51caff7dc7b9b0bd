"""A task: one partition of one subtopology, with its stores, its lock and what was read and not yet committed.

                                               ┌──────────suspend──────────┐
                                               │                           ▼
    CREATED ──open──► RESTORING ──restored──► RUNNING ◄──resume──── SUSPENDED
       └─────────────────┴──────────┬───────────┴──────────────────────────┘
                                  close
                                    ▼
                                  CLOSED

While the group is deciding who goes on with it, a task is suspended: its stores stay open and answer, as of the last
commit, and nothing is written. It resumes only if nobody else has gone on with it meanwhile (`is_as_left`).

A task decides nothing about when to commit: the worker stages, commits and closes all its tasks together.
"""

from __future__ import annotations

import enum
import itertools
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType

from stateline.log.interface import Headers, Record
from stateline.model.record_size import MAX_RECORD_BYTES
from stateline.model.store_definition import StoreDefinition
from stateline.model.topic import Topic
from stateline.model.topology import Subtopology
from stateline.processing.changelog import (
    OWNER_EPOCH,
    owner_headers,
    position_headers,
    position_of_input,
    stage,
    types_headers,
)
from stateline.processing.failures import FailureHandler
from stateline.processing.operators.graph import OperatorGraph
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.stream_times import StreamTimes
from stateline.processing.reading import NO_KEY, readable, timely, typed
from stateline.processing.records import OutputRecord
from stateline.worker.epochs import LOADING, NO_EPOCHS, EpochNumbers
from stateline.worker.processor_runner import ProcessorRunner
from stateline.worker.punctuation import Punctuator
from stateline.worker.task_stores import TaskStores
from stateline.worker.topic_ids import recreated, remember, unchanged
from stateline_store import (
    InvalidArgumentError,
    IsolationLevel,
    Position,
    StateDirectory,
    StoreState,
    TaskLock,
    TopicPartition,
    TransactionalStore,
)
from stateline_store.format_upgrade import UpgradeMode

logger = logging.getLogger(__name__)

_TOPIC = itemgetter(Record._fields.index("topic"))


READ_COMMITTED, READ_UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


class TaskState(enum.StrEnum):
    """Where a task is in its life."""

    CREATED = "created"
    RESTORING = "restoring"
    RUNNING = "running"
    SUSPENDED = "suspended"
    CLOSED = "closed"


_MOVES = {
    TaskState.CREATED: {TaskState.RESTORING, TaskState.CLOSED},
    TaskState.RESTORING: {TaskState.RUNNING, TaskState.CLOSED},
    TaskState.RUNNING: {TaskState.SUSPENDED, TaskState.CLOSED},
    TaskState.SUSPENDED: {TaskState.RUNNING, TaskState.CLOSED},
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
        exactly_once: bool = False,
        sync: bool = False,
        upgrade_mode: UpgradeMode | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
        max_timestamp_ahead_ms: int = -1,
        epoch_numbers: Mapping[str, tuple[TopicPartition, ...]] = MappingProxyType({}),
        global_stores: Mapping[str, TransactionalStore] = MappingProxyType({}),
    ) -> None:
        """`epoch_numbers`: as `Topology.epoch_numbers`; `max_timestamp_ahead_ms`: as `reading.timely`; `global_stores`:
        what operators look up in besides."""
        self.id = subtopology.task_id(partition)
        self.subtopology = subtopology
        self.partition = partition
        self.state = TaskState.CREATED
        self.definitions: dict[str, StoreDefinition] = {d.name: d for d in subtopology.stores}
        self.next_offsets: dict[TopicPartition, int] = {}
        self.committed_next_offsets: dict[TopicPartition, int] = {}
        self.recreated: frozenset[str] = frozenset()  # topics with another id than when this task was open last
        self._same_topics: frozenset[str] = frozenset()
        self.directory = directory.task(str(self.id))
        self._application_id = application_id
        self._places = directory
        self._failures = failures
        self._max_record_bytes = max_record_bytes
        self.max_timestamp_ahead_ms = max_timestamp_ahead_ms
        self._topics = {topic.name: topic for topic in subtopology.sources}
        changelogs = {name: tp for name in self.definitions if (tp := self.changelog(name)) is not None}
        self.stores = TaskStores(
            self.id,
            self.directory,
            self.definitions,
            changelogs,
            exactly_once=exactly_once,
            sync=sync,
            upgrade_mode=upgrade_mode,
        )
        self._tables = {t: [d.name for d in subtopology.tables(t)] for t in self._topics}
        self._fed_by = {topic.name: subtopology.stores_fed_by(topic.name) for topic in subtopology.sources}
        self._numbers = {name: epoch_numbers.get(name, ()) for name in self.definitions}
        # Where a changelog ends as this task has left it: at least and at most, the marker of a transaction may follow.
        self._left_at: dict[TopicPartition, tuple[int, int]] = {}
        self._epochs: dict[str, int] = {}  # by store, at least once: as which owner it writes to its changelog
        # Of a store of a user's own kind the declaration need not say what it writes.
        self._types_headers = {  # by store, made once: each commit writes them
            name: types_headers(self.definitions[name].types)
            for _, name in self.logged_stores()
            if isinstance(self.stores.by_name[name], TransactionalStore)
        }
        self._is_in_order = subtopology.needs_order()
        self._global_stores = global_stores
        self._exactly_once = exactly_once
        self._lock: TaskLock | None = None
        self._runners: dict[str, list[ProcessorRunner]] = {}
        self._operators: OperatorGraph | None = None  # from `run` on
        self._by_stream_time: list[Punctuator] = []
        self._by_clock: list[Punctuator] = []
        self._was_punctuated = False

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
        return sum(store.approximate_num_uncommitted_bytes for store in self.stores.by_name.values())

    @property
    def dirty(self) -> bool:
        """Whether input was processed, or a punctuation called, and that is not committed yet."""
        return self._was_punctuated or self.next_offsets != self.committed_next_offsets

    def open(self) -> None:
        """Take the task's directory and open its stores: they may have to be restored before `run`.

        Raises `LockedError` while another process holds the task; the task can then be opened again later.
        """
        self._lock = self._places.lock_task(str(self.id))
        try:
            self.stores.open()
        except BaseException:
            self._release()
            raise
        self._move(TaskState.RESTORING)
        self.stores.publish(StoreState.RESTORING)

    def settle_topics(self, ids: Mapping[str, str]) -> None:
        """Let go of what was made from topics that were deleted and created anew since (`ids`: topic → topic id)."""
        changelogs = {changelog.topic for changelog, _ in self.logged_stores()}
        own = {topic: ids[topic] for topic in self.log_topics() if topic in ids}
        self._same_topics = frozenset(unchanged(self.directory, own))
        self.recreated = frozenset(recreated(self.directory, own))
        for topic in sorted(self.recreated - changelogs):
            logger.warning("Topic %s was created anew: task %s rebuilds its tables of it", topic, self.id)
            for name in self._fed_by[topic]:
                if self.definitions[name].source is not None:
                    self.stores.rebuild(name)
                else:
                    self.stores.forget(name, topic)
        lost = [tp for tp, name in self.logged_stores() if self.stores.furthest_offset(name) is not None]
        if self.recreated.isdisjoint(tp.topic for tp in lost):  # else the old id is what the refusal rests on
            remember(self.directory, own)

    def is_same_topic(self, topic: str) -> bool:
        """Whether this topic is known to be the one that it was when this task was open last."""
        return topic in self._same_topics

    def run(
        self,
        next_offsets: Mapping[TopicPartition, int],
        positions: Mapping[str, Position],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        """Restored: take records from these offsets on.

        `positions` says of a store what it reflects at least, beyond what it says itself; `ends` is where the input
        and the changelogs ended when the restore began.
        """
        self._move(TaskState.RUNNING)
        self._take_over(ends)
        self._forget_what_is_not_there(ends)
        for name, position in positions.items():
            topics = [topic for topic, names in self._fed_by.items() if name in names]
            self.stores.advance(name, Position({t: position.offsets[t] for t in topics if t in position.offsets}))
            if self.stores.position(name, READ_UNCOMMITTED) != self.stores.position(name, READ_COMMITTED):
                self.stores.commit_one(name, {})
        self.stores.announce()
        self.next_offsets = dict(next_offsets)
        self.committed_next_offsets = dict(next_offsets)
        self._operators = self._make_operators()
        for processor in self.subtopology.processors:
            if processor.roots:
                continue
            definitions = {d.name: d for d in processor.stores}
            stores = [(definition, self.stores.by_name[name]) for name, definition in definitions.items()]
            runner = ProcessorRunner(processor, stores, self._failures, self._max_record_bytes)
            if processor.punctuation is not None:
                now_ms = time.monotonic_ns() // 1_000_000
                kept_with = next((d.name for d, s in stores if isinstance(s, TransactionalStore)), "")
                made = Punctuator(processor.punctuation, runner, kept_with, self._graph.times, now_ms)
                (self._by_stream_time if made.by_stream_time else self._by_clock).append(made)
                continue
            self._runners.setdefault(processor.source.name, []).append(runner)
        self.stores.drop_plain_files()
        self.stores.publish(StoreState.ACTIVE)

    def _take_over(self, ends: Mapping[TopicPartition, int]) -> None:
        """As which owner its stores write from now on, to changelogs that end here (`processing.changelog`)."""
        self._left_at = {
            changelog: (ends[changelog], ends[changelog]) for changelog, _ in self.logged_stores() if changelog in ends
        }
        for changelog, name in () if self._exactly_once else self.logged_stores():
            # A store of a user's own kind may forget the epochs that it has read.
            if changelog in ends and isinstance(self.stores.by_name[name], TransactionalStore):
                self._epochs[name] = ends[changelog]

    def commit_headers(self, store: str) -> Headers:
        """What the last record of each commit in this store's changelog carries besides."""
        return (*position_headers(self.stores.position(store, READ_UNCOMMITTED)), *self._types_headers.get(store, ()))

    def owner_headers(self, store: str) -> Headers:
        """What every record of this store's changelog carries that this task writes."""
        return owner_headers(self._epochs[store]) if store in self._epochs else ()

    def process(self, records: Sequence[Record]) -> list[OutputRecord]:
        """Stage the effect of records of one source partition, in offset order; what is to be written out. They are of
        several partitions where operators need their order (`record_order`).

        Tables and operators take the records together. With processors each record goes through the tables and then
        through every processor before the next one: what they look up is of that moment.
        """
        if not records:
            return []
        outputs: list[OutputRecord] = []
        for run in self._runs(timely(records, self.max_timestamp_ahead_ms, self._failures)):
            outputs += self._process_run(self._topics[run[0].topic], run)
            outputs += self._called(each.pass_records(run) for each in self._by_stream_time)
        outputs += self._failures.take_dead_letters()
        for last in {record.topic: record for record in records}.values() if self._is_in_order else records[-1:]:
            self.next_offsets[TopicPartition(last.topic, last.partition)] = last.offset + 1
            self._advance(last.topic, position_of_input([last]))
        return outputs

    def _runs(self, records: Sequence[Record]) -> Iterator[Sequence[Record]]:
        """The records of one topic that are behind each other, up to one that a punctuation is due with; of a task that
        has neither several topics in order nor such punctuations, all of them."""
        one_topic = (list(run) for _, run in itertools.groupby(records, key=_TOPIC)) if self._is_in_order else [records]
        for left in one_topic:
            while left:
                count = min((each.until_due(left) for each in self._by_stream_time), default=len(left))
                yield left[:count]
                left = left[count:]

    def look_at_clock(self) -> list[OutputRecord]:
        """Call the punctuations that are due by the clock; what they wrote."""
        if not self._by_clock:
            return []
        now_ms, time_ms = time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000
        return self._called(each.look_at_clock(now_ms, time_ms) for each in self._by_clock)

    def _called(self, made: Iterable[list[OutputRecord] | None]) -> list[OutputRecord]:
        """What punctuations wrote that were called; the next commit has to take what they staged."""
        outputs: list[OutputRecord] = []
        for each in made:
            if each is not None:
                self._was_punctuated = True
                outputs += each
        return outputs

    def _process_run(self, topic: Topic, records: Sequence[Record]) -> list[OutputRecord]:
        runners = self._runners.get(topic.name, [])
        outputs: list[OutputRecord] = []
        if runners:
            for record in records:
                outputs += self._process_one(topic, record, runners)
        elif self._graph.takes_one_by_one(topic.name):
            for record in self._readable(topic, records):
                outputs += self._process_together(topic, [record])
        else:
            outputs += self._process_together(topic, self._readable(topic, records))
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
        outputs = self._process_together(topic, [record])
        return outputs + [output for runner in runners for output in runner.process(record, values)]

    def _process_together(self, topic: Topic, records: Sequence[Record]) -> list[OutputRecord]:
        """Records that can be read, through the tables and the operators, which see the tables before and after."""
        self._graph.before_tables(topic.name, records)
        self._stage_in_tables(topic, records)
        return self._graph.process(topic.name, records)

    def _readable(self, topic: Topic, records: Sequence[Record]) -> Sequence[Record]:
        return readable(topic, records, self._failures, key_required=bool(self._tables[topic.name]))

    @property
    def _graph(self) -> OperatorGraph:
        if self._operators is None:
            raise AssertionError(f"Task {self.id} does not run yet.")
        return self._operators

    def _make_operators(self) -> OperatorGraph:
        own = {name: s for name, s in self.stores.by_name.items() if isinstance(s, TransactionalStore)}
        stores = {**self._global_stores, **own}
        context = OperatorContext(
            stores,
            self._failures,
            self._max_record_bytes,
            StreamTimes(stores),
            exactly_once=self._exactly_once,
        )
        return OperatorGraph(self.subtopology, context)

    def log_topics(self) -> set[str]:
        """Every topic that it reads or restores from."""
        return {*self._topics, *(changelog.topic for changelog, _ in self.logged_stores())}

    def logged_stores(self) -> list[tuple[TopicPartition, str]]:
        """Stores whose changes are written to a changelog of their own: its partition, and the store's name."""
        found = [(self.changelog(name), name) for name in self.definitions]
        return [(tp, name) for tp, name in found if tp is not None and tp not in self.sources]

    def commit_stores(self, written: Mapping[TopicPartition, int], epochs: EpochNumbers = NO_EPOCHS) -> None:
        """Commit every store; `written` has the last changelog offset of each partition written by this commit, and
        `epochs` the numbers of the epochs that end with it (`LOADING` where there is none).

        Every store is tried even if one fails; the first failure is raised then. Other processes see it when
        `stores.announce` is called.
        """
        self.stores.commit(
            {name: self._changelog_offset(name, written) | self._marks(name, epochs) for name in self.definitions}
        )
        self.committed_next_offsets = dict(self.next_offsets)
        self._was_punctuated = False
        marker = 1 if self._exactly_once else 0
        for changelog in self._left_at.keys() & written.keys():
            self._left_at[changelog] = written[changelog] + 1, written[changelog] + 1 + marker

    def commit_unlogged_stores(self, epochs: EpochNumbers = NO_EPOCHS) -> None:
        """Commit the stores that nothing can rebuild; the input must not be committed before it is in them."""
        for name in self.definitions:
            if self.changelog(name) is None:
                self.stores.commit_one(name, self._marks(name, epochs))

    def commit_restored(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit what was restored so far of a store: of no whole epoch."""
        self.stores.commit_one(name, {**offsets, **self._marks(name, NO_EPOCHS)})

    def is_loading(self) -> bool:
        """Whether a store is in no whole epoch, so that nobody reads it."""
        return any(number == LOADING for _, number in self._kept_numbers())

    def is_in_step(self, epochs: EpochNumbers) -> bool:
        """Whether all stores have these numbers."""
        return all(epochs[place] == number for place, number in self._kept_numbers())

    def _kept_numbers(self) -> Iterator[tuple[TopicPartition, int]]:
        for name, places in self._numbers.items():
            store = self.stores.by_name[name]
            if isinstance(store, TransactionalStore) and store.persistent:
                for place in places:
                    number = store.committed_offset(place)
                    yield place, LOADING if number is None else number

    def _marks(self, name: str, epochs: EpochNumbers) -> dict[TopicPartition, int]:
        times = {} if self._operators is None else self._operators.marks(name)
        return {**times, **{place: epochs.get(place, LOADING) for place in self._numbers[name]}}

    def suspend(self) -> None:
        """Everything is committed, and others may own this task from now on: keep the stores as they are."""
        self._move(TaskState.SUSPENDED)

    def is_as_left(self, committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> bool:
        """Whether no other worker has gone on with this suspended task.

        `committed` are the group's offsets of its sources, `ends` where its changelogs end, open transactions counted.
        """
        for source in self.sources:
            if self.reads_by_group(source.topic) and committed.get(source, 0) != self.next_offsets[source]:
                return False
        return all(least <= ends[changelog] <= most for changelog, (least, most) in self._left_at.items())

    def resume(self, ends: Mapping[TopicPartition, int]) -> None:
        """Nobody else has gone on with it: go on from `next_offsets`. `ends` as `is_as_left`; who had it and has not
        written yet is a former owner from now on."""
        self._move(TaskState.RUNNING)
        self._take_over(ends)

    def close(self) -> None:
        """Drop what is staged, close the stores and let the directory go. A second call does nothing."""
        if self.state is TaskState.CLOSED:
            return
        try:
            self.stores.close(clean=self.state in (TaskState.RUNNING, TaskState.SUSPENDED) and not self.dirty)
        finally:
            self._release()
            self._move(TaskState.CLOSED)

    def _stage_in_tables(self, topic: Topic, records: Sequence[Record]) -> None:
        """Stage records that the topic's serdes have read."""
        for name in self._tables[topic.name]:
            seen = self.stores.position(name, READ_UNCOMMITTED).get(topic.name, self.partition)
            # A table that is ahead of the group's offsets takes no record twice: an old one would undo a newer.
            ahead = seen is not None and records and records[0].offset <= seen
            stage(self.stores.by_name[name], [r for r in records if r.offset > (seen or 0)] if ahead else records)

    def _forget_what_is_not_there(self, ends: Mapping[TopicPartition, int]) -> None:
        """A changelog can bring back the Position of a topic that was deleted and created anew, shorter, since."""
        for name in self.definitions:
            for (topic, partition), offset in list(self.stores.position(name, READ_COMMITTED)):
                if offset >= ends.get(TopicPartition(topic, partition), offset + 1):
                    logger.warning("Store %s has offset %d of %s, which ends before it", name, offset, topic)
                    self.stores.forget(name, topic)

    def _changelog_offset(self, store: str, written: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """What a store's commit corresponds to in its changelog; of a table, the last input record."""
        changelog = self.changelog(store)
        if changelog is None:
            return {}
        if changelog in self.next_offsets:
            # A table that is ahead of the input, because the group's offsets were lost, stays where it is.
            reached = max(self.next_offsets[changelog] - 1, self.stores.committed_offset(store) or 0)
            return {changelog: reached} if self.next_offsets[changelog] > 0 else {}
        if changelog not in written:
            return {}
        owner = {OWNER_EPOCH: self._epochs[store]} if store in self._epochs else {}
        return {changelog: written[changelog]} | owner

    def _advance(self, topic: str, position: Position) -> None:
        for name in self._fed_by.get(topic, ()):
            self.stores.advance(name, position)

    def _move(self, to: TaskState) -> None:
        if to not in _MOVES[self.state]:
            raise AssertionError(f"Task {self.id} cannot go from {self.state} to {to}.")
        self.state = to

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
