"""Standbys: tasks that other nodes have, whose changelogs this worker follows without end.

They have a consumer of their own, take at most half of the thread's time, and nothing of the group. Their stores are
read as standbys by whoever accepts one, and when the group gives this worker such a task, it reads the rest and runs
(`task_manager`). Which ones a worker has decides `standby_assignment`.

Where stores get timestamps (`store_formats`), standbys build the timestamped files while owners elsewhere go on. The
plain ones stay as they were until these have more; then they are deleted, and the task is ready.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stateline.log.interface import Admin, Consumer, Log
from stateline.model.topology import Topology
from stateline.query.values import HostedPartition
from stateline.worker.files.figures import Figures
from stateline.worker.restore.polled_records import by_partition
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

_SLICE_RECORDS = 5_000
# How often what was read is committed, and so can be seen.
_COMMIT_INTERVAL_S = 0.1
# How often it is asked how far the group has come where tables must not be ahead of it.
_LIMIT_INTERVAL_S = 1.0
# What failed for a reason that lasts is tried again after so long.
_PAUSE_S = 30.0
_RETRY_S = 2.0
# How often it is looked whether topics are still the same ones.
_LOOK_INTERVAL_S = 60.0


@dataclass(slots=True)
class _Followed:
    task: Task
    stores: list[StandbyStore] = field(default_factory=list)
    complete_s: float = -math.inf  # when it lacked nothing last
    is_upgraded: bool = True  # its plain files are deleted, if it had any

    def is_past_plain_files(self) -> bool:
        formats = self.task.stores.formats
        return all(s.is_committed and s.next_offset > formats.outdated_offset(s.store.name) for s in self.stores)


class StandbyTasks:
    """One worker's, on its thread. `caught_up` says of a task whether it lacks at most as many records as
    ``acceptable.recovery.lag``."""

    def __init__(
        self,
        topology: Topology,
        log: Log,
        admin: Admin,
        settings: TaskSettings,
        acceptable_lag: int,
        figures: Figures,
        copies: CopiedTasks,
    ) -> None:
        self._subtopologies = {each.ordinal: each for each in topology.subtopologies}
        self._group = topology.application_id
        self._log = log
        self._admin = admin
        self._settings = settings
        self._acceptable_lag = acceptable_lag
        self._figures = figures
        self.upgraded = 0
        """How many have got their timestamped files here."""
        self._copies = copies
        self._consumer: Consumer | None = None
        self._by_id: dict[TaskId, _Followed] = {}
        self._paused_until_s: dict[TaskId, float] = {}
        self._is_to_assign = False
        self._is_full = False
        self._records = 0  # that were read since they were counted
        self._took_s = self._ended_s = 0.0
        self._reads_s = 0.0  # when it reads again after its consumer has failed
        self._commits_s = self._limits_s = self._looks_s = 0.0
        self._topic_ids: dict[str, str] = {}  # of what is followed

    @property
    def ids(self) -> Collection[TaskId]:
        """Those that it has."""
        return self._by_id.keys()

    @property
    def begun(self) -> Collection[TaskId]:
        """The same, with those that wait for files of another node."""
        return {*self._by_id, *self._copies.waiting}

    @property
    def tasks(self) -> list[Task]:
        """Those that it has, themselves."""
        return [each.task for each in self._by_id.values()]

    @property
    def heard_of_copies(self) -> int:
        """As `CopiedTasks.heard`."""
        return self._copies.heard

    @property
    def is_busy(self) -> bool:
        """Whether there is more to read at once."""
        is_behind = self._is_full or (self._is_to_assign and bool(self._by_id))
        return is_behind and time.monotonic() >= self._reads_s

    @property
    def _reading(self) -> Consumer | None:
        """The consumer; None while it does not read just what is followed."""
        return None if self._is_to_assign else self._consumer

    def hosted(self, store: str, partition: int) -> HostedPartition | None:
        """This partition of a store, to be queried as a standby; None when it is none of these."""
        for each in self._by_id.values():
            found = each.task.stores.by_name.get(store) if each.task.id.partition == partition else None
            if isinstance(found, TransactionalStore):
                copy = next((one for one in each.stores if one.store is found), None)
                if copy is None or not copy.is_whole:
                    return HostedPartition(found, StoreState.RESTORING)
                return HostedPartition(found, StoreState.STANDBY, copy.committed_offset)
        return None

    def add(self, task_id: TaskId) -> bool:
        """Follow this one too, perhaps from files of another node, for which it waits first. False when that cannot
        begin now: another process has its directory, or what kept it from being followed lasts."""
        if time.monotonic() < self._paused_until_s.get(task_id, 0.0):
            return False
        task = Task(self._subtopologies[task_id.subtopology], task_id.partition, self._settings)
        try:
            self._copies.place(task_id, lambda: self._ids(task.topology.log_topics()))
            task.follow()
        except LockedError as error:
            _log.debug("Standby %s waits: %s", task_id, error)
            return False
        except StatelineError as error:
            self._pause(task_id, error)
            return False
        self._by_id[task_id] = _Followed(task)
        self._is_to_assign = True
        try:
            ids = self._ids(task.topology.log_topics())
            self._topic_ids |= ids
            task.settle_topics(ids)
            stores = self._by_id[task_id].stores = followed(task, self._admin, self._group)
            if self._copies.ask_for(task, stores):
                del self._by_id[task_id]
                task.close()
                return True
            self._by_id[task_id].is_upgraded = not task.stores.formats.has_plain
            if task.stores.formats.has_plain:
                _log.info("Standby %s builds timestamped files: its plain ones stay until they are complete", task_id)
            task.give_back()  # others own it: what was left of an earlier restore stays as it was said
        except StatelineError as error:
            self._pause(task_id, error)
            return False
        reached("standby:opened")
        return True

    def drop(self, task_ids: Iterable[TaskId]) -> None:
        """Follow these no more: their directories are let go."""
        dropped: list[Task] = []
        for task_id in list(task_ids):
            self._copies.give_up(task_id)
            if (found := self._by_id.pop(task_id, None)) is not None:
                self._is_to_assign = True
                with contextlib.suppress(StatelineError):  # it is read again
                    for store in found.stores:
                        store.let_go()
                dropped.append(found.task)
        for _, error in close_together(dropped):
            if not isinstance(error, StatelineError | None):  # the disk takes nothing: what it has is there
                raise error

    def take(self, task_id: TaskId) -> Task | None:
        """The group has given this one to the worker: it is not followed any more, but open. None when it was not, or
        is to be opened on its plain files."""
        self._copies.give_up(task_id)
        found = self._by_id.pop(task_id, None)
        if found is None:
            return None
        self._is_to_assign = True
        try:
            for store in found.stores:
                store.let_go()
        except StatelineError as error:  # it is opened anew, as any other
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
        """Read and apply one slice, and commit when that is due; `beside_work`, in half of the time at most."""
        for task_id in self._copies.ended():
            self.add(task_id)
        now_s = time.monotonic()
        rest_s = self._took_s if beside_work else 0.0
        if not self._by_id or now_s - self._ended_s < rest_s or now_s < self._reads_s:
            return
        try:
            if now_s >= self._looks_s:
                self._look()
            self._read()
        except (LogUnavailableError, FencedError) as error:
            _log.info("Standbys are read by a new consumer in %g s: %s", _RETRY_S, error)
            self._reads_s = time.monotonic() + _RETRY_S
            self._give_up_consumer()
        except (RetryLaterError, DoesNotExistError) as error:
            _log.info("Standbys are planned again: %s", error)
            self._add_anew(list(self._by_id))
        self._ended_s = time.monotonic()
        self._took_s = self._ended_s - now_s
        self._figures.followed(self._records, self._took_s)
        self._records = 0

    def caught_up(self) -> set[TaskId]:
        """Those that have."""
        if (consumer := self._reading) is None:
            return set()
        return {task_id for task_id, each in self._by_id.items() if each.is_upgraded and self._is_close(each, consumer)}

    def _is_close(self, each: _Followed, consumer: Consumer) -> bool:
        lag = _lag(each.stores, consumer)
        return lag is not None and lag <= self._acceptable_lag

    def total_lag(self) -> int | None:
        """How many records all of them lack together; None while that is not known."""
        if (consumer := self._reading) is None:
            return None
        lags = [_lag(each.stores, consumer) for each in self._by_id.values()]
        return None if None in lags else sum(lag for lag in lags if lag is not None)

    def lags(self) -> dict[TaskId, int | None]:
        """How many records each of them lacks, as of now; None for unknown."""
        consumer = self._reading
        return {
            task_id: None if consumer is None else _lag(each.stores, consumer) for task_id, each in self._by_id.items()
        }

    def complete_s(self, task_id: TaskId) -> float:
        """When all was committed that this one is to have (`time.monotonic`); of none that it has, long ago."""
        found = self._by_id.get(task_id)
        return -math.inf if found is None else found.complete_s

    def close(self) -> None:
        """Let go of all of them."""
        self.drop(self.begun)
        self._close_consumer()

    def _add_anew(self, task_ids: Collection[TaskId]) -> None:
        self.drop(task_ids)
        for task_id in task_ids:
            self.add(task_id)

    def _pause(self, task_id: TaskId, error: StatelineError) -> None:
        level, pause_s = (logging.INFO, _RETRY_S) if isinstance(error, RetryLaterError) else (logging.WARNING, _PAUSE_S)
        _log.log(level, "Task %s is not followed for %g s: %s", task_id, pause_s, error)
        self._paused_until_s[task_id] = time.monotonic() + pause_s
        self.drop([task_id])

    def _look(self) -> None:
        """Begin anew with those of whose topics one was deleted and created anew."""
        self._looks_s = time.monotonic() + _LOOK_INTERVAL_S
        try:
            ids = self._ids(topic for task in self.tasks for topic in task.topology.log_topics())
        except RetryLaterError as error:
            _log.debug("Whether topics are still the same ones is not known now: %s", error)
            return
        changed = {topic for topic, topic_id in self._topic_ids.items() if ids.get(topic, topic_id) != topic_id}
        self._add_anew([t.id for t in self.tasks if not changed.isdisjoint(t.topology.log_topics())])

    def _ids(self, topics: Iterable[str]) -> dict[str, str]:
        return {name: info.topic_id for name, info in self._admin.topics(sorted({*topics})).items()}

    def _read(self) -> None:
        consumer = self._assigned()
        if consumer is None:
            return
        records = consumer.poll(_SLICE_RECORDS, 0.0)
        self._records = len(records)
        self._is_full = self._records > _SLICE_RECORDS // 2
        slices = by_partition(records)
        now_s = time.monotonic()
        limits = self._limits() if now_s >= self._limits_s else {}
        is_due = now_s >= self._commits_s
        if is_due:
            self._commits_s = now_s + _COMMIT_INTERVAL_S
        places = {log: _place(consumer, log) for log in (self._logs() if is_due else slices)}
        for task_id, each in list(self._by_id.items()):
            try:
                for store in each.stores:
                    store.limit = limits.get(store.changelog, store.limit)
                    if store.changelog in places:
                        store.read(slices.get(store.changelog, []), *places[store.changelog])
                    if is_due:
                        store.commit_whole()
                if is_due and _lag(each.stores, consumer) == 0:
                    each.complete_s = now_s
                if is_due and not each.is_upgraded and self._is_close(each, consumer) and each.is_past_plain_files():
                    self._upgraded(each)
            except StatelineError as error:
                self._pause(task_id, error)

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
        """Where tables must not be ahead of the group: how far that has come; nothing while Kafka does not say."""
        self._limits_s = time.monotonic() + _LIMIT_INTERVAL_S
        sources = {store.changelog for each in self._by_id.values() for store in each.stores if store.limit is not None}
        try:
            return self._admin.committed(self._group, sources) if sources else {}
        except RetryLaterError as error:
            _log.debug("How far the group has come is not known now: %s", error)
            return {}

    def _assigned(self) -> Consumer | None:
        """The consumer, which reads each changelog from where the furthest behind of its stores stands."""
        if not self._is_to_assign:
            return self._consumer
        starts: dict[TopicPartition, int] = {}
        for each in self._by_id.values():
            for store in each.stores:
                starts[store.changelog] = min(starts.get(store.changelog, store.reads_from), store.reads_from)
        self._is_to_assign = self._is_full = False
        if not starts:
            self._close_consumer()
        else:
            self._consumer = self._consumer or self._log.consumer(auto_offset_reset="error")
            self._consumer.assign(starts)
        return self._consumer

    def _give_up_consumer(self) -> None:
        """What it had read, and what is not known to have come, its successor reads: from where each store stands."""
        self._is_to_assign = True
        with contextlib.suppress(StatelineError):
            self._close_consumer()

    def _close_consumer(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()


def _lag(stores: Sequence[StandbyStore], consumer: Consumer) -> int | None:
    """How many records the one that is furthest behind lacks, of those that it may take; None for unknown."""
    lags = [0 if store.is_ahead else consumer.lag(store.changelog) for store in stores]
    remaining = max((store.remaining for store in stores), default=0)
    return None if None in lags else max([remaining, *(lag for lag in lags if lag is not None)])


def _place(consumer: Consumer, log: TopicPartition) -> tuple[int, int | None]:
    """Where it goes on, -1 before anything has come, and where the log ended when it was read last, None if unknown."""
    at, lag = consumer.next_offset(log), consumer.lag(log)
    if at is None or lag is None:
        return -1, None
    return at, at + lag
