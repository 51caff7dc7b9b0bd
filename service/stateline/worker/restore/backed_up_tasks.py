"""Tasks that begin with their stores from a backup (``backup.location``), because this node has none of them. Of a
former standby, the stores without a changelog are missing.

A task that the group gives to this worker is looked up in the backups before it is opened. Threads fetch its files,
while the worker processes other tasks and stays in its group. Then the task is opened as any other: it reads each
changelog from the offset in the files on. Without a usable backup, the changelogs are read from the beginning.

The files arrive in a directory of this worker (`store_copies`). Other workers of the node may fetch the same task: the
first one places its files, under the task's lock. A fetch stops when the worker loses the task or ends. A later fetch
of this worker continues with its files.

| the task                                      | is opened                                               |
|-----------------------------------------------|---------------------------------------------------------|
| has stores on this disk, or nothing to fetch  | at once, if each store without a changelog was          |
|                                               | committed here. A standby commits none                  |
| has a backup                                  | when the missing files are here, checked and placed     |
| has none, a damaged one, or one of a topic    | when that is known; the next older backup is tried      |
| that was created again                        | first                                                   |
| has stores without a changelog, and the       | when the location answers: it asks again after a pause. |
| location or the disk refuses                  | Only a backup brings these rows                         |
| has none of these, and they refuse            | at once: a backup only saves time                       |
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
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
from stateline.deployment.stores.discarding import store_places
from stateline.deployment.stores.resets import Reset, without_stale
from stateline.model.internal_topics import ConfiguredTopics
from stateline.model.store_definition import StoreDefinition
from stateline.model.topology import Topology
from stateline.worker.context import WorkerContext
from stateline.worker.tasks.task import Task
from stateline_store import (
    DamagedDataError,
    DoesNotExistError,
    LockedError,
    NewerFormatError,
    RetryLaterError,
    StateDirectory,
    StoreContext,
    TopologyError,
)
from stateline_store.files.directory import has_stores
from stateline_store.snapshots.backup import Backup
from stateline_store.stores.committed_store import CommittedStore
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
        now. Raises `LockedError` while another process has the task, and then may be asked again too."""
        if self._location is None or task.id in self._looked_at:
            return True
        if task.id in self._fetching and self._fetching[task.id].stopped.is_set():
            if not self._fetching[task.id].running.done():
                return False  # both would write the same files
            del self._fetching[task.id]
        if task.id not in self._fetching:
            names = unlogged_stores if has_stores(task.directory) else declared
            if not names(self._topology, str(task.id)):
                return self._has_looked_at(task.id)
            if time.monotonic() < self._refused.get(task.id, (0.0, 0.0))[0]:
                return False
            self._threads = self._threads or ThreadPoolExecutor(_AT_ONCE, "backup")
            stopped = Event()
            running = self._threads.submit(self._fetch, self._location, str(task.id), dict(ids), stopped)
            self._fetching[task.id] = _Fetch(running, stopped)
        if not self._fetching[task.id].running.done():
            return False
        return self._is_settled(task.id, self._fetching.pop(task.id).running.exception())

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

    def _is_settled(self, task_id: TaskId, error: BaseException | None) -> bool:
        """Whether the task may be opened after a fetch that ended with this error. Raises `LockedError`."""
        if isinstance(error, _NotYetError):
            pause_s = min(2 * self._refused.get(task_id, (0.0, _FIRST_PAUSE_S / 2))[1], _LONGEST_PAUSE_S)
            self._refused[task_id] = time.monotonic() + pause_s, pause_s
            _log.warning("Task %s waits for its backup and asks again in %g s: %s", task_id, pause_s, error)
            return False
        if isinstance(error, LockedError):
            raise error
        if error is not None:
            _log.error("Task %s is read from its changelogs alone", task_id, exc_info=error)
        return self._has_looked_at(task_id)

    def _has_looked_at(self, task_id: TaskId) -> bool:
        self._looked_at.add(task_id)
        self._refused.pop(task_id, None)
        return True

    def _fetch(self, location: BackupLocation, task_id: str, ids: Mapping[str, str], stopped: Event) -> None:
        """Place the missing stores of the newest usable backup, if there is one. Raises `_NotYetError`, and
        `LockedError` while another process has the task."""
        unlogged = unlogged_stores(self._topology, task_id)
        try:
            missing = self._missing(task_id)
            unlogged = [name for name in unlogged if name in missing]
            seen = self._place_newest(location, task_id, missing, ids, stopped)
            since = "" if self.reset is None else " since it was reset"
            why = f"{location.url} has {'no usable' if seen else 'no'} backup of it{since}"
        except LockedError:
            raise
        except (RetryLaterError, DoesNotExistError, OSError) as error:  # the location, or the disk
            if unlogged and not stopped.is_set():
                raise _NotYetError(
                    f"{error} Only a backup has the rows of {', '.join(unlogged)}, without a changelog. To start "
                    "without these rows, unset backup.location."
                ) from error
            seen, why = 0, str(error)
        if seen is None or stopped.is_set():
            return
        _log.info("Task %s is read from its changelogs alone: %s", task_id, why)
        if unlogged and seen:
            names = ", ".join(unlogged)
            _log.warning("Task %s begins without the rows of %s: they have no changelog.", task_id, names)

    def _place_newest(
        self, location: BackupLocation, task_id: str, missing: Collection[str], ids: Mapping[str, str], stopped: Event
    ) -> int | None:
        """Place these stores of the newest usable backup. Returns how many backups have them, if none can be used. None
        if they were placed, or nothing is missing."""
        seen = 0
        if not missing:
            return None
        for whole in backups(location):
            known = without_stale(as_declared(whole, self._topology), self.reset).of_task(task_id)
            backup = known.of_parts([part for part in known.copy.parts if part.store in missing])
            seen += task_id in tasks(backup)
            if stopped.is_set():
                break
            fits = task_id in tasks(backup) and not replaced_topics(backup, task_id, self._topology, ids)
            if fits and self._placed(location, backup, task_id, ids, stopped):
                if why := undeclared(whole, self._topology, TaskId.parse(task_id).partition):
                    _log.info("Task %s: %s", task_id, why)
                return None
        return seen

    def _missing(self, task_id: str) -> Collection[str]:
        """Return the stores to fetch: all if the task has none here, else those without a changelog that were never
        committed here, as of a standby. Deletes their empty files. Raises `LockedError` while another process has the
        task."""
        task = self._directory.task(task_id)
        if not has_stores(task):
            return declared(self._topology, task_id)
        with self._directory.lock_task(task_id):
            stores = [self._topology.stores[name] for name in unlogged_stores(self._topology, task_id)]
            return [store.name for store in stores if _is_missing(store, self._directory, task_id)]

    def _placed(
        self, location: BackupLocation, backup: Backup, task_id: str, ids: Mapping[str, str], stopped: Event
    ) -> bool:
        began_s, is_begun = time.monotonic(), has_stores(self._directory.task(task_id))
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
        names = ", ".join(sorted({part.store for part in taken.copy.parts}))
        how = f"takes {names} from" if is_begun else "begins with"
        _log.info("Task %s %s the backup %s: %d bytes in %.1f s", task_id, how, backup.id, size, took_s)
        if partly:
            _log.warning("Task %s: %s", task_id, partly)
        return True


def needs_backup(task: Task, topology: Topology) -> bool:
    """Return whether a store without a changelog of this open task was never committed here."""
    stores = (task.stores.by_name[name] for name in unlogged_stores(topology, str(task.id)))
    return any(isinstance(store, CommittedStore) and store.commit_number == 0 for store in stores)


def _is_missing(definition: StoreDefinition, directory: StateDirectory, task_id: str) -> bool:
    """Return whether this store of a locked task was never committed here. Deletes its empty files then."""
    own = directory.store(task_id, definition.name, timestamped=definition.timestamped)
    found = [place for place in store_places(directory, task_id, definition.name) if place.exists()]
    if found != [own]:
        return not found  # other files are for its opening to judge
    store = definition.build()
    assert isinstance(store, CommittedStore)
    try:
        store.init(StoreContext(task_id, directory.task(task_id), types=definition.types))
    except (DamagedDataError, TopologyError):
        return False  # its opening says so
    is_new = store.commit_number == 0
    store.close()
    if is_new:
        store.wipe()
    return is_new


class _NotYetError(RetryLaterError):
    """The location or the disk refuses, and only a backup has rows of this task."""
