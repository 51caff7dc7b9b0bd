"""What topics hold now, all of it: what a sink looks up when it starts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing

from stateline.log import Log, Record
from stateline_store import LogUnavailableError, TopicPartition

_POLL_RECORDS = 10_000
_SILENCE_S = 30.0  # without a record, and without coming to the end


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


def records_between(log: Log, bounds: Mapping[TopicPartition, tuple[int, int]], way_out: str) -> Iterator[Record]:
    """The committed records of each partition from the first offset to before the second, each partition's in order;
    some behind it may come, too.

    Raises `LogUnavailableError` when nothing comes for 30 s; its message ends with the `way_out`.
    """
    with closing(log.consumer()) as consumer:
        consumer.assign({place: first for place, (first, _) in bounds.items()})
        heard = time.monotonic()
        while left := [place for place, (_, end) in bounds.items() if (consumer.next_offset(place) or 0) < end]:
            records = consumer.poll(_POLL_RECORDS, 0.1)
            yield from records
            if records:
                heard = time.monotonic()
            elif time.monotonic() - heard > _SILENCE_S:
                raise LogUnavailableError(
                    f"{left[0]} could not be read up to offset {bounds[left[0]][1] - 1}: {way_out}."
                )


def _bounds(log: Log, partitions: Mapping[str, int]) -> dict[TopicPartition, tuple[int, int]]:
    """The first offset kept, and the one after the last committed."""
    places = [TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)]
    with closing(log.admin()) as admin:
        return {place: admin.watermarks(place) for place in places}
