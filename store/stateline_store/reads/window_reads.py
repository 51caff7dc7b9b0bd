"""Reads of a window store, over any reader: the owner's, one of committed state, one in another process.

Values are the stored bytes: those of a timestamped store are ``timestamp:i64 BE ‖ value``.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeAlias

from stateline_store.engines.engine import no_key
from stateline_store.reads.keyed_scans import scan_key, scan_keys, scan_nothing
from stateline_store.reads.readers import Reader
from stateline_store.rows.segments import PREFIX, SegmentRange, Segments
from stateline_store.rows.windowed_keys import (
    MAX_SEQUENCE,
    MAX_TIMESTAMP_MS,
    WINDOW_SUFFIX,
    Windowed,
    are_within,
    split_keys,
    window_key,
    windowed_rows,
)
from stateline_store.scan import KeyRange, Scan, StoreIterator

WindowIterator: TypeAlias = Scan[tuple[int, bytes]]
WindowedIterator: TypeAlias = Scan[tuple[Windowed, bytes]]
_Rows: TypeAlias = list[tuple[Windowed, bytes]]
_Stored: TypeAlias = list[tuple[bytes, bytes]]
_START = slice(-WINDOW_SUFFIX.size, PREFIX.size - WINDOW_SUFFIX.size)  # of a stored key


def window_end_ms(start_ms: int, window_size_ms: int) -> int:
    """Return the end of a window (excluded), at most the last possible time (Kafka Streams' rule)."""
    return min(start_ms + window_size_ms, MAX_TIMESTAMP_MS)


class WindowReads:
    """Windows by key and start, seen through `reader`. Times are milliseconds since the epoch, bounds are included, a
    negative bound means 0.

    Windows are hidden that started ``retention`` or longer before the reader's stream time. Every scan is a snapshot,
    in Kafka Streams' order: by segment of time, then by row key. Raises what the reader raises. Not thread-safe, as the
    reader.
    """

    __slots__ = ("_duplicates", "_reader", "_segments", "_size")

    def __init__(
        self, reader: Reader, segments: Segments, window_size_ms: int, *, retain_duplicates: bool = False
    ) -> None:
        self._reader = reader
        self._segments = segments
        self._size = window_size_ms
        self._duplicates = retain_duplicates

    def fetch_one(self, key: bytes, start_ms: int) -> bytes | None:
        """Return the value of the window that starts then, None without one. With retained duplicates, the newest."""
        if not isinstance(key, bytes):
            raise no_key(key)
        first, last = self._readable(start_ms, start_ms)
        if first > last:
            scan_nothing(self._reader).close()
            return None
        if not self._duplicates:
            return self._reader.get(PREFIX.pack(self._segments.id_of(start_ms)) + window_key(key, start_ms))
        with self.fetch(key, start_ms, start_ms, reverse=True) as rows:
            newest = next(rows, None)
        return None if newest is None else newest[1]

    def fetch(self, key: bytes, time_from: int, time_to: int, *, reverse: bool = False) -> WindowIterator:
        """Scan (start, value) of this key's windows that start from `time_from` to `time_to`, in time order."""
        first, last = self._readable(time_from, time_to)
        return self._of_key(key, self._segments.between(first, last), first, last, reverse=reverse)

    def kept(self, key: bytes) -> WindowIterator:
        """Scan `fetch` of all times, also windows that are hidden but not removed yet."""
        newest_ms = self._reader.stream_time_ms
        live = range(self._segments.oldest_live(newest_ms), self._segments.id_of(max(newest_ms, 0)) + 1)
        return self._of_key(key, live, 0, MAX_TIMESTAMP_MS, reverse=False)

    def _of_key(self, key: bytes, segments: range, first: int, last: int, *, reverse: bool) -> WindowIterator:
        least, greatest = WINDOW_SUFFIX.pack(first, 0), WINDOW_SUFFIX.pack(last, MAX_SEQUENCE)
        rows = scan_key(self._reader, segments, key, least, greatest, reverse=reverse)
        return Scan.of_chunks(_of_one_key(rows, len(key) + len(least)))

    def fetch_keys(
        self, key_from: bytes | None, key_to: bytes | None, time_from: int, time_to: int, *, reverse: bool = False
    ) -> WindowedIterator:
        """Scan (windowed key, value) of the keys from `key_from` to `key_to`, both included, None open, whose windows
        start from `time_from` to `time_to`. If `key_from` is above `key_to`, the scan is empty and a warning is logged.
        """
        first, last = self._readable(time_from, time_to)
        greatest = WINDOW_SUFFIX.pack(last, MAX_SEQUENCE)
        rows = scan_keys(self._reader, self._segments.between(first, last), key_from, key_to, greatest, reverse=reverse)
        return Scan.of_chunks(_of_keys(rows, key_from or b"", key_to, first, last, self._size))

    def fetch_all(self, time_from: int, time_to: int, *, reverse: bool = False) -> WindowedIterator:
        """Scan (windowed key, value) of all windows that start from `time_from` to `time_to`."""
        return self.fetch_keys(None, None, time_from, time_to, reverse=reverse)

    def stored(self, time_from: int, time_to: int, *, reverse: bool = False) -> StoreIterator:
        """Scan the rows of `fetch_all` as they are stored, with segment and sequence in their keys (`windows_of`)."""
        first, last = self._readable(time_from, time_to)
        segments = self._segments.between(first, last)
        if not segments:
            return scan_nothing(self._reader)
        rows = self._reader.scan(KeyRange(PREFIX.pack(segments[0]), SegmentRange(segments).end), reverse=reverse)
        return Scan.of_chunks(_started(rows, PREFIX.pack(first), PREFIX.pack(last)))

    def all(self, *, reverse: bool = False) -> WindowedIterator:
        """Scan (windowed key, value) of all windows."""
        return self.fetch_keys(None, None, 0, MAX_TIMESTAMP_MS, reverse=reverse)

    def _readable(self, from_ms: int, to_ms: int) -> tuple[int, int]:
        return self._segments.readable(from_ms, to_ms, self._reader.stream_time_ms)


def windows_of(rows: Sequence[tuple[bytes, bytes]], size_ms: int, skipped: int = PREFIX.size) -> _Rows:
    """Return stored rows as (windowed key, value). `skipped` bytes stand before each key. Raises `DamagedDataError` for
    a key that is too short."""
    keys, starts, _ = split_keys(rows, WINDOW_SUFFIX, skipped)
    latest = MAX_TIMESTAMP_MS - size_ms  # the end of a later one is cut
    ends = [start_ms + size_ms if start_ms <= latest else MAX_TIMESTAMP_MS for start_ms in starts]
    return windowed_rows(keys, starts, ends, rows)


def within(chunk: _Stored, times: slice, first: bytes, last: bytes) -> _Stored:
    """Return the stored rows whose time, in this part of the key, is from `first` to `last`, both included."""
    found = [name[times] for name, _ in chunk]  # compared as bytes, for none is negative
    if found and (min(found) < first or max(found) > last):
        return [row for row, time in zip(chunk, found, strict=True) if first <= time <= last]
    return chunk


def _started(rows: StoreIterator, first: bytes, last: bytes) -> Generator[_Stored, None, None]:
    with rows:
        for chunk in rows.chunks():
            yield within(chunk, _START, first, last)


def _of_one_key(rows: StoreIterator, width: int) -> Generator[list[tuple[int, bytes]], None, None]:
    unpack, behind = WINDOW_SUFFIX.unpack_from, width - WINDOW_SUFFIX.size
    with rows:
        for chunk in rows.chunks():
            yield [(unpack(row, behind)[0], value) for row, value in chunk if len(row) == width]


def _of_keys(
    rows: StoreIterator, lower: bytes, upper: bytes | None, first: int, last: int, size: int
) -> Generator[list[tuple[Windowed, bytes]], None, None]:
    with rows:
        for chunk in rows.chunks():
            found = windows_of(chunk, size, 0)
            if not (lower == b"" and upper is None and are_within([name.start_ms for name, _ in found], first, last)):
                found = [
                    (name, value)
                    for name, value in found
                    if first <= name.start_ms <= last and name.key >= lower and (upper is None or name.key <= upper)
                ]
            yield found
