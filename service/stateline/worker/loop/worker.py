"""The worker's loop: poll → process → stage → commit. Queries are answered between slices.

One thread owns the consumer, the producer and every store, so there are no locks. A round polls the group
(`group_member`) and processes the records in slices of a few milliseconds (`task_executor`). Then it restores one slice
and commits if a commit is due (`commit_schedule`, `commit_order`). `run` repeats rounds. Tests of applications
(`stateline.testing`) take the same rounds one by one.

If a step fails, the worker drops its buffers, makes a new producer (which settles a transaction in doubt) and joins the
group again. Every task restores from its stores' own offsets. Nothing is wiped. If the disk refuses its tasks, the
worker leaves the group until the disk accepts writes again (`fitness`).

If a source topic is deleted and created again, a record comes whose offset was passed already. If the new topic is
longer than the old one, only its topic id differs (`topic_watch`). In both cases the worker starts over, and its tasks
forget the old topic. Records of the new topic that were read before are read again.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial

from stateline.config.settings import Config
from stateline.deployment.lease import Lease
from stateline.deployment.nodes_topic import ensure_nodes_topic, nodes_partition
from stateline.deployment.refused_stores import StoresRefusedError
from stateline.deployment.stores.discarding import settle_resets
from stateline.deployment.stores.new_stores import say_new_stores
from stateline.deployment.stores.topology_file import read_counted
from stateline.deployment.workers.entries import WorkerEntries, WorkerEntry
from stateline.dsl.app import App
from stateline.log.committed_records import record_at
from stateline.log.interface import Log
from stateline.model.reset_command import says_how_to_begin_anew
from stateline.model.standby_placement import Placeable
from stateline.model.unnamed_stores import check_names
from stateline.processing.clock import MACHINE_CLOCK, Clock
from stateline.processing.failures import FailureHandler
from stateline.worker.commit.commit_order import Committer
from stateline.worker.commit.commit_schedule import CommitSchedule
from stateline.worker.commit.epochs import EpochGate
from stateline.worker.context import WorkerContext
from stateline.worker.files.deployment_files import DeploymentFiles
from stateline.worker.files.figures import Figures
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
from stateline_store import StateDirectory, TransactionalStore
from stateline_store.errors import LockedError, RetryLaterError, StatelineError, StorageError

logger = logging.getLogger(__name__)

# How long a worker without records answers queries before it polls again.
_IDLE_S = 0.005
# Later it rests for this share of the time since its last record, and at most so long: a round costs 0.4 ms.
_QUIET_SHARE, _QUIET_S = 0.01, 0.1
_SETTLED_S = 10.0  # after a change of tasks a worker whose tasks do not all run rests for `_IDLE_S` only
_DRAINED_POLL_S = 0.1
_FIRST = "worker-0"  # it alone reports on the state directory that workers share
# A worker ends if it starts over more often than this with less than `_PEACE_S` in between. Its supervisor backs off,
# and of two workers that fence each other one ends.
_MAX_RESTARTS = 5
_PEACE_S = 30.0


class Worker:
    """One worker. `run` blocks; `stop` may be called from a signal handler. Everything else is for the thread that runs
    it. Without `run`, call `begin`, then `step` and `commit` as often as needed, then `leave`. `standbys` are its
    copies of other workers' tasks. `global_stores` are for reading only."""

    def __init__(self, app: App, config: Config, log: Log, *, instance: str, clock: Clock = MACHINE_CLOCK) -> None:
        self.on_working: Callable[[], object] | None = None  # called once, when its tasks run and their work has lasted
        self._settled_s: float | None = None
        topology, directory = app.configured_topology(config), StateDirectory(config.state_dir, app.application_id)
        check_names(topology, explicit=config.ensure_explicit_internal_resource_naming)
        self._topology = topology
        self._files = DeploymentFiles(directory, instance, topology, config.default_state_isolation_level)
        declared = {name: definition.description for name, definition in topology.all_stores.items()}
        self._queries = QuerySocket(self._files.socket, declared=declared, by_clock=config.retention_clock == "wall")
        place = None if log.embedded_file is not None else nodes_partition(app.application_id)
        self._lease = Lease(config.session_timeout_ms, place)
        self._admin = log.admin()
        self.failures = FailureHandler.of(config, partial(record_at, log))
        self._figures = Figures(time.monotonic())
        context = self.context = WorkerContext(
            config, topology, log, self._admin, directory, self._files, self._lease, self._queries, clock,
            self.failures, self._figures,
        )  # fmt: skip
        self._fitness = Fitness(directory.application, instance)
        self._housekeeping = Housekeeping(directory, topology, config)
        self._topics = TopicWatch(context)
        self._epochs = EpochGate(log, topology)
        self._global_tables = GlobalTables(context)
        self.global_stores: Mapping[str, TransactionalStore] = self._global_tables.stores
        self.tasks = Tasks(self._lease)
        settings = TaskSettings.of(context, self._global_tables.stores, self.tasks.moved)
        copies = CopiedTasks(directory, config.acceptable_recovery_lag)
        followed = StandbyTasks(context, settings, copies)
        name = config.group_instance_id or self._files.client_id(config.consumer.get("client.id"))
        entry = WorkerEntry(topology.digest(), str(directory.process_id()), config.client_tag, topology.tasks_digest())
        self._entries = None if place is None else WorkerEntries(log, app.application_id, name, entry)
        self.standbys = StandbyAssignment(
            context, Placeable(name, entry.directory, entry.tags), self._entries, self.tasks, followed, self._topics
        )
        self._committer = Committer(context)
        self._commits = CommitSchedule(context, self.tasks, self._committer, self._epochs, self._topics)
        reporter = Reporter(context, self._global_tables, self.standbys.lags)
        self._executor = TaskExecutor(
            context, self.tasks, self._committer, self._commits, self._topics, self._epochs, reporter
        )
        self._manager = TaskManager(context, self.tasks, self._topics, settings, followed, self._executor.forget)
        starts, entries = self._files.starts, self._entries
        crash_loop = None if entries is None else CrashLoop(starts, entries, name, self._fitness)
        self._joining = Joining(context, name, entry, entries, crash_loop)
        self.group = WorkerMembership(context, self.tasks, self._manager, self._commits, self._joining, self.standbys)
        self._queries.hosts += [self.tasks.hosted, followed.hosted, self._global_tables.hosted]
        self._queries.owned = self.tasks.owned
        self._queries.handlers |= {
            **SnapshotMaker(directory, topology, self._queries.hosted, self.tasks.committed).handlers,
            "copying": copies.hear,
            "unreached": lambda message: self._fitness.hear(str(message.get("why", ""))),
        }
        self._queries.status |= {
            "lease_until_ms": lambda: self._lease.until_ms,
            "copies": copies.wanted,
            "fault": lambda: self._fitness.fault,
            "figures": lambda: reporter.unwritten,
        }
        self._leaves_for_good = config.node_leave
        self._prepare: Callable[[], None] | None = self.begin  # until it has joined, and after a failed step
        self._has_begun = False
        self._has_work = False  # for its own tasks, in the last round
        self._worked_s = time.monotonic()  # the last round with work
        self._restarts = Restarts()

    def stop(self, *, for_good: bool = False) -> None:
        """Finish the slice, commit, and leave. `for_good` leaves the group, so that others get the tasks at once."""
        self._leaves_for_good |= for_good
        self._executor.stopping = True

    def run(self) -> None:
        """Work until `stop`. Raises errors that a new start does not mend: a record's error under the policy fail, a
        missing topic, an unavailable log, a task that another process keeps."""
        try:
            with says_how_to_begin_anew(self._topology):
                self._work()
            if not (self._files.drained or self._fitness.is_out):
                self.commit()
            self._files.starts.forget()
        except StoresRefusedError as error:
            self._manager.drop_all()
            self._files.refuse(error, self._topics.found, self._topics.counted)
            self._leaves_for_good = self._executor.stopping = True  # the supervisor does not restart it
            self._files.starts.forget()
            raise
        except BaseException as error:
            if isinstance(error, RetryLaterError) and not isinstance(error, StorageError):
                self._files.starts.forget()  # it is no fault of this node
            self._manager.drop_all()  # half of a slice may be staged, and must not be committed
            raise
        finally:
            self.leave()

    def _work(self) -> None:
        while not self._executor.stopping:
            try:
                if not self._may_work():
                    self._executor.rest(None, _IDLE_S)
                    continue
                if self._prepare is not None:
                    self._prepare()
                self._turn()
                self._note_working()
            except LockedError:
                raise
            except StorageError as error:
                self._drop_for_now(error)
            except RetryLaterError as error:  # starting over mends it; any other error ends the worker
                pause_s = self._restarts.pause_s(error)
                logger.warning("Starting over from the last commit: %s", error)
                self._prepare = partial(self.start_over, pause_s)
                self._drop_work()  # at once: as it stops, its group's listener commits what tasks have

    def _may_work(self) -> bool:
        if self._queries.has_lost_its_server:
            self._fitness.hear("No server of this node runs any more, so nobody can ask for what the worker has.")
        if self._fitness.is_to_leave:
            self._stand_aside()
        return self._files.drained or self._fitness.may_work()

    def _drop_for_now(self, error: StorageError) -> None:
        """The disk has refused something: drop every task. They start again when `fitness` allows it."""
        if self._prepare == self.begin and isinstance(error.__cause__, PermissionError):
            raise error  # `state.dir` is another user's
        self._fitness.failed(error, self._figures.commits)
        self._queries.announce_status()
        self._drop_work()
        self._global_tables.close()
        if self._prepare != self.begin:
            self._prepare = partial(self.start_over, 0.0)

    def _stand_aside(self) -> None:
        """Leave the group for good, so that others get the tasks. Raises what the log raises: the caller retries."""
        is_alone = not self._joining.has_others()
        if self._fitness.is_working:
            if not self._joining.may_leave():
                self._fitness.put_off()
                return
            self.commit()
        logger.error("Leaving the group, so that others run its tasks: %s", self._fitness.fault)
        self._drop_work()
        self.standbys.close()
        with suppress(RetryLaterError):  # an open transaction ends by its timeout
            self._committer.settle()
        self.group.leave()
        self._fitness.left(is_alone=is_alone)
        self._queries.announce_status()
        if self._prepare is None:
            self._prepare = self._join

    def begin(self) -> None:
        """Prepare topics and the state directory, and make the consumer of the group. Raises as `run`."""
        context = self.context
        reset = settle_resets(context.config, context.log, self._topology.target)
        self._manager.say_reset(reset)
        self._files.refuse_other_cluster(context.config.bootstrap_servers, self._admin)
        self._topics.prepare(read_counted(self._files.directory))
        say_new_stores(self._topology, self._topics.created, self._admin, reset)
        self._files.say_taken_over(self._topics.created)
        if self._lease.until_ms is not None:
            ensure_nodes_topic(self._topology.application_id, self._admin)
        self._files.say_topology(self._topics.found, self._topics.counted)
        self._housekeeping.settle_places()
        if self._files.registration.instance == _FIRST:
            self._housekeeping.say_leftovers()
        self._housekeeping.sweep_snapshots()
        self._has_begun = True
        self._join()

    def _join(self) -> None:
        self._global_tables.open()
        self._committer.settle()
        self.group.join()
        self._prepare = None

    def open_tasks(self) -> None:
        """Join the group and restore its tasks. Processes no record. Raises as `run`, and `RetryLaterError` where `run`
        would start over."""
        while not (self._global_tables.advance(_IDLE_S) and self.group.subscribe() and self._is_settled()):
            self.group.say_changes()
            self._manager.open_waiting()
            self.group.poll(0, 0.0)
            self.group.run_restored(_IDLE_S)
        self.group.say_changes()

    def step(self) -> bool:
        """Take one round without a rest. Returns whether the next one may have something to do. At least once,
        forwarded records are on the log afterwards. Raises as `open_tasks`."""
        before = self.tasks.next_offsets()
        self._global_tables.look_now()
        self._epochs.look_now()
        self._turn(0.0)
        self._committer.write_out()
        return self._has_work or not self._is_settled() or self.tasks.next_offsets() != before

    def commit(self) -> bool:
        """Commit everything that was processed. Returns whether there was anything. After a failed step nothing is
        committed before the worker has started over. Raises what the log or a store raises."""
        if self._prepare is not None:
            return False
        is_dirty = bool(self.tasks.dirty())
        self._commits.commit(self.group.consumer)
        self._global_tables.commit()
        return is_dirty

    def _note_working(self) -> None:
        if not self._is_settled():
            self._settled_s = None
            return
        self._files.runs()
        if fault := self._fitness.fault:
            self._fitness.runs(self._figures.commits)
            if self._fitness.fault != fault:
                self._queries.announce_status()
        if self._files.starts.is_pending and self._files.starts.runs():
            self._joining.withdraw_fault()
        if self.on_working is None:
            return
        self._settled_s = self._settled_s or time.monotonic()
        if self._executor.has_worked_since(self._settled_s, self.group.consumer):
            self.on_working()
            self.on_working = None

    def _is_settled(self) -> bool:
        """Return whether it has all tasks that the group gives it, and they run. True without tasks, or if drained."""
        if self._files.drained or not self._topology.subtopologies:
            return True
        if self._manager.waiting or not self.group.consumer.is_assigned:
            return False
        return self.tasks.are_settled or not self.tasks.all

    def _turn(self, most_rest_s: float = math.inf) -> None:
        self.group.say_changes()
        rests_s = self._advance()
        self._executor.between_slices(self.group.consumer, min(rests_s, most_rest_s))

    def _advance(self) -> float:
        if not self._global_tables.advance(_IDLE_S):
            return 0.0
        if self._is_drained():
            return _DRAINED_POLL_S
        self.standbys.advance(beside_work=self._has_work)
        if not self.group.subscribe():
            self._has_work = False
            return 0.0 if self.standbys.followed.is_busy else _IDLE_S
        self._manager.open_waiting()
        records, consumer = self.group.poll(self._executor.poll_records, 0.0), self.group.consumer
        self._executor.work_off(records, consumer)
        self._has_work = bool(records) or self._manager.is_restoring
        if self._has_work:
            self._worked_s = time.monotonic()
        if self._manager.is_restoring:
            self.group.run_restored(_IDLE_S)
        self._manager.upgrades.advance()
        self._commits.commit_if_due(consumer)
        self._housekeeping.clean_if_due(
            [*self.tasks.all, *(task.id for task in self.standbys.followed.tasks)], self._global_tables.place
        )
        return self._rests_s()

    def _rests_s(self) -> float:
        if self._has_work or self.standbys.followed.is_busy:
            return 0.0
        since_s = time.monotonic() - max(self._worked_s, self.group.changed_s)
        # A rebalance takes several polls.
        if (not self.tasks.are_settled and since_s <= _SETTLED_S) or self._manager.upgrades.is_busy:
            return _IDLE_S
        quiet_s = min(since_s * _QUIET_SHARE, _QUIET_S, *(task.processing.rests_s() for task in self.tasks.running))
        return max(_IDLE_S, quiet_s)

    def _is_drained(self) -> bool:
        """Return whether this worker was asked to hand over its tasks. Hands them over at the first call."""
        if not self._files.drained and self._files.is_to_drain():
            logger.info("Asked to drain: handing over all tasks, and leaving the group")
            self._commits.commit(self.group.consumer)
            self.group.close(for_good=True)
            self._manager.drop_all()
            self.standbys.close()
            self._files.drained = True
        return self._files.drained

    def start_over(self, pause_s: float = 0.0) -> None:
        """Drop everything uncommitted, abort its transaction, and join again. Records since the last commit are read
        again."""
        self._drop_work()
        self.group.close()
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
        """Close every task and drop everything uncommitted. Only `leave` may follow."""
        self._manager.drop_all()

    def leave(self) -> None:
        """Close the group first (its listener commits), then stores, producer, socket and files. After a failure it
        closes the rest. Raises the last failure."""
        with ExitStack() as last_first:
            last_first.callback(self._files.remove)
            last_first.callback(self._admin.close)
            last_first.callback(self._queries.close)
            last_first.callback(self._committer.close)
            last_first.callback(self._epochs.close)
            last_first.callback(self._global_tables.close)
            if self._entries is not None:
                last_first.callback(self._entries.close)
            last_first.callback(self.standbys.close)
            last_first.callback(self._manager.close)
            last_first.callback(self._close_group)

    def _close_group(self) -> None:
        if not (self._files.drained or self._fitness.is_out):
            self.group.close(for_good=self._leaves_for_good and self._executor.stopping)


class Restarts:
    def __init__(self) -> None:
        self._count = 0
        self._last_s = time.monotonic()

    def pause_s(self, error: StatelineError) -> float:
        """Return how long to wait, so that a broker has time to come back. Raises the error after `_MAX_RESTARTS` in a
        row."""
        peace = time.monotonic() - self._last_s > _PEACE_S
        self._count = 1 if peace else self._count + 1
        self._last_s = time.monotonic()
        if self._count > _MAX_RESTARTS:
            raise error
        return min(0.1 * float(2**self._count), 5.0)
