"""The worker's loop: poll → process → stage → commit, with queries answered between slices.

One thread owns the consumer, the producer and every store, so nothing here is locked. Work is cut into slices of a
few milliseconds; between two of them waiting queries are answered, a restore goes on, a commit is made when due. A
commit itself takes longer: between those of two tasks queries of uncommitted state are answered.

When a step fails (`stateline.worker.commit_order` has their order), the buffers are dropped, the producer is made anew
(which settles an outcome in doubt), the group is joined again, and every task restores from its stores' own
offsets. Nothing is wiped.

A source topic that is deleted and created anew while the worker runs shows by a record whose offset was passed already,
or, when the new topic is longer than the old one was, by its topic id (`_TOPICS_LOOK_S`). The worker starts over then,
and its tasks let go of what they know of the old topic. What was read of the new one until then is read again.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from stateline.config.settings import Config
from stateline.deployment.partition_counts import PartitionsChangedError
from stateline.deployment.topics import ensure_topics, report_other_settings, subtopology_partitions, wanted_partitions
from stateline.deployment.topology_file import PublishedTopology, publish_refusal, publish_topology, read_counted
from stateline.dsl.app import App
from stateline.log.interface import Consumer, Log, Record
from stateline.model.internal_topics import created_topics
from stateline.processing.failures import FailureHandler
from stateline.query.values import HostedPartition
from stateline.worker.commit_order import Committer
from stateline.worker.epochs import NO_EPOCHS, EpochGate
from stateline.worker.format_upgrades import FormatUpgrades
from stateline.worker.global_tables import GlobalTables
from stateline.worker.housekeeping import Housekeeping
from stateline.worker.pace import Pace
from stateline.worker.publication import InstanceFile, socket_path
from stateline.worker.purge import Purge
from stateline.worker.query_socket import QuerySocket
from stateline.worker.record_order import RecordOrder
from stateline.worker.reporting import Reporter
from stateline.worker.restore import Restorer, by_partition
from stateline.worker.snapshots import SnapshotMaker
from stateline.worker.task import Task, TaskState
from stateline.worker.task_settings import TaskSettings
from stateline.worker.tasks import Tasks
from stateline.worker.topic_watch import TopicWatch
from stateline_store import (
    DoesNotExistError,
    FencedError,
    LockedError,
    LogUnavailableError,
    RetryLaterError,
    StateDirectory,
    StatelineError,
    StoreState,
    TopicPartition,
    TransactionalStore,
)

logger = logging.getLogger(__name__)

# After this long without a poll, unprocessed records go back to the log and the group is polled.
_POLL_PATIENCE_S = 2.0
# How long an idle poll waits; queries are answered in between.
_IDLE_POLL_S = 0.005
# How long a worker that has to give partitions back waits for the log. Others wait for it meanwhile.
_LET_GO_S = 15.0
# A worker that must start over this often, with less than this much time in between, gives up: its supervisor
# backs off, and two workers that fence each other come to an end.
_MAX_RESTARTS = 5
_PEACE_S = 30.0


_SERVED = {
    TaskState.RESTORING: StoreState.RESTORING,
    TaskState.RUNNING: StoreState.ACTIVE,
    TaskState.SUSPENDED: StoreState.ACTIVE,
}

# What a worker mends by starting over; everything else ends it, and so does a LockedError.
_Mendable = RetryLaterError


class Worker:
    """One worker. `run` blocks; `stop` may be called from a signal handler."""

    def __init__(self, app: App, config: Config, log: Log, *, instance: str) -> None:
        self._config = config
        self._log = log
        self._topology = app.topology()
        self._group = app.application_id
        self._directory = StateDirectory(config.state_dir, app.application_id)
        self._instance = InstanceFile(self._directory.application, instance)
        self._process_id = self._directory.process_id()
        self._admin = log.admin()
        self.failures = FailureHandler(
            config.deserialization_exception_handler,
            config.processing_exception_handler,
            config.dead_letter_topic,
            config.production_exception_handler,
        )
        self._reporter = Reporter(self._instance, self.failures, config.worker_uncommitted_max_bytes)
        # Two machines may both have a worker-0, one machine several with other names of their own: their transactions
        # must not fence each other. The same worker, started anew, fences the one before it.
        identity = config.group_instance_id or f"{socket.gethostname()}-{instance}"
        self._committer = Committer(log, config, self._topology, identity, self.failures)
        self._restorer = Restorer(log)
        self._upgrades = FormatUpgrades(log, self._admin)
        self._purge = Purge(self._admin, self._topology, config.repartition_purge_interval_ms)
        self._housekeeping = Housekeeping(self._directory, self._topology, config)
        self._socket_path = socket_path(self._directory.application, instance)
        snapshots = SnapshotMaker(self._directory, self._topology, self._hosted_partition)
        declared = {name: definition.description for name, definition in self._topology.stores.items()}
        self._socket = QuerySocket(self._socket_path, self._hosted_partition, snapshots, declared)
        self._consumer: Consumer | None = None
        self._subscribed = False
        self._topics = TopicWatch(self._admin, self._topology)
        self._epochs = EpochGate(log, self._topology)
        self._order = RecordOrder(self._topology, config.max_timestamp_ahead_ms)
        handler = config.deserialization_exception_handler
        self._global_tables = GlobalTables(log, self._topology, self._directory.application, handler)
        settings = TaskSettings.of(
            config,
            self._group,
            self._directory,
            self.failures,
            self._topology.epoch_numbers(),
            self._global_tables.stores,
        )
        self._tasks = Tasks(
            self._topology,
            self._admin,
            self._restorer,
            self._upgrades,
            self._topics,
            settings,
            forget=self._forget,
        )
        self._pace = Pace()
        self._turns = 0
        self._stopping = False
        self._failed: StatelineError | None = None
        self._last_commit = time.monotonic()
        self._restarts = 0
        self._last_restart = time.monotonic()

    def stop(self) -> None:
        """Finish the slice, commit, leave."""
        self._stopping = True

    def run(self) -> None:
        """Work until `stop`.

        Raises what cannot be mended here: a record's error under the policy fail, a missing topic, a log that
        stays away, a task that another process does not let go.
        """
        try:
            self._prepare()
            while not self._stopping:
                try:
                    self._turn()
                except LockedError:
                    raise
                except _Mendable as error:
                    self._start_over(error)
            self._commit()
        except PartitionsChangedError as error:
            self._tasks.drop_all()
            publish_refusal(self._directory.application, error.reasons, self._published_topology)
            raise
        except BaseException:
            self._tasks.drop_all()  # half of a slice may be staged: none of it may be committed
            raise
        finally:
            self._leave()

    def _prepare(self) -> None:
        also = [self._config.dead_letter_topic] if self._config.dead_letter_topic else []
        self._topics.counted = read_counted(self._directory.application)
        self._topics.found = self._admin.topics()
        ensure_topics(self._topology, self._admin, also_required=also, counted=self._topics.counted)
        report_other_settings(self._topology, self._admin)
        self._topics.remember()
        self._publish_topology()
        self._housekeeping.settle_places()
        self._housekeeping.sweep_snapshots()
        self._join()

    def _publish_topology(self) -> None:
        """Topics may have more partitions than at the start, or have been made anew with others.

        Raises `TopologyError` when topics that are processed together have different numbers.
        """
        counts = {name: info.partitions for name, info in self._topics.found.items()}
        if any(topic.name not in counts for s in self._topology.subtopologies for topic in s.sources):
            return  # deleted in this moment
        subtopology_partitions(self._topology, counts)
        publish_topology(self._directory.application, self._published_topology())

    def _published_topology(self) -> PublishedTopology:
        level = self._config.default_state_isolation_level
        counts = {name: info.partitions for name, info in self._topics.found.items()}
        counts = {**wanted_partitions(created_topics(self._topology), counts), **counts}  # some may not be made yet
        partitions = {s.ordinal: max(counts[topic.name] for topic in s.sources) for s in self._topology.subtopologies}
        return PublishedTopology.of(self._topology, partitions, level, self._topics.counted)

    def _join(self) -> None:
        self._global_tables.open()
        self._committer.settle()
        self._consumer = self._log.consumer(self._group, instance_id=self._config.group_instance_id)
        self._subscribed = False
        self._say_tasks()

    def _subscribe(self) -> None:
        """Take part in the group: from here on it must be polled."""
        topics = [topic.name for subtopology in self._topology.subtopologies for topic in subtopology.sources]
        self._group_consumer().subscribe(topics, self._assigned, self._revoked, self._suspended)
        self._subscribed = True

    def _turn(self) -> None:
        """One round: poll, process in slices, restore a slice, commit when due."""
        if not self._global_tables.advance(_IDLE_POLL_S):
            self._socket.serve_pending()
            return
        if not self._subscribed:
            self._subscribe()
        self._tasks.open_waiting()
        records = self._poll()
        if self._failed is not None:  # a commit failed while partitions were revoked: its transaction must not go on
            raise self._failed
        self._work_off(self._of_this_epoch(by_partition(records)))
        if self._restorer.busy:
            self._run_restored(_IDLE_POLL_S)
        self._upgrades.advance()
        self._commit_if_due()
        self._between_slices()
        self._housekeeping.clean_if_due(self._tasks.all)

    def _poll(self) -> list[Record]:
        try:
            wait_s = 0.0 if self._restorer.busy else _IDLE_POLL_S
            return self._group_consumer().poll(self._pace.poll_records, wait_s)
        except FencedError as error:
            # Two that take the same identity from each other would go on for ever: this one ends.
            raise LockedError(f"Another worker took over this one's identity, so this one stops: {error}") from error

    def _of_this_epoch(
        self, groups: Mapping[TopicPartition, Sequence[Record]]
    ) -> Mapping[TopicPartition, Sequence[Record]]:
        """What may be processed now of what was polled; the rest waits for the end of the epoch (`epochs`)."""
        if self._epochs.is_open:
            return groups
        self._epochs.poll()
        self._commit_if_due()
        self._epochs.move_on(self._next_offsets())
        records, pause, resume = self._epochs.cut(groups)
        self._group_consumer().pause(pause)
        self._group_consumer().resume(resume)
        return records

    def _next_offsets(self) -> dict[TopicPartition, int]:
        return {partition: at for task in self._tasks.running for partition, at in task.processing.next_offsets.items()}

    def _work_off(self, groups: Mapping[TopicPartition, Sequence[Record]]) -> None:
        """Process what a poll brought. What takes too long goes back to the log: the group wants to be polled."""
        deadline = time.monotonic() + _POLL_PATIENCE_S
        self._turns += 1
        first = self._turns % max(len(groups), 1)  # another one each time: none is always the one that has to wait
        for source, records in [*groups.items()][first:] + [*groups.items()][:first]:
            task = self._tasks.by_source.get(source)
            if task is None or task.state is not TaskState.RUNNING:
                continue
            if records[0].offset < task.processing.next_offsets.get(source, 0):
                self._topics.refuse_to_go_back(
                    source,
                    records[0].offset,
                    task.processing.next_offsets[source],
                    self._tasks.by_source,
                    self._group_consumer(),
                )
            if self._order.holds(source):
                self._order.add(source, records)
                continue
            done = self._process(task, records, deadline)
            if done < len(records) and not self._stopping:
                if self._epochs.forget(source):
                    self._group_consumer().resume([source])
                self._group_consumer().seek(source, records[done].offset)
        if self._order.is_needed:
            self._work_off_in_order(deadline)

    def _work_off_in_order(self, deadline: float) -> None:
        """Process what is due in order of time, of all that was read (`record_order`)."""
        consumer = self._group_consumer()
        for records in self._order.take(consumer.lag):
            task = self._tasks.by_source[TopicPartition(records[0].topic, records[0].partition)]
            self._order.give_back(records[self._process(task, records, deadline) :])
        consumer.pause(self._order.to_pause())
        consumer.resume(self._order.to_resume())

    def _process(self, task: Task, records: Sequence[Record], deadline: float) -> int:
        """Process records of one partition in slices, answering queries and committing in between; how many."""
        at = 0
        while at < len(records) and not self._stopping and time.monotonic() < deadline:
            slice_, size = self._pace.cut(records, at)
            if self._pace.would_cross(self.staged_bytes(), size, self._config.worker_uncommitted_max_bytes):
                self._commit(to_free_memory=True)
            before, started = self.staged_bytes(), time.perf_counter()
            self._committer.send(task.processing.process(slice_))
            took_s = time.perf_counter() - started
            self._pace.learn(len(slice_), size, took_s, self.staged_bytes() - before)
            self._reporter.figures.processed(len(slice_), took_s)
            at += len(slice_)
            self._commit_if_due()
            self._between_slices()
        return at

    def _commit_if_due(self) -> None:
        if time.monotonic() - self._last_commit >= self._config.commit_interval_ms / 1000:
            if self._tasks.dirty() and self._topics.is_due:
                self._topics.look(self._tasks.by_source, self._group_consumer())
            self._commit()

    def staged_bytes(self) -> int:
        """Memory that the next commit frees, over all tasks."""
        return sum(task.staged_bytes for task in self._tasks.running)

    def _between_slices(self) -> None:
        for task in self._tasks.running:
            self._committer.send(task.processing.punctuate_by_clock())
            task.stores.publish_staged()
        self._socket.serve_pending()
        self._reporter.report_if_due(self._tasks.all.values(), self._group_consumer())

    def _commit(self, *, to_free_memory: bool = False) -> None:
        """Commit every task that has read anything since its last commit; in the middle of an epoch only those that
        nobody reads yet, or will read again when it has ended (`epochs`)."""
        epochs = self._epochs.numbers() if self._epochs.is_reached(self._next_offsets()) else None
        if epochs is not None:
            tasks = [task for task in self._tasks.running if task.processing.dirty or not task.marks.is_in_step(epochs)]
        elif self._committer.is_all_or_nothing:
            tasks = self._tasks.dirty() if to_free_memory else []
        else:
            tasks = [task for task in self._tasks.dirty() if to_free_memory or task.marks.is_loading()]
        if tasks:
            began_s = time.perf_counter()
            self._committer.commit(tasks, self._group_consumer(), self._socket.serve_uncommitted, epochs or NO_EPOCHS)
            self._reporter.figures.committed(time.perf_counter() - began_s, forced=to_free_memory)
            self._socket.announce_commit()
            self._purge.after_commit(self._tasks.running)
        if tasks or epochs is not None:
            self._last_commit = time.monotonic()

    def _start_over(self, error: StatelineError) -> None:
        """Drop what is not committed, settle the transaction, join again; every task restores from its own offsets."""
        self._failed = None
        peace = time.monotonic() - self._last_restart > _PEACE_S  # also of a worker with nothing to commit
        self._restarts = 1 if peace else self._restarts + 1
        self._last_restart = time.monotonic()
        if self._restarts > _MAX_RESTARTS:
            raise error
        logger.warning("Starting over from the last commit: %s", error)
        self._tasks.drop_all()
        self.failures.take_dead_letters()  # their records are read again
        self._epochs.start_over()
        if self._consumer is not None:
            self._consumer.close()
        time.sleep(min(0.1 * 2**self._restarts, 5.0))  # a broker that is away gets time to come back
        self._join()

    # ---- tasks come and go

    def _assigned(self, partitions: list[TopicPartition]) -> None:
        self._tasks.assign(partitions, self._group_consumer())
        self._publish_topology()
        self._run_restored(0.0)
        self._say_tasks()

    def _suspended(self, partitions: list[TopicPartition]) -> None:
        self._commit_to_let_go()
        if self._failed is None:
            self._tasks.suspend()
        else:
            self._tasks.revoke(partitions)
        self._say_tasks()

    def _revoked(self, partitions: list[TopicPartition]) -> None:
        self._commit_to_let_go()
        self._tasks.revoke(partitions)
        self._say_tasks()

    def _commit_to_let_go(self) -> None:
        """A commit that fails loses nothing: what was staged is dropped, and read again by whoever goes on.

        The whole group waits for it, so all of it has one deadline.
        """
        try:
            with self._log.patience.for_all(_LET_GO_S):
                if self._tasks.dirty():
                    # A topic that was created anew moves its partitions.
                    self._topics.look(self._tasks.by_source, self._group_consumer())
                self._commit()
            if self._committer.is_all_or_nothing and self._tasks.dirty():
                raise RetryLaterError("Partitions were taken in the middle of an epoch.")
        except DoesNotExistError as error:  # a topic that was deleted may be made anew at once
            self._failed = LogUnavailableError(str(error))
        except _Mendable as error:
            self._failed = error

    def _forget(self, source: TopicPartition) -> None:
        """Records that were read of it and not processed are read again by whoever goes on."""
        self._epochs.forget(source)
        self._order.forget(source)

    def _run_restored(self, timeout_s: float) -> None:
        restored = self._tasks.run_restored(timeout_s, self._group_consumer())
        self._reporter.figures.restored(self._restorer.take_read())
        if restored:
            self._say_tasks()
            self._socket.announce_commit()  # what they restored was committed too, with its Position

    def _hosted_partition(self, store: str, partition: int) -> HostedPartition | None:
        task = self._tasks.of_store(store, partition)
        if task is None or task.state not in _SERVED:
            return None
        found = task.stores.by_name[store]
        return HostedPartition(found, _SERVED[task.state]) if isinstance(found, TransactionalStore) else None

    def _group_consumer(self) -> Consumer:
        if self._consumer is None:
            raise AssertionError("The worker has not joined its group yet.")
        return self._consumer

    def _say_tasks(self) -> None:
        self._instance.update(
            self._socket_path, {str(id_): str(task.state) for id_, task in self._tasks.all.items()}, self._process_id
        )

    def _leave(self) -> None:
        """Let go in this order: the group first (its listener commits), then stores, producer, socket, presence.

        All of it, whatever fails on the way; the last failure is raised then.
        """
        with ExitStack() as last_first:
            last_first.callback(self._instance.remove)
            last_first.callback(self._admin.close)
            last_first.callback(self._socket.close)
            last_first.callback(self._committer.close)
            last_first.callback(self._restorer.close)
            last_first.callback(self._epochs.close)
            last_first.callback(self._global_tables.close)
            last_first.callback(self._upgrades.close)
            last_first.callback(self._tasks.drop_all)
            if self._consumer is not None:
                last_first.callback(self._consumer.close)
