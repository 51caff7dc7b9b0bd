"""Changes of a table that wait: Kafka Streams' ``suppress(untilTimeLimit)`` (`KTableSuppressProcessor`).

A change of a key waits in a store, and a later change of the key takes its place, but not its time. It leaves when
stream time is `wait_ms` past the timestamp of the first one, with its own timestamp and headers. Deletes leave, too.

Different from Kafka Streams: stream time is committed with the store, so a restart does not forget it; and what waits
is on disk.
"""

from __future__ import annotations

from typing import NamedTuple

from stateline.log.interface import Record
from stateline.model.record_size import refuse_too_large
from stateline.processing.operators.buffered_changes import BufferedChanges
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Changes
from stateline.processing.records import HeldRecord
from stateline.serde.buffered_change import BufferedChange
from stateline.serde.plain import shown
from stateline_store import RecordError


class Bounds(NamedTuple):
    """How many keys, and how many bytes by Kafka Streams' count, may wait in one partition; None for any number. If
    there are more, the task `stops`, or those that have waited longest leave."""

    records: int | None = None
    bytes: int | None = None
    stops: bool = False


class Suppress:
    """Takes changes of a table, gives those that have waited. In one slice a key may leave twice: what follows takes
    them as rows."""

    def __init__(self, store: str, wait_ms: int, bounds: Bounds, context: OperatorContext) -> None:
        self._store, self._context, self._wait_ms, self._bounds = context.stores[store], context, wait_ms, bounds
        self._buffer = BufferedChanges(self._store, sized=bounds.bytes is not None)
        self._now_ms = context.time_so_far(store, self._buffer.newest_ms)

    def process(self, changes: Changes) -> Changes | None:
        stored, buffer = self._store.get_rows(changes.keys), self._buffer

        def joined(place: int) -> tuple[BufferedChange | None, BufferedChange, bytes]:
            before = buffer.find(changes.keys[place], stored[place])
            change = _after(before, changes, place)
            packed = change.packed()
            refuse_too_large(changes.keys[place], packed, self._context.max_record_bytes)
            return before, change, packed

        gone = list[tuple[bytes, BufferedChange]]()
        name, places = f"suppress {self._store.name}", range(len(changes.keys))
        for place, (before, change, packed) in self._context.each(name, changes.records, places, joined):
            buffer.put(changes.keys[place], before, change, packed)
            self._now_ms = max(self._now_ms, change.timestamp_ms)
            while self._is_due(changes.records[place]):
                gone.append(buffer.take_first())
        buffer.flush(max(0, self._now_ms))
        self._context.times.observe(self._store.name, self._now_ms)
        return _changes(gone) if gone else None

    def _is_due(self, record: Record) -> bool:
        """Whether a change must leave now. Raises `RecordError` if it would have to leave early, and must not."""
        first = self._buffer.first()
        if first is None:
            return False
        if first[0] <= self._now_ms - self._wait_ms:
            return True
        records, size, stops = self._bounds
        over = (records is not None and self._buffer.count > records) or (size is not None and self._buffer.size > size)
        if over and stops:
            what = f"max_records={records}" if records is not None and self._buffer.count > records else f"{size=}"
            raise RecordError(
                f"Store {self._store.name!r} of suppress is full at {record.topic}-{record.partition} offset "
                f"{record.offset}, key {shown(record.key)}: {self._buffer.count} keys with {self._buffer.size} bytes "
                f"wait, and {what.replace('size', 'max_bytes')}. Raise the bound, shorten the time limit, or use "
                'when_full="emit".'
            )
        return over


def _after(before: BufferedChange | None, changes: Changes, place: int) -> BufferedChange:
    """Return the row of a key after this change."""
    record, at_ms, old = changes.records[place], changes.timestamps[place], changes.old[place]
    prior, time_ms = (old, at_ms) if before is None else (before.prior, before.time_ms)
    where = record.offset, record.topic, record.partition, record.headers
    return BufferedChange(at_ms, *where, prior, old, changes.new[place], time_ms)


def _changes(gone: list[tuple[bytes, BufferedChange]]) -> Changes:
    return Changes(
        [key for key, _ in gone],
        [change.old for _, change in gone],
        [change.new for _, change in gone],
        [change.timestamp_ms for _, change in gone],
        [
            HeldRecord(each.topic, each.partition, each.offset, each.timestamp_ms, key, each.new, each.headers)
            for key, each in gone
        ],
    )
