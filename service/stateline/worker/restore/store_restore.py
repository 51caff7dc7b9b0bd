"""One store's restore: the records of its changelog, or of its table's topic, staged and committed in batches.

A batch commits rows and offset, but the Position only at the end. In a compacted topic replaced records are missing.
Until the record that replaced one is read, the rows are behind the Positions on the way. Meanwhile a store keeps its
former Position: it has everything up to there, and some later rows. Its notice says that records are left
(`restore_remaining`) until its Position covers all its rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from stateline.log.interface import Record
from stateline.model.reset_command import of_store
from stateline.model.topic import Topic
from stateline.processing.changelog import (
    OWNER_EPOCH,
    end_of_last_commit,
    headers_of_table,
    own_headers,
    owner_epoch,
    position_of_changelog,
    position_of_input,
    stage,
    types_of_changelog,
    without_former_owners,
)
from stateline.processing.clock import MACHINE_CLOCK, Clock
from stateline.processing.event_times import PARTITION_TIME, UNKNOWN_MS, EventTimes
from stateline.processing.failures import FailureHandler
from stateline.processing.reading import keyed, readable, since_1970, size_of, timely
from stateline_store import IsolationLevel, StateStore, StoreState, StoreTypes, TransactionalStore
from stateline_store.errors import TopologyError
from stateline_store.position import Position, TopicPartition

logger = logging.getLogger(__name__)

# Restored records are committed in batches of about this much memory: large enough for fast sorted batches.
_BATCH_BYTES = 8 * 1024 * 1024
# A changelog with this much memory of records and no Position was not written by Stateline. It has no commits to keep
# whole, and its records are taken as they come. After a Position, a commit waits for its end, however large: its
# writer had all of it in memory too (`statestore.uncommitted.max.bytes` and one slice).
_NO_COMMITS_BYTES = 256 * 1024 * 1024


class WholeCommits:
    """Groups a changelog's records by commits. Nobody may see half a commit, so its records wait for the last one,
    which has the Position. `has_commits`: the changelog is known to have Positions."""

    def __init__(self, *, has_commits: bool) -> None:
        self._has_commits = has_commits
        self._waiting: list[Record] = []
        self._read_bytes = 0

    @property
    def has_commits(self) -> bool:
        return self._has_commits

    @property
    def begins_at(self) -> int | None:
        """The first offset of the commit whose end was not read yet; None for none."""
        return self._waiting[0].offset if self._waiting else None

    def add(self, records: Sequence[Record]) -> list[Record]:
        """Add the next records. Returns those whose commit is whole now."""
        before, whole = len(self._waiting), end_of_last_commit(records)
        self._waiting += records
        if whole:
            self._has_commits = True
            return self._take(before + whole)
        if self._has_commits:
            return []
        self._read_bytes += size_of(records)
        return self.take_rest() if self._read_bytes > _NO_COMMITS_BYTES else []

    def take_rest(self) -> list[Record]:
        return self._take(len(self._waiting))

    def _take(self, count: int) -> list[Record]:
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken


@dataclass(frozen=True, slots=True)
class RestoredStore:
    """A store, its commit, and the log that it is restored from.

    `table_of` is the topic of a table. Its records are deserialized again, as when they were first read. An unreadable
    record ends the worker if `reading_fails`, and is left out otherwise: its policy was applied before, or its schema
    is one that today's code or registry does not read. `types` are the declared types of a store with a changelog.
    `owner_epoch` is the largest among its records.
    """

    store: StateStore
    commit: Callable[[Mapping[TopicPartition, int]], None]
    changelog: TopicPartition
    table_of: Topic | None = None
    types: StoreTypes | None = None
    max_timestamp_ahead_ms: int = -1
    owner_epoch: int = 0
    clock: Clock = MACHINE_CLOCK
    reading_fails: bool = False


class StoreRestore:
    """Takes records from `next_offset` up to, not including, `end`. `restored` counts staged records. `has_commits`:
    the changelog is known to have Positions."""

    _state: ClassVar[StoreState] = StoreState.RESTORING

    def __init__(self, of: RestoredStore, next_offset: int, end: int, *, has_commits: bool = False) -> None:
        self.store = of.store
        self.changelog = of.changelog
        self.next_offset = next_offset
        self.end = end
        self.restored = 0
        self._is_one_offset = end - next_offset == 1
        self.of = of
        self._commits = WholeCommits(has_commits=has_commits)
        self._position = Position()  # the store's at `end`
        self._newest_owner = self._staged_owner = (
            of.owner_epoch
        )  # the largest epoch read, and the largest that is staged
        self._left_out = self._unreadable = 0
        self._failures = FailureHandler("fail", "fail", None) if of.reading_fails else None
        self._times = _times_of(of)

    @property
    def remaining(self) -> int:
        """Offsets left to read. Some may hold no record."""
        return max(0, self.end - self.next_offset)

    def apply(self, records: list[Record]) -> None:
        """Stage the next records, as far as their commits are whole, and commit in batches."""
        if records and (records[0].offset < self.next_offset or records[-1].offset >= self.end):
            records = [record for record in records if self.next_offset <= record.offset < self.end]
        if not records:
            return
        self._take(records)
        if self.remaining and self._is_batch:
            self.commit()

    @property
    def _is_batch(self) -> bool:
        return self.store.approximate_num_uncommitted_bytes >= _BATCH_BYTES

    def _take(self, records: list[Record]) -> None:
        self.next_offset = records[-1].offset + 1
        if self.of.table_of is not None:
            self._stage_table(self.of.table_of, records)
        else:
            owned, self._newest_owner = without_former_owners(records, self._newest_owner)
            self._left_out += len(records) - len(owned)
            self._stage_changelog(self._commits.add(owned))

    def finish(self, level: int) -> None:
        """Everything was read: commit it with its Position. Logs at this level."""
        self._stage_changelog(self._commits.take_rest())
        self.next_offset = self.end
        if isinstance(self.store, TransactionalStore):
            self.store.advance(self._position)
        self.commit()
        if not self.restored and self._is_one_offset:  # as in `Restorer.add`
            level = logging.DEBUG
        logger.log(level, "Restored %s from %s: %d records", self.store.name, self.changelog, self.restored)
        if self._left_out:
            logger.warning("%d records of %s were left out: a worker wrote them after another had taken over",
                           self._left_out, self.changelog)  # fmt: skip
        if self._unreadable:
            logger.warning("%d records of %s were left out of table %s: they cannot be read",
                           self._unreadable, self.changelog, self.store.name)  # fmt: skip

    def commit(self) -> None:
        """Commit staged rows, with the offset up to which commits are whole."""
        if self.restored:
            begins_at = self._commits.begins_at
            applied = self.next_offset if begins_at is None else begins_at
            is_known = self._staged_owner > 0 and isinstance(self.store, TransactionalStore)
            owner = {OWNER_EPOCH: self._staged_owner} if is_known else {}
            if self.remaining:  # first: readers of these rows must know that their Position is missing
                self._set_remaining()
            at = self._times.partition_times.get(self.changelog)
            times = {} if at is None else {PARTITION_TIME: at}
            self.of.commit({self.changelog: applied - 1, **owner, **times})
            self.say_remaining()

    def say_remaining(self) -> None:
        """Tell readers in other processes how many offsets are left."""
        if isinstance(self.store, TransactionalStore):
            self.store.announce_commit()
        self._set_remaining()

    def _set_remaining(self) -> None:
        if isinstance(self.store, TransactionalStore):
            self.store.set_state(self._state, self.remaining)

    def _stage_table(self, topic: Topic, records: list[Record]) -> None:
        seen = None
        if isinstance(self.store, TransactionalStore):
            seen = self.store.position(IsolationLevel.READ_UNCOMMITTED).get(*self.changelog)
        new = [record for record in records if seen is None or record.offset > seen]
        timed = since_1970(self._times.admitted(self._times.stamped(new), self._failures), self._failures)
        taken = timely(timed, self.of.max_timestamp_ahead_ms, None, self.of.clock)
        found = readable(topic, taken, self._failures)
        self._unreadable += len(taken) - len(found)
        stage(self.store, keyed(found), own=headers_of_table(topic))
        self._position = position_of_input(records[-1:])
        self.restored += len(records)

    def _stage_changelog(self, records: Sequence[Record]) -> None:
        self._refuse_other_types(records)
        stage(self.store, records, own=own_headers)
        self._position = position_of_changelog(records) or self._position
        if self._newest_owner:  # otherwise no record has one
            self._staged_owner = max(self._staged_owner, owner_epoch(records))
        self.restored += len(records)

    def _refuse_other_types(self, records: Sequence[Record]) -> None:
        """Raise `TopologyError` if records are of other types than declared, before they are staged. Files in their
        first restore have no Position yet. They are deleted: they have the types of this declaration, and would refuse
        the right one."""
        found = types_of_changelog(records)
        if found is None or self.of.types is None or not isinstance(self.store, TransactionalStore):
            return
        try:
            with of_store(self.store.name):
                self.of.types.check(found, self.changelog)
        except TopologyError:
            if not self.store.position(IsolationLevel.READ_COMMITTED):
                self.store.close()
                self.store.wipe()
            raise


def _times_of(of: RestoredStore) -> EventTimes:
    if of.table_of is None:
        return EventTimes(())
    known = of.store.committed_offset(PARTITION_TIME) if isinstance(of.store, TransactionalStore) else None
    times = {of.changelog: UNKNOWN_MS if known is None else known}
    return EventTimes([of.table_of], of.max_timestamp_ahead_ms, times, of.clock)
