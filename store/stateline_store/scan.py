"""Iterators over stored rows, and the key ranges that they cover."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, NamedTuple, NoReturn, TypeAlias, TypeVar

from stateline_store.errors import StoreClosedError

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
    as well. Goes on after the store was written to or committed. Not thread-safe. Raises `StoreClosedError`
    from the next row on when the store was closed under it: a closed store never looks like the end of data.
    """

    __slots__ = ("__weakref__", "_next", "_rows")

    def __init__(self, rows: Generator[Row, None, None]) -> None:
        self._rows = rows
        self._next: Callable[[], Row] = rows.__next__

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        return self._next()

    def close(self) -> None:
        """Free what the scan pins. It then has no more rows; a second call does nothing."""
        self._rows.close()

    def cut_off(self) -> None:
        """The store is closing: free what is pinned and answer every further step with `StoreClosedError`."""
        if inspect.getgeneratorstate(self._rows) == inspect.GEN_CLOSED:
            return  # it had ended: it stays ended
        self._rows.close()
        self._next = _closed

    def __enter__(self) -> Scan[Row]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


StoreIterator: TypeAlias = Scan[tuple[bytes, bytes]]
TimestampedIterator: TypeAlias = Scan[tuple[bytes, ValueAndTimestamp]]


def _closed() -> NoReturn:
    raise StoreClosedError("The store was closed while this iterator was open: open the store, then scan anew.")


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
        stem = prefix.rstrip(b"\xff")
        return cls(prefix, stem[:-1] + bytes((stem[-1] + 1,)) if stem else None)

    @property
    def is_empty(self) -> bool:
        """Whether no key can be inside."""
        return self.end is not None and self.end <= self.start


EVERY_KEY = KeyRange()
