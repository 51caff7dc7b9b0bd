"""count: how many records a key has had. The store's rows: ``timestamp:i64 ‖ count:i64``, both big-endian.

As Kafka Streams' `KStreamAggregate` with a count: records without a key or without a value are left out, and the
timestamp is the largest of those that were counted.
"""

from __future__ import annotations

import struct
from collections import Counter

from stateline.worker.operators.grouping import grouped
from stateline.worker.operators.interface import OperatorContext
from stateline.worker.operators.rows import Changes, Rows

_ROW = struct.Struct(">qq")  # what a timestamped store of int64 holds. On disk: never change


class Count:
    """Rows in, changes of the table of counts out."""

    def __init__(self, store: str, context: OperatorContext) -> None:
        self._store = context.stores[store]
        self._failures = context.failures

    def process(self, rows: Rows) -> Changes:
        keys, timestamps, records = grouped(rows, self._failures)
        more = Counter(keys)
        newest = dict(zip(keys, timestamps, strict=True))
        if timestamps != sorted(timestamps):
            for key, timestamp in zip(keys, timestamps, strict=True):
                if timestamp > newest[key]:
                    newest[key] = timestamp
        stored = self._store.get_rows(list(more))
        new: dict[bytes, bytes | None] = {}
        stamps = []
        for (key, count), old in zip(more.items(), stored, strict=True):
            at_ms = newest[key]
            if old is not None:
                before_ms, before = _ROW.unpack(old)
                at_ms, count = max(at_ms, before_ms), count + before
            new[key] = _ROW.pack(at_ms, count)
            stamps.append(at_ms)
        last = dict(zip(keys, records, strict=True))
        changes = Changes(
            list(new),
            [None if row is None else row[8:] for row in stored],
            [None if row is None else row[8:] for row in new.values()],
            stamps,
            list(last.values()),
        )
        self._store.put_rows(new)
        return changes
