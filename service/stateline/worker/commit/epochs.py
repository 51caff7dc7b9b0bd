"""Whole epochs: of a pipeline that asks for it, readers at READ_COMMITTED see a micro-batch completely or not at all.

The pipeline's sink writes a micro-batch's rows and its marker in one transaction; the marker says where the
micro-batch ends in each partition of the result topics (``resultEnds``: `deployment.epoch_marker`). The worker reads
the markers beside its input. It takes no record beyond the end of one epoch, its **target**, and commits only when all
of its partitions have come to that end: then all of their stores, also those that the epoch has no row for, with the
marker's next offset under ``<epochs topic>-0`` in their `offsets`. That number is how readers tell whether partitions
are of one epoch (`stateline.server.state.epochs`). Then the newest epoch is the next target: those between are passed
over, because what they wrote may have been compacted away since.

A store whose rows are of no whole epoch has the number `LOADING`, or none yet, and nobody reads it: one that is
restored or read from the beginning, and one that is so far behind that its next epoch does not fit into
`statestore.uncommitted.max.bytes`. Such stores are committed in between.

Kafka's own commit markers reach partitions at different moments, so a record can come before the marker of its epoch:
it waits. Of a compacted topic the last record of an epoch may be gone: whoever has come to a record beyond the end has
come to the end.
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

from stateline.deployment.epoch_marker import EpochMarker
from stateline.log.interface import Consumer, Log, Record
from stateline.model.topology import Topology
from stateline.worker.tasks.commit_marks import EpochNumbers
from stateline_store import DoesNotExistError, LogUnavailableError, TopicPartition

# How often markers are looked for; so much later than the commit of the micro-batch its rows are seen.
_LOOK_S = 0.01
_LOOK_FOR_TOPICS_S = 0.5
_MAX_MARKERS = 1000
_OFFSET = attrgetter("offset")


@dataclass(frozen=True, slots=True)
class Epoch:
    """One micro-batch: its number, which is the marker's next offset, and the last offset of each partition then.

    `ends` is None of a time when the pipeline did not ask for whole epochs: nobody knows where it ends, so nothing is
    in it, and nobody comes to its end. The next start of the pipeline's driver says where all so far ends.
    """

    number: int
    ends: Mapping[TopicPartition, int] | None

    def bound(self, partition: TopicPartition) -> int:
        """The offset that is not in this epoch any more."""
        return 0 if self.ends is None else self.ends.get(partition, -1) + 1


def epoch_of(record: Record) -> Epoch:
    """What a marker says of ends.

    Raises `DamagedDataError` for what is no marker.
    """
    if record.value is None:
        return Epoch(record.offset + 1, None)
    marker = EpochMarker.decode(record.value, f"Record {record.offset} of {record.topic}")
    return Epoch(record.offset + 1, marker.last_offsets())


class Epochs:
    """The epochs of one pipeline, as one worker goes through them. Pure.

    Positions are next offsets of the result topics' partitions that the worker has.
    """

    def __init__(self) -> None:
        self.newest = self.target = Epoch(0, {})  # before the first micro-batch there is nothing

    def begin(self) -> None:
        """All markers that there are were read: nothing at all is the target no longer, if there is any."""
        if self.target.number == 0:
            self.target = self.newest

    def move_on(self, positions: Mapping[TopicPartition, int]) -> None:
        """Make the newest epoch the target, if all have come to the end of the last one, or one of them is beyond it.
        Call it when a commit that is due was made, if it could be: now is the moment that is whole."""
        passed = any(at > self.target.bound(partition) for partition, at in positions.items())
        if passed or self.target.ends is None or self.is_reached(positions):
            self.target = self.newest

    def is_reached(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Whether all are at the end of the target."""
        return self.target.ends is not None and all(
            at == self.target.bound(partition) for partition, at in positions.items()
        )


@dataclass(slots=True)
class _Pipeline:
    """One pipeline: its markers' topic, and the result topics that this application reads."""

    epochs_topic: str
    results: frozenset[str]
    epochs: Epochs = field(default_factory=Epochs)


class PolledEpoch(NamedTuple):
    """What is to be processed now, and the partitions to stop reading from and to go on with."""

    records: dict[TopicPartition, Sequence[Record]]
    pause: list[TopicPartition]
    resume: list[TopicPartition]


