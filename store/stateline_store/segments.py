"""Segments: how a store with a retention cuts time into pieces, so that old ones can be dropped as a whole.

A stored key is ``segment:i64 ‖ row key`` with ``segment = timestamp // interval``: all rows of a segment are
neighbours in the one database of the store, and one range delete, in the batch of the commit that expires them, drops
them (Kafka Streams keeps a database per segment, and loses late records by it). The numbers are Kafka Streams'
(`AbstractSegments`, `Stores`): stream time is the largest timestamp seen, never a clock, and

- a *put* is refused when its whole segment is older than ``stream time - retention``;
- a *read* sees nothing older than ``stream time - retention + 1``, whatever is still on disk.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

from stateline_store.errors import InvalidArgumentError
from stateline_store.scan import KeyRange, Scan, StoreIterator

PREFIX = struct.Struct(">q")  # on disk: never change
_LEAST_INTERVAL_MS = 60_000  # Kafka Streams' `Stores.persistentWindowStore`


class Scannable(Protocol):
    """What segments need of a reader (`readers.Reader`)."""

    def scan(self, keys: KeyRange, *, reverse: bool = False) -> StoreIterator:
        """The rows of this range in key order; a snapshot made now."""


@dataclass(frozen=True, slots=True)
class Segments:
    """How long rows are kept and how time is cut. All times are milliseconds. Thread-safe: it never changes."""

    retention_ms: int
    interval_ms: int

    @classmethod
    def of_retention(cls, retention_ms: int) -> Segments:
        """The cut of window and session stores. Raises `InvalidArgumentError` for a negative retention."""
        if retention_ms < 0:
            raise InvalidArgumentError(f"A retention of {retention_ms} ms: 0 or more is accepted.")
        return cls(retention_ms, max(retention_ms // 2, _LEAST_INTERVAL_MS))

    def id_of(self, timestamp_ms: int) -> int:
        """The segment of this timestamp, which must not be negative."""
        return timestamp_ms // self.interval_ms

    def oldest_live(self, stream_time_ms: int) -> int:
        """The oldest segment that still takes puts."""
        return max(0, stream_time_ms - self.retention_ms) // self.interval_ms

    def oldest_readable_ms(self, stream_time_ms: int) -> int:
        """The oldest timestamp that reads still show."""
        return max(0, stream_time_ms - self.retention_ms + 1)

    def readable(self, from_ms: int, to_ms: int, stream_time_ms: int) -> tuple[int, int]:
        """The part of this span of timestamps that reads show, both ends included; (1, 0) for none."""
        first, last = max(from_ms, self.oldest_readable_ms(stream_time_ms)), min(to_ms, stream_time_ms)
        return (first, last) if first <= last else (1, 0)

    def between(self, first_ms: int, last_ms: int) -> range:
        """The segments of these timestamps, both included, the oldest first; none when they are in the wrong order."""
        return range(self.id_of(first_ms), self.id_of(last_ms) + 1) if first_ms <= last_ms else range(0)

    def expired(self, before_ms: int, stream_time_ms: int) -> KeyRange | None:
        """The rows that are to go when stream time moves from `before_ms` to here; None for none."""
        old, new = self.oldest_live(before_ms), self.oldest_live(stream_time_ms)
        return KeyRange(PREFIX.pack(old), PREFIX.pack(new)) if new > old else None

    def all_expired(self, before_ms: int, stream_time_ms: int) -> KeyRange | None:
        """As `expired`, from the beginning of time: an earlier run with a longer retention has removed less."""
        return None if self.expired(before_ms, stream_time_ms) is None else self.expired(-1, stream_time_ms)


def scan_segments(
    reader: Scannable, segments: range, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
) -> StoreIterator:
    """(row key, value) of each of these segments, oldest first (newest first when `reverse`), in key order within one.

    `start` (included) and `end` (excluded, None open) bound the row key within each segment. All segments are seen at
    one moment: now.
    """
    # Opened now, all of them: between two of them no commit may come. A store has few segments (retention ÷ interval).
    scans = [reader.scan(_bounded(segment, start, end), reverse=reverse) for segment in segments]
    return Scan.of_chunks(_chained(scans[::-1] if reverse else scans))


def _bounded(segment: int, start: bytes, end: bytes | None) -> KeyRange:
    prefix = PREFIX.pack(segment)
    return KeyRange(prefix + start, PREFIX.pack(segment + 1) if end is None else prefix + end)


def _chained(scans: list[StoreIterator]) -> Generator[list[tuple[bytes, bytes]], None, None]:
    width = PREFIX.size
    try:
        for scan in scans:
            for chunk in scan.chunks():
                yield [(key[width:], value) for key, value in chunk]
    finally:
        for scan in scans:
            scan.close()
