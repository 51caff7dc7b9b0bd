"""TimestampedSessionStore: a session store that keeps the record timestamp of each aggregate (KIP-258)."""

from __future__ import annotations

from typing import ClassVar

from stateline_store.scan import ValueAndTimestamp
from stateline_store.session_store import SessionStore
from stateline_store.timestamped_rows import (
    UNKNOWN_TIMESTAMP,
    TimestampedWindowedIterator,
    checked_join,
    split,
    values_of,
    with_timestamps,
)
from stateline_store.window_reads import WindowedIterator
from stateline_store.windowed_keys import Windowed


class TimestampedSessionStore(SessionStore):
    """As SessionStore, with a timestamp (milliseconds since the epoch) beside each aggregate.

    The methods of SessionStore work on the aggregates alone; `put` stores timestamp -1, unknown. Stored value (on disk:
    never change): ``timestamp:i64 BE ‖ aggregate``.
    """

    timestamped: ClassVar[bool] = True

    def put(self, session: Windowed, aggregate: bytes | None) -> None:
        self.put_with_timestamp(session, aggregate, UNKNOWN_TIMESTAMP)

    def put_with_timestamp(self, session: Windowed, aggregate: bytes | None, timestamp: int) -> None:
        """As `put`, with the timestamp of the record that brought the aggregate."""
        stored = checked_join(aggregate, timestamp)
        SessionStore.put(self, session, stored)  # `super()` takes a tenth of the time of a put

    def fetch_session(self, key: bytes, start_ms: int, end_ms: int) -> bytes | None:
        stored = super().fetch_session(key, start_ms, end_ms)
        return None if stored is None else stored[8:]

    def fetch_session_with_timestamp(self, key: bytes, start_ms: int, end_ms: int) -> ValueAndTimestamp | None:
        """As `fetch_session`, with the timestamp."""
        stored = super().fetch_session(key, start_ms, end_ms)
        return None if stored is None else split(stored)

    def fetch(self, key: bytes, *, reverse: bool = False) -> WindowedIterator:
        return values_of(super().fetch(key, reverse=reverse))

    def fetch_with_timestamp(self, key: bytes, *, reverse: bool = False) -> TimestampedWindowedIterator:
        """As `fetch`, with (session, (aggregate, timestamp)) rows."""
        return with_timestamps(super().fetch(key, reverse=reverse))

    def fetch_keys(self, key_from: bytes | None, key_to: bytes | None, *, reverse: bool = False) -> WindowedIterator:
        return values_of(super().fetch_keys(key_from, key_to, reverse=reverse))

    def fetch_keys_with_timestamp(
        self, key_from: bytes | None, key_to: bytes | None, *, reverse: bool = False
    ) -> TimestampedWindowedIterator:
        """As `fetch_keys`, with (session, (aggregate, timestamp)) rows."""
        return with_timestamps(super().fetch_keys(key_from, key_to, reverse=reverse))

    def find_sessions(
        self, key: bytes, earliest_end: int, latest_start: int, *, reverse: bool = False
    ) -> WindowedIterator:
        return values_of(super().find_sessions(key, earliest_end, latest_start, reverse=reverse))

    def find_sessions_with_timestamp(
        self, key: bytes, earliest_end: int, latest_start: int, *, reverse: bool = False
    ) -> TimestampedWindowedIterator:
        """As `find_sessions`, with (session, (aggregate, timestamp)) rows."""
        return with_timestamps(super().find_sessions(key, earliest_end, latest_start, reverse=reverse))

    def find_sessions_of_keys(
        self,
        key_from: bytes | None,
        key_to: bytes | None,
        earliest_end: int,
        latest_start: int,
        *,
        reverse: bool = False,
    ) -> WindowedIterator:
        found = super().find_sessions_of_keys(key_from, key_to, earliest_end, latest_start, reverse=reverse)
        return values_of(found)

    def find_sessions_of_keys_with_timestamp(
        self,
        key_from: bytes | None,
        key_to: bytes | None,
        earliest_end: int,
        latest_start: int,
        *,
        reverse: bool = False,
    ) -> TimestampedWindowedIterator:
        """As `find_sessions_of_keys`, with (session, (aggregate, timestamp)) rows."""
        found = super().find_sessions_of_keys(key_from, key_to, earliest_end, latest_start, reverse=reverse)
        return with_timestamps(found)

    def find_sessions_ended(self, earliest_end: int, latest_end: int, *, reverse: bool = False) -> WindowedIterator:
        return values_of(super().find_sessions_ended(earliest_end, latest_end, reverse=reverse))

    def all(self, *, reverse: bool = False) -> WindowedIterator:
        return values_of(super().all(reverse=reverse))

    def all_with_timestamp(self, *, reverse: bool = False) -> TimestampedWindowedIterator:
        """As `all`, with (session, (aggregate, timestamp)) rows."""
        return with_timestamps(super().all(reverse=reverse))
