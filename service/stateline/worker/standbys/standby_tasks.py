"""Standbys: tasks of other nodes, whose changelogs this worker follows without end.

They take at most half of the thread's time. Queries that accept a standby read their stores. If the group gives such a
task to this worker, the task reads the rest and runs (`task_manager`). `standby_assignment` decides which tasks a
worker follows.

While stores get timestamps (`store_formats`), standbys build timestamped files, and owners elsewhere keep working. The
plain files stay until the timestamped ones have more. Then they are deleted, and the task is ready.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from stateline.query.values import HostedPartition
from stateline.worker.context import WorkerContext
from stateline.worker.restore.changelog_follower import ChangelogFollower
from stateline.worker.standbys.copied_tasks import CopiedTasks
from stateline.worker.standbys.standby_store import StandbyStore, followed
from stateline.worker.tasks.task import Task
from stateline.worker.tasks.task_settings import TaskSettings
from stateline.worker.tasks.tasks import close_together
from stateline_store import (
    DoesNotExistError,
    FencedError,
    LockedError,
    LogUnavailableError,
    RetryLaterError,
    StatelineError,
    StoreState,
    TopicPartition,
    TransactionalStore,
)
from stateline_store.steps import reached
from stateline_store.task_id import TaskId

_log = logging.getLogger(__name__)

# How often records are committed, so that readers see them.
_COMMIT_INTERVAL_S = 0.1
# How often the worker asks for the group's offsets, if tables must not be ahead of them.
_LIMIT_INTERVAL_S = 1.0
# Pauses after a failure that lasts, and after one that `RetryLaterError` stands for.
_PAUSE_S = 30.0
_RETRY_S = 2.0
# How often the worker compares topic ids.
_LOOK_INTERVAL_S = 60.0


@dataclass(slots=True)
class _Followed:
    task: Task
    stores: list[StandbyStore] = field(default_factory=list)
    complete_s: float = -math.inf  # the last time without a lag
    is_upgraded: bool = True  # its plain files are deleted, if it had any

    def is_past_plain_files(self) -> bool:
        formats = self.task.stores.formats
        return all(s.is_committed and s.next_offset > formats.outdated_offset(s.store.name) for s in self.stores)


class StandbyTasks:
    def __init__(self, context: WorkerContext, settings: TaskSettings, copies: CopiedTasks) -> None:
        self._subtopologies = {each.ordinal: each for each in context.topology.subtopologies}
        self._context = context
        self._settings = settings
        self._acceptable_lag = context.config.acceptable_recovery_lag
        self.upgraded = 0
        """How many tasks have got their timestamped files here."""
        self.copies = copies
        self._follower = ChangelogFollower(context.log, self._starts)
        self._by_id: dict[TaskId, _Followed] = {}
        self._paused_until_s: dict[TaskId, float] = {}
        self._took_s = self._ended_s = 0.0
        self._reads_s = 0.0  # it reads again then, after its consumer has failed
        self._commits_s = self._limits_s = self._looks_s = 0.0
        self._topic_ids: dict[str, str] = {}

    @property
    def ids(self) -> Collection[TaskId]:
        return self._by_id.keys()

    @property
    def begun(self) -> Collection[TaskId]:
        return {*self._by_id, *self.copies.waiting}

    @property
    def tasks(self) -> list[Task]:
        return [each.task for each in self._by_id.values()]

    @property
    def is_busy(self) -> bool:
        return bool(self._by_id) and self._follower.is_full and time.monotonic() >= self._reads_s

    def hosted(self, store: str, partition: int) -> HostedPartition | None:
        """Return this partition of a store, to be queried as a standby; None if it is not followed."""
        for each in self._by_id.values():
            found = each.task.stores.by_name.get(store) if each.task.id.partition == partition else None
            if isinstance(found, TransactionalStore):
                copy = next((one for one in each.stores if one.store is found), None)
                if copy is None or not copy.is_whole:
                    return HostedPartition(found, StoreState.RESTORING)
                return HostedPartition(found, StoreState.STANDBY, copy.committed_offset)
        return None

    def add(self, task_id: TaskId) -> bool:
        """Follow this task too. It may wait for another node's files first. Returns False if it cannot begin now:
        another process has its directory, or it pauses after a failure."""
        if time.monotonic() < self._paused_until_s.get(task_id, 0.0):
            return False
        task = Task(self._subtopologies[task_id.subtopology], task_id.partition, self._settings)
        try:
            self.copies.place(task_id, lambda: self._ids(task.topology.log_topics()))
            task.follow()
        except LockedError as error:
            _log.debug("Standby %s waits: %s", task_id, error)
            return False
        except StatelineError as error:
            self._pause(task_id, error)
            return False
        self._by_id[task_id] = _Followed(task)
        self._follower.change()
        try:
            ids = self._ids(task.topology.log_topics())
            self._topic_ids |= ids
            task.settle_topics(ids)
            stores = self._by_id[task_id].stores = followed(
                task, self._context.log, self._context.admin, self._context.group
            )
            if self.copies.ask_for(task, stores):
                del self._by_id[task_id]
                task.close()
                return True
            self._by_id[task_id].is_upgraded = not task.stores.formats.has_plain
            if task.stores.formats.has_plain:
                _log.info("Standby %s builds timestamped files: its plain ones stay until they are complete", task_id)
            task.give_back()  # others own it: the notice keeps what an earlier restore had left
        except StatelineError as error:
            self._pause(task_id, error)
            return False
        reached("standby:opened")
        return True

    def drop(self, task_ids: Iterable[TaskId]) -> None:
        """Follow these tasks no more. Commit what they have read."""
        dropped = list(task_ids)
        for each in filter(None, map(self._by_id.get, dropped)):
            with contextlib.suppress(StatelineError):  # the records are read again
                for store in each.stores:
                    store.let_go()
        self._close(dropped)

    def _close(self, task_ids: Iterable[TaskId]) -> None:
        closed: list[Task] = []
        for task_id in task_ids:
            self.copies.give_up(task_id)
            if (found := self._by_id.pop(task_id, None)) is not None:
                self._follower.change()
                closed.append(found.task)
        for _, error in close_together(closed):
            if not isinstance(error, StatelineError | None):  # after such an error, earlier commits stay
                raise error

    def take(self, task_id: TaskId) -> Task | None:
        """Return this task, open, because the group has given it to the worker. None if it was not followed, or must be
        opened on its plain files."""
        self.copies.give_up(task_id)
        found = self._by_id.pop(task_id, None)
        if found is None:
            return None
        self._follower.change()
        try:
            for store in found.stores:
                store.let_go()
        except StatelineError as error:  # it is opened again, as any other task
            _log.warning("The newest changes of standby %s cannot be committed: %s", task_id, error)
            found.task.close()
            return None
        if not found.is_upgraded and found.task.stores.formats.may_serve_plain:
            _log.info("Task %s is taken over before its timestamped files are complete: its plain ones serve", task_id)
            found.task.close()
            return None
        reached("standby:let-go")
        found.task.take_over({each.store.name: each.committed_offset for each in found.stores if each.is_whole})
        return found.task

    def advance(self, *, beside_work: bool) -> None:
        """Read and apply one slice, and commit if due. `beside_work`: take half of the time at most."""
        for task_id in self.copies.ended():
            self.add(task_id)
        now_s = time.monotonic()
        rest_s = self._took_s if beside_work else 0.0
        if not self._by_id or now_s - self._ended_s < rest_s or now_s < self._reads_s:
            return
        records = 0
        try:
            if now_s >= self._looks_s:
                self._look()
            records = self._read()
        except (LogUnavailableError, FencedError) as error:
            _log.info("Standbys are read by a new consumer in %g s: %s", _RETRY_S, error)
            self._reads_s = time.monotonic() + _RETRY_S
            self._follower.close()  # the next one reads from where each store stands
        except (RetryLaterError, DoesNotExistError) as error:
            _log.info("Standbys are planned again: %s", error)
            self._add_anew(list(self._by_id))
        self._ended_s = time.monotonic()
        self._took_s = self._ended_s - now_s
        self._context.figures.followed(records, self._took_s)

    def caught_up(self) -> set[TaskId]:
        """Return the tasks that lack at most ``acceptable.recovery.lag`` records."""
        return {task_id for task_id, each in self._by_id.items() if each.is_upgraded and self._is_close(each)}

    def _is_close(self, each: _Followed) -> bool:
        lag = self._lag(each)
        return lag is not None and lag <= self._acceptable_lag

    def total_lag(self) -> int | None:
        """Return how many records all tasks lack together; None for unknown."""
        if not self._follower.is_current:
            return None
        lags = list(self.lags().values())
        return None if None in lags else sum(lag for lag in lags if lag is not None)

    def lags(self) -> dict[TaskId, int | None]:
        """Return how many records each task lacks; None for unknown."""
        return {task_id: self._lag(each) for task_id, each in self._by_id.items()}

    def complete_s(self, task_id: TaskId) -> float:
        """Return when this task lacked nothing last (`time.monotonic`); `-inf` if it is not followed."""
        found = self._by_id.get(task_id)
        return -math.inf if found is None else found.complete_s

    def close(self) -> None:
        self.drop(self.begun)
        self._follower.close()

    def _add_anew(self, task_ids: Collection[TaskId]) -> None:
        self.drop(task_ids)
        for task_id in task_ids:
            self.add(task_id)

    def _pause(self, task_id: TaskId, error: StatelineError) -> None:
        level, pause_s = (logging.INFO, _RETRY_S) if isinstance(error, RetryLaterError) else (logging.WARNING, _PAUSE_S)
        _log.log(level, "Task %s is not followed for %g s: %s", task_id, pause_s, error)
        self._paused_until_s[task_id] = time.monotonic() + pause_s
        self._close([task_id])  # without a commit: half of the last slice may be staged

    def _look(self) -> None:
        self._looks_s = time.monotonic() + _LOOK_INTERVAL_S
        try:
            ids = self._ids(topic for task in self.tasks for topic in task.topology.log_topics())
        except RetryLaterError as error:
            _log.debug("Whether topics are still the same ones is not known now: %s", error)
            return
        changed = {topic for topic, topic_id in self._topic_ids.items() if ids.get(topic, topic_id) != topic_id}
        self._add_anew([t.id for t in self.tasks if not changed.isdisjoint(t.topology.log_topics())])

    def _ids(self, topics: Iterable[str]) -> dict[str, str]:
        return {name: info.topic_id for name, info in self._context.admin.topics(sorted({*topics})).items()}

    def _read(self) -> int:
        slices = self._follower.poll()
        now_s = time.monotonic()
        limits = self._limits() if now_s >= self._limits_s else {}
        is_due = now_s >= self._commits_s
        if is_due:
            self._commits_s = now_s + _COMMIT_INTERVAL_S
        places = {log: self._place(log) for log in (self._logs() if is_due else slices)}
        for task_id, each in list(self._by_id.items()):
            try:
                for store in each.stores:
                    store.limit = limits.get(store.changelog, store.limit)
                    if store.changelog in places:
                        store.read(slices.get(store.changelog, []), *places[store.changelog])
                    if is_due:
                        store.commit_whole()
                if is_due and self._lag(each) == 0:
                    each.complete_s = now_s
                if is_due and not each.is_upgraded and self._is_close(each) and each.is_past_plain_files():
                    self._upgraded(each)
            except StatelineError as error:
                self._pause(task_id, error)
            except BaseException:  # of a serde of the application's own, for instance
                self._close([task_id])  # without a commit, as in `_pause`
                raise
        return self._follower.read

    def _upgraded(self, each: _Followed) -> None:
        next_offsets = {store.store.name: store.next_offset for store in each.stores}
        each.task.stores.formats.drop_plain(lambda name: next_offsets[name] - 1 if name in next_offsets else None)
        each.is_upgraded = True
        self.upgraded += 1
        _log.info("Standby %s is ready with timestamps", each.task.id)
        reached("standby:upgraded")

    def _logs(self) -> set[TopicPartition]:
        return {store.changelog for each in self._by_id.values() for store in each.stores}

    def _limits(self) -> Mapping[TopicPartition, int]:
        """Return the group's offsets of topics whose tables must not be ahead of it; none while Kafka is away."""
        self._limits_s = time.monotonic() + _LIMIT_INTERVAL_S
        sources = {store.changelog for each in self._by_id.values() for store in each.stores if store.limit is not None}
        try:
            return self._context.admin.committed(self._context.group, sources) if sources else {}
        except RetryLaterError as error:
            _log.debug("How far the group has come is not known now: %s", error)
            return {}

    def _starts(self) -> Iterator[tuple[TopicPartition, int]]:
        return ((store.changelog, store.reads_from) for each in self._by_id.values() for store in each.stores)

    def _lag(self, each: _Followed) -> int | None:
        """Return how many records the store that is furthest behind may take and lacks; None for unknown."""
        if not self._follower.is_current:
            return None
        lags = [0 if store.is_ahead else self._follower.lag(store.changelog) for store in each.stores]
        remaining = max((store.remaining for store in each.stores), default=0)
        return None if None in lags else max([remaining, *(lag for lag in lags if lag is not None)])

    def _place(self, log: TopicPartition) -> tuple[int, int | None]:
        """Return the next offset (-1 before the first record) and the end of the log when it was read (None:
        unknown)."""
        at, lag = self._follower.next_offset(log), self._follower.lag(log)
        if at is None or lag is None:
            return -1, None
        return at, at + lag
