"""Entries of scans: which key they belong to, and what sorts them. Pure."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from stateline.query.values import Entry, SortKey
from stateline_store import (
    MultiVersionedKeyQuery,
    Scan,
    StoreSchema,
    VersionedRecord,
    Windowed,
    WindowIterator,
    WindowKeyQuery,
    window_end_ms,
)
from stateline_store.scan import LARGEST_CHUNK, LARGEST_CHUNK_BYTES
from stateline_store.windowed_keys import window_key


def windows_of_key(query: WindowKeyQuery, result: Scan[Any], schema: StoreSchema) -> Scan[Entry]:
    """Windows with the key that was asked for."""
    return Scan.of_chunks(_windows(query.key, schema.window_size_ms, result))


def versions_of_key(query: MultiVersionedKeyQuery, result: Scan[Any], schema: StoreSchema) -> Scan[Entry]:
    """Versions with the key that was asked for."""
    del schema
    return Scan.of_chunks(_versions(query.key, result))


def by_start(entry: Any) -> int:
    """The start of a window."""
    start_ms: int = entry[0].start_ms
    return start_ms


def by_end(entry: Any) -> tuple[int, int]:
    """The end of a session, then its start."""
    return entry[0].end_ms, entry[0].start_ms


def by_timestamp(entry: Any) -> int:
    """The timestamp of a version."""
    timestamp: int = entry[1].timestamp
    return timestamp


def by_segment(interval_ms: int) -> SortKey:
    """Segments of this length, then the bytes of the rows."""
    # By the row's own bytes: if one key begins with another, they are not in the order of the keys.
    return lambda entry: (entry[0].start_ms // interval_ms, window_key(entry[0].key, entry[0].start_ms))


def _windows(key: bytes, size_ms: int, windows: WindowIterator) -> Generator[list[tuple[Windowed, bytes]], None, None]:
    with windows:
        for chunk in windows.chunks():
            yield [(Windowed(key, start_ms, window_end_ms(start_ms, size_ms)), value) for start_ms, value in chunk]


def _versions(
    key: bytes, versions: Scan[VersionedRecord]
) -> Generator[list[tuple[bytes, VersionedRecord]], None, None]:
    with versions:
        chunk, size = list[tuple[bytes, VersionedRecord]](), 0
        for version in versions:
            chunk.append((key, version))
            size += len(version.value)
            if size >= LARGEST_CHUNK_BYTES or len(chunk) == LARGEST_CHUNK:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk
