"""Finds how far a restore may skip a window changelog, because the store's retention has dropped the rows before.

Kafka Streams skips by record timestamps for all windows and sessions (KAFKA-13499, KAFKA-20940). That is safe only if a
row's timestamp is never smaller than the time by which the row expires. `docs/decisions/0039-skip-expired-windows.md`
has the proof for the aggregates of windowed streams, and says why all other changelogs are read whole.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from stateline.log.interface import Admin, Log, Record
from stateline.model.store_definition import StoreDefinition
from stateline.processing.changelog import without_former_owners
from stateline_store import RetryLaterError, StateStore, TopicPartition
from stateline_store.rows.windowed_keys import WINDOW_SUFFIX
from stateline_store.stores.segmented_store import SegmentedStore

_LEAST_OFFSETS = 5_000
"""A shorter backlog is read whole."""
_TAIL_OFFSETS = (200, 5_000)
"""How much is read at a changelog's end for its stream time. The second number counts if the first part holds no row,
only the markers of transactions."""
_BEFORE_OFFSETS = 50
"""How much is read before the first row that is kept. It shows the newest owner to the filter of former owners'
records."""
_TAIL_S = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backlog:
    """A store, the next offset of its changelog that it lacks, and the changelog's end with open transactions."""

    store: StateStore
    definition: StoreDefinition
    at: int
    end: int


def starts_of(backlogs: Mapping[TopicPartition, Backlog], log: Log, admin: Admin) -> dict[TopicPartition, int]:
    """Return the offset from which to restore each of these changelogs: the store's next one, or a later one if
    retention has dropped all rows before it. A store restored from there equals one that was restored from `at`."""
    starts = {changelog: backlog.at for changelog, backlog in backlogs.items()}
    long = [c for c, b in backlogs.items() if b.end - b.at >= _LEAST_OFFSETS and _follows_windows(b.definition)]
    bounds = {changelog: (starts[changelog], end) for changelog, end in admin.committed_ends(long).items()}
    for changelog, records in _tails(log, bounds).items():
        store, newest = backlogs[changelog].store, _newest_window(records)
        if newest is None or not isinstance(store, SegmentedStore):
            continue
        kept_ms = store.segments.oldest_live(newest[0]) * store.segments.interval_ms
        # Rows of the store that are still live may have changed in the backlog, also by tombstones.
        if store.stream_time_ms >= kept_ms:
            continue
        # Without a match, `offset_at` returns the end. The newest window is always kept.
        first = min(admin.offset_at(changelog, kept_ms), newest[1]) - _BEFORE_OFFSETS
        if first > starts[changelog]:
            logger.info("Store %s skips offsets %d to %d of %s: its retention has dropped windows that start before "
                        "%d ms.", store.name, starts[changelog], first - 1, changelog, kept_ms)  # fmt: skip
            starts[changelog] = first
    return starts


def _follows_windows(definition: StoreDefinition) -> bool:
    """Return whether every row's timestamp is at least its window's start."""
    is_aggregate = definition.is_operators and definition.factory is None and definition.source is None
    return is_aggregate and definition.kind == "timestamped_window"


def _tails(log: Log, bounds: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, list[Record]]:
    """Return the last committed records of these changelogs, each between its bounds. Changelogs that cannot be read in
    time have none: they are read whole."""
    found: dict[TopicPartition, list[Record]] = {}
    until_s = time.monotonic() + _TAIL_S
    for count in _TAIL_OFFSETS:
        wanted = {each: (max(at, end - count), end) for each, (at, end) in bounds.items() if not found.get(each)}
        if not wanted:
            break
        with closing(log.consumer(auto_offset_reset="error")) as consumer:
            consumer.assign({each: at for each, (at, _) in wanted.items()})
            found |= {each: [] for each in wanted}
            while any((consumer.next_offset(each) or 0) < end for each, (_, end) in wanted.items()):
                try:
                    records = consumer.poll(count * len(wanted), 0.1)
                except RetryLaterError:  # deleted meanwhile
                    return {}
                if time.monotonic() > until_s:
                    return {}
                for record in records:
                    found[TopicPartition(record.topic, record.partition)].append(record)
    return found


def _newest_window(records: list[Record]) -> tuple[int, int] | None:
    """Return the start of the newest window (ms) among these records of their newest owner, and its offset. Returns
    None if there is none, or if a record is not of a windowed aggregate: the restore itself refuses or takes it."""
    _, newest_owner = without_former_owners(records, 0)
    owned, _ = without_former_owners(records, newest_owner)
    width = WINDOW_SUFFIX.size
    try:
        found = [(WINDOW_SUFFIX.unpack_from(r.key, len(r.key) - width)[0], r) for r in owned if r.key]
    except struct.error:
        return None
    if any(r.value is not None and r.timestamp_ms < start_ms for start_ms, r in found):
        return None
    return max(((start_ms, r.offset) for start_ms, r in found), default=None)
