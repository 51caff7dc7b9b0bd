"""Reads what a sink needs from its topics at the start: records, offsets and markers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

from stateline.deployment.pipelines.epoch_marker import EpochMarker
from stateline.log import Log, Record
from stateline.log.committed_records import records_between
from stateline_store import TopicPartition

LOOK_BACK = 64  # offsets: the newest marker is among the last ones, unless many transactions were aborted


def last_offsets(log: Log, partitions: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return topic → partition, as text → the last offset, if any. `partitions` are the topics' counts."""
    ends: dict[str, dict[str, int]] = {topic: {} for topic in partitions}
    for (topic, partition), (_, end) in _bounds(log, partitions).items():
        if end > 0:
            ends[topic][str(partition)] = end - 1
    return ends


def all_records(log: Log, partitions: Mapping[str, int]) -> Iterator[Record]:
    """Yield every committed record of these topics, each partition's in order. `partitions` are their counts. Raises
    `LogUnavailableError` if one does not come."""
    bounds = {place: (first, end) for place, (first, end) in _bounds(log, partitions).items() if first < end}
    yield from records_between(log, bounds, "start the pipeline again when the log answers")


def _bounds(log: Log, partitions: Mapping[str, int]) -> dict[TopicPartition, tuple[int, int]]:
    places = [TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)]
    with closing(log.admin()) as admin:
        return {place: admin.watermarks(place) for place in places}


def newest_markers(log: Log, topic: str) -> list[EpochMarker]:
    """Return the newest committed markers, in order: up to some dozens, or none. Unless older producers are fenced, one
    may commit another marker later."""
    partition = TopicPartition(topic, 0)
    with closing(log.admin()) as admin:
        first, end = admin.watermarks(partition)
    span = LOOK_BACK
    while first < end:
        start = max(first, end - span)
        records = records_between(log, {partition: (start, end)}, "try again when the log answers")
        values = [record.value for record in records if record.value is not None]
        if values or start == first:
            return [EpochMarker.decode(value) for value in values]
        span *= 16
    return []
