"""The log, as the rest of Stateline sees it: topics of partitions of records, consumers, producers.

Two implementations exist, `stateline.log.embedded` and `stateline.log.kafka`, and one suite of tests runs against
both (`tests/service/log`). Semantics are Kafka's:

- A record's offset grows within its partition, with gaps where transactions end.
- A consumer sees only records of committed transactions (`isolation.level=read_committed`), in offset order.
- A committed group offset is that of the *next* record to read; a store's own offset is that of the *last applied*
  one. Names say which: `next_offset` against `offset`.
- A transaction's records and group offsets become visible together or not at all; `init_transactions` fences
  every older producer of the same `transactional_id` and settles what it left open.

Every call may raise `LogUnavailableError` (try again), unless it says otherwise. No object here is
thread-safe: one thread owns each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, TypeAlias

from stateline.log.patience import Patience
from stateline_store import StatelineError, TopicPartition

Headers = Sequence[tuple[str, bytes | None]]
IsolationLevel: TypeAlias = Literal["read_committed", "read_uncommitted"]


class OffsetNote(NamedTuple):
    """What a group keeps with a partition's offset: the partition time (ms), as Kafka Streams does, and `fed`, what the
    input before that offset went into (`stateline.model.fed_parts`). None: nobody has said."""

    time_ms: int | None = None
    fed: str | None = None


NO_NOTES: Mapping[TopicPartition, OffsetNote] = MappingProxyType({})


class Record(NamedTuple):
    """One record as consumed. `timestamp_ms` is milliseconds since the epoch; `value` None is a tombstone."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic that exists. `topic_id` changes when a topic is deleted and created anew."""

    name: str
    partitions: int
    topic_id: str

    @property
    def places(self) -> list[TopicPartition]:
        """Its partitions, in order."""
        return [TopicPartition(self.name, number) for number in range(self.partitions)]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; `settings` are Kafka's topic settings, such as ``cleanup.policy``."""

    name: str
    partitions: int
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a consumer group, as the log shows it to others. `instance_id` is that of a static one. Kafka goes on
    showing the `client_id` of the process before, where a static member was started anew within its session."""

    member_id: str
    client_id: str
    instance_id: str | None
    partitions: frozenset[TopicPartition]


EMBEDDED_CLUSTER = "embedded"
"""What `Admin.cluster_id` gives of an embedded log. On disk: never change."""


class Admin(Protocol):
    """Topics and watermarks."""

    def cluster_id(self) -> str:
        """The id that the brokers give their cluster, empty where they give none; `EMBEDDED_CLUSTER` of the embedded
        log."""

    def topics(self, named: Collection[str] | None = None) -> dict[str, TopicInfo]:
        """Every topic of the log by name, the log's internal ones left out; or of these names those that there are,
        which costs a log with many topics less. Raises `ConfigurationError` where one of them may not be looked at."""

    def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        """Create these topics and return when they can be written to. One that exists already is left as it is. With
        `validate_only` none is created, and what raises is the same.

        Raises `InvalidArgumentError` for a name or settings that the log refuses.
        """

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete these topics; one that does not exist is passed over."""

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete the records of each partition before this offset: nobody reads them again, and those after it keep
        their offsets. What was deleted before stays so.

        Raises `DoesNotExistError` when there is no such partition, `InvalidArgumentError` for an offset beyond its end
        or a topic that is compacted only, `ConfigurationError` where the login may not delete. Other partitions' may be
        deleted then.
        """

    def topic_settings(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """The settings of these topics, those that nobody has set included; a topic that does not exist is absent.

        Raises `ConfigurationError` where the login may not ask for them.
        """

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The group's committed next offsets; a partition without one is absent (never 0)."""

    def committed_by(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """The client id of who has committed the group's offset of each last, without what transactions have not
        committed yet; absent where nobody has, or has not said. Nothing on the embedded log, where there are none."""

    def committed_with_notes(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, OffsetNote]]:
        """As `committed`, with what the newest commit of each offset noted."""

    def alter_offsets(self, group: str, next_offsets: Mapping[TopicPartition, int]) -> None:
        """Let a group that nobody is in go on with these offsets; other partitions keep theirs.

        Raises `RetryLaterError`, and changes nothing, while the group has a member (`members`), `DoesNotExistError`
        when there is no such partition, `ConfigurationError` where the login may not.
        """

    def members(self, group: str) -> list[GroupMember]:
        """The members of this group now; none of a group that does not exist. One that was killed is a member until
        its session times out. On the embedded log all have the empty text as `client_id`.
        """

    def remove_members(self, group: str, names: Collection[str]) -> None:
        """Take these static members, whose processes have ended, out of the group without waiting until their sessions
        are over. On Kafka they stay: its clients cannot (``removeMembersFromConsumerGroup`` is Java's alone)."""

    def committed_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Of each of these the offset after the last one that a read_committed consumer can see now, all asked at once.

        Raises `DoesNotExistError` when there is no such partition.
        """

    def watermarks(self, partition: TopicPartition) -> tuple[int, int]:
        """(first offset kept, offset after the last one that a read_committed consumer can see now).

        Raises `DoesNotExistError` when there is no such partition.
        """

    def log_end(self, partition: TopicPartition) -> int:
        """The offset after the last record written, those of open transactions counted.

        A read_committed consumer reaches it once those transactions have ended: what a restore must wait for,
        because the predecessor's last transaction may be committed and its markers still on their way.
        """

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Of each of these (first offset kept, `log_end`), all asked at once: two requests, however many they are.

        Raises `DoesNotExistError` when there is no such partition.
        """

    def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        """The first offset whose record has at least this timestamp; the end offset when there is none."""

    def close(self) -> None: ...


