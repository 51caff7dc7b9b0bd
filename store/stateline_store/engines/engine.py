"""Engine: keeps a store's committed rows. Two implementations: `rocksdb_engine` and `memory_engine`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stateline_store.errors import InvalidArgumentError
from stateline_store.position import Position, TopicPartition
from stateline_store.rows.expiry import IndexChanges, IndexRow
from stateline_store.rows.segments import SegmentRange
from stateline_store.scan import KeyRange, StoreIterator


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit's own data, persisted with its rows in one atomic step.

    `number` counts commits of this database from 1 (0: none yet). `offsets` are the changelog offsets that
    this commit moved; others stay. `stream_time_ms` is the largest timestamp that a store with a retention has seen
    (-1: none), `sequence` the newest number of a store that retains duplicates.
    """

    number: int = 0
    committed_at_ms: int = 0
    position: Position = field(default_factory=Position)
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    stream_time_ms: int = -1
    sequence: int = 0


def no_key(key: object) -> InvalidArgumentError:
    """Return the error for a key that is not bytes."""
    return InvalidArgumentError(f"A key is bytes, not {key!r:.60}.")


class Engine(Protocol):
    """Committed rows, and the commit that they came with. Not thread-safe: the store's owner uses it. Every call after
    `close` raises `StoreClosedError`."""

    def get(self, key: bytes) -> bytes | None:
        """Return the committed value, None if there is none."""

    def get_many(self, keys: Sequence[bytes], *, again: bool = True) -> list[bytes | None]:
        """Return the committed value of each key, in their order. Costs less than `get` for each. `again`: they may be
        wanted again soon."""

    def scan(self, keys: KeyRange | SegmentRange, *, reverse: bool = False) -> StoreIterator:
        """Scan the committed rows of this range in key order, as they are now."""

    def write(
        self,
        rows: Mapping[bytes, bytes | None],
        commit: Commit,
        expired: KeyRange | None = None,
        index: IndexChanges | None = None,
        *,
        sync: bool = False,
    ) -> None:
        """Write rows (None deletes) and the commit, change the index of expiries, and remove the rows in the range
        `expired`, also new ones: all together or nothing. The range must have an end.

        Raises `PoisonedError` when it failed, as every later call does: only a reopen tells whether the rows are on
        disk.
        """

    def due(self, start: bytes, most: int) -> list[IndexRow]:
        """Return the first `most` rows of the index of expiries from `start` on. None of them without an index."""

    def last_commit(self) -> Commit:
        """Return the newest commit, with all changelog offsets ever committed and not only those that it moved."""

    def approximate_num_entries(self) -> int:
        """Return the approximate number of rows."""

    def properties(self) -> Mapping[str, int]:
        """Return RocksDB's properties of the database by their names, none for a store in memory."""

    def close(self) -> None:
        """Release everything; open scans end with `StoreClosedError`. A second call does nothing."""
