"""Event time: a topic's `timestamp=` tells a record's time, in place of the log's.

As in Kafka Streams' `RecordQueue`, it is asked once after the record was read, before records of several partitions are
ordered by time. It gets the partition's time: the largest of the records before. A field's number is milliseconds. Text
is ISO 8601 with a zone. A time is valid from 0 to `MAX_TIMESTAMP_MS`. If it is not:

| policy           | the record                                                                                    |
|------------------|-----------------------------------------------------------------------------------------------|
| `fail`           | meets ``deserialization.exception.handler``, like an unreadable record                        |
| `skip`           | is left out, and counted among those that operators drop                                      |
| `partition_time` | gets the partition's time; before the first valid one it is handled as under `fail`           |

A function that raises is handled as under `fail` with each policy. Kafka Streams ends then.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from stateline.log.interface import Record
from stateline.model.event_time import EventTime
from stateline.model.topic import Topic
from stateline.processing.clock import MACHINE_CLOCK, Clock
from stateline.processing.failures import FailureHandler, Raised, reading_of
from stateline.processing.reading import SOURCE, typed
from stateline.serde.iso_times import epoch_ms, iso_time
from stateline.serde.plain import shown
from stateline_store import InvalidArgumentError, TopicPartition
from stateline_store.rows.windowed_keys import MAX_TIMESTAMP_MS

UNKNOWN_MS = -1
"""A partition's time before its first record, as Kafka Streams' `RecordQueue.UNKNOWN`."""
PARTITION_TIME = TopicPartition("$partition-time", 0)
"""Under which a table's store has the time of its partition beside its offset. On disk: never change."""

_ABSENT = object()


