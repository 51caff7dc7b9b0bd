"""Reads changelogs for the tasks that are to be restored, in slices, between which the worker answers and polls.

"At the end" is ``next_offset >= end``: control records and compacted offsets may follow the last record. Records that
are deleted while they are waited for, by retention or by hand, are not passed over: the consumer says so, the worker
starts over, and the store is found before the log's first kept record. What is read decides `restore_plan`, and what is
done with it `store_restore`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from stateline.log.interface import Consumer, Log
from stateline.worker.restore.polled_records import by_partition
from stateline.worker.restore.restore_plan import TaskPlan
from stateline.worker.restore.store_restore import StoreRestore
from stateline.worker.tasks.task import Task
from stateline_store import DoesNotExistError, LogUnavailableError, TopicPartition
from stateline_store.steps import reached
from stateline_store.task_id import TaskId

logger = logging.getLogger(__name__)

_SLICE_RECORDS = 5_000


class Restorer:
    """Reads changelogs for the tasks that need it. One worker's; used between its slices of work."""

    def __init__(self, log: Log, count: Callable[[int], None] | None = None, level: int = logging.INFO) -> None:
        """`count` is told of the records as they are read; `level` is that of what is logged when a restore begins and
        ends."""
        self._log = log
        self._count = count
        self._level = level
        self._consumer: Consumer | None = None
        self._tasks: dict[TaskId, tuple[Task, TaskPlan]] = {}
        self._pending: list[StoreRestore] = []
        self._is_to_assign = False

    def add(self, task: Task, task_plan: TaskPlan) -> None:
        """Restore this task; `advance` returns it when it is done (at once when there is nothing to read)."""
        for restore in task_plan.restores:
            if task.taken_over_s is None:  # what it has can be read on: it lacks the newest commits at most
                restore.say_remaining()
            # A single one is the marker of the last commit, most often: there is nothing to be told of.
            level = self._level if restore.remaining > 1 else logging.DEBUG
            logger.log(level, "Restoring %s of task %s: %d offsets", restore.store.name, task.id, restore.remaining)
        reached("restore:begun")
        self._tasks[task.id] = (task, task_plan)
        self._is_to_assign = True  # once for all that are added together

    def remove(self, task_id: TaskId) -> None:
        """Forget a task: what was restored since its last batch is read again by the next owner.

        It is not committed on the way out: nobody would be there to go on, and readers would be left with rows that are
        ahead of their Position.
        """
        if self._tasks.pop(task_id, None) is not None:
            self._is_to_assign = True  # once for all that are removed together
            if not self._tasks:
                self._reassign()

    @property
    def busy(self) -> bool:
        """Whether a task waits for `advance`."""
        return bool(self._tasks)

    def advance(self, timeout_s: float) -> list[tuple[Task, TaskPlan]]:
        """Read and apply one slice; the tasks that are restored now, with their plan.

        Raises `RetryLaterError` when the log has deleted what is to be read next: the task must be planned again.
        """
        try:
            return self._advance(timeout_s)
        except DoesNotExistError as error:  # its topic, which was perhaps made anew at once
            raise LogUnavailableError(str(error)) from error

    def _advance(self, timeout_s: float) -> list[tuple[Task, TaskPlan]]:
        if self._is_to_assign:
            self._reassign()
        if self._consumer is not None:
            records = self._consumer.poll(_SLICE_RECORDS, timeout_s)
            if self._count is not None:
                self._count(len(records))
            slices = by_partition(records)
            for restore in self._pending:
                restore.apply(slices.get(restore.changelog, []))
            self._finish(self._consumer)
        done = [(task, p) for task, p in self._tasks.values() if not any(r.remaining for r in p.restores)]
        for task, _ in done:
            del self._tasks[task.id]
        return done

    def close(self) -> None:
        """Release the consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _finish(self, consumer: Consumer) -> None:
        """Commit the stores that are through, and stop reading their changelogs."""
        for restore in self._pending:
            at = consumer.next_offset(restore.changelog)
            if not restore.remaining or (at is not None and at >= restore.end):
                restore.finish(self._level)
        if any(not restore.remaining for restore in self._pending):
            self._reassign()

    def _reassign(self) -> None:
        """Read what is pending, each changelog from where the furthest behind of its stores stands."""
        self._is_to_assign = False
        self._pending = [r for _, p in self._tasks.values() for r in p.restores if r.remaining]
        if not self._pending:
            self.close()
            return
        if self._consumer is None:
            self._consumer = self._log.consumer(auto_offset_reset="error")
        starts: dict[TopicPartition, int] = {}
        for restore in self._pending:
            at = starts.get(restore.changelog, restore.next_offset)
            starts[restore.changelog] = min(at, restore.next_offset)
        self._consumer.assign(starts)
