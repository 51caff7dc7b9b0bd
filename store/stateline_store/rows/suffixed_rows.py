"""Rows of one segment in the order of their keys, and not in their stored order.

    stored key := segment:i64 ‖ key ‖ suffix        the suffix has a fixed length (`windowed_keys`)

The two orders differ where one key is a prefix of another: rows of ``a`` and of ``a…`` are mixed, by how the suffix of
the one compares with the further bytes of the other. So a row may come after rows of longer keys that begin with its
own key. Everything else is in place, and no rows are loaded to sort them:

- Upwards, before the row of a longer key, the rest of each shorter key whose rows may come later is looked up. Later
  rows have a suffix of this segment's times, which begin with zeros. So only keys with as many zeros are looked at,
  and each shorter key is looked up once.
- Downwards, the rows of a key are held back while there are rows that begin with it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from stateline_store.rows.segments import PREFIX
from stateline_store.scan import FIRST_CHUNK, KeyRange

_Row = TypeVar("_Row", bound=tuple[bytes, bytes | None])
_Chunks: TypeAlias = Generator[list[_Row], None, None]


@dataclass(frozen=True, slots=True)
class SuffixedRange(KeyRange):
    """The rows of one segment whose suffixes are from `least` to `greatest`, both included and equally long, by key and
    then suffix. Others of that segment may be among them."""

    least: bytes = b""
    greatest: bytes = b""

    @classmethod
    def of_segment(cls, segment: int, least: bytes, greatest: bytes) -> SuffixedRange:
        """Return the range of this segment."""
        return cls(PREFIX.pack(segment), PREFIX.pack(segment + 1), least, greatest)

    def order(self, stored: bytes) -> tuple[bytes, bytes]:
        """Return the sort key of a stored key."""
        width = len(self.greatest)
        return stored[:-width], stored[-width:]

    def shorter(self, stored: bytes, zeros: bytes) -> Iterator[bytes]:
        """Return the shorter keys, each behind the segment, that this stored key begins with and whose rows may come
        after it, shortest first. `zeros` are those of the property, for callers that look at many keys."""
        greatest, width = self.greatest, len(self.greatest)
        stop = len(stored) - width - 1 + len(zeros)
        at = stored.find(zeros, PREFIX.size, stop)
        while at >= 0:
            if stored[at : at + width] < greatest:
                yield stored[:at]
            at = stored.find(zeros, at + 1, stop)

    def has_no_shorter(self, rows: Sequence[tuple[bytes, object]]) -> bool:
        """Whether `shorter` finds nothing for these rows. False may be wrong. It is quicker than to look at each."""
        zeros, width = self.zeros, len(self.greatest)
        part = slice(PREFIX.size, len(zeros) - width - 1)
        return bool(zeros) and zeros not in b"\xff".join([name[part] for name, _ in rows])

    @property
    def zeros(self) -> bytes:
        """The zeros that `greatest` begins with."""
        return self.greatest[: len(self.greatest) - len(self.greatest.lstrip(b"\0"))]

    def sorted(self, stored_keys: list[bytes]) -> list[bytes]:
        """Return these ascending stored keys in the order of this range."""
        zeros = self.zeros
        is_sorted = all(next(self.shorter(key, zeros), None) is None for key in stored_keys)
        return stored_keys if is_sorted else sorted(stored_keys, key=self.order)


def by_key(
    chunks: _Chunks[_Row], look: Callable[[KeyRange], Iterator[list[_Row]]], keys: SuffixedRange
) -> _Chunks[_Row]:
    """Yield these rows, which come in stored order, in the order of this range. `look` returns the rows between two
    stored keys, as they were when the chunks were begun."""
    width, zeros = len(keys.greatest), keys.zeros
    given = list[bytes]()  # keys of which all was given, each the beginning of the next one and of the newest row
    for chunk in chunks:
        if not given and keys.has_no_shorter(chunk):  # in place, as most are
            yield chunk
            continue
        rows = list[_Row]()
        for row in chunk:
            stored = row[0]
            while given and not stored.startswith(given[-1]):
                given.pop()
            if stored[:-width] in given:
                continue
            for shorter in keys.shorter(stored, zeros):
                if shorter in given:
                    continue
                behind = KeyRange(max(stored, shorter + keys.least), shorter + keys.greatest + b"\0")
                for some in look(behind):
                    rows += [each for each in some if len(each[0]) == len(shorter) + width]
                    if len(some) > FIRST_CHUNK:  # the reader can let others run in between
                        yield rows
                        rows = []
                given.append(shorter)
            rows.append(row)
        yield rows


def by_key_down(chunks: _Chunks[_Row], keys: SuffixedRange) -> _Chunks[_Row]:
    """Yield these rows downwards in the order of this range. Holds back the rows of one key and of its prefixes."""
    width = len(keys.greatest)
    held = list[tuple[bytes, list[_Row]]]()  # each key is the beginning of the next one and of the newest row
    for chunk in chunks:
        rows = list[_Row]()
        for row in chunk:
            stored = row[0]
            while held and not stored.startswith(held[-1][0]):
                rows += held.pop()[1]
            key = stored[:-width]
            at = len(held)
            while at and len(held[at - 1][0]) > len(key):
                at -= 1
            if at and held[at - 1][0] == key:
                held[at - 1][1].append(row)
            else:
                held.insert(at, (key, [row]))
        yield rows
    while held:
        yield held.pop()[1]
