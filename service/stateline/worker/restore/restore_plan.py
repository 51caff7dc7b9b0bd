"""Plans what a task restores before it takes records, and the offsets from which it takes them.

`docs/design/restore.md` has the table of what each store reads. Each store has the offset of the last changelog record
that it has applied (`committed_offset`). If it lacks a deleted record, this store alone is wiped and rebuilt.
`model.restore_start` says which stores keep their rows although their offset is before the log's first record. That is
logged. Tables always do.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias, TypeVar

from stateline.log.interface import Admin, Log, OffsetNote
from stateline.model.fed_parts import FedPart, FedParts, note_after
from stateline.model.missed_input import AwayParts, away_parts
from stateline.model.reset_command import of_store
from stateline.model.restore_start import (
    RestoreStart,
    has_seen,
    is_behind_store,
    may_be_markers,
    start_of_logged,
    start_of_table,
)
from stateline.model.table_topics import beginning_is_lost, forgets, never_read, windows_kept
from stateline.model.topic import Topic
from stateline.worker.restore.retention_skip import Backlog, starts_of
from stateline.worker.restore.store_restore import RestoredStore, StoreRestore
from stateline.worker.tasks.task import Task
from stateline.worker.tasks.task_settings import TaskStart
from stateline_store import IsolationLevel, Position, TopicPartition, TopologyError

T = TypeVar("T")
Bounds: TypeAlias = Mapping[TopicPartition, tuple[int, int]]
"""First offset kept, and the end with open transactions counted: a predecessor's may just be committing."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """The restores of a task's stores, and the task's start afterwards. `unproven` stores had applied nothing of their
    changelog when the plan was made. `away` are stores and topics that may lack input."""

    restores: tuple[StoreRestore, ...]
    start: TaskStart = field(default_factory=TaskStart)
    unproven: frozenset[str] = frozenset()
    away: tuple[AwayParts, ...] = ()

    def restored_start(self) -> TaskStart:
        """Once restored: return `start` without Positions of stores whose changelog had no record for them. Such a
        store may be new, or the transaction that first wrote to its changelog may have been aborted."""
        restored = {restore.store.name for restore in self.restores if restore.restored}
        unproven = self.unproven - restored
        return replace(self.start, positions={n: p for n, p in self.start.positions.items() if n not in unproven})


def plans(tasks: Sequence[Task], log: Log, admin: Admin, group: str) -> list[TaskPlan]:
    """Plan these open tasks. Asks the log for the offsets of all at once. Raises `TopologyError` if a changelog has
    lost records that its store has."""
    # In this order: a commit writes changelogs before offsets, so their ends are not behind the group's offsets.
    sources = [source for task in tasks for source in task.topology.sources]
    found = admin.committed_with_notes(group, sources)
    committed, notes = {s: at for s, (at, _) in found.items()}, {s: note for s, (_, note) in found.items()}
    logs = {log: None for task in tasks for log in (*task.topology.sources, *(log for log, _ in task.topology.logged))}
    bounds = admin.bounds(logs)
    say_lost(tasks, bounds)
    starts = starts_of({c: b for task in tasks for c, b in backlogs(task, bounds, committed).items()}, log, admin)
    return [_plan(task, _of(task, committed), _of(task, notes), bounds, starts) for task in tasks]


def backlogs(task: Task, bounds: Bounds, committed: Mapping[TopicPartition, int]) -> dict[TopicPartition, Backlog]:
    """Return what each logged store of a task lacks of its changelog. Rebuilds stores as `resume_logged` does."""
    found: dict[TopicPartition, Backlog] = {}
    for changelog, name in task.topology.logged:
        first, end = bounds[changelog]
        at = resume_logged(task, name, changelog, first, end, _of(task, committed))
        found[changelog] = Backlog(task.stores.by_name[name], task.topology.definitions[name], at, end)
    return found


def _of(task: Task, known: Mapping[TopicPartition, T]) -> dict[TopicPartition, T]:
    return {source: known[source] for source in task.topology.sources if source in known}


def restored_store(task: Task, name: str, changelog: TopicPartition, table_of: Topic | None = None) -> RestoredStore:
    return RestoredStore(
        task.stores.by_name[name],
        partial(task.commit_restored, name),
        changelog,
        table_of,
        task.topology.definitions[name].types,
        task.settings.max_timestamp_ahead_ms,
        0 if table_of else task.stores.offsets.owner_epoch(name),
        task.settings.clock,
        task.settings.failures.reading_fails,
    )


def _plan(
    task: Task,
    committed: Mapping[TopicPartition, int],
    notes: Mapping[TopicPartition, OffsetNote],
    bounds: Bounds,
    starts: Mapping[TopicPartition, int],
) -> TaskPlan:
    # If a topic was created again, its note means the offsets of the old one.
    noted = {s: note.fed for s, note in notes.items() if s.topic not in task.recreated}
    fed = {source: FedParts.decode(text) for source, text in noted.items()}
    away = _away(task, committed, fed, bounds)
    next_offsets: dict[TopicPartition, int] = {}
    restores: list[StoreRestore] = []
    positions: dict[str, Position] = {}
    ends: dict[TopicPartition, int] = {}
    for topic in task.topology.subtopology.sources:
        source = TopicPartition(topic.name, task.topology.partition)
        first, ends[source] = bounds[source]
        next_offsets[source], table_restores = _plan_source(task, topic, first, ends[source], committed.get(source))
        restores += table_restores
        for restore in table_restores:
            if (offset := task.stores.offsets.committed(restore.store.name)) is not None:
                # A restore that was interrupted commits the offset alone.
                positions[restore.store.name] = Position.of({source: offset})
    unproven: set[str] = set()
    for changelog, name in task.topology.logged:
        at, end = starts[changelog], bounds[changelog][1]
        ends[changelog] = end
        has_commits = bool(task.stores.position(name, IsolationLevel.READ_COMMITTED))
        restores.append(StoreRestore(restored_store(task, name, changelog), at, end, has_commits=has_commits))
        # A commit writes changelogs before offsets. So a store at its changelog's end has seen the group's offsets, if
        # it was part of the application then.
        missing = {each.source for each in away if FedPart(name) in each.left}
        positions[name] = Position.of({s: at - 1 for s, at in committed.items() if at > 0 and s not in missing})
        if task.stores.offsets.committed(name) is None:
            unproven.add(name)
    # If a source is read again from before the committed offset, its time there is not known.
    known = [s for s, at in committed.items() if next_offsets.get(s, -1) >= at]
    start = TaskStart(
        next_offsets=next_offsets,
        positions=positions,
        ends=ends,
        partition_times={s: ms for s in known if (ms := notes[s].time_ms) is not None},
        fed={s: note_after(fed.get(s), committed.get(s), parts) for s, parts in task.topology.parts.items()},
        fed_before=noted,
    )
    return TaskPlan(tuple(r for r in restores if r.remaining), start, frozenset(unproven), tuple(away))


def _away(
    task: Task, committed: Mapping[TopicPartition, int], fed: Mapping[TopicPartition, FedParts | None], bounds: Bounds
) -> list[AwayParts]:
    found = (
        away_parts(task.topology.subtopology, task.topology.parts[source], source, bounds[source], at, fed.get(source))
        for source, at in committed.items()
    )
    return [each for each in found if each is not None]


def _plan_source(
    task: Task, topic: Topic, first: int, end: int, committed: int | None
) -> tuple[int, list[StoreRestore]]:
    source = TopicPartition(topic.name, task.topology.partition)
    tables = [definition.name for definition in task.topology.subtopology.tables(source.topic)]
    resumes = [(table, resume_table(task, table, source, first, end)) for table in tables]
    if not task.reads_by_group:
        return min((offset for _, offset in resumes), default=first), []
    start = start_of_group(source, first, end, committed)
    return start, [StoreRestore(restored_store(task, table, source, topic), offset, start) for table, offset in resumes]


def resume_table(task: Task, store: str, source: TopicPartition, first: int, end: int) -> int:
    offset = task.stores.offsets.committed(store)
    start = start_of_table(offset, first, end)
    return _rebuild(task, store, source, first, end) if start.anew else start.at


def resume_logged(
    task: Task, store: str, changelog: TopicPartition, first: int, end: int, committed: Mapping[TopicPartition, int]
) -> int:
    """Return the next offset to read for a logged store. A changelog that ends before its store has lost records."""
    offset = task.stores.furthest_offset(store)
    if offset is None:
        return first
    is_behind = is_behind_store(offset, end)
    if is_behind and task.is_same_topic(changelog.topic) and _went_back(task, store, committed):
        return _rebuild(task, store, changelog, first, end)
    if is_behind or changelog.topic in task.recreated:
        with of_store(store):
            raise TopologyError(
                f"Store {store!r} of task {task.id} has changelog offset {offset}, but {changelog} ends at {end}: the "
                f"topic was deleted or this is another cluster. {task.settings.way_back}."
            )
    start = start_of_logged(
        task.stores.offsets.committed(store),
        first,
        forgets=forgets(task.topology.definitions[store]),
        has_markers=task.settings.exactly_once,
        has_all_input=_has_all_input(task, store, committed),
    )
    if start.anew:
        return _rebuild(task, store, changelog, first, end)
    if start.missed:
        _say_kept(task, store, changelog, start, committed)
    return start.at


def _has_all_input(task: Task, store: str, committed: Mapping[TopicPartition, int]) -> bool:
    feeding = {source: at for source, at in committed.items() if store in task.topology.fed_by[source.topic]}
    return has_seen(task.stores.position(store, IsolationLevel.READ_COMMITTED), feeding)


def _say_kept(
    task: Task, store: str, log: TopicPartition, start: RestoreStart, committed: Mapping[TopicPartition, int]
) -> None:
    is_complete = _has_all_input(task, store, committed) and not task.topology.subtopology.is_called_by_clock(store)
    if is_complete or (task.settings.exactly_once and may_be_markers(start.missed)):
        level, why = logging.INFO, "The store lacks no record."
    else:
        level = logging.WARNING
        why = "If they held records of this store, rows that those records changed are older than they should be."
    logger.log(level, "Store %s of task %s keeps its rows. %s has deleted offsets %d to %d, which the store has not "
               "read. %s", store, task.id, log, start.missed[0], start.missed[-1], why)  # fmt: skip


def _went_back(task: Task, store: str, committed: Mapping[TopicPartition, int]) -> bool:
    """Return whether the group's offsets, too, are behind the store: the whole log has lost its tail, as in a power
    cut.

    Input, offsets and changelog are of one earlier moment then. A rebuilt store counts each record once, a kept one
    would count records twice that are read again. If only the changelog is behind, no record is read again, and the
    store may have the only copy of its changes.
    """
    seen = task.stores.position(store, IsolationLevel.READ_COMMITTED)
    offsets = [(seen.get(*source), committed.get(source, 0)) for source in task.topology.sources]
    return any(offset is not None for offset, _ in offsets) and all(
        offset is None or next_offset <= offset for offset, next_offset in offsets
    )


def _rebuild(task: Task, store: str, log: TopicPartition, first: int, end: int) -> int:
    logger.warning(
        "Store %s of task %s is at offset %s, but %s holds %d to %d: it is deleted and rebuilt from there.",
        store, task.id, task.stores.offsets.committed(store), log, first, end - 1,
    )  # fmt: skip
    task.stores.rebuild(store)
    return first


def say_lost(tasks: Sequence[Task], bounds: Bounds) -> None:
    """Log which tables lack deleted records that they never read, and which begin without their first records. Tables
    of windows and sessions have no old records anyway."""
    beginnings: dict[str, dict[TopicPartition, int]] = {}
    missed: dict[str, dict[TopicPartition, range]] = {}
    forgetting: set[str] = set()
    for task in tasks:
        for source in task.topology.sources:
            first, end = bounds[source]
            for table in task.topology.subtopology.tables(source.topic):
                offset = task.stores.offsets.committed(table.name)
                if forgets(table):
                    forgetting.add(table.name)
                start = start_of_table(offset, first, end)
                if start.missed:
                    missed.setdefault(table.name, {})[source] = start.missed
                elif first > 0 and (offset is None or start.anew) and not forgets(table):
                    beginnings.setdefault(table.name, {})[source] = first
    for name, firsts in beginnings.items():
        logger.warning("%s", beginning_is_lost(name, firsts))
    for name, ranges in missed.items():
        say_never_read(name, ranges, forgets=name in forgetting)


def say_never_read(table: str, missed: Mapping[TopicPartition, range], *, forgets: bool) -> None:
    """Log that this table keeps its rows although its topic has deleted these offsets before the table read them."""
    if forgets:
        logger.warning("%s", windows_kept(table, missed))
    else:
        level = logging.WARNING if all(map(may_be_markers, missed.values())) else logging.ERROR
        logger.log(level, "%s", never_read(table, missed))


def start_of_group(source: TopicPartition, first: int, end: int, committed: int | None) -> int:
    """Return the group's next offset. If the log does not have it, that is the first record, as for a consumer."""
    if committed is None or first <= committed <= end:
        return first if committed is None else committed
    if committed < first and may_be_markers(range(committed, first)):
        logger.warning("%s begins at offset %d. Its offset %d, which was deleted, was not processed: it was the end of "
                       "a transaction, or a record.", source, first, committed)  # fmt: skip
    elif committed < first:
        logger.warning("Input is lost: %s begins at offset %d, and %d to %d, which were deleted, were never processed.",
                       source, first, committed, first - 1)  # fmt: skip
    else:
        logger.warning("%s ends at offset %d, before the group's offset %d: it is read again from %d.",
                       source, end, committed, first)  # fmt: skip
    return first
