"""Batches between operators: rows of a stream, or changes of a table.

Both are kept by columns, because a slice has up to thousands of rows and most operators need few of the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from stateline.log.interface import Record
from stateline.serde.plain import Serde
from stateline_store.rows.timestamped_rows import TIMESTAMP


@dataclass(slots=True, eq=False)
class LazyColumn:
    """Keys or values, as bytes (`raw`) and as objects (`typed`), deserialized on first use. None is None in both. Do
    not change either list. The serde has written or checked `raw`, so reading it cannot fail."""

    serde: Serde
    raw: list[bytes | None]
    _typed: list[Any] | None = None

    @property
    def typed(self) -> list[Any]:
        if self._typed is None:
            read = self.serde.deserialize
            self._typed = [None if data is None else read(data) for data in self.raw]
        return self._typed

    def pick(self, places: Iterable[int]) -> LazyColumn:
        places = list(places)
        typed = None if self._typed is None else [self._typed[place] for place in places]
        return LazyColumn(self.serde, [self.raw[place] for place in places], typed)


class Rows(NamedTuple):
    """Rows of a stream, in order. `records` are their origins, for failures. `clock` is 0, or the number of the
    cogrouped stream, which has a stream time of its own."""

    keys: LazyColumn
    values: LazyColumn
    timestamps: Sequence[int]
    records: Sequence[Record]
    clock: int = 0

    @property
    def pairs(self) -> Iterator[tuple[Any, Any]]:
        return zip(self.keys.typed, self.values.typed, strict=True)

    @property
    def known_keys(self) -> list[bytes]:
        return self.keys.raw  # type: ignore[return-value]  # as it says

    def pick(self, places: Sequence[int]) -> Rows:
        if len(places) == len(self.records):
            return self
        return Rows(
            self.keys.pick(places),
            self.values.pick(places),
            [self.timestamps[place] for place in places],
            [self.records[place] for place in places],
            self.clock,
        )


class SideRows(NamedTuple):
    """Rows of the two streams of a join, in order, by columns as bytes. `are_left` says of which stream each is."""

    are_left: Sequence[bool]
    key: Serde
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps: Sequence[int]
    records: Sequence[Record]

    def pick(self, places: Sequence[int]) -> SideRows:
        return SideRows(
            [self.are_left[place] for place in places],
            self.key,
            [self.keys[place] for place in places],
            [self.values[place] for place in places],
            [self.timestamps[place] for place in places],
            [self.records[place] for place in places],
        )


def merged(parts: Sequence[SideRows], order: Mapping[tuple[str, int], int]) -> SideRows:
    """Return the rows of all parts in the order of the topics and offsets of their records. Without an order, earlier
    parts come first."""
    together = SideRows(
        [side for part in parts for side in part.are_left],
        parts[0].key,
        [key for part in parts for key in part.keys],
        [value for part in parts for value in part.values],
        [at_ms for part in parts for at_ms in part.timestamps],
        [record for part in parts for record in part.records],
    )
    places = [order.get((record.topic, record.offset), 0) for record in together.records]
    return together.pick(sorted(range(len(places)), key=places.__getitem__))


class Changes(NamedTuple):
    """Changes of a table: each key once, with its value before and after the slice, None for none. Keys and values are
    bytes as in the table's changelog: those of windows and sessions with their times. `timestamps` are those of the new
    values, or of the deleting record. `records` made the changes.

    A versioned table gives every change of a key, with the latest value before it. `are_latest` says which ones are the
    latest version of their key from then on."""

    keys: Sequence[bytes]
    old: Sequence[bytes | None]
    new: Sequence[bytes | None]
    timestamps: Sequence[int]
    records: Sequence[Record]
    are_latest: Sequence[bool] = ()

    def pick(self, places: Sequence[int]) -> Changes:
        if len(places) == len(self.records):
            return self
        return Changes(
            [self.keys[place] for place in places],
            [self.old[place] for place in places],
            [self.new[place] for place in places],
            [self.timestamps[place] for place in places],
            [self.records[place] for place in places],
            [self.are_latest[place] for place in places] if self.are_latest else (),
        )


def plain(rows: Iterable[bytes | None]) -> list[bytes | None]:
    """Return the values of a timestamped store's rows, without their timestamps."""
    return [None if row is None else row[TIMESTAMP.size :] for row in rows]
