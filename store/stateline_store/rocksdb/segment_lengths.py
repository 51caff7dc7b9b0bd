"""Rewrite a store with longer segments at its opening, after its retention was raised.

Without this, all rows stay in segments of their first length. With a retention a thousand times as long, there would be
a thousand times as many segments, and a read of a key's history looks at each.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from stateline_store.files.commit_notice import CommitNotice
from stateline_store.layout import Layout
from stateline_store.rocksdb.engine import RocksDBEngine
from stateline_store.rows.segments import EVERY_SEGMENT, PREFIX
from stateline_store.rows.versioned_rows import Version, join, versions
from stateline_store.rows.windowed_keys import split_session_key, split_window_key

# Rewrite only segments that are this many times too short. Otherwise reads are fast enough.
MANY = 8
# The limit for a rewrite, which is one batch in memory, and one memtable.
MOST_BYTES = 64 * 1024 * 1024
_log = logging.getLogger(__name__)


def lengthen_segments(database: RocksDBEngine, declared: Layout, notice: Path) -> None:
    """Rewrite a store whose segments are much shorter than the declared ones. A store that is too large stays as it is,
    with a warning. A crash leaves the old or the new rows. Readers in other processes find no database meanwhile.

    Raises `DamagedDataError` for invalid rows, and like `RocksDBEngine.rewrite`.
    """
    stored_ms, wanted_ms = database.layout.segment_interval_ms, declared.segment_interval_ms
    if stored_ms is None or wanted_ms is None or wanted_ms < stored_ms * MANY:
        return
    rows, size = list[tuple[bytes, bytes]](), 0
    with database.scan(EVERY_SEGMENT) as scan:
        for key, value in scan:
            rows.append((key, value))
            size += len(key) + len(value)
            if size > MOST_BYTES:
                _log.warning(
                    "%s keeps segments of %d ms, from a shorter retention, because it has more than %d MiB. Segments "
                    "of %d ms suit the new retention. Reads of a key's history and late records stay slow. To rebuild "
                    "the store, give it another name.",
                    *(database.directory, stored_ms, MOST_BYTES >> 20, wanted_ms),
                )
                return
    moved = _of_versions(rows, wanted_ms) if declared.kind == "versioned" else _of_times(rows, wanted_ms, declared)
    if notice.exists():  # other readers would look for the new rows in the old segments
        CommitNotice(notice).withdraw()
    database.rewrite(moved, replace(database.layout, segment_interval_ms=wanted_ms), every_segment=True)
    _log.info(
        "%s has segments of %d ms now, for its longer retention: %d ms before", database.directory, wanted_ms, stored_ms
    )


def _of_times(rows: Iterable[tuple[bytes, bytes]], interval_ms: int, layout: Layout) -> dict[bytes, bytes]:
    """Place rows of windows by their start, of sessions by their end."""
    pack, width, moved = PREFIX.pack, PREFIX.size, dict[bytes, bytes]()
    for stored_key, value in rows:
        row = stored_key[width:]
        at_ms = split_window_key(row)[1] if layout.kind == "window" else split_session_key(row).end_ms
        moved[pack(at_ms // interval_ms) + row] = value
    return moved


def _of_versions(rows: Iterable[tuple[bytes, bytes]], interval_ms: int) -> dict[bytes, bytes]:
    """Place versions by the end of their validity. Those of a key come in ascending segments."""
    moved = dict[bytes, list[Version]]()
    for stored_key, row in rows:
        for version in reversed(versions(row)):
            at = PREFIX.pack(version.valid_to // interval_ms) + stored_key[PREFIX.size :]
            _append(moved.setdefault(at, []), version)
    return {key: join(reversed(oldest_first)) for key, oldest_first in moved.items()}


def _append(oldest_first: list[Version], version: Version) -> None:
    """Append the newest version to a row. A gap before it becomes a tombstone. A degenerate version only says that the
    key is deleted from there on. It is alone in a row or absent, because the end of a row says the same."""
    if oldest_first:
        end = oldest_first[-1].valid_to
        if oldest_first[-1].timestamp == end:
            oldest_first.pop()
        if end < version.timestamp:
            oldest_first.append(Version(end, None, version.timestamp))
        if oldest_first and version.timestamp == version.valid_to:
            return
    oldest_first.append(version)
