"""Order of time between the topics of a task, where its operators need it (`Subtopology.needs_order`).

As Kafka Streams with ``max.task.idle.ms=0``: of the next record of each of the task's partitions the one with the
smallest timestamp is taken. One of which nothing is here is waited for as long as there is known to be more of it on
the log, and not when what was read last was its end. So input that lies there when the worker starts is taken in
order; of input that comes while it runs, what has arrived. Within a partition the order is that of the offsets.

An open transaction may count as more to come: those behind it wait until it ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from stateline.log.interface import Record
from stateline.model.topology import Topology
from stateline.processing.clock import MACHINE_CLOCK, Clock
from stateline.worker.pace import POLL_BYTES
from stateline.worker.polled_records import size_of
from stateline_store import TopicPartition, TopologyError
from stateline_store.windowed_keys import MAX_TIMESTAMP_MS

# Of one partition more than this many records are not kept waiting here: Kafka Streams' buffered.records.per.partition.
_MAX_WAITING = 1_000

Lag = Callable[[TopicPartition], int | None]


class RecordOrder:
    """One worker's, on its thread. Records that wait are not processed: after a restart they are read again."""

    def __init__(self, topology: Topology, max_timestamp_ahead_ms: int = -1, clock: Clock = MACHINE_CLOCK) -> None:
        """Records that are further ahead of the clock (-1: none), which the tasks will refuse, hold nobody back.

        Raises `TopologyError` where a pipeline's whole epochs come in, which have an order of their own.
        """
        epochs = {topic for results in topology.whole_epochs().values() for topic in results}
        self._max_ahead_ms = max_timestamp_ahead_ms
        self._clock = clock
        self._together: dict[str, tuple[str, ...]] = {}  # topic → those that it is in order with; at one time the first
        for subtopology in (s for s in topology.subtopologies if s.needs_order()):
            topics = sorted(subtopology.sources, key=lambda topic: not subtopology.tables(topic.name))
            names = tuple(topic.name for topic in topics)
            if both := sorted(epochs.intersection(names)):
                raise TopologyError(
                    f"{both[0]!r} is the result of a pipeline with whole_epochs=True, and a join here takes it and "
                    f"{', '.join(sorted(set(names) - set(both)))} in order of time: leave whole_epochs out, or join in "
                    "the pipeline."
                )
            self._together.update(dict.fromkeys(names, names))
        self._waiting: dict[TopicPartition, list[Record]] = {}
        self._paused: set[TopicPartition] = set()

    @property
    def is_needed(self) -> bool:
        """Whether there is anything that needs it."""
        return bool(self._together)

    def holds(self, source: TopicPartition) -> bool:
        """Whether records of this partition are to be added here, and processed when they are taken."""
        return source.topic in self._together

    def add(self, source: TopicPartition, records: Sequence[Record]) -> None:
        """These were read behind all that was added."""
        self._waiting.setdefault(source, []).extend(records)

    def take(self, lag: Lag) -> list[list[Record]]:
        """For each task the records whose turn it is, of several partitions, in order. `lag`: `Consumer.lag`."""
        tasks = dict.fromkeys((self._together[source.topic], source.partition) for source in self._waiting)
        return [
            taken for topics, number in tasks if (taken := self._take([TopicPartition(t, number) for t in topics], lag))
        ]

    def give_back(self, records: Sequence[Record]) -> None:
        """The last of those that a task was given, which it has not processed."""
        given: dict[TopicPartition, list[Record]] = {}
        for record in records:
            given.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        for source, first in given.items():
            self._waiting[source] = first + self._waiting.get(source, [])

    def to_pause(self) -> list[TopicPartition]:
        """Partitions of which enough waits here. Pause them."""
        found = [
            source for source, records in self._waiting.items() if source not in self._paused and _is_full(records)
        ]
        self._paused.update(found)
        return found

    def to_resume(self) -> list[TopicPartition]:
        """Those among them of which there is room again. Resume them."""
        found = [source for source in self._paused if not _is_full(self._waiting.get(source, ()))]
        self._paused.difference_update(found)
        return found

    def forget(self, source: TopicPartition) -> None:
        """It went to another worker, or is read again."""
        self._waiting.pop(source, None)
        self._paused.discard(source)

    def _take(self, sources: Sequence[TopicPartition], lag: Lag) -> list[Record]:
        queues = [self._waiting.get(source, []) for source in sources]
        has_more = [lag(source) != 0 for source in sources]
        taken, counts = in_order(queues, has_more, self._latest_ms())
        for source, queue, count in zip(sources, queues, counts, strict=True):
            del queue[:count]
            if not queue:
                self._waiting.pop(source, None)
        return taken

    def _latest_ms(self) -> int:
        return MAX_TIMESTAMP_MS if self._max_ahead_ms < 0 else self._clock.now_ms() + self._max_ahead_ms


def in_order(
    queues: Sequence[Sequence[Record]], has_more: Sequence[bool], latest_ms: int = MAX_TIMESTAMP_MS
) -> tuple[list[Record], list[int]]:
    """The records whose turn it is, and how many of each queue. `has_more`: there is more of it on the log. One that is
    later than `latest_ms` is taken at once. Pure."""

    def time_of(record: Record) -> int:
        return record.timestamp_ms if record.timestamp_ms <= latest_ms else -1

    counts = [0] * len(queues)
    if any(more and not queue for queue, more in zip(queues, has_more, strict=True)):
        return [], counts
    heads = [(time_of(queue[0]), place) for place, queue in enumerate(queues) if queue]
    heapq.heapify(heads)
    taken: list[Record] = []
    while heads:
        place = heads[0][1]
        if len(heads) == 1:
            taken += queues[place][counts[place] :]
            counts[place] = len(queues[place])
            break
        taken.append(queues[place][counts[place]])
        counts[place] += 1
        if counts[place] < len(queues[place]):
            heapq.heapreplace(heads, (time_of(queues[place][counts[place]]), place))
        else:
            heapq.heappop(heads)
            if has_more[place]:
                break
    return taken, counts


def _is_full(records: Sequence[Record]) -> bool:
    return len(records) > _MAX_WAITING or size_of(records) > POLL_BYTES
