"""The consumer of the embedded log. It reads up to the last stable offset, and keeps its group membership in `poll`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from stateline.log.embedded_file import OFFSET_BITS, OFFSET_MASK, LogFile, decode_headers, monotonic_ms
from stateline.log.embedded_group import Claim, assignments, commit_offsets, heartbeat, join, leave, release, take
from stateline.log.embedded_transactions import visible_ends
from stateline.log.interface import NO_NOTES, AssignmentListener, IsolationLevel, OffsetNote, Record
from stateline_store import DoesNotExistError, FencedError, InvalidArgumentError, TopicPartition
from stateline_store.clock import boot_ms

_POLL_BYTES = 16 * 1024 * 1024  # of each partition in one poll, beyond its first record
_SHORTEST_SLEEP_S = 0.000_5
# A deleted topic may be created again at once. Kafka's clients wait 30 s for that.
_DELETED_PATIENCE_S = 5.0
_LONGEST_SLEEP_S = 0.005  # how late a record may be noticed. A look costs about 10 µs.


@dataclass(slots=True)
class _Place:
    """The reading position in one assigned partition. `end` is the visible end at the last look, or -1."""

    partition_id: int
    next_offset: int
    end: int = -1
    paused: bool = False
    polled: bool = False


@dataclass(frozen=True, slots=True)
class _Subscription:
    topics: tuple[str, ...]
    on_assigned: AssignmentListener
    on_revoked: AssignmentListener


@dataclass(slots=True)
class _Membership:
    """The membership in a group: the generation of the last assignment seen (-1: none), whether another member still
    owns a part of it, and when the next heartbeat is due."""

    claim: Claim
    generation: int = -1
    waiting: bool = False
    heartbeat_due_ms: int = 0
    confirmed_at_ms: int | None = None


class EmbeddedConsumer:
    """Implements `stateline.log.interface.Consumer`. One thread at a time uses it. A group member must poll at least
    every `session_timeout_ms`, or the group gives its partitions to others. Its next poll then calls `on_revoked` with
    all its partitions and joins again. A rebalance revokes and assigns only the partitions that move."""

    keeps_to_thread = True  # as SQLite's connections do
    generation = -1  # there are none to compare

    def __init__(
        self,
        file: LogFile,
        group: str | None,
        instance_id: str | None,
        reset: str,
        session_timeout_ms: int,
        isolation_level: IsolationLevel = "read_committed",
    ) -> None:
        if reset not in (allowed := ("earliest", "latest") if group else ("earliest", "latest", "error")):
            raise InvalidArgumentError(f"auto_offset_reset is one of {allowed}, not {reset!r}.")
        self._file = file
        self._group = group
        self._instance_id = instance_id
        self._sees_uncommitted = isolation_level == "read_uncommitted"
        self._reset_to_end = reset == "latest"
        self._session_timeout_ms = session_timeout_ms
        self._heartbeat_interval_ms = min(session_timeout_ms // 10, 1000)
        self._places: dict[TopicPartition, _Place] = {}
        self._turn = 0
        self._data_version: int | None = None
        self._held_back = False
        self._subscription: _Subscription | None = None
        self._membership: _Membership | None = None
        self._deleted_since_s: float | None = None
        self._closed = False
        self._leaves_for_good = False

    def subscribe(
        self,
        topics: Sequence[str],
        on_assigned: AssignmentListener,
        on_revoked: AssignmentListener,
        on_suspended: AssignmentListener | None = None,
    ) -> None:
        if self._group is None:
            raise InvalidArgumentError("subscribe needs a group: make the consumer with one, or use assign.")
        if self._membership is not None or self._places:
            raise InvalidArgumentError("This consumer already reads. To subscribe again, make another consumer.")
        self._subscription = _Subscription(tuple(topics), on_assigned, on_revoked)

    @property
    def is_assigned(self) -> bool:
        membership = self._membership
        return membership is not None and membership.generation >= 0 and not membership.waiting

    def assign(self, partitions: Mapping[TopicPartition, int]) -> None:
        if self._subscription is not None:
            raise InvalidArgumentError("A consumer that subscribed cannot assign: make another one.")
        ids = self.partition_ids(partitions)
        self._places = {partition: _Place(ids[partition], at) for partition, at in partitions.items()}
        self._data_version = None

    def partition_ids(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the file's own number of each partition. Raises `DoesNotExistError` if there is none."""
        query = "SELECT id FROM partitions WHERE topic = ? AND partition = ?"
        found = {partition: self._file.rows(query, partition) for partition in partitions}
        for partition, rows in found.items():
            if not rows:
                raise DoesNotExistError(f"{self._file.path} has no partition {partition}.")
        return {partition: rows[0][0] for partition, rows in found.items()}

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        deadline = time.monotonic() + timeout_s
        sleep_s = _SHORTEST_SLEEP_S
        while True:
            version = self._file.data_version()
            changed = version != self._data_version
            if self._subscription is not None:
                self._tend(self._subscription, changed)
            records = self._fetch(max_records, changed)
            self._data_version = version
            left = deadline - time.monotonic()
            if records or left <= 0:
                return records
            time.sleep(min(sleep_s, left))
            sleep_s = min(2 * sleep_s, _LONGEST_SLEEP_S)

    def _fetch(self, max_records: int, changed: bool) -> list[Record]:
        active = [entry for entry in self._places.items() if not entry[1].paused]
        if changed or self._held_back or any(place.end < 0 for _, place in active):
            self._look_at_ends()
        for place in self._places.values():
            place.polled = True
        behind = [entry for entry in active if entry[1].next_offset < entry[1].end]
        if not behind:
            return []
        self._turn = (self._turn + 1) % len(behind)
        records: list[Record] = []
        for left, (partition, place) in zip(
            range(len(behind), 0, -1), behind[self._turn :] + behind[: self._turn], strict=True
        ):
            share = -(-(max_records - len(records)) // left)  # an even share of what is left, rounded up
            if share > 0:
                records += self._read(partition, place, share)
        return records

    def _look_at_ends(self) -> None:
        ends = visible_ends(self._file, [place.partition_id for place in self._places.values()])
        # An open transaction may end by its timeout without a write: keep looking.
        self._held_back = any(visible < log_end for visible, log_end in ends.values())
        for partition, place in self._places.items():
            if place.partition_id not in ends:
                if self._subscription is not None:
                    continue  # deleted meanwhile: the next poll sees that in the group
                raise DoesNotExistError(f"{partition} was deleted from {self._file.path}.")
            visible, log_end = ends[place.partition_id]
            place.end = log_end if self._sees_uncommitted else visible
            if not 0 <= place.next_offset <= log_end:  # out of range: Kafka applies the reset policy too
                place.next_offset = place.end if self._reset_to_end else 0

    def _read(self, partition: TopicPartition, place: _Place, limit: int) -> list[Record]:
        topic, number = partition
        base = place.partition_id << OFFSET_BITS
        rows, all_read = self._file.records_within(
            "SELECT id, timestamp_ms, key, value, headers FROM records WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
            (base + place.next_offset, base + place.end, limit),
            _POLL_BYTES,
        )
        # After a short answer only gaps and markers follow, which the next poll may skip.
        at_end = all_read and len(rows) < limit
        place.next_offset = place.end if at_end else (rows[-1][0] & OFFSET_MASK) + 1
        record, mask = Record, OFFSET_MASK
        return [
            record(topic, number, id_ & mask, at, key, value, decode_headers(headers) if headers else ())
            for id_, at, key, value, headers in rows
        ]

    def seek(self, partition: TopicPartition, next_offset: int) -> None:
        if next_offset < 0:
            raise InvalidArgumentError(f"{next_offset} is not an offset: an integer from 0 is.")
        place = self._place(partition)
        place.next_offset, place.end, place.polled = next_offset, -1, False

    def next_offset(self, partition: TopicPartition) -> int | None:
        place = self._place(partition)
        return place.next_offset if place.polled else None

    def lag(self, partition: TopicPartition) -> int | None:
        place = self._place(partition)
        return max(0, place.end - place.next_offset) if place.polled and place.end >= 0 else None

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._place(partition).paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._place(partition).paused = False

    def _place(self, partition: TopicPartition) -> _Place:
        place = self._places.get(partition)
        if place is None:
            raise InvalidArgumentError(f"{partition} is not assigned to this consumer.")
        return place

    def _tend(self, subscription: _Subscription, changed: bool) -> None:
        """Join, send a heartbeat, and follow the group's assignment."""
        if self._membership is None:
            self._refuse_deleted(subscription)
            if self._deleted_since_s is not None:
                return
            self._membership = self._join(subscription)
        membership, claim = self._membership, self._membership.claim
        beat = monotonic_ms() >= membership.heartbeat_due_ms
        if not (beat or changed or membership.waiting):
            return
        if beat:
            self._refuse_deleted(subscription)
            asked_at_ms = boot_ms()
            with self._file.write() as sql:
                heartbeat(sql, claim)
            membership.confirmed_at_ms = asked_at_ms
            membership.heartbeat_due_ms = monotonic_ms() + self._heartbeat_interval_ms
        known = self._file.rows(
            "SELECT incarnation, generation FROM members JOIN groups ON name = group_name "
            "WHERE group_name = ? AND member = ?",
            (claim.group, claim.member),
        )
        if known and known[0][0] != claim.incarnation:
            raise FencedError(f"Another consumer took over {claim.member!r} in group {claim.group!r}: close this one.")
        if not known:
            self._membership = None
            self._revoke(subscription, list(self._places))
            self._tend(subscription, changed)
        elif membership.waiting or known[0][1] != membership.generation:
            membership.generation = known[0][1]
            self._reconcile(subscription, membership)

    def _refuse_deleted(self, subscription: _Subscription) -> None:
        """Raise `DoesNotExistError` if a subscribed topic has been absent for `_DELETED_PATIENCE_S`."""
        existing = {topic for (topic,) in self._file.rows("SELECT name FROM topics")}
        if existing.issuperset(subscription.topics):
            self._deleted_since_s = None
            return
        now_s = time.monotonic()
        if self._deleted_since_s is None:
            self._deleted_since_s = now_s
        if now_s - self._deleted_since_s >= _DELETED_PATIENCE_S:
            gone = ", ".join(sorted(set(subscription.topics) - existing))
            raise DoesNotExistError(f"{self._file.path} does not have {gone}, or not any more: create it.")

    def _join(self, subscription: _Subscription) -> _Membership:
        assert self._group is not None
        incarnation = uuid.uuid4().hex
        claim = Claim(self._group, self._instance_id or f"member-{incarnation}", incarnation)
        with self._file.write() as sql:
            join(sql, claim, subscription.topics, self._session_timeout_ms)
        return _Membership(claim)

    def _reconcile(self, subscription: _Subscription, membership: _Membership) -> None:
        """Release the partitions meant for others, then take the free ones meant for this member."""
        claim = membership.claim
        with self._file.write() as sql:
            rows = assignments(sql, claim.group)
        meant = {row.partition: row.partition_id for row in rows if row.target == claim.member}
        given_up = [
            partition for partition, place in self._places.items() if meant.get(partition) != place.partition_id
        ]
        if given_up:
            ids = [self._places[partition].partition_id for partition in given_up]
            self._revoke(subscription, given_up)
            with self._file.write() as sql:
                release(sql, claim, ids)
        with self._file.write() as sql:
            taken = take(sql, claim, self._places)
        membership.waiting = len(self._places) + len(taken) < len(meant)
        if taken:
            starts = self._starts({row.partition: row.partition_id for row in taken})
            self._places |= {row.partition: _Place(row.partition_id, starts[row.partition]) for row in taken}
            subscription.on_assigned([row.partition for row in taken])

    def _starts(self, partitions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        query = "SELECT partition_id, next_offset FROM group_offsets WHERE group_name = ?"
        committed = dict(self._file.rows(query, (self._group,)))
        ends = visible_ends(self._file, list(partitions.values())) if self._reset_to_end else {}
        return {
            partition: committed.get(partition_id, ends.get(partition_id, (0, 0))[0])
            for partition, partition_id in partitions.items()
        }

    def _revoke(self, subscription: _Subscription, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        try:
            subscription.on_revoked(partitions)
        finally:
            for partition in partitions:
                self._places.pop(partition, None)

    def check_ownership(self, partitions: Iterable[TopicPartition]) -> None:
        self.claim()
        if missing := [partition for partition in partitions if partition not in self._places]:
            raise FencedError(f"{missing[0]} is not this member's of {self._group!r}: nothing was committed.")

    def commit(
        self, next_offsets: Mapping[TopicPartition, int], notes: Mapping[TopicPartition, OffsetNote] = NO_NOTES
    ) -> None:
        claim, ids = self.claim(), self.partition_ids(next_offsets)
        by_id = {ids[partition]: note for partition, note in notes.items() if partition in ids}
        with self._file.write() as sql:
            commit_offsets(sql, claim, {ids[partition]: at for partition, at in next_offsets.items()}, by_id)

    def claim(self) -> Claim:
        """Return the claim that commits carry. A producer puts it into its transaction."""
        if self._group is None:
            raise InvalidArgumentError("A consumer without a group has no offsets to commit.")
        if self._subscription is not None and self._membership is None:
            raise FencedError(f"This consumer is not in group {self._group!r} now: poll to join.")
        return Claim(self._group) if self._membership is None else self._membership.claim

    @property
    def member_id(self) -> str | None:
        return None if self._membership is None or self._closed else self._membership.claim.member

    @property
    def confirmed_at_ms(self) -> int | None:
        return None if self._membership is None else self._membership.confirmed_at_ms

    def confirm_membership(self, place: TopicPartition) -> bool:
        """Do nothing: every heartbeat is answered."""
        return True

    def leave(self) -> None:
        self._leaves_for_good = True
        self.close()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if self._subscription is not None:
                self._revoke(self._subscription, list(self._places))
        finally:
            self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _leave(self) -> None:
        try:
            if self._membership is not None and (self._instance_id is None or self._leaves_for_good):
                with self._file.write() as sql:
                    leave(sql, self._membership.claim)
        finally:
            self._file.close()
