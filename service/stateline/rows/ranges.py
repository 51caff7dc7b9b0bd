"""Wanted rows of a checkpoint, as ranges of stored keys, in the order in which they are read.

The ranges have every wanted row. `rows` leaves out others that they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from stateline.model.store_definition import StoreDefinition
from stateline.rows.selection import RowSelection
from stateline_store import StoreSchema
from stateline_store.layout import Layout, plain_kind
from stateline_store.reads.splits import Split, common
from stateline_store.rows.segments import PREFIX, Segments, existing
from stateline_store.rows.versioned_rows import LATEST
from stateline_store.rows.windowed_keys import MAX_TIMESTAMP_MS
from stateline_store.scan import KeyRange
from stateline_store.snapshots.checkpoints import Checkpoint


def store_schema(definition: StoreDefinition, layout: Layout) -> StoreSchema:
    """Return the schema for queries of a store, from its declaration and its database's layout."""
    interval_ms = layout.segment_interval_ms
    segments = None if interval_ms is None else Segments(definition.retention_ms, interval_ms)
    # Values stay as stored. Answers split them, a column at a time.
    return StoreSchema(layout.kind, False, segments, definition.window_size_ms, layout.retain_duplicates)


def stored_ranges(checkpoint: Checkpoint, store: StoreSchema, wanted: RowSelection) -> Iterator[KeyRange]:
    """Return the ranges, none of them empty."""
    if store.kind == "key_value":
        return _inside(wanted, _keys(wanted))
    if store.kind == "versioned":
        return chain(history_ranges(checkpoint, store, wanted), latest_ranges(wanted))
    segments = _segments(store)
    first_ms, last_ms = readable_times(checkpoint, store, wanted)
    there = existing(checkpoint.scan, segments.between(first_ms, last_ms))
    return _inside(wanted, _rows_of_keys(there, wanted))


def possible_ranges(definition: StoreDefinition, wanted: RowSelection) -> list[KeyRange]:
    """Return the ranges as far as they are known before the checkpoint is opened, none of them empty."""
    kind = plain_kind(definition.kind)
    if wanted.is_nothing(kind):
        return []
    return list(_inside(wanted, _keys(wanted))) if kind == "key_value" else [wanted.split]


def wanted_splits(checkpoint: Checkpoint, definition: StoreDefinition, wanted: RowSelection, size: int) -> list[Split]:
    """Return the splits of about `size` bytes on disk that may have wanted rows. If there is none, return the first
    split, so that a reader of all splits has one."""
    every = checkpoint.splits(size)
    store = store_schema(definition, checkpoint.layout)
    if wanted.is_nothing(store.kind):
        return every[:1]
    ranges = list(stored_ranges(checkpoint, store, wanted))
    found = [each for each in every if any(not common(each.keys, one).is_empty for one in ranges)]
    return found or every[:1]


def history_ranges(checkpoint: Checkpoint, store: StoreSchema, wanted: RowSelection) -> Iterator[KeyRange]:
    """Return where a versioned store has versions that are not the latest of their keys."""
    segments, stream_time_ms = _segments(store), checkpoint.commit.stream_time_ms
    if wanted.as_of is not None and wanted.as_of < stream_time_ms - segments.retention_ms:
        return iter(())  # of a time that is hidden, what is the latest is all
    since_ms, _ = readable_times(checkpoint, store, wanted)
    there = existing(checkpoint.scan, segments.between(max(since_ms, 0), max(stream_time_ms, 0)))
    return _inside(wanted, (_within(PREFIX.pack(each), keys) for each in there for keys in _keys(wanted)))


def latest_ranges(wanted: RowSelection) -> Iterator[KeyRange]:
    """Return where a versioned store has the latest versions."""
    return _inside(wanted, (_within(LATEST, keys) for keys in _keys(wanted)))


def readable_times(checkpoint: Checkpoint, store: StoreSchema, wanted: RowSelection) -> tuple[int, int]:
    """Return from when to when wanted rows are readable: the start of windows, the end of sessions, both included.
    Versions end after the first time and begin by the second."""
    segments, stream_time_ms = _segments(store), checkpoint.commit.stream_time_ms
    if store.kind == "versioned":
        from_ms, to_ms = (wanted.from_ms, wanted.to_ms) if wanted.as_of is None else (wanted.as_of, wanted.as_of)
        floor_ms = stream_time_ms - segments.retention_ms
        since_ms = floor_ms if from_ms is None else max(from_ms, floor_ms)
        return since_ms, MAX_TIMESTAMP_MS if to_ms is None else to_ms
    last_ms = MAX_TIMESTAMP_MS if wanted.to_ms is None or store.kind == "session" else wanted.to_ms
    return segments.readable(max(wanted.from_ms or 0, 0), last_ms, stream_time_ms)


def _inside(wanted: RowSelection, ranges: Iterable[KeyRange]) -> Iterator[KeyRange]:
    narrowed = (common(each, wanted.split) for each in ranges)
    return (each for each in narrowed if not each.is_empty)


def _segments(store: StoreSchema) -> Segments:
    assert store.segments is not None, f"a {store.kind} store has segments"
    return store.segments


def _within(segment: bytes, keys: KeyRange) -> KeyRange:
    """Return the rows of a segment whose name is the key alone."""
    end = KeyRange.prefixed(segment).end if keys.end is None else segment + keys.end
    return KeyRange(segment + keys.start, end)


def _keys(wanted: RowSelection) -> list[KeyRange]:
    """Return the keys asked for, as ranges, ascending."""
    return [wanted.keys] if wanted.only is None else [KeyRange(key, key + b"\0") for key in wanted.only]


def _rows_of_keys(segments: Iterable[int], wanted: RowSelection) -> Iterator[KeyRange]:
    """Return the ranges of these segments that have the rows of the keys asked for."""
    keys = [wanted.keys] if wanted.only is None else [KeyRange(key, key + b"\0") for key in _roots(wanted.only)]
    return (_around(PREFIX.pack(segment), each) for segment in segments for each in keys)


def _roots(keys: Iterable[bytes]) -> list[bytes]:
    """Return the ascending keys that begin with no other key. The ranges around them have the others' rows."""
    found: list[bytes] = []
    for key in keys:
        if not (found and key.startswith(found[-1])):
            found.append(key)
    return found


def _around(segment: bytes, keys: KeyRange) -> KeyRange:
    """Return a range of a segment's rows that has those of these keys. A row's name has a time after the key, so a key
    below the end can come after it. The names of a single key begin with it."""
    if keys.end == keys.start + b"\0" or (keys.start and keys.end == KeyRange.prefixed(keys.start).end):
        return KeyRange.prefixed(segment + keys.start)
    return KeyRange(segment + keys.start, KeyRange.prefixed(segment).end)
