"""Tables made of tables, kept in stores of their own.

A function gets key and value as their serdes read them. If it fails for a change, the change is left out and the
result's key stays unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from stateline.model.record_size import refuse_too_large
from stateline.processing.operators.grouping import with_key
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Changes, Rows, plain
from stateline.processing.operators.stored_rows import keep_rows, rows_of, with_fitting_headers
from stateline.serde.plain import Serde
from stateline_store.rows.timestamped_rows import TIMESTAMP


class Keep:
    """Puts the new values of changes into a store, and gives the changes there. An absent key that stays absent is no
    change."""

    def __init__(self, store: str, context: OperatorContext) -> None:
        self._store, self._context = context.stores[store], context

    def process(self, changes: Changes) -> Changes:
        changes = with_fitting_headers(changes, changes.keys, changes.new, self._store, self._context)
        stored = rows_of(self._store, changes.keys)
        places = [n for n, row in enumerate(stored) if row is not None or changes.new[n] is not None]
        keys, new = [changes.keys[n] for n in places], [changes.new[n] for n in places]
        stamps = [changes.timestamps[n] for n in places]
        pack = TIMESTAMP.pack
        rows = [None if data is None else pack(at) + data for data, at in zip(new, stamps, strict=True)]
        records = [changes.records[n] for n in places]
        keep_rows(self._store, keys, rows, stamps, records)
        return Changes(keys, plain(stored[n] for n in places), new, stamps, records)


class NewestOfEachKey:
    """Gives rows as changes of a table; old values are unknown. As in Kafka Streams' `toTable`, rows without a key are
    dropped, and rows without a value delete. For a table of `versions`, every row is a change."""

    def __init__(self, name: str, versions: bool, context: OperatorContext) -> None:
        self._name, self._versions, self._context = name, versions, context

    def process(self, rows: Rows) -> Changes:
        rows = _fitting(self._name, with_key(rows, self._context.failures), self._context)
        newest = {key: place for place, key in enumerate(rows.keys.raw) if key is not None}
        kept = rows if self._versions else rows.pick(list(newest.values()))
        keys = [key for key in kept.keys.raw if key is not None]
        return Changes(keys, [None] * len(keys), kept.values.raw, kept.timestamps, kept.records)


def _fitting(name: str, rows: Rows, context: OperatorContext) -> Rows:
    pairs = list(zip(rows.keys.raw, rows.values.raw, strict=True))
    if all(len(key or b"") + len(value or b"") <= context.max_record_bytes for key, value in pairs):
        return rows
    fitting = context.each(name, rows.records, pairs, lambda pair: refuse_too_large(*pair, context.max_record_bytes))
    return rows.pick([place for place, _ in fitting])


@dataclass(frozen=True, slots=True)
class MapTable:
    """Gives changes with the function's result for key, value and the value's bytes. None deletes. The serdes are those
    of the incoming changes."""

    name: str
    function: Callable[[Any, Any, bytes], bytes | None]
    key: Serde
    value: Serde
    context: OperatorContext

    def process(self, changes: Changes) -> Changes:
        def mapped(pair: tuple[bytes, bytes | None]) -> bytes | None:
            key, data = pair
            if data is None:
                return None
            made = self.function(self.key.deserialize(key), self.value.deserialize(data), data)
            refuse_too_large(key, made, self.context.max_record_bytes)
            return made

        pairs = zip(changes.keys, changes.new, strict=True)
        return changed(changes, self.context.each(self.name, changes.records, pairs, mapped))


def changed(changes: Changes, made: Iterable[tuple[int, bytes | None]]) -> Changes:
    """Return the changes at these places with new values; old values are unknown."""
    places, new = [], []
    for place, data in made:
        places.append(place)
        new.append(data)
    return Changes(
        [changes.keys[place] for place in places],
        [None] * len(places),
        new,
        [changes.timestamps[place] for place in places],
        [changes.records[place] for place in places],
    )
