"""The order of a commit: the steps that make a worker's work permanent, and what a crash after each of them leaves.

1. The changelog records of staged rows are produced and flushed. Under at_least_once, the worker first asks the group
   whether it still has the partitions, and commits stores without a changelog after the flush.
   *Crash: under exactly_once_v2, the successor aborts the transaction. Otherwise the input is processed again.*
2. The input offsets are committed, under exactly_once_v2 with the Kafka transaction.
   *Crash: the stores are behind their changelogs and replay the difference. Under exactly_once_v2, a store without a
   changelog has nothing to replay, and misses the input of that commit.*
3. Each store commits its staged rows, with its changelog offset and its Position, in one atomic batch. Then the commit
   of all stores is announced to readers in other processes.

Queries are answered during a commit: while it waits for the log, and every few milliseconds otherwise. After the first
store's commit only queries at READ_UNCOMMITTED are answered: they see no difference (`QueryDoor.mid_commit`).

If a step fails, `Committer.settle` decides the outcome, and the stores restore from their own offsets.
`commit_schedule` decides when a commit is due, and of which tasks. `commit_marks` is what it writes beside rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import TypeVar

from stateline.log.interface import Consumer, OffsetNote, Producer
from stateline.model.topology import Topology
from stateline.processing.changelog_rows import produce_rows, staged_rows
from stateline.processing.records import OutputRecord
from stateline.worker.context import WorkerContext
from stateline.worker.tasks.commit_marks import NO_EPOCHS, EpochNumbers
from stateline.worker.tasks.task import Task
from stateline_store import DoesNotExistError, InvalidArgumentError, RecordError, TopicPartition
from stateline_store.steps import reached

T = TypeVar("T")

# How often the commit looks whether the log has answered.
_LOOK_AGAIN_S = 0.001
# How long queries are answered during a commit, after its first store has committed.
_BETWEEN_S = 0.005
# Changelog records that are produced before queries are answered: about 4 ms.
_SLICE_RECORDS = 2_000


def needs_producer(topology: Topology, dead_letter_topic: str | None, *, exactly_once: bool) -> bool:
    """Return whether a worker produces anything: changelogs, forwarded records, dead letters, or, exactly once, input
    offsets beside stores. A table's own offsets say where it resumes."""
    written = any(d.source is None and (d.logged or exactly_once) for d in topology.stores.values())
    forwards = any(p.forwards or p.chooses_topic for s in topology.subtopologies for p in s.processors)
    return written or forwards or dead_letter_topic is not None


def transactional_id(application_id: str, identity: str) -> str:
    """Return the producer's id of the worker that is named `identity` among the application's workers."""
    return f"{application_id}-{identity}"


