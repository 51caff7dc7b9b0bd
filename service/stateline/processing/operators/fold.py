"""reduce and aggregate: an application's functions make one value of each key's records.

As in Kafka Streams' `KStreamReduce` and `KStreamAggregate`, records without a key or without a value are left out, the
timestamp is the largest of the used records, and an aggregate of None deletes.
"""

from __future__ import annotations

from typing import Any

from stateline.processing.operators.folding import Folding, next_row
from stateline.processing.operators.grouping import with_key_and_value
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Changes, Rows, plain
from stateline_store.rows.timestamped_rows import TIMESTAMP


class Fold:
    """Takes rows, gives changes of the table of aggregates. A record for which a function fails changes nothing."""

    def __init__(self, name: str, store: str, folding: Folding, context: OperatorContext) -> None:
        self._name, self._context, self._folding = name, context, folding
        self._store = context.stores[store]

    def process(self, rows: Rows) -> Changes | None:
        rows = with_key_and_value(rows, self._context.failures)
        keys = rows.known_keys
        distinct = list(dict.fromkeys(keys))
        before = dict(zip(distinct, self._store.get_rows(distinct), strict=True))
        newest, last = dict(before), {}

        def folded(row: tuple[bytes, Any, Any, int]) -> tuple[bytes, bytes | None]:
            key, typed_key, value, at_ms = row
            most = self._context.max_record_bytes
            return key, next_row(self._folding, newest[key], key, typed_key, value, at_ms, most)

        given = zip(keys, rows.keys.typed, rows.values.typed, rows.timestamps, strict=True)
        for place, (key, row) in self._context.each(self._name, rows.records, given, folded):
            newest[key], last[key] = row, place
        if not last:
            return None
        new = {key: newest[key] for key in last}
        changes = Changes(
            list(last),
            plain(map(before.__getitem__, last)),
            plain(new.values()),
            [rows.timestamps[last[key]] if row is None else TIMESTAMP.unpack_from(row)[0] for key, row in new.items()],
            [rows.records[place] for place in last.values()],
        )
        self._store.put_rows(new)
        return changes
