"""Order of time over the partitions that a worker reads: which records are processed next.

| of                                                | the next records are                                           |
|---------------------------------------------------|----------------------------------------------------------------|
| topics of one task whose operators need it        | Those with the smallest timestamp. The worker waits for a topic |
| (`Subtopology.needs_order`)                       | that has more on the log, as Kafka Streams does with           |
|                                                   | ``max.task.idle.ms=0``.                                        |
| tasks of one subtopology that writes to topics    | Those with the smallest timestamp. What the tasks write is     |
|                                                   | merged by time (`in_order_of_time`). A partition without       |
|                                                   | records holds back what is ``max.partition.skew.ms`` ahead.    |
| subtopologies that write to one repartition topic | As those of one subtopology, unless one of them reads a        |
|                                                   | repartition topic itself.                                      |
| any other subtopology                             | not ordered here: no other task sees the difference            |

Within a partition the order is that of the offsets. A record without a valid timestamp holds nobody back.

A partition without records holds others back for a limited time:

| it                                     | holds others back for at most                              |
|----------------------------------------|------------------------------------------------------------|
| has more on the log                    | 5 s after its last record                                  |
| is read to its end                     | ``max.task.idle.ms``; not at all on the embedded log,      |
|                                        | whose end is known at each poll                            |
| restores, or nothing was heard of it   | ``max.task.idle.ms``                                       |

An open transaction may count as more to come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from stateline.log.interface import Record
from stateline.model.replay import repartition_topics, written_by
from stateline.model.topology import Subtopology, Topology
from stateline.processing.clock import MACHINE_CLOCK, Clock
from stateline.worker.context import WorkerContext
from stateline.worker.loop.partition_queues import ANYWHERE, Lag, PartitionGroup, PartitionQueue, in_order_of_time
from stateline_store import TopicPartition, TopologyError
from stateline_store.rows.windowed_keys import MAX_TIMESTAMP_MS
from stateline_store.task_id import TaskId

# Records of all partitions that wait in memory.
_WAITING_BYTES = 32 * 1024 * 1024
# Slices per call of `take`, and the least number of records per partition.
_SLICES, _LEAST_TAKEN = 8, 64
_FETCH_PATIENCE_S = 5.0
# A round that takes longer than this counts as this long: the worker was busy, and no partition was silent.
_LONGEST_ROUND_S = 0.1


@dataclass(frozen=True, slots=True)
class _Rule:
    """How a topic is read. Subtopologies with one `group` are in order with each other. With None, a partition is in
    order only with its task's. `PartitionQueue` explains the others."""

    group: int | None
    subtopology: int
    place: int
    is_table: bool
    is_strict: bool


