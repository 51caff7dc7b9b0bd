"""Tasks that begin with their stores from a backup (``backup.location``), because this node has none of them.

A task that the group gives to this worker is looked up in the backups before it is opened. Threads fetch its files,
while the worker processes other tasks and stays in its group. Then the task is opened as any other: it reads each
changelog from the offset in the files on. Without a usable backup, the changelogs are read from the beginning.

The files arrive in a directory of this worker (`store_copies`). Other workers of the node may fetch the same task: the
first one places its files, under the task's lock. A fetch stops when the worker loses the task or ends. A later fetch
of this worker continues with its files.

| the task                                      | is opened                                               |
|-----------------------------------------------|---------------------------------------------------------|
| has stores on this disk, or nothing to fetch  | at once                                                 |
| has a backup                                  | when the files are here, checked and placed             |
| has none, a damaged one, or one of a topic    | when that is known; the next older backup is tried      |
| that was created again                        | first                                                   |
| has stores without a changelog, and the       | when the location answers: it asks again after a pause. |
| location or the disk refuses                  | Only a backup brings these rows                         |
| has none of these, and they refuse            | at once: a backup only saves time                       |
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import NamedTuple

from stateline.backup.declared_parts import (
    as_declared,
    made_from,
    replaced_topics,
    undeclared,
    unlogged_stores,
    without_forgotten,
)
from stateline.backup.location import BackupLocation
from stateline.backup.reading import backups, declared, place, tasks
from stateline.deployment.stores.resets import Reset, without_stale
from stateline.model.internal_topics import ConfiguredTopics
from stateline.worker.context import WorkerContext
from stateline.worker.tasks.task import Task
from stateline_store import (
    DamagedDataError,
    DoesNotExistError,
    LockedError,
    NewerFormatError,
    RetryLaterError,
    TopologyError,
)
from stateline_store.files.directory import has_stores
from stateline_store.snapshots.backup import Backup
from stateline_store.task_id import TaskId

_log = logging.getLogger(__name__)

_AT_ONCE = 2  # tasks; each fetches several files at once
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0  # each is twice the one before


class _Fetch(NamedTuple):
    running: Future[None]
    stopped: Event


class BackedUpTasks:
    """One per worker, for its thread. Without ``backup.location`` it fetches nothing."""

    def __init__(self, context: WorkerContext) -> None:
        """Raises `ConfigurationError` as `BackupLocation`."""
        self.reset: Reset | None = None  # the newest: rows from before it are not taken
        self._topology, self._directory = context.topology, context.directory
        self._configured = ConfiguredTopics.of(context.config)
        self._instance = context.files.registration.instance
        url = context.config.backup_location
        self._location = None if url is None else BackupLocation(url, self._topology.application_id)
        self._threads: ThreadPoolExecutor | None = None
        self._fetching: dict[TaskId, _Fetch] = {}  # with those that are stopped and have not ended yet
        self._refused: dict[TaskId, tuple[float, float]] = {}  # when it asks again, and the pause until then
        self._looked_at: set[TaskId] = set()

    def is_ready(self, task: Task, ids: Mapping[str, str]) -> bool:
        """Whether the task may be opened now. If not, its files are on the way: ask again. `ids` are the topic ids
        now."""
        if self._location is None or task.id in self._looked_at:
            return True
        if task.id in self._fetching and self._fetching[task.id].stopped.is_set():
            if not self._fetching[task.id].running.done():
                return False  # both would write the same files
            del self._fetching[task.id]
        if task.id not in self._fetching:
            if has_stores(task.directory) or not declared(self._topology, str(task.id)):
                return self._has_looked_at(task.id)
            if time.monotonic() < self._refused.get(task.id, (0.0, 0.0))[0]:
                return False
            self._threads = self._threads or ThreadPoolExecutor(_AT_ONCE, "backup")
            stopped = Event()
            running = self._threads.submit(self._fetch, self._location, str(task.id), dict(ids), stopped)
            self._fetching[task.id] = _Fetch(running, stopped)
        if not self._fetching[task.id].running.done():
            return False
        error = self._fetching.pop(task.id).running.exception()
        if isinstance(error, _NotYetError):
            pause_s = min(2 * self._refused.get(task.id, (0.0, _FIRST_PAUSE_S / 2))[1], _LONGEST_PAUSE_S)
            self._refused[task.id] = time.monotonic() + pause_s, pause_s
            _log.warning("Task %s waits for its backup and asks again in %g s: %s", task.id, pause_s, error)
            return False
        if error is not None:
            _log.error("Task %s is read from its changelogs alone", task.id, exc_info=error)
        return self._has_looked_at(task.id)

    def forget(self, task_id: TaskId) -> None:
        """The worker has lost this task. Stop its fetch, without waiting. Its files stay for a later one."""
        if task_id in self._fetching:
            self._fetching[task_id].stopped.set()
        self._looked_at.discard(task_id)
        self._refused.pop(task_id, None)

    def close(self) -> None:
        """Stop running fetches. Waits for the answers that the location owes."""
        for each in self._fetching.values():
            each.stopped.set()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def _has_looked_at(self, task_id: TaskId) -> bool:
        self._looked_at.add(task_id)
        self._refused.pop(task_id, None)
        return True

    def _fetch(self, location: BackupLocation, task_id: str, ids: Mapping[str, str], stopped: Event) -> None:
        """Place the stores of the newest usable backup, if there is one. Raises `_NotYetError`."""
        unlogged, seen = ", ".join(unlogged_stores(self._topology, task_id)), 0
        try:
            for whole in backups(location):
                backup = without_stale(as_declared(whole, self._topology), self.reset)
                seen += task_id in tasks(backup)
                fits = task_id in tasks(backup) and not replaced_topics(backup, task_id, self._topology, ids)
                if stopped.is_set():
                    return
                if fits and self._placed(location, backup, task_id, ids, stopped):
                    if why := undeclared(whole, self._topology, TaskId.parse(task_id).partition):
                        _log.info("Task %s: %s", task_id, why)
                    return
            since = "" if self.reset is None else " since it was reset"
            why = f"{location.url} has {'no usable' if seen else 'no'} backup of it{since}"
        except LockedError as error:
            raise _NotYetError(str(error)) from error  # that process may place them
        except (RetryLaterError, DoesNotExistError, OSError) as error:  # the location, or the disk
            if stopped.is_set():
                return
            if unlogged:
                raise _NotYetError(
                    f"{error} Only a backup has the rows of {unlogged}, without a changelog. To start without these "
                    "rows, unset backup.location."
                ) from error
            why = str(error)
        _log.info("Task %s is read from its changelogs alone: %s", task_id, why)
        if unlogged and seen:
            _log.warning("Task %s begins without the rows of %s: they have no changelog.", task_id, unlogged)

    def _placed(
        self, location: BackupLocation, backup: Backup, task_id: str, ids: Mapping[str, str], stopped: Event
    ) -> bool:
        began_s = time.monotonic()
        try:
            taken, partly = without_forgotten(backup, task_id, self._topology, self._configured)
            made_of = made_from(taken, task_id, self._topology, ids)
            here = self._topology, self._directory, made_of, self._instance
            size = place(location, taken, task_id, *here, stopped)
        except (DamagedDataError, DoesNotExistError, NewerFormatError, TopologyError) as error:
            _log.warning("Task %s cannot begin with the backup %s: %s", task_id, backup.id, error)
            return False
        if size is None:
            return False
        took_s = time.monotonic() - began_s
        _log.info("Task %s begins with the backup %s: %d bytes in %.1f s", task_id, backup.id, size, took_s)
        if partly:
            _log.warning("Task %s: %s", task_id, partly)
        return True


class _NotYetError(RetryLaterError):
    """Another process has the task, or the location or the disk refuses and only a backup has rows of this task."""
