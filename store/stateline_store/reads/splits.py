"""Splits: ranges of a store that never changes, for several readers, cut at boundaries of RocksDB's tables. Pure.

A split is a range of stored keys, whatever these hold (a segment, a key, a time), so each stored row is in exactly one.
No row has to be read together with another one: all versions of a key in a segment are one row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from stateline_store.scan import EVERY_KEY, KeyRange

LONGEST_BOUNDARY = 256
"""Bytes. Of a longer key its beginning is the boundary: any will do that ends one split and begins the next."""
# Smaller tables, against what is wanted of a split, are not worth a boundary. RocksDB lists those of the other column
# family as well, which hold a few rows.
_SMALL = 64


class TableFile(NamedTuple):
    """A table of RocksDB: its least and its largest key, and its bytes on disk."""

    first: bytes
    last: bytes
    size: int


class Split(NamedTuple):
    """A range of stored keys, and the approximate bytes of its rows on disk."""

    keys: KeyRange
    size: int


def splits(tables: Iterable[TableFile], size: int) -> list[Split]:
    """Return ranges that cover every key once, ascending, of about so many bytes, at least one. A table is cut only
    where another one begins, so a range may have more bytes. Rows that are in no table yet count as nothing."""
    every = list(tables)
    # Below the least key there is nothing to be cut off.
    cuts = sorted({each.first[:LONGEST_BOUNDARY] for each in every if each.size * _SMALL >= size})[1:]
    weights = [0.0] * (len(cuts) + 1)  # of what is below the first cut, between the first and the second, …
    for table in every:
        covered = range(bisect_right(cuts, table.first), bisect_right(cuts, table.last) + 1)
        for at in covered:
            weights[at] += table.size / len(covered)
    found, start, gathered = list[Split](), b"", weights[0]
    for cut, weight in zip(cuts, weights[1:], strict=True):
        if gathered + weight / 2 > size:
            found.append(Split(KeyRange(start, cut), round(gathered)))
            start, gathered = cut, 0.0
        gathered += weight
    return [*found, Split(KeyRange(start, EVERY_KEY.end), round(gathered))]


def common(one: KeyRange, other: KeyRange) -> KeyRange:
    """Return the range of keys in both."""
    ends = [end for end in (one.end, other.end) if end is not None]
    return KeyRange(max(one.start, other.start), min(ends, default=None))
