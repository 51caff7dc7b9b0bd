"""Batches between operators: rows of a stream, or changes of a table.

Both are kept by columns, because a slice has up to thousands of rows and most operators need few of the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
    """Rows of a stream, in order. `records` are their origins, for failures."""

    keys: LazyColumn
    values: LazyColumn
    timestamps: Sequence[int]
    records: Sequence[Record]

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
        )


class Changes(NamedTuple):
    """Changes of a table: each key once, with its value before and after the slice, None for none. Keys and values are
    bytes as in the table's changelog: those of windows and sessions with their times. `timestamps` are those of the new
    values, or of the deleting record. `records` made the changes."""

    keys: Sequence[bytes]
    old: Sequence[bytes | None]
    new: Sequence[bytes | None]
    timestamps: Sequence[int]
    records: Sequence[Record]

    def pick(self, places: Sequence[int]) -> Changes:
        if len(places) == len(self.records):
            return self
        return Changes(
            [self.keys[place] for place in places],
            [self.old[place] for place in places],
            [self.new[place] for place in places],
            [self.timestamps[place] for place in places],
            [self.records[place] for place in places],
        )


def plain(rows: Iterable[bytes | None]) -> list[bytes | None]:
    """Return the values of a timestamped store's rows, without their timestamps."""
    return [None if row is None else row[TIMESTAMP.size :] for row in rows]
