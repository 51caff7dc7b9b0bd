"""From where to where `stateline consume` reads each partition.

| written                | means                                                                        |
|------------------------|------------------------------------------------------------------------------|
| ``earliest``           | the first record kept                                                        |
| ``latest``             | the end as it is now                                                         |
| ``1200``               | that offset                                                                  |
| ``2013-05-01T12:00Z``  | the first record whose timestamp in the log is at least that (ISO 8601)       |
| ``-15m``               | the same, so long ago: ``ms``, ``s``, ``m``, ``h`` or ``d``                   |
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stateline.log.interface import Admin
from stateline.serde.iso_times import epoch_ms, iso_time
from stateline.serde.plain import shown
from stateline_store import InvalidArgumentError, TopicPartition
from stateline_store.clock import now_ms

_AGO = re.compile(r"-(\d{1,12})(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_ACCEPTED = "earliest, latest, an offset, a time of ISO 8601 with a zone or a duration ago as in -15m is accepted."


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A word, an offset, or a time in milliseconds. One of the three is set."""

    word: str | None = None
    offset: int | None = None
    time_ms: int | None = None

    def offset_in(self, admin: Admin, partition: TopicPartition, first: int, end: int) -> int:
        if self.word is not None:
            return first if self.word == "earliest" else end
        if self.offset is not None:
            return self.offset
        assert self.time_ms is not None, "one of the three is given"
        return admin.offset_at(partition, max(self.time_ms, 0))


def place_of(option: str, text: str) -> LogPlace:
    """Read an option's value. Raises `InvalidArgumentError` with the option and its value."""
    if text in ("earliest", "latest"):
        return LogPlace(word=text)
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return LogPlace(offset=int(text))
    if (ago := _AGO.fullmatch(text)) is not None:
        return LogPlace(time_ms=now_ms() - int(ago[1]) * _UNIT_MS[ago[2]])
    try:
        return LogPlace(time_ms=epoch_ms(iso_time(text)))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{option} {shown(text)}: {_ACCEPTED}") from error


def ranges(
    admin: Admin,
    partitions: Sequence[TopicPartition],
    begin: LogPlace,
    until: LogPlace | None,
    *,
    committed: bool,
    follow: bool,
) -> dict[TopicPartition, tuple[int, int | None]]:
    """Return the offset to begin with and the offset to end before, by partition. The end is that of now unless `until`
    says less, and None with `follow`. `committed`: open transactions do not count."""
    found: dict[TopicPartition, tuple[int, int | None]] = {}
    bounds = admin.bounds(partitions)
    ends = admin.committed_ends(partitions) if committed else {each: end for each, (_, end) in bounds.items()}
    for partition in partitions:
        first, end = bounds[partition][0], ends[partition]
        start = max(begin.offset_in(admin, partition, first, end), first)
        stop = None if until is None else until.offset_in(admin, partition, first, end)
        if not follow:
            stop = end if stop is None else min(stop, end)
        found[partition] = start, stop
    return found
