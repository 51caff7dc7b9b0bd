"""Whole epochs: if a pipeline asks for it, readers at READ_COMMITTED see a micro-batch completely or not at all.

`docs/design/whole-epochs.md` has the rules. The worker reads markers beside its input. It takes no record beyond the
end of one epoch, its **target**. It commits when all of its partitions have reached that end, every store with the
marker's next offset under ``<epochs topic>-0`` in its `offsets`. The next target is the newest epoch. Epochs between
are passed over, because their records may have been compacted away. A store of no whole epoch has the number `LOADING`,
or none yet.

Kafka's own commit markers reach partitions at different moments. So a record can come before the marker of its epoch,
and waits. In a compacted topic the last record of an epoch may be missing: a record beyond the end shows that the end
is reached.
"""

from __future__ import annotations

import contextlib
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from stateline.deployment.pipelines.epoch_marker import EpochMarker
from stateline.log.interface import Consumer, Log, Record
from stateline.model.topology import Topology
from stateline.worker.tasks.commit_marks import EpochNumbers
from stateline_store import DoesNotExistError, LogUnavailableError, StatelineError, TopicPartition

# How often the worker polls markers. Rows become visible so much later than the micro-batch's commit.
_LOOK_S = 0.01
_LOOK_FOR_TOPICS_S = 0.5
_MAX_MARKERS = 1000
_OFFSET = attrgetter("offset")


@dataclass(frozen=True, slots=True)
class Epoch:
    """One micro-batch: its number, which is the marker's next offset, and the last offset of each partition then.

    `ends` is None if the pipeline did not ask for whole epochs then: its end is unknown, and no record is in it. The
    next start of the pipeline's driver writes a marker with the ends.
    """

    number: int
    ends: Mapping[TopicPartition, int] | None

    def bound(self, partition: TopicPartition) -> int:
        return 0 if self.ends is None else self.ends.get(partition, -1) + 1


def epoch_of(record: Record) -> Epoch:
    """Return the epoch of a marker. Raises `DamagedDataError` for a record that is no marker."""
    if record.value is None:
        return Epoch(record.offset + 1, None)
    marker = EpochMarker.decode(record.value, f"Record {record.offset} of {record.topic}")
    return Epoch(record.offset + 1, marker.last_offsets())


class Epochs:
    """One pipeline's epochs, as one worker goes through them. Positions are next offsets of its result partitions.
    Pure."""

    def __init__(self) -> None:
        self.newest = self.target = Epoch(0, {})  # before the first micro-batch there is nothing

    def begin(self) -> None:
        if self.target.number == 0:
            self.target = self.newest

    def move_on(self, positions: Mapping[TopicPartition, int]) -> None:
        """Make the newest epoch the target if the last one is reached or passed. Call it after a due commit."""
        passed = any(at > self.target.bound(partition) for partition, at in positions.items())
        if passed or self.target.ends is None or self.is_reached(positions):
            self.target = self.newest

    def is_reached(self, positions: Mapping[TopicPartition, int]) -> bool:
        return self.target.ends is not None and all(
            at == self.target.bound(partition) for partition, at in positions.items()
        )


@dataclass(slots=True)
class _Pipeline:
    epochs_topic: str
    results: frozenset[str]
    epochs: Epochs = field(default_factory=Epochs)


class PolledEpoch(NamedTuple):
    """The records to process now, and the partitions to pause and to resume."""

    records: dict[TopicPartition, Sequence[Record]]
    pause: list[TopicPartition]
    resume: list[TopicPartition]


