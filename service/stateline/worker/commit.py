"""Commit: the order in which a worker makes its work permanent, and what a crash after each step leaves.

1. Changelog records of what is staged are produced, and the producer is flushed.
   *Crash: exactly once, the successor aborts the transaction; at least once, the input is processed again.*
2. exactly_once_v2: the Kafka transaction is committed, the input offsets in it. at_least_once: the offsets are.
   *Crash: the stores are behind their changelogs and replay the difference.*
3. Each store commits what it staged, with its changelog offset and its Position, in one atomic batch.

A step that fails leaves the outcome to `Committer.settle` and the stores to a restore from their own offsets.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from stateline.config import Config
from stateline.log.interface import Consumer, Log, Producer
from stateline.topology import Topology
from stateline.worker.changelog import staged_changes
from stateline.worker.records import OutputRecord
from stateline.worker.task import Task


def writes_to_log(topology: Topology, dead_letter_topic: str | None) -> bool:
    """Whether an application's worker produces anything: changelogs, forwarded records, dead letters."""
    logged = any(d.source is None and d.logged for d in topology.stores.values())
    forwards = any(p.forwards for s in topology.subtopologies for p in s.processors)
    return logged or forwards or dead_letter_topic is not None


class Committer:
    """Owns the producer and its transaction. One worker's, used on its thread only.

    `identity` names this worker among all of its application, over restarts: it makes the transactional id.
    A topology that writes nothing to the log has no producer: its tables' own offsets say where to resume.
    """

    def __init__(self, log: Log, config: Config, topology: Topology, identity: str) -> None:
        self._log = log
        self._exactly_once = config.exactly_once
        self._transactional_id = f"{topology.application_id}-{identity}" if config.exactly_once else None
        self._needed = writes_to_log(topology, config.dead_letter_topic)
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

    def send(self, outputs: Iterable[OutputRecord]) -> None:
        """Queue what processors forwarded: part of the next commit."""
        for record in outputs:
            self._writer().produce(
                record.topic,
                record.key,
                record.value,
                timestamp_ms=record.timestamp_ms,
                headers=record.headers,
            )

    def commit(self, tasks: Sequence[Task], consumer: Consumer) -> None:
        """The three steps. Raises what the log or a store raises; then nothing more may be written before `settle`."""
        self._produce_changes(tasks)
        next_offsets = {tp: offset for task in tasks for tp, offset in task.next_offsets.items()}
        offsets = self._producer.flush() if self._producer is not None else {}
        if self._producer is not None and self._exactly_once:
            writer = self._writer()
            writer.send_offsets_to_transaction(next_offsets, consumer)
            writer.commit_transaction()
            self._in_transaction = False
        else:
            consumer.commit(next_offsets)
        for task in tasks:
            task.commit_stores(offsets)

    def close(self) -> None:
        """Release the producer; an open transaction is aborted."""
        if self._producer is not None:
            self._producer.close()
        self._producer = None
        self._in_transaction = False

    def _produce_changes(self, tasks: Iterable[Task]) -> None:
        now_ms = time.time_ns() // 1_000_000
        for task in tasks:
            for changelog, store in task.logged_stores():
                for change in staged_changes(store, now_ms):
                    self._writer().produce(
                        changelog.topic,
                        change.key,
                        change.value,
                        timestamp_ms=change.timestamp_ms,
                        headers=change.headers,
                        partition=changelog.partition,
                    )

    def _writer(self) -> Producer:
        """The producer, inside a transaction under exactly-once."""
        if self._producer is None:
            raise AssertionError("This topology writes nothing to the log, yet something was written.")
        if self._exactly_once and not self._in_transaction:
            self._producer.begin_transaction()
            self._in_transaction = True
        return self._producer
