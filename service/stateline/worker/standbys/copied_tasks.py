"""Tasks whose stores come from another node's files before they are followed: an acceleration, and never a condition.

A standby that would have to read much from the beginning asks for the files of a live copy elsewhere. The server of
this node fetches them (`server/copies`), for it has the links; it sees in this worker's status what is wanted, says now
and then that it is at it, and when that has ended. Then the stores take their place, if they are whole and of the same
topics, and the rest is read from the changelogs, from the offsets that the files say themselves.

| while a task waits                           | then                                                          |
|----------------------------------------------|---------------------------------------------------------------|
| nobody has taken it up for `_TAKEN_UP_S`     | it is followed without: there is no server, or no other node  |
| whoever had says nothing for `_SILENT_S`     | the same                                                      |
| it has ended, whole or not                   | it is followed: what is whole is placed first                 |

Each task is asked for once in a worker's life; what has arrived when a worker or a server dies is gone on with.
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
from stateline_store.store_copies import CopyDirectory
from stateline_store.task_id import TaskId

_log = logging.getLogger(__name__)

_TAKEN_UP_S = 10.0
_SILENT_S = 40.0
# So many times what a standby may lack and has caught up nevertheless is worth the while.
_MUCH = 100
_PLACED = "goes on from the files of another node"
_NOT_PLACED = "is read from its changelogs alone: the files that came are of other topics, or it has stores already"


@dataclass(slots=True)
class _Waiting:
    stores: Sequence[str]
    until_s: float
    has_ended: bool = False


class CopiedTasks:
    """One worker's, on its thread. `acceptable_lag`: ``acceptable.recovery.lag``."""

    def __init__(self, directory: StateDirectory, acceptable_lag: int) -> None:
        self._directory = directory
        self._much = _MUCH * acceptable_lag
        self._waiting: dict[TaskId, _Waiting] = {}
        self._asked: set[TaskId] = set()
        self._whole: set[TaskId] = set()
        self.heard = 0
        """How often somebody has said that a copy goes on."""

    @property
    def waiting(self) -> Collection[TaskId]:
        """Those that wait for their stores."""
        return self._waiting.keys()

    def wanted(self) -> dict[str, list[str]]:
        """By task the stores that are to be fetched."""
        return {str(task_id): list(each.stores) for task_id, each in self._waiting.items() if not each.has_ended}

    def ask_for(self, task: Task, stores: Sequence[StandbyStore]) -> bool:
        """Whether this standby, which is open, waits for files from now on: its stores have nothing, and much is to be
        read. They are deleted then, and the task is to be closed and begun anew when its turn comes (`ended`)."""
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
        """Whoever fetches says how that goes."""
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
        """Those whose waiting has ended, which they do not any more."""
        now_s = time.monotonic()
        found = [task_id for task_id, each in self._waiting.items() if each.has_ended or now_s > each.until_s]
        for task_id in found:
            if not self._waiting.pop(task_id).has_ended:
                _log.info("Task %s is read from its changelogs alone: no server of this node fetches it", task_id)
        return found

    def give_up(self, task_id: TaskId) -> None:
        """It is not followed here any more."""
        self._waiting.pop(task_id, None)

    def place(self, task_id: TaskId, topic_ids: Callable[[], Mapping[str, str]]) -> bool:
        """Let the stores that have come for it take their place, if they were made from these topics; whether they did.
        What keeps them from it is said in the log: the task is followed without. Raises as `topic_ids`."""
        if task_id not in self._whole:
            return False
        ids = topic_ids()
        try:
            with self._directory.lock_task(str(task_id)):
                task = self._directory.task(str(task_id))
                placed = CopyDirectory(self._directory.application, str(task_id)).place(task, ids)
        except LockedError:  # it cannot be followed either, until later
            return False
        except RetryLaterError as error:
            self._whole.discard(task_id)
            _log.warning("The files that have come for task %s are not used: %s", task_id, error)
            return False
        self._whole.discard(task_id)
        _log.info("Task %s %s", task_id, _PLACED if placed else _NOT_PLACED)
        return placed
