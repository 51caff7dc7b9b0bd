"""A standby's store: a restore that has no end.

Of a compacted topic the records that a later one replaced are missing, so rows may be behind the Position that stands
beside them. They are not where offsets follow each other without a gap: then every record is there. Behind a gap no
Position is claimed before everything is read that was there when the gap was seen: whatever replaced the missing
records is in it. Until then the rows stay in memory, as long as they are not too many, and readers see the commit
before; if they are, the copy is one whose restore has not come to its end.

The marker of a transaction is an offset without a record, too. Of a changelog the last record of a commit tells where
to expect one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from stateline.log.interface import Admin, Record
from stateline.processing.changelog import end_of_last_commit
from stateline.worker.restore.restore_plan import restored_store, resume_logged, resume_table
from stateline.worker.restore.store_restore import RestoredStore, StoreRestore
from stateline.worker.tasks.task import Task
from stateline_store import IsolationLevel, StoreState, TopicPartition, TransactionalStore


class StandbyStore(StoreRestore):
    """One store's. `end` is where it must have come to before it claims a Position again; `limit`, if there is one, the
    offset from which on it takes nothing yet. `is_whole`: what was committed here last has its Position."""

    _state: ClassVar[StoreState] = StoreState.STANDBY

    def __init__(
        self,
        of: RestoredStore,
        next_offset: int,
        end: int,
        *,
        has_commits: bool = False,
        has_markers: bool = False,
        limit: int | None = None,
    ) -> None:
        """As `StoreRestore`; `has_markers`: the changelog is written by transactions, one for each commit."""
        super().__init__(of, next_offset, end, has_commits=has_commits)
        self.limit = limit
        self.is_whole = False
        # Rows that are ahead of their Position are so until more is read.
        self._began_whole = not (isinstance(of.store, TransactionalStore) and of.store.restore_remaining)
        self._has_markers = has_markers and of.table_of is None
        # Where the next record is if there is no gap. It is not where the log says to go on: that is behind markers,
        # also those of commits whose records were all replaced.
        self._follows = next_offset
        self._ends_commit = True  # whether a marker may come before it
        self._is_end_awaited = False  # behind a gap, until it is known where the log ends
        self._ahead: list[Record] = []  # beyond the limit
        self._read_to = next_offset
        self._committed_to = next_offset

    @property
    def remaining(self) -> int:
        """Offsets left before it claims a Position again. What waits for the end of its commit is not there yet: it may
        have replaced records that are missing."""
        begins_at = self._commits.begins_at if self._commits.has_commits else None
        left = self.end - (self.next_offset if begins_at is None else begins_at)
        return max(left, 1 if self._is_end_awaited else 0)

    @property
    def is_ahead(self) -> bool:
        """Whether records wait for the limit to be moved."""
        return bool(self._ahead)

    @property
    def is_committed(self) -> bool:
        """Whether all that it was given is committed with its Position."""
        return not self.remaining and self.next_offset == self._committed_to

    @property
    def committed_offset(self) -> int:
        """The last offset that is committed with its Position; -1 before the first."""
        return self._committed_to - 1

    @property
    def reads_from(self) -> int:
        """The offset of the next record that it was not given yet."""
        return self._read_to

    def read(self, records: list[Record], next_offset: int, end: int | None) -> None:
        """These follow, if any; what comes next is at `next_offset`, and what was there when they were read ends before
        `end`, None while that is not known. Stages what is whole, and commits it when it is much."""
        new = [record for record in records if record.offset >= self._read_to]
        self._read_to = max([self._read_to, next_offset, *(record.offset + 1 for record in new[-1:])])
        if self.limit is not None:
            new, self._ahead = _parted(self._ahead + new, self.limit)
            end, next_offset = self.limit if end is None else min(end, self.limit), min(next_offset, self.limit)
        if new:
            self._is_end_awaited |= self._has_gap(new)
            self._take(new)
        if self._is_end_awaited and end is not None:
            self.end, self._is_end_awaited = max(self.end, end), False
        self.next_offset = max(self.next_offset, next_offset)
        if self._is_batch:
            self.let_go()

    def commit_whole(self) -> None:
        """Commit what was staged with the Position that it has, if it has one now."""
        if self.remaining:
            return
        if self.next_offset == self._committed_to:
            self.is_whole |= not self.restored and self._began_whole  # there was nothing to read
            return
        if not self._commits.has_commits:
            self._stage_changelog(self._commits.take_rest())
        if isinstance(self.store, TransactionalStore):
            self.store.advance(self._position)
        self._committed_to = self.next_offset
        self.commit()
        self.is_whole = bool(self.restored) or self._began_whole

    def let_go(self) -> None:
        """Commit all that is staged, for who goes on or because it is much, with its Position if it has one."""
        self.commit_whole()
        if self.store.approximate_num_uncommitted_bytes:
            self.is_whole = False
            self.commit()

    def _has_gap(self, records: list[Record]) -> bool:
        first, last = records[0].offset, records[-1].offset
        follows, may_skip = self._follows, self._ends_commit
        self._follows = last + 1
        self._ends_commit = self._has_markers and _ends_commit(records[-1])
        missing = last - first + 1 - len(records)
        if first == follows and not missing:
            return False
        if not self._has_markers or not (first == follows or (may_skip and first == follows + 1)):
            return True
        ends = [at for at, record in enumerate(records) if record.headers and _ends_commit(record)]
        behind = (records[at + 1].offset - records[at].offset - 1 for at in ends if at + 1 < len(records))
        return missing != sum(skipped == 1 for skipped in behind)


def _ends_commit(record: Record) -> bool:
    return end_of_last_commit([record]) == 1


def _parted(records: list[Record], at: int) -> tuple[list[Record], list[Record]]:
    """Those before this offset, and those from there on."""
    before = [record for record in records if record.offset < at]
    return before, records[len(before) :]


def followed(task: Task, admin: Admin, group: str) -> list[StandbyStore]:
    """What the stores of this standby, which are open, have to read, and from where. Raises as `plans`."""
    committed = admin.committed(group, task.topology.sources)
    logs = {*task.topology.sources, *(log for log, _ in task.topology.logged)}
    bounds, ends = admin.bounds(logs), admin.committed_ends(logs)
    found: list[StandbyStore] = []
    for topic in task.topology.subtopology.sources:
        source = TopicPartition(topic.name, task.topology.partition)
        limit = limit_of(task, source, committed, bounds[source][0])
        for table in task.topology.tables[topic.name]:
            at = resume_table(task, table, source, *bounds[source])
            end = ends[source] if limit is None else min(ends[source], limit)
            of = restored_store(task, table, source, topic)
            found.append(StandbyStore(of, at, end, has_markers=task.settings.exactly_once, limit=limit))
    for changelog, name in task.topology.logged:
        at = resume_logged(task, name, changelog, *bounds[changelog], committed)
        has_commits = bool(task.stores.position(name, IsolationLevel.READ_COMMITTED))
        of, has_markers = restored_store(task, name, changelog), task.settings.exactly_once
        found.append(StandbyStore(of, at, ends[changelog], has_commits=has_commits, has_markers=has_markers))
    return found


def limit_of(task: Task, source: TopicPartition, committed: Mapping[TopicPartition, int], first: int) -> int | None:
    """From which offset of this topic on a standby's tables of it take nothing: what its task reads by its group goes
    through them together with everything else that is made of it. None where they may take all."""
    return max(committed.get(source, first), first) if task.reads_by_group(source.topic) else None
