"""Iterators over stored rows, and the key ranges that they cover."""

from __future__ import annotations

import inspect
import itertools
import logging
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from stateline_store.errors import InvalidArgumentError, StoreClosedError

_log = logging.getLogger(__name__)

Row = TypeVar("Row", covariant=True)
Item = TypeVar("Item")


class ChunkSource:
    """The chunks of a scan. The scan's store holds it weakly, to end it when the store closes. The scan and its
    iterators hold it. So it lives as long as one of them: a loop over a scan may hold the iterator alone."""

    __slots__ = ("__weakref__", "chunks", "was_cut")

    def __init__(self, chunks: Generator[list[Any], None, None]) -> None:
        self.chunks = chunks
        self.was_cut = False

    def cut_off(self) -> None:
        """Free the pinned rows, because the store is closing. Unless the end was reached, the next step raises
        `StoreClosedError`."""
        if inspect.getgeneratorstate(self.chunks) != inspect.GEN_CLOSED:
            self.was_cut = True
            self.chunks.close()


class ValueAndTimestamp(NamedTuple):
    """A value and the timestamp of its record: milliseconds since the epoch, -1 for unknown."""

    value: bytes
    timestamp: int


Value: TypeAlias = bytes | ValueAndTimestamp


class Scan(Generic[Row]):
    """Rows in key order, as they were when the scan was made: later puts, commits and rollbacks do not show.

    An iterator and a context manager. `close` frees the pinned files and memory, and so does the end. It survives
    writes to the store and commits. Not thread-safe. If the store is closed meanwhile, it raises `StoreClosedError`
    after the rows that it had read ahead: a closed store never looks like the end of data.

    Rows are read in chunks, small ones first: a row then costs a fraction of a Python step per row.
    """

    __slots__ = ("_ahead", "_generator", "_rows", "_source")

    def __init__(self, rows: Generator[Row, None, None]) -> None:
        self._rows: Iterator[Row] = rows
        self._generator: Generator[object, None, None] = rows
        self._source: ChunkSource | None = None
        self._ahead: list[list[Row]] = []  # holds the chunk whose rows are being given, which is cleared to end them

    @classmethod
    def of_chunks(cls, chunks: Generator[list[Row], None, None]) -> Scan[Row]:
        """Make a scan of the rows in these chunks, which may be empty. Closing it closes the generator."""
        scan, source = cls.__new__(cls), ChunkSource(chunks)
        scan._source, scan._generator, scan._ahead = source, chunks, []
        # Flattened without a Python step per row, which took a fifth of a scan's time; and without a reference to the
        # scan, so that a dropped scan frees its files at once.
        scan._rows = itertools.chain.from_iterable(_read_ahead(source, scan._ahead))
        return scan

    def __iter__(self) -> Iterator[Row]:
        return self._rows  # not self: a loop over it is not slowed by `__next__`

    def __next__(self) -> Row:
        return next(self._rows)

    @property
    def source(self) -> ChunkSource:
        """The object by which the scan's store ends it, held weakly."""
        assert self._source is not None, "only scans of chunks are cut off"
        return self._source

    def chunks(self) -> Generator[list[Row], None, None]:
        """Yield the rows in lists, which the caller may keep and change. Use it instead of iterating, not beside it."""
        if self._source is None:
            return ([row] for row in self._rows)
        return _checked(self._source)

    def close(self) -> None:
        """Free the pinned rows. The scan is then at its end. A second call does nothing."""
        self._generator.close()
        for rows in self._ahead:
            rows.clear()

    def __enter__(self) -> Scan[Row]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _read_ahead(source: ChunkSource, ahead: list[list[Row]]) -> Generator[list[Row], None, None]:
    for chunk in _checked(source):
        ahead[:] = (chunk,)
        yield chunk
        ahead.clear()
        del chunk  # read by now, and it may be large: not held while the next one is read


def _checked(source: ChunkSource) -> Generator[list[Any], None, None]:
    yield from source.chunks
    if source.was_cut:
        raise StoreClosedError("The store was closed while this iterator was open. Open the store, then scan again.")


class Chunk(list[Item]):
    """Rows of a scan, and about how many bytes they have, as was counted when they were read."""

    __slots__ = ("size",)

    def __init__(self, rows: Iterable[Item] = (), size: int = 0) -> None:
        super().__init__(rows)
        self.size = size

    def part(self, start: int, stop: int) -> Chunk[Item]:
        """Return the rows from `start` to `stop`, with their share of the bytes."""
        rows = self[start:stop]
        return Chunk(rows, self.size * len(rows) // max(len(self), 1))


# Chunks grow: a look at a few rows reads few ahead, a long scan pays little per row.
FIRST_CHUNK, LARGEST_CHUNK = 8, 512
# A chunk ends with the row that reaches it. A reader of a few rows keeps a chunk.
LARGEST_CHUNK_BYTES = 256 * 1024


StoreIterator: TypeAlias = Scan[tuple[bytes, bytes]]
TimestampedIterator: TypeAlias = Scan[tuple[bytes, ValueAndTimestamp]]


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys from `start` (included) to `end` (excluded, None is open). Empty if `end` is not above `start`."""

    start: bytes = b""
    end: bytes | None = None

    @classmethod
    def between(cls, lower: bytes | None, upper: bytes | None) -> KeyRange:
        """Return the range with both ends included, None open. If `lower` is above `upper`, the range is empty and a
        warning is logged, because most often a serializer's bytes do not sort like its values (Kafka Streams' rule)."""
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
        """Return the range of every key that begins with `prefix`. Its end is the successor of the prefix, and open for
        0xff… and for an empty prefix."""
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