class EpochGate:
    """One worker's, on its thread. Without pipelines of whole epochs it lets everything through."""

    def __init__(self, log: Log, topology: Topology) -> None:
        self._log = log
        self._pipelines = [_Pipeline(epochs, results) for epochs, results in topology.whole_epochs().items()]
        self._of_topic = {result: each for each in self._pipelines for result in each.results}
        self._consumer: Consumer | None = None
        self._assigned: set[TopicPartition] = set()
        self._unread: dict[TopicPartition, int] = {}  # where the markers ended that were not read yet
        self._has_looked = False
        self._look_s = self._look_for_topics_s = 0.0
        self._beyond: dict[TopicPartition, Sequence[Record]] = {}  # beyond the target; their partitions are paused
        self._passed: dict[TopicPartition, int] = {}  # the offset after the last record that was let through

    @property
    def is_needed(self) -> bool:
        """Whether there is a pipeline of whole epochs: else nothing here needs to be asked."""
        return bool(self._pipelines)

    def look_now(self) -> None:
        """Let the next `poll` look for markers, however short ago the last one did."""
        self._look_s = 0.0

    def poll(self) -> None:
        """Read the markers that there are by now. Raises `LogUnavailableError`, or `DamagedDataError` for others."""
        now_s = time.monotonic()
        if not self.is_needed or now_s < self._look_s:
            return
        self._look_s = now_s + _LOOK_S
        if len(self._assigned) < len(self._pipelines) and now_s >= self._look_for_topics_s:
            self._look_for_topics_s = now_s + _LOOK_FOR_TOPICS_S
            self._look_for_topics()
        if self._consumer is None:
            return
        for record in self._markers(self._consumer):
            next(p for p in self._pipelines if p.epochs_topic == record.topic).epochs.newest = epoch_of(record)
        self._unread = {tp: end for tp, end in self._unread.items() if (self._consumer.next_offset(tp) or 0) < end}
        if not self._unread:
            for pipeline in self._pipelines:
                pipeline.epochs.begin()

    def _markers(self, consumer: Consumer) -> Sequence[Record]:
        """Raises `LogUnavailableError` when their topic is gone: whoever starts over deletes it with the results."""
        try:
            return consumer.poll(_MAX_MARKERS, 0.0)
        except DoesNotExistError as error:
            raise LogUnavailableError(f"A pipeline's markers are gone: {error}") from error

    def cut(self, polled: Mapping[TopicPartition, Sequence[Record]]) -> PolledEpoch:
        """Of what was polled now and kept before, the records that are not beyond their target; the others are kept."""
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
        """Drop what is kept of a partition, which went to another worker or is read again; whether it was paused."""
        self._passed.pop(partition, None)
        return self._beyond.pop(partition, None) is not None

    def move_on(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        """As `Epochs.move_on`, of every pipeline; `next_offsets` is how far the worker's tasks have come."""
        for pipeline in self._pipelines:
            pipeline.epochs.move_on(self._positions(pipeline, next_offsets))

    def is_reached(self, next_offsets: Mapping[TopicPartition, int]) -> bool:
        """Whether all partitions are at the end of their epoch, so that a commit is whole; never before all markers
        were read that there are."""
        if not self.is_needed:
            return True
        return (
            self._has_looked
            and not self._unread
            and all(p.epochs.is_reached(self._positions(p, next_offsets)) for p in self._pipelines)
        )

    def numbers(self) -> EpochNumbers:
        """What stores keep when the targets were reached, by its name (`Topology.epoch_numbers`)."""
        return {TopicPartition(each.epochs_topic, 0): each.epochs.target.number for each in self._pipelines}

    def start_over(self) -> None:
        """Forget everything: tasks are opened anew, and the topics may be others of the same names."""
        self.close()
        self._has_looked, self._look_for_topics_s = False, 0.0
        self._beyond, self._passed = {}, {}
        for pipeline in self._pipelines:
            pipeline.epochs = Epochs()

    def close(self) -> None:
        """Release the consumer."""
        if self._consumer is not None:
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
                # Nothing is between the last record and one that was kept: what the epoch ends with was compacted away.
                found[partition] = bound if kept and is_done and at < bound <= kept[0].offset else at
        return found

    def _look_for_topics(self) -> None:
        """Read all markers that there are from the first on, once there are more topics: the sinks create them."""
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
