"""Readers: one read interface for every isolation level, in the owner's process and in others.

Rows are the raw stored bytes: a timestamped store's are ``timestamp:i64 BE ‖ value``. A reader never writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from stateline_store.engines.engine import Commit, Engine, no_key
from stateline_store.position import Position
from stateline_store.rows.segments import SegmentRange
from stateline_store.rows.transaction_buffer import TransactionBuffer
from stateline_store.scan import KeyRange, StoreIterator
from stateline_store.state_store import IsolationLevel


class Reader(Protocol):
    """Reads a store at one isolation level. Not thread-safe. An answer and `position` agree if no write, commit or
    refresh happens in between.

    Every call may raise `StoreClosedError`, `PoisonedError` or, in another process, `RetryLaterError`.
    """

    @property
    def isolation_level(self) -> IsolationLevel:
        """The isolation level of all reads."""

    @property
    def position(self) -> Position:
        """The Position of the state that this reader sees."""

    @property
    def stream_time_ms(self) -> int:
        """The stream time of the state that this reader sees, -1 for none yet. Only stores with a retention have it."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value, None if there is none."""

    def scan(self, keys: KeyRange | SegmentRange, *, reverse: bool = False) -> StoreIterator:
        """Scan the rows of this range in key order, as they are now."""

    def range(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> StoreIterator:
        """Scan the rows from `lower` to `upper`, both included, None open, as they are now. If `lower` is above
        `upper`, the scan is empty and a warning is logged."""
        return self.scan(KeyRange.between(lower, upper), reverse=reverse)

    def prefix_scan(self, prefix: bytes, *, reverse: bool = False) -> StoreIterator:
        """Scan the rows whose key begins with `prefix`, as they are now."""
        return self.scan(KeyRange.prefixed(prefix), reverse=reverse)

    def approximate_num_entries(self) -> int:
        """Return the approximate number of rows. Staged rows may count twice."""


class CommittedReader(Reader):
    """Reads committed rows alone, in the owner's process and thread."""

    isolation_level = IsolationLevel.READ_COMMITTED

    def __init__(self, engine: Engine, commit: Callable[[], Commit]) -> None:
        self._engine = engine
        self._commit = commit

    @property
    def position(self) -> Position:
        return self._commit().position

    @property
    def stream_time_ms(self) -> int:
        return self._commit().stream_time_ms

    def get(self, key: bytes) -> bytes | None:
        return self._engine.get(key)

    def scan(self, keys: KeyRange | SegmentRange, *, reverse: bool = False) -> StoreIterator:
        return self._engine.scan(keys, reverse=reverse)

    def approximate_num_entries(self) -> int:
        return self._engine.approximate_num_entries()


class UncommittedReader(Reader):
    """Reads staged rows over committed ones, in the owner's process and thread."""

    isolation_level = IsolationLevel.READ_UNCOMMITTED

    def __init__(
        self,
        engine: Engine,
        buffer: TransactionBuffer,
        position: Callable[[], Position],
        stream_time_ms: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._buffer = buffer
        self._position = position
        self._stream_time_ms = stream_time_ms

    @property
    def position(self) -> Position:
        return self._position()

    @property
    def stream_time_ms(self) -> int:
        return self._stream_time_ms()

    def get(self, key: bytes) -> bytes | None:
        staged = self._buffer.rows
        try:
            return staged[key] if key in staged else self._engine.get(key)
        except TypeError as error:  # a bytearray, which has no hash
            if isinstance(key, bytes):
                raise
            raise no_key(key) from error

    def scan(self, keys: KeyRange | SegmentRange, *, reverse: bool = False) -> StoreIterator:
        return self._buffer.merge_over(self._engine.scan(keys, reverse=reverse), keys, reverse=reverse)

    def approximate_num_entries(self) -> int:
        return self._engine.approximate_num_entries() + len(self._buffer)
