"""Joins with tables.

A stream's row is joined with the table's value for its key at that time. By Kafka Streams' rules
(`KStreamKTableJoinProcessor`), rows without a value are dropped. Rows without a key are dropped, too, except by a left
join, which gives them no table value. The result has the row's timestamp.

A table's change is joined with the other table's row at that time. By Kafka Streams' rules (`KTableKTableInnerJoin`,
`…LeftJoin`, `…RightJoin`, `…OuterJoin`), a result has the larger timestamp of both sides. If a side is missing that the
join needs, the result is deleted.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from stateline.model.record_size import refuse_too_large
from stateline.model.store_definition import StoreDefinition
from stateline.processing.function_results import written
from stateline.processing.operators.grouping import with_key_and_value, with_value
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Changes, LazyColumn, Rows, plain
from stateline.processing.operators.stored_rows import rows_of
from stateline.processing.operators.table_steps import changed
from stateline.serde.plain import Serde
from stateline_store import TransactionalStore, VersionedStore
from stateline_store.rows.timestamped_rows import TIMESTAMP


class StreamTableJoin:
    """Takes rows, gives rows with the joined values; without `left` only those with a table value. A versioned table is
    asked for the value at the row's timestamp. `on` returns the table's key for a row. If it returns None, the row is
    dropped unless `left`."""

    def __init__(
        self,
        name: str,
        table: StoreDefinition,
        joiner: Callable[[bytes | None, Any, Any], Any],
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

        def joined(given: tuple[bytes | None, Any, bytes | None]) -> tuple[bytes | None, Any]:
            key, value, data = given
            made = self._joiner(key, value, None if data is None else self._read(data))
            return written(self._serde, made), made

        given = zip(rows.keys.raw, rows.values.typed, found, strict=True)
        made = list(self._context.each(self._name, rows.records, given, joined))
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
    stored = zip(wanted, rows_of(store, wanted), strict=True)
    found: dict[bytes | None, bytes] = {key: row[cut:] for key, row in stored if row is not None}
    return [found.get(key) for key in keys]


JoinKind: TypeAlias = Literal["inner", "left", "outer"]


class Outcome(enum.Enum):
    NOTHING = "nothing"
    DELETED = "deleted"
    JOINED = "joined"


def outcome(kind: JoinKind, is_left: bool, old: bytes | None, new: bytes | None, other: bytes | None) -> Outcome:
    """Decide the effect of one side's change from `old` to `new`, while the other side has `other`."""
    may_miss_other = kind == "outer" or (kind == "left" and is_left)
    may_be_missing = kind == "outer" or (kind == "left" and not is_left)
    if other is None and (not may_miss_other or (old is None and new is None)):
        return Outcome.NOTHING
    if new is None and (other is None or not may_be_missing):
        return Outcome.DELETED
    return Outcome.JOINED


class Joined(NamedTuple):
    """Shared by both sides of a join. `joiner` gets the key's bytes, then the left and the right value, None for a
    missing one. `left` and `right` are the serdes of these values, `value` that of the result."""

    name: str
    kind: JoinKind
    joiner: Callable[[bytes | None, Any, Any], Any]
    left: Serde
    right: Serde
    value: Serde
    store: str


class JoinSide:
    """One side: takes its table's changes, looks into the other side's store, and gives changes of the result."""

    def __init__(self, joined: Joined, is_left: bool, other: str, context: OperatorContext) -> None:
        self._joined, self._is_left, self._context = joined, is_left, context
        self._other, self._result = context.stores[other], context.stores[joined.store]

    def process(self, changes: Changes) -> Changes:
        others = rows_of(self._other, changes.keys)
        values = plain(others)
        outcomes = [
            outcome(self._joined.kind, self._is_left, old, new, other)
            for old, new, other in zip(changes.old, changes.new, values, strict=True)
        ]
        self._delete_what_is_left_over(changes, values, outcomes)
        places = [place for place, what in enumerate(outcomes) if what is not Outcome.NOTHING]

        def result(place: int) -> bytes | None:
            if outcomes[place] is Outcome.DELETED:
                return None
            return self._join(changes.keys[place], changes.new[place], values[place])

        made = self._context.each(self._joined.name, (changes.records[place] for place in places), places, result)
        stamps = [
            at if row is None else max(at, TIMESTAMP.unpack_from(row)[0])
            for at, row in zip(changes.timestamps, others, strict=True)
        ]
        return changed(changes._replace(timestamps=stamps), [(places[n], data) for n, data in made])

    def _join(self, key: bytes, mine: bytes | None, other: bytes | None) -> bytes | None:
        left, right = (mine, other) if self._is_left else (other, mine)
        made = self._joined.joiner(
            key,
            None if left is None else self._joined.left.deserialize(left),
            None if right is None else self._joined.right.deserialize(right),
        )
        data = written(self._joined.value, made)
        refuse_too_large(key, data, self._context.max_record_bytes)
        return data

    def _delete_what_is_left_over(self, changes: Changes, others: list[bytes | None], outcomes: list[Outcome]) -> None:
        """If both sides are of one topic, they lose a key at once: an inner join then sees neither value."""
        gone = [n for n, data in enumerate(changes.new) if data is None and others[n] is None]
        if self._joined.kind == "inner" and gone:
            for n, row in zip(gone, self._result.get_rows([changes.keys[n] for n in gone]), strict=True):
                if row is not None:
                    outcomes[n] = Outcome.DELETED
