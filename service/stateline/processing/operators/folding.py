"""What an aggregation does with values: from the bytes of an aggregate to those of the next one.

Bytes, because a user's function may change the aggregate that it is given: one that raises afterwards must leave no
trace, and windows that began with the same aggregate must not share it. Kafka Streams reads and writes it as often.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from stateline.model.record_size import refuse_too_large
from stateline.processing.unrun import refuse_unrun, written
from stateline.serde.plain import Serde
from stateline_store.rows.timestamped_rows import TIMESTAMP

_COUNT = struct.Struct(">q")  # what `serdes.int64` writes. On disk: never change


class Folding(Protocol):
    """How an aggregate grows. None as bytes is no aggregate; a result of None deletes it.

    `typed`: whether the functions want keys and values as their serdes read them, and not None in their place.
    """

    typed: bool

    def add(self, key: Any, value: Any, aggregate: bytes | None) -> bytes | None:
        """The aggregate with one more row, the first one if there is none yet."""

    def join(self, key: Any, value: Any, aggregates: Sequence[bytes]) -> bytes | None:
        """Those of several sessions, in their order, with the row that joins them."""


class Counting:
    """How many rows."""

    typed = False

    def add(self, key: Any, value: Any, aggregate: bytes | None) -> bytes:
        del key, value
        return _COUNT.pack(1 if aggregate is None else _COUNT.unpack(aggregate)[0] + 1)

    def join(self, key: Any, value: Any, aggregates: Sequence[bytes]) -> bytes:
        del key, value
        count = 1
        for aggregate in aggregates:
            count += _COUNT.unpack(aggregate)[0]
        return _COUNT.pack(count)


class Aggregating:
    """A user's functions: ``initial()``, ``adder(key, value, aggregate)``, ``merger(key, one, other)``."""

    typed = True

    def __init__(
        self,
        serde: Serde,
        initial: Callable[[], Any],
        adder: Callable[[Any, Any, Any], Any],
        merger: Callable[[Any, Any, Any], Any] | None = None,
    ) -> None:
        """`serde` is the aggregate's."""
        self._serde = serde
        self._initial = initial
        self._adder = adder
        self._merger = merger

    def add(self, key: Any, value: Any, aggregate: bytes | None) -> bytes | None:
        old = refuse_unrun(self._initial()) if aggregate is None else self._serde.deserialize(aggregate)
        return written(self._serde, self._adder(key, value, old))

    def join(self, key: Any, value: Any, aggregates: Sequence[bytes]) -> bytes | None:
        joined = refuse_unrun(self._initial())
        for aggregate in aggregates:
            if self._merger is None:
                raise AssertionError("Sessions are aggregated without a merger.")
            joined = refuse_unrun(self._merger(key, joined, self._serde.deserialize(aggregate)))
        return written(self._serde, self._adder(key, value, joined))


def next_row(
    folding: Folding, row: bytes | None, key: bytes, typed_key: Any, value: Any, at_ms: int, max_record_bytes: int
) -> bytes | None:
    """A timestamped store's row after one more record; the timestamp is the larger one. Raises `InvalidArgumentError`
    for one that a changelog does not take."""
    if row is not None:
        at_ms = max(at_ms, TIMESTAMP.unpack_from(row)[0])
    aggregate = folding.add(typed_key, value, None if row is None else row[TIMESTAMP.size :])
    refuse_too_large(key, aggregate, max_record_bytes)
    return None if aggregate is None else TIMESTAMP.pack(at_ms) + aggregate


def reducing(serde: Serde, reducer: Callable[[Any, Any], Any]) -> Aggregating:
    """Of a user's ``reducer(one, other)``: the first value is taken as it is."""

    def one_more(key: Any, value: Any, reduced: Any) -> Any:
        del key
        return value if reduced is None else reducer(reduced, value)

    def both(key: Any, one: Any, other: Any) -> Any:
        return one_more(key, other, one)

    return Aggregating(serde, lambda: None, one_more, both)
