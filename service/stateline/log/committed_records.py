"""Reads the committed records between two offsets, or the one of an offset. Aborted records, transaction markers and
compacted records leave gaps."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import closing

from stateline.log.interface import Log, Record
from stateline_store import LogUnavailableError, TopicPartition

_POLL_RECORDS = 10_000
_SILENCE_S = 30.0  # without a record or the end


def records_between(
    log: Log,
    bounds: Mapping[TopicPartition, tuple[int, int]],
    way_out: str,
    *,
    silence_s: float = _SILENCE_S,
    at_once: int = _POLL_RECORDS,
) -> Generator[Record]:
    """Yield the committed records of each partition, from the first offset to before the second, in order. Some later
    records may follow. At most `at_once` records are in memory, besides the log's own prefetch. Raises
    `LogUnavailableError`, ending with `way_out`, after `silence_s` without a record."""
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


def record_at(log: Log, place: TopicPartition, offset: int) -> Record | None:
    """Return the record of this offset; None if the log has deleted it. Raises `LogUnavailableError` if the log gives
    no record for 30 s."""
    with closing(records_between(log, {place: (offset, offset + 1)}, "try again", at_once=1)) as records:
        found = next(records, None)
    return found if found is not None and found.offset == offset else None
