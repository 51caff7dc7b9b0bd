"""Takes a running task's records through its tables, operators and processors.

A slice is of one source partition, or of several in order of time if operators need that (`record_order`). Tables and
operators take a slice together. With processors, each record goes through the tables and every processor before the
next record, so that lookups are of that moment. Staged rows and output are part of the next commit.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

from stateline.log.interface import OffsetNote, Record
from stateline.model.topic import Topic
from stateline.processing.changelog import headers_of_table, position_of_input, stage
from stateline.processing.event_times import PARTITION_TIME, EventTimes
from stateline.processing.failures import reading_of
from stateline.processing.operators.graph import OperatorGraph
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.stream_times import StreamTimes
from stateline.processing.processor_context import TaskContext
from stateline.processing.punctuation import Punctuator
from stateline.processing.reading import TIMESTAMP_MS, keyed, readable, since_1970, timely, typed
from stateline.processing.records import OutputRecord
from stateline.processing.user_function import UserFunction
from stateline.worker.tasks.task_settings import TaskSettings, TaskStart, TaskTopology
from stateline.worker.tasks.task_stores import TaskStores
from stateline_store import (
    ExpiringKeyValueStore,
    InvalidArgumentError,
    IsolationLevel,
    TopicPartition,
    TransactionalStore,
)

# A task without input waits so long for a commit that notes its stores as well.
_NOTE_PATIENCE_S = 1.0
_TOPIC = itemgetter(Record._fields.index("topic"))


class TaskProcessing:
    """One task's, on the worker's thread, after its stores are restored. `next_offsets` are those of its input,
    `committed_next_offsets` those of the last commit. `is_unnoted`: the group's offsets do not name its stores yet."""

    def __init__(self, topology: TaskTopology, stores: TaskStores, settings: TaskSettings, start: TaskStart) -> None:
        self.next_offsets = dict(start.next_offsets)
        self.committed_next_offsets = dict(start.next_offsets)
        self._topology = topology
        self._stores = stores
        self._failures = settings.failures
        self._max_timestamp_ahead_ms = settings.max_timestamp_ahead_ms
        self._clock = settings.clock
        self._times = EventTimes(
            topology.topics.values(), settings.max_timestamp_ahead_ms, start.partition_times, settings.clock
        )
        self._fed, before = start.fed, start.fed_before
        self.is_unnoted = any(self._fed.get(s) != before.get(s) for s, parts in topology.parts.items() if parts)
        self._note_due_s = time.monotonic() + _NOTE_PATIENCE_S
        self.committed_notes = self.notes
        self._is_mixed = len(topology.sources) > 1
        self._was_punctuated = False  # or an entry has expired
        own = dict(stores.transactional)
        with_global = {**settings.global_stores, **own}
        self._context = TaskContext(settings.application_id, topology.id, settings.clock)
        context = OperatorContext(
            with_global,
            stores.by_name,
            self._context,
            settings.failures,
            settings.max_record_bytes,
            StreamTimes(with_global),
            exactly_once=settings.exactly_once,
            repeats=self._repeats(),
            partitions_of=settings.partitions_of,
        )
        self._operators = OperatorGraph(topology.subtopology, context)
        # A rebuilt table has again what the clock let expire. So operators, which have taken that, go by its records.
        self._expiring = [
            store
            for _, store in (stores.transactional if settings.expires_by_clock else ())
            if isinstance(store, ExpiringKeyValueStore) and not store.is_watched
        ]
        self._functions: dict[str, list[UserFunction]] = {}
        self._by_stream_time: list[Punctuator] = []
        self._by_clock: list[Punctuator] = []
        self._add_functions(settings)
        has_tables = any(topology.tables.values())  # also of a topic that a join of streams reads
        self._takes_together = (
            self._is_mixed and self._operators.takes_together and not self._functions and not has_tables
        )
        self._table_sources = {
            name: TopicPartition(topic, topology.partition)
            for topic, names in topology.tables.items()
            for name in names
            if self._times.concern(topic)
        }
        # Topics whose records only functions take.
        self._functions_alone = {
            name for name in self._functions if not (topology.tables[name] or self._operators.takes(name))
        }

    def _add_functions(self, settings: TaskSettings) -> None:
        for processor in self._topology.subtopology.processors:
            if processor.roots:
                continue
            definitions = {each.name: each for each in processor.stores}
            stores = [(definition, self._stores.by_name[name]) for name, definition in definitions.items()]
            function = UserFunction(
                processor.name, processor.function, stores, processor.forwards, self._failures,
                settings.max_record_bytes, self._context,
            )  # fmt: skip
            if processor.punctuation is None:
                self._functions.setdefault(processor.source.name, []).append(function)
                continue
            monotonic_ms = self._clock.monotonic_ms()
            kept_with = next((each.name for each, store in stores if isinstance(store, TransactionalStore)), "")
            made = Punctuator(processor.punctuation, function, kept_with, self._operators.times, monotonic_ms)
            (self._by_stream_time if made.by_stream_time else self._by_clock).append(made)

    def _repeats(self) -> bool:
        """Whether a store's Position is ahead of the input that comes next: a crash came between the two commits."""
        positions = [
            self._stores.position(name, IsolationLevel.READ_COMMITTED) for name, _ in self._stores.transactional
        ]
        return any(
            (seen := position.get(source.topic, source.partition)) is not None and seen >= offset
            for position in positions
            for source, offset in self.next_offsets.items()
        )

    @property
    def dirty(self) -> bool:
        """Whether input was processed or a punctuation called since the last commit."""
        return self._was_punctuated or self.next_offsets != self.committed_next_offsets

    @property
    def is_note_due(self) -> bool:
        return self.is_unnoted and time.monotonic() >= self._note_due_s

    @property
    def commit_requested(self) -> bool:
        return self._context.commit_requested

    def committed(self) -> None:
        self._context.commit_requested = False
        self.is_unnoted = False
        self.committed_next_offsets = dict(self.next_offsets)
        self.committed_notes = self.notes
        self._was_punctuated = False

    def time_marks(self, store: str) -> Mapping[TopicPartition, int]:
        """Return the times that a store's next commit writes: of operators, punctuations and its topic."""
        marks, source = self._operators.times.marks(store), self._table_sources.get(store)
        at = None if source is None else self._times.partition_times.get(source)
        return marks if at is None else {**marks, PARTITION_TIME: at}

    @property
    def notes(self) -> Mapping[TopicPartition, OffsetNote]:
        """The notes to commit with the offsets: each partition's event time, and the stores that its input went
        into."""
        times = self._times.partition_times
        return {source: OffsetNote(times.get(source), self._fed.get(source)) for source in self.next_offsets}

    def stamped(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return the next records of their partitions with their event times. Stamp each record once, before
        `process`."""
        return self._times.stamped(records)

    def forget(self, source: TopicPartition) -> None:
        self._times.forget(source)

    def process(self, records: Sequence[Record]) -> list[OutputRecord]:
        """Stage the effect of a slice of stamped records, in offset order. Returns the output."""
        if not records:
            return []
        outputs: list[OutputRecord] = []
        timed = since_1970(self._times.admitted(records, self._failures), self._failures, self._clock)
        for topic, count in Counter(map(_TOPIC, records)).items():
            self._failures.give(reading_of(topic), count)
        for run in self._runs(timely(timed, self._max_timestamp_ahead_ms, self._failures, self._clock)):
            outputs += self._process_run(run)
            if self._context.is_used:
                self._context.stream_time_ms = max(self._context.stream_time_ms, max(map(TIMESTAMP_MS, run)))
            outputs += self._take_punctuated(each.pass_records(run) for each in self._by_stream_time)
        outputs += self._failures.take_dead_letters()
        for last in {record.topic: record for record in records}.values() if self._is_mixed else records[-1:]:
            self.next_offsets[TopicPartition(last.topic, last.partition)] = last.offset + 1
            position = position_of_input([last])
            for name in self._topology.fed_by.get(last.topic, ()):
                self._stores.advance(name, position)
        return outputs

    def rests_s(self) -> float:
        due_ms = min((each.due_ms for each in self._by_clock), default=math.inf)
        return max(0.0, (due_ms - self._clock.monotonic_ms()) / 1000)

    def act_by_clock(self, is_full: Callable[[], bool]) -> list[OutputRecord]:
        """Remove entries that have expired, unless the buffers are full, and call due punctuations. Returns the
        output."""
        if not (self._by_clock or self._expiring):
            return []
        monotonic_ms, time_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        for store in self._expiring:
            if not is_full():
                self._was_punctuated |= store.expire(time_ms)
        return self._take_punctuated(each.look_at_clock(monotonic_ms, time_ms) for each in self._by_clock)

    def _runs(self, records: Sequence[Record]) -> Iterator[Sequence[Record]]:
        """Split records where the topic changes, and behind a record that makes a punctuation due."""
        is_split = self._is_mixed and not self._takes_together
        one_topic = (list(run) for _, run in itertools.groupby(records, key=_TOPIC)) if is_split else [records]
        for left in one_topic:
            while left:
                count = min((each.until_due(left) for each in self._by_stream_time), default=len(left))
                yield left[:count]
                left = left[count:]

    def _take_punctuated(self, written: Iterable[list[OutputRecord] | None]) -> list[OutputRecord]:
        outputs: list[OutputRecord] = []
        for each in written:
            if each is not None:
                self._was_punctuated = True
                outputs += each
        return outputs

    def _process_run(self, records: Sequence[Record]) -> list[OutputRecord]:
        if self._takes_together:
            return self._process_topics(records)
        topic = self._topology.topics[records[0].topic]
        functions = self._functions.get(topic.name, [])
        outputs: list[OutputRecord] = []
        if functions:
            for function in functions:
                self._failures.give(function.name, len(records))
            for record in records:
                outputs += self._process_one(topic, record, functions)
        elif self._operators.takes_one_by_one(topic.name):
            for record in self._readable(topic, records):
                outputs += self._process_together(topic, [record])
        else:
            outputs += self._process_together(topic, self._readable(topic, records))
        return outputs

    def _process_topics(self, records: Sequence[Record]) -> list[OutputRecord]:
        """Take records of several topics at once. No topic has tables or functions."""
        by_topic: dict[str, list[Record]] = {}
        for record in records:
            by_topic.setdefault(record.topic, []).append(record)
        readable = {name: self._readable(self._topology.topics[name], given) for name, given in by_topic.items()}
        order = {(record.topic, record.offset): place for place, record in enumerate(records)}
        return self._operators.process_together(readable, order)

    def _process_one(self, topic: Topic, record: Record, functions: Sequence[UserFunction]) -> list[OutputRecord]:
        try:
            values = typed(topic, record)
        except InvalidArgumentError as error:
            self._failures.cannot_read(record, error)
            return []
        if self._topology.tables[topic.name] and not keyed([record], self._failures):
            return []  # one decision for the record: if its table drops it, no processor sees it
        outputs = self._process_together(topic, [record]) if topic.name not in self._functions_alone else []
        for function in functions:
            outputs += function.forwarded(values, record.timestamp_ms, record)
        return outputs

    def _process_together(self, topic: Topic, records: Sequence[Record]) -> list[OutputRecord]:
        """Take readable records through the tables and the operators, which see the tables before and after."""
        self._operators.before_tables(topic.name, records)
        self._stage_in_tables(topic, records)
        return self._operators.process(topic.name, records)

    def _stage_in_tables(self, topic: Topic, records: Sequence[Record]) -> None:
        for name in self._topology.tables[topic.name]:
            seen = self._stores.position(name, IsolationLevel.READ_UNCOMMITTED).get(
                topic.name, self._topology.partition
            )
            # A table that is ahead of the group's offsets takes no record twice: an old record would undo a newer one.
            ahead = seen is not None and records and records[0].offset <= seen
            new = [record for record in records if record.offset > (seen or 0)] if ahead else records
            stage(self._stores.by_name[name], new, own=headers_of_table(topic))

    def _readable(self, topic: Topic, records: Sequence[Record]) -> Sequence[Record]:
        found = readable(topic, records, self._failures)
        return keyed(found, self._failures) if self._topology.tables[topic.name] else found
