"""A standby's store: a restore without an end. `docs/design/standbys.md` says when it claims a Position.

Behind a gap between offsets the rows stay in memory until the standby has read up to the end that the log had when the
gap was seen. If they become too many, they are committed without a Position, like those of an unfinished restore. The
marker of a transaction is an offset without a record, too. It may follow the last record of a commit.
"""

from __future__ import annotations

from typing import ClassVar

from stateline.log.interface import Admin, Log, Record
from stateline.processing.changelog import end_of_last_commit
from stateline.worker.restore.restore_plan import backlogs, restored_store, resume_table
from stateline.worker.restore.retention_skip import starts_of
from stateline.worker.restore.store_restore import RestoredStore, StoreRestore
from stateline.worker.tasks.task import Task
from stateline_store import IsolationLevel, StoreState, TopicPartition, TransactionalStore


class StandbyStore(StoreRestore):
    """One store's. It claims no Position before `end`. It takes no record from `limit` on, if there is one. `is_whole`:
    its last commit has its Position. `has_markers`: transactions write the changelog, one for each commit."""

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
        super().__init__(of, next_offset, end, has_commits=has_commits)
        self.limit = limit
        self.is_whole = False
        # Rows that are ahead of their Position stay so until more is read.
        self._began_whole = not (isinstance(of.store, TransactionalStore) and of.store.restore_remaining)
        self._has_markers = has_markers and of.table_of is None
        # The next record's offset without a gap. The consumer's next offset is behind markers, also behind those of
        # commits whose records were all replaced.
        self._follows = next_offset
        self._ends_commit = True  # whether a marker may come before it
        self._is_end_awaited = False  # behind a gap, until it is known where the log ends
        self._ahead: list[Record] = []  # beyond the limit
        self._read_to = next_offset
        self._committed_to = next_offset

    @property
    def remaining(self) -> int:
        """Offsets left before it claims a Position again. Records of an unfinished commit count: they may replace
        others."""
        begins_at = self._commits.begins_at if self._commits.has_commits else None
        left = self.end - (self.next_offset if begins_at is None else begins_at)
        return max(left, 1 if self._is_end_awaited else 0)

    @property
    def is_ahead(self) -> bool:
        return bool(self._ahead)

    @property
    def is_committed(self) -> bool:
        return not self.remaining and self.next_offset == self._committed_to

    @property
    def committed_offset(self) -> int:
        """The last offset that is committed with its Position; -1 before the first."""
        return self._committed_to - 1

    @property
    def reads_from(self) -> int:
        return self._read_to

    def read(self, records: list[Record], next_offset: int, end: int | None) -> None:
        """Stage whole commits of the next records, and commit them if they are many. The log continues at
        `next_offset`. It ended at `end` when they were read; None for unknown."""
        new = [record for record in records if record.offset >= self._read_to]
        self._read_to = max([self._read_to, next_offset, *(record.offset + 1 for record in new[-1:])])
        if self.limit is not None:
            given = self._ahead + new
            new = [record for record in given if record.offset < self.limit]
            self._ahead = given[len(new) :]
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
        """Commit staged rows with their Position, if they have one now."""
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
        """Commit all staged rows, for their next owner or because they are many, with their Position if they have
        one."""
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


def followed(task: Task, log: Log, admin: Admin, group: str) -> list[StandbyStore]:
    """Return the open stores of this standby, with the offsets to read them from. Raises as `plans`."""
    committed = admin.committed(group, task.topology.sources)
    logs = {*task.topology.sources, *(log for log, _ in task.topology.logged)}
    bounds, ends = admin.bounds(logs), admin.committed_ends(logs)
    found: list[StandbyStore] = []
    for topic in task.topology.subtopology.sources:
        source = TopicPartition(topic.name, task.topology.partition)
        # If the task reads this topic by its group, a standby's tables of it must not be ahead of the group.
        read_to = max(committed.get(source, 0), bounds[source][0])
        limit = read_to if task.reads_by_group else None
        for table in task.topology.tables[topic.name]:
            at = resume_table(task, table, source, *bounds[source])
            end = ends[source] if limit is None else min(ends[source], limit)
            of = restored_store(task, table, source, topic)
            found.append(StandbyStore(of, at, end, has_markers=task.settings.exactly_once, limit=limit))
    starts = starts_of(backlogs(task, bounds, committed), log, admin)
    for changelog, name in task.topology.logged:
        has_commits = bool(task.stores.position(name, IsolationLevel.READ_COMMITTED))
        of, has_markers = restored_store(task, name, changelog), task.settings.exactly_once
        at, end = starts[changelog], ends[changelog]
        found.append(StandbyStore(of, at, end, has_commits=has_commits, has_markers=has_markers))
    return found
