"""What topics hold now, all of it: what a sink looks up when it starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

from stateline.log import Log, Record
from stateline.log.committed_records import records_between
from stateline_store import TopicPartition


def last_offsets(log: Log, partitions: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Topic → partition, as text → the last offset, where there is any; `partitions` are the topics' counts."""
    ends: dict[str, dict[str, int]] = {topic: {} for topic in partitions}
    for (topic, partition), (_, end) in _bounds(log, partitions).items():
        if end > 0:
            ends[topic][str(partition)] = end - 1
    return ends


def all_records(log: Log, partitions: Mapping[str, int]) -> Iterator[Record]:
    """Every committed record of these topics, each partition's in order; `partitions` are their counts.

    Raises `LogUnavailableError` when one does not come.
    """
    bounds = {place: (first, end) for place, (first, end) in _bounds(log, partitions).items() if first < end}
    yield from records_between(log, bounds, "start the pipeline again when the log answers")


def _bounds(log: Log, partitions: Mapping[str, int]) -> dict[TopicPartition, tuple[int, int]]:
    """The first offset kept, and the one after the last committed."""
    places = [TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)]
    with closing(log.admin()) as admin:
        return {place: admin.watermarks(place) for place in places}
