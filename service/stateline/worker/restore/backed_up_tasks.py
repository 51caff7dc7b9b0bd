"""Tasks that begin with their stores from a backup (``backup.location``), because this node has none of them.

A task that the group gives to this worker is looked up in the backups before it is opened. Threads fetch its files,
while the worker processes other tasks and stays in its group. Then the task is opened as any other: it reads each
changelog from the offset in the files on. A backup only saves time. Without a usable one, the changelogs are read from
the beginning.

| the task                                      | is opened                                               |
|-----------------------------------------------|---------------------------------------------------------|
| has stores on this disk, or nothing to fetch  | at once                                                 |
| has a backup                                  | when the files are here, checked and placed             |
| has none, a damaged one, or one of a topic    | when that is known; the next older backup is tried      |
| that was created again                        | first                                                   |
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from stateline.backup.location import BackupLocation
from stateline.backup.reading import backups, declared, place, refuse_forgotten, tasks
from stateline.config.settings import Config
from stateline.model.internal_topics import ConfiguredTopics
from stateline.model.topology import Topology
from stateline.worker.tasks.task import Task
from stateline_store import (
    DamagedDataError,
    DoesNotExistError,
    LockedError,
    StateDirectory,
    StatelineError,
)
from stateline_store.snapshots.backup import Backup
from stateline_store.task_id import TaskId

_log = logging.getLogger(__name__)

_AT_ONCE = 2  # tasks; each reads one file at a time
_MOST_TRIED = 5  # backups of a task


class BackedUpTasks:
    """One per worker, for its thread. Without ``backup.location`` it fetches nothing."""

    def __init__(self, config: Config, topology: Topology, directory: StateDirectory) -> None:
        """Raises `ConfigurationError` as `BackupLocation`."""
        self._topology, self._directory = topology, directory
        self._configured = ConfiguredTopics.of(config)
        url = config.backup_location
        self._location = None if url is None else BackupLocation(url, topology.application_id)
        self._threads: ThreadPoolExecutor | None = None
        self._fetching: dict[TaskId, Future[bool]] = {}
        self._looked_at: set[TaskId] = set()

    def is_ready(self, task: Task, ids: Mapping[str, str]) -> bool:
        """Whether the task may be opened now. If not, its files are on the way: ask again. `ids` are the topic ids
        now."""
        if self._location is None or task.id in self._looked_at:
            return True
        if task.id not in self._fetching:
            if (task.directory / "rocksdb").exists() or not declared(self._topology, str(task.id)):
                self._looked_at.add(task.id)
                return True
            self._threads = self._threads or ThreadPoolExecutor(_AT_ONCE, "backup")
            own = {topic: ids.get(topic, "") for topic in task.topology.log_topics()}
            self._fetching[task.id] = self._threads.submit(self._fetch, self._location, str(task.id), own)
        if not self._fetching[task.id].done():
            return False
        self._looked_at.add(task.id)
        found = self._fetching.pop(task.id)
        if (error := found.exception()) is not None:
            _log.error("Task %s is read from its changelogs alone", task.id, exc_info=error)
        return True

    def forget(self, task_id: TaskId) -> None:
        """The worker has lost this task. A running fetch ends by itself."""
        self._looked_at.discard(task_id)

    def close(self) -> None:
        """Wait for running fetches."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def _fetch(self, location: BackupLocation, task_id: str, ids: Mapping[str, str]) -> bool:
        """Place the stores of the newest usable backup. Returns whether there was one."""
        tried = 0
        try:
            for backup in backups(location):
                if task_id in tasks(backup) and _are_of(backup, ids):
                    tried += 1
                    if self._placed(location, backup, task_id, ids):
                        return True
                    if tried >= _MOST_TRIED:
                        break
            why = f"{tried} backups of it cannot be used" if tried else f"{location.url} has no backup of it"
        except StatelineError as error:
            why = str(error)
        _log.info("Task %s is read from its changelogs alone: %s", task_id, why)
        return False

    def _placed(self, location: BackupLocation, backup: Backup, task_id: str, ids: Mapping[str, str]) -> bool:
        began_s = time.monotonic()
        try:
            refuse_forgotten(backup, task_id, self._topology, self._configured)
            size = place(location, backup, task_id, self._topology, self._directory, ids)
        except (DamagedDataError, DoesNotExistError, LockedError) as error:
            _log.warning("Task %s cannot begin with the backup %s: %s", task_id, backup.id, error)
            return False
        if size is None:
            return False
        took_s = time.monotonic() - began_s
        _log.info("Task %s begins with the backup %s: %d bytes in %.1f s", task_id, backup.id, size, took_s)
        return True


def _are_of(backup: Backup, ids: Mapping[str, str]) -> bool:
    """Whether the stores were made from these topics."""
    return all(backup.copy.topics.get(topic) == topic_id for topic, topic_id in ids.items())
