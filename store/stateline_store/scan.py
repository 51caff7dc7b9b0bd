"""Iterators over stored rows, and the key ranges that they cover."""

from __future__ import annotations

import inspect
import itertools
import logging
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from stateline_store.errors import InvalidArgumentError, StoreClosedError

_log = logging.getLogger(__name__)

Row = TypeVar("Row", covariant=True)


class ValueAndTimestamp(NamedTuple):
    """A value and the timestamp of the record that brought it: milliseconds since the epoch, -1 for
    unknown.
    """

    value: bytes
    timestamp: int


class Scan(Generic[Row]):
    """Rows in key order, as they were when the scan was made: later puts, commits and rollbacks do not show.

    An iterator and a context manager. `close` frees what it pins (files, memory); running to the end does so
    as well. Goes on after the store was written to or committed. Not thread-safe. When the store was closed under it,
    it raises `StoreClosedError` after the rows that it had read ahead: a closed store never looks like the end of data.

    Rows are read in chunks, small ones first: a row then costs a fraction of what a Python step per row would.
    """

    __slots__ = ("__weakref__", "_ahead", "_chunks", "_cut", "_rows", "_source")

    def __init__(self, rows: Generator[Row, None, None]) -> None:
        self._rows: Iterator[Row] = rows
        self._source: Generator[object, None, None] = rows
        self._chunks: Generator[list[Row], None, None] | None = None
        self._ahead: list[list[Row]] = []  # holds the chunk whose rows are being given, which is cleared to end them
        self._cut: list[None] = []  # holds something once the scan was cut off

    @classmethod
    def of_chunks(cls, chunks: Generator[list[Row], None, None]) -> Scan[Row]:
        """A scan of the rows in these chunks, which may be empty. Closing it closes the generator."""
        scan = cls.__new__(cls)
        scan._source = scan._chunks = chunks
        scan._ahead, scan._cut = [], []
        # Flattened without a Python step per row, which took a fifth of a scan's time; and without a reference to the
        # scan, so that one that is dropped lets go of its files at once.
        scan._rows = itertools.chain.from_iterable(_read_ahead(chunks, scan._ahead, scan._cut))
        return scan

    def __iter__(self) -> Iterator[Row]:
        return self._rows  # not self: a loop over it is not slowed by `__next__`

    def __next__(self) -> Row:
        return next(self._rows)

    def chunks(self) -> Generator[list[Row], None, None]:
        """The rows in lists, the caller's own, for whoever merges or filters them: instead of iterating, not beside."""
        if self._chunks is None:
            return ([row] for row in self._rows)
        return _checked(self._chunks, self._cut)

    def close(self) -> None:
        """Free what the scan pins. It then has no more rows; a second call does nothing."""
        self._source.close()
        for rows in self._ahead:
            rows.clear()

    def cut_off(self) -> None:
        """The store is closing: free what is pinned, and let the scan raise `StoreClosedError` unless it has ended."""
        if self._chunks is not None and inspect.getgeneratorstate(self._chunks) != inspect.GEN_CLOSED:
            self._cut.append(None)
            self._chunks.close()

    def __enter__(self) -> Scan[Row]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _read_ahead(
    chunks: Generator[list[Row], None, None], ahead: list[list[Row]], cut: list[None]
) -> Generator[list[Row], None, None]:
    for chunk in _checked(chunks, cut):
        ahead[:] = (chunk,)
        yield chunk


def _checked(chunks: Generator[list[Row], None, None], cut: list[None]) -> Generator[list[Row], None, None]:
    yield from chunks
    if cut:
        raise StoreClosedError("The store was closed while this iterator was open: open the store, then scan anew.")


# Chunks grow: a look at a few rows reads few ahead, a long scan pays little per row.
FIRST_CHUNK, LARGEST_CHUNK = 8, 512


StoreIterator: TypeAlias = Scan[tuple[bytes, bytes]]
TimestampedIterator: TypeAlias = Scan[tuple[bytes, ValueAndTimestamp]]


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys from `start` (included) to `end` (excluded; None is open). Empty when `end` is not above
    `start`.
    """

    start: bytes = b""
    end: bytes | None = None

    @classmethod
    def between(cls, lower: bytes | None, upper: bytes | None) -> KeyRange:
        """Both ends included, None open. `lower` above `upper` covers nothing and logs a warning, because it
        is most often a serializer whose bytes do not sort like its values (Kafka Streams' rule)."""
        _check_bound(lower)
        _check_bound(upper)
        if lower is not None and upper is not None and lower > upper:
            _log.warning(
                "Range with lower bound %r above upper bound %r is empty: bounds compare as bytes; negative "
                "numbers, for example, sort after positive ones.",
                lower,
                upper,
            )
            return cls(lower, lower)
        # upper ‖ 0x00 is the least key above upper.
        return cls(lower or b"", None if upper is None else upper + b"\0")

    @classmethod
    def prefixed(cls, prefix: bytes) -> KeyRange:
        """Every key that begins with `prefix`; the end is its successor, and open for 0xff… and for
        nothing.
        """
        if not isinstance(prefix, bytes):
            raise InvalidArgumentError(f"A prefix is bytes, not {prefix!r:.60}.")
        stem = prefix.rstrip(b"\xff")
        return cls(prefix, stem[:-1] + bytes((stem[-1] + 1,)) if stem else None)

    @property
    def is_empty(self) -> bool:
        """Whether no key can be inside."""
        return self.end is not None and self.end <= self.start


def _check_bound(bound: object) -> None:
    if bound is not None and not isinstance(bound, bytes):
        raise InvalidArgumentError(f"A bound of a range is bytes or None, not {bound!r:.60}.")


EVERY_KEY = KeyRange()
