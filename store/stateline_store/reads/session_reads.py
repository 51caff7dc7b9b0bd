"""Reads of a session store, over any reader: the owner's, one of committed state, one in another process.

Values are the stored bytes: those of a timestamped store are ``timestamp:i64 BE ‖ aggregate``.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from operator import itemgetter
from typing import TypeAlias, TypeVar

from stateline_store.engines.engine import no_key
from stateline_store.reads.keyed_scans import scan_key, scan_keys, scan_nothing
from stateline_store.reads.merged_scans import ScanSource, merged
from stateline_store.reads.readers import Reader
from stateline_store.reads.window_reads import WindowedIterator, within
from stateline_store.rows.segments import PREFIX, Segments, existing
from stateline_store.rows.suffixed_rows import SuffixedRange
from stateline_store.rows.windowed_keys import (
    MAX_TIMESTAMP_MS,
    SESSION_SUFFIX,
    Windowed,
    are_within,
    session_key,
    split_keys,
    split_session_key,
    windowed_rows,
)
from stateline_store.scan import Scan, StoreIterator

_Chunk: TypeAlias = list[tuple[Windowed, bytes]]
_Stored = TypeVar("_Stored", bound=tuple[bytes, object])
# The parts of a stored key.
_KEY, _SUFFIX = slice(PREFIX.size, -SESSION_SUFFIX.size), slice(-SESSION_SUFFIX.size, None)
_END = slice(-SESSION_SUFFIX.size, -PREFIX.size)


class SessionReads:
    """Sessions by key, start and end, seen through `reader`. Times are milliseconds since the epoch, bounds are
    included.

    Sessions are hidden that ended ``retention`` or longer before the reader's stream time. Every scan is a snapshot, in
    Kafka Streams' order: by segment of the sessions' ends, then by row key. So the sessions of one key come by end,
    then start. Raises what the reader raises. Not thread-safe, as the reader.
    """

    __slots__ = ("_reader", "_segments")

    def __init__(self, reader: Reader, segments: Segments) -> None:
        self._reader = reader
        self._segments = segments

    def fetch_session(self, key: bytes, start_ms: int, end_ms: int) -> bytes | None:
        """Return the aggregate of exactly this session, None if there is none."""
        if not isinstance(key, bytes):
            raise no_key(key)
        first, last = self._readable(end_ms, end_ms)
        if first > last or not 0 <= start_ms <= end_ms:
            scan_nothing(self._reader).close()
            return None
        return self._reader.get(PREFIX.pack(self._segments.id_of(end_ms)) + session_key(key, start_ms, end_ms))

    def fetch(self, key: bytes, *, reverse: bool = False) -> WindowedIterator:
        """Scan all sessions of a key."""
        return self.find_sessions(key, 0, MAX_TIMESTAMP_MS, reverse=reverse)

    def fetch_keys(self, key_from: bytes | None, key_to: bytes | None, *, reverse: bool = False) -> WindowedIterator:
        """Scan all sessions of the keys from `key_from` to `key_to`, both included, None open. If `key_from` is above
        `key_to`, the scan is empty and a warning is logged."""
        return self.find_sessions_of_keys(key_from, key_to, 0, MAX_TIMESTAMP_MS, reverse=reverse)

    def find_sessions(
        self, key: bytes, earliest_end: int, latest_start: int, *, reverse: bool = False
    ) -> WindowedIterator:
        """Scan a key's sessions that end at `earliest_end` or later and start at `latest_start` or earlier."""
        first, last = self._readable(earliest_end, MAX_TIMESTAMP_MS)
        least, greatest = SESSION_SUFFIX.pack(first, 0), SESSION_SUFFIX.pack(last, MAX_TIMESTAMP_MS)
        rows = scan_key(self._reader, self._segments.between(first, last), key, least, greatest, reverse=reverse)
        return Scan.of_chunks(_of_one_key(rows, len(key) + len(least), latest_start))

    def find_sessions_of_keys(
        self,
        key_from: bytes | None,
        key_to: bytes | None,
        earliest_end: int,
        latest_start: int,
        *,
        reverse: bool = False,
    ) -> WindowedIterator:
        """Scan the sessions of `find_sessions`, of the keys from `key_from` to `key_to` as in `fetch_keys`."""
        first, last = self._readable(earliest_end, MAX_TIMESTAMP_MS)
        greatest = SESSION_SUFFIX.pack(last, MAX_TIMESTAMP_MS)
        rows = scan_keys(self._reader, self._segments.between(first, last), key_from, key_to, greatest, reverse=reverse)
        return Scan.of_chunks(_of_keys(rows, key_from or b"", key_to, first, last, latest_start))

    def find_sessions_ended(self, earliest_end: int, latest_end: int, *, reverse: bool = False) -> WindowedIterator:
        """Scan the sessions of all keys that end from `earliest_end` to `latest_end`."""
        first, last = self._readable(earliest_end, latest_end)
        rows = scan_keys(self._reader, self._segments.between(first, last), None, None, b"", reverse=reverse)
        return Scan.of_chunks(_of_keys(rows, b"", None, first, last, MAX_TIMESTAMP_MS))

    def sessions_of_all_keys(self, earliest_end: int, latest_end: int, *, reverse: bool = False) -> WindowedIterator:
        """Scan the sessions of `find_sessions_ended` by key, then end and start. All segments are read side by side."""
        return Scan.of_chunks(_taken_apart(self.stored(earliest_end, latest_end, reverse=reverse)))

    def stored(self, earliest_end: int, latest_end: int, *, reverse: bool = False) -> StoreIterator:
        """Scan the rows of `sessions_of_all_keys` as they are stored: segments are in their keys (`sessions_of`)."""
        first, last = self._readable(earliest_end, latest_end)
        segments = existing(self._reader.scan, self._segments.between(first, last))
        least, greatest = SESSION_SUFFIX.pack(max(first, 0), 0), SESSION_SUFFIX.pack(max(last, 0), MAX_TIMESTAMP_MS)
        scans = [self._reader.scan(SuffixedRange.of_segment(at, least, greatest), reverse=reverse) for at in segments]
        ended = partial(within, times=_END, first=PREFIX.pack(first), last=PREFIX.pack(last))
        sources = [ScanSource(rows, ended) for rows in scans or [scan_nothing(self._reader)]]
        return merged(sources, stored_order, lambda name: (name[_KEY], name[_SUFFIX]), reverse=reverse)

    def all(self, *, reverse: bool = False) -> WindowedIterator:
        """Scan all sessions of all keys."""
        return self.fetch_keys(None, None, reverse=reverse)

    def _readable(self, from_ms: int, to_ms: int) -> tuple[int, int]:
        return self._segments.readable(from_ms, to_ms, self._reader.stream_time_ms)


