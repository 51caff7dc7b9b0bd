"""TimestampedWindowStore: a window store that keeps each value's record timestamp (KIP-258)."""

from __future__ import annotations

from typing import ClassVar

from stateline_store.scan import ValueAndTimestamp
from stateline_store.timestamped_rows import (
    UNKNOWN_TIMESTAMP,
    TimestampedWindowedIterator,
    TimestampedWindowIterator,
    checked_join,
    split,
    values_of,
    with_timestamps,
)
from stateline_store.window_reads import WindowedIterator, WindowIterator
from stateline_store.window_store import WindowStore


class TimestampedWindowStore(WindowStore):
    """As WindowStore, with a timestamp (milliseconds since the epoch) beside each value.

    The methods of WindowStore work on the values alone; `put` stores timestamp -1, unknown. Stored value (on disk:
    never change): ``timestamp:i64 BE ‖ value``.
    """

    timestamped: ClassVar[bool] = True

    def put(self, key: bytes, value: bytes | None, window_start_ms: int) -> None:
        self.put_with_timestamp(key, value, UNKNOWN_TIMESTAMP, window_start_ms)

    def put_with_timestamp(self, key: bytes, value: bytes | None, timestamp: int, window_start_ms: int) -> None:
        """As `put`, with the timestamp of the record that brought the value."""
        stored = checked_join(value, timestamp)
        WindowStore.put(self, key, stored, window_start_ms)  # `super()` takes a tenth of the time of a put

    def fetch_one(self, key: bytes, start_ms: int) -> bytes | None:
        stored = super().fetch_one(key, start_ms)
        return None if stored is None else stored[8:]

    def fetch_one_with_timestamp(self, key: bytes, start_ms: int) -> ValueAndTimestamp | None:
        """As `fetch_one`, with the timestamp."""
        stored = super().fetch_one(key, start_ms)
        return None if stored is None else split(stored)

    def fetch(self, key: bytes, time_from: int, time_to: int, *, reverse: bool = False) -> WindowIterator:
        return values_of(super().fetch(key, time_from, time_to, reverse=reverse))

    def fetch_with_timestamp(
        self, key: bytes, time_from: int, time_to: int, *, reverse: bool = False
    ) -> TimestampedWindowIterator:
        """As `fetch`, with (start, (value, timestamp)) rows."""
        return with_timestamps(super().fetch(key, time_from, time_to, reverse=reverse))

    def fetch_keys(
        self, key_from: bytes | None, key_to: bytes | None, time_from: int, time_to: int, *, reverse: bool = False
    ) -> WindowedIterator:
        return values_of(super().fetch_keys(key_from, key_to, time_from, time_to, reverse=reverse))

    def fetch_keys_with_timestamp(
        self, key_from: bytes | None, key_to: bytes | None, time_from: int, time_to: int, *, reverse: bool = False
    ) -> TimestampedWindowedIterator:
        """As `fetch_keys`, with (windowed key, (value, timestamp)) rows."""
        return with_timestamps(super().fetch_keys(key_from, key_to, time_from, time_to, reverse=reverse))

    def fetch_all(self, time_from: int, time_to: int, *, reverse: bool = False) -> WindowedIterator:
        return values_of(super().fetch_all(time_from, time_to, reverse=reverse))

    def fetch_all_with_timestamp(
        self, time_from: int, time_to: int, *, reverse: bool = False
    ) -> TimestampedWindowedIterator:
        """As `fetch_all`, with (windowed key, (value, timestamp)) rows."""
        return with_timestamps(super().fetch_all(time_from, time_to, reverse=reverse))

    def all(self, *, reverse: bool = False) -> WindowedIterator:
        return values_of(super().all(reverse=reverse))

    def all_with_timestamp(self, *, reverse: bool = False) -> TimestampedWindowedIterator:
        """As `all`, with (windowed key, (value, timestamp)) rows."""
        return with_timestamps(super().all(reverse=reverse))
