"""Records of partitions that wait for their turn, and which of them are due. Pure.

Times are milliseconds since the epoch. A time of -1 stands for none: such a record is due at once.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import TypeVar

from stateline.log.interface import Record
from stateline.processing.reading import TIMESTAMP_MS, size_of
from stateline_store import TopicPartition
from stateline_store.task_id import TaskId

T = TypeVar("T")
Lag = Callable[[TopicPartition], int | None]
"""Returns the lag of a partition; None for unknown, or while its task restores."""

NOWHERE, ANYWHERE = -math.inf, math.inf
# A partition may always keep this much waiting. With less, Kafka would send most records twice.
_LEAST_BYTES, _LEAST_RECORDS = 256 * 1024, 64
_SAMPLED = 16


def in_order_of_time(lists: Sequence[Sequence[T]], times: Iterable[Sequence[float]]) -> Sequence[T]:
    """Merge these lists by time and keep the order within each. At equal times an earlier list comes first. `times` of
    a list never fall (`rising`), and are not read where there is one list."""
    if len(lists) < 2:
        return lists[0] if lists else []
    found, at = list(chain.from_iterable(lists)), list(chain.from_iterable(times))
    return [found[n] for n in sorted(range(len(found)), key=at.__getitem__)]


def rising(times: Iterable[int]) -> list[int]:
    """Return, at each of these times, the largest so far."""
    found = list(times)
    return found if found == sorted(found) else list(accumulate(found, max))


@dataclass(slots=True)
class PartitionQueue:
    """Waiting records of one partition.

    `place` orders topics of its task at equal times. `is_strict`: operators of the task need the exact order of its
    topics. `since_s` is when its first record arrived or its last one was taken. `time_ms` is the largest taken time,
    -1 before any. `is_ignored`: others no longer wait for it, because it was behind for too long. `is_at_end`: others
    do not wait for it until its next record arrives.
    """

    source: TopicPartition
    task: TaskId
    place: int
    is_table: bool
    is_strict: bool
    since_s: float
    records: list[Record] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    size: float = 0.0
    time_ms: int = -1
    is_paused: bool = False
    is_ignored: bool = False
    is_at_end: bool = False

    def add(self, records: Sequence[Record], now_s: float) -> None:
        if not self.records:
            self.since_s = now_s
        self.is_at_end = False
        self.records += records
        self.size += _about_size_of(records)

    def give_back(self, records: Sequence[Record]) -> None:
        self.records[:0] = records
        self.times = []
        self.size += _about_size_of(records)

    def look_at(self, count: int, latest_ms: int) -> None:
        """Fill `times` with those of the first records. A later time than `latest_ms` is none."""
        if (seen := len(self.times)) < min(count, len(self.records)):
            found = [max(self.times[-1:], default=-1), *map(TIMESTAMP_MS, self.records[seen:count])]
            if max(found) > latest_ms:
                found = [at if at <= latest_ms else -1 for at in found]
            self.times += rising(found)[1:]

    @property
    def is_seen_whole(self) -> bool:
        return len(self.times) >= len(self.records)

    def take(self, count: int, now_s: float) -> tuple[list[Record], list[int]]:
        taken, times = self.records[:count], self.times[:count]
        self.size -= self.size * count / len(self.records)
        del self.records[:count], self.times[:count]
        self.since_s, self.time_ms = now_s, max(self.time_ms, times[-1])
        return taken, times

    def is_full(self, share: float) -> bool:
        return self.size > share and (len(self.records) > _LEAST_RECORDS or self.size > _LEAST_BYTES)


def _about_size_of(records: Sequence[Record]) -> float:
    """Estimate `size_of` from every sixteenth record: measuring each costs as much as ordering it."""
    some = records[::_SAMPLED]
    return size_of(some) * len(records) / len(some)


@dataclass(frozen=True, slots=True)
class PartitionGroup:
    """Partitions in order with each other. One without records holds back others that are more than `skew_ms` ahead.
    With None, it holds back none."""

    skew_ms: int | None
    queues: dict[TopicPartition, PartitionQueue] = field(default_factory=dict)

    def due(self, limit_ms: float, lag: Lag) -> list[tuple[PartitionQueue, int]]:
        """Count the records of each queue up to the limit. Queues without any are left out."""
        waiting = [queue for queue in self.queues.values() if queue.records]
        ends = self._ends_of_tasks(waiting, lag)
        found = []
        for queue in waiting:
            count = bisect_right(queue.times, limit_ms)
            if (end := ends.get(queue.task)) is not None:
                end_ms, place = end
                # A record of equal time may follow that end, and comes before those of later places.
                count = min(count, (bisect_right if queue.place <= place else bisect_left)(queue.times, end_ms))
            if count:
                found.append((queue, count))
        return found

    def _ends_of_tasks(self, waiting: Sequence[PartitionQueue], lag: Lag) -> dict[TaskId, tuple[float, int]]:
        """Find, by strict task, time and place of the last record whose turn is known. Behind it a record may come that
        is not here yet."""
        furthest_ms: dict[TaskId, int] = {}
        for queue in waiting:
            if queue.is_strict:
                furthest_ms[queue.task] = max(furthest_ms.get(queue.task, -1), queue.times[-1])
        found: dict[TaskId, tuple[float, int]] = {}
        if not furthest_ms:
            return found
        for queue in self.queues.values():
            last_ms = queue.times[-1] if queue.records else NOWHERE
            if queue.task not in furthest_ms or last_ms > furthest_ms[queue.task]:
                continue
            if (queue.records and not queue.is_seen_whole) or lag(queue.source) != 0:
                found[queue.task] = min(found.get(queue.task, (ANYWHERE, 0)), (last_ms, queue.place))
        return found
