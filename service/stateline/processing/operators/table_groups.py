"""Tables grouped by another key: changes go to the group's partition, and leave and enter its aggregate there.

By the rules of Kafka Streams (`KTableRepartitionMap`, `KTableAggregate`, `KTableReduce`), a row that changes its group
is two records, the old one first. A half whose key or value is None is left out. A row leaves an aggregate only if
there is one. A group that lost its last row has a count of 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stateline.model.record_size import refuse_too_large
from stateline.model.topic import Topic
from stateline.processing.function_results import key_and_value, refuse_unrun, written
from stateline.processing.operators.aggregate import COUNT_ROW
from stateline.processing.operators.grouping import with_key_and_value
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Changes, Rows, plain
from stateline.processing.operators.stored_rows import keep_rows, rows_of, with_fitting_headers
from stateline.processing.records import OutputRecord
from stateline.serde.change import ADDED, REMOVED, joined, kind_of
from stateline.serde.plain import Serde
from stateline.serde.windowed import partition_key

_Row = tuple[bytes, bytes]  # the group's key, and the row's value


@dataclass(frozen=True, slots=True)
class Regroup:
    """Writes changes of a table to the repartition topic, with their timestamps and headers. The function returns the
    group's key and the row from a key and a value. `key` and `value` are the serdes of the table, `row` that of the
    rows."""

    name: str
    function: Callable[[Any, Any], Any]
    key: Serde
    value: Serde
    topic: Topic
    row: Serde
    context: OperatorContext

    def process(self, changes: Changes) -> None:
        context, pairs = self.context, zip(changes.keys, changes.new, strict=True)
        mapped = context.each(self.name, changes.records, pairs, lambda pair: self._mapped(*pair))
        entered = dict(mapped)  # not those that the function refuses: they are in no group

        def halves(place: int) -> list[_Row]:
            key, old_value = changes.keys[place], changes.old[place]
            new, old = entered.get(place), context.of_before(lambda: self._mapped(key, old_value))
            if old is not None and new is not None and old[0] == new[0]:
                made = [(new[0], joined(old[1], new[1]))]
            else:
                made = [(old[0], joined(old[1], None))] if old else []
                made += [(new[0], joined(None, new[1]))] if new else []
            for row in made:
                refuse_too_large(*row, context.max_record_bytes)
            return made

        for place, made in context.each(self.name, changes.records, range(len(changes.records)), halves):
            at_ms, headers = changes.timestamps[place], changes.records[place].headers
            for key, value in made:
                where = partition_key(self.topic.key, key)
                context.outputs.append(OutputRecord(self.topic.name, key, value, at_ms, headers, where))

    def _mapped(self, key: bytes, value: bytes | None) -> _Row | None:
        if value is None:
            return None
        given = refuse_unrun(self.function(self.key.deserialize(key), self.value.deserialize(value)))
        if given is None:
            return None
        group, row = key_and_value(given, self.function)
        group, row = written(self.topic.key, group), written(self.row, row)
        return None if group is None or row is None else (group, row)


class CountChanges:
    """Takes changes of grouped rows, gives changes of the table of counts."""

    def __init__(self, store: str, context: OperatorContext) -> None:
        self._store, self._context = context.stores[store], context

    def process(self, rows: Rows) -> Changes | None:
        rows = with_key_and_value(rows, self._context.failures)
        rows = with_fitting_headers(rows, rows.known_keys, [None] * len(rows.records), self._store, self._context)
        keys = rows.known_keys
        distinct = list(dict.fromkeys(keys))
        before = dict(zip(distinct, rows_of(self._store, distinct), strict=True))
        counts = {key: COUNT_ROW.unpack(row) for key, row in before.items() if row is not None}
        last: dict[bytes, int] = {}
        for place, (key, data, at_ms) in enumerate(zip(keys, rows.values.raw, rows.timestamps, strict=True)):
            kind = kind_of(data or b"")
            newest_ms, count = counts.get(key, (-1, None))
            if count is None and kind == REMOVED:
                continue
            step = 1 if count is None or kind == ADDED else -1 if kind == REMOVED else 0
            counts[key] = max(at_ms, newest_ms), (count or 0) + step
            last[key] = place
        if not last:
            return None
        new = [COUNT_ROW.pack(*counts[key]) for key in last]
        stamps, records = [counts[key][0] for key in last], [rows.records[place] for place in last.values()]
        keep_rows(self._store, last, new, stamps, records)
        return Changes(list(last), plain(map(before.__getitem__, last)), plain(new), stamps, records)
