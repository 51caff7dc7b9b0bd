"""The admin over confluent-kafka: topics, watermarks and committed offsets."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Any, TypeVar

import confluent_kafka
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin._config import ConfigResource  # neither does it export these four
from confluent_kafka.admin._listoffsets import OffsetSpec  # confluent_kafka.admin does not export it to type checkers
from confluent_kafka.admin._metadata import TopicMetadata  # as the last one
from confluent_kafka.admin._resource import ResourceType  # as the last one
from confluent_kafka.cimpl import NewTopic as KafkaNewTopic

from stateline.log.interface import NO_NOTES, GroupMember, NewTopic, Notes, OffsetNote, TopicInfo
from stateline.log.kafka_errors import CALL_TIMEOUT_S, LOGGER, Login, kafka_error, meaning
from stateline.log.kafka_offsets import asked_offsets, committed_metadata, committed_offsets, read_metadata
from stateline.log.kafka_topics import told_of_topics
from stateline.log.waiting import Patience, waiting_is_said
from stateline_store import (
    DoesNotExistError,
    InvalidArgumentError,
    LogUnavailableError,
    RetryLaterError,
    TopicPartition,
)

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_POLL_INTERVAL_S = 0.02
_STUCK_S = CALL_TIMEOUT_S  # the longest wait for one more partition to be ready
_SAID_AGAIN_S = 5.0  # between two lines of progress in the log
_NAMED = 3  # partitions in a message
# librdkafka crashes the process (an assertion of `rd_kafka_enq_once_del_source_return`, its issue 4605) if a request to
# a coordinator times out before there is a connection. So requests get the longest timeout that is allowed.
_NEVER_S = 3600.0
_FIRST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # the client leaves these untyped
_LAST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # as above
_EARLIEST, _LATEST = (_FIRST, IsolationLevel.READ_COMMITTED), (_LAST, IsolationLevel.READ_COMMITTED)
_END_OF_ALL = _LAST, IsolationLevel.READ_UNCOMMITTED
# Kafka's own clients retry these: a leader is elected, or does not know it yet (`OffsetFetcherUtils`).
_NO_LEADER = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.KAFKA_STORAGE_ERROR,
)
# And these for groups (`CoordinatorStrategy`): their coordinator changes.
_NO_COORDINATOR = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
# Brokers refuse so to set offsets of a group with members.
_IN_USE = (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP, KafkaError.REBALANCE_IN_PROGRESS)
_NOT_READY = (*_NO_LEADER, KafkaError.UNKNOWN_TOPIC_OR_PART)


class KafkaAdmin:
    """Implements `stateline.log.interface.Admin`. One thread at a time uses it. Every call ends within half a minute,
    or once created or deleted topics make no progress for 15 s."""

    def __init__(
        self, settings: Mapping[str, Any], bootstrap_servers: str, patience: Patience, replication_factor: int
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._patience = patience
        self._replication_factor = replication_factor
        self._login = Login(bootstrap_servers)
        self._settings = {**settings, "error_cb": self._login.note}
        self._admin = self._client()
        self._consumers: dict[tuple[str, str], confluent_kafka.Consumer] = {}  # by group and isolation level

    def _client(self) -> kafka_admin.AdminClient:
        return kafka_admin.AdminClient(self._settings, logger=LOGGER)

    def _told_of(self, names: Collection[str] | None) -> dict[str, TopicMetadata]:
        try:
            timeout_s = self._patience.of(CALL_TIMEOUT_S)
            with waiting_is_said(self._bootstrap_servers, timeout_s):
                return told_of_topics(self._admin, names, timeout_s)
        except KafkaException as error:
            self._admin.poll(0.0)  # serves the callback of errors
            what = "Topics cannot be listed"
            meant = meaning(kafka_error(error), self._bootstrap_servers, what)
            raise self._login.refusal(what) or meant from error

    def _partition_counts(self, names: Collection[str], *, led: bool = True) -> dict[str, int]:
        """Return topic → partitions, or partitions with a leader. Those are fewer while a topic is created or a broker
        is away. Absent topics are left out."""
        return {
            name: sum(partition.leader >= 0 or not led for partition in topic.partitions.values())
            for name, topic in self._told_of(names).items()
        }

    def cluster_id(self) -> str:
        timeout_s = self._patience.of(CALL_TIMEOUT_S)
        what = "The cluster cannot be described"
        future = self._submit(what, self._admin.describe_cluster, request_timeout=timeout_s)
        return str(self._result(future, what).cluster_id or "")

    def topics(self, named: Collection[str] | None = None) -> dict[str, TopicInfo]:
        names = sorted(self._told_of(None) if named is None else named)
        if not names:
            return {}
        what, timeout_s = "Topics cannot be described", self._patience.of(CALL_TIMEOUT_S)
        futures = self._submit(what, self._admin.describe_topics, TopicCollection(names), request_timeout=timeout_s)
        found: dict[str, TopicInfo] = {}
        for name, future in futures.items():
            try:
                topic = self._result(future, f"Topic {name!r} cannot be described")
            except DoesNotExistError:
                continue  # deleted meanwhile
            if not topic.is_internal:
                found[name] = TopicInfo(name, len(topic.partitions), str(topic.topic_id))
        return found

    def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        wanted = {topic.name: topic for topic in topics}
        if not wanted:
            return
        new = [
            KafkaNewTopic(topic.name, topic.partitions, self._replication_factor, config=dict(topic.settings))
            for topic in wanted.values()
        ]
        what, create = "Topics cannot be created", self._admin.create_topics
        futures = self._submit(what, create, new, validate_only=validate_only, **_timeouts())
        made = {name for name, future in futures.items() if self._is_done(name, future)}
        if validate_only:
            return

        def are_there(counts: dict[str, int]) -> bool:
            whole = all(counts.get(name, 0) >= wanted[name].partitions for name in made)
            return whole and wanted.keys() <= counts.keys()

        self._wait(are_there, wanted, "to create")
        self._settle([TopicPartition(name, number) for name in made for number in range(wanted[name].partitions)])

    def _is_done(self, name: str, future: Future[Any]) -> bool:
        """Return whether this call creates the topic. After a timeout the broker still creates it."""
        passed_over = {KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.REQUEST_TIMED_OUT}
        try:
            self._result(future, f"Topic {name!r} cannot be created", passed_over)
        except _PassedOverError as error:
            return error.error.code() == KafkaError.REQUEST_TIMED_OUT
        return True

    def _settle(self, partitions: Sequence[TopicPartition]) -> None:
        """Wait until the leader of each partition answers. With thousands of new partitions, metadata name a leader up
        to half a minute before it answers. Raises `LogUnavailableError` if no further partition answers within
        `_STUCK_S`."""
        left, total, said_s = list(partitions), len(partitions), time.monotonic()
        deadline = said_s + _STUCK_S
        while left:
            asked_s, before = time.monotonic(), len(left)
            left = self._unsettled(left)
            now_s = time.monotonic()
            if len(left) < before:
                deadline = now_s + _STUCK_S
            elif now_s > deadline:
                raise LogUnavailableError(
                    f"Kafka at {self._bootstrap_servers} needs too long to create {_listed(left)}. Try again in a "
                    "moment; if that does not help, its log says more."
                )
            if left and now_s > said_s + _SAID_AGAIN_S:
                said_s = now_s
                _LOG.info("Creating topics: %d of %d partitions are ready", total - len(left), total)
            time.sleep(max(_POLL_INTERVAL_S, now_s - asked_s) if left else 0.0)

    def _unsettled(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions whose leader does not answer yet."""
        what = f"The offsets of {_listed(partitions)} cannot be read"
        spec, level = _LATEST
        targets = {confluent_kafka.TopicPartition(*partition): spec for partition in partitions}
        left: list[TopicPartition] = []
        ask, timeout_s = self._admin.list_offsets, CALL_TIMEOUT_S
        for each, future in self._submit(what, ask, targets, isolation_level=level, request_timeout=timeout_s).items():
            try:
                self._result(future, what, _NOT_READY)
            except _PassedOverError:
                left.append(TopicPartition(each.topic, each.partition))
        return left

    def delete_topics(self, names: Iterable[str]) -> None:
        gone = list(names)
        if not gone:
            return
        futures = self._submit("Topics cannot be deleted", self._admin.delete_topics, gone, **_timeouts())
        for name, future in futures.items():
            try:
                self._result(future, f"Topic {name!r} cannot be deleted")
            except DoesNotExistError:
                continue
        self._wait(lambda counts: not counts, gone, "to delete")

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        if not before:
            return
        self._require(before)
        wanted = [confluent_kafka.TopicPartition(*partition, offset) for partition, offset in before.items()]
        futures = self._submit("Records cannot be deleted", self._admin.delete_records, wanted, **_timeouts())
        for each, future in futures.items():
            what = f"Records of {each.topic}-{each.partition} before {each.offset} cannot be deleted"
            try:
                self._result(future, what, {KafkaError.OFFSET_OUT_OF_RANGE})
            except _PassedOverError as error:
                raise InvalidArgumentError(f"{what}: that is beyond its end.") from error

    def topic_settings(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        asked = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        if not asked:
            return {}
        what = "The settings of topics cannot be read"
        futures = self._submit(what, self._admin.describe_configs, asked, request_timeout=CALL_TIMEOUT_S)
        found: dict[str, dict[str, str]] = {}
        for resource, future in futures.items():
            try:
                entries = self._result(future, f"The settings of topic {resource.name!r} cannot be read")
            except DoesNotExistError:
                continue
            found[resource.name] = {name: str(entry.value) for name, entry in entries.items()}
        return found

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return committed_offsets(self._consumer_of(group), group, partitions, *self._limits())

    def committed_by(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        consumer = self._consumer_of(group, "read_uncommitted")  # waits for no transaction
        found = asked_offsets(consumer, group, partitions, *self._limits())
        told = {partition: read_metadata(each)[0] for partition, each in found.items()}
        return {partition: client_id for partition, client_id in told.items() if client_id}

    def committed_with_notes(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, OffsetNote]]:
        found = asked_offsets(self._consumer_of(group), group, partitions, *self._limits())
        return {
            partition: (each.offset, read_metadata(each)[1]) for partition, each in found.items() if each.offset >= 0
        }

    def _limits(self) -> tuple[str, float]:
        return self._bootstrap_servers, self._patience.of(CALL_TIMEOUT_S)

    def _consumer_of(self, group: str, isolation_level: str = "read_committed") -> confluent_kafka.Consumer:
        consumer = self._consumers.get((group, isolation_level))
        if consumer is None:
            settings = {"group.id": group, "enable.auto.commit": False, "isolation.level": isolation_level}
            consumer = confluent_kafka.Consumer({**self._settings, **settings}, logger=LOGGER)
            self._consumers[group, isolation_level] = consumer
        return consumer

    def alter_offsets(self, group: str, next_offsets: Mapping[TopicPartition, int], notes: Notes = NO_NOTES) -> None:
        if not next_offsets:
            return
        what = f"The offsets of group {group!r} cannot be set"
        noted = {each: committed_metadata("", notes.get(each, OffsetNote())) for each in next_offsets}
        wanted = [confluent_kafka.TopicPartition(*each, at, metadata=noted[each]) for each, at in next_offsets.items()]
        offsets = [confluent_kafka.ConsumerGroupTopicPartitions(group, wanted)]
        try:
            done = self._of_group(group, what, self._admin.alter_consumer_group_offsets, offsets, _IN_USE)
        except _PassedOverError as error:
            raise RetryLaterError(f"Group {group!r} has members. Stop them first.") from error
        for each in done.topic_partitions:
            if each.error is not None:
                if each.error.code() in _IN_USE:
                    raise RetryLaterError(f"Group {group!r} has members. Stop them first.")
                raise meaning(each.error, self._bootstrap_servers, f"{what} ({each.topic}-{each.partition})")

    def members(self, group: str) -> list[GroupMember]:
        what, ask = f"The members of group {group!r} cannot be asked for", self._admin.describe_consumer_groups
        try:
            found = self._retried(what, lambda: self._of_group(group, what, ask, [group], _NO_COORDINATOR))
        except DoesNotExistError:
            return []
        return [
            GroupMember(each.member_id, each.client_id, each.group_instance_id, _partitions(each.assignment))
            for each in found.members
        ]

    def remove_members(self, group: str, names: Collection[str]) -> None:
        del group, names

    def _of_group(
        self, group: str, what: str, ask: Callable[..., Any], asked: Sequence[Any], passed_over: Iterable[int]
    ) -> Any:
        """Return the answer of the group's coordinator. A request that stays open ends with its client."""
        future = self._submit(what, ask, asked, request_timeout=_NEVER_S)[group]
        try:
            return self._result(future, what, passed_over, CALL_TIMEOUT_S)
        except LogUnavailableError:
            if not future.done():
                self._admin = self._client()
            raise

    def _retried(self, what: str, ask: Callable[[], T]) -> T:
        """Ask again while a partition has no leader, or the group no coordinator."""
        deadline = time.monotonic() + self._patience.of(CALL_TIMEOUT_S)
        while True:
            try:
                return ask()
            except _PassedOverError as error:
                if time.monotonic() > deadline:
                    raise meaning(error.error, self._bootstrap_servers, what) from error
                time.sleep(_POLL_INTERVAL_S)

    def committed_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        wanted = list(partitions)
        return self._offsets(wanted, _LATEST)[0] if wanted else {}

    def watermarks(self, partition: TopicPartition) -> tuple[int, int]:
        start, end = self._offsets([partition], _EARLIEST, _LATEST)
        return start[partition], end[partition]

    def log_end(self, partition: TopicPartition) -> int:
        return self._offsets([partition], _END_OF_ALL)[0][partition]

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        if not (wanted := list(partitions)):
            return {}
        first, end = self._offsets(wanted, _EARLIEST, _END_OF_ALL)
        return {partition: (first[partition], end[partition]) for partition in wanted}

    def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        at = OffsetSpec.for_timestamp(timestamp_ms), IsolationLevel.READ_COMMITTED
        found, end = (offsets[partition] for offsets in self._offsets([partition], at, _LATEST))
        return found if found >= 0 else end

    def _offsets(
        self, partitions: Sequence[TopicPartition], *asked: tuple[OffsetSpec, IsolationLevel]
    ) -> list[dict[TopicPartition, int]]:
        self._require(partitions)
        what = f"The offsets of {_listed(partitions)} cannot be read"
        return self._retried(what, partial(self._offsets_now, partitions, asked, what))

    def _offsets_now(
        self, partitions: Sequence[TopicPartition], asked: Iterable[tuple[OffsetSpec, IsolationLevel]], what: str
    ) -> list[dict[TopicPartition, int]]:
        """Send all requests at once. Raises `_PassedOverError` while a partition has no leader."""
        targets = [confluent_kafka.TopicPartition(*partition) for partition in partitions]
        ask = partial(self._submit, what, self._admin.list_offsets, request_timeout=CALL_TIMEOUT_S)
        sent = [ask(dict.fromkeys(targets, spec), isolation_level=level) for spec, level in asked]
        return [
            {
                TopicPartition(t.topic, t.partition): int(self._result(f, what, _NO_LEADER).offset)
                for t, f in futures.items()
            }
            for futures in sent
        ]

    def _require(self, partitions: Collection[TopicPartition]) -> None:
        """Raise `DoesNotExistError` for an absent partition."""
        topics = {partition.topic for partition in partitions}
        counts = self._partition_counts(topics, led=False)
        if counts.keys() < topics:
            self._admin = self._client()  # the old client would ask for absent topics for ever
        for partition in partitions:
            if not 0 <= partition.partition < counts.get(partition.topic, 0):
                raise DoesNotExistError(f"Kafka at {self._bootstrap_servers} has no partition {partition}.")

    def _submit(self, what: str, ask: Callable[..., T], *arguments: Any, **options: Any) -> T:
        try:
            return ask(*arguments, **options)
        except KafkaException as error:
            raise meaning(kafka_error(error), self._bootstrap_servers, what) from error

    def _result(
        self, future: Future[Any], what: str, passed_over: Iterable[int] = (), timeout_s: float = 2 * CALL_TIMEOUT_S
    ) -> Any:
        try:
            return future.result(self._patience.of(timeout_s))
        except KafkaException as error:
            inner = kafka_error(error)
            if inner.code() in passed_over:
                raise _PassedOverError(inner) from error
            raise meaning(inner, self._bootstrap_servers, what) from error
        except FutureTimeoutError as error:
            raise LogUnavailableError(f"{what}: Kafka at {self._bootstrap_servers} does not answer.") from error

    def _wait(self, is_met: Callable[[dict[str, int]], bool], topics: Collection[str], what: str) -> None:
        """Wait until `is_met` is true of the partition counts of these topics, while they change within `_STUCK_S`."""
        deadline, before = time.monotonic() + _STUCK_S, dict[str, int]()
        while not is_met(counts := self._partition_counts(topics)):
            if counts != before:
                deadline, before = time.monotonic() + _STUCK_S, counts
            elif time.monotonic() > deadline:
                raise LogUnavailableError(
                    f"Kafka at {self._bootstrap_servers} needs too long {what} {', '.join(topics)}."
                )
            time.sleep(_POLL_INTERVAL_S)

    def close(self) -> None:
        """Close the consumers of groups. The rest ends with this object."""
        for consumer in self._consumers.values():
            consumer.close()
        self._consumers.clear()


def _timeouts() -> dict[str, float]:
    return {"operation_timeout": CALL_TIMEOUT_S, "request_timeout": CALL_TIMEOUT_S}


def _listed(partitions: Sequence[TopicPartition]) -> str:
    more = len(partitions) - _NAMED
    return ", ".join(map(str, partitions[:_NAMED])) + (f" and {more} more" if more > 0 else "")


def _partitions(assignment: Any) -> frozenset[TopicPartition]:
    given = () if assignment is None else assignment.topic_partitions
    return frozenset(TopicPartition(each.topic, each.partition) for each in given)


class _PassedOverError(Exception):
    """An error that the caller handles."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(error.str())
        self.error = error
