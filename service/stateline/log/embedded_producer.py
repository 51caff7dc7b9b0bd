"""The producer of the embedded log. Records wait in memory and are written in batches."""

from __future__ import annotations

import enum
import sqlite3
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import Self

from confluent_kafka import murmur2

from stateline.log.embedded_consumer import EmbeddedConsumer
from stateline.log.embedded_file import LogFile, encode_headers
from stateline.log.embedded_group import Claim, check_ownership, commit_offsets
from stateline.log.embedded_transactions import (
    Row,
    abort_transaction,
    append,
    check_epoch,
    end_transaction,
    hold_back,
    raise_epoch,
)
from stateline.log.interface import NO_NOTES, Consumer, Headers, LeftOut, LogRow, OffsetNote
from stateline.log.timestamps import TIMESTAMPS, checked_timestamp
from stateline.serde.plain import shown
from stateline_store import DoesNotExistError, FencedError, InvalidArgumentError, TopicPartition

BATCH_RECORDS = 4_000  # per write without a flush: 10 % faster than 1,000, and 13 ms of a fast writer
TRANSACTION_BYTES = 64 * 1024 * 1024  # the most of one transaction in memory, with Python's overhead per record
_RECORD_BYTES = 200
LINGER_S = 0.010  # the longest wait of a record while others are produced
MAX_MESSAGE_BYTES = 1_048_588  # key, value and headers: Kafka's default of a topic's max.message.bytes


class _State(enum.Enum):
    NEW = "init_transactions was not called"
    READY = "no transaction is open"
    OPEN = "a transaction is open"


