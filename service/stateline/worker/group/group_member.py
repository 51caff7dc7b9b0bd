"""A worker in its consumer group: its consumer, and the tasks that come and go with the partitions it is given.

Before partitions go, what was processed is committed; a commit that fails then loses nothing: what was staged is
dropped, and read again by whoever goes on. What becomes of each task is a table in `task_manager`.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress

from stateline.config.settings import Config
from stateline.deployment.lease import Lease
from stateline.log.interface import Consumer, Log, Record
from stateline.model.topology import Topology
from stateline.worker.commit.commit_schedule import CommitSchedule
from stateline.worker.commit.lost_transactions import LostTransactions
from stateline.worker.files.deployment_files import DeploymentFiles
from stateline.worker.group.joining import Joining
from stateline.worker.group.task_manager import TaskManager
from stateline.worker.queries.query_socket import QuerySocket
from stateline.worker.standbys.standby_assignment import StandbyAssignment
from stateline.worker.tasks.tasks import Tasks, states_of
from stateline.worker.tasks.topic_watch import TopicWatch
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

# How long a worker that has to give partitions back waits for the log. Others wait for it meanwhile.
_LET_GO_S = 15.0
# And how long what it looks after, while it works, may wait for it.
_LOOK_AFTER_S = 0.5
# How long a worker waits for the group to take it for a member that it is not to be any more.
_JOINED_WITHIN_S = 10.0
# How long it waits then for the server of this node to read that it has no tasks. Servers look twice a second.
_TOLD_WITHIN_S = 1.0
_log = logging.getLogger(__name__)


class WorkerMembership:
    """One worker's, on its thread. `failed` is why the last commit before partitions went failed: the worker must start
    over then, for its transaction must not go on. The group calls `assigned`, `suspended` and `revoked` within `poll`
    and `close`."""

    def __init__(
        self,
        log: Log,
        config: Config,
        topology: Topology,
        tasks: Tasks,
        manager: TaskManager,
        commits: CommitSchedule,
        topics: TopicWatch,
        deployment: DeploymentFiles,
        queries: QuerySocket,
        lease: Lease,
        joining: Joining,
        standbys: StandbyAssignment,
        lost: LostTransactions | None,
    ) -> None:
        """`lost` is None where workers have no transactions."""
        self.failed: StatelineError | None = None
        self.changed_s = time.monotonic()
        """When the worker got, gave or followed other tasks last, or they came to run."""
        self._log = log
        self._joining = joining
        self._standbys = standbys
        self._lost = lost
        self._is_free = False
        self._group = topology.application_id
        self._static_id = config.group_instance_id
        self._client_id = deployment.client_id(config.consumer.get("client.id"))
        self._topic_names = [topic.name for subtopology in topology.subtopologies for topic in subtopology.sources]
        self._tasks = tasks
        self._manager = manager
        self._commits = commits
        self._topics = topics
        self._deployment = deployment
        self._queries = queries
        self._lease = lease
        self._consumer: Consumer | None = None
        self._is_subscribed = False
        self._is_leaving = False

    @property
    def consumer(self) -> Consumer:
        """The group's, after `join`."""
        if self._consumer is None:
            raise AssertionError("The worker has not joined its group yet.")
        return self._consumer

    @property
    def has_joined(self) -> bool:
        """Whether there was a `join`."""
        return self._consumer is not None

    def join(self) -> None:
        """Make the consumer. It takes part in the group from the first `poll` on, and must be polled then."""
        self.failed = None
        self._is_leaving = self._keeps_tasks = False
        self._consumer = self._log.consumer(self._group, instance_id=self._static_id, client_id=self._client_id)
        self._is_subscribed = self._is_free = False
        self.say_tasks()

    def subscribe(self) -> bool:
        """Take part in the group, if it does not yet; from then on it must be polled. False while it must not
        (`joining`), or has not caught up with what it will be given (`standby_assignment`)."""
        if not self._is_subscribed:
            if not self._is_free and not self._joining.is_free():
                return False
            self._is_free = True
            if not self._standbys.may_join():
                return False
            self._is_free = False  # catching up may have taken long
            if not self._joining.is_free():
                return False
            if self._lease.until_ms is not None:
                self._deployment.starts.joined()
            self.consumer.subscribe(self._topic_names, self.assigned, self.revoked, self.suspended)
            self._is_subscribed = True
        return True

    def poll(self, max_records: int, wait_s: float) -> list[Record]:
        """The next records of its partitions; these come and go meanwhile. Raises what the log raises, and `failed`."""
        try:
            records = self.consumer.poll(max_records, wait_s)
        except FencedError as error:
            # Two that take the same identity from each other would go on for ever: this one ends.
            raise LockedError(
                "Another worker took over this one's identity, so this one stops. Each running worker "
                f"needs its own group.instance.id: {error}"
            ) from error
        if self.failed is not None:
            raise self.failed
        self._lease.renew_if_due(self.consumer)
        with self._log.patience.for_all(_LOOK_AFTER_S):
            self._joining.look_after()
        return records

    def run_restored(self, timeout_s: float) -> None:
        """Go on with restoring; what is restored runs from now on, and servers see it."""
        if self._manager.run_restored(timeout_s, self.consumer):
            self.say_tasks()
            self._queries.announce_commit()  # what they restored was committed too, with its Position

    def say_tasks(self) -> None:
        """Tell servers which tasks this worker has, and follows."""
        self.changed_s = time.monotonic()
        try:
            tasks = [*self._tasks.all.values(), *self._standbys.tasks]
            self._deployment.say_tasks(states_of(tasks), self._consumer)
        except StorageError:
            if not self._is_leaving:  # else servers hear over the socket that the lease has ended
                raise

    def close(self, *, for_good: bool = False) -> None:
        """Leave the group, if it was joined. Who has a static id does not, unless `for_good`: its tasks stay its own
        until its session has ended, and so does its lease. Others have those of one that leaves within a second."""
        self._is_leaving, self._keeps_tasks = True, self._static_id is not None and not for_good
        if not self._keeps_tasks:
            self._lease.end()
            self._queries.announce_status()  # before others can have them
        if self._consumer is not None:
            if for_good and self._is_subscribed:
                self._consumer.leave()
            self._consumer.close()

    def leave(self) -> None:
        """Leave for good, without a commit: nothing of what this worker had is open any more. So does a member of its
        name that is left of a process before it."""
        if self._is_subscribed:
            self.close(for_good=True)
        else:
            self.close()
            self.give_up_place()
        self._is_subscribed = False
        self.say_tasks()

    def give_up_place(self) -> None:
        """Take the place of the member of this name, which is no more, and leave for good. The server of this node
        hears of it first: until then it counts the lease of the process before this one."""
        self._lease.end()
        self._queries.announce_status()
        if self._static_id is None or not self._joining.is_member():
            return
        consumer = self._log.consumer(self._group, instance_id=self._static_id, client_id=self._client_id)
        try:
            given: list[list[TopicPartition]] = []  # and opened by nobody
            consumer.subscribe(self._topic_names, given.append, lambda _: None)
            until_s = time.monotonic() + _JOINED_WITHIN_S
            while not given and time.monotonic() < until_s:
                consumer.poll(1, 0.1)
            with suppress(StorageError):  # the server hears over the socket that this worker has no lease
                self._deployment.say_tasks(states_of(self._standbys.tasks), consumer)
            self._queries.serve_for(_TOLD_WITHIN_S)
            consumer.leave()
        finally:
            consumer.close()

    def assigned(self, partitions: list[TopicPartition]) -> None:
        """All that the worker has from now on."""
        try:
            self._joining.check()
        except RetryLaterError as error:  # none of it: the worker starts over
            self.failed = error
            return
        if self._lost is not None:
            self._lost.abort()
        self._manager.assign(partitions, self.consumer)
        self._deployment.say_topology(self._topics.found, self._topics.counted)
        self.run_restored(0.0)
        self.say_tasks()

    def suspended(self, partitions: list[TopicPartition]) -> None:
        """All is taken, and the group will say who gets what."""
        self._commit_to_let_go()
        if self._is_leaving:  # nobody says who gets what, or not to this one
            self._manager.revoke(partitions)
        elif self.failed is None:
            self._manager.suspend()
        else:
            self._manager.revoke(partitions)
        self.say_tasks()

    def revoked(self, partitions: list[TopicPartition]) -> None:
        """These are not the worker's any more, and may be another's already."""
        if not self._keeps_tasks:
            # Where Kafka was silent for a session, nobody has taken them: a machine that is alone answers on.
            if self._is_leaving or self._lease.holds:
                self._manager.give_back(partitions)
            self._lease.end()
        self._commit_to_let_go()
        self._manager.revoke(partitions)
        self.say_tasks()

    def _commit_to_let_go(self) -> None:
        """The whole group waits for it, so all of it has one deadline."""
        try:
            with self._log.patience.for_all(_LET_GO_S):
                self._commits.commit_to_let_go(self.consumer)
        except DoesNotExistError as error:  # a topic that was deleted may be made anew at once
            self.failed = LogUnavailableError(str(error))
        except RetryLaterError as error:
            self.failed = error