class Committer:
    """Owns the producer and its transaction. The member name, which survives restarts, makes the transactional id. A
    topology of tables alone has no producer: their own offsets say where to resume."""

    def __init__(self, context: WorkerContext) -> None:
        config, topology = context.config, context.topology
        self._context = context
        forwarded = {to.name for s in topology.subtopologies for each in s.processors for to in each.forwards}
        self._forwarded = forwarded - {config.dead_letter_topic}
        self._known = {*forwarded, config.dead_letter_topic}
        self._exactly_once = config.exactly_once
        name = config.member_name(context.files.registration.instance)
        self._transactional_id = transactional_id(topology.application_id, name) if config.exactly_once else None
        self._needed = needs_producer(topology, config.dead_letter_topic, exactly_once=config.exactly_once)
        self._producer: Producer | None = None
        self._in_transaction = False

    def settle(self) -> None:
        """Make a new producer. Exactly once, this fences predecessors and settles what they left open. Call it before
        the first record is read and after every failure."""
        self.close()
        if self._needed:
            self._producer = self._context.log.producer(self._transactional_id)
            if self._exactly_once:
                self._producer.init_transactions()
            self._leave_out_refused()

    def _leave_out_refused(self) -> None:
        if self._producer is not None and self._context.failures.leaves_out_refused:
            self._producer.leave_out(self._forwarded, self._context.failures.cannot_produce)

    def send(self, outputs: Iterable[OutputRecord]) -> None:
        """Queue forwarded records for the next commit. ``production.exception.handler`` handles refused ones."""
        for record in outputs:
            topic, key, value, timestamp_ms, headers, where, partition = record
            if topic not in self._known:  # a step has chosen it
                self._known.add(topic)
                self._forwarded.add(topic)
                self._leave_out_refused()
            try:
                self._writer().produce(
                    topic, key, value, timestamp_ms=timestamp_ms, headers=headers, partition=partition,
                    partition_key=where,
                )  # fmt: skip
            except (InvalidArgumentError, DoesNotExistError) as error:
                self._context.failures.cannot_produce(topic, key, error)

    def write_out(self) -> None:
        """Flush sent records under at_least_once. Otherwise no reader sees them before the commit. Raises the log's
        errors."""
        if self._producer is not None and not self._exactly_once:
            self._producer.flush()

    @property
    def is_all_or_nothing(self) -> bool:
        return self._exactly_once and self._needed

    def commit(self, tasks: Sequence[Task], consumer: Consumer, epochs: EpochNumbers = NO_EPOCHS) -> None:
        """The steps above. Raises what the log or a store raises; then nothing more may be written before `settle`.

        After the first store's commit, queries are answered for about as long as one slice of work takes, because
        readers wait for the end. `epochs`: as `Task.commit_stores`.
        """
        consumer.check_ownership(_next_offsets(tasks))  # before anything is written that would hold others back
        if self._exactly_once and self._producer is not None:
            offsets = self._commit_transaction(tasks, consumer)
        else:
            offsets = self._commit_offsets(tasks, consumer, epochs)
        with self._context.queries.mid_commit():
            self._commit_stores(tasks, offsets, epochs)

    def _commit_stores(
        self, tasks: Sequence[Task], offsets: Mapping[TopicPartition, int], epochs: EpochNumbers
    ) -> None:
        left_s = self._let_in(_BETWEEN_S)
        try:
            for task in tasks:
                task.commit_stores(offsets, epochs)
                reached("commit:task-committed")
                left_s = self._let_in(left_s)
        finally:
            # All at once: a query over several partitions and stores sees this commit in all of them or in none, and
            # a server catches up once.
            for task in tasks:
                task.stores.announce()
                reached("commit:task-announced")

    def _let_in(self, left_s: float) -> float:
        if left_s <= 0:
            return 0.0
        began_s = time.monotonic()
        self._context.queries.let_in(most_s=left_s)
        return left_s - (time.monotonic() - began_s)

    def _commit_transaction(self, tasks: Sequence[Task], consumer: Consumer) -> dict[TopicPartition, int]:
        reached("commit:begun")
        self._produce_changes(tasks)
        reached("commit:changes-produced")
        writer, next_offsets, notes = self._writer(), _next_offsets(tasks), _notes(tasks)

        def commit() -> dict[TopicPartition, int]:
            offsets = writer.flush()
            reached("commit:changes-flushed")
            writer.send_offsets_to_transaction(next_offsets, consumer, notes)
            reached("commit:offsets-sent")
            writer.commit_transaction()
            return offsets

        offsets = self._answering(consumer, commit)
        self._in_transaction = False
        reached("commit:log-committed")
        return offsets

    def _commit_offsets(
        self, tasks: Sequence[Task], consumer: Consumer, epochs: EpochNumbers
    ) -> dict[TopicPartition, int]:
        offsets: dict[TopicPartition, int] = {}
        reached("commit:begun")
        if self._producer is not None:
            # A worker that has lost its partitions without knowing it must not write old values behind the new
            # owner's. Only the group can tell: it refuses to commit the committed offsets again.
            again = _merged(task.processing.committed_next_offsets for task in tasks)
            notes_again = _merged(task.processing.committed_notes for task in tasks)
            self._answering(consumer, lambda: consumer.commit(again, notes_again))
            reached("commit:still-owner")
            self._produce_changes(tasks)
            reached("commit:changes-produced")
            offsets = self._answering(consumer, self._producer.flush)
            reached("commit:changes-flushed")
        for task in tasks:
            task.commit_unlogged_stores(epochs)
        reached("commit:unlogged-committed")
        next_offsets, notes = _next_offsets(tasks), _notes(tasks)
        some_have = any(task.topology.unlogged for task in tasks)  # made their commit
        with self._context.queries.mid_commit() if some_have else nullcontext():
            self._answering(consumer, lambda: consumer.commit(next_offsets, notes))
        reached("commit:log-committed")
        return offsets

    def _answering(self, consumer: Consumer, work: Callable[[], T]) -> T:
        """Do this work with the log. If another thread may do it, answer queries meanwhile."""
        if consumer.keeps_to_thread:
            return work()
        patience = self._context.log.patience
        left_s = patience.of(math.inf)

        def patiently() -> T:
            with patience.for_all(left_s):
                return work()

        with ThreadPoolExecutor(1, "waits-for-the-log") as pool:  # ends with the work
            outcome = pool.submit(patiently)
            while not outcome.done():
                self._context.queries.let_in(_LOOK_AGAIN_S)
        return outcome.result()

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
        self._producer = None
        self._in_transaction = False

    def _produce_changes(self, tasks: Iterable[Task]) -> None:
        now = self._context.clock.now_ms()
        for task in tasks:
            for changelog, name in task.topology.logged:
                store = task.stores.by_name[name]
                rows = staged_rows(store, now)
                last, owner = task.marks.last_record_headers(name), task.marks.record_headers(name)
                for at in range(0, len(rows), _SLICE_RECORDS):
                    slice_ = rows[at : at + _SLICE_RECORDS]
                    headers = last if at + len(slice_) == len(rows) else ()
                    try:
                        produce_rows(self._writer(), changelog, store, slice_, headers, owner)
                    except InvalidArgumentError as error:
                        raise RecordError(f"The log refuses a record of a changelog: {error}") from error
                    self._context.queries.let_in()

    def _writer(self) -> Producer:
        """Return the producer, exactly once inside a transaction."""
        if self._producer is None:
            raise AssertionError("This topology writes nothing to the log, yet something was written.")
        if self._exactly_once and not self._in_transaction:
            self._producer.begin_transaction()
            self._in_transaction = True
        return self._producer


def _next_offsets(tasks: Sequence[Task]) -> dict[TopicPartition, int]:
    return _merged(task.processing.next_offsets for task in tasks)


def _notes(tasks: Sequence[Task]) -> dict[TopicPartition, OffsetNote]:
    return _merged(task.processing.notes for task in tasks)


def _merged(of_tasks: Iterable[Mapping[TopicPartition, T]]) -> dict[TopicPartition, T]:
    return {partition: found for each in of_tasks for partition, found in each.items()}
