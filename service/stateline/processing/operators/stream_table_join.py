"""Joins of a stream with a table: each row with the table's value for its key at that time.

By Kafka Streams' rules (`KStreamKTableJoinProcessor`), rows without a value are dropped. Rows without a key are
dropped, too, except by a left join, which gives them no table value. The result has the row's timestamp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stateline.model.store_definition import StoreDefinition
from stateline.processing.function_results import written
from stateline.processing.operators.grouping import with_key_and_value, with_value
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import LazyColumn, Rows
from stateline.serde.plain import Serde
from stateline_store import TransactionalStore, VersionedStore


class StreamTableJoin:
    """Takes rows, gives rows with the joined values; without `left` only those with a table value. A versioned table is
    asked for the value at the row's timestamp. `on` returns the table's key for a row. If it returns None, the row is
    dropped unless `left`."""

    def __init__(
        self,
        name: str,
        table: StoreDefinition,
        joiner: Callable[[Any, Any], Any],
        value: Serde,
        left: bool,
        on: Callable[[Any, Any], Any] | None,
        context: OperatorContext,
    ) -> None:
        self._name, self._joiner, self._serde, self._left = name, joiner, value, left
        self._on, self._key = on, table.key
        self._store, self._read = context.stores[table.name], table.value.deserialize
        self._context = context

    def process(self, rows: Rows) -> Rows:
        rows, keys = self._with_keys(rows)
        found = _values(self._store, keys, rows.timestamps)
        if not self._left and None in found:
            places = [place for place, data in enumerate(found) if data is not None]
            rows, found = rows.pick(places), [found[place] for place in places]

        def joined(pair: tuple[Any, bytes | None]) -> tuple[bytes | None, Any]:
            value, data = pair
            made = self._joiner(value, None if data is None else self._read(data))
            return written(self._serde, made), made

        pairs = zip(rows.values.typed, found, strict=True)
        made = list(self._context.each(self._name, rows.records, pairs, joined))
        kept = rows.pick([place for place, _ in made])
        return kept._replace(values=LazyColumn(self._serde, [raw for _, (raw, _) in made], [v for _, (_, v) in made]))

    def _with_keys(self, rows: Rows) -> tuple[Rows, Sequence[bytes | None]]:
        failures, on = self._context.failures, self._on
        if on is None:
            rows = with_value(rows, failures) if self._left else with_key_and_value(rows, failures)
            return rows, rows.keys.raw
        rows = with_value(rows, failures)
        mapped = self._context.each(self._name, rows.records, rows.pairs, lambda pair: written(self._key, on(*pair)))
        keys = dict(mapped)
        if not self._left:
            there = {place: key for place, key in keys.items() if key is not None}
            failures.drop(len(keys) - len(there), "no_key")
            keys = dict(there)
        return rows.pick(list(keys)), list(keys.values())


def _values(store: TransactionalStore, keys: Sequence[bytes | None], timestamps: Sequence[int]) -> list[bytes | None]:
    if isinstance(store, VersionedStore):
        pairs = zip(keys, timestamps, strict=True)
        versions = [None if key is None else store.get_as_of(key, at) for key, at in pairs]
        return [None if version is None else version.value for version in versions]
    wanted = list(dict.fromkeys(key for key in keys if key is not None))
    cut = 8 if store.timestamped else 0
    stored = zip(wanted, store.get_rows(wanted), strict=True)
    found: dict[bytes | None, bytes] = {key: row[cut:] for key, row in stored if row is not None}
    return [found.get(key) for key in keys]