class EmbeddedProducer:
    """Implements `stateline.log.interface.Producer`. One thread at a time uses it. Outside transactions, records are
    written by `flush`, by every 4,000th `produce`, and by a `produce` after a record has waited for 10 ms. A
    transaction's records wait until `commit_transaction`, `flush` or `TRANSACTION_BYTES`. Records written before the
    commit are invisible until then."""

    def __init__(self, file: LogFile, transactional_id: str | None, transaction_timeout_ms: int) -> None:
        self._file = file
        self._transactional_id = transactional_id
        self._transaction_timeout_ms = transaction_timeout_ms
        self._state = _State.NEW
        self._epoch = -1
        self._partition_ids: dict[str, list[int]] = {}
        self._queued: dict[tuple[str, int], list[Row]] = defaultdict(list)  # by topic and partition
        self._queued_records = self._queued_bytes = 0
        self._oldest_s = 0.0
        self._left_out: dict[str, LeftOut] = {}
        self._written: dict[TopicPartition, int] = {}
        self._offsets: list[tuple[Claim, dict[int, int], dict[int, OffsetNote]]] = []
        self._any_partition = count()

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        timestamp_ms: int,
        headers: Headers = (),
        partition: int | None = None,
        partition_key: bytes | None = None,
        is_copy: bool = False,
    ) -> None:
        if partition is None and partition_key is not None:
            partition = murmur2(partition_key, len(self._partition_ids.get(topic) or self._look_up(topic)))
        encoded = encode_headers(headers) if headers else None
        self._queue(topic, key, value, timestamp_ms, encoded, partition, is_copy=is_copy)

    def _queue(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        encoded: bytes | None,
        partition: int | None,
        *,
        is_copy: bool = False,
    ) -> None:
        partitions = self._partition_ids.get(topic) or self._look_up(topic)
        if partition is None:
            n = len(partitions)
            partition = next(self._any_partition) % n if key is None else murmur2(key, n)
        elif not 0 <= partition < len(partitions):
            raise DoesNotExistError(f"Topic {topic!r} has {len(partitions)} partitions: no partition {partition}.")
        if not is_copy and (type(timestamp_ms) is not int or timestamp_ms not in TIMESTAMPS):
            timestamp_ms = checked_timestamp(timestamp_ms)
        size = (len(key) if key else 0) + (len(value) if value else 0) + (len(encoded) if encoded else 0)
        if size > MAX_MESSAGE_BYTES:
            raise InvalidArgumentError(
                f"A record for {topic!r} is too large: it has {size} bytes with its headers, and the embedded log "
                f"takes {MAX_MESSAGE_BYTES}. Make it smaller, or use Apache Kafka and raise its max.message.bytes."
            )
        if self._transactional_id is not None:
            self._require(_State.OPEN)
        self._queued[topic, partition].append((timestamp_ms, key, value, encoded))
        self._queued_records += 1
        self._queued_bytes += size + _RECORD_BYTES
        if self._transactional_id is None:
            self._write_when_due()
        elif self._queued_bytes >= TRANSACTION_BYTES:
            self._write()

    def produce_all(
        self, topic: str, partition: int, rows: Sequence[LogRow], last_headers: Headers = (), headers: Headers = ()
    ) -> None:
        last, encoded = len(rows) - 1, encode_headers(headers)
        for at, (key, value, timestamp_ms) in enumerate(rows):
            own = encode_headers((*last_headers, *headers)) if at == last else encoded
            try:
                self._queue(topic, key, value, timestamp_ms, own, partition)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"Key {shown(key)}: {error}") from error

    def _look_up(self, topic: str) -> list[int]:
        rows = self._file.rows("SELECT id FROM partitions WHERE topic = ? ORDER BY partition", (topic,))
        if not rows:
            raise DoesNotExistError(f"{self._file.path} has no topic {topic!r}: create it first.")
        ids = [id_ for (id_,) in rows]
        self._partition_ids[topic] = ids
        return ids

    def _write_when_due(self) -> None:
        now = time.monotonic()
        if self._queued_records == 1:
            self._oldest_s = now
        if self._queued_records >= BATCH_RECORDS or now - self._oldest_s >= LINGER_S:
            self._write()

    def _write(self) -> None:
        """Write the queue. It stays queued if this raises, except for records of deleted topics."""
        if not self._queued:
            return
        try:
            with self._file.write() as sql:
                firsts = self._append(sql)
                if self._transactional_id is not None:
                    check_epoch(sql, self._transactional_id, self._epoch)
                    ranges = {
                        self._partition_id(partition): (first, first + len(self._queued[partition]) - 1)
                        for partition, first in firsts.items()
                    }
                    hold_back(sql, self._transactional_id, ranges, self._transaction_timeout_ms)
        except DoesNotExistError as error:
            gone = self._forget_topics()
            may_go_on = self._transactional_id is None and gone
            if not may_go_on or any(topic not in self._left_out for topic, _ in gone):
                raise
            for topic, key in gone:
                self._left_out[topic](topic, key, error)
            self._write()
            return
        self._note_written(firsts)

    def _append(self, sql: sqlite3.Connection) -> dict[tuple[str, int], int]:
        return {place: append(sql, self._partition_id(place), rows) for place, rows in self._queued.items()}

    def _partition_id(self, place: tuple[str, int]) -> int:
        topic, partition = place
        return self._partition_ids[topic][partition]

    def _note_written(self, firsts: Mapping[tuple[str, int], int]) -> None:
        for partition, first in firsts.items():
            self._written[TopicPartition(*partition)] = first + len(self._queued[partition]) - 1
        self._drop_queued()

    def _drop_queued(self) -> None:
        self._queued.clear()
        self._queued_records = self._queued_bytes = 0

    def _forget_topics(self) -> list[tuple[str, bytes | None]]:
        """Drop the records of deleted topics, and return their topics and keys. A topic may exist again under a new
        id."""
        gone: list[tuple[str, bytes | None]] = []
        self._partition_ids.clear()
        for place in list(self._queued):
            try:
                self._look_up(place[0])
            except DoesNotExistError:
                rows = self._queued.pop(place)
                self._queued_records -= len(rows)
                gone += [(place[0], key) for _, key, _, _ in rows]
        return gone

    def leave_out(self, topics: Collection[str], tell: LeftOut) -> None:
        self._left_out = dict.fromkeys(topics, tell)

    def flush(self) -> dict[TopicPartition, int]:
        self._write()
        written, self._written = self._written, {}
        return written

    def _require(self, state: _State) -> None:
        if self._state is not state:
            raise InvalidArgumentError(
                f"This producer ({self._transactional_id!r}) cannot do that now: {self._state.value}."
            )

    def _id(self) -> str:
        if self._transactional_id is None:
            raise InvalidArgumentError("This producer has no transactional id, so it has no transactions.")
        return self._transactional_id

    def init_transactions(self) -> None:
        transactional_id = self._id()
        self._require(_State.NEW)
        with self._file.write() as sql:
            self._epoch = raise_epoch(sql, transactional_id)
        self._state = _State.READY

    def begin_transaction(self) -> None:
        self._id()
        self._require(_State.READY)
        self._state = _State.OPEN

    def send_offsets_to_transaction(
        self,
        next_offsets: Mapping[TopicPartition, int],
        consumer: Consumer,
        notes: Mapping[TopicPartition, OffsetNote] = NO_NOTES,
    ) -> None:
        self._require(_State.OPEN)
        if not isinstance(consumer, EmbeddedConsumer):
            raise InvalidArgumentError(f"{consumer!r} does not read an embedded log.")
        claim, ids = consumer.claim(), consumer.partition_ids(next_offsets)
        with self._file.write() as sql:
            check_ownership(sql, claim, ids.values())
        by_id = {ids[partition]: note for partition, note in notes.items() if partition in ids}
        self._offsets.append((claim, {ids[partition]: at for partition, at in next_offsets.items()}, by_id))

    def commit_transaction(self) -> None:
        transactional_id = self._id()
        self._require(_State.OPEN)
        try:
            with self._file.write() as sql:
                check_epoch(sql, transactional_id, self._epoch)
                firsts = self._append(sql)
                for claim, next_offsets, notes in self._offsets:
                    commit_offsets(sql, claim, next_offsets, notes)
                end_transaction(sql, transactional_id, map(self._partition_id, firsts))
        except DoesNotExistError:
            self._forget_topics()
            raise
        self._note_written(firsts)
        self._end()

    def abort_transaction(self) -> None:
        transactional_id = self._id()
        self._require(_State.OPEN)
        self._drop_queued()
        with self._file.write() as sql:
            abort_transaction(sql, transactional_id, self._epoch)
        self._written.clear()
        self._end()

    def _end(self) -> None:
        self._offsets.clear()
        self._state = _State.READY

    def close(self) -> None:
        try:
            if self._state is _State.OPEN:
                self.abort_transaction()
        except FencedError:
            pass  # the newer producer has aborted it already
        finally:
            self._state = _State.NEW
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        """Close. Flush first, unless an error is under way or the producer is transactional."""
        try:
            if kind is None and self._transactional_id is None:
                self.flush()
        finally:
            self.close()
