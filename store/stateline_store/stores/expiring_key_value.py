"""ExpiringKeyValueStore: a timestamped key-value store whose entries have a time to live.

Stream time is the largest timestamp put. Deletes do not move it. A put deletes, in the same commit, all entries whose
timestamps are then older than stream time less the time to live. So no reader needs to know the rule, and a changelog
gets a tombstone. The rows follow from the puts alone, so all copies with the same changes are equal. A late value
replaces the key's value, and is deleted at once. Timestamp -1, unknown, stays.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from stateline_store.errors import InvalidArgumentError
from stateline_store.position import Position, TopicPartition
from stateline_store.rocksdb.options import DEFAULT_TUNING, Tuning
from stateline_store.rows.timestamped_rows import TIMESTAMP
from stateline_store.scan import EVERY_KEY
from stateline_store.state_store import StoreContext
from stateline_store.stores.timestamped_key_value import TimestampedKeyValueStore

_AT_ONCE = 10_000  # keys that are looked up together


class ExpiringKeyValueStore(TimestampedKeyValueStore):
    """A TimestampedKeyValueStore whose entries live for `ttl_ms` milliseconds. Files and changelog are the same: either
    class opens those of the other one.

    Keys and timestamps are also in memory, some 250 bytes a key. Opening a store reads all of it.
    """

    def __init__(
        self,
        name: str,
        *,
        ttl_ms: int,
        persistent: bool = True,
        headers: bool = False,
        tuning: Tuning = DEFAULT_TUNING,
    ) -> None:
        """Make a closed store. Raises `InvalidArgumentError` for less than a millisecond."""
        if ttl_ms < 1:
            raise InvalidArgumentError(f"Store {name!r}: a time to live of {ttl_ms} ms: give 1 or more.")
        super().__init__(name, persistent=persistent, headers=headers, tuning=tuning)
        self._ttl_ms = ttl_ms
        self._index = _ExpiryIndex()
        self._least_time_ms = -1  # of rows that were written before there was a time to live
        self._looked_at: list[tuple[int, bytes]] = []  # since the last commit: a rollback makes them due again
        self._looked_at_savepoint = 0
        self._expired: dict[bytes, bytes] | None = None

    def init(self, context: StoreContext) -> None:
        super().init(context)
        with self._own_reader().scan(EVERY_KEY) as rows:
            entries = [(TIMESTAMP.unpack_from(stored)[0], key) for key, stored in rows]
        self._index = _ExpiryIndex(entry for entry in entries if entry[0] >= 0)
        self._least_time_ms = max((timestamp for timestamp, _ in entries), default=-1)
        self._looked_at, self._looked_at_savepoint = [], 0

    def watch_expired(self) -> None:
        """Keep entries that expire from now on for `take_expired`, until a commit or a rollback."""
        self._expired = {}

    def take_expired(self) -> Mapping[bytes, bytes]:
        """Return the stored bytes by key of entries that have expired since the last call."""
        taken = self._expired or {}
        self._expired = None if self._expired is None else {}
        return taken

    def put_all_with_timestamp(self, entries: Iterable[tuple[bytes, bytes | None, int]]) -> None:
        entries = list(entries)
        super().put_all_with_timestamp(entries)
        self._pass((key, timestamp) for key, value, timestamp in entries if value is not None)

    def put_rows(self, rows: dict[bytes, bytes | None], stream_time_ms: int = -1) -> None:
        puts = [(key, TIMESTAMP.unpack_from(stored)[0]) for key, stored in rows.items() if stored is not None]
        super().put_rows(rows, stream_time_ms)
        self._pass(puts)

    def commit(
        self,
        changelog_offsets: Mapping[TopicPartition, int],
        *,
        position: Position | None = None,
        announce: bool = True,
    ) -> None:
        super().commit(changelog_offsets, position=position, announce=announce)
        self._looked_at, self._looked_at_savepoint = [], 0
        self.take_expired()

    def savepoint(self) -> None:
        super().savepoint()
        self._looked_at_savepoint = len(self._looked_at)

    def rollback_to_savepoint(self) -> None:
        super().rollback_to_savepoint()
        self._look_again(self._looked_at_savepoint)

    def rollback(self) -> None:
        super().rollback()
        self._look_again(0)
        self._looked_at_savepoint = 0
        self.take_expired()

    def _stage(self, key: bytes, value: bytes | None) -> None:
        super()._stage(key, value)
        if value is not None:
            self._pass([(key, TIMESTAMP.unpack_from(value)[0])])

    def _pass(self, puts: Iterable[tuple[bytes, int]]) -> None:
        """Move stream time past these put timestamps, and stage the removal of entries that are too old then."""
        newest = max(self._stream_time_ms, self._least_time_ms)
        for key, timestamp in puts:
            if timestamp >= 0:
                self._index.add(key, timestamp)
                newest = max(newest, timestamp)
        self._stream_time_ms = newest
        while due := self._index.take(newest - self._ttl_ms, _AT_ONCE):
            self._looked_at += due
            self._expire([key for _, key in due], newest - self._ttl_ms)

    def _expire(self, keys: list[bytes], before: int) -> None:
        gone: dict[bytes, bytes | None] = {}
        for key, stored in zip(keys, self.get_rows(keys), strict=True):
            timestamp = -1 if stored is None else TIMESTAMP.unpack_from(stored)[0]
            if timestamp >= before:
                self._index.add(key, timestamp)
            elif timestamp >= 0 and stored is not None:
                gone[key] = None
                if self._expired is not None:
                    self._expired[key] = stored
        if self._origins.rows:
            self._origins.take({**gone})  # no record deleted them
        self._buffer.take(gone)

    def _look_again(self, first: int) -> None:
        for timestamp, key in self._looked_at[first:]:
            self._index.add(key, timestamp)
        del self._looked_at[first:]


class _ExpiryIndex:
    """The times at which keys may expire, in memory, one entry a key. Not thread-safe.

    An entry is a hint, and the row counts. So another put of a key costs nothing here. The key is looked at when its
    first timestamp is due, and comes back with its present timestamp.
    """

    def __init__(self, entries: Iterable[tuple[int, bytes]] = ()) -> None:
        """Index these (timestamp, key), each key once."""
        self._heap = list(entries)
        heapq.heapify(self._heap)
        self._earliest = {key: timestamp for timestamp, key in self._heap}

    def __len__(self) -> int:
        return len(self._earliest)

    def add(self, key: bytes, timestamp: int) -> None:
        """Have the key looked at when this timestamp is due, unless it is due before."""
        known = self._earliest.get(key)
        if known is None or timestamp < known:
            self._earliest[key] = timestamp
            heapq.heappush(self._heap, (timestamp, key))

    def take(self, before: int, most: int) -> list[tuple[int, bytes]]:
        """Take out and return (timestamp, key) of up to `most` keys with timestamps before this one."""
        taken: list[tuple[int, bytes]] = []
        while self._heap and self._heap[0][0] < before and len(taken) < most:
            entry = heapq.heappop(self._heap)
            if self._earliest.get(entry[1]) == entry[0]:  # else it has moved to an earlier one, and was looked at
                del self._earliest[entry[1]]
                taken.append(entry)
        return taken
