"""Rows of a stream that wait for older versions of a table: a join with grace, KIP-923 (`KStreamKTableJoinProcessor`).

The buffer is a key-value store with the keys of Kafka Streams (`TimeFirstWindowKeySchema`). On disk and in topics:
never change. `stateline.serde.buffered_change` has the values.

    key := 0:i8 ‖ timestamp:i64 ‖ key of the row ‖ number:i32

Different from Kafka Streams:

- Stream time is committed with the buffer, so a restart does not forget it.
- After a restart numbers continue behind those that wait. Kafka Streams begins at 1, and may lose a row.
- A restore takes the changelog's keys as they are. Kafka Streams 4.3.1 turns them round once more.
- A left join joins a row without a key at once. Kafka Streams ends.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

from stateline.log.interface import Record
from stateline.model.record_size import refuse_too_large
from stateline.processing.operators.buffered_changes import BufferedChanges
from stateline.processing.operators.grouping import with_key_and_value, with_value
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import LazyColumn, Rows
from stateline.processing.records import HeldRecord
from stateline.serde.buffered_change import BufferedChange

_TIME = struct.Struct(">bq")
_NUMBER = struct.Struct(">i")
_NUMBERS = 2**31

_Leaving: TypeAlias = tuple[bytes | None, bytes | None, int, Record]
"""Key, value, timestamp in milliseconds, and origin of a row."""


class HoldBack:
    """Takes rows, gives those whose time has come: stream time is `grace_ms` past their timestamps. They leave by
    timestamp, then by key, with their own timestamps and headers. A row that is later than this leaves at once. So does
    a row without a key for a `left` join. Only rows of this stream move stream time."""

    def __init__(self, name: str, store: str, grace_ms: int, left: bool, context: OperatorContext) -> None:
        self._name, self._store, self._grace_ms, self._left = name, context.stores[store], grace_ms, left
        self._context, self._number = context, 0
        self._buffer = BufferedChanges(self._store, headers=(), see=self._note_number)
        self._now_ms = context.time_so_far(store, self._buffer.newest_ms)

    def process(self, rows: Rows) -> Rows:
        failures = self._context.failures
        rows = with_value(rows, failures) if self._left else with_key_and_value(rows, failures)

        def held(place: int) -> tuple[bytes, BufferedChange, bytes] | None:
            key, at_ms, record = rows.keys.raw[place], rows.timestamps[place], rows.records[place]
            if key is None or at_ms < self._now_ms - self._grace_ms:
                return None
            name = _TIME.pack(0, at_ms) + key + _NUMBER.pack((self._number + 1) % _NUMBERS)
            where = record.offset, record.topic, record.partition, record.headers
            row = BufferedChange(at_ms, *where, None, None, rows.values.raw[place], 0)
            packed = row.packed()
            refuse_too_large(name, packed, self._context.max_record_bytes)
            return name, row, packed

        leaving = list[_Leaving]()
        for place, made in self._context.each(self._name, rows.records, range(len(rows.records)), held):
            at_ms = rows.timestamps[place]
            if made is None:
                leaving.append((rows.keys.raw[place], rows.values.raw[place], at_ms, rows.records[place]))
                continue
            name, row, packed = made
            self._number = (self._number + 1) % _NUMBERS
            self._now_ms = max(self._now_ms, at_ms)
            self._buffer.put(name, None, row, packed)
            while (first := self._buffer.first()) is not None and self._is_due(first[1]):
                leaving.append(_left(*self._buffer.take_first()))
        self._buffer.flush(max(0, self._now_ms))
        self._context.times.observe(self._store.name, self._now_ms)
        return Rows(
            LazyColumn(rows.keys.serde, [row[0] for row in leaving]),
            LazyColumn(rows.values.serde, [row[1] for row in leaving]),
            [row[2] for row in leaving],
            [row[3] for row in leaving],
        )

    def _note_number(self, name: bytes) -> None:
        self._number = max(self._number, _NUMBER.unpack(name[-_NUMBER.size :])[0])

    def _is_due(self, name: bytes) -> bool:
        return bool(_TIME.unpack_from(name)[1] <= self._now_ms - self._grace_ms)


def _left(name: bytes, row: BufferedChange) -> _Leaving:
    key = name[_TIME.size : -_NUMBER.size]
    record = HeldRecord(row.topic, row.partition, row.offset, row.timestamp_ms, key, row.new, row.headers)
    return key, row.new, row.timestamp_ms, record
