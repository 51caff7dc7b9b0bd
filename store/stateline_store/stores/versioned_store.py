"""Keep all versions of a key for the history retention (KIP-889, KIP-960, KIP-968).

Rows and semantics are those of Kafka Streams' `RocksDBVersionedStore`. `versioned_rows` has the bytes,
`versioned_writes` the changes of a put. There are three differences:

- A put of None over the latest value with the same timestamp leaves a tombstone. Kafka Streams only removes the value,
  and an older put that arrives later becomes the latest.
- `get_versions` finds every version that was valid at `to_time`. Kafka Streams misses versions whose validity ends in a
  later segment, and shows expired ones until their segment is dropped.
- All rows of a put are written in one batch, so versions never overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from types import NoneType
from typing import ClassVar, Final

from stateline_store.errors import InvalidArgumentError
from stateline_store.layout import Layout, StoreKind
from stateline_store.reads.versioned_reads import VersionedReads, VersionedRecord
from stateline_store.rocksdb.options import DEFAULT_TUNING, Tuning
from stateline_store.rocksdb.versions_by_time import changes_by_time
from stateline_store.rows.segments import Segments
from stateline_store.rows.versioned_rows import bounds
from stateline_store.rows.windowed_keys import MAX_TIMESTAMP_MS
from stateline_store.scan import EVERY_KEY, Scan
from stateline_store.state_store import Change, StoreContext
from stateline_store.stores.transactional_store import TransactionalStore
from stateline_store.stores.versioned_writes import VersionedWrites

NOT_PUT: Final = -(2**63)  # Kafka Streams' PUT_RETURN_CODE_NOT_PUT; no timestamp is negative
# Estimated for 64-bit CPython: a Change (64), two bytes headers (33 each), an int (32), a pointer in the list (8), a
# set slot at its usual load (about 50).
_CHANGE_OVERHEAD = 220


class VersionedStore(TransactionalStore):
    """Versions by key and timestamp. Times are milliseconds since the epoch, 0 or more.

    Stream time is the largest timestamp put so far. A put or delete older than ``stream time - history_retention_ms``
    is dropped and counted (`dropped_records`). Reads have the same limit. Not thread-safe, like `TransactionalStore`.
    """

    kind: ClassVar[StoreKind] = "versioned"
    _segments: Segments

    def __init__(
        self,
        name: str,
        *,
        history_retention_ms: int,
        segment_interval_ms: int | None = None,
        persistent: bool = True,
        tuning: Tuning = DEFAULT_TUNING,
    ) -> None:
        """Make a closed store. `segment_interval_ms` is the time that one row of a key covers: small rows are quick to
        change, few rows are quick to search. None is Kafka Streams' choice (`default_segment_interval_ms`).

        Raises `InvalidArgumentError` for a negative retention or an interval below 1.
        """
        if history_retention_ms < 0 or (segment_interval_ms is not None and segment_interval_ms < 1):
            raise InvalidArgumentError(
                f"History retention {history_retention_ms} ms, segment interval {segment_interval_ms} ms: "
                "0 or more and 1 or more are accepted."
            )
        interval_ms = segment_interval_ms or default_segment_interval_ms(history_retention_ms)
        self._declared_interval_ms = interval_ms
        self._segments = Segments(history_retention_ms, interval_ms)
        self._reads: VersionedReads | None = None
        self._writes: VersionedWrites | None = None
        self._staged_versions = _StagedVersions()
        self._dropped_records = 0
        super().__init__(name, persistent=persistent, tuning=tuning)

    @property
    def layout(self) -> Layout:
        return Layout(self.kind, segment_interval_ms=self._declared_interval_ms)

    @property
    def segments(self) -> Segments:
        """The history retention and the segment interval, for `VersionedReads` over another reader."""
        return self._segments

    def init(self, context: StoreContext) -> None:
        super().init(context)
        self._dropped_records = 0
        self._reads = VersionedReads(self._own_reader(), self._segments)
        self._writes = VersionedWrites(
            self._reads, self._segments, self._get, self.get_rows, self._stage, self._buffer.take, self._advance
        )

    def _take_layout(self, layout: Layout) -> None:
        interval_ms = layout.segment_interval_ms or self._declared_interval_ms
        self._segments = Segments(self._segments.retention_ms, interval_ms)

    def close(self) -> None:
        super().close()
        self._reads = self._writes = None

    def get(self, key: bytes) -> VersionedRecord | None:
        """Return the latest version, staged or committed, None if there is none."""
        return (self._reads or self._reading()).get(key)

    def get_as_of(self, key: bytes, as_of: int) -> VersionedRecord | None:
        """Return the version that is valid at this time (ms), staged or committed, None if there is none."""
        return self._reading().get_as_of(key, as_of)

    def get_versions(
        self, key: bytes, from_time: int | None = None, to_time: int | None = None, *, ascending: bool = False
    ) -> Scan[VersionedRecord]:
        """Scan the versions, staged or committed, that are valid at some time of this span, newest first by default."""
        return self._reading().get_versions(key, from_time, to_time, ascending=ascending)

    def deleted_after(self, key: bytes, time_ms: int) -> int:
        """Return the timestamp of the tombstone that a deleted key has later than this time, -1 without one."""
        with closing(self._reading().rows(key, time_ms)) as rows:
            return next((bounds(row)[0] for _, row in rows), -1)

    @property
    def dropped_records(self) -> int:
        """The number of puts and deletes dropped as late since the opening. Restores and rollbacks do not change it."""
        return self._dropped_records

    def put(self, key: bytes, value: bytes | None, timestamp: int) -> int | None:
        """Stage a version. None is a tombstone. It replaces a version of the same key and timestamp.

        Returns the end of the version's validity: the timestamp of the key's next version, or None for the latest. A
        late put is dropped, and returns `NOT_PUT`. Raises `InvalidArgumentError`, and stages nothing, unless key and
        value are bytes and the timestamp is not negative.
        """
        writes = self._check(key, value, timestamp)
        if timestamp < self._stream_time_ms - self._segments.retention_ms:
            self._dropped_records += 1
            return NOT_PUT
        if timestamp > self._stream_time_ms:
            self._stream_time_ms = timestamp
        valid_to = writes.put(key, value, timestamp)
        self._staged_versions.add(key, value, timestamp)
        return valid_to

    def delete(self, key: bytes, timestamp: int) -> VersionedRecord | None:
        """Stage a tombstone. Returns the version that was valid at this time, with its former `valid_to`. Returns None
        if there was none, or if the delete was late and dropped. Raises like `put`."""
        self._check(key, None, timestamp)
        is_late = timestamp < self._stream_time_ms - self._segments.retention_ms
        found = None if is_late else self.get_as_of(key, timestamp)
        self.put(key, None, timestamp)
        return found

    def put_rows(self, rows: dict[bytes, bytes | None], stream_time_ms: int = -1) -> None:
        """Raise `InvalidArgumentError`: only `put` knows which rows a version changes."""
        raise InvalidArgumentError(f"Store {self.name!r} is versioned: put versions, not rows ({len(rows)} given).")

    def staged_changes(self) -> Iterable[Change]:
        """Return every put since the last commit, in order: the key, the plain value, the version's timestamp. Replayed
        in this order by `restore`, they give the same rows: each put meets the same stream time again."""
        self._open()
        return iter(tuple(self._staged_versions.changes))

    def committed_changes(self) -> Iterator[list[Change]]:
        """Yield lists of puts by their timestamps, so that none is late when `restore` takes them. They are sorted in a
        temporary directory."""
        with closing(self._own_reader().scan(EVERY_KEY)) as rows:
            yield from changes_by_time(rows)

    def restore(self, changes: Iterable[tuple[bytes, bytes | None, int]]) -> None:
        """Stage puts of changelog records, in their order. They are not logged again. A put that is too late at its
        place, for example one that was written under a longer retention, is ignored and not counted."""
        self._open()
        assert self._writes is not None
        puts = [*changes]
        if not puts:
            return
        keys, values, times = zip(*puts, strict=True)
        kinds = {*map(type, keys)}, {*map(type, values)}, {*map(type, times)}  # in C, far quicker than a loop
        known = kinds[0] == {bytes} and kinds[1] <= {bytes, NoneType} and kinds[2] == {int}
        if not known or not 0 <= min(times) <= max(times) <= MAX_TIMESTAMP_MS:
            for put in puts:
                self._check(*put)
        now, retention_ms = self._stream_time_ms, self._segments.retention_ms
        if min(times) < max(now, *times) - retention_ms:
            puts, given = [], puts
            for put in given:
                if put[2] >= now - retention_ms:
                    now = max(now, put[2])
                    puts.append(put)
            keys = tuple(key for key, _, _ in puts)
        self._staged_versions.add_keys(keys)
        self._writes.put_all(puts)

    @property
    def staged_records(self) -> int:
        """The number of keys with staged changes."""
        return len(self._staged_versions.keys)

    @property
    def approximate_num_uncommitted_bytes(self) -> int:
        return self._buffer.bytes_staged + self._staged_versions.size_bytes

    def savepoint(self) -> None:
        super().savepoint()
        self._staged_versions.savepoint()

    def rollback_to_savepoint(self) -> None:
        super().rollback_to_savepoint()
        self._staged_versions.rollback_to_savepoint()

    def _drop_staged(self) -> None:
        super()._drop_staged()
        self._staged_versions.clear()

    def _advance(self, stream_time_ms: int) -> None:
        self._stream_time_ms = max(self._stream_time_ms, stream_time_ms)

    def _reading(self) -> VersionedReads:
        self._open()  # raises before init, after close and after a failed commit
        assert self._reads is not None
        return self._reads

    def _check(self, key: bytes, value: bytes | None, timestamp: int) -> VersionedWrites:
        """Return the open writes. Raises `InvalidArgumentError` for an argument that makes no version."""
        self._open()
        if type(key) is not bytes or (type(value) is not bytes and value is not None):
            raise InvalidArgumentError(f"A version is (bytes, bytes or None), not ({key!r:.60}, {value!r:.60}).")
        if type(timestamp) is not int or not 0 <= timestamp <= MAX_TIMESTAMP_MS:
            raise InvalidArgumentError(
                f"A version of {key!r:.60} with timestamp {timestamp!r:.60}: milliseconds since the epoch are "
                f"accepted, from 0 to {MAX_TIMESTAMP_MS}."
            )
        assert self._writes is not None
        return self._writes


class _StagedVersions:
    """The puts since the last commit, in order, for the changelog, and all changed keys. Restored keys count too."""

    __slots__ = ("_undo", "changes", "keys", "size_bytes")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.changes: list[Change] = []
        self.size_bytes = 0
        self.keys: set[bytes] = set()
        # Number and size of the changes at the savepoint, and keys that changed only after it.
        self._undo: tuple[int, int, set[bytes]] | None = None

    def add(self, key: bytes, value: bytes | None, timestamp: int) -> None:
        self.changes.append(Change(key, value, timestamp))
        self.size_bytes += len(key) + (len(value) if value else 0) + _CHANGE_OVERHEAD
        if key not in self.keys:
            self.add_keys((key,))

    def add_keys(self, keys: Iterable[bytes]) -> None:
        if self._undo is not None:
            keys = {*keys} - self.keys
            self._undo[2].update(keys)
        self.keys.update(keys)

    def savepoint(self) -> None:
        self._undo = (len(self.changes), self.size_bytes, set())

    def rollback_to_savepoint(self) -> None:
        if self._undo is not None:
            count, self.size_bytes, newly_changed = self._undo
            del self.changes[count:]
            self.keys -= newly_changed
            self._undo = None


def default_segment_interval_ms(history_retention_ms: int) -> int:
    """Kafka Streams' segment interval of a versioned store (`Stores.persistentVersionedKeyValueStore`), in ms."""
    if history_retention_ms <= 60_000:
        return max(history_retention_ms // 3, 2_000)
    if history_retention_ms <= 300_000:
        return max(history_retention_ms // 5, 20_000)
    if history_retention_ms <= 3_600_000:
        return max(history_retention_ms // 12, 60_000)
    return max(history_retention_ms // 24, 300_000)