class EpochGate:
    """Without pipelines of whole epochs every record passes."""

    def __init__(self, log: Log, topology: Topology) -> None:
        self._log = log
        self._pipelines = [_Pipeline(epochs, results) for epochs, results in topology.whole_epochs().items()]
        self._of_topic = {result: each for each in self._pipelines for result in each.results}
        self._consumer: Consumer | None = None
        self._assigned: set[TopicPartition] = set()
        self._unread: dict[TopicPartition, int] = {}  # the ends of markers' topics that are not read up to there yet
        self._has_looked = False
        self._look_s = self._look_for_topics_s = 0.0
        self._beyond: dict[TopicPartition, Sequence[Record]] = {}  # beyond the target; their partitions are paused
        self._passed: dict[TopicPartition, int] = {}  # the offset after the last record that has passed

    @property
    def is_needed(self) -> bool:
        return bool(self._pipelines)

    def look_now(self) -> None:
        """Let the next `poll` read markers in any case."""
        self._look_s = 0.0

    def poll(self) -> None:
        """Read new markers. Raises `LogUnavailableError`, and `DamagedDataError` for a record that is no marker."""
        now_s = time.monotonic()
        if not self.is_needed or now_s < self._look_s:
            return
        self._look_s = now_s + _LOOK_S
        if len(self._assigned) < len(self._pipelines) and now_s >= self._look_for_topics_s:
            self._look_for_topics_s = now_s + _LOOK_FOR_TOPICS_S
            self._look_for_topics()
        if self._consumer is None:
            return
        try:
            markers = self._consumer.poll(_MAX_MARKERS, 0.0)
        except DoesNotExistError as error:  # a pipeline that starts over deletes it
            raise LogUnavailableError(f"A pipeline's markers are gone: {error}") from error
        for record in markers:
            next(p for p in self._pipelines if p.epochs_topic == record.topic).epochs.newest = epoch_of(record)
        self._unread = {tp: end for tp, end in self._unread.items() if (self._consumer.next_offset(tp) or 0) < end}
        if not self._unread:
            for pipeline in self._pipelines:
                pipeline.epochs.begin()

    def cut(self, polled: Mapping[TopicPartition, Sequence[Record]]) -> PolledEpoch:
        """Return the polled and kept records that are not beyond their target. Keeps the others."""
        found = PolledEpoch({}, [], [])
        for partition in {**polled, **self._beyond}:
            records = [*self._beyond.get(partition, ()), *polled.get(partition, ())]
            taken = self._taken(partition, records)
            if taken:
                found.records[partition] = records[:taken]
                self._passed[partition] = records[taken - 1].offset + 1
            if taken < len(records):
                if partition not in self._beyond:
                    found.pause.append(partition)
                self._beyond[partition] = records[taken:]
            elif self._beyond.pop(partition, None) is not None:
                found.resume.append(partition)
        return found

    def forget(self, partition: TopicPartition) -> bool:
        """Drop kept records of a partition that another worker reads, or that is read again. Returns whether it was
        paused."""
        self._passed.pop(partition, None)
        return self._beyond.pop(partition, None) is not None

    def move_on(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        for pipeline in self._pipelines:
            pipeline.epochs.move_on(self._positions(pipeline, next_offsets))

    def is_reached(self, next_offsets: Mapping[TopicPartition, int]) -> bool:
        """Return whether all partitions are at the end of their epoch. False until all existing markers are read."""
        if not self.is_needed:
            return True
        return (
            self._has_looked
            and not self._unread
            and all(p.epochs.is_reached(self._positions(p, next_offsets)) for p in self._pipelines)
        )

    def numbers(self) -> EpochNumbers:
        return {TopicPartition(each.epochs_topic, 0): each.epochs.target.number for each in self._pipelines}

    def start_over(self) -> None:
        """Forget everything: tasks are opened again, and the topics may be others of the same names."""
        self.close()
        self._has_looked, self._look_for_topics_s = False, 0.0
        self._beyond, self._passed = {}, {}
        for pipeline in self._pipelines:
            pipeline.epochs = Epochs()

    def close(self) -> None:
        if self._consumer is not None:
            with contextlib.suppress(StatelineError):  # what its last `poll` has not raised: nobody reads on there
                self._consumer.close()
        self._consumer, self._assigned, self._unread = None, set(), {}

    def _taken(self, partition: TopicPartition, records: Sequence[Record]) -> int:
        pipeline = self._of_topic.get(partition.topic)
        if pipeline is None:
            return len(records)
        bound = pipeline.epochs.target.bound(partition)
        return bisect_left(records, bound, key=_OFFSET)

    def _positions(self, pipeline: _Pipeline, next_offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        found = {}
        for partition, at in next_offsets.items():
            if partition.topic in pipeline.results:
                bound, kept = pipeline.epochs.target.bound(partition), self._beyond.get(partition)
                is_done = kept is not None and at >= self._passed.get(partition, 0)
                # No record is between the last one and a kept one: the end of the epoch was compacted away.
                found[partition] = bound if kept and is_done and at < bound <= kept[0].offset else at
        return found

    def _look_for_topics(self) -> None:
        """If sinks have created more markers' topics, read all markers from the first on."""
        firsts: dict[TopicPartition, int] = {}
        ends: dict[TopicPartition, int] = {}
        with closing(self._log.admin()) as admin:
            for partition in self.numbers():
                with contextlib.suppress(DoesNotExistError):  # no micro-batch was written yet
                    firsts[partition], ends[partition] = admin.watermarks(partition)
        self._has_looked = True
        if firsts.keys() == self._assigned:
            return
        self.close()
        self._consumer = self._log.consumer()
        self._consumer.assign(firsts)
        self._assigned = set(firsts)
        self._unread = {partition: end for partition, end in ends.items() if end > firsts[partition]}
