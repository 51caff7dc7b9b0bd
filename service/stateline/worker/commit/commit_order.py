"""The order of a commit: the steps that make a worker's work permanent, and what a crash after each of them leaves.

1. Changelog records of what is staged are produced, and the producer is flushed. At least once, the group is asked
   first whether the partitions are still this worker's, and stores without a changelog are committed after it.
   *Crash: exactly once, the successor aborts the transaction; at least once, the input is processed again.*
2. exactly_once_v2: the Kafka transaction is committed, the input offsets in it. at_least_once: the offsets are.
   *Crash: the stores are behind their changelogs and replay the difference. Exactly once, a store without a changelog
   has nothing to replay: it misses the input of that commit.*
3. Each store commits what it staged, with its changelog offset and its Position, in one atomic batch. Then readers in
   other processes are told, of all stores at once.

Queries are answered meanwhile: while the log is waited for, and between a few milliseconds of the rest. Once a store
has made its commit, only those at READ_UNCOMMITTED are, which see no difference.

A step that fails leaves the outcome to `Committer.settle` and the stores to a restore from their own offsets. When a
commit is due, and of which tasks, is `commit_schedule`; what it writes beside rows is `commit_marks`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from stateline.config.settings import Config
from stateline.log.interface import Consumer, Log, OffsetNote, Producer
from stateline.model.topology import Topology
from stateline.processing.changelog import staged_rows
from stateline.processing.clock import MACHINE_CLOCK, Clock
from stateline.processing.failures import FailureHandler
from stateline.processing.records import OutputRecord
from stateline.worker.queries.query_socket import QuerySocket
from stateline.worker.tasks.commit_marks import NO_EPOCHS, EpochNumbers
from stateline.worker.tasks.task import Task
from stateline_store import DoesNotExistError, InvalidArgumentError, RecordError, TopicPartition
from stateline_store.steps import reached

T = TypeVar("T")

# How long queries may be answered in one commit after its first store has made it.
_BETWEEN_S = 0.005
# Changelog records that are produced before queries are answered: about 4 ms.
_SLICE_RECORDS = 2_000


def needs_producer(topology: Topology, dead_letter_topic: str | None, *, exactly_once: bool) -> bool:
    """Whether an application's worker produces anything: changelogs, forwarded records, dead letters, and exactly once
    the offsets of input that was put into stores, of which a table's own say as much."""
    written = any(d.source is None and (d.logged or exactly_once) for d in topology.stores.values())
    forwards = any(p.forwards for s in topology.subtopologies for p in s.processors)
    return written or forwards or dead_letter_topic is not None


def transactional_id(application_id: str, identity: str) -> str:
    """Of a worker's producer; `identity` as in `Committer`."""
    return f"{application_id}-{identity}"


