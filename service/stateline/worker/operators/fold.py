"""reduce and aggregate: one value of each key, made of its records by a user's functions.

As Kafka Streams' `KStreamReduce` and `KStreamAggregate`: records without a key or without a value are left out, the
timestamp is the largest of the records that went in, and an aggregate of None deletes.
"""

from __future__ import annotations

import struct
from typing import Any

from stateline.record_size import refuse_too_large
from stateline.worker.operators.folding import Folding
from stateline.worker.operators.grouping import with_key_and_value
from stateline.worker.operators.interface import OperatorContext
from stateline.worker.operators.rows import Changes, Rows

_TIMESTAMP = struct.Struct(">q")  # what a timestamped store's row begins with. On disk: never change


class Fold:
    """Rows in, changes of the table of aggregates out. A record for which a function fails changes nothing."""

    def __init__(self, name: str, store: str, folding: Folding, context: OperatorContext) -> None:
        self._name, self._context, self._folding = name, context, folding
        self._store = context.stores[store]

    def process(self, rows: Rows) -> Changes | None:
        rows = with_key_and_value(rows, self._context.failures)
        keys: list[bytes] = rows.keys.raw  # type: ignore[assignment]  # none is None now
        distinct = list(dict.fromkeys(keys))
        before = dict(zip(distinct, self._store.get_rows(distinct), strict=True))
        held, last = dict(before), {}

        def folded(row: tuple[bytes, Any, Any, int]) -> tuple[bytes, bytes | None]:
            key, typed_key, value, at_ms = row
            return key, self._next(held[key], key, typed_key, value, at_ms)

        given = zip(keys, rows.keys.typed, rows.values.typed, rows.timestamps, strict=True)
        for place, (key, row) in self._context.each(self._name, rows.records, given, folded):
            held[key], last[key] = row, place
        if not last:
            return None
        new = {key: held[key] for key in last}
        changes = Changes(
            list(last),
            [None if row is None else row[8:] for row in map(before.__getitem__, last)],
            [None if row is None else row[8:] for row in new.values()],
            [rows.timestamps[last[key]] if row is None else _TIMESTAMP.unpack_from(row)[0] for key, row in new.items()],
            [rows.records[place] for place in last.values()],
        )
        self._store.put_rows(new)
        return changes

    def _next(self, row: bytes | None, key: bytes, typed_key: Any, value: Any, at_ms: int) -> bytes | None:
        """The stored row after one more record."""
        if row is not None:
            at_ms = max(at_ms, _TIMESTAMP.unpack_from(row)[0])
        aggregate = self._folding.add(typed_key, value, None if row is None else row[8:])
        refuse_too_large(key, aggregate, self._context.max_record_bytes)
        return None if aggregate is None else _TIMESTAMP.pack(at_ms) + aggregate
