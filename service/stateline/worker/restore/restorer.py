"""Restores tasks from their changelogs, in slices. Between slices the worker answers queries and polls its group.

Records that are deleted before they are read, by retention or by hand, are not passed over. The consumer fails, the
worker starts over, and the plan finds the store's offset before the log's first record. `restore_plan` decides what is
read, and `store_restore` what a store takes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from stateline.log.interface import Log
from stateline.worker.restore.changelog_follower import ChangelogFollower
from stateline.worker.restore.restore_plan import TaskPlan
from stateline.worker.restore.store_restore import StoreRestore
from stateline.worker.tasks.task import Task
from stateline_store import DoesNotExistError, LogUnavailableError, TopicPartition
from stateline_store.steps import reached
from stateline_store.task_id import TaskId

logger = logging.getLogger(__name__)


class Restorer:
    def __init__(self, log: Log, count: Callable[[int], None] | None = None, level: int = logging.INFO) -> None:
        """`count` gets the number of records of each slice. `level` is that of messages when a restore begins and
        ends."""
        self._follower = ChangelogFollower(log, self._starts)
        self._count = count
        self._level = level
        self._tasks: dict[TaskId, tuple[Task, TaskPlan]] = {}

    def add(self, task: Task, task_plan: TaskPlan) -> None:
        for restore in task_plan.restores:
            if task.taken_over_s is None:  # a former standby lacks the newest commits at most, and can be read
                restore.say_remaining()
            # A single offset is most often the marker of the last commit, and not worth a message.
            level = self._level if restore.remaining > 1 else logging.DEBUG
            logger.log(level, "Restoring %s of task %s: %d offsets", restore.store.name, task.id, restore.remaining)
        reached("restore:begun")
        self._tasks[task.id] = (task, task_plan)
        self._follower.change()

    def remove(self, task_id: TaskId) -> None:
        """Forget a task. Records since its last batch are not committed, because nobody would continue, and readers
        would keep rows that are ahead of their Position. Its next owner reads them again."""
        if self._tasks.pop(task_id, None) is not None:
            self._follower.change()
            if not self._tasks:
                self.close()

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def advance(self, timeout_s: float) -> list[tuple[Task, TaskPlan]]:
        """Read and apply one slice. Returns the tasks that are restored now, with their plans. Raises `RetryLaterError`
        if the log has deleted the next record: the task must be planned again."""
        try:
            return self._advance(timeout_s)
        except DoesNotExistError as error:  # a topic was deleted, and perhaps created again at once
            raise LogUnavailableError(str(error)) from error

    def _advance(self, timeout_s: float) -> list[tuple[Task, TaskPlan]]:
        pending = list(self._pending())
        if pending:
            slices = self._follower.poll(timeout_s)
            if self._count is not None:
                self._count(self._follower.read)
            for restore in pending:
                restore.apply(slices.get(restore.changelog, []))
                if not restore.remaining or self._follower.has_passed(restore.changelog, restore.end):
                    restore.finish(self._level)
                    self._follower.change()
        done = [(task, p) for task, p in self._tasks.values() if not any(r.remaining for r in p.restores)]
        for task, _ in done:
            del self._tasks[task.id]
        if not self._tasks:
            self.close()
        return done

    def close(self) -> None:
        self._follower.close()

    def _pending(self) -> Iterator[StoreRestore]:
        return (restore for _, p in self._tasks.values() for restore in p.restores if restore.remaining)

    def _starts(self) -> Iterator[tuple[TopicPartition, int]]:
        return ((restore.changelog, restore.next_offset) for restore in self._pending())