def _of_one_key(rows: StoreIterator, width: int, latest_start: int) -> Generator[_Chunk, None, None]:
    with rows:
        for chunk in rows.chunks():
            found = ((split_session_key(row), value) for row, value in chunk if len(row) == width)
            yield [(session, value) for session, value in found if session.start_ms <= latest_start]


def sessions_of(rows: Sequence[tuple[bytes, bytes]]) -> _Chunk:
    """Return stored rows as (session, value). Raises `DamagedDataError` for a key that is too short."""
    keys, ends, starts = split_keys(rows, SESSION_SUFFIX, PREFIX.size)
    return windowed_rows(keys, starts, ends, rows)


def stored_order(row: tuple[bytes, object]) -> tuple[bytes, bytes]:
    """Return the sort key of a stored row among the sessions of all keys: that of `session_order`, as bytes."""
    name = row[0]
    return name[_KEY], name[_SUFFIX]


def in_stored_order(rows: list[_Stored], *, reverse: bool) -> list[_Stored]:
    """Sort stored rows by `stored_order`. Rows of one segment with equally long keys take a quarter of its time: their
    stored keys have the same order."""
    found = sorted(rows, key=itemgetter(0), reverse=reverse)
    if len(set(map(len, map(itemgetter(0), found)))) > 1:
        return sorted(rows, key=stored_order, reverse=reverse)
    if found and found[0][0][: PREFIX.size] != found[-1][0][: PREFIX.size]:
        found.sort(key=_behind_segment, reverse=reverse)
    return found


def _behind_segment(row: tuple[bytes, object]) -> bytes:
    return row[0][PREFIX.size :]


def _taken_apart(rows: StoreIterator) -> Generator[_Chunk, None, None]:
    with rows:
        for chunk in rows.chunks():
            yield sessions_of(chunk)


def _of_keys(
    rows: StoreIterator, lower: bytes, upper: bytes | None, first_end: int, last_end: int, latest_start: int
) -> Generator[_Chunk, None, None]:
    with rows:
        for chunk in rows.chunks():
            keys, ends, starts = split_keys(chunk, SESSION_SUFFIX)
            found = windowed_rows(keys, starts, ends, chunk)
            is_whole = lower == b"" and upper is None and are_within(ends, first_end, last_end)
            if not (is_whole and max(starts, default=0) <= latest_start):
                found = [
                    (session, value)
                    for session, value in found
                    if first_end <= session.end_ms <= last_end
                    and session.start_ms <= latest_start
                    and session.key >= lower
                    and (upper is None or session.key <= upper)
                ]
            yield found
