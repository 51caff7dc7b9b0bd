"""TimestampedKeyValueStore: a key-value store that keeps each value's record timestamp (KIP-258).

Stored bytes, in `staged` and in every reader (on disk: never change): ``timestamp:i64 BE ‖ value``.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable
from typing import ClassVar

from stateline_store.errors import DamagedDataError, InvalidArgumentError
from stateline_store.key_value import KeyValueStore
from stateline_store.scan import Scan, StoreIterator, TimestampedIterator, ValueAndTimestamp
from stateline_store.state_store import Change

_TIMESTAMP = struct.Struct(">q")
UNKNOWN_TIMESTAMP = -1  # Kafka Streams' value for rows written without one


class TimestampedKeyValueStore(KeyValueStore):
    """As KeyValueStore, with a timestamp (milliseconds since the epoch) beside each value.

    The methods of KeyValueStore work on the values alone; `put` and its like store timestamp -1, unknown.
    """

    timestamped: ClassVar[bool] = True

    def get(self, key: bytes) -> bytes | None:
        stored = self._get(key)
        return None if stored is None else stored[8:]

    def get_with_timestamp(self, key: bytes) -> ValueAndTimestamp | None:
        """The value and its timestamp, staged or committed; None when there is none."""
        stored = self._get(key)
        return None if stored is None else split(stored)

    def put(self, key: bytes, value: bytes | None) -> None:
        self.put_with_timestamp(key, value, UNKNOWN_TIMESTAMP)

    def put_with_timestamp(self, key: bytes, value: bytes | None, timestamp: int) -> None:
        """Stage a value and its timestamp; None deletes. Raises `InvalidArgumentError` for what does not
        fit.
        """
        try:
            stored = None if value is None else _TIMESTAMP.pack(timestamp) + value
        except (struct.error, TypeError) as error:
            raise InvalidArgumentError(f"Not a value and a timestamp: {value!r:.60}, {timestamp!r:.60}.") from error
        self._stage(key, stored)

    def put_if_absent_with_timestamp(self, key: bytes, value: bytes | None, timestamp: int) -> ValueAndTimestamp | None:
        """Stage the value if there is none for this key; returns what was found, None when nothing was."""
        found = self.get_with_timestamp(key)
        if found is None:
            self.put_with_timestamp(key, value, timestamp)
        return found

    def put_all(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        self.put_all_with_timestamp((key, value, UNKNOWN_TIMESTAMP) for key, value in entries)

    def put_all_with_timestamp(self, entries: Iterable[tuple[bytes, bytes | None, int]]) -> None:
        """Stage many (key, value, timestamp); the last of equal keys wins, and a value of None deletes.

        The hot path of tables: over a million a second. Stages nothing when one entry is refused
        (`InvalidArgumentError`).
        """
        self._open()
        pack = _TIMESTAMP.pack
        try:
            rows = {key: None if value is None else pack(timestamp) + value for key, value, timestamp in entries}
        except (struct.error, TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"An entry is (bytes, bytes or None, milliseconds); nothing was staged: {error}."
            ) from error
        self._buffer.take(rows)

    def staged_changes(self) -> Iterable[Change]:
        for key, stored in self.staged():
            if stored is None:
                yield Change(key, None, None)
            else:
                yield Change(key, stored[8:], _TIMESTAMP.unpack_from(stored)[0])

    def restore(self, changes: Iterable[tuple[bytes, bytes | None, int]]) -> None:
        self.put_all_with_timestamp(changes)

    def delete_with_timestamp(self, key: bytes) -> ValueAndTimestamp | None:
        """Stage a delete; returns what was there, None when nothing was."""
        found = self.get_with_timestamp(key)
        self._stage(key, None)
        return found

    def range(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> StoreIterator:
        return Scan(_values(super().range(lower, upper, reverse=reverse)))

    def prefix_scan(self, prefix: bytes, *, reverse: bool = False) -> StoreIterator:
        return Scan(_values(super().prefix_scan(prefix, reverse=reverse)))

    def range_with_timestamp(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> TimestampedIterator:
        """As `range`, with (key, (value, timestamp)) rows."""
        return Scan(_split_values(super().range(lower, upper, reverse=reverse)))

    def prefix_scan_with_timestamp(self, prefix: bytes, *, reverse: bool = False) -> TimestampedIterator:
        """As `prefix_scan`, with (key, (value, timestamp)) rows."""
        return Scan(_split_values(super().prefix_scan(prefix, reverse=reverse)))

    def all_with_timestamp(self, *, reverse: bool = False) -> TimestampedIterator:
        """As `all`, with (key, (value, timestamp)) rows."""
        return self.range_with_timestamp(None, None, reverse=reverse)


def join(value: bytes, timestamp: int) -> bytes:
    """The stored bytes of a value and its timestamp."""
    return _TIMESTAMP.pack(timestamp) + value


def split(stored: bytes) -> ValueAndTimestamp:
    """A value and its timestamp from their stored bytes. Raises `DamagedDataError` for fewer than eight
    bytes.
    """
    try:
        return ValueAndTimestamp(stored[8:], _TIMESTAMP.unpack_from(stored)[0])
    except struct.error as error:
        raise DamagedDataError(
            f"{stored!r} is no timestamp and value: rebuild the store from its changelog."
        ) from error


def _values(rows: StoreIterator) -> Generator[tuple[bytes, bytes], None, None]:
    with rows:
        for key, stored in rows:
            yield key, stored[8:]


def _split_values(rows: StoreIterator) -> Generator[tuple[bytes, ValueAndTimestamp], None, None]:
    with rows:
        for key, stored in rows:
            yield key, split(stored)
