"""Keep aggregates by key and session, for a retention time, persistent or in memory.

Semantics are those of Kafka Streams' `RocksDBSessionStore` and `AbstractRocksDBSegmentedBytesStore`, for every engine
and isolation level. Row key (on disk and in changelogs: never change): ``key ‖ end:i64 ‖ start:i64``.
"""

from __future__ import annotations

import struct
from typing import ClassVar

from stateline_store.errors import InvalidArgumentError
from stateline_store.layout import StoreKind
from stateline_store.reads.session_reads import SessionReads
from stateline_store.reads.window_reads import WindowedIterator
from stateline_store.rows.timestamped_rows import (
    UNKNOWN_TIMESTAMP,
    TimestampedWindowedIterator,
    checked_join,
    split,
    with_timestamps,
)
from stateline_store.rows.windowed_keys import SESSION_SUFFIX, Windowed
from stateline_store.scan import ValueAndTimestamp
from stateline_store.state_store import IsolationLevel, StoreContext
from stateline_store.stores.segmented_store import RowPackers, SegmentedStore


class SessionStore(SegmentedStore):
    """Bytes by key and session. All times are milliseconds since the epoch, 0 or more. A session includes its end.

    Stream time is the largest end put so far. A put is dropped and counted (`dropped_records`) if its whole segment is
    older than stream time - retention. Reads see sessions that ended after stream time - retention.
    """

    kind: ClassVar[StoreKind] = "session"
    _row_suffix = SESSION_SUFFIX
    _packers = RowPackers(SESSION_SUFFIX)
    _own: SessionReads

    def init(self, context: StoreContext) -> None:
        super().init(context)
        self._own = self.reads(IsolationLevel.READ_UNCOMMITTED)

    def reads(self, isolation_level: IsolationLevel) -> SessionReads:
        """Return the reads of this kind over stored bytes, at this isolation level. They end with the `reader`."""
        return SessionReads(self.reader(isolation_level), self._segments)

    def fetch_session(self, key: bytes, start_ms: int, end_ms: int) -> bytes | None:
        """Return the aggregate of exactly this session, staged or committed, None if absent or expired."""
        return self._seen_reads().fetch_session(key, start_ms, end_ms)

    def fetch(self, key: bytes, *, reverse: bool = False) -> WindowedIterator:
        """Scan (session, aggregate) of all sessions of a key, by end, then start. A snapshot, staged over committed."""
        return self._values_of(self._seen_reads().fetch(key, reverse=reverse))

    def fetch_keys(self, key_from: bytes | None, key_to: bytes | None, *, reverse: bool = False) -> WindowedIterator:
        """Scan (session, aggregate) of the keys from `key_from` to `key_to`, both included, None open: by segment of
        their ends, then in the order of row keys. If `key_from` is above `key_to`, the scan is empty and a warning is
        logged."""
        return self._values_of(self._seen_reads().fetch_keys(key_from, key_to, reverse=reverse))

    def find_sessions(
        self, key: bytes, earliest_end: int, latest_start: int, *, reverse: bool = False
    ) -> WindowedIterator:
        """Scan a key's sessions that end at `earliest_end` or later and start at `latest_start` or earlier, in the
        order of `fetch`. With a record's time less the gap and plus the gap, these are the sessions to merge with the
        record."""
        return self._values_of(self._seen_reads().find_sessions(key, earliest_end, latest_start, reverse=reverse))

    def find_sessions_of_keys(
        self,
        key_from: bytes | None,
        key_to: bytes | None,
        earliest_end: int,
        latest_start: int,
        *,
        reverse: bool = False,
    ) -> WindowedIterator:
        """Scan the sessions that `find_sessions` finds, of a range of keys, in the order of `fetch_keys`."""
        reads = self._seen_reads()
        found = reads.find_sessions_of_keys(key_from, key_to, earliest_end, latest_start, reverse=reverse)
        return self._values_of(found)

    def find_sessions_ended(self, earliest_end: int, latest_end: int, *, reverse: bool = False) -> WindowedIterator:
        """Scan all sessions that end from `earliest_end` to `latest_end`, both included, as ordered by `fetch_keys`."""
        return self._values_of(self._seen_reads().find_sessions_ended(earliest_end, latest_end, reverse=reverse))

    def all(self, *, reverse: bool = False) -> WindowedIterator:
        """Scan all sessions, in the order of `fetch_keys`."""
        return self._values_of(self._seen_reads().all(reverse=reverse))

    def put(self, session: Windowed, aggregate: bytes | None) -> None:
        """Stage the aggregate of a session. None removes it.

        A put whose segment has expired is dropped and counted. Raises `InvalidArgumentError` for a key or aggregate
        that is not bytes, and for times that are not 0 <= start <= end <= 2^63 - 1. Nothing has changed then.
        """
        if self._engine is None or self._failure is not None:
            self._open()
        try:
            key, start_ms, end_ms = session
            if not 0 <= start_ms <= end_ms:
                raise ValueError("a session starts at 0 or later and does not end before")
            # The second check is slower, and needed only for the few late puts.
            if end_ms < self._stream_time_ms - self._retention_ms and self._is_too_late(end_ms):
                self._dropped += 1
                return
            row = self._packers[len(key)](end_ms // self._interval_ms, key, end_ms, start_ms)
        except (struct.error, TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"A session is a key of bytes, its start and its end in ms, not {session!r:.200}: {error}."
            ) from error
        self._buffer.put(row, aggregate)
        if end_ms > self._stream_time_ms:
            self._stream_time_ms = end_ms

    def remove(self, session: Windowed) -> None:
        """Stage a removal, as `put` of None. A late removal is not counted, because it loses nothing."""
        dropped = self._dropped
        SessionStore.put(self, session, None)
        self._dropped = dropped

    def _seen_reads(self) -> SessionReads:
        if self._engine is None or self._failure is not None:
            self._open()
        return self._own


class TimestampedSessionStore(SessionStore):
    """A SessionStore with a timestamp (milliseconds since the epoch) beside each aggregate.

    The methods of SessionStore work on the aggregates alone. `put` stores timestamp -1, unknown. Stored value (on disk:
    never change): ``timestamp:i64 BE ‖ aggregate``.
    """

    timestamped: ClassVar[bool] = True

    def put(self, session: Windowed, aggregate: bytes | None) -> None:
        self.put_with_timestamp(session, aggregate, UNKNOWN_TIMESTAMP)

    def put_with_timestamp(self, session: Windowed, aggregate: bytes | None, timestamp: int) -> None:
        """Stage the aggregate of a session with the timestamp of its record, like `put`."""
        stored = checked_join(aggregate, timestamp)
        SessionStore.put(self, session, stored)  # `super()` takes a tenth of the time of a put

    def fetch_session(self, key: bytes, start_ms: int, end_ms: int) -> bytes | None:
        stored = super().fetch_session(key, start_ms, end_ms)
        return None if stored is None else stored[8:]

    def fetch_session_with_timestamp(self, key: bytes, start_ms: int, end_ms: int) -> ValueAndTimestamp | None:
        """Return the aggregate of `fetch_session` with its timestamp."""
        stored = super().fetch_session(key, start_ms, end_ms)
        return None if stored is None else split(stored)

    def fetch_with_timestamp(self, key: bytes, *, reverse: bool = False) -> TimestampedWindowedIterator:
        """Scan `fetch` with (session, (aggregate, timestamp)) rows."""
        return with_timestamps(self._seen_reads().fetch(key, reverse=reverse))

    def fetch_keys_with_timestamp(
        self, key_from: bytes | None, key_to: bytes | None, *, reverse: bool = False
    ) -> TimestampedWindowedIterator:
        """Scan `fetch_keys` with (session, (aggregate, timestamp)) rows."""
        return with_timestamps(self._seen_reads().fetch_keys(key_from, key_to, reverse=reverse))

    def find_sessions_with_timestamp(
        self, key: bytes, earliest_end: int, latest_start: int, *, reverse: bool = False
    ) -> TimestampedWindowedIterator:
        """Scan `find_sessions` with (session, (aggregate, timestamp)) rows."""
        return with_timestamps(self._seen_reads().find_sessions(key, earliest_end, latest_start, reverse=reverse))

    def find_sessions_of_keys_with_timestamp(
        self,
        key_from: bytes | None,
        key_to: bytes | None,
        earliest_end: int,
        latest_start: int,
        *,
        reverse: bool = False,
    ) -> TimestampedWindowedIterator:
        """Scan `find_sessions_of_keys` with (session, (aggregate, timestamp)) rows."""
        reads = self._seen_reads()
        found = reads.find_sessions_of_keys(key_from, key_to, earliest_end, latest_start, reverse=reverse)
        return with_timestamps(found)

    def all_with_timestamp(self, *, reverse: bool = False) -> TimestampedWindowedIterator:
        """Scan `all` with (session, (aggregate, timestamp)) rows."""
        return with_timestamps(self._seen_reads().all(reverse=reverse))
