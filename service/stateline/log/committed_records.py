"""What is committed between two offsets of a topic. Offsets alone do not tell: those of aborted records, of markers of
transactions and of what compaction removed have no record."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import closing

from stateline.log.interface import Log, Record
from stateline_store import LogUnavailableError, TopicPartition

_POLL_RECORDS = 10_000
_SILENCE_S = 30.0  # without a record, and without coming to the end


def records_between(
    log: Log,
    bounds: Mapping[TopicPartition, tuple[int, int]],
    way_out: str,
    *,
    silence_s: float = _SILENCE_S,
    at_once: int = _POLL_RECORDS,
) -> Generator[Record]:
    """The committed records of each partition from the first offset to before the second, each partition's in order;
    some behind it may come, too. Aborted records and markers of transactions are no records. No more than `at_once`
    are in memory at a time, besides what the log has fetched ahead.

    Raises `LogUnavailableError` when nothing comes for so long; its message ends with the `way_out`.
    """
    with closing(log.consumer()) as consumer:
        consumer.assign({place: first for place, (first, _) in bounds.items()})
        heard = time.monotonic()
        while left := [place for place, (_, end) in bounds.items() if (consumer.next_offset(place) or 0) < end]:
            records = consumer.poll(at_once, 0.1)
            yield from records
            if records:
                heard = time.monotonic()
            elif time.monotonic() - heard > silence_s:
                raise LogUnavailableError(
                    f"{left[0]} could not be read up to offset {bounds[left[0]][1] - 1}: {way_out}."
                )
