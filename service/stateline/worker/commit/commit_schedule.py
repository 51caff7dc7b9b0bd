"""When a worker commits, and which of its tasks. `commit_order` has the steps.

A commit is due `commit.interval.ms` after the last one. It comes earlier if a function asks for it, to free memory, to
give partitions back, or, while a server is connected, before its writes would hold readers up (`WriteStall`).
In the middle of a pipeline's epoch (`epochs`), only tasks commit that no reader needs before the epoch ends.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence

from stateline.log.interface import Consumer
from stateline.worker.commit.commit_order import Committer
from stateline.worker.commit.epochs import EpochGate
from stateline.worker.commit.purge import Purge
from stateline.worker.commit.work_trace import WorkTrace
from stateline.worker.context import WorkerContext
from stateline.worker.tasks.commit_marks import NO_EPOCHS, EpochNumbers
from stateline.worker.tasks.task import Task
from stateline.worker.tasks.tasks import Tasks
from stateline.worker.tasks.topic_watch import TopicWatch
from stateline_store import RetryLaterError

# The shortest time before an early commit, as a multiple of a commit's wait for disks and the log. The least wait of
# the last few commits counts, because other programs cause the longer ones.
_LEAST_REST = 3.0
_LAST_FEW = 8


class CommitSchedule:
    def __init__(
        self, context: WorkerContext, tasks: Tasks, committer: Committer, epochs: EpochGate, topics: TopicWatch
    ) -> None:
        self._interval_s = context.config.commit_interval_ms / 1000
        self._tasks = tasks
        self._committer = committer
        self._epochs = epochs
        self._topics = topics
        self._purge = Purge(context)
        self._context = context
        self._last_commit_s = time.monotonic()
        self._last_work_s = -math.inf  # when something was committed last
        self._waited_s = deque[float](maxlen=_LAST_FEW)
        self.trace = WorkTrace()

    def commit_if_due(self, consumer: Consumer) -> None:
        """`commit` if the interval is over, a function has asked for it, or a later commit would hold readers up."""
        since_s = time.monotonic() - self._last_commit_s
        is_due = since_s >= self._interval_s or any(task.processing.commit_requested for task in self._tasks.running)
        least_rest_s = _LEAST_REST * min(self._waited_s, default=0.0)
        if is_due or (since_s >= least_rest_s and self._holds_up()):
            if self._topics.is_due and self._tasks.dirty():
                self._topics.look(self._tasks.by_source, consumer)
            self.commit(consumer)

    def _holds_up(self) -> bool:
        if not (self._context.queries.has_clients and any(task.stores.will_stall for task in self._tasks.running)):
            return False
        return any(task.stores.will_stall for task in self._to_commit(self._ended_epochs(), to_free_memory=False))

    def commit(self, consumer: Consumer, *, to_free_memory: bool = False) -> None:
        """Commit every task with input since its last commit. Raises what `Committer.commit` raises."""
        epochs = self._ended_epochs()
        tasks = self._to_commit(epochs, to_free_memory=to_free_memory)
        if tasks:
            began_s, worked_s = time.perf_counter(), time.thread_time()
            with self.trace.commit():
                self._committer.commit(tasks, consumer, epochs or NO_EPOCHS)
            took_s = time.perf_counter() - began_s
            self._waited_s.append(took_s - (time.thread_time() - worked_s))
            self._context.figures.committed(took_s, forced=to_free_memory)
            self._context.queries.announce_commit()
            self._purge.after_commit(self._tasks.running)
            self._last_work_s = time.monotonic()
        if tasks or epochs is not None:
            self._last_commit_s = time.monotonic()

    def has_worked_since(self, began_s: float, consumer: Consumer) -> bool:
        """Return whether work since then (`time.monotonic`) has lasted: a commit came an interval later, or all input
        is committed. A worker that fails at the same record again and again makes no commit so late."""
        if self._last_work_s >= began_s + self._interval_s:
            return True
        return not self._tasks.dirty() and all(consumer.lag(source) == 0 for source in self._tasks.by_source)

    def commit_to_let_go(self, consumer: Consumer) -> None:
        """Commit before partitions are given back. Raises `RetryLaterError` in the middle of an epoch if tasks can only
        be committed together."""
        if self._tasks.dirty():
            self._topics.look(self._tasks.by_source, consumer)  # a topic that was created again moves its partitions
        self.commit(consumer)
        if self._committer.is_all_or_nothing and self._tasks.dirty():
            raise RetryLaterError("Partitions were taken in the middle of an epoch.")

    def _ended_epochs(self) -> EpochNumbers | None:
        """Return the epochs that end with a commit now; None in the middle of one."""
        return self._epochs.numbers() if self._epochs.is_reached(self._tasks.next_offsets()) else None

    def _to_commit(self, epochs: EpochNumbers | None, *, to_free_memory: bool) -> Sequence[Task]:
        if epochs is not None:
            wanted = [t for t in self._tasks.running if t.processing.dirty or not t.marks.is_in_step(epochs)]
            unnoted = [t for t in self._tasks.running if t.processing.is_unnoted and t not in wanted]
            return wanted + unnoted if wanted or any(t.processing.is_note_due for t in unnoted) else []
        if self._committer.is_all_or_nothing:
            return self._tasks.dirty() if to_free_memory else []
        return [task for task in self._tasks.dirty() if to_free_memory or task.marks.is_loading()]
