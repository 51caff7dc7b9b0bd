"""VersionedStore: every version of a key for as long as the history retention lasts (KIP-889, KIP-960, KIP-968).

Rows and semantics are those of Kafka Streams' `RocksDBVersionedStore`; `versioned_rows` has the bytes. Where it falls
short, this does not follow it:

- a put of None over the latest value with the same timestamp leaves a tombstone: Kafka Streams removes the value only,
  and an older put that arrives later becomes the latest;
- `get_versions` finds every version that was valid at `to_time`: Kafka Streams misses those whose validity ends in a
  later segment than that of `to_time`, and shows expired ones until their segment is dropped;
- all rows of a put go to disk in one batch, so that versions never overlap.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import ClassVar, Final

from stateline_store.errors import InvalidArgumentError
from stateline_store.layout import Layout, StoreKind
from stateline_store.rocksdb_options import DEFAULT_TUNING, Tuning
from stateline_store.scan import KeyRange, Scan
from stateline_store.segments import PREFIX, Segments
from stateline_store.state_store import Change, StoreContext
from stateline_store.store_schema import StoreSchema
from stateline_store.timestamped_rows import join
from stateline_store.transactional_store import TransactionalStore
from stateline_store.versioned_reads import VersionedReads, VersionedRecord
from stateline_store.versioned_rows import LATEST, Version, append, bounds, new_row, versions
from stateline_store.versioned_rows import join as join_row
from stateline_store.windowed_keys import MAX_TIMESTAMP_MS

NOT_PUT: Final = -(2**63)  # Kafka Streams' PUT_RETURN_CODE_NOT_PUT; no timestamp is negative
# Estimated for 64-bit CPython: a Change (64), two bytes headers (33 each), an int (32), a pointer in the log (8), a set
# slot at its usual load (about 50).
_CHANGE_OVERHEAD = 220


class VersionedStore(TransactionalStore):
    """Versions by key and timestamp. Times are milliseconds since the epoch, 0 or more.

    Stream time is the largest timestamp put so far. A put or delete older than ``stream time - history_retention_ms``
    is dropped and counted (`dropped_records`); reads go back as far. Not thread-safe, as `TransactionalStore`.
    """

    kind: ClassVar[StoreKind] = "versioned"

    def __init__(
        self,
        name: str,
        *,
        history_retention_ms: int,
        segment_interval_ms: int | None = None,
        persistent: bool = True,
        tuning: Tuning = DEFAULT_TUNING,
    ) -> None:
        """A closed store. `segment_interval_ms` is how much time one row of a key covers: small rows are quick to
        change, few rows quick to search. None: Kafka Streams' choice (`default_segment_interval_ms`).

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
        self._log: list[Change] = []
        self._log_bytes = 0
        self._changed: set[bytes] = set()
        # Since the savepoint: how long the log was, what it took, and the keys that are changed for the first time.
        self._undo: tuple[int, int, set[bytes]] | None = None
        self._dropped_records = 0
        super().__init__(name, persistent=persistent, tuning=tuning)

    @property
    def layout(self) -> Layout:
        return Layout(self.kind, segment_interval_ms=self._declared_interval_ms)

    @property
    def schema(self) -> StoreSchema:
        return StoreSchema(self.kind, segments=self._segments)

    @property
    def segments(self) -> Segments:
        """The history retention and the segment interval, for `VersionedReads` over another reader."""
        return self._segments

    def init(self, context: StoreContext) -> None:
        super().init(context)
        self._dropped_records = 0
        self._reads = VersionedReads(self._own_reader(), self._segments)

    def _take_layout(self, layout: Layout) -> None:
        interval_ms = layout.segment_interval_ms or self._declared_interval_ms
        self._segments = Segments(self._segments.retention_ms, interval_ms)

    def close(self) -> None:
        super().close()
        self._reads = None

    # -- reading ----------------------------------------------------------------------------------------

    def get(self, key: bytes) -> VersionedRecord | None:
        """As `VersionedReads.get`, staged or committed: the latest version, None when there is none."""
        return (self._reads or self._reading()).get(key)

    def get_as_of(self, key: bytes, as_of: int) -> VersionedRecord | None:
        """As `VersionedReads.get_as_of`, staged or committed: the version valid at this time, or None."""
        return self._reading().get_as_of(key, as_of)

    def get_versions(
        self, key: bytes, from_time: int | None = None, to_time: int | None = None, *, ascending: bool = False
    ) -> Scan[VersionedRecord]:
        """As `VersionedReads.get_versions`, staged or committed: all versions valid in this time, the newest first."""
        return self._reading().get_versions(key, from_time, to_time, ascending=ascending)

    # -- writing ----------------------------------------------------------------------------------------

    @property
    def dropped_records(self) -> int:
        """How many puts and deletes came too late since the store was opened; restored records do not count, and a
        rollback does not take them back."""
        return self._dropped_records

    def put(self, key: bytes, value: bytes | None, timestamp: int) -> int | None:
        """Stage a version; None is a tombstone. One of the same key and timestamp is replaced.

        Returns the time at which the version's validity ends (the timestamp of the next one of this key), None when it
        is the latest, `NOT_PUT` when it came too late and was dropped. Raises `InvalidArgumentError` unless key and
        value are bytes and the timestamp is not negative; nothing is staged then.
        """
        self._check(key, value, timestamp)
        if self._is_late(timestamp):
            self._dropped_records += 1
            return NOT_PUT
        valid_to = self._apply(key, value, timestamp)
        self._log.append(Change(key, value, timestamp))
        self._log_bytes += len(key) + len(value or b"") + _CHANGE_OVERHEAD
        return valid_to

    def delete(self, key: bytes, timestamp: int) -> VersionedRecord | None:
        """Stage a tombstone; returns the version that was valid at this time (`valid_to` as it was), None when there
        was none or the delete came too late and was dropped. Raises as `put`.
        """
        self._check(key, None, timestamp)
        found = None if self._is_late(timestamp) else self.get_as_of(key, timestamp)
        self.put(key, None, timestamp)
        return found

    def put_rows(self, rows: dict[bytes, bytes | None], stream_time_ms: int = -1) -> None:
        """Refused with `InvalidArgumentError`: `put` alone knows which rows a version changes."""
        raise InvalidArgumentError(f"Store {self.name!r} is versioned: put versions, not rows ({len(rows)} given).")

    # -- transaction ------------------------------------------------------------------------------------

    def staged_changes(self) -> Iterable[Change]:
        """Every put since the last commit, in order: the key, the plain value, the version's timestamp.

        Replayed in this order by `restore`, they give the same rows: each comes at the stream time of the first time.
        """
        self._open()
        return iter(tuple(self._log))

    def restore(self, changes: Iterable[tuple[bytes, bytes | None, int]]) -> None:
        """Stage puts as the changelog holds them, in its order. They are not changes to be logged again. One that is
        too late at its place (it was written under a longer retention, say) is passed over and not counted.
        """
        for key, value, timestamp in changes:
            self._check(key, value, timestamp)
            if not self._is_late(timestamp):
                self._apply(key, value, timestamp)

    @property
    def staged_records(self) -> int:
        """How many keys have staged changes."""
        return len(self._changed)

    @property
    def approximate_num_uncommitted_bytes(self) -> int:
        return self._buffer.bytes_staged + self._log_bytes

    def savepoint(self) -> None:
        super().savepoint()
        self._undo = (len(self._log), self._log_bytes, set[bytes]())

    def rollback_to_savepoint(self) -> None:
        super().rollback_to_savepoint()
        if self._undo is not None:
            count, self._log_bytes, newly_changed = self._undo
            del self._log[count:]
            self._changed -= newly_changed
            self._undo = None

    # -- inner workings ---------------------------------------------------------------------------------

    def _drop_staged(self) -> None:
        super()._drop_staged()
        self._undo = None
        self._log = []
        self._log_bytes = 0
        self._changed = set()

    def _expired(self, before_ms: int, stream_time_ms: int) -> KeyRange | None:
        return self._segments.all_expired(before_ms, stream_time_ms)

    def _reading(self) -> VersionedReads:
        self._open()  # raises before init, after close and after a failed commit
        assert self._reads is not None
        return self._reads

    def _check(self, key: bytes, value: bytes | None, timestamp: int) -> None:
        self._open()
        if type(key) is not bytes or (type(value) is not bytes and value is not None):
            raise InvalidArgumentError(f"A version is (bytes, bytes or None), not ({key!r:.60}, {value!r:.60}).")
        if type(timestamp) is not int or not 0 <= timestamp <= MAX_TIMESTAMP_MS:
            raise InvalidArgumentError(
                f"A version of {key!r:.60} with timestamp {timestamp!r:.60}: milliseconds since the epoch are "
                f"accepted, from 0 to {MAX_TIMESTAMP_MS}."
            )

    def _is_late(self, timestamp: int) -> bool:
        return timestamp < self._stream_time_ms - self._segments.retention_ms

    def _apply(self, key: bytes, value: bytes | None, timestamp: int) -> int | None:
        """Stage a version that is not late; returns when its validity ends. Its segment, and so every segment that it
        touches, is live.
        """
        reads = self._reads or self._reading()
        if timestamp > self._stream_time_ms:
            self._stream_time_ms = timestamp
        if key not in self._changed:
            self._changed.add(key)
            if self._undo is not None:
                self._undo[2].add(key)
        latest = reads.get(key)
        if latest is not None and timestamp > latest.timestamp:
            self._append(key, latest.timestamp, latest.value, timestamp)
        if latest is not None and timestamp >= latest.timestamp:
            self._put_latest(key, value, timestamp)
            return None
        valid_to = None if latest is None else latest.timestamp
        holding: tuple[int, bytes] | None = None
        with closing(reads.rows(key, timestamp)) as rows:  # before anything is staged, which an open scan would copy
            for holding in rows:
                oldest = bounds(holding[1])[1]
                if oldest <= timestamp:
                    break
                valid_to, holding = oldest, None
        if holding is not None:
            return self._put_inside(*holding, key, value, timestamp)
        if valid_to is None:
            self._put_latest(key, value, timestamp)
        else:
            self._put_before(valid_to, key, value, timestamp)
        return valid_to

    def _put_latest(self, key: bytes, value: bytes | None, timestamp: int) -> None:
        """Nothing of this key is newer, and what is older has been moved to segments."""
        if value is not None:
            self._stage(LATEST + key, join(value, timestamp))
            return
        self._stage(LATEST + key, None)  # even when there is none: a commit with nothing staged would leave the log
        # The end of a row is the tombstone: make a row in this segment end here, when none does.
        at = self._at(key, timestamp)
        row = self._get(at)
        if row is None:
            self._stage(at, new_row(timestamp, None, timestamp))
        elif bounds(row)[0] < timestamp:
            self._stage(at, append(row, bounds(row)[0], None, timestamp))

    def _put_inside(self, segment: int, row: bytes, key: bytes, value: bytes | None, timestamp: int) -> int:
        """The row holds the version that is valid now at `timestamp`."""
        held = versions(row)
        place = next(index for index, version in enumerate(held) if version.timestamp <= timestamp)
        found = held[place]
        put = Version(timestamp, value, found.valid_to)
        if found.timestamp == timestamp:
            held[place] = put
        elif self._segments.id_of(timestamp) == segment:
            held[place : place + 1] = [put, found._replace(valid_to=timestamp)]
        else:  # what was valid there ends in an older segment now
            self._append(key, found.timestamp, found.value, timestamp)
            held[place] = put
        self._stage(PREFIX.pack(segment) + key, join_row(held))
        return found.valid_to

    def _put_before(self, valid_to: int, key: bytes, value: bytes | None, timestamp: int) -> None:
        """No version is valid at `timestamp`; the next one begins at `valid_to`."""
        at = self._at(key, valid_to)
        row = self._get(at)
        if row is None or bounds(row)[0] <= timestamp:
            self._append(key, timestamp, value, valid_to)
            return
        ends, oldest = bounds(row)
        put = Version(timestamp, value, valid_to)
        # A degenerate row's tombstone is told by the end of any row.
        self._stage(at, join_row([put] if ends == oldest else [*versions(row), put]))

    def _append(self, key: bytes, timestamp: int, value: bytes | None, valid_to: int) -> None:
        """A version becomes the newest of the segment in which its validity ends."""
        at = self._at(key, valid_to)
        row = self._get(at)
        self._stage(at, new_row(timestamp, value, valid_to) if row is None else append(row, timestamp, value, valid_to))

    def _at(self, key: bytes, valid_to: int) -> bytes:
        return PREFIX.pack(self._segments.id_of(valid_to)) + key


def default_segment_interval_ms(history_retention_ms: int) -> int:
    """Kafka Streams' segment interval of a versioned store (`Stores.persistentVersionedKeyValueStore`), in ms."""
    if history_retention_ms <= 60_000:
        return max(history_retention_ms // 3, 2_000)
    if history_retention_ms <= 300_000:
        return max(history_retention_ms // 5, 20_000)
    if history_retention_ms <= 3_600_000:
        return max(history_retention_ms // 12, 60_000)
    return max(history_retention_ms // 24, 300_000)
