"""A worker in its consumer group: its consumer, and the partitions that the group gives and takes.

Before partitions go, the worker commits. If that commit fails, nothing is lost: staged writes are dropped, and the next
owner reads their input again. `task_manager` has a table of what happens to tasks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress

from stateline.log.interface import Consumer, Record
from stateline.worker.commit.commit_schedule import CommitSchedule
from stateline.worker.context import WorkerContext
from stateline.worker.group.joining import Joining
from stateline.worker.group.lost_transactions import LostTransactions
from stateline.worker.group.task_manager import TaskManager
from stateline.worker.standbys.standby_assignment import StandbyAssignment
from stateline.worker.tasks.tasks import Tasks, states_of
from stateline_store import (
    DoesNotExistError,
    FencedError,
    LockedError,
    LogUnavailableError,
    RetryLaterError,
    StatelineError,
    StorageError,
    TopicPartition,
)

# How long the commit before partitions go may wait for the log. The other members wait meanwhile.
_LET_GO_S = 15.0
# How long `Joining.look_after` may wait for the log.
_LOOK_AFTER_S = 0.5
# To leave, a worker first joins in a lost member's place. This is how long it waits for that.
_JOINED_WITHIN_S = 10.0
# Then it waits this long for the server here to see that it has no tasks. Servers look twice a second.
_TOLD_WITHIN_S = 1.0
_log = logging.getLogger(__name__)


class WorkerMembership:
    """`failed` is the error of the last commit before partitions went: its transaction must not continue, so the worker
    starts over. The group calls `assigned`, `suspended` and `revoked` within `poll` and `close`. Each call publishes
    the states of tasks."""

    def __init__(
        self,
        context: WorkerContext,
        tasks: Tasks,
        manager: TaskManager,
        commits: CommitSchedule,
        joining: Joining,
        standbys: StandbyAssignment,
    ) -> None:
        self.failed: StatelineError | None = None
        self.changed_s = time.monotonic()
        """The last change of the worker's tasks or standbys, or of their states."""
        self._context = context
        self._joining = joining
        self._standbys = standbys
        self._lost = LostTransactions(context)
        self._is_free = False
        self._static_id = context.config.group_instance_id
        self._client_id = context.files.client_id(context.config.consumer.get("client.id"))
        self._topic_names = [topic.name for each in context.topology.subtopologies for topic in each.sources]
        self._tasks = tasks
        self._manager = manager
        self._commits = commits
        self._consumer: Consumer | None = None
        self._is_subscribed = False
        self._is_leaving = False
        self._told: object = None  # published last

    @property
    def consumer(self) -> Consumer:
        if self._consumer is None:
            raise AssertionError("The worker has not joined its group yet.")
        return self._consumer

    def join(self) -> None:
        """Make the consumer. It takes part in the group after `subscribe`."""
        self.failed = None
        self._is_leaving = self._keeps_tasks = False
        self._consumer = self._new_consumer()
        self._is_subscribed = self._is_free = False

    def _new_consumer(self) -> Consumer:
        context = self._context
        return context.log.consumer(context.group, instance_id=self._static_id, client_id=self._client_id)

    def subscribe(self) -> bool:
        """Take part in the group. From then on it must be polled. Returns False while the worker must not take part
        (`joining`), or has not caught up with the tasks that it will get (`standby_assignment`)."""
        if not self._is_subscribed:
            if not self._is_free and not self._joining.is_free(self.give_up_place):
                return False
            self._is_free = True
            if not self._standbys.may_join():
                return False
            self._is_free = False  # catching up may have taken long
            if not self._joining.is_free(self.give_up_place):
                return False
            if self._context.lease.until_ms is not None:
                self._context.files.starts.joined()
            reactions = map(self._then_saying, (self.assigned, self.revoked, self.suspended))
            self.consumer.subscribe(self._topic_names, *reactions)
            self._is_subscribed = True
        return True

    def poll(self, max_records: int, wait_s: float) -> list[Record]:
        """Return the next records. Partitions come and go meanwhile. Raises what the log raises, and `failed`."""
        try:
            records = self.consumer.poll(max_records, wait_s)
        except FencedError as error:
            # Two workers would take the same identity from each other for ever, so this one ends.
            raise LockedError(
                "Another worker took over this one's identity, so this one stops. Each running worker "
                f"needs its own group.instance.id: {error}"
            ) from error
        if self.failed is not None:
            raise self.failed
        self._context.lease.renew_if_due(self.consumer)
        with self._context.log.patience.for_all(_LOOK_AFTER_S):
            self._joining.look_after()
        return records

    def run_restored(self, timeout_s: float) -> None:
        if self._manager.run_restored(timeout_s, self.consumer):
            self._context.queries.announce_commit()  # restored rows are committed too, with their Position

    def say_changes(self) -> None:
        """Publish the states of tasks, standbys and global tables if they have changed."""
        if self._told != self._now():
            self._say()

    def _now(self) -> object:
        return self._tasks.changes, self._context.files.global_tables, self._context.files.drained, self._consumer

    def _say(self) -> None:
        self.changed_s = time.monotonic()
        try:
            tasks = [*self._tasks.all.values(), *self._standbys.followed.tasks]
            self._context.files.say_tasks(states_of(tasks), self._consumer)
        except StorageError:
            if not self._is_leaving:  # servers hear over the socket that the lease has ended
                raise
        self._told = self._now()

    def _then_saying(self, react: Callable[[list[TopicPartition]], None]) -> Callable[[list[TopicPartition]], None]:
        def reacting(partitions: list[TopicPartition]) -> None:
            react(partitions)
            self._say()  # in any case: the worker's generation in its group is another one

        return reacting

    def close(self, *, for_good: bool = False) -> None:
        """Close the consumer. A worker with a static id keeps its tasks and its lease until its session ends, unless it
        leaves `for_good`. Otherwise others have its tasks within a second."""
        self._is_leaving, self._keeps_tasks = True, self._static_id is not None and not for_good
        if not self._keeps_tasks:
            self._context.lease.end()
            self._context.queries.announce_status()  # before others can have them
        if self._consumer is not None:
            if for_good and self._is_subscribed:
                self._consumer.leave()
            self._consumer.close()

    def leave(self) -> None:
        """Leave for good, without a commit, after all tasks were closed. A member that a former process left leaves
        too."""
        if self._is_subscribed:
            self.close(for_good=True)
        else:
            self.close()
            self.give_up_place()
        self._is_subscribed = False
        self._say()

    def give_up_place(self) -> None:
        """Take the place of the member of this name, whose process has ended, and leave for good. This node's server
        hears of it first: until then it counts the lease of that process."""
        self._context.lease.end()
        self._context.queries.announce_status()
        if self._static_id is None or not self._joining.is_member():
            return
        consumer = self._new_consumer()
        try:
            given: list[list[TopicPartition]] = []  # not opened
            consumer.subscribe(self._topic_names, given.append, lambda _: None)
            until_s = time.monotonic() + _JOINED_WITHIN_S
            while not given and time.monotonic() < until_s:
                consumer.poll(1, 0.1)
            with suppress(StorageError):  # as in `_say`
                self._context.files.say_tasks(states_of(self._standbys.followed.tasks), consumer)
            self._context.queries.let_in(_TOLD_WITHIN_S, stay=True)
            consumer.leave()
        finally:
            consumer.close()

    def assigned(self, partitions: list[TopicPartition]) -> None:
        """The worker has these partitions from now on, and no others."""
        try:
            self._joining.check()
        except RetryLaterError as error:  # it takes none of them and starts over
            self.failed = error
            return
        self._lost.abort()
        self._manager.assign(partitions, self.consumer)
        self.run_restored(0.0)

    def suspended(self, partitions: list[TopicPartition]) -> None:
        """The group takes all partitions, and will assign them again."""
        self._commit_to_let_go()
        if self._is_leaving or self.failed is not None:  # not to this worker
            self._manager.revoke(partitions)
        else:
            self._manager.suspend()

    def revoked(self, partitions: list[TopicPartition]) -> None:
        """Give back partitions that the worker has lost. Another worker may already have them."""
        if not self._keeps_tasks:
            # If Kafka was silent for a session, no other worker has them, and this machine answers as before.
            if self._is_leaving or self._context.lease.holds:
                self._manager.give_back(partitions)
            self._context.lease.end()
        self._commit_to_let_go()
        self._manager.revoke(partitions)

    def _commit_to_let_go(self) -> None:
        try:
            with self._context.log.patience.for_all(_LET_GO_S):
                self._commits.commit_to_let_go(self.consumer)
        except DoesNotExistError as error:  # a topic that was deleted may be created again at once
            self.failed = LogUnavailableError(str(error))
        except RetryLaterError as error:
            self.failed = error
