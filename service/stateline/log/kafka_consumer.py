"""The consumer over confluent-kafka.

`next_offset` is the larger of two figures of librdkafka: its position, which passes transaction markers, and the offset
of its end-of-partition event. The event also covers empty partitions and compacted tails. Neither counts before
something arrives after an assignment or seek: until then librdkafka reports the earlier position.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED, KafkaError, KafkaException, Message

from stateline.log.interface import NO_NOTES, AssignmentListener, OffsetNote, Record
from stateline.log.kafka_errors import CALL_TIMEOUT_S, LOGGER, Login, kafka_error, meaning
from stateline.log.kafka_offsets import committed_metadata, committed_offsets
from stateline.log.kafka_silence import SILENCE_S, SilentPartitions
from stateline.log.kafka_topics import told_of_topics
from stateline.log.waiting import Patience, within
from stateline_store import FencedError, InvalidArgumentError, LogUnavailableError, RetryLaterError, TopicPartition
from stateline_store.clock import boot_ms

T = TypeVar("T")

_LOOK_AGAIN_S = 0.01
_ANSWER_PATIENCE_S = 1.0
_LEAVING_S = 1.0
# The right "Read" on the topic of nodes or on the group is missing. Other errors come with rebalances, and pass.
_FORBIDDEN = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED}
_HARMLESS = {KafkaError._MAX_POLL_EXCEEDED}  # the consumer joins again, and calls the listeners


_METADATA = b"CGMDv2:"


class KafkaConsumer:
    """Implements `stateline.log.interface.Consumer`. One thread at a time uses it. Rebalances are eager: all partitions
    are revoked, then `on_assigned` gets the whole assignment. librdkafka's cooperative assignor would spread partition
    n of several topics over several members. It has more than 25 methods and 15 attributes because librdkafka calls
    back into any of them. Reading, the group and its commits share one client."""

    def __init__(
        self, settings: Mapping[str, object], bootstrap_servers: str, patience: Patience, group: str | None
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._patience = patience
        self._group = group
        self._client_id = str(settings.get("client.id", ""))
        self._reset = OFFSET_END if settings["auto.offset.reset"] == "latest" else OFFSET_BEGINNING
        self._named = {name: settings[name] for name in ("session.timeout.ms",) if name in settings}
        self._login = Login(bootstrap_servers)
        callbacks = {"error_cb": self._login.note, "on_commit": self._on_commit}
        self._consumer = confluent_kafka.Consumer({**settings, **callbacks}, logger=LOGGER)
        self._assigned: set[TopicPartition] = set()
        self.is_assigned = False
        self._ends: dict[TopicPartition, int] = {}  # offsets of end-of-partition events since the last seek
        self._unheard: set[TopicPartition] = set()  # silent since they were assigned or sought
        self._starting: dict[TopicPartition, int] | None = None  # where to start, while on_assigned runs
        self._paused: set[TopicPartition] = set()
        self._silent = SilentPartitions()
        self._subscribed = False
        self._deferred: list[BaseException] = []  # raised by the next poll, after the records at hand
        self._closed = False
        self._asked_at_ms: int | None = None  # the time of the pending question to the group
        self._is_void = False  # the pending question is of an earlier membership
        self.confirmed_at_ms: int | None = None
        self._in_listener = False
        self._member_id: str | None = None  # both as of the last question to the client
        self._generation = -1
        self._given_up = False
        self._given_back = threading.Event()  # set by `close`: the thread of an abandoned commit owns the client

    def subscribe(
        self,
        topics: Sequence[str],
        on_assigned: AssignmentListener,
        on_revoked: AssignmentListener,
        on_suspended: AssignmentListener | None = None,
    ) -> None:
        if self._group is None:
            raise InvalidArgumentError("subscribe needs a group: make the consumer with one, or use assign.")
        self._subscribed = True

        def assigned(_: object, partitions: list[confluent_kafka.TopicPartition]) -> None:
            self._guard(lambda: self._on_assigned(partitions, on_assigned))

        def revoked(_: object, partitions: list[confluent_kafka.TopicPartition]) -> None:
            self._guard(lambda: self._on_revoked(partitions, on_suspended or on_revoked))

        def lost(_: object, partitions: list[confluent_kafka.TopicPartition]) -> None:
            self._assigned.clear()  # others may own them already, so nothing can be committed
            self.confirmed_at_ms, self._is_void = None, self._asked_at_ms is not None
            self._guard(lambda: self._on_revoked(partitions, on_revoked))

        self._call(
            "subscribe",
            lambda: self._consumer.subscribe(list(topics), on_assign=assigned, on_revoke=revoked, on_lost=lost),
        )

    def _guard(self, work: Callable[[], None]) -> None:
        """Run a listener. An exception that crossed librdkafka would lose the records of the running poll."""
        if self._given_up:
            return  # another thread closes it after its last commit
        self._in_listener = True
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever a listener raises is raised by the next poll
            self._deferred.append(error)
        finally:
            self._in_listener = False

    def _on_assigned(self, partitions: list[confluent_kafka.TopicPartition], listener: AssignmentListener) -> None:
        named = [TopicPartition(each.topic, each.partition) for each in partitions]
        self._assigned, self._unheard = set(named), set(named)
        self._ends.clear()
        self._paused.clear()
        self._starting = dict.fromkeys(named, OFFSET_STORED)
        try:
            listener(named)
        finally:
            starting, self._starting = self._starting, None
            placed = self._placed(starting)
            self._consumer.assign(_with_offsets(placed))
            if self._paused:
                self._consumer.pause(_plain(self._paused))
            self._silent.expect(placed, self._paused)
        self.is_assigned = True

    def _placed(self, starting: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return numeric start offsets. `kafka_offsets` says why librdkafka must not look them up."""
        assert self._group is not None, "who is assigned something by a group has one"
        unknown = [partition for partition, offset in starting.items() if offset == OFFSET_STORED]
        try:
            found = committed_offsets(self._consumer, self._group, unknown, self._bootstrap_servers, CALL_TIMEOUT_S)
        except LogUnavailableError as error:
            LOGGER.warning("%s Where to read on is left to librdkafka.", error)
            return starting
        return {**starting, **{partition: found.get(partition, self._reset) for partition in unknown}}

    def _on_revoked(self, partitions: list[confluent_kafka.TopicPartition], listener: AssignmentListener) -> None:
        named = [TopicPartition(each.topic, each.partition) for each in partitions]
        self.is_assigned = False
        try:
            if named:
                listener(named)
        finally:
            self._assigned.clear()
            self._ends.clear()
            self._silent.expect({}, ())
            self._consumer.unassign()

    def assign(self, partitions: Mapping[TopicPartition, int]) -> None:
        if self._subscribed:
            raise InvalidArgumentError("A consumer that subscribed cannot assign: make another one.")
        self._assigned, self._unheard = set(partitions), set(partitions)
        self._ends.clear()
        self._paused.clear()
        self._call("assign", lambda: self._consumer.assign(_with_offsets(partitions)))
        self._silent.expect(partitions, ())

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        deadline = time.monotonic() + timeout_s
        while True:
            self._raise_deferred()
            messages = self._consume(max_records, max(0.0, deadline - time.monotonic()))
            if self._silent:
                self._listen(messages)
            records = self._records(messages)
            if self._unheard and messages:
                self._hear(messages)
            if records:
                return records
            if self._deferred or time.monotonic() >= deadline:
                self._raise_deferred()
                return records

    def _consume(self, max_records: int, timeout_s: float) -> list[Message]:
        """Return waiting messages, else the first message to arrive and those that came with it. One call with a
        timeout would wait until `max_records` are complete."""
        try:
            messages = self._consumer.consume(max_records, 0)
            if not messages and (refused := self._login.refusal("Reading failed")) is not None:
                raise refused
            if not messages and timeout_s > 0:
                # librdkafka takes less than 1 ms as none, so `poll` would spin at the end of its time.
                messages = self._consumer.consume(1, max(timeout_s, 0.001))
                if messages and max_records > 1:
                    messages += self._consumer.consume(max_records - 1, 0)
        except KafkaException as error:
            raise meaning(kafka_error(error), self._bootstrap_servers, "Reading failed") from error
        return messages

    def _listen(self, messages: Sequence[Any]) -> None:
        """Seek again in a partition that has a leader and returns nothing. If that does not help, fail."""
        for source in {(message.topic(), message.partition()) for message in messages}:
            self._silent.hear(TopicPartition(*source))
        if messages:  # messages of silent partitions may be queued behind these
            return
        for partition in self._with_leaders(self._silent.overdue()):
            offset = self._silent.seek_anew(partition)
            if offset is None:
                self._deferred.append(LogUnavailableError(f"{partition} is to be read, and nothing comes of it."))
                continue
            LOGGER.warning(
                "No record of %s has come for %.0f s. The consumer seeks its position again.", partition, SILENCE_S
            )
            self.pause([partition])
            self.resume([partition])
            if offset >= 0:
                self.seek(partition, offset)

    def _hear(self, messages: Sequence[Any]) -> None:
        """Note partitions whose record or end shows librdkafka's new position. Errors do not show it."""
        heard = [m for m in messages if m.error() is None or m.error().code() == KafkaError._PARTITION_EOF]
        self._unheard.difference_update({TopicPartition(m.topic(), m.partition()) for m in heard})

    def _with_leaders(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        if not partitions:
            return []
        try:
            topics = told_of_topics(self._consumer, {partition.topic for partition in partitions}, 1.0)
        except KafkaException:
            return []
        leaders = {
            TopicPartition(t, n): each.leader for t, topic in topics.items() for n, each in topic.partitions.items()
        }
        return [partition for partition in partitions if leaders.get(partition, -1) >= 0]

    def _records(self, messages: Sequence[Any]) -> list[Record]:
        # By the client's types everything may be None. Without an error only key and value may.
        new, record = tuple.__new__, Record  # like Record(...) without its second call: a tenth faster
        records = [
            new(record, (m.topic(), m.partition(), m.offset(), m.timestamp()[1], m.key(), m.value(), m.headers() or ()))
            for m in messages
            if m.error() is None
        ]
        if len(records) < len(messages):
            for message in messages:
                if message.error() is not None:
                    self._note(message, message.error())
        return records

    def _note(self, message: Any, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            self._ends[TopicPartition(message.topic(), message.partition())] = message.offset()
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._deferred.append(
                RetryLaterError(
                    f"The next record of {message.topic()}-{message.partition()}, at offset {message.offset()}, was "
                    "deleted meanwhile. Begin at the first record of the topic."
                )
            )
        elif error.code() in _HARMLESS:
            LOGGER.warning("%s", error.str())
        elif error.fatal() or error.code() == KafkaError._FATAL:
            # A consumer has one fatal error: another took over its static id.
            self._deferred.append(FencedError(f"{error.str()}: close this consumer."))
        else:
            what = "Reading" if message.topic() is None else f"Reading {message.topic()}"
            self._deferred.append(meaning(error, self._bootstrap_servers, f"{what} failed", self._named))

    def _raise_deferred(self) -> None:
        if self._deferred:
            raise self._deferred.pop(0)

    def seek(self, partition: TopicPartition, next_offset: int) -> None:
        if next_offset < 0:
            raise InvalidArgumentError(f"{next_offset} is not an offset: an integer from 0 is.")
        self._require(partition)
        if self._starting is not None:
            self._starting[partition] = next_offset
            return
        self._ends.pop(partition, None)
        self._unheard.add(partition)
        target = confluent_kafka.TopicPartition(*partition, next_offset)
        self._call(f"seek {partition}", lambda: self._seek(target))
        self._silent.seek(partition, next_offset, is_paused=partition in self._paused)

    def _seek(self, target: confluent_kafka.TopicPartition) -> None:
        """Seek, and retry while a new assignment is in an "erroneous state", until librdkafka's own thread has taken
        it."""
        deadline = time.monotonic() + CALL_TIMEOUT_S
        while True:
            try:
                return self._consumer.seek(target)
            except KafkaException as error:
                if kafka_error(error).code() != KafkaError._STATE or time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_AGAIN_S)

    def next_offset(self, partition: TopicPartition) -> int | None:
        self._require(partition)
        if partition in self._unheard:
            return None
        place = self._call(
            f"position of {partition}", lambda: self._consumer.position([confluent_kafka.TopicPartition(*partition)])
        )[0]
        known = max(place.offset, self._ends.get(partition, -1))
        return known if known >= 0 else None

    def lag(self, partition: TopicPartition) -> int | None:
        at = self.next_offset(partition)
        what, wanted = f"lag of {partition}", confluent_kafka.TopicPartition(*partition)
        ends = self._call(what, lambda: self._consumer.get_watermark_offsets(wanted, cached=True))
        return None if at is None or ends is None or ends[1] < 0 else max(0, ends[1] - at)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._require(*(named := list(partitions)))
        self._paused.update(named)
        self._silent.pause(named)
        if self._starting is None:
            self._call("pause", lambda: self._consumer.pause(_plain(named)))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._require(*(named := list(partitions)))
        self._paused.difference_update(named)
        if self._starting is None:
            self._call("resume", lambda: self._consumer.resume(_plain(named)))
            self._silent.resume(named)

    def _require(self, *partitions: TopicPartition) -> None:
        for partition in partitions:
            if partition not in self._assigned:
                raise InvalidArgumentError(f"{partition} is not assigned to this consumer.")

    def commit(
        self, next_offsets: Mapping[TopicPartition, int], notes: Mapping[TopicPartition, OffsetNote] = NO_NOTES
    ) -> None:
        self.check_ownership(next_offsets)
        if not next_offsets:
            return
        offsets = self.offsets_to_commit(next_offsets, notes)
        done = self._call("The offset commit failed", lambda: self._commit(offsets))
        for each in done or ():
            if each.error is not None:
                raise meaning(
                    each.error, self._bootstrap_servers, f"The commit of {each.topic}-{each.partition} failed"
                )

    def _commit(self, offsets: list[confluent_kafka.TopicPartition]) -> Sequence[confluent_kafka.TopicPartition] | None:
        """Commit through librdkafka, and give up if it waits for an absent coordinator. Raises `LogUnavailableError`
        then, and this consumer can only be closed. It leaves its group when the commit ends. Until another member
        joins, a broker still takes that commit. Inside a listener a commit cannot be given up, because the client lets
        no other thread in."""
        commit = partial(self._consumer.commit, offsets=offsets, asynchronous=False)
        if self._closed:  # a closing client answers no questions
            return commit()
        if self._in_listener:
            # This question to the coordinator has a timeout, unlike the commit. So ask first.
            asked = [TopicPartition(each.topic, each.partition) for each in offsets]
            timeout_s = self._patience.of(CALL_TIMEOUT_S)
            committed_offsets(self._consumer, self._group or "", asked, self._bootstrap_servers, timeout_s)
            return commit()
        try:
            return within(self._patience.of(CALL_TIMEOUT_S), "commit-offsets", commit, late=self._close_late)
        except TimeoutError as error:
            self._given_up = True
            raise LogUnavailableError(
                f"The offset commit of group {self._group!r} does not come back: Kafka at {self._bootstrap_servers} "
                "has no broker that keeps the group's offsets now."
            ) from error

    def _close_late(self) -> None:
        self._given_back.wait()
        self._consumer.close()

    def check_ownership(self, partitions: Iterable[TopicPartition]) -> None:
        """Raise `FencedError` for a partition that this member does not own. Brokers check the generation only."""
        if self._group is None:
            raise InvalidArgumentError("A consumer without a group has no offsets to commit.")
        if self._subscribed and (missing := [each for each in partitions if each not in self._assigned]):
            raise FencedError(f"{missing[0]} is not assigned to this member of {self._group!r}: nothing was committed.")

    @property
    def keeps_to_thread(self) -> bool:
        return self._in_listener  # confluent-kafka would make another thread wait for ever

    @property
    def member_id(self) -> str | None:
        if not self._subscribed or self._closed:
            return None
        if not self._given_up:  # otherwise another thread owns the client
            self._member_id = self._consumer.memberid() or None
        return self._member_id

    @property
    def generation(self) -> int:
        """Return the generation from the client's opaque group metadata: `CGMDv2:`, then a little-endian int32."""
        if not self._subscribed or self._closed:
            return -1
        if self._given_up:  # another thread owns the client
            return self._generation
        metadata = bytes(self._consumer.consumer_group_metadata())
        if not metadata.startswith(_METADATA) or len(metadata) < len(_METADATA) + 4:
            return -1  # another librdkafka: later claims of a task are not recognised
        self._generation = int.from_bytes(metadata[len(_METADATA) :][:4], "little", signed=True)
        return self._generation

    def confirm_membership(self, place: TopicPartition) -> bool:
        if self._asked_at_ms is not None or self._closed:
            return False  # librdkafka always answers, perhaps with an error
        if not self._assigned:
            return False  # before it joins, a commit is no member's, and an empty group takes it
        asked_at_ms = boot_ms()
        try:
            self._consumer.commit(offsets=_with_offsets({place: 0}), asynchronous=True)
        except KafkaException as error:  # there is no group now: try again later
            LOGGER.debug("Membership cannot be confirmed: %s", error)
            return False
        self._asked_at_ms = asked_at_ms
        return True

    def _on_commit(self, error: KafkaError | None, partitions: Sequence[confluent_kafka.TopicPartition]) -> None:
        """Take librdkafka's answer to `confirm_membership`, the only asynchronous commit."""
        asked_at_ms, self._asked_at_ms = self._asked_at_ms, None
        is_void, self._is_void = self._is_void, False
        refused = error or next((each.error for each in partitions if each.error is not None), None)
        if refused is None:
            self.confirmed_at_ms = None if is_void else asked_at_ms
        else:
            level = logging.WARNING if refused.code() in _FORBIDDEN else logging.DEBUG
            LOGGER.log(level, "The group does not confirm that this is a member: %s", refused)

    def offsets_to_commit(
        self, next_offsets: Mapping[TopicPartition, int], notes: Mapping[TopicPartition, OffsetNote] = NO_NOTES
    ) -> list[confluent_kafka.TopicPartition]:
        """Return these offsets with the client id and notes as metadata, for `Admin.committed_by` and
        `Admin.committed_with_notes`."""
        return [
            confluent_kafka.TopicPartition(
                *each, at, metadata=committed_metadata(self._client_id, notes.get(each, OffsetNote()))
            )
            for each, at in next_offsets.items()
        ]

    def group_metadata(self) -> object:
        """Return what a producer needs to commit offsets on this member's behalf."""
        return self._consumer.consumer_group_metadata()

    def _call(self, what: str, work: Callable[[], T]) -> T:
        try:
            return work()
        except KafkaException as error:
            raise meaning(kafka_error(error), self._bootstrap_servers, what) from error

    def leave(self) -> None:
        """Unsubscribe, and poll until the group has answered. librdkafka tells the group of a static member's end when
        it unsubscribes, not when it closes. Measured: the others have everything after 1.1 s."""
        if self._given_up or self._closed:
            return
        self._call("unsubscribe", self._consumer.unsubscribe)
        until_s = time.monotonic() + _LEAVING_S
        while time.monotonic() < until_s:
            self._call("poll", lambda: self._consumer.poll(_LOOK_AGAIN_S))
        self._raise_deferred()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._given_up:
            LOGGER.warning("A consumer of group %r is closed as soon as its last commit has ended.", self._group)
            self._given_back.set()
            return
        if self._is_owed_an_answer():
            # librdkafka would wait for it for a whole session if no broker answers.
            self._given_up = True
            threading.Thread(target=self._consumer.close, name="consumer-close", daemon=True).start()
        else:
            self._call("close", self._consumer.close)
        self._raise_deferred()

    def _is_owed_an_answer(self) -> bool:
        """Return whether the group does not answer `confirm_membership` within a second."""
        until_s = time.monotonic() + _ANSWER_PATIENCE_S
        while self._asked_at_ms is not None and time.monotonic() < until_s:
            self._call("poll", lambda: self._consumer.poll(_LOOK_AGAIN_S))
        return self._asked_at_ms is not None


def _plain(partitions: Iterable[TopicPartition]) -> list[confluent_kafka.TopicPartition]:
    return [confluent_kafka.TopicPartition(*partition) for partition in partitions]


def _with_offsets(offsets: Mapping[TopicPartition, int]) -> list[confluent_kafka.TopicPartition]:
    return [confluent_kafka.TopicPartition(*partition, offset) for partition, offset in offsets.items()]
