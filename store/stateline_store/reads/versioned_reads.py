"""VersionedReads: the reads of a versioned store, over any Reader.

The same functions serve the store's owner, READ_COMMITTED readers and other processes. `versioned_rows` describes the
rows. A read stops at the history retention, whatever is still on disk: it sees versions that were valid at ``stream
time - retention`` or later, and always the latest value of a key, however old.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from functools import partial
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from stateline_store.engines.engine import no_key
from stateline_store.reads.merged_scans import ScanSource, merged
from stateline_store.reads.readers import Reader
from stateline_store.rows.segments import PREFIX, SegmentRange, Segments, existing, segment_of
from stateline_store.rows.timestamped_rows import split
from stateline_store.rows.versioned_rows import LATEST, bounds, find, versions
from stateline_store.scan import KeyRange, Scan

_TIMESTAMP = struct.Struct(">q")
_END_OF_TIME = 2**63 - 1
# A look-up of a row that is not there takes a third of a seek, and a store has 25 segments by its own retention.
_MOST_LOOK_UPS = 32


class VersionedRecord(NamedTuple):
    """A version of a key: valid from `timestamp` (included) to `valid_to` (excluded), in ms since the epoch. `valid_to`
    is None for the latest version, which is still valid."""

    value: bytes
    timestamp: int
    valid_to: int | None


class VersionedReads:
    """The reads of a versioned store. As thread-safe as its reader, which is not; lives as long as the reader.

    Every read raises what the reader raises, `InvalidArgumentError` for a key that is not bytes, and
    `DamagedDataError` for rows that make no sense.
    """

    def __init__(self, reader: Reader, segments: Segments) -> None:
        """`segments` holds the history retention and the segment interval, both as the store was declared."""
        self._reader = reader
        self._get = reader.get
        self._segments = segments

    def get(self, key: bytes) -> VersionedRecord | None:
        """Return the latest version, however old, None if the key was never put or was deleted last."""
        try:
            stored = self._get(LATEST + key)
        except TypeError as error:
            raise no_key(key) from error
        if stored is None:
            return None
        try:
            return VersionedRecord(stored[8:], _TIMESTAMP.unpack_from(stored)[0], None)
        except struct.error:
            return VersionedRecord(*split(stored), None)  # raises: it names the bytes that are damaged

    def get_as_of(self, key: bytes, as_of: int) -> VersionedRecord | None:
        """Return the version that was valid at this time (ms). Returns None if there was none, or if it is older than
        the history retention and not the latest."""
        latest = self.get(key)
        if latest is not None and latest.timestamp <= as_of:
            return latest
        if as_of < self._floor():
            return None
        for _, row in self.rows(key, as_of):
            if bounds(row)[1] <= as_of:
                timestamp, value, valid_to = find(row, as_of)
                return None if value is None else VersionedRecord(value, timestamp, valid_to)
        return None

    def get_versions(
        self, key: bytes, from_time: int | None = None, to_time: int | None = None, *, ascending: bool = False
    ) -> Scan[VersionedRecord]:
        """Scan the versions that were valid at some time from `from_time` to `to_time` (ms, both included, None open),
        newest first unless `ascending`. A time without a value has no version. If `from_time` is above `to_time`, the
        scan is empty.

        The scan is a snapshot: at most one row per segment, read now and decoded on the way, so it survives the closing
        of the store. It leaves out versions that ended before the history retention.
        """
        since = self._floor() if from_time is None else max(from_time, self._floor())
        latest = self.get(key)
        if to_time is None:
            return Scan(_records(latest, [row for _, row in self.rows(key, since)], since, _END_OF_TIME, ascending))
        if latest is not None and (latest.timestamp > to_time or (from_time is not None and from_time > to_time)):
            latest = None
        rows = [row for _, row in self.rows(key, since)] if since <= to_time else []
        return Scan(_records(latest, rows, since, to_time, ascending))

    def get_range(
        self, keys: KeyRange, as_of: int | None = None, *, reverse: bool = False
    ) -> Scan[tuple[bytes, VersionedRecord]]:
        """Scan (key, version) of all keys in this range with a version, by key, with the version of `get` or
        `get_as_of`.

        The scan is a snapshot. The latest versions take one scan. The versions of a time take one scan more for each
        segment in which their validity can have ended: it reads all versions that ended since.
        """
        if keys.is_empty:
            return merged([ScanSource(self._reader.scan(keys), _latest)], _ORDER, _row_key, reverse=reverse)
        end = None if keys.end is None else LATEST + keys.end
        latest = self._reader.scan(KeyRange(LATEST + keys.start, end), reverse=reverse)
        sources = [ScanSource(latest, partial(_latest, as_of=as_of))]
        if as_of is not None and as_of >= max(self._floor(), 0):
            segments = self._segments.between(as_of, self._reader.stream_time_ms)
            inside = SegmentRange(segments, keys.start, keys.end)
            for at in existing(self._reader.scan, segments):
                rows = self._reader.scan(KeyRange(*inside.within(at)), reverse=reverse)
                sources.append(ScanSource(rows, partial(_valid_at, as_of=as_of)))
        return merged(sources, _ORDER, _row_key, reverse=reverse)  # no two of them show a version of the same key

    def rows(self, key: bytes, since: int) -> Generator[tuple[int, bytes], None, None]:
        """(segment, row) of this key, the newest first, while rows end later than `since`."""
        segments = self._segments.between(max(since, 0), max(self._reader.stream_time_ms, 0))
        if len(segments) > _MOST_LOOK_UPS:
            yield from self._existing_rows(key, since, segments)
            return
        while segments:
            at = segments[-1]
            row = self._get(PREFIX.pack(at) + key)
            if row is None:
                segments = segments[:-1]
                continue
            valid_to, oldest = bounds(row)
            if valid_to <= since:
                return
            yield at, row
            # The next older row ends where this one begins, or before.
            segments = range(segments.start, min(at, self._segments.id_of(oldest) + 1))

    def _existing_rows(self, key: bytes, since: int, segments: range) -> Generator[tuple[int, bytes], None, None]:
        """Yield the rows of `rows`, without looking at segments that do not exist."""
        with self._reader.scan(SegmentRange(segments, key, key + b"\0"), reverse=True) as rows:
            for stored_key, row in rows:
                if bounds(row)[0] <= since:
                    return
                yield segment_of(stored_key), row

    def _floor(self) -> int:
        """The oldest time of the answered history. It may be negative."""
        return self._reader.stream_time_ms - self._segments.retention_ms


_Chunk: TypeAlias = list[tuple[bytes, VersionedRecord]]
_ORDER: Callable[[tuple[bytes, VersionedRecord]], bytes] = itemgetter(0)


def _row_key(stored_key: bytes) -> bytes:
    return stored_key[PREFIX.size :]


def _latest(chunk: list[tuple[bytes, bytes]], as_of: int | None = None) -> _Chunk:
    width, timestamp_of, until = PREFIX.size, _TIMESTAMP.unpack_from, _END_OF_TIME if as_of is None else as_of
    found = _Chunk()
    for stored_key, stored in chunk:
        try:
            (timestamp,) = timestamp_of(stored)
        except struct.error:
            split(stored)  # raises: it names the bytes that are damaged
            raise
        if timestamp <= until:
            found.append((stored_key[width:], VersionedRecord(stored[8:], timestamp, None)))
    return found


def _valid_at(chunk: list[tuple[bytes, bytes]], as_of: int) -> _Chunk:
    found = _Chunk()
    for stored_key, row in chunk:
        valid_to, oldest = bounds(row)
        if oldest <= as_of < valid_to:
            timestamp, value, ended = find(row, as_of)
            if value is not None:
                found.append((stored_key[PREFIX.size :], VersionedRecord(value, timestamp, ended)))
    return found


def _records(
    latest: VersionedRecord | None, rows: list[bytes], since: int, until: int, ascending: bool
) -> Generator[VersionedRecord, None, None]:
    if not ascending and latest is not None:
        yield latest
    for row in reversed(rows) if ascending else rows:
        inside = [
            VersionedRecord(value, timestamp, valid_to)
            for timestamp, value, valid_to in versions(row)
            if value is not None and timestamp <= until and valid_to > since
        ]
        yield from reversed(inside) if ascending else inside
    if ascending and latest is not None:
        yield latest
