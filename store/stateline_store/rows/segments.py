"""Segments: the pieces of time of a store with a retention, each of which is dropped as a whole.

A stored key is ``segment:i64 ‖ row key`` with ``segment = timestamp // interval``. All rows of a segment are neighbours
in the store's one database. One range delete drops them, in the batch of the commit that expires them. (Kafka Streams
keeps a database per segment, and loses late records by it.) The numbers are Kafka Streams' (`AbstractSegments`,
`Stores`). Stream time is the largest timestamp seen, never a clock, and

- a *put* is refused if its whole segment is older than ``stream time - retention``;
- a *read* sees nothing older than ``stream time - retention + 1``, whatever is still on disk.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Protocol

from stateline_store.clock import now_ms
from stateline_store.errors import DamagedDataError, InvalidArgumentError
from stateline_store.scan import EVERY_KEY, KeyRange, Scan, StoreIterator

PREFIX = struct.Struct(">q")  # on disk: never change
# As many segments as a store has by its own retention (two or three, most of the time), with one to spare.
MOST_AT_ONCE = 4
EVERY_SEGMENT = KeyRange(PREFIX.pack(0), b"\x80")  # a versioned store's latest values, segment -1, stand behind
_LEAST_INTERVAL_MS = 60_000  # Kafka Streams' `Stores.persistentWindowStore`


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """The row keys from `start` (included) to `stop` (excluded, None open), in each of these segments."""

    segments: range
    start: bytes = b""
    stop: bytes | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no key can be inside."""
        return not self.segments

    @property
    def end(self) -> bytes:
        """A key above every stored key of a range that is not empty."""
        return self.within(self.segments[-1])[1]

    def within(self, segment: int) -> tuple[bytes, bytes]:
        """Return the stored keys of this range in that segment: the first, and the end (excluded)."""
        prefix = PREFIX.pack(segment)
        return prefix + self.start, PREFIX.pack(segment + 1) if self.stop is None else prefix + self.stop

    def of_sorted(self, keys: list[bytes]) -> list[bytes]:
        """Return the keys of the range among these ascending stored keys: two searches per existing segment."""
        found, segments = list[bytes](), self.segments
        until = bisect_left(keys, self.end) if segments else 0
        while segments:
            start, end = self.within(segments[0])
            low = bisect_left(keys, start, 0, until)
            high = bisect_left(keys, end, low, until)
            found += keys[low:high]
            if high == until:
                break
            segments = range(max(segment_of(keys[high]), segments.start + 1), segments.stop)
        return found


class Scannable(Protocol):
    """The part of a reader (`readers.Reader`) that segments need."""

    def scan(self, keys: KeyRange | SegmentRange, *, reverse: bool = False) -> StoreIterator:
        """Scan the rows of this range in key order, as they are now."""