AssignmentListener = Callable[[list[TopicPartition]], None]


class Consumer(Protocol):
    """Reads records: as a member of a group (`subscribe`), or partitions of its own choice (`assign`)."""

    def subscribe(
        self,
        topics: Sequence[str],
        on_assigned: AssignmentListener,
        on_revoked: AssignmentListener,
        on_suspended: AssignmentListener | None = None,
    ) -> None:
        """Join the group. The listeners run inside `poll` (and those for what is taken also inside `close`), on its
        thread.

        A log may take everything from all members before it tells who gets what (Kafka's eager protocol; the embedded
        log does not). `on_suspended`, if given, is called instead of `on_revoked` then: commit, and change nothing any
        more. The next `on_assigned` gets all that this member has from then on, in part what it had before; what is
        not in it went to others. Where it was read up to, and what was paused, is forgotten: `seek`.

        Partition n of every topic of equal partition count goes to the same member. `on_revoked` gets the
        partitions before anyone else does, unless this member was fenced or timed out. A newly assigned
        partition starts at the group's committed offset, else at the first record kept (or at the end if the
        consumer was made with ``auto_offset_reset="latest"``), unless `seek` says otherwise. So it goes on when what
        comes next was deleted from the log, and silently; ``auto_offset_reset="error"`` lets `poll` raise instead.
        """

    @property
    def is_assigned(self) -> bool:
        """Whether the group has given this member all that it is to have, which may be nothing, as of the last poll."""

    def assign(self, partitions: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions, each from this next offset. No group takes part."""

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """Up to `max_records` records, waiting up to `timeout_s` for the first. Empty when there are none.

        Raises `FencedError` when another member with the same static id took over, `DoesNotExistError` when a topic
        that it subscribed to was deleted, and not made anew within some seconds, `RetryLaterError` when the record that
        comes next was deleted (``auto_offset_reset="error"``): `assign` again.
        """

    def seek(self, partition: TopicPartition, next_offset: int) -> None:
        """Go on with this offset. May be called from `on_assigned`. Buffered records are dropped."""

    def next_offset(self, partition: TopicPartition) -> int | None:
        """Where the next `poll` goes on: past every record returned *and* past trailing transaction markers.

        None until something has come of it, a record or its end, since it was assigned; after a `seek` it may be None
        again until then. "At the end" is ``next_offset >= end``, never ``==``.
        """

    def lag(self, partition: TopicPartition) -> int | None:
        """How many offsets `poll` still has to pass, as of the last fetch: asks nobody, and never raises
        `LogUnavailableError`. None while `next_offset` is, or the end is unknown. Those of open transactions may count.
        """

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Let `poll` leave these partitions out, keeping their place."""

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`."""

    def check_ownership(self, partitions: Iterable[TopicPartition]) -> None:
        """Raise `FencedError` when this member knows that it does not own one of these; asks nobody."""

    def commit(
        self, next_offsets: Mapping[TopicPartition, int], notes: Mapping[TopicPartition, OffsetNote] = NO_NOTES
    ) -> None:
        """Commit the group's offsets, outside a transaction, and return when they are kept. `notes`, of some of them,
        are kept with them, as Kafka Streams keeps partition times in the metadata of its offsets.

        Raises `FencedError` when this member no longer owns a partition: nothing was committed.
        """

    @property
    def keeps_to_thread(self) -> bool:
        """Whether no other thread may use it, or a producer on its behalf, before the call that it is in has ended:
        with the embedded log always, with Kafka in the listeners."""

    @property
    def member_id(self) -> str | None:
        """By which the group knows this member, as `Admin.members` shows it; None without one. It changes with each
        joining anew of a process."""

    @property
    def generation(self) -> int:
        """That of the group when this member got what it has; -1 without one. It grows with each rebalance."""

    @property
    def confirmed_at_ms(self) -> int | None:
        """When this member last asked the group something that is answered to members alone, and was answered
        (`clock.boot_ms` of the question); None when it was not, since it has joined. Its session lasts from then.
        """

    def confirm_membership(self, place: TopicPartition) -> bool:
        """Ask the group whether this is still a member; `poll` takes the answer. Waits for nothing and raises nothing.
        False when it cannot be asked now: it has not joined yet, or an answer is to come.

        It commits an offset of `place`, a partition whose offsets nobody uses; it must exist.
        """

    def leave(self) -> None:
        """Leave the group for good, also as a static member: others are given what this one had, at once. The listeners
        are called with what is taken. Only `close` comes after it."""

    def close(self) -> None:
        """Leave (a static member stays known until its session times out) and release everything."""


LogRow: TypeAlias = tuple[bytes | None, bytes | None, int]
"""Key, value and timestamp (ms) of a record to be written."""


LeftOut: TypeAlias = Callable[[str, bytes | None, StatelineError], None]
"""Called with topic and key of a record that the log has refused, and why."""


class Producer(Protocol):
    """Writes records; with a `transactional_id` only inside transactions."""

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
        key, or any when there is neither.

        Raises `InvalidArgumentError` for a timestamp other than whole milliseconds since 1970. With `is_copy` the
        record was read from a log, and a negative timestamp is written as it is there.

        Raises `DoesNotExistError` for an unknown topic, `InvalidArgumentError` for a record that is too large; either
        may instead surface at `flush` or `commit_transaction`.
        """

    def produce_all(
        self,
        topic: str,
        partition: int,
        rows: Sequence[LogRow],
        last_headers: Headers = (),
        headers: Headers = (),
    ) -> None:
        """Queue many records of one partition, in this order: each with `headers`, the last one with `last_headers`
        before them. As `produce` for each, at about half the cost; what it raises names the record's key.
        """

    def leave_out(self, topics: Collection[str], tell: LeftOut) -> None:
        """From now on a record for one of these topics is left out when, after it was queued, the log says that the
        topic is gone or that the login may not write to it; `tell` hears of it. In transactions nothing is: they are
        lost.
        """

    def flush(self) -> dict[TopicPartition, int]:
        """Wait until everything queued is written; the last offset per partition since the last `flush`.

        Inside a transaction the records are written but not yet visible. Raises if one record was not written.
        """

    def init_transactions(self) -> None:
        """Fence older producers of this `transactional_id` and settle their transactions. Once, before the rest."""

    def begin_transaction(self) -> None: ...

    def send_offsets_to_transaction(
        self,
        next_offsets: Mapping[TopicPartition, int],
        consumer: Consumer,
        notes: Mapping[TopicPartition, OffsetNote] = NO_NOTES,
    ) -> None:
        """Commit these offsets of the consumer's group with the transaction. `notes` as `Consumer.commit`.

        Raises `FencedError` when that member no longer owns them: abort.
        """

    def commit_transaction(self) -> None:
        """Make the transaction visible.

        Raises `InDoubtError` when its outcome is unknown (make a new producer of the same id: its
        `init_transactions` settles it), `FencedError` when a newer producer exists.
        """

    def abort_transaction(self) -> None: ...

    def close(self) -> None:
        """Release everything; an open transaction is aborted. Records queued and not flushed may be lost."""


class Log(Protocol):
    """Where topics live: makes the objects above. `close` only after everything made here was closed.

    Inside ``patience.for_all(seconds)`` their calls wait for the log no longer than that, all together, and raise
    `LogUnavailableError` or `InDoubtError` as they would after their own time.
    """

    @property
    def patience(self) -> Patience: ...

    @property
    def embedded_file(self) -> Path | None:
        """The file that an embedded log is; None of Kafka's brokers."""

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
        """A consumer; `instance_id` makes its group membership static (KIP-345), `client_id` is how a broker names it
        to others. `auto_offset_reset` is "earliest", "latest" or, without a group, "error". The embedded log shows
        records that were deleted as a gap, to all alike. At `isolation_level` read_uncommitted it sees the records of
        open transactions as well, and on Kafka those of aborted ones.
        """

    def producer(self, transactional_id: str | None = None, *, transaction_timeout_ms: int | None = None) -> Producer:
        """`transaction_timeout_ms`: how long one of its transactions may take; None: as the log was told."""

    def close(self) -> None: ...
