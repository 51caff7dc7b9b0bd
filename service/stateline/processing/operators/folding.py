"""Makes the next aggregate of the last one, both as bytes.

A function may change the aggregate that it is given. If it raises afterwards, nothing must remain, and windows that
began with the same aggregate must not share it. Kafka Streams serializes as often.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

from stateline.processing.function_results import refuse_unrun, written
from stateline.serde.change import OldAndNew
from stateline.serde.plain import Serde
from stateline_store.rows.timestamped_rows import TIMESTAMP

_COUNT = struct.Struct(">q")  # what `serdes.int64` writes. On disk: never change


Refuse: TypeAlias = Callable[[bytes, bytes | None], None]


class Adding(Protocol):
    """Adds values to an aggregate. None means no aggregate, and a result of None deletes it. `typed`: the functions
    take keys and values as their serdes read them, not bytes."""

    typed: ClassVar[bool]

    def add(self, key: Any, value: Any, aggregate: bytes | None) -> bytes | None:
        """Return the aggregate with one more row. `aggregate` is None for the first row."""


class Folding(Adding, Protocol):
    """Aggregates windows, also sessions."""

    def join(self, key: Any, value: Any, aggregates: Sequence[bytes]) -> bytes | None:
        """Return the aggregate of several sessions, in their order, with the row that joins them."""


class Counting:
    typed: ClassVar[bool] = False

    def add(self, key: Any, value: Any, aggregate: bytes | None) -> bytes:
        del key, value
        return _COUNT.pack(1 if aggregate is None else _COUNT.unpack(aggregate)[0] + 1)

    def join(self, key: Any, value: Any, aggregates: Sequence[bytes]) -> bytes:
        del key, value
        count = 1
        for aggregate in aggregates:
            count += _COUNT.unpack(aggregate)[0]
        return _COUNT.pack(count)


@dataclass(frozen=True, slots=True)
class Aggregating:
    """A user's functions: ``initial()``, ``adder(key, value, aggregate)``, ``merger(key, one, other)``. `serde` is the
    aggregate's."""

    serde: Serde
    initial: Callable[[], Any]
    adder: Callable[[Any, Any, Any], Any]
    merger: Callable[[Any, Any, Any], Any] | None = None
    typed: ClassVar[bool] = True

    def add(self, key: Any, value: Any, aggregate: bytes | None) -> bytes | None:
        old = refuse_unrun(self.initial()) if aggregate is None else self.serde.deserialize(aggregate)
        return written(self.serde, self.adder(key, value, old))

    def join(self, key: Any, value: Any, aggregates: Sequence[bytes]) -> bytes | None:
        joined = refuse_unrun(self.initial())
        for aggregate in aggregates:
            if self.merger is None:
                raise AssertionError("Sessions are aggregated without a merger.")
            joined = refuse_unrun(self.merger(key, joined, self.serde.deserialize(aggregate)))
        return written(self.serde, self.adder(key, value, joined))


@dataclass(frozen=True, slots=True)
class Retracting:
    """A user's functions: ``initial()``, ``adder(key, row, aggregate)``, ``subtractor(key, row, aggregate)``. `serde`
    is the aggregate's."""

    serde: Serde
    initial: Callable[[], Any]
    adder: Callable[[Any, Any, Any], Any]
    subtractor: Callable[[Any, Any, Any], Any]
    typed: ClassVar[bool] = True

    def add(self, key: Any, value: OldAndNew, aggregate: bytes | None) -> bytes | None:
        held = None if aggregate is None else self.serde.deserialize(aggregate)
        if value.old is not None and held is not None:
            held = refuse_unrun(self.subtractor(key, value.old, held))
        if value.new is not None:
            held = self.adder(key, value.new, refuse_unrun(self.initial()) if held is None else held)
        return written(self.serde, held)


def later(row: bytes | None, at_ms: int) -> int:
    """Return the timestamp after one more record: the larger one of a timestamped store's row and the record."""
    return at_ms if row is None else max(at_ms, TIMESTAMP.unpack_from(row)[0])


def next_row(
    folding: Adding, row: bytes | None, key: bytes, typed_key: Any, value: Any, at_ms: int, refuse: Refuse
) -> bytes | None:
    """Return a timestamped store's row after one more record, with the larger timestamp. `refuse` raises for a row that
    is too large for the changelog."""
    at_ms = later(row, at_ms)
    aggregate = folding.add(typed_key, value, None if row is None else row[TIMESTAMP.size :])
    refuse(key, aggregate)
    return None if aggregate is None else TIMESTAMP.pack(at_ms) + aggregate


def reducing(serde: Serde, reducer: Callable[[Any, Any], Any]) -> Aggregating:
    """Fold with ``reducer(one, other)``. The first value is taken as it is."""

    def one_more(key: Any, value: Any, reduced: Any) -> Any:
        del key
        return value if reduced is None else reducer(reduced, value)

    def both(key: Any, one: Any, other: Any) -> Any:
        return one_more(key, other, one)

    return Aggregating(serde, lambda: None, one_more, both)