@dataclass(frozen=True, slots=True)
class Segments:
    """A retention and a segment interval. All times are milliseconds. Thread-safe: it never changes."""

    retention_ms: int
    interval_ms: int
    by_clock: bool = False
    """Reads also go by the clock: they show nothing older than now less the retention."""

    @classmethod
    def of_retention(cls, retention_ms: int) -> Segments:
        """Make the segments of window and session stores. Raises `InvalidArgumentError` for a negative retention."""
        if retention_ms < 0:
            raise InvalidArgumentError(f"A retention of {retention_ms} ms: 0 or more is accepted.")
        return cls(retention_ms, max(retention_ms // 2, _LEAST_INTERVAL_MS))

    def id_of(self, timestamp_ms: int) -> int:
        """Return the segment of this timestamp, which must not be negative."""
        return timestamp_ms // self.interval_ms

    def oldest_live(self, stream_time_ms: int) -> int:
        """Return the oldest segment that still takes puts."""
        return max(0, stream_time_ms - self.retention_ms) // self.interval_ms

    def oldest_readable_ms(self, stream_time_ms: int) -> int:
        """Return the oldest timestamp that reads still show."""
        time_ms = max(stream_time_ms, now_ms()) if self.by_clock else stream_time_ms
        return max(0, time_ms - self.retention_ms + 1)

    def readable(self, from_ms: int, to_ms: int, stream_time_ms: int) -> tuple[int, int]:
        """Return the part of this span of timestamps that reads show, both ends included, (1, 0) for none."""
        first, last = max(from_ms, self.oldest_readable_ms(stream_time_ms)), min(to_ms, stream_time_ms)
        return (first, last) if first <= last else (1, 0)

    def between(self, first_ms: int, last_ms: int) -> range:
        """Return the segments of these timestamps, both included, oldest first, none for a wrong order."""
        return range(self.id_of(first_ms), self.id_of(last_ms) + 1) if first_ms <= last_ms else range(0)

    def expired(self, before_ms: int, stream_time_ms: int) -> KeyRange | None:
        """Return the rows that expire when stream time moves from `before_ms` to here, None for none."""
        old, new = self.oldest_live(before_ms), self.oldest_live(stream_time_ms)
        return KeyRange(PREFIX.pack(old), PREFIX.pack(new)) if new > old else None

    def all_expired(self, before_ms: int, stream_time_ms: int) -> KeyRange | None:
        """Return all rows that have expired by now, also those that an earlier run with a longer retention kept."""
        return None if self.expired(before_ms, stream_time_ms) is None else self.expired(-1, stream_time_ms)


def scan_segments(
    reader: Scannable, segments: range, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
) -> StoreIterator:
    """Scan (row key, value) of these segments, oldest first (newest first if `reverse`), in key order within a segment.

    `start` (included) and `end` (excluded, None open) bound the row key within each segment. The scan shows all
    segments at one moment. Segments need not exist: a store with a raised retention can have a thousand times as many
    as before, nearly all without rows.
    """
    keys = SegmentRange(segments, start, end)
    ranges: list[KeyRange | SegmentRange] = [keys]
    if not start and end is None and segments:
        ranges = [KeyRange(PREFIX.pack(segments[0]), keys.end)]  # one stretch
    elif len(segments) <= MOST_AT_ONCE:
        # Opened now, all of them: between two of them no commit may come. Each ends where its rows do.
        ranges = [KeyRange(*keys.within(segment)) for segment in segments]
    scans = [reader.scan(each, reverse=reverse) for each in ranges]
    return Scan.of_chunks(_chained(scans[::-1] if reverse else scans))


def existing(scan: Callable[[KeyRange], StoreIterator], segments: range) -> Iterator[int]:
    """Return the segments with rows, ascending, or all if they are few. The scanned rows must not change meanwhile."""
    if len(segments) <= MOST_AT_ONCE:
        return iter(segments)
    return present(scan, KeyRange(PREFIX.pack(segments[0]), SegmentRange(segments).end))


def present(scan: Callable[[KeyRange], StoreIterator], keys: KeyRange = EVERY_KEY) -> Iterator[int]:
    """Yield the segments with rows in this range, in stored order: a versioned store's -1 is last. One scan each."""
    while True:
        with scan(keys) as rows:
            row = next(rows, None)
        if row is None:
            return
        yield (segment := segment_of(row[0]))
        end = KeyRange.prefixed(PREFIX.pack(segment)).end
        if end is None:
            return
        keys = KeyRange(end, keys.end)


def segment_of(key: bytes) -> int:
    """Return the segment of this stored key. Latest values of a versioned store have -1 and sort last. Raises
    `DamagedDataError` for a key that is too short to have one."""
    try:
        return int(PREFIX.unpack_from(key)[0])
    except struct.error as error:
        raise DamagedDataError(f"The key {key!r} is too short to name a segment: rebuild the store.") from error


def _chained(scans: list[StoreIterator]) -> Generator[list[tuple[bytes, bytes]], None, None]:
    width = PREFIX.size
    try:
        for scan in scans:
            for chunk in scan.chunks():
                yield [(key[width:], value) for key, value in chunk]
    finally:
        for scan in scans:
            scan.close()
