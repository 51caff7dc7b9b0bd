"""The log as the rest of Stateline sees it: topics of partitions of records, consumers, producers.

`stateline.log.embedded` and `stateline.log.kafka` implement it. One suite of tests runs against both
(`tests/service/log`). Semantics are Kafka's:

- Offsets grow within a partition, with gaps where transactions end.
- A consumer sees records of committed transactions only (`isolation.level=read_committed`), in offset order.
- A committed group offset is the *next* record to read (`next_offset`). A store's offset is the *last applied* record
  (`offset`).
- A transaction's records and group offsets become visible together or not at all. `init_transactions` fences older
  producers of the same `transactional_id` and settles their transactions.

Every call may raise `LogUnavailableError` (try again), unless it says otherwise. No object is thread-safe: one thread
owns each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, TypeAlias

from stateline.log.waiting import Patience
from stateline_store import StatelineError, TopicPartition

Headers = Sequence[tuple[str, bytes | None]]
IsolationLevel: TypeAlias = Literal["read_committed", "read_uncommitted"]


class OffsetNote(NamedTuple):
    """A note that a group keeps with a partition's offset: the partition time (ms), as in Kafka Streams, and `fed`, the
    parts that received the earlier input (`stateline.model.fed_parts`). None means unknown."""

    time_ms: int | None = None
    fed: str | None = None


Notes: TypeAlias = Mapping[TopicPartition, OffsetNote]
NO_NOTES: Notes = MappingProxyType({})


class Record(NamedTuple):
    """A consumed record. `timestamp_ms` is milliseconds since the epoch. A `value` of None is a tombstone."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic. `topic_id` changes when a topic is deleted and created again."""

    name: str
    partitions: int
    topic_id: str

    @property
    def places(self) -> list[TopicPartition]:
        """Return its partitions, in order."""
        return [TopicPartition(self.name, number) for number in range(self.partitions)]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. `settings` are Kafka's topic settings, such as ``cleanup.policy``."""

    name: str
    partitions: int
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a consumer group. `instance_id` is set for static members. After a static member restarts within its
    session, Kafka still shows the `client_id` of the earlier process."""

    member_id: str
    client_id: str
    instance_id: str | None
    partitions: frozenset[TopicPartition]


EMBEDDED_CLUSTER = "embedded"
"""The cluster id of an embedded log. On disk: never change."""


class Admin(Protocol):
    """Topics and watermarks."""

    def cluster_id(self) -> str:
        """Return the brokers' cluster id, empty if they have none. `EMBEDDED_CLUSTER` for the embedded log."""

    def topics(self, named: Collection[str] | None = None) -> dict[str, TopicInfo]:
        """Return all topics by name, without the log's internal ones, or the existing ones among `named`. Naming them
        costs less on a large log. Raises `ConfigurationError` if the login may not describe one."""

    def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        """Create these topics, and return when they can be written to. Existing topics stay unchanged. With
        `validate_only`, creates nothing and raises the same errors. Raises `InvalidArgumentError` for a refused name or
        setting."""

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete these topics. Ignores absent ones."""

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete each partition's records before this offset. Later records keep their offsets. Raises
        `DoesNotExistError` if there is no such partition, `InvalidArgumentError` for an offset beyond its end or a
        topic that is only compacted, and `ConfigurationError` if the login may not delete. Records of other partitions
        may be deleted then."""

    def topic_settings(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the settings of these topics, including defaults. Absent topics are left out. Raises
        `ConfigurationError` if the login may not read them."""

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's committed next offsets. A partition without one is absent (never 0)."""

    def committed_by(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Return the client id of the last committer of each offset, without open transactions. Partitions without one
        are absent. Empty for the embedded log."""

    def committed_with_notes(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, OffsetNote]]:
        """Return the committed offsets with the note of the newest commit of each."""

    def alter_offsets(self, group: str, next_offsets: Mapping[TopicPartition, int], notes: Notes = NO_NOTES) -> None:
        """Set these offsets, with `notes`, of a group without members. Other partitions keep theirs. Raises
        `RetryLaterError`, and changes nothing, while the group has a member, `DoesNotExistError` if there is no such
        partition, and `ConfigurationError` if the login may not."""

    def members(self, group: str) -> list[GroupMember]:
        """Return the group's members, none for an unknown group. A killed member stays until its session times out. The
        embedded log's members have an empty `client_id`."""

    def remove_members(self, group: str, names: Collection[str]) -> None:
        """Remove these static members, whose processes have ended, before their sessions end. Does nothing on Kafka:
        only Java's client has ``removeMembersFromConsumerGroup``."""

    def committed_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return for each partition the offset after the last one visible to read_committed consumers. One request for
        all. Raises `DoesNotExistError` if there is no such partition."""

    def watermarks(self, partition: TopicPartition) -> tuple[int, int]:
        """Return (first offset kept, offset after the last one visible to read_committed consumers). Raises
        `DoesNotExistError` if there is no such partition."""

    def log_end(self, partition: TopicPartition) -> int:
        """Return the offset after the last record, including open transactions. A restore must wait for it: the
        predecessor's last transaction may be committed before its markers are written. A read_committed consumer
        reaches it once those transactions have ended."""

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return (first offset kept, `log_end`) for each partition, in two requests. Raises `DoesNotExistError` if
        there is no such partition."""

    def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        """Return the first offset whose record has at least this timestamp, or the end offset if there is none."""

    def close(self) -> None: ...


AssignmentListener = Callable[[list[TopicPartition]], None]


class Consumer(Protocol):
    """Reads records, as a member of a group (`subscribe`) or from chosen partitions (`assign`)."""

    def subscribe(
        self,
        topics: Sequence[str],
        on_assigned: AssignmentListener,
        on_revoked: AssignmentListener,
        on_suspended: AssignmentListener | None = None,
    ) -> None:
        """Join the group. The listeners run inside `poll`, and inside `close` for revocations, on its thread.

        A log may revoke all partitions of all members before it assigns them (Kafka's eager protocol). It then calls
        `on_suspended`, if given, instead of `on_revoked`: commit, and change nothing. The next `on_assigned` gets all
        partitions of this member. Others own the missing ones. Positions and pauses are lost: `seek` again.

        Partition n of every topic of equal partition count goes to the same member. `on_revoked` runs before another
        member gets the partitions, unless this member was fenced or timed out. A newly assigned partition starts at the
        group's committed offset. Without one, it starts at the first record kept, or at the end with
        ``auto_offset_reset="latest"``. The same applies if the next record was deleted. With
        ``auto_offset_reset="error"``, `poll` raises then.
        """

    @property
    def is_assigned(self) -> bool:
        """Return whether the group has given this member all of its partitions, as of the last poll."""

    def assign(self, partitions: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions, each from this next offset, without a group."""

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """Return up to `max_records` records. Waits up to `timeout_s` for the first. Raises `FencedError` if another
        member with the same static id took over, `DoesNotExistError` if a subscribed topic is deleted for several
        seconds, and `RetryLaterError` if the next record was deleted (``auto_offset_reset="error"``). Call `assign`
        again then."""

    def seek(self, partition: TopicPartition, next_offset: int) -> None:
        """Continue at this offset, and drop buffered records. `on_assigned` may call it."""

    def next_offset(self, partition: TopicPartition) -> int | None:
        """Return the position of the next `poll`, past returned records *and* past trailing transaction markers. None
        until a record or the end arrived since the assignment or `seek`. "At the end" is ``next_offset >= end``, never
        ``==``."""

    def lag(self, partition: TopicPartition) -> int | None:
        """Return the offsets left to poll, as of the last fetch. Asks no broker and never raises `LogUnavailableError`.
        None while `next_offset` is None or the end is unknown. Open transactions may count."""

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Let `poll` skip these partitions. They keep their positions."""

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`."""

    def check_ownership(self, partitions: Iterable[TopicPartition]) -> None:
        """Raise `FencedError` if this member knows that it does not own one of these. Asks no broker."""

    def commit(
        self, next_offsets: Mapping[TopicPartition, int], notes: Mapping[TopicPartition, OffsetNote] = NO_NOTES
    ) -> None:
        """Commit the group's offsets outside a transaction, with `notes`, and return when they are kept. Raises
        `FencedError` if this member no longer owns a partition: nothing was committed."""

    @property
    def keeps_to_thread(self) -> bool:
        """Return whether other threads must wait for the current call to end before they use it. Always true for the
        embedded log. True for Kafka inside listeners."""

    @property
    def member_id(self) -> str | None:
        """Return the id in `Admin.members`, or None outside a group. It changes each time a process joins."""

    @property
    def generation(self) -> int:
        """Return the group's generation of the last assignment, or -1 without one. It grows with each rebalance."""

    @property
    def confirmed_at_ms(self) -> int | None:
        """Return when this member last asked a question that the group answered to it (`clock.boot_ms`). None if there
        was no answer since it joined. Its session lasts from that time."""

    def confirm_membership(self, place: TopicPartition) -> bool:
        """Ask the group whether this is still a member. `poll` takes the answer. Never waits or raises. Returns False
        if it has not joined, or an answer is pending. It commits an offset of `place`, an existing partition whose
        offsets nobody uses."""

    def leave(self) -> None:
        """Leave the group for good, also as a static member. Its partitions move at once, and the listeners run. Only
        `close` may follow."""

    def close(self) -> None:
        """Leave the group and release everything. A static member stays known until its session times out."""


LogRow: TypeAlias = tuple[bytes | None, bytes | None, int]
"""Key, value and timestamp (ms) of a record to write."""


LeftOut: TypeAlias = Callable[[str, bytes | None, StatelineError], None]
"""Gets topic and key of a refused record, and the reason."""


class Producer(Protocol):
    """Writes records. With a `transactional_id`, only inside transactions."""

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
        """Queue one record. Without `partition`: ``(murmur2(key) & 0x7fffffff) % n`` of `partition_key`, else of the
        key. Any partition without either.

        Raises `InvalidArgumentError` for a timestamp other than whole milliseconds since 1970. With `is_copy`, a
        negative timestamp is written unchanged. Raises `DoesNotExistError` for an unknown topic and
        `InvalidArgumentError` for a record that is too large. `flush` or `commit_transaction` may raise either instead.
        """

    def produce_all(
        self, topic: str, partition: int, rows: Sequence[LogRow], last_headers: Headers = (), headers: Headers = ()
    ) -> None:
        """Queue many records of one partition, in this order, at about half the cost of `produce`. Each gets `headers`.
        The last gets `last_headers` before them. Errors name the record's key."""

    def leave_out(self, topics: Collection[str], tell: LeftOut) -> None:
        """From now on, drop a queued record of these topics if its topic is gone or the login may not write to it, and
        call `tell`. Transactions drop nothing: they fail."""

    def flush(self) -> dict[TopicPartition, int]:
        """Wait until the queue is written. Return the last offset per partition since the last `flush`. Inside a
        transaction the records are not yet visible. Raises if a record was not written."""

    def init_transactions(self) -> None:
        """Fence older producers of this `transactional_id` and settle their transactions. Call it once, first."""

    def begin_transaction(self) -> None: ...

    def send_offsets_to_transaction(
        self,
        next_offsets: Mapping[TopicPartition, int],
        consumer: Consumer,
        notes: Mapping[TopicPartition, OffsetNote] = NO_NOTES,
    ) -> None:
        """Commit these offsets of the consumer's group with the transaction. `notes` as in `Consumer.commit`. Raises
        `FencedError` if that member no longer owns them. Abort then."""

    def commit_transaction(self) -> None:
        """Make the transaction visible. Raises `InDoubtError` if its outcome is unknown: `init_transactions` of a new
        producer of the same id settles it. Raises `FencedError` if a newer producer exists."""

    def abort_transaction(self) -> None: ...

    def close(self) -> None:
        """Release everything and abort an open transaction. Records that were not flushed may be lost."""


class Log(Protocol):
    """Makes the objects above. Close those before `close`. Inside ``patience.for_all(seconds)`` calls wait no longer
    than that together, and raise `LogUnavailableError` or `InDoubtError`."""

    @property
    def patience(self) -> Patience: ...

    @property
    def embedded_file(self) -> Path | None:
        """Return the file of an embedded log. None for Kafka."""

    def admin(self) -> Admin: ...

    def consumer(
        self,
        group: str | None = None,
        *,
        instance_id: str | None = None,
        client_id: str | None = None,
        auto_offset_reset: str = "earliest",
        isolation_level: IsolationLevel = "read_committed",
    ) -> Consumer:
        """Make a consumer. `instance_id` makes its membership static (KIP-345). Brokers show its `client_id` to others.
        `auto_offset_reset` is "earliest", "latest" or, without a group, "error". The embedded log always shows deleted
        records as a gap. At `isolation_level` read_uncommitted it also sees records of open transactions, and on Kafka
        those of aborted ones."""

    def producer(self, transactional_id: str | None = None, *, transaction_timeout_ms: int | None = None) -> Producer:
        """Make a producer. `transaction_timeout_ms` overrides the log's own timeout of a transaction."""

    def close(self) -> None: ...
