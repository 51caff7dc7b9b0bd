"""Rows of a versioned store: Kafka Streams' bytes (`RocksDBVersionedStoreSegmentValueFormatter`, KIP-889).

A version is valid from its timestamp to the timestamp of the next one of its key. The newest version of a key, unless
it is a tombstone, is a row of its own; all others are in segments, by the timestamp at which their validity ends. One
row holds all versions of a key in a segment. Stored key: ``segment:i64 ‖ key``. On disk: never change.

    latest value, segment -1    ts:i64 ‖ value
    segment 0 and up            valid_to:i64 ‖ oldest:i64 ‖ [ts:i64 ‖ size:i32] newest first ‖ values oldest first

``valid_to`` ends the newest version of the row, ``oldest`` is the timestamp of its oldest; there is no count, the entry
with that timestamp is the last. Size -1 is a tombstone, without bytes among the values. A row in which ``oldest``
equals ``valid_to`` has one entry, a tombstone, that is valid from there on: Kafka Streams calls it degenerate. It
stands where a key was deleted that has no older version in that segment.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable
from typing import NamedTuple

from stateline_store.errors import DamagedDataError

LATEST = struct.pack(">q", -1)  # on disk: never change; sorts after every segment, so that no expiry reaches it
_BOUNDS = struct.Struct(">qq")  # on disk: never change
_ENTRY = struct.Struct(">qi")  # on disk: never change
_TOMBSTONE = -1  # on disk: never change


class Version(NamedTuple):
    """The value of a key from `timestamp` (included) to `valid_to` (excluded), in ms. None is a tombstone."""

    timestamp: int
    value: bytes | None
    valid_to: int


def bounds(row: bytes) -> tuple[int, int]:
    """Return (valid_to, oldest): the end of the row's newest version and the beginning of its oldest. All functions
    here raise `DamagedDataError` for bytes that are no row."""
    try:
        valid_to, oldest = _BOUNDS.unpack_from(row)
    except struct.error as error:
        raise _damaged(row) from error
    return valid_to, oldest


def versions(row: bytes) -> list[Version]:
    """Return all versions in the row, newest first."""
    found = [Version(ts, None if start < 0 else row[start:end], to) for ts, to, start, end in _entries(row)]
    values = sum(len(version.value or b"") for version in found)
    if _BOUNDS.size + _ENTRY.size * len(found) + values != len(row):
        raise _damaged(row)
    return found


def find(row: bytes, as_of: int) -> Version:
    """Return the version that was valid at `as_of`, which must lie within the row's bounds (`valid_to` excluded)."""
    for timestamp, valid_to, start, end in _entries(row):
        if timestamp <= as_of:
            return Version(timestamp, None if start < 0 else row[start:end], valid_to)
    raise _damaged(row)


def new_row(timestamp: int, value: bytes | None, valid_to: int) -> bytes:
    """Return a row of one version. A tombstone with `valid_to` equal to `timestamp` makes it degenerate."""
    return _BOUNDS.pack(valid_to, timestamp) + _entry(timestamp, value) + (value or b"")


def append(row: bytes, timestamp: int, value: bytes | None, valid_to: int) -> bytes:
    """Return the row with one more version, the newest. A gap between the row's end and `timestamp` becomes a
    tombstone. It costs a copy and no decoding. Each new version of a key does this to the version before."""
    end, oldest = bounds(row)
    if timestamp < end:
        raise _damaged(row)  # versions overlap: one batch writes all rows of a put, so none of ours ever do
    degenerate = end == oldest
    if degenerate and timestamp == end:
        return new_row(timestamp, value, valid_to)
    # The entry of a degenerate row is the tombstone of the gap.
    gap = b"" if degenerate or timestamp == end else _ENTRY.pack(end, _TOMBSTONE)
    return b"".join((_BOUNDS.pack(valid_to, oldest), _entry(timestamp, value), gap, row[_BOUNDS.size :], value or b""))


def join(newest_first: Iterable[Version]) -> bytes:
    """Return the row of these versions: one or more, each ending where the next one begins."""
    ordered = list(newest_first)
    head = _BOUNDS.pack(ordered[0].valid_to, ordered[-1].timestamp)
    entries = [_entry(version.timestamp, version.value) for version in ordered]
    return b"".join((head, *entries, *(version.value or b"" for version in reversed(ordered))))


def _entry(timestamp: int, value: bytes | None) -> bytes:
    return _ENTRY.pack(timestamp, _TOMBSTONE if value is None else len(value))


def _entries(row: bytes) -> Generator[tuple[int, int, int, int], None, None]:
    """Yield (timestamp, valid_to, start and end of the value in the row), newest first. A tombstone has start -1."""
    valid_to, oldest = bounds(row)
    at, end, timestamp = _BOUNDS.size, len(row), oldest + 1
    while timestamp != oldest:
        if at + _ENTRY.size > end:
            raise _damaged(row)
        timestamp, size = _ENTRY.unpack_from(row, at)
        at += _ENTRY.size
        start = end - max(size, 0)
        if start < at or size < _TOMBSTONE or timestamp > valid_to or timestamp < oldest:
            raise _damaged(row)
        yield timestamp, valid_to, _TOMBSTONE if size < 0 else start, end
        valid_to, end = timestamp, start


def _damaged(row: bytes) -> DamagedDataError:
    return DamagedDataError(f"{row!r:.200} is no row of a versioned store: rebuild the store from its changelog.")