class EventTimes:
    """The times of the partitions that one task, or one restore, reads. For one thread. A record is `stamped` once, in
    the order of its partition, and later `admitted`. `partition_times` are those of admitted records, for the next
    commit."""

    def __init__(
        self,
        topics: Iterable[Topic],
        max_ahead_ms: int = -1,
        partition_times: Mapping[TopicPartition, int] = MappingProxyType({}),
        clock: Clock = MACHINE_CLOCK,
    ) -> None:
        """`max_ahead_ms`: see `reading.timely`. Records beyond it do not change a partition's time."""
        self._topics = {topic.name: topic for topic in topics if topic.event_time is not None}
        self._max_ahead_ms, self._clock = max_ahead_ms, clock
        known = partition_times.items()
        self.partition_times = {source: at for source, at in known if source.topic in self._topics and at >= 0}
        self._ahead: dict[TopicPartition, int] = {}  # partition times of what was stamped
        self._refused: dict[TopicPartition, dict[int, tuple[Record, Raised | None]]] = {}

    def concern(self, topic: str) -> bool:
        return topic in self._topics

    def stamped(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return the next records of their partitions with their event times. A record without a valid time gets -1, so
        that it holds nobody back, and `admitted` decides."""
        if not self._topics or not records:
            return records
        latest_ms, found = self._latest_ms(), list[Record]()
        for name, run in itertools.groupby(records, SOURCE):
            these = list(run)
            found += self._stamp(TopicPartition(*name), these, latest_ms) if name[0] in self._topics else these
        return found

    def admitted(self, records: Sequence[Record], failures: FailureHandler | None) -> Sequence[Record]:
        """Return the stamped records to process. Every other record meets its policy, or is dropped without `failures`,
        because it met its policy before. Raises `RecordError` under the policy fail."""
        if not self._topics:
            return records
        latest_ms, found = self._latest_ms(), list[Record]()
        for name, run in itertools.groupby(records, SOURCE):
            if name[0] not in self._topics:
                found += run
                continue
            source = TopicPartition(*name)
            taken = self._without_refused(source, list(run), failures)
            at = max((record.timestamp_ms for record in taken if record.timestamp_ms <= latest_ms), default=UNKNOWN_MS)
            if at > self.partition_times.get(source, UNKNOWN_MS):
                self.partition_times[source] = at
            found += taken
        return found

    def forget(self, source: TopicPartition) -> None:
        """Forget stamped records of this partition that were not admitted: they are stamped again."""
        self._ahead.pop(source, None)
        self._refused.pop(source, None)

    def _latest_ms(self) -> int:
        return MAX_TIMESTAMP_MS if self._max_ahead_ms < 0 else self._clock.now_ms() + self._max_ahead_ms

    def _stamp(self, source: TopicPartition, records: Iterable[Record], latest_ms: int) -> Iterator[Record]:
        topic = self._topics[source.topic]
        before = max(self._ahead.get(source, UNKNOWN_MS), self.partition_times.get(source, UNKNOWN_MS))
        for record in records:
            at = event_time_of(topic, record, before)
            if not isinstance(at, int):
                self._refused.setdefault(source, {})[record.offset] = record, at
                yield record._replace(timestamp_ms=UNKNOWN_MS)
                continue
            if before < at <= latest_ms:
                before = self._ahead[source] = at
            name, partition, offset, _, key, value, headers = record
            yield Record(name, partition, offset, at, key, value, headers)  # a third of what _replace costs

    def _without_refused(
        self, source: TopicPartition, records: list[Record], failures: FailureHandler | None
    ) -> list[Record]:
        refused = self._refused.get(source)
        if not refused:
            return records
        taken: list[Record] = []
        for record in records:
            if (found := refused.pop(record.offset, None)) is None:
                taken.append(record)
            elif failures is not None:
                original, error = found
                if error is None:
                    failures.drop(1, "no_timestamp", reading_of(record.topic))
                else:
                    failures.cannot_read(original, error)
        return taken


def event_time_of(topic: Topic, record: Record, partition_time_ms: int) -> int | Raised | None:
    """Return the record's time by the topic's `event_time`, or the error of its failure, or None to leave it out."""
    event_time = topic.event_time
    assert event_time is not None, "who asks has looked"
    try:
        found, problem = _asked(event_time, topic, record, partition_time_ms)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's function may raise anything, as a processor
        return error
    if found is not None:
        return found
    if event_time.on_invalid == "skip":
        return None
    if event_time.on_invalid == "partition_time":
        if partition_time_ms >= 0:
            return partition_time_ms
        problem = f"{problem} And its partition has no time yet that it could have instead"
    return InvalidArgumentError(
        f"It has no valid timestamp ({event_time.described}): {problem}. Let on_invalid_timestamp of the topic be skip "
        "or partition_time, or give a function."
    )


def _asked(
    event_time: EventTime, topic: Topic, record: Record, partition_time_ms: int
) -> tuple[int, str] | tuple[None, str]:
    """Return the time that it tells, or None and why there is none. Raises what serdes and the function raise."""
    if event_time.path is None:
        assert callable(event_time.source), "what is no field is a function"
        said = event_time.source(typed(topic, record), partition_time_ms)
        return _milliseconds(said, "it returned")
    if record.value is None:
        return None, "it is a deletion, which has no value"
    value = topic.value.deserialize(record.value)
    for name in event_time.path:
        found = value.get(name, _ABSENT) if isinstance(value, dict) else getattr(value, name, _ABSENT)
        if found is _ABSENT:
            return None, f"there is no {name!r} in {shown(value)}"
        value = found
    if isinstance(value, datetime):
        value = value.isoformat()
    if not isinstance(value, str):
        return _milliseconds(value, "it is")
    try:
        return _milliseconds(epoch_ms(iso_time(value)), f"{shown(value)} is")
    except InvalidArgumentError as error:
        return None, str(error)


def _milliseconds(said: Any, how: str) -> tuple[int, str] | tuple[None, str]:
    if isinstance(said, float) and math.isfinite(said):
        said = int(said)
    try:
        at = None if isinstance(said, bool) else operator.index(said)
    except TypeError:
        at = None
    if at is None:
        return None, f"{how} {shown(said)}, and milliseconds since 1970 are a number"
    if not 0 <= at <= MAX_TIMESTAMP_MS:
        return None, f"{how} {at}, and milliseconds since 1970 are 0 to {MAX_TIMESTAMP_MS}"
    return at, ""
