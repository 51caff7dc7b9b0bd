"""Takes polled records through the tasks, slice by slice.

A slice takes a few milliseconds (`pace`). After each slice the worker commits if a commit is due, calls punctuations
that are due by the clock, answers queries and reports figures. Records that are not processed in time go back to the
log, because the group must be polled.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

from stateline.log.interface import Consumer, Record
from stateline.processing.reading import by_partition
from stateline.processing.records import OutputRecord
from stateline.worker.commit.commit_order import Committer
from stateline.worker.commit.commit_schedule import CommitSchedule
from stateline.worker.commit.epochs import EpochGate
from stateline.worker.context import WorkerContext
from stateline.worker.loop.pace import SlicePace
from stateline.worker.loop.partition_queues import in_order_of_time, rising
from stateline.worker.loop.record_order import RecordOrder
from stateline.worker.loop.reporting import Reporter
from stateline.worker.tasks.task import Task, TaskState
from stateline.worker.tasks.tasks import Tasks
from stateline.worker.tasks.topic_watch import TopicWatch
from stateline_store import TopicPartition

# After this long without a poll, unprocessed records go back to the log and the group is polled.
_POLL_PATIENCE_S = 2.0
# Output records are sent in parts of about 4 ms. Queries are answered between them.
_SENT_RECORDS = 2_000
_WRITTEN_MS = itemgetter(OutputRecord._fields.index("timestamp_ms"))


class TaskExecutor:
    """`rounds` counts polls; once `stopping`, the slice that runs is the last."""

    def __init__(
        self,
        context: WorkerContext,
        tasks: Tasks,
        committer: Committer,
        commits: CommitSchedule,
        topics: TopicWatch,
        epochs: EpochGate,
        reporter: Reporter,
    ) -> None:
        self.rounds = 0
        self.stopping = False
        self._tasks = tasks
        self._committer = committer
        self._commits = commits
        self._topics = topics
        self._epochs = epochs
        self._order = RecordOrder.of(context)
        self._followed = 0  # `Tasks.changes` at the last `RecordOrder.follow`
        self._context = context
        self._reporter = reporter
        self._dead_letter_topic = context.config.dead_letter_topic
        self._uncommitted_max_bytes = context.config.worker_uncommitted_max_bytes
        self._pace = SlicePace()

    @property
    def poll_records(self) -> int:
        return self._pace.poll_records

    def work_off(self, polled: list[Record], consumer: Consumer) -> None:
        """Process polled and kept records, as far as they are due."""
        if polled:  # the poll took about as long as a slice
            self.rest(consumer)
        groups = self._of_this_epoch(by_partition(polled), consumer)
        self._look_at_order()
        deadline = time.monotonic() + _POLL_PATIENCE_S
        self.rounds += 1
        first = self.rounds % max(len(groups), 1)  # another partition is first each time, so each waits equally
        for source, records in [*groups.items()][first:] + [*groups.items()][:first]:
            task = self._tasks.by_source.get(source)
            if task is None or task.state is not TaskState.RUNNING:
                continue
            passed = max(task.processing.next_offsets.get(source, 0), self._order.end(source))
            if records[0].offset < passed:
                self._topics.refuse_to_go_back(source, records[0].offset, passed, self._tasks.by_source, consumer)
            if self._order.holds(source):
                self._order.add(source, task.processing.stamped(records))
                continue
            done = self._process(task, records, consumer, deadline)
            if done < len(records) and not self.stopping:
                if self._epochs.forget(source):
                    consumer.resume([source])
                consumer.seek(source, records[done].offset)
        if self._order.is_needed:
            self._work_off_in_order(consumer, deadline)

    def _look_at_order(self) -> None:
        self._order.tick(time.monotonic())
        if self._followed != self._tasks.changes:
            self._followed = self._tasks.changes
            self._order.follow(self._tasks.by_source)

    def forget(self, source: TopicPartition) -> None:
        """Drop its unprocessed records: the partition's next owner reads them again."""
        self._epochs.forget(source)
        self._order.forget(source)
        if (task := self._tasks.by_source.get(source)) is not None and task.state in (
            TaskState.RUNNING,
            TaskState.SUSPENDED,
        ):
            task.processing.forget(source)

    def has_worked_since(self, began_s: float, consumer: Consumer) -> bool:
        """Return whether work since then has lasted (`CommitSchedule`). False while records wait for their turn."""
        waits = any(self._order.waiting(source) for source in self._tasks.by_source)
        return not waits and self._commits.has_worked_since(began_s, consumer)

    def between_slices(self, consumer: Consumer, rests_s: float = 0.0, *, punctuates: bool = True) -> None:
        """Do what is due by the clock, tell readers elsewhere what is staged, and `rest`."""
        for task in self._tasks.running:
            if punctuates:
                self._committer.send(task.processing.act_by_clock(self._is_full))
            task.stores.publish_staged()
        self.rest(consumer, rests_s)

    def rest(self, consumer: Consumer | None, rests_s: float = 0.0) -> None:
        """Answer queries for `rests_s` seconds, at least those that have arrived. Report figures once a second."""
        self._context.queries.let_in(rests_s, stay=True)
        self._reporter.report_if_due(self._tasks.all.values(), consumer, self._order.waiting)

    def _of_this_epoch(
        self, groups: Mapping[TopicPartition, Sequence[Record]], consumer: Consumer
    ) -> Mapping[TopicPartition, Sequence[Record]]:
        """Return the records to process now. The rest waits for the end of the epoch (`epochs`)."""
        if not self._epochs.is_needed:
            return groups
        self._epochs.poll()
        self._commits.commit_if_due(consumer)
        self._epochs.move_on(self._tasks.next_offsets())
        records, pause, resume = self._epochs.cut(groups)
        consumer.pause(pause)
        consumer.resume(resume)
        return records

    def _work_off_in_order(self, consumer: Consumer, deadline: float) -> None:
        def lag(source: TopicPartition) -> int | None:
            return consumer.lag(source) if self._tasks.by_source[source].state is TaskState.RUNNING else None

        while not self.stopping and time.monotonic() < deadline:
            if not (taken := self._order.take(lag, self._pace.records)):
                break
            self._process_together(taken, consumer, deadline)
        if full := self._order.to_pause():
            consumer.pause(full)
        if has_room := self._order.to_resume():
            consumer.resume(has_room)

    def _process_together(self, taken: Sequence[Sequence[Record]], consumer: Consumer, deadline: float) -> None:
        """Process records of several tasks, of one span of time. Send their output in order of time before the next
        commit. Records beyond the limit of staged bytes are given back."""
        self._make_room(0, consumer, slices=-(-sum(map(len, taken)) // self._pace.records))
        written, is_first = list[list[OutputRecord]](), True
        for records in taken:
            at, of_these = 0, list[OutputRecord]()
            task = self._tasks.by_source[TopicPartition(records[0].topic, records[0].partition)]
            while at < len(records) and not self.stopping and time.monotonic() < deadline:
                slice_, size = self._pace.cut(records, at)
                if not is_first:
                    if self._would_cross(size):
                        break
                    self.between_slices(consumer, punctuates=False)
                of_these += self._processed(task, slice_, size)
                at, is_first = at + len(slice_), False
            if at < len(records):
                self._order.give_back(records[at:])
            if of_these:
                written.append(of_these)
        self._send_in_order(written)
        self._commits.commit_if_due(consumer)
        self.between_slices(consumer)

    def _send_in_order(self, written: Sequence[Sequence[OutputRecord]]) -> None:
        outputs = in_order_of_time(written, (rising(self._times_of(each)) for each in written))
        for at in range(0, len(outputs), _SENT_RECORDS):
            if at:
                self._context.queries.let_in()
            self._committer.send(outputs[at : at + _SENT_RECORDS])

    def _times_of(self, written: Sequence[OutputRecord]) -> Iterable[int]:
        """Return the times of these. A dead letter has the machine's time, and holds no record back."""
        if (topic := self._dead_letter_topic) is None:
            return map(_WRITTEN_MS, written)
        return (-1 if output.topic == topic else output.timestamp_ms for output in written)

    def _process(self, task: Task, records: Sequence[Record], consumer: Consumer, deadline: float) -> int:
        at = 0
        while at < len(records) and not self.stopping and time.monotonic() < deadline:
            slice_, size = self._pace.cut(records, at)
            self._make_room(size, consumer)
            self._committer.send(self._processed(task, task.processing.stamped(slice_), size))
            at += len(slice_)
            self._commits.commit_if_due(consumer)
            self.between_slices(consumer)
        return at

    def _make_room(self, size: int, consumer: Consumer, slices: int = 1) -> None:
        if self._would_cross(size, slices):
            self._commits.commit(consumer, to_free_memory=True)

    def _is_full(self) -> bool:
        return self._would_cross(0, slices=0)

    def _would_cross(self, size: int, slices: int = 1) -> bool:
        return self._pace.would_cross(self._tasks.staged_bytes(), size, self._uncommitted_max_bytes, slices)

    def _processed(self, task: Task, slice_: Sequence[Record], size: int) -> list[OutputRecord]:
        before, started = self._tasks.staged_bytes(), time.perf_counter()
        outputs = task.processing.process(slice_)
        took_s = time.perf_counter() - started
        self._pace.learn(len(slice_), size, took_s, self._tasks.staged_bytes() - before)
        self._context.figures.processed(len(slice_), took_s)
        self._commits.trace.processed(str(task.id), slice_, took_s)
        return outputs
