"""The producer over confluent-kafka.

One Python function takes all delivery reports. It keeps the last offset per partition and the first error, and costs
0.1 to 0.3 µs per record.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from stateline.log.interface import NO_NOTES, Consumer, Headers, LeftOut, LogRow, OffsetNote
from stateline.log.kafka_consumer import KafkaConsumer
from stateline.log.kafka_errors import CALL_TIMEOUT_S, LOGGER, Login, kafka_error, meaning
from stateline.log.kafka_topics import told_of_topics
from stateline.log.timestamps import TIMESTAMPS, checked_timestamp
from stateline.log.waiting import Patience, waiting_is_said, within
from stateline.serde.plain import shown
from stateline_store import (
    DoesNotExistError,
    InDoubtError,
    InvalidArgumentError,
    LogUnavailableError,
    StatelineError,
    TopicPartition,
)

_ANY_PARTITION = -1  # librdkafka's RD_KAFKA_PARTITION_UA
_SHORTEST_CALL_S = 1.0  # of a transaction's call: a healthy broker needs up to that
_GRACE_S = 1.0  # how much later than its timeout librdkafka may return
_REPORT_TIMEOUT_S = 1.0  # a report follows at once the state that it explains
# Refused because of the topic. A batch that is too large is different: all its records are refused, also small ones.
_TOPIC_REFUSED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
_POLL_EVERY = 1_000  # records between two polls for delivery reports, which keep payloads in memory


class KafkaProducer:
    """Implements `stateline.log.interface.Producer`. One thread at a time uses it. Every call ends: a call that does
    not return is given up with its client. librdkafka reads a timestamp of 0 as "now", so 0 is written as 1 ms. It has
    more than 25 methods because records and transactions share one client. A failure of one decides which calls of the
    other are allowed."""

    def __init__(
        self, settings: Mapping[str, object], bootstrap_servers: str, patience: Patience, transactional_id: str | None
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._patience = patience
        self._transactional_id = transactional_id
        self._written: dict[tuple[str, int], int] = {}
        self._failure: tuple[KafkaError, str] | None = None
        self._named = {name: settings[name] for name in ("transaction.timeout.ms",) if name in settings}
        self._login = Login(bootstrap_servers)
        callbacks = {"on_delivery": self._delivered, "error_cb": self._login.note}
        self._producer = confluent_kafka.Producer({**settings, **callbacks}, logger=LOGGER)
        self._partitions: dict[str, int] = {}
        self._left_out: dict[str, LeftOut] = {}
        self._until_poll = _POLL_EVERY
        self._in_transaction = False
        self._given_up = False
        self._closed = False

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self._written[message.topic(), message.partition()] = message.offset()
        elif error.code() in _TOPIC_REFUSED and message.topic() in self._left_out and not self._transactional_id:
            why = meaning(error, self._bootstrap_servers, f"A record for {message.topic()!r} was not written")
            self._left_out[message.topic()](message.topic(), message.key(), why)
        elif self._is_unexplained():
            self._failure = error, f"{message.topic()}-{message.partition()}"

    def _is_unexplained(self) -> bool:
        """Return whether the only failures so far are records purged along with a lost one."""
        return self._failure is None or self._failure[0].code() in _PURGED

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
        count = self._partitions.get(topic)
        if count is None or partition is not None:
            count = self._partition_count(topic, partition)
        if partition is None and partition_key is not None:
            partition = int(confluent_kafka.murmur2(partition_key, count))
        elif partition is None:
            partition = _ANY_PARTITION
        if not is_copy and (type(timestamp_ms) is not int or timestamp_ms not in TIMESTAMPS):
            timestamp_ms = checked_timestamp(timestamp_ms)
        self._until_poll -= 1
        if not self._until_poll:
            self._until_poll = _POLL_EVERY
            self._serve(self._producer.poll, 0.0)
        timestamp_ms = timestamp_ms or 1  # librdkafka takes 0 for "now" (2.16.0)
        own: Any = list(headers) if headers else None
        while True:
            try:
                self._producer.produce(topic, value, key, partition, timestamp=timestamp_ms, headers=own)
                return
            except BufferError:
                self._wait_for_room()
            except KafkaException as error:
                self._raise_failure_before(error)
                raise self._meaning(error, f"A record for {topic!r} was refused") from error

    def produce_all(
        self, topic: str, partition: int, rows: Sequence[LogRow], last_headers: Headers = (), headers: Headers = ()
    ) -> None:
        self._partition_count(topic, partition)
        produce, last = self._producer.produce, len(rows) - 1
        every: Any = list(headers) or None
        for at, (key, value, timestamp_ms) in enumerate(rows):
            if at % _POLL_EVERY == 0:
                self._serve(self._producer.poll, 0.0)
            if at < last and timestamp_ms > 0:
                try:
                    produce(topic, value, key, partition, None, None, timestamp_ms, every)
                    continue
                except (BufferError, KafkaException, TypeError, OverflowError):
                    pass  # `produce` waits for room, and knows why a record is refused
            own = (*last_headers, *headers) if at == last else headers
            try:
                self.produce(topic, key, value, timestamp_ms=timestamp_ms, headers=own, partition=partition)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"Key {shown(key)}: {error}") from error

    def _partition_count(self, topic: str, partition: int | None) -> int:
        """Return the topic's partition count. Raises `DoesNotExistError` if this partition does not exist."""
        count = self._partitions.get(topic)
        if count is None or (partition is not None and partition >= count):
            count = self._partitions[topic] = self._look_up(topic)
        if partition is not None and not 0 <= partition < count:
            raise DoesNotExistError(f"Topic {topic!r} has {count} partitions: no partition {partition}.")
        return count

    def _raise_failure_before(self, error: KafkaException) -> None:
        """Raise why a transaction has lost a record. That record's report comes last."""
        if self._in_transaction and kafka_error(error).code() == KafkaError._STATE:
            deadline = time.monotonic() + _REPORT_TIMEOUT_S
            while self._is_unexplained() and time.monotonic() < deadline:
                self._serve(self._producer.poll, 0.05)
            self._raise_failure()

    def _wait_for_room(self) -> None:
        """Serve delivery reports until the queue is shorter. Raises `LogUnavailableError` if it does not shrink."""
        before, timeout_s = len(self._producer), self._patience.of(CALL_TIMEOUT_S)
        deadline = time.monotonic() + timeout_s
        while len(self._producer) >= before:
            if time.monotonic() > deadline:
                raise LogUnavailableError(self._stuck(before, timeout_s))
            self._serve(self._producer.poll, 0.1)

    def _stuck(self, records: int, timeout_s: float) -> str:
        return f"Kafka at {self._bootstrap_servers} has taken none of {records} records for {timeout_s:.0f} seconds."

    def _look_up(self, topic: str) -> int:
        try:
            timeout_s = self._patience.of(CALL_TIMEOUT_S)
            with waiting_is_said(self._bootstrap_servers, timeout_s):
                topics = told_of_topics(self._producer, [topic], timeout_s)
        except KafkaException as error:
            raise self._meaning(error, f"Topic {topic!r} cannot be looked up") from error
        if topic not in topics:
            raise DoesNotExistError(f"Kafka at {self._bootstrap_servers} has no topic {topic!r}: create it first.")
        return len(topics[topic].partitions)

    def leave_out(self, topics: Collection[str], tell: LeftOut) -> None:
        self._left_out = dict.fromkeys(topics, tell)

    def flush(self) -> dict[TopicPartition, int]:
        left, timeout_s, since_s = len(self._producer), self._patience.of(CALL_TIMEOUT_S), time.monotonic()
        while (now_left := self._serve(self._producer.flush, 0.5)) > 0:
            if now_left < left:
                left, timeout_s, since_s = now_left, self._patience.of(CALL_TIMEOUT_S), time.monotonic()
            elif time.monotonic() > since_s + timeout_s:
                raise LogUnavailableError(self._stuck(left, timeout_s))
        self._raise_failure()
        written = {TopicPartition(*partition): offset for partition, offset in self._written.items()}
        self._written.clear()
        return written

    def _serve(self, work: Callable[[float], int], timeout_s: float) -> int:
        """Run a call that serves delivery reports. A fatal error of the client surfaces here, perhaps as a
        SystemError."""
        try:
            return work(timeout_s)
        except KafkaException as error:
            raise self._meaning(error, "The producer has failed") from error
        except SystemError as error:
            if isinstance(error.__cause__, KafkaException):
                raise self._meaning(error.__cause__, "The producer has failed") from error
            if (lost := self._state_error()) is None:
                raise
            raise meaning(lost, self._bootstrap_servers, "The producer has failed") from error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            (error, where), self._failure = self._failure, None
            if self._in_transaction and error.code() in _PURGED:
                error = self._state_error() or error
            raise meaning(error, self._bootstrap_servers, f"A record for {where} was not written")

    def _state_error(self) -> KafkaError | None:
        """Return why the transaction or the client failed. librdkafka reports that when another transaction begins."""
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            found = kafka_error(error)
            return None if found.code() == KafkaError._STATE else found
        return None

    def _meaning(self, error: KafkaException, what: str) -> StatelineError:
        meant = meaning(kafka_error(error), self._bootstrap_servers, what, self._named)
        if not isinstance(meant, LogUnavailableError):
            return meant
        with suppress(KafkaException, SystemError):  # the same error again
            self._producer.poll(0.0)  # serves the callback of errors
        return self._login.refusal(what) or meant

    def _transactional(self, what: str, work: Callable[..., object], *arguments: Any) -> None:
        """Run one of librdkafka's transaction calls, and repeat it while that may help, for a bounded time."""
        deadline = time.monotonic() + self._patience.of(CALL_TIMEOUT_S)
        while True:
            try:
                work(*arguments, max(_SHORTEST_CALL_S, deadline - time.monotonic()))
                return
            except KafkaException as error:
                if not kafka_error(error).retriable() or time.monotonic() > deadline:
                    raise self._meaning(error, f"{what} of {self._transactional_id!r} failed") from error

    def init_transactions(self) -> None:
        self._transactional("init_transactions", self._producer.init_transactions)

    def begin_transaction(self) -> None:
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise self._meaning(error, f"begin_transaction of {self._transactional_id!r} failed") from error
        self._in_transaction = True

    def send_offsets_to_transaction(
        self,
        next_offsets: Mapping[TopicPartition, int],
        consumer: Consumer,
        notes: Mapping[TopicPartition, OffsetNote] = NO_NOTES,
    ) -> None:
        if not isinstance(consumer, KafkaConsumer):
            raise InvalidArgumentError(f"{consumer!r} does not read from Kafka.")
        consumer.check_ownership(next_offsets)
        offsets = consumer.offsets_to_commit(next_offsets, notes)
        self._transactional("send_offsets_to_transaction", self._send_offsets, offsets, consumer.group_metadata())

    def _send_offsets(self, *arguments: Any) -> None:
        """Send offsets through librdkafka, and give up if the call does not return. It ignores its timeout if the
        group's coordinator has left the cluster (confluentinc/librdkafka#5456, #5511). Raises `LogUnavailableError`
        then, and this producer can only be given up. The call ends later, and is fenced."""
        send = self._producer.send_offsets_to_transaction
        try:
            within(self._patience.of(CALL_TIMEOUT_S) + _GRACE_S, "send-offsets", lambda: send(*arguments))
        except TimeoutError as error:
            self._given_up = True
            raise LogUnavailableError(
                f"send_offsets_to_transaction of {self._transactional_id!r} does not come back: Kafka at "
                f"{self._bootstrap_servers} has lost the broker that keeps the group's offsets."
            ) from error

    def commit_transaction(self) -> None:
        deadline = time.monotonic() + self._patience.of(2 * CALL_TIMEOUT_S)
        while True:
            try:
                self._producer.commit_transaction(self._patience.of(CALL_TIMEOUT_S))
                break
            except KafkaException as error:
                # librdkafka resumes a repeated commit. Only repeated silence leaves it open.
                if not kafka_error(error).retriable() or time.monotonic() > deadline:
                    raise self._failed_commit(error) from error
        self._in_transaction = False

    def _failed_commit(self, error: KafkaException) -> StatelineError:
        inner = kafka_error(error)
        if inner.txn_requires_abort() and self._failure is not None:
            return meaning(
                self._failure[0], self._bootstrap_servers, f"A record for {self._failure[1]} was not written"
            )
        meant = self._meaning(error, f"commit_transaction of {self._transactional_id!r} failed")
        if inner.txn_requires_abort() or not isinstance(meant, LogUnavailableError):
            return meant
        self._in_transaction = False  # librdkafka refuses to abort until the commit times out
        return InDoubtError(
            f"Whether the transaction of {self._transactional_id!r} was committed is unknown "
            f"({inner.str()}, Kafka at {self._bootstrap_servers}): make a new producer of this id to settle it."
        )

    def abort_transaction(self) -> None:
        self._transactional("abort_transaction", self._producer.abort_transaction)
        self._serve(self._producer.poll, 0.0)
        self._in_transaction = False
        self._written.clear()
        self._failure = None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._given_up:
            LOGGER.warning("A producer of %r is left to its call that does not come back.", self._transactional_id)
            return
        try:
            if self._in_transaction:
                self.abort_transaction()
        except StatelineError as error:
            # The broker aborts it by its timeout, or a newer producer has done so already.
            LOGGER.warning("%s", error)
        finally:
            self._release()

    def _release(self) -> None:
        """Purge the queue, then drop the client. Its own `close` would wait for records that cannot be written."""
        deadline = time.monotonic() + _GRACE_S
        self._producer.purge()
        try:
            # A record between two of librdkafka's queues escapes a purge.
            while self._serve(self._producer.flush, 0.05) and time.monotonic() < deadline:
                self._producer.purge()
        except StatelineError as error:
            LOGGER.warning("%s", error)
        with warnings.catch_warnings():
            # The client repeats the warning of a failed abort, which is logged above.
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                within(CALL_TIMEOUT_S, "close-producer", self._producer.close)
            except TimeoutError:
                LOGGER.warning("A producer of %s is left to its close.", self._transactional_id or "no transactions")
            except KafkaException as error:
                LOGGER.warning("%s", self._meaning(error, "A producer was closed after an error"))
