"""Standbys that begin with another node's files. This saves time only: a standby never depends on it.

A standby with much to read from the beginning asks for the files of a live copy elsewhere. This node's server has the
links, so it fetches them (`server/copies`). It reads the wanted tasks in this worker's status, reports progress, and
says when a copy has ended. Whole stores of the same topics are placed then. The rest comes from their changelogs, from
the offsets in the files.

| while a task waits                           | then                                                          |
|----------------------------------------------|---------------------------------------------------------------|
| no server takes it up for `_TAKEN_UP_S`      | it is followed without files: no server, or no other node     |
| the server says nothing for `_SILENT_S`      | the same                                                      |
| the copy ends, whole or not                  | it is followed; whole stores are placed first                 |

A worker asks once for each task. Files that have arrived when a worker or a server dies are used.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stateline.worker.standbys.standby_store import StandbyStore
from stateline.worker.tasks.task import Task
from stateline_store import LockedError, RetryLaterError, StateDirectory, TransactionalStore
from stateline_store.snapshots.store_copies import CopyDirectory
from stateline_store.task_id import TaskId

_log = logging.getLogger(__name__)

_TAKEN_UP_S = 10.0
_SILENT_S = 40.0
# Files are copied only if the lag exceeds this multiple of `acceptable.recovery.lag`.
_MUCH = 100
_PLACED = "goes on from the files of another node"
_NOT_PLACED = "is read from its changelogs alone: the files that came are of other topics, or it has stores already"


@dataclass(slots=True)
class _Waiting:
    stores: Sequence[str]
    until_s: float
    has_ended: bool = False


class CopiedTasks:
    def __init__(self, directory: StateDirectory, acceptable_lag: int) -> None:
        self._directory = directory
        self._much = _MUCH * acceptable_lag
        self._waiting: dict[TaskId, _Waiting] = {}
        self._asked: set[TaskId] = set()
        self._whole: set[TaskId] = set()
        self.heard = 0
        """How often a server has reported progress."""

    @property
    def waiting(self) -> Collection[TaskId]:
        return self._waiting.keys()

    def wanted(self) -> dict[str, list[str]]:
        return {str(task_id): list(each.stores) for task_id, each in self._waiting.items() if not each.has_ended}

    def ask_for(self, task: Task, stores: Sequence[StandbyStore]) -> bool:
        """Return whether this open standby waits for files: its stores are empty, with much to read. They are deleted
        then. The caller closes the task, and opens it again when `ended` returns it."""
        names = [
            each.store.name for each in stores if isinstance(each.store, TransactionalStore) and each.store.persistent
        ]
        is_new = all(task.stores.offsets.committed(name) is None for name in names)
        much = sum(each.remaining for each in stores if each.store.name in names) > self._much
        upgrades = task.settings.upgrade_mode is not None or task.stores.formats.has_plain
        if not names or not is_new or not much or upgrades or task.id in self._asked:
            return False
        self._asked.add(task.id)
        for name in names:
            task.stores.wipe(name)
        self._waiting[task.id] = _Waiting(names, time.monotonic() + _TAKEN_UP_S)
        return True

    def hear(self, message: Mapping[str, Any]) -> None:
        """A server reports on a copy (`query.wire`)."""
        task_id = next((task_id for task_id in self._waiting if str(task_id) == message.get("task")), None)
        if task_id is None or (waiting := self._waiting[task_id]).has_ended:
            return
        self.heard += 1
        waiting.until_s = time.monotonic() + _SILENT_S
        if message.get("ended"):
            waiting.has_ended = True
            if why := message.get("why"):
                _log.info("Task %s is read from its changelogs alone: %s", task_id, why)
            else:
                self._whole.add(task_id)

    def ended(self) -> list[TaskId]:
        """Return the tasks whose waiting has ended, once."""
        now_s = time.monotonic()
        found = [task_id for task_id, each in self._waiting.items() if each.has_ended or now_s > each.until_s]
        for task_id in found:
            if not self._waiting.pop(task_id).has_ended:
                _log.info("Task %s is read from its changelogs alone: no server of this node fetches it", task_id)
        return found

    def give_up(self, task_id: TaskId) -> None:
        self._waiting.pop(task_id, None)

    def place(self, task_id: TaskId, topic_ids: Callable[[], Mapping[str, str]]) -> bool:
        """Place the stores that were fetched, if they were made from these topics. Returns whether they were placed.
        Otherwise the log says why, and the task is followed without them. Raises as `topic_ids`."""
        if task_id not in self._whole:
            return False
        ids = topic_ids()
        try:
            with self._directory.lock_task(str(task_id)):
                task = self._directory.task(str(task_id))
                placed = CopyDirectory(self._directory.application, str(task_id)).place(task, ids)
        except LockedError:  # it cannot be followed now either
            return False
        except RetryLaterError as error:
            self._whole.discard(task_id)
            _log.warning("The files that have come for task %s are not used: %s", task_id, error)
            return False
        self._whole.discard(task_id)
        _log.info("Task %s %s", task_id, _PLACED if placed else _NOT_PLACED)
        return placed
