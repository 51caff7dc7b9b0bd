"""Engine: where a store's committed rows live. Two implementations: `rocksdb_engine` and `memory_engine`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stateline_store.errors import InvalidArgumentError
from stateline_store.position import Position, TopicPartition
from stateline_store.scan import KeyRange, StoreIterator
from stateline_store.segments import SegmentRange


@dataclass(frozen=True, slots=True)
class Commit:
    """What a commit says about itself; persisted with its rows in one atomic step.

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
    """What to raise for a key that is none."""
    return InvalidArgumentError(f"A key is bytes, not {key!r:.60}.")


class Engine(Protocol):
    """Committed rows, and the commit that they came with. Not thread-safe: the store's owner uses it.

    Every call after `close` raises `StoreClosedError`.
    """

    def get(self, key: bytes) -> bytes | None:
        """The committed value, None when there is none."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """As `get` for each key, in their order, at less cost."""

    def scan(self, keys: KeyRange | SegmentRange, *, reverse: bool = False) -> StoreIterator:
        """The committed rows of this range in key order, as they are now."""

    def write(
        self, rows: Mapping[bytes, bytes | None], commit: Commit, expired: KeyRange | None = None, *, sync: bool = False
    ) -> None:
        """Write rows (None deletes), remove what is in the range `expired`, these rows included, and keep the commit:
        all together or nothing. The range must have an end.

        Raises `PoisonedError` when it failed; every later call does too, because whether the rows are on disk
        is open until a reopen.
        """

    def last_commit(self) -> Commit:
        """The newest commit, with every changelog offset ever committed and not only those that it moved."""

    def approximate_num_entries(self) -> int:
        """About how many rows there are."""

    def properties(self) -> Mapping[str, int]:
        """What the database says of itself, by RocksDB's names for it; empty where there is none."""

    def close(self) -> None:
        """Release everything; open scans end with `StoreClosedError`. A second call does nothing."""
