"""Iterators of timestamped stores: from stored bytes, ``timestamp:i64 BE ‖ value``, to what the caller asked for."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

from stateline_store.scan import Scan, ValueAndTimestamp
from stateline_store.timestamped_key_value import split
from stateline_store.windowed_keys import Windowed

Key = TypeVar("Key")

TimestampedWindowIterator: TypeAlias = Scan[tuple[int, ValueAndTimestamp]]
TimestampedWindowedIterator: TypeAlias = Scan[tuple[Windowed, ValueAndTimestamp]]


def values_of(rows: Scan[tuple[Key, bytes]]) -> Scan[tuple[Key, bytes]]:
    """The same rows with the values alone."""
    return Scan(_values(rows))


def with_timestamps(rows: Scan[tuple[Key, bytes]]) -> Scan[tuple[Key, ValueAndTimestamp]]:
    """The same rows with values and timestamps apart. Stepping raises `DamagedDataError` for bytes that are neither."""
    return Scan(_split(rows))


def _values(rows: Scan[tuple[Key, bytes]]) -> Generator[tuple[Key, bytes], None, None]:
    with rows:
        for key, stored in rows:
            yield key, stored[8:]


def _split(rows: Scan[tuple[Key, bytes]]) -> Generator[tuple[Key, ValueAndTimestamp], None, None]:
    with rows:
        for key, stored in rows:
            yield key, split(stored)
