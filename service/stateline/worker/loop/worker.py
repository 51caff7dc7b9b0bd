"""The worker's loop: poll → process → stage → commit, with queries answered between slices.

One thread owns the consumer, the producer and every store, so nothing here is locked. A round polls the group
(`group_member`), works off in slices of a few milliseconds what came (`task_executor`), goes on with a restore, and
commits when that is due (`commit_schedule`; the steps of a commit are `commit_order`). Waiting queries are answered
between two slices, and of uncommitted state between the commits of two tasks. `run` goes round and round; tests of
applications go through the same rounds one by one (`stateline.testing`).

When a step fails the buffers are dropped, the producer is made anew (which settles an outcome in doubt), the group is
joined again, and every task restores from its stores' own offsets. Nothing is wiped. A worker whose disk does not let
it run its tasks leaves the group, and waits outside until it can (`fitness`).

A source topic that is deleted and created anew while the worker runs shows by a record whose offset was passed already,
or, when the new topic is longer than the old one was, by its topic id (`topic_watch`). The worker starts over then, and
its tasks let go of what they know of the old topic. What was read of the new one until then is read again.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial

from stateline.config.settings import Config
from stateline.deployment.discarding import settle_resets
from stateline.deployment.lease import Lease
from stateline.deployment.new_stores import say_new_stores
from stateline.deployment.nodes_topic import ensure_nodes_topic, nodes_partition
from stateline.deployment.refused_stores import StoresRefusedError
from stateline.deployment.worker_entries import WorkerEntries, WorkerEntry
from stateline.dsl.app import App
from stateline.log.interface import Log
from stateline.model.reset_command import says_how_to_begin_anew
from stateline.model.standby_placement import Placeable
from stateline.processing.clock import MACHINE_CLOCK, Clock
from stateline.processing.failures import FailureHandler
from stateline.query.values import HostedPartition
from stateline.worker.commit.commit_order import Committer
from stateline.worker.commit.commit_schedule import CommitSchedule
from stateline.worker.commit.epochs import EpochGate
from stateline.worker.commit.lost_transactions import LostTransactions
from stateline.worker.commit.purge import Purge
from stateline.worker.files.deployment_files import DeploymentFiles
from stateline.worker.files.housekeeping import Housekeeping
from stateline.worker.group.crash_loop import CrashLoop
from stateline.worker.group.fitness import Fitness
from stateline.worker.group.group_member import WorkerMembership
from stateline.worker.group.joining import Joining
from stateline.worker.group.task_manager import TaskManager
from stateline.worker.loop.reporting import Reporter
from stateline.worker.loop.task_executor import TaskExecutor
from stateline.worker.queries.query_socket import QuerySocket
from stateline.worker.queries.snapshots import SnapshotMaker
from stateline.worker.restore.global_tables import GlobalTables
from stateline.worker.standbys.copied_tasks import CopiedTasks
from stateline.worker.standbys.standby_assignment import StandbyAssignment
from stateline.worker.standbys.standby_tasks import StandbyTasks
from stateline.worker.tasks.task_settings import TaskSettings
from stateline.worker.tasks.tasks import Tasks
from stateline.worker.tasks.topic_watch import TopicWatch
from stateline_store import (
    LockedError,
    RetryLaterError,
    StateDirectory,
    StatelineError,
    StorageError,
    TransactionalStore,
)

logger = logging.getLogger(__name__)

# How long a worker that has read nothing answers queries before it looks for records again.
_IDLE_S = 0.005
# Then it rests for a hundredth of the time that it has had no records, and no record waits for longer: a turn costs
# 0.4 ms.
_QUIET_SHARE, _QUIET_S = 0.01, 0.1
_SETTLED_S = 10.0  # of one whose tasks do not all run yet, or that has none
_DRAINED_POLL_S = 0.1
_FIRST = "worker-0"  # of the workers of a directory it alone says what is true of the directory
# A worker that must start over this often, with less than this much time in between, gives up: its supervisor
# backs off, and two workers that fence each other come to an end.
_MAX_RESTARTS = 5
_PEACE_S = 30.0


class Worker:
    """One worker. `run` blocks; `stop` may be called from a signal handler. All else is for the thread that runs it, or
    that goes through it without `run`: `begin`, then `step` and `commit` as often as wanted, then `leave`."""

    def __init__(self, app: App, config: Config, log: Log, *, instance: str, clock: Clock = MACHINE_CLOCK) -> None:
        """`clock`: what its functions and records go by."""
        self.on_working: Callable[[], object] | None = None  # called once, when its tasks run and their work has lasted
        self._settled_s: float | None = None
        topology, directory = app.topology(), StateDirectory(config.state_dir, app.application_id)
        self._topology = topology
        self._settle_resets = partial(settle_resets, config, log)
        self._deployment = DeploymentFiles(directory, instance, topology, config.default_state_isolation_level)
        self._admin = log.admin()
        self._refuse_other_cluster = partial(
            self._deployment.refuse_other_cluster, config.bootstrap_servers, self._admin
        )
        self.failures = FailureHandler.of(config)
        self._topics = TopicWatch(self._admin, topology, config)
        self._epochs = EpochGate(log, topology)
        self._global_tables = GlobalTables(
            log, topology, directory, config, instance, lambda: self._queries.announce_commit()
        )
        reporter = Reporter(
            self._deployment.registration, self.failures, config.worker_uncommitted_max_bytes, self._global_tables
        )
        self._housekeeping = Housekeeping(directory, topology, config)
        self._figures = reporter.figures
        self._fitness = Fitness(self._deployment.directory, instance)
        place = None if log.embedded_file is not None else nodes_partition(app.application_id)
        self._lease = Lease(config.session_timeout_ms, place)
        self._tasks = Tasks(self._lease)
        settings = TaskSettings.of(config, topology, directory, self.failures, self._global_tables.stores, clock)
        lag = config.acceptable_recovery_lag
        copies = CopiedTasks(directory, lag)
        followed = StandbyTasks(topology, log, self._admin, settings, lag, reporter.figures, copies)
        self._manager = TaskManager(
            self._tasks, topology, log, self._admin, self._topics, settings, followed,
            forget=lambda source: self._executor.forget(source),
            figures=reporter.figures,
        )  # fmt: skip

        def hosted(store: str, partition: int) -> HostedPartition | None:
            of_a_task = self._tasks.hosted(store, partition) or followed.hosted(store, partition)
            return of_a_task or self._global_tables.hosted(store, partition)

        snapshots = SnapshotMaker(directory, topology, hosted)
        declared = {name: definition.description for name, definition in topology.all_stores.items()}
        self._queries = QuerySocket(
            self._deployment.socket,
            hosted,
            owned=self._tasks.owned,
            handlers={
                **snapshots.handlers,
                "copying": copies.hear,
                "unreached": lambda message: self._fitness.hear(str(message.get("why", ""))),
            },
            declared=declared,
            status=lambda: {
                "lease_until_ms": self._lease.until_ms,
                "copies": copies.wanted(),
                "fault": self._fitness.fault,
                "figures": reporter.unwritten,
            },
        )
        self._committer = Committer(log, config, topology, config.member_name(instance), self.failures, clock)
        self._commits = CommitSchedule(
            config.commit_interval_ms, self._tasks, self._committer, self._epochs, self._topics,
            Purge(self._admin, topology, config.repartition_purge_interval_ms), reporter.figures, self._queries,
        )  # fmt: skip
        self._executor = TaskExecutor(
            config, topology, self._tasks, self._committer, self._commits, self._topics, self._epochs, self._queries,
            reporter, clock, knows_ends=log.embedded_file is not None,
        )  # fmt: skip
        client_id = self._deployment.client_id(config.consumer.get("client.id"))
        name = config.group_instance_id or client_id
        entry = WorkerEntry(topology.digest(), str(directory.process_id()), config.client_tag, topology.tasks_digest())
        self._entries = None if place is None else WorkerEntries(log, app.application_id, name, entry)
        crash_loop = None if self._entries is None else CrashLoop(
            self._deployment.starts, self._entries, name, self._fitness, lambda: self._group.give_up_place()
        )  # fmt: skip
        joining = self._joining = Joining(
            app.application_id, name, entry, self._admin, self._deployment, self._lease, self._entries, crash_loop
        )
        own = Placeable(name, entry.directory, entry.tags)
        self._standbys = StandbyAssignment(
            config, topology, own, log, self._admin, self._entries, self._tasks, followed, self._topics
        )
        reporter.standby_lags = self._standbys.lags
        lost = LostTransactions(log, self._admin, app.application_id, config.group_instance_id)
        self._group = WorkerMembership(
            log, config, topology, self._tasks, self._manager, self._commits, self._topics, self._deployment,
            self._queries, self._lease, joining, self._standbys, lost if self._committer.is_all_or_nothing else None,
        )  # fmt: skip
        self._leaves_for_good = config.node_leave
        self._prepare: Callable[[], None] | None = self.begin
        self._has_begun = False
        self._has_work = False  # for its own tasks, at the last turn
        self._worked_s = time.monotonic()  # when it had some last
        self._restarts = Restarts()

    def stop(self, *, for_good: bool = False) -> None:
        """Finish the slice, commit, leave: `for_good`, so that others have its tasks at once."""
        self._leaves_for_good |= for_good
        self._executor.stopping = True

    def run(self) -> None:
        """Work until `stop`.

        Raises what cannot be mended here: a record's error under the policy fail, a missing topic, a log that
        stays away, a task that another process does not let go.
        """
        try:
            with says_how_to_begin_anew(self._topology):
                self._work()
            if not (self._deployment.drained or self._fitness.is_out):
                self.commit()
            self._deployment.starts.forget()
        except StoresRefusedError as error:
            self._manager.drop_all()
            self._deployment.refuse(error, self._topics.found, self._topics.counted)
            self._leaves_for_good = self._executor.stopping = True  # nobody starts it again
            self._deployment.starts.forget()
            raise
        except BaseException as error:
            if isinstance(error, RetryLaterError) and not isinstance(error, StorageError):
                self._deployment.starts.forget()  # it is no fault of this node
            self._manager.drop_all()  # half of a slice may be staged: none of it may be committed
            raise
        finally:
            self.leave()

    def _work(self) -> None:
        while not self._executor.stopping:
            try:
                if not self._may_work():
                    self._executor.report(None)
                    self._queries.serve_for(_IDLE_S)
                    continue
                if self._prepare is not None:
                    self._prepare()
                    self._prepare = None
                self._turn()
                self._note_working()
            except LockedError:
                raise
            except StorageError as error:
                self._drop_for_now(error)
            except RetryLaterError as error:  # what starting over mends; everything else ends the worker
                pause_s = self._restarts.pause_s(error)
                logger.warning("Starting over from the last commit: %s", error)
                self._prepare = partial(self.start_over, pause_s)

    def _may_work(self) -> bool:
        """Whether to take part in the group. Leaves it where `fitness` says so."""
        if self._queries.has_lost_its_server:
            self._fitness.hear("No server of this node runs any more, so nobody can ask for what the worker has.")
        if self._fitness.is_to_leave:
            self._stand_aside()
        return self._deployment.drained or self._fitness.may_work()

    def _drop_for_now(self, error: StorageError) -> None:
        """The disk has refused something: drop every task, and start them again when `fitness` lets them."""
        if self._prepare == self.begin and isinstance(error.__cause__, PermissionError):
            raise error  # somebody else's directory was named: that is told at once
        self._fitness.failed(error, self._figures.commits)
        self._queries.announce_status()
        self._drop_work()
        self._global_tables.close()
        if self._prepare != self.begin:
            self._prepare = partial(self.start_over, 0.0)

    def _stand_aside(self) -> None:
        """Leave the group for good, so that others have the tasks. Raises what the log raises: it is tried again."""
        is_alone = not self._joining.has_others()
        if self._fitness.is_working:
            if not self._joining.may_leave():
                self._fitness.put_off()
                return
            self.commit()
        logger.error("Leaving the group, so that others run its tasks: %s", self._fitness.fault)
        self._drop_work()
        self._standbys.close()
        with suppress(RetryLaterError):  # what is left open ends later
            self._committer.settle()
        self._group.leave()
        self._fitness.left(is_alone=is_alone)
        self._queries.announce_status()
        if self._prepare is None:
            self._prepare = self._join

    def begin(self) -> None:
        """See that topics and places are as they should be, and make ready to join the group. Raises as `run`."""
        reset = self._settle_resets()
        self._refuse_other_cluster()
        self._topics.prepare(self._deployment.counted_before())
        say_new_stores(self._topology, self._topics.created, self._admin, reset)
        self._deployment.say_taken_over(self._topics.created)
        if self._lease.until_ms is not None:
            ensure_nodes_topic(self._topology.application_id, self._admin)
        self._deployment.say_topology(self._topics.found, self._topics.counted)
        self._housekeeping.settle_places()
        if self._deployment.registration.instance == _FIRST:
            self._housekeeping.say_leftovers()
        self._housekeeping.sweep_snapshots()
        self._has_begun = True
        self._join()

    def _join(self) -> None:
        self._global_tables.open()
        self._committer.settle()
        self._group.join()

    def open_tasks(self) -> None:
        """Join the group and restore what it gives, without a record being processed. Raises as `run`, and
        `RetryLaterError` where `run` would start over."""
        while not (self._advance_global_tables() and self._group.subscribe() and self._is_settled()):
            self._manager.open_waiting()
            self._group.poll(0, 0.0)
            self._group.run_restored(_IDLE_S)

    def step(self) -> bool:
        """One round without a rest; whether the next one may have something to do. What was forwarded at least once is
        on the log then. Raises as `open_tasks`."""
        before = self._tasks.next_offsets()
        self._global_tables.look_now()
        self._epochs.look_now()
        self._turn(0.0)
        self._committer.write_out()
        return self._has_work or not self._is_settled() or self._tasks.next_offsets() != before

    def commit(self) -> bool:
        """Commit what was processed; whether there was anything. Raises what the log or a store raises."""
        if not self._group.has_joined:
            return False
        is_dirty = bool(self._tasks.dirty())
        self._commits.commit(self._group.consumer)
        self._global_tables.commit()
        return is_dirty

    def answer_queries(self, wait_s: float) -> None:
        """Answer what has arrived of servers' queries, or what comes first within this time."""
        self._queries.serve_pending(wait_s)

    @property
    def tasks(self) -> Tasks:
        """Its tasks."""
        return self._tasks

    @property
    def group(self) -> WorkerMembership:
        """Its membership in the consumer group."""
        return self._group

    @property
    def standbys(self) -> StandbyAssignment:
        """Its copies of other workers' tasks."""
        return self._standbys

    @property
    def global_stores(self) -> Mapping[str, TransactionalStore]:
        """Those of global tables, by name: only to be read."""
        return self._global_tables.stores

    def _note_working(self) -> None:
        if not self._is_settled():
            self._settled_s = None
            return
        self._deployment.runs()
        if fault := self._fitness.fault:
            self._fitness.runs(self._figures.commits)
            if self._fitness.fault != fault:
                self._queries.announce_status()
        if self._deployment.starts.is_pending and self._deployment.starts.runs():
            self._joining.withdraw_fault()
        if self.on_working is None:
            return
        self._settled_s = self._settled_s or time.monotonic()
        if self._executor.has_worked_since(self._settled_s, self._group.consumer):
            self.on_working()
            self.on_working = None

    def _is_settled(self) -> bool:
        """Whether it has all that it is to have, and its tasks run: also if it has none, or was drained."""
        if self._deployment.drained or not self._topology.subtopologies:
            return True
        if self._manager.waiting or not self._group.consumer.is_assigned:
            return False
        return self._tasks.are_settled or not self._tasks.all

    def _turn(self, most_rest_s: float = math.inf) -> None:
        """One round: poll, process in slices, restore a slice, commit when due. Rests at most so long."""
        if not self._advance_global_tables():
            self._queries.serve_pending()
            return
        if self._is_drained():
            self._queries.serve_pending(min(_DRAINED_POLL_S, most_rest_s))
            self._executor.report(self._group.consumer)
            return
        if self._standbys.advance(beside_work=self._has_work):
            self._group.say_tasks()
        if not self._group.subscribe():
            self._has_work = False
            self._queries.serve_for(0.0 if self._standbys.is_busy else min(_IDLE_S, most_rest_s))
            self._executor.report(self._group.consumer)
            return
        self._manager.open_waiting()
        records, consumer = self._group.poll(self._executor.poll_records, 0.0), self._group.consumer
        if records:  # which took about as long as a slice will
            self._queries.serve_pending()
        self._executor.work_off(records, consumer)
        self._has_work = bool(records) or self._manager.is_restoring
        if self._has_work:
            self._worked_s = time.monotonic()
        if self._manager.is_restoring:
            self._group.run_restored(_IDLE_S)
        self._manager.advance_upgrades()
        self._commits.commit_if_due(consumer)
        self._executor.between_slices(consumer, min(self._rests_s(), most_rest_s))
        self._housekeeping.clean_if_due(
            [*self._tasks.all, *(task.id for task in self._standbys.tasks)], self._global_tables.place
        )

    def _advance_global_tables(self) -> bool:
        is_whole = self._global_tables.advance(_IDLE_S)
        if self._deployment.global_tables != (told := self._global_tables.told):
            self._deployment.global_tables = told
            self._group.say_tasks()
        return is_whole

    def _rests_s(self) -> float:
        """How long it may do nothing but answer queries: they wait for nobody then, and records a moment longer."""
        if self._has_work or self._standbys.is_busy:
            return 0.0
        since_s = time.monotonic() - max(self._worked_s, self._group.changed_s)
        # A group that decides who has what is heard by polls, one step after the other.
        if (not self._tasks.are_settled and since_s <= _SETTLED_S) or self._manager.is_upgrading:
            return _IDLE_S
        quiet_s = min(since_s * _QUIET_SHARE, _QUIET_S, *(task.processing.rests_s() for task in self._tasks.running))
        return max(_IDLE_S, quiet_s)

    def _is_drained(self) -> bool:
        """Whether this worker was asked to hand over what it has, and so has nothing any more."""
        if not self._deployment.drained and self._deployment.is_to_drain():
            logger.info("Asked to drain: handing over all tasks, and leaving the group")
            self._commits.commit(self._group.consumer)
            self._group.close(for_good=True)
            self._manager.drop_all()
            self._standbys.close()
            self._deployment.drained = True
            self._group.say_tasks()
        return self._deployment.drained

    def start_over(self, pause_s: float = 0.0) -> None:
        """Drop what is not committed, abort its transaction, and make ready to join the group again: records that were
        processed since the last commit are read again. A worker that could not begin, begins. Raises as `begin`."""
        self._drop_work()
        self._group.close()
        time.sleep(pause_s)
        if self._has_begun:
            self._join()
        else:
            self.begin()

    def _drop_work(self) -> None:
        self._manager.drop_all()
        self._commits.trace.drop()
        self.failures.take_dead_letters()  # their records are read again
        self._epochs.start_over()

    def drop(self) -> None:
        """Close every task; what is not committed is dropped, and stays so: only `leave` comes after it."""
        self._manager.drop_all()

    def leave(self) -> None:
        """Let go in this order: the group first (its listener commits), then stores, producer, socket, files.

        All of it, whatever fails on the way; the last failure is raised then.
        """
        with ExitStack() as last_first:
            last_first.callback(self._deployment.remove)
            last_first.callback(self._admin.close)
            last_first.callback(self._queries.close)
            last_first.callback(self._committer.close)
            last_first.callback(self._epochs.close)
            last_first.callback(self._global_tables.close)
            if self._entries is not None:
                last_first.callback(self._entries.close)
            last_first.callback(self._standbys.close)
            last_first.callback(self._manager.close)
            last_first.callback(self._close_group)

    def _close_group(self) -> None:
        if not (self._deployment.drained or self._fitness.is_out):
            self._group.close(for_good=self._leaves_for_good and self._executor.stopping)


class Restarts:
    """How often in a row a worker has started over."""

    def __init__(self) -> None:
        self._count = 0
        self._last_s = time.monotonic()

    def pause_s(self, error: StatelineError) -> float:
        """Because of this error it starts over once more: how long it waits first, so that a broker that is away gets
        time to come back. Raises the error when it has started over too often."""
        peace = time.monotonic() - self._last_s > _PEACE_S  # also of a worker with nothing to commit
        self._count = 1 if peace else self._count + 1
        self._last_s = time.monotonic()
        if self._count > _MAX_RESTARTS:
            raise error
        return min(0.1 * float(2**self._count), 5.0)
