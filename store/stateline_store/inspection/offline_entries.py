"""Takes stored rows apart for inspections: keys, windows, sessions, timestamps.

All rows on disk show, also expired ones, which reads of the store itself hide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from stateline_store.errors import RetryLaterError
from stateline_store.layout import KEY_VALUE, Layout
from stateline_store.rocksdb.offline_store import OfflineStore
from stateline_store.rows.headers import Headers, split_headers
from stateline_store.rows.segments import PREFIX, present
from stateline_store.rows.timestamped_rows import split
from stateline_store.rows.versioned_rows import LATEST, versions
from stateline_store.rows.windowed_keys import split_session_key, split_window_key
from stateline_store.scan import KeyRange

(_LATEST,) = PREFIX.unpack(LATEST)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry, or one version of a versioned store. Times are milliseconds since the epoch.

    Members that a kind does not have are None. `value` is None for a deletion that a versioned store remembers.
    `end_ms` is a session's (included). Only the start of a window is on disk. `valid_to_ms` is a version's (excluded),
    None for the latest. A deletion that begins where it ends is still valid. `segment` is -1 for a versioned store's
    latest values.
    """

    key: bytes
    value: bytes | None
    timestamp_ms: int | None = None
    segment: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    sequence: int | None = None
    valid_to_ms: int | None = None
    headers: Headers | None = None


def entries(store: OfflineStore, lower: bytes | None, upper: bytes | None, *, timestamped: bool) -> Iterator[Entry]:
    """Yield the entries whose key lies between these, both included, None open, in stored order: by segment first in a
    store with segments.

    `timestamped` is for a database without a layout. Raises `DamagedDataError` at a row that makes no sense.
    """
    layout = store.layout or replace(KEY_VALUE, timestamped=timestamped)
    if layout.headers_up_to is not None:
        raise RetryLaterError(f"{store.directory} is given headers, which was interrupted: start its worker once.")
    if layout.kind == "key_value":
        for key, stored in store.scan(KeyRange.between(lower, upper)):
            yield _with_value(Entry(key, stored), layout)
        return
    for segment in present(store.scan):
        for row, stored in store.scan(_keys(segment, lower, upper)):
            for entry in _taken_apart(row[PREFIX.size :], stored, segment, layout):
                if (lower is None or entry.key >= lower) and (upper is None or entry.key <= upper):
                    yield entry


def _keys(segment: int, lower: bytes | None, upper: bytes | None) -> KeyRange:
    """Return the rows of a segment that can have those keys. A row has a time behind the key, which counts when rows
    are compared. So a key below `upper` can come anywhere behind. The rows of a single key begin with it."""
    prefix = PREFIX.pack(segment)
    if lower is not None and lower == upper:
        return KeyRange.prefixed(prefix + lower)
    return KeyRange(prefix + (lower or b""), KeyRange.prefixed(prefix).end)


def _taken_apart(row: bytes, stored: bytes, segment: int, layout: Layout) -> Iterator[Entry]:
    if layout.kind == "window":
        key, start_ms, sequence = split_window_key(row)
        yield _with_value(Entry(key, stored, segment=segment, start_ms=start_ms, sequence=sequence), layout)
    elif layout.kind == "session":
        key, start_ms, end_ms = split_session_key(row)
        yield _with_value(Entry(key, stored, segment=segment, start_ms=start_ms, end_ms=end_ms), layout)
    elif segment == _LATEST:
        value, timestamp_ms = split(stored)
        yield Entry(row, value, timestamp_ms, segment)
    else:
        for version in versions(stored):
            yield Entry(row, version.value, version.timestamp, segment, valid_to_ms=version.valid_to)


def _with_value(entry: Entry, layout: Layout) -> Entry:
    if not layout.timestamped or entry.value is None:
        return entry
    value, timestamp_ms = split(entry.value)
    headers: Headers | None = None
    if layout.headers:
        value, headers = split_headers(value)
    return replace(entry, value=value, timestamp_ms=timestamp_ms, headers=headers)
