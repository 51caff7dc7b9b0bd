"""The newest records of a topic, in bounded memory and time, without what is too large for a page.

Offsets do not tell how many records there are, because transaction markers and aborted records have offsets too. So the
end of each partition is read, and more of it if that had too few records.
"""

from __future__ import annotations

import heapq
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log, log_exists
from stateline.log.committed_records import records_between
from stateline.log.interface import Log, Record
from stateline.processing.failures import DEAD_LETTER
from stateline_store import LogUnavailableError, TopicPartition

MOST = 200
"""How many there are at most."""
_MOST_BYTES = 64 * 1024  # of a key, of a value, of all headers
_KEPT_BYTES = 16 * 1024 * 1024
_WITHIN_S = 3.0
_POLL_RECORDS = 32  # of any size
# Offsets of each partition to read first, and the factor for each further try.
_OFFSETS, _MORE = 2 * MOST, 16


class KeptRecord(NamedTuple):
    """A record, and which of its `key`, `value` and `headers` are left out because they are too large. Headers that
    describe a dead letter stay, cut off."""

    record: Record
    left_out: Sequence[str]
    bytes: int

    @classmethod
    def of(cls, record: Record) -> KeptRecord:
        sizes = {
            "key": len(record.key or b""),
            "value": len(record.value or b""),
            "headers": sum(len(name) + len(value or b"") for name, value in record.headers),
        }
        left_out = [name for name, size in sizes.items() if size > _MOST_BYTES]
        cut = [(name, value and value[:_MOST_BYTES]) for name, value in record.headers if name.startswith(DEAD_LETTER)]
        kept = record._replace(
            key=None if "key" in left_out else record.key,
            value=None if "value" in left_out else record.value,
            headers=cut if "headers" in left_out else record.headers,
        )
        size = sum(len(each or b"") for each in (kept.key, kept.value, *(value for _, value in kept.headers)))
        return cls(kept, left_out, size)


class _Newest:
    """The newest of the added records, of each partition in order: `MOST` of each, `_KEPT_BYTES` of all."""

    def __init__(self) -> None:
        self._parts: defaultdict[int, deque[KeptRecord]] = defaultdict(deque)
        self._bytes = 0
        self.has_enough = False

    def add(self, record: Record) -> None:
        part, kept = self._parts[record.partition], KeptRecord.of(record)
        part.append(kept)
        self._bytes += kept.bytes
        if len(part) > MOST:
            self._drop(part)
        while self._bytes > _KEPT_BYTES:
            self._drop(min(filter(None, self._parts.values()), key=lambda each: each[0].record.timestamp_ms))

    def _drop(self, part: deque[KeptRecord]) -> None:
        self._bytes -= part.popleft().bytes
        self.has_enough = True

    def sorted(self) -> list[KeptRecord]:
        """Return the newest first: by offset in a partition, by time between partitions."""
        parts: Iterable[Iterable[KeptRecord]] = (reversed(part) for part in self._parts.values())
        return list(heapq.merge(*parts, key=lambda kept: -kept.record.timestamp_ms))[:MOST]


def newest_records(config: Config, topic: str) -> list[KeptRecord]:
    """Return the newest records of this topic, newest first; none without the topic. Blocks for some seconds at most.

    Raises `LogUnavailableError` if they do not come in that time, and what the log raises.
    """
    if not log_exists(config):
        return []
    until_s = time.monotonic() + _WITHIN_S
    with closing(configured_log(config, read_only=True)) as log, log.patience.for_all(_WITHIN_S):
        with closing(log.admin()) as admin:
            info = admin.topics([topic]).get(topic)
            if info is None:
                return []
            firsts = {place: first for place, (first, _) in admin.bounds(info.places).items()}
            ends = admin.committed_ends(info.places)
        return _newest_of(log, firsts, ends, until_s)


def _newest_of(
    log: Log, firsts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], until_s: float
) -> list[KeptRecord]:
    offsets, found = _OFFSETS, list[KeptRecord]()
    while True:
        bounds = {place: (max(firsts[place], end - offsets), end) for place, end in ends.items()}
        bounds = {place: (first, end) for place, (first, end) in bounds.items() if first < end}
        newest = _between(log, bounds, until_s)
        if newest is None:
            if not found:
                raise LogUnavailableError(f"The last records of {next(iter(bounds))} did not come in {_WITHIN_S:g} s.")
            return found
        found = newest.sorted()
        is_whole = all(first == firsts[place] for place, (first, _) in bounds.items())
        if is_whole or newest.has_enough or len(found) == MOST:
            return found
        offsets *= _MORE


def _between(log: Log, bounds: Mapping[TopicPartition, tuple[int, int]], until_s: float) -> _Newest | None:
    """Return the newest records of these offsets; None if the time is over first."""
    newest = _Newest()
    records = records_between(log, bounds, "ask again", silence_s=_WITHIN_S, at_once=_POLL_RECORDS)
    with closing(records):
        for record in records:
            newest.add(record)
            if time.monotonic() > until_s:
                return None
    return newest
