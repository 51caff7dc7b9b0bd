"""Values with their timestamps (KIP-258): the stored bytes, and scans of them.

stored value := timestamp:i64 BE ‖ value        on disk, in `staged` and in every reader: never change
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import TypeAlias, TypeVar

from stateline_store.errors import DamagedDataError, InvalidArgumentError
from stateline_store.rows.windowed_keys import Windowed
from stateline_store.scan import Scan, ValueAndTimestamp

TIMESTAMP = struct.Struct(">q")  # on disk: never change
UNKNOWN_TIMESTAMP = -1  # Kafka Streams' value for rows written without one

Key = TypeVar("Key")

TimestampedWindowIterator: TypeAlias = Scan[tuple[int, ValueAndTimestamp]]
TimestampedWindowedIterator: TypeAlias = Scan[tuple[Windowed, ValueAndTimestamp]]


def join(value: bytes, timestamp: int) -> bytes:
    """Return the stored bytes of a value and its timestamp."""
    return TIMESTAMP.pack(timestamp) + value


def checked_join(value: bytes | None, timestamp: int) -> bytes | None:
    """Return the stored bytes, None for no value. Raises `InvalidArgumentError` for a wrong type or timestamp."""
    try:
        return None if value is None else TIMESTAMP.pack(timestamp) + value
    except (struct.error, TypeError) as error:
        raise InvalidArgumentError(f"Not a value and a timestamp: {value!r:.60}, {timestamp!r:.60}.") from error


def split(stored: bytes) -> ValueAndTimestamp:
    """Return the value and its timestamp of stored bytes. Raises `DamagedDataError` for fewer than eight bytes."""
    try:
        return ValueAndTimestamp(stored[8:], TIMESTAMP.unpack_from(stored)[0])
    except struct.error as error:
        raise DamagedDataError(
            f"{stored!r} is no timestamp and value: rebuild the store from its changelog."
        ) from error


def values_of(rows: Scan[tuple[Key, bytes]]) -> Scan[tuple[Key, bytes]]:
    """Scan the same rows with the values alone."""
    return Scan(_values(rows))


def with_timestamps(rows: Scan[tuple[Key, bytes]]) -> Scan[tuple[Key, ValueAndTimestamp]]:
    """Scan the same rows with value and timestamp apart. Stepping to a damaged row raises `DamagedDataError`."""
    return Scan(_split(rows))


def _values(rows: Scan[tuple[Key, bytes]]) -> Generator[tuple[Key, bytes], None, None]:
    with rows:
        for key, stored in rows:
            yield key, stored[8:]


def _split(rows: Scan[tuple[Key, bytes]]) -> Generator[tuple[Key, ValueAndTimestamp], None, None]:
    with rows:
        for key, stored in rows:
            yield key, split(stored)