class Committer:
    """Owns the producer and its transaction. One worker's, used on its thread only.

    `identity` names this worker among all of its application, over restarts: it makes the transactional id.
    A topology of tables alone has no producer: their own offsets say where to resume.
    """

    def __init__(
        self,
        log: Log,
        config: Config,
        topology: Topology,
        identity: str,
        failures: FailureHandler,
        clock: Clock = MACHINE_CLOCK,
    ) -> None:
        self._log = log
        self._clock = clock
        self._failures = failures
        forwarded = {to.name for s in topology.subtopologies for each in s.processors for to in each.forwards}
        self._forwarded = forwarded - {config.dead_letter_topic}
        self._exactly_once = config.exactly_once
        self._transactional_id = transactional_id(topology.application_id, identity) if config.exactly_once else None
        self._needed = needs_producer(topology, config.dead_letter_topic, exactly_once=config.exactly_once)
        self._producer: Producer | None = None
        self._in_transaction = False

    def settle(self) -> None:
        """Make the producer anew: under exactly-once this fences predecessors and settles what they left open.

        Call it before the first record is read and after every failure.
        """
        self.close()
        if self._needed:
            self._producer = self._log.producer(self._transactional_id)
            if self._exactly_once:
                self._producer.init_transactions()
            if self._failures.leaves_out_refused:
                self._producer.leave_out(self._forwarded, self._failures.cannot_produce)

    def send(self, outputs: Iterable[OutputRecord]) -> None:
        """Queue what processors forwarded: part of the next commit. What the log refuses at once is handled by
        ``production.exception.handler``."""
        for record in outputs:
            topic, key, value, timestamp_ms, headers, where = record
            try:
                self._writer().produce(
                    topic, key, value, timestamp_ms=timestamp_ms, headers=headers, partition_key=where
                )
            except (InvalidArgumentError, DoesNotExistError) as error:
                self._failures.cannot_produce(topic, key, error)

    def write_out(self) -> None:
        """At least once, put on the log what was sent, as it would come there by itself within milliseconds. Exactly
        once nobody sees it before the commit, and nothing is done. Raises what the log raises."""
        if self._producer is not None and not self._exactly_once:
            self._producer.flush()

    @property
    def is_all_or_nothing(self) -> bool:
        """Whether what one task has written can only be committed with what all others have."""
        return self._exactly_once and self._needed

    def commit(
        self,
        tasks: Sequence[Task],
        consumer: Consumer,
        queries: QuerySocket,
        epochs: EpochNumbers = NO_EPOCHS,
    ) -> None:
        """The steps above. Raises what the log or a store raises; then nothing more may be written before `settle`.

        `queries` are answered meanwhile; after the first store's commit not much longer than one slice of work takes,
        because readers wait for the end. `epochs`: as `Task.commit_stores`.
        """
        consumer.check_ownership(_next_offsets(tasks))  # before anything is written that would hold others back
        if self._exactly_once and self._producer is not None:
            offsets = self._commit_transaction(tasks, consumer, queries)
        else:
            offsets = self._commit_offsets(tasks, consumer, epochs, queries)
        left_s = _pause(queries, _BETWEEN_S)
        try:
            for task in tasks:
                task.commit_stores(offsets, epochs)
                reached("commit:task-committed")
                left_s = _pause(queries, left_s)
        finally:
            # All at once: a query over several partitions and stores sees this commit in all of them or in none, and
            # a server catches up once.
            for task in tasks:
                task.stores.announce()
                reached("commit:task-announced")

    def _commit_transaction(
        self, tasks: Sequence[Task], consumer: Consumer, queries: QuerySocket
    ) -> dict[TopicPartition, int]:
        reached("commit:begun")
        self._produce_changes(tasks, queries)
        reached("commit:changes-produced")
        writer, next_offsets, notes = self._writer(), _next_offsets(tasks), _notes(tasks)

        def commit() -> dict[TopicPartition, int]:
            offsets = writer.flush()
            reached("commit:changes-flushed")
            writer.send_offsets_to_transaction(next_offsets, consumer, notes)
            reached("commit:offsets-sent")
            writer.commit_transaction()
            return offsets

        offsets = self._answering(queries, consumer, commit)
        self._in_transaction = False
        reached("commit:log-committed")
        return offsets

    def _commit_offsets(
        self, tasks: Sequence[Task], consumer: Consumer, epochs: EpochNumbers, queries: QuerySocket
    ) -> dict[TopicPartition, int]:
        offsets: dict[TopicPartition, int] = {}
        reached("commit:begun")
        if self._producer is not None:
            # A worker that has lost its partitions, and does not know it yet, must not write its old values behind the
            # new owner's: only the group can tell, and it does when offsets that are committed are committed again.
            again = _merged(task.processing.committed_next_offsets for task in tasks)
            notes_again = _merged(task.processing.committed_notes for task in tasks)
            self._answering(queries, consumer, lambda: consumer.commit(again, notes_again))
            reached("commit:still-owner")
            self._produce_changes(tasks, queries)
            reached("commit:changes-produced")
            offsets = self._answering(queries, consumer, self._producer.flush)
            reached("commit:changes-flushed")
        for task in tasks:
            task.commit_unlogged_stores(epochs)
        reached("commit:unlogged-committed")
        some_have = any(task.topology.unlogged for task in tasks)  # made their commit
        next_offsets, notes = _next_offsets(tasks), _notes(tasks)
        self._answering(queries, consumer, lambda: consumer.commit(next_offsets, notes), uncommitted=some_have)
        reached("commit:log-committed")
        return offsets

    def _answering(
        self, queries: QuerySocket, consumer: Consumer, work: Callable[[], T], *, uncommitted: bool = False
    ) -> T:
        """What this work with the log returns, or raises; queries are answered until it has come back (`serve_while`),
        if another thread may do it."""
        if consumer.keeps_to_thread:
            return work()
        patience = self._log.patience
        left_s = patience.of(math.inf)

        def patiently() -> T:
            with patience.for_all(left_s):
                return work()

        return queries.serve_while(patiently, uncommitted=uncommitted)

    def close(self) -> None:
        """Release the producer; an open transaction is aborted."""
        if self._producer is not None:
            self._producer.close()
        self._producer = None
        self._in_transaction = False

    def _produce_changes(self, tasks: Iterable[Task], queries: QuerySocket) -> None:
        now = self._clock.now_ms()
        for task in tasks:
            for changelog, name in task.topology.logged:
                rows = staged_rows(task.stores.by_name[name], now)
                last, owner = task.marks.last_record_headers(name), task.marks.record_headers(name)
                for at in range(0, len(rows), _SLICE_RECORDS):
                    slice_ = rows[at : at + _SLICE_RECORDS]
                    headers = last if at + len(slice_) == len(rows) else ()
                    try:
                        self._writer().produce_all(changelog.topic, changelog.partition, slice_, headers, owner)
                    except InvalidArgumentError as error:
                        raise RecordError(f"The log refuses a record of a changelog: {error}") from error
                    queries.serve_pending()

    def _writer(self) -> Producer:
        """The producer, inside a transaction under exactly-once."""
        if self._producer is None:
            raise AssertionError("This topology writes nothing to the log, yet something was written.")
        if self._exactly_once and not self._in_transaction:
            self._producer.begin_transaction()
            self._in_transaction = True
        return self._producer


def _pause(queries: QuerySocket, left_s: float) -> float:
    """Answer those that may be, if there is time left; how much is left then."""
    if left_s <= 0:
        return 0.0
    began_s = time.monotonic()
    queries.serve_uncommitted(left_s)
    return left_s - (time.monotonic() - began_s)


def _next_offsets(tasks: Sequence[Task]) -> dict[TopicPartition, int]:
    return _merged(task.processing.next_offsets for task in tasks)


def _notes(tasks: Sequence[Task]) -> dict[TopicPartition, OffsetNote]:
    return _merged(task.processing.notes for task in tasks)


def _merged(of_tasks: Iterable[Mapping[TopicPartition, T]]) -> dict[TopicPartition, T]:
    return {partition: found for each in of_tasks for partition, found in each.items()}