class RecordOrder:
    """Records that wait are not processed: after a restart they are read again."""

    def __init__(
        self,
        topology: Topology,
        *,
        skew_ms: int = -1,
        idle_ms: int = 0,
        knows_ends: bool = True,
        max_timestamp_ahead_ms: int = -1,
        clock: Clock = MACHINE_CLOCK,
    ) -> None:
        """`skew_ms` -1 leaves tasks of one subtopology alone. `knows_ends`: a lag of 0 is that of this moment, not that
        of the last fetch. Records that are further ahead of the clock than the limit (-1: none), which the tasks will
        refuse, hold nobody back.

        Raises `TopologyError` where a pipeline's whole epochs come in, which have an order of their own.
        """
        self._has_skew = skew_ms >= 0
        self._skew_ms = skew_ms
        self._idle_s, self._knows_ends = idle_ms / 1000, knows_ends
        self._max_ahead_ms, self._clock = max_timestamp_ahead_ms, clock
        self._rules: dict[str, _Rule] = {}
        groups = _written_together(topology)
        epochs = {topic for results in topology.whole_epochs().values() for topic in results}
        for subtopology in topology.subtopologies:
            self._add_rules(subtopology, epochs, groups[subtopology.ordinal])
        self._groups: dict[tuple[int, int], PartitionGroup] = {}
        self._turn = 0
        self._now_s = self._seen_s = 0.0

    @classmethod
    def of(cls, context: WorkerContext) -> RecordOrder:
        config = context.config
        return cls(
            context.topology,
            skew_ms=config.max_partition_skew_ms,
            idle_ms=config.max_task_idle_ms,
            knows_ends=context.log.embedded_file is not None,
            max_timestamp_ahead_ms=config.max_timestamp_ahead_ms,
            clock=context.clock,
        )

    def _add_rules(self, subtopology: Subtopology, epochs: Collection[str], group: int) -> None:
        is_strict, names = subtopology.needs_order(), {topic.name for topic in subtopology.sources}
        if is_strict and (both := sorted(names.intersection(epochs))):
            raise TopologyError(
                f"{both[0]!r} is the result of a pipeline with whole_epochs=True, and a join here takes it and "
                f"{', '.join(sorted(names - set(both)))} in order of time: leave whole_epochs out, or join in "
                "the pipeline."
            )
        writes = self._has_skew and any(p.forwards or p.chooses_topic for p in subtopology.processors)
        if is_strict or (writes and names.isdisjoint(epochs)):
            topics = sorted(names, key=lambda topic: not subtopology.tables(topic))
            for place, topic in enumerate(topics):
                is_table = is_strict and bool(subtopology.tables(topic))
                self._rules[topic] = _Rule(group if writes else None, subtopology.ordinal, place, is_table, is_strict)

    @property
    def is_needed(self) -> bool:
        return bool(self._rules)

    def holds(self, source: TopicPartition) -> bool:
        """Return whether to `add` this partition's records: the worker has others that they are in order with."""
        if source.topic not in self._rules:
            return False
        queues = self._group(source).queues
        return len(queues) > 1 or any(queue.records for queue in queues.values())

    def tick(self, now_s: float) -> None:
        """Another poll has come back. `now_s` is of a clock that never goes back."""
        self._now_s += min(now_s - self._seen_s, _LONGEST_ROUND_S) if self._seen_s else 0.0
        self._seen_s = now_s

    def follow(self, sources: Iterable[TopicPartition]) -> None:
        kept = {source: self._queue(source) for source in sources if source.topic in self._rules}
        for group in self._groups.values():
            for source in group.queues.keys() - kept.keys():
                del group.queues[source]

    def add(self, source: TopicPartition, records: Sequence[Record]) -> None:
        self._queue(source).add(records, self._now_s)

    def waiting(self, source: TopicPartition) -> int:
        return len(self._waiting(source))

    def end(self, source: TopicPartition) -> int:
        """Return the offset after this partition's last waiting record; 0 if none waits."""
        waiting = self._waiting(source)
        return waiting[-1].offset + 1 if waiting else 0

    def _waiting(self, source: TopicPartition) -> Sequence[Record]:
        queue = self._group(source).queues.get(source) if source.topic in self._rules else None
        return () if queue is None else queue.records

    def take(self, lag: Lag, slice_records: int) -> list[Sequence[Record]]:
        """Return the records that are due, of one subtopology: a list for each task. Empty if all wait for others."""
        groups = list(self._groups.values())
        for _ in groups:
            self._turn += 1
            if taken := self._take(groups[self._turn % len(groups)], lag, slice_records):
                return taken
        return []

    def give_back(self, records: Sequence[Record]) -> None:
        """Take back unprocessed records, the last ones of a list from `take`."""
        given: dict[TopicPartition, list[Record]] = {}
        for record in records:
            given.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        for source, first in given.items():
            self._queue(source).give_back(first)

    def to_pause(self) -> list[TopicPartition]:
        """Return the partitions to pause: enough of their records wait here."""
        share = self._share()
        found = [queue for queue in self._queues() if not queue.is_paused and queue.is_full(share)]
        for queue in found:
            queue.is_paused = True
        return [queue.source for queue in found]

    def to_resume(self) -> list[TopicPartition]:
        """Return the paused partitions to resume: there is room again."""
        share = self._share() / 2
        found = [queue for queue in self._queues() if queue.is_paused and not queue.is_full(share)]
        for queue in found:
            queue.is_paused = False
        return [queue.source for queue in found]

    def forget(self, source: TopicPartition) -> None:
        """Drop this partition's waiting records: they are read again, here or by another worker."""
        if source.topic in self._rules and self._group(source).queues.pop(source, None) is not None:
            self._queue(source)

    def _queues(self) -> Iterator[PartitionQueue]:
        return (queue for group in self._groups.values() for queue in group.queues.values())

    def _share(self) -> float:
        return _WAITING_BYTES / max(sum(len(group.queues) for group in self._groups.values()), 1)

    def _group(self, source: TopicPartition) -> PartitionGroup:
        rule = self._rules[source.topic]
        key = (rule.subtopology, source.partition) if rule.group is None else (rule.group, -1)
        if (found := self._groups.get(key)) is None:
            found = self._groups[key] = PartitionGroup(None if rule.group is None else self._skew_ms)
        return found

    def _queue(self, source: TopicPartition) -> PartitionQueue:
        queues = self._group(source).queues
        if (found := queues.get(source)) is None:
            rule = self._rules[source.topic]
            task = TaskId(rule.subtopology, source.partition)
            found = queues[source] = PartitionQueue(
                source, task, rule.place, rule.is_table, rule.is_strict, self._now_s
            )
        return found

    def _take(self, group: PartitionGroup, lag: Lag, slice_records: int) -> list[Sequence[Record]]:
        waiting = [queue for queue in group.queues.values() if queue.records]
        if not waiting:
            return []
        window = max(_LEAST_TAKEN, min(slice_records, _SLICES * slice_records // len(waiting)))
        latest_ms = self._latest_ms()
        for queue in waiting:
            queue.look_at(window, latest_ms)
        # Beyond the last one that is looked at, the next of this partition comes first, and may be the last here.
        skew_ms = MAX_TIMESTAMP_MS if group.skew_ms is None else group.skew_ms
        lasts = (q.times[-1] + (skew_ms if q.is_seen_whole else 0) for q in waiting)
        limit_ms = min(self._held_at_ms(group, waiting, lag), *lasts)
        taken: dict[TaskId, list[tuple[PartitionQueue, int]]] = {}
        for queue, count in group.due(limit_ms, lag):
            taken.setdefault(queue.task, []).append((queue, count))
        found = [self._merged(each) for each in taken.values()]
        for queue, _ in (each for of_task in taken.values() for each in of_task):
            if queue.is_ignored and queue.time_ms >= max(q.time_ms for q in group.queues.values()) - skew_ms:
                queue.is_ignored = False
        return found

    def _merged(self, taken: list[tuple[PartitionQueue, int]]) -> Sequence[Record]:
        taken.sort(key=lambda each: each[0].place)
        lists = [queue.take(count, self._now_s) for queue, count in taken]
        return in_order_of_time([records for records, _ in lists], (times for _, times in lists))

    def _held_at_ms(self, group: PartitionGroup, waiting: Sequence[PartitionQueue], lag: Lag) -> float:
        """Return how far in time others may go because of partitions without records."""
        if group.skew_ms is None:
            return ANYWHERE
        furthest_ms = max(queue.times[-1] for queue in waiting)
        next_ms = max(queue.times[0] for queue in waiting)
        held_s = self._now_s - min(queue.since_s for queue in waiting)
        found: float = ANYWHERE
        for queue in group.queues.values():
            is_behind = queue.time_ms < max(0, furthest_ms - self._skew_ms)
            if is_behind and not (queue.records or queue.is_at_end):
                found = min(found, self._bound_ms(queue, lag(queue.source), next_ms, held_s))
        return found

    def _bound_ms(self, queue: PartitionQueue, more: int | None, next_ms: int, held_s: float) -> float:
        """Return how far others may go because of this partition, which has no records and is behind. One of them has
        been held back for `held_s`."""
        silent_s = self._now_s - queue.since_s
        bound_ms = queue.time_ms + self._skew_ms if queue.time_ms >= 0 else -1
        if more:
            return bound_ms if silent_s < _FETCH_PATIENCE_S else ANYWHERE
        queue.is_ignored |= (held_s if more == 0 else max(held_s, silent_s)) >= self._idle_s
        queue.is_at_end = queue.is_ignored or (more == 0 and (self._knows_ends or queue.is_table))
        if queue.is_at_end:
            return ANYWHERE
        if more == 0 and (queue.time_ms < 0 or silent_s >= self._idle_s):
            # Nobody has missed it so far: what comes next is taken at once, and what is far behind that waits for it.
            queue.time_ms, queue.since_s = max(queue.time_ms, next_ms), self._now_s
            return queue.time_ms + self._skew_ms
        return bound_ms

    def _latest_ms(self) -> int:
        return MAX_TIMESTAMP_MS if self._max_ahead_ms < 0 else self._clock.now_ms() + self._max_ahead_ms


def _written_together(topology: Topology) -> dict[int, int]:
    """Return a group number for each subtopology. Subtopologies that write to one repartition topic, and read none,
    share it."""
    found = {subtopology.ordinal: subtopology.ordinal for subtopology in topology.subtopologies}
    internal = repartition_topics(topology)
    outer = [s for s in topology.subtopologies if internal.isdisjoint(topic.name for topic in s.sources)]
    for repartition in internal:
        joined = {found[s.ordinal] for s in outer if repartition in written_by(s)}
        found = {ordinal: min(joined) if group in joined else group for ordinal, group in found.items()}
    return found
