"""TimestampedKeyValueStore: a key-value store that keeps each value's record timestamp (KIP-258).

Stored bytes, in `staged` and in every reader (on disk: never change): ``timestamp:i64 BE ‖ value``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import ClassVar

from stateline_store.errors import InvalidArgumentError
from stateline_store.rows.timestamped_rows import (
    TIMESTAMP,
    UNKNOWN_TIMESTAMP,
    checked_join,
    split,
    values_of,
    with_timestamps,
)
from stateline_store.scan import StoreIterator, TimestampedIterator, ValueAndTimestamp
from stateline_store.stores.key_value import KeyValueStore


class TimestampedKeyValueStore(KeyValueStore):
    """A KeyValueStore with a timestamp (milliseconds since the epoch) beside each value. The methods of KeyValueStore
    work on the values alone. `put`, `put_all` and `put_if_absent` store timestamp -1, unknown."""

    timestamped: ClassVar[bool] = True

    def get(self, key: bytes) -> bytes | None:
        stored = self._get(key)
        return None if stored is None else stored[8:]

    def get_with_timestamp(self, key: bytes) -> ValueAndTimestamp | None:
        """Return the value and its timestamp, staged or committed, None if there is none."""
        stored = self._get(key)
        return None if stored is None else split(stored)

    def put(self, key: bytes, value: bytes | None) -> None:
        self.put_with_timestamp(key, value, UNKNOWN_TIMESTAMP)

    def put_with_timestamp(self, key: bytes, value: bytes | None, timestamp: int) -> None:
        """Stage a value and its timestamp. None deletes. Raises `InvalidArgumentError` for a wrong type or a timestamp
        that does not fit."""
        self._stage(key, checked_join(value, timestamp))

    def put_if_absent_with_timestamp(self, key: bytes, value: bytes | None, timestamp: int) -> ValueAndTimestamp | None:
        """Stage the value if the key has none. Returns the value that was there, None if there was none."""
        found = self.get_with_timestamp(key)
        if found is None:
            self.put_with_timestamp(key, value, timestamp)
        return found

    def put_all(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        self.put_all_with_timestamp((key, value, UNKNOWN_TIMESTAMP) for key, value in entries)

    def put_all_with_timestamp(self, entries: Iterable[tuple[bytes, bytes | None, int]]) -> None:
        """Stage many (key, value, timestamp). The last of equal keys counts. None deletes. It is the hot path of
        tables: over a million entries a second. If one entry is refused (`InvalidArgumentError`), nothing is staged."""
        self._open()
        pack = TIMESTAMP.pack
        try:
            rows = {key: None if value is None else pack(timestamp) + value for key, value, timestamp in entries}
        except (struct.error, TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"An entry is (bytes, bytes or None, milliseconds); nothing was staged: {error}."
            ) from error
        self._buffer.take(rows)

    def restore(self, changes: Iterable[tuple[bytes, bytes | None, int]]) -> None:
        self.put_all_with_timestamp(changes)

    def delete_with_timestamp(self, key: bytes) -> ValueAndTimestamp | None:
        """Stage a delete. Returns the value that was there, None if there was none."""
        found = self.get_with_timestamp(key)
        self._stage(key, None)
        return found

    def range(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> StoreIterator:
        return values_of(super().range(lower, upper, reverse=reverse))

    def prefix_scan(self, prefix: bytes, *, reverse: bool = False) -> StoreIterator:
        return values_of(super().prefix_scan(prefix, reverse=reverse))

    def range_with_timestamp(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> TimestampedIterator:
        """Scan `range` with (key, (value, timestamp)) rows."""
        return with_timestamps(super().range(lower, upper, reverse=reverse))

    def prefix_scan_with_timestamp(self, prefix: bytes, *, reverse: bool = False) -> TimestampedIterator:
        """Scan `prefix_scan` with (key, (value, timestamp)) rows."""
        return with_timestamps(super().prefix_scan(prefix, reverse=reverse))

    def all_with_timestamp(self, *, reverse: bool = False) -> TimestampedIterator:
        """Scan `all` with (key, (value, timestamp)) rows."""
        return self.range_with_timestamp(None, None, reverse=reverse)
