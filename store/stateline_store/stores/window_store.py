"""Keep values by key and window start, for a retention time, persistent or in memory.

Semantics are those of Kafka Streams' `RocksDBWindowStore` and `AbstractRocksDBSegmentedBytesStore`, for every engine
and isolation level. Row key (on disk and in changelogs: never change): ``key ‖ start:i64 ‖ sequence:i32``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

from stateline_store.errors import InvalidArgumentError
from stateline_store.layout import Layout, StoreKind
from stateline_store.reads.window_reads import WindowedIterator, WindowIterator, WindowReads
from stateline_store.rocksdb.options import DEFAULT_TUNING, Tuning
from stateline_store.rows.store_schema import StoreSchema
from stateline_store.rows.timestamped_rows import (
    UNKNOWN_TIMESTAMP,
    TimestampedWindowedIterator,
    TimestampedWindowIterator,
    checked_join,
    split,
    with_timestamps,
)
from stateline_store.rows.windowed_keys import MAX_SEQUENCE, MAX_TIMESTAMP_MS, WINDOW_SUFFIX
from stateline_store.scan import ValueAndTimestamp
from stateline_store.state_store import Change, IsolationLevel, StoreContext
from stateline_store.stores.segmented_store import Changes, RowPackers, SegmentedStore


class WindowStore(SegmentedStore):
    """Bytes by key and window start. All times are milliseconds since the epoch, 0 or more.

    Stream time is the largest window start put so far. A put is dropped and counted (`dropped_records`) if its whole
    segment is older than stream time - retention. Reads see windows that started after stream time - retention. With
    `retain_duplicates`, each put adds a row, and no row can be deleted.
    """

    kind: ClassVar[StoreKind] = "window"
    _row_suffix = WINDOW_SUFFIX
    _packers = RowPackers(WINDOW_SUFFIX)
    _own: WindowReads

    def __init__(
        self,
        name: str,
        *,
        retention_ms: int,
        window_size_ms: int,
        retain_duplicates: bool = False,
        persistent: bool = True,
        headers: bool = False,
        tuning: Tuning = DEFAULT_TUNING,
    ) -> None:
        """Make a closed store. Raises `InvalidArgumentError` for a negative window size, or one above the retention."""
        super().__init__(name, retention_ms=retention_ms, persistent=persistent, headers=headers, tuning=tuning)
        if not 0 <= window_size_ms <= retention_ms:
            raise InvalidArgumentError(
                f"A window of {window_size_ms} ms in store {name!r}: 0 to {retention_ms}, its retention, is possible."
            )
        self._window_size_ms = window_size_ms
        self._retain_duplicates = retain_duplicates
        self._starts_are_timestamps = False

    @property
    def window_size_ms(self) -> int:
        """The length of each window."""
        return self._window_size_ms

    @property
    def layout(self) -> Layout:
        return replace(super().layout, retain_duplicates=self._retain_duplicates)

    @property
    def schema(self) -> StoreSchema:
        return replace(super().schema, window_size_ms=self._window_size_ms, retain_duplicates=self._retain_duplicates)

    def init(self, context: StoreContext) -> None:
        super().init(context)
        self._own = self.reads(IsolationLevel.READ_UNCOMMITTED)

    def reads(self, isolation_level: IsolationLevel) -> WindowReads:
        """Return the reads of this kind over stored bytes, at this isolation level. They end with the `reader`."""
        reader = self.reader(isolation_level)
        return WindowReads(reader, self._segments, self._window_size_ms, retain_duplicates=self._retain_duplicates)

    def fetch_one(self, key: bytes, start_ms: int) -> bytes | None:
        """Return the window's value, staged or committed, None if absent or expired. With retained duplicates,
        the newest."""
        return self._seen_reads().fetch_one(key, start_ms)

    def fetch(self, key: bytes, time_from: int, time_to: int, *, reverse: bool = False) -> WindowIterator:
        """Scan (start, value) of this key's windows that start from `time_from` to `time_to`, both included, in time
        order, duplicates in the order of their puts. A negative time means 0. A snapshot, staged over committed."""
        return self._values_of(self._seen_reads().fetch(key, time_from, time_to, reverse=reverse))

    def kept(self, key: bytes) -> WindowIterator:
        """Scan `fetch` of all times, also windows that are hidden but not removed yet."""
        return self._values_of(self._seen_reads().kept(key))

    def fetch_keys(
        self, key_from: bytes | None, key_to: bytes | None, time_from: int, time_to: int, *, reverse: bool = False
    ) -> WindowedIterator:
        """Scan (windowed key, value) of the keys from `key_from` to `key_to`, both included, None open, and of windows
        as in `fetch`: by segment of time, then in the order of row keys.

        If `key_from` is above `key_to`, the scan is empty and a warning is logged.
        """
        return self._values_of(self._seen_reads().fetch_keys(key_from, key_to, time_from, time_to, reverse=reverse))

    def fetch_all(self, time_from: int, time_to: int, *, reverse: bool = False) -> WindowedIterator:
        """Scan all keys' windows that start from `time_from` to `time_to`, in the order of `fetch_keys`."""
        return self._values_of(self._seen_reads().fetch_all(time_from, time_to, reverse=reverse))

    def all(self, *, reverse: bool = False) -> WindowedIterator:
        """Scan (windowed key, value) of all windows, in the order of `fetch_keys`."""
        return self._values_of(self._seen_reads().all(reverse=reverse))

    def put(self, key: bytes, value: bytes | None, window_start_ms: int) -> None:
        """Stage the value of a window. None deletes it, and does nothing in a store that retains duplicates.

        A put whose segment has expired is dropped and counted. Raises `InvalidArgumentError` for a key or value that is
        not bytes, and for a start below 0 or above 2^63 - 1. Nothing has changed then.
        """
        if self._engine is None or self._failure is not None:
            self._open()
        sequence = 0
        if self._retain_duplicates:
            if value is None:
                return
            sequence = self._sequence % MAX_SEQUENCE + 1
        try:
            if window_start_ms < 0:
                raise ValueError("a window starts at 0 or later")
            # The second check is slower, and needed only for the few late puts.
            if window_start_ms < self._stream_time_ms - self._retention_ms and self._is_too_late(window_start_ms):
                self._dropped += 1
                self._sequence = sequence  # Kafka Streams counts it before it looks at the time (`RocksDBWindowStore`)
                return
            segment = window_start_ms // self._interval_ms
            row = self._packers[len(key)](segment, key, window_start_ms, sequence)
        except (struct.error, TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"A window is a key of bytes and its start in ms, not {key!r:.60}, {window_start_ms!r:.30}: {error}."
            ) from error
        self._buffer.put(row, value)
        self._sequence = sequence  # not before: a put that is refused takes none
        if window_start_ms > self._stream_time_ms:
            self._stream_time_ms = window_start_ms

    def put_duplicates(self, rows: Iterable[tuple[bytes, int, bytes | None]]) -> list[bytes]:
        """Stage many (key, start in ms, value) of a store that retains duplicates. Returns the stored key of each. A
        row without a value only takes a number, as in Kafka Streams' changelog. A late one is dropped and counted. The
        starts are timestamps of the rows, also in the changelog.

        Raises `InvalidArgumentError` for a start below 0 or above 2^63 - 1. Nothing has changed then.
        """
        self._open()
        packers, interval, sequence = self._packers, self._interval_ms, self._sequence
        stream_time_ms, dropped, staged, keys = self._stream_time_ms, self._dropped, dict[bytes, bytes | None](), []
        for key, start_ms, value in rows:
            sequence = sequence % MAX_SEQUENCE + 1
            if not 0 <= start_ms <= MAX_TIMESTAMP_MS:
                raise InvalidArgumentError(f"A window starts at 0 to {MAX_TIMESTAMP_MS} ms, not at {start_ms!r:.30}.")
            keys.append(stored := packers[len(key)](start_ms // interval, key, start_ms, sequence))
            if value is None:
                continue
            if start_ms // interval < self._segments.oldest_live(stream_time_ms):
                dropped += 1
                continue
            staged[stored] = value
            stream_time_ms = max(stream_time_ms, start_ms)
        self._buffer.take(staged)
        self._sequence, self._dropped, self._stream_time_ms = sequence, dropped, stream_time_ms
        self._starts_are_timestamps = True
        return keys

    def staged_changes(self) -> Iterable[Change]:
        """Return the changes as other stores do. After `put_duplicates`, a change has the window's start as its
        timestamp."""
        changes = super().staged_changes()
        if not self._starts_are_timestamps:
            return changes
        unpack, behind = WINDOW_SUFFIX.unpack_from, -WINDOW_SUFFIX.size
        return (Change(key, value, unpack(key, behind)[0]) for key, value, _ in changes)

    def stored_keys(self, windows: Iterable[tuple[bytes, int]]) -> list[bytes]:
        """Return the stored keys of these (key, start in ms) for `get_rows` and `put_rows`. With duplicates,
        the first."""
        packers, interval = self._packers, self._interval_ms
        return [packers[len(key)](start // interval, key, start, 0) for key, start in windows]

    def restore(self, changes: Changes) -> None:
        super().restore(self._counted(changes) if self._retain_duplicates else changes)

    def _counted(self, changes: Changes) -> Iterator[tuple[bytes, bytes | None, int]]:
        """Raise the sequence to the largest that passes, so that no later put takes a used number."""
        for change in changes:
            self._sequence = max(self._sequence, WINDOW_SUFFIX.unpack_from(change[0], -WINDOW_SUFFIX.size)[1])
            yield change

    def _seen_reads(self) -> WindowReads:
        if self._engine is None or self._failure is not None:
            self._open()
        return self._own


class TimestampedWindowStore(WindowStore):
    """A WindowStore with a timestamp (milliseconds since the epoch) beside each value.

    The methods of WindowStore work on the values alone. `put` stores timestamp -1, unknown. Stored value (on disk:
    never change): ``timestamp:i64 BE ‖ value``.
    """

    timestamped: ClassVar[bool] = True

    def put(self, key: bytes, value: bytes | None, window_start_ms: int) -> None:
        self.put_with_timestamp(key, value, UNKNOWN_TIMESTAMP, window_start_ms)

    def put_with_timestamp(self, key: bytes, value: bytes | None, timestamp: int, window_start_ms: int) -> None:
        """Stage the value of a window with the timestamp of its record, like `put`."""
        stored = checked_join(value, timestamp)
        WindowStore.put(self, key, stored, window_start_ms)  # `super()` takes a tenth of the time of a put

    def fetch_one(self, key: bytes, start_ms: int) -> bytes | None:
        stored = super().fetch_one(key, start_ms)
        return None if stored is None else stored[8:]

    def fetch_one_with_timestamp(self, key: bytes, start_ms: int) -> ValueAndTimestamp | None:
        """Return the value of `fetch_one` with its timestamp."""
        stored = super().fetch_one(key, start_ms)
        return None if stored is None else split(stored)

    def fetch_with_timestamp(
        self, key: bytes, time_from: int, time_to: int, *, reverse: bool = False
    ) -> TimestampedWindowIterator:
        """Scan `fetch` with (start, (value, timestamp)) rows."""
        return with_timestamps(self._seen_reads().fetch(key, time_from, time_to, reverse=reverse))

    def fetch_keys_with_timestamp(
        self, key_from: bytes | None, key_to: bytes | None, time_from: int, time_to: int, *, reverse: bool = False
    ) -> TimestampedWindowedIterator:
        """Scan `fetch_keys` with (windowed key, (value, timestamp)) rows."""
        return with_timestamps(self._seen_reads().fetch_keys(key_from, key_to, time_from, time_to, reverse=reverse))

    def fetch_all_with_timestamp(
        self, time_from: int, time_to: int, *, reverse: bool = False
    ) -> TimestampedWindowedIterator:
        """Scan `fetch_all` with (windowed key, (value, timestamp)) rows."""
        return with_timestamps(self._seen_reads().fetch_all(time_from, time_to, reverse=reverse))

    def all_with_timestamp(self, *, reverse: bool = False) -> TimestampedWindowedIterator:
        """Scan `all` with (windowed key, (value, timestamp)) rows."""
        return with_timestamps(self._seen_reads().all(reverse=reverse))
