"""Joins of two tables: each change of one side with the other side's row at that time.

By Kafka Streams' rules (`KTableKTableInnerJoin`, `…LeftJoin`, `…RightJoin`, `…OuterJoin`), a result has the larger
timestamp of both sides. If a side is missing that the join needs, the result is deleted.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from stateline.model.record_size import refuse_too_large
from stateline.processing.function_results import written
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Changes, plain
from stateline.processing.operators.table_steps import changed
from stateline.serde.plain import Serde
from stateline_store.rows.timestamped_rows import TIMESTAMP

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
    """What both sides of a join share. `joiner` gets the left and the right value, None for a missing one. `left` and
    `right` are the serdes of these values, `value` that of the result."""

    name: str
    kind: JoinKind
    joiner: Callable[[Any, Any], Any]
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
        others = self._other.get_rows(changes.keys)
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
