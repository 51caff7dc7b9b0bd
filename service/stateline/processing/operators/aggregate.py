"""Aggregations without windows: count, reduce and aggregate.

As in Kafka Streams' `KStreamAggregate` and `KStreamReduce`, records without a key or without a value are left out, the
timestamp is the largest of the used records, and an aggregate of None deletes. A row of counts is
``timestamp:i64 ‖ count:i64``, both big-endian.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from stateline.processing.operators.folding import Adding, later, next_row
from stateline.processing.operators.grouping import with_key_and_value
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Changes, Rows, plain
from stateline.processing.operators.stored_rows import keep_rows, rows_of, with_fitting_headers
from stateline_store.rows.timestamped_rows import TIMESTAMP

COUNT_ROW = struct.Struct(">qq")  # what a timestamped store of int64 holds. On disk: never change

Counted = TypeVar("Counted", bound=Hashable)


class Count:
    def __init__(self, store: str, context: OperatorContext) -> None:
        self._store, self._context = context.stores[store], context

    def process(self, rows: Rows) -> Changes | None:
        rows = with_key_and_value(rows, self._context.failures)
        rows = with_fitting_headers(rows, rows.known_keys, [None] * len(rows.records), self._store, self._context)
        keys = rows.known_keys
        counts, newest = counted(keys, rows.timestamps)
        distinct = list(counts)
        old = rows_of(self._store, distinct)
        new, stamps = added(counts, newest, old)
        if not (self._store.headers or self._context.has_readers):
            keep_rows(self._store, distinct, new)
            return None
        records = list(dict(zip(keys, rows.records, strict=True)).values())  # the last of each key
        keep_rows(self._store, distinct, new, stamps, records)
        return Changes(distinct, plain(old), plain(new), stamps, records)


def counted(what: Sequence[Counted], timestamps: Sequence[int]) -> tuple[Mapping[Counted, int], Mapping[Counted, int]]:
    """Count each one, in the order of their coming, and find the largest timestamp of each."""
    newest = dict(zip(what, timestamps, strict=True))
    if timestamps != sorted(timestamps):
        for each, at_ms in zip(what, timestamps, strict=True):
            if at_ms > newest[each]:
                newest[each] = at_ms
    return Counter(what), newest


def added(
    counts: Mapping[Counted, int], newest: Mapping[Counted, int], old: Iterable[bytes | None]
) -> tuple[list[bytes | None], list[int]]:
    """Return the stored rows after these counts, and their timestamps. `old` are those before, in the same order."""
    new: list[bytes | None] = []
    stamps = []
    for (each, count), row in zip(counts.items(), old, strict=True):
        at_ms = newest[each]
        if row is not None:
            before_ms, before = COUNT_ROW.unpack(row)
            at_ms, count = max(at_ms, before_ms), count + before
        new.append(COUNT_ROW.pack(at_ms, count))
        stamps.append(at_ms)
    return new, stamps


class Fold:
    """Takes rows, gives changes of the table of aggregates. A record for which a function fails changes nothing."""

    def __init__(self, name: str, store: str, folding: Adding, context: OperatorContext) -> None:
        self._name, self._context, self._folding = name, context, folding
        self._store = context.stores[store]

    def process(self, rows: Rows) -> Changes | None:
        rows = with_key_and_value(rows, self._context.failures)
        keys = rows.known_keys
        distinct = list(dict.fromkeys(keys))
        before = dict(zip(distinct, rows_of(self._store, distinct), strict=True))
        newest, last, gone_ms = dict(before), {}, dict[bytes, int]()
        refuse = partial(self._context.refuse_too_large, store=self._store)

        def folded(row: tuple[bytes, Any, Any, int]) -> tuple[bytes, bytes | None]:
            key, typed_key, value, at_ms = row
            return key, next_row(self._folding, newest[key], key, typed_key, value, at_ms, refuse)

        given = zip(keys, rows.keys.typed, rows.values.typed, rows.timestamps, strict=True)
        for place, (key, row) in self._context.each(self._name, rows.records, given, folded):
            if row is None:
                gone_ms[key] = later(newest[key], rows.timestamps[place])
            newest[key], last[key] = row, place
        if not last:
            return None
        new = {key: newest[key] for key in last}
        changes = Changes(
            list(last),
            plain(map(before.__getitem__, last)),
            plain(new.values()),
            [gone_ms[key] if row is None else TIMESTAMP.unpack_from(row)[0] for key, row in new.items()],
            [rows.records[place] for place in last.values()],
        )
        keep_rows(self._store, new, list(new.values()), changes.timestamps, changes.records)
        return changes
