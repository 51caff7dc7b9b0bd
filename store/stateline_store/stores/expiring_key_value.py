"""ExpiringKeyValueStore: a timestamped key-value store whose entries have a time to live.

Stream time is the largest timestamp put. Deletes do not move it. A put deletes, in the same commit, entries that have
expired by stream time then. So no reader needs to know the rule, and a changelog gets a tombstone. The rows follow from
the puts alone, so copies with the same changes are equal. A late value replaces the key's value, and is deleted at
once. Timestamp -1, unknown, stays. `expire` also deletes by the owner's clock.

Committed entries are found by an index in their database (`rows.expiry`), staged ones by a heap, if they must be.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from stateline_store.engines.engine import Commit
from stateline_store.errors import InvalidArgumentError
from stateline_store.position import Position, TopicPartition
from stateline_store.rocksdb.engine import RocksDBEngine
from stateline_store.rocksdb.options import DEFAULT_TUNING, Tuning
from stateline_store.rows.expiry import NEVER, DueEntries, Entry, IndexChanges, Lifetime
from stateline_store.rows.known_keys import KnownKeys
from stateline_store.rows.timestamped_rows import TIMESTAMP
from stateline_store.scan import EVERY_KEY, KeyRange
from stateline_store.state_store import StoreContext
from stateline_store.stores.timestamped_key_value import TimestampedKeyValueStore

MOST_AT_ONCE = 10_000
_UNSEEN_COMMITS = 15
_ENTRIES_KEPT = 1_000
_NONE: Entry = (b"", b"")


class ExpiringKeyValueStore(TimestampedKeyValueStore):
    """A TimestampedKeyValueStore whose entries live for `ttl_ms` milliseconds, 0 for as long as they say. With
    `own_ttl`, a header of the entry may say when it expires (`rows.expiry.with_expiry`).

    Its changelog is that of a TimestampedKeyValueStore, and either class opens the files of the other one. The first
    opening of such files by this class reads all of them.
    """

    _expires: ClassVar[bool] = True

    def __init__(
        self,
        name: str,
        *,
        ttl_ms: int = 0,
        own_ttl: bool = False,
        persistent: bool = True,
        headers: bool = False,
        tuning: Tuning = DEFAULT_TUNING,
    ) -> None:
        """Make a closed store. Raises `InvalidArgumentError` without a time to live of a millisecond or more, and for
        `own_ttl` without headers."""
        if ttl_ms < 0 or not (ttl_ms or own_ttl):
            raise InvalidArgumentError(f"Store {name!r}: a time to live of {ttl_ms} ms: give 1 or more.")
        if own_ttl and not headers:
            raise InvalidArgumentError(f"Store {name!r}: own_ttl=True needs headers=True: a header has the expiry.")
        super().__init__(name, persistent=persistent, headers=headers, tuning=tuning)
        self.lifetime = Lifetime(ttl_ms, own_ttl)
        self._due = DueEntries(lambda start, most: self._open().due(start, most))
        self._looked_at: set[bytes] = set()  # since the last commit, which puts them into the index again
        # Staged entries, and those that were looked at: once one of them expires before the commit.
        self._heap: list[Entry] | None = None
        self._heap_first = NEVER  # none of them is before
        self._indexed, self._latest = KnownKeys(), b""  # each has an entry in the index, and none of them is after
        self._unseen_commits = 0  # so many next ones do not look at old rows
        self._least_time_ms = -1  # of rows that were written before there was a time to live
        self._expired: dict[bytes, bytes] | None = None

    def init(self, context: StoreContext) -> None:
        self._due.restart()
        self._looked_at.clear()
        self._indexed, self._latest, self._unseen_commits = KnownKeys(), b"", 0
        super().init(context)
        try:
            if isinstance(engine := self._open(), RocksDBEngine) and (index := engine.index) is not None:
                rows = engine.scan(EVERY_KEY)
                self._least_time_ms = index.made_for(self.lifetime, rows, engine.write_index)
        except BaseException:
            self.close()
            raise

    @property
    def is_watched(self) -> bool:
        """Whether somebody takes what has expired."""
        return self._expired is not None

    def watch_expired(self) -> None:
        """Keep entries that expire from now on for `take_expired`, until a commit or a rollback."""
        self._expired = {}

    def take_expired(self) -> Mapping[bytes, bytes]:
        """Return the stored bytes by key of entries that have expired since the last call."""
        taken = self._expired or {}
        self._expired = None if self._expired is None else {}
        return taken

    def expire(self, now_ms: int = -1) -> bool:
        """Stage the removal of entries that have expired by stream time or by this time: of 10,000 to 20,000 if there
        are more. Returns whether there was any: call it again after a commit."""
        return self._expire_due(max(now_ms, self._stream_time_ms), MOST_AT_ONCE)

    def put_all_with_timestamp(self, entries: Iterable[tuple[bytes, bytes | None, int]]) -> None:
        entries = list(entries)
        super().put_all_with_timestamp(entries)
        stamps = [timestamp for _, value, timestamp in entries if value is not None]
        self._pass(stamps, (key for key, value, _ in entries if value is not None))

    def put_rows(self, rows: dict[bytes, bytes | None], stream_time_ms: int = -1) -> None:
        stamps = {key: TIMESTAMP.unpack_from(row)[0] for key, row in rows.items() if row is not None}
        super().put_rows(rows, stream_time_ms)
        self._pass([*stamps.values()], stamps)

    def commit(
        self,
        changelog_offsets: Mapping[TopicPartition, int],
        *,
        position: Position | None = None,
        announce: bool = True,
    ) -> None:
        super().commit(changelog_offsets, position=position, announce=announce)
        self.take_expired()

    def rollback_to_savepoint(self) -> None:
        super().rollback_to_savepoint()
        self._due.restart()
        if self._heap is not None:
            self._heap, self._heap_first = None, b""

    def rollback(self) -> None:
        super().rollback()
        self._due.restart()
        self._looked_at.clear()
        self.take_expired()

    def _stage(self, key: bytes, value: bytes | None) -> None:
        super()._stage(key, value)
        if value is not None:
            self._pass(TIMESTAMP.unpack_from(value), (key,))

    def _drop_staged(self) -> None:
        super()._drop_staged()
        self._heap, self._heap_first = None, NEVER

    def _write(
        self,
        rows: Mapping[bytes, bytes | None],
        commit: Commit,
        expired: KeyRange | None = None,
        index: IndexChanges | None = None,
    ) -> None:
        index = self._due.changes(self._new_entries(rows), self.lifetime.span_ms, commit.number)
        super()._write(rows, commit, expired, index)
        self._due.committed(index)
        self._looked_at.clear()

    def _new_entries(self, rows: Mapping[bytes, bytes | None]) -> list[Entry]:
        """Return the entries to add to the index. A key that exists is in it, at its time or before, so an overwrite
        need not be. A commit looks at the old rows, unless nearly all keys are new."""
        live = rows if None not in rows.values() else {key: row for key, row in rows.items() if row is not None}
        engine, lifetime = self._open(), self.lifetime
        if self._unseen_commits:
            self._unseen_commits -= 1
            entries = [*zip(lifetime.times(live.values()), live, strict=True)]
        else:
            keys = self._indexed.unknown(live)
            if self._heap_first < self._latest:  # the time of one of them may be before that in the index
                times = lifetime.times(live.values())
                keys = [*{*keys, *(key for key, at in zip(live, times, strict=True) if at < self._latest)}]
            old = engine.get_many(keys, again=False)
            if live and old.count(None) * 8 >= len(live) * 7:
                self._unseen_commits = _UNSEEN_COMMITS
            each = [*zip(lifetime.times(map(live.__getitem__, keys)), keys, lifetime.times(old), strict=True)]
            entries = [(at, key) for at, key, before in each if at < before]
            self._indexed.add([key for at, key, _ in each if at < NEVER])
            times = [min(at, before) for at, _, before in each]
            self._latest = max([self._latest, *(at for at in times if at < NEVER)])
        if left := [key for key in self._looked_at if key in live or key not in rows]:
            found = [live.get(key, row) for key, row in zip(left, engine.get_many(left, again=False), strict=True)]
            times = lifetime.times(found)
            entries += zip(times, left, strict=True)
            self._latest = max([self._latest, *(at for at in times if at < NEVER)])
        if max(entries, default=_NONE)[0] >= NEVER:
            entries = [entry for entry in entries if entry[0] < NEVER]
        return entries

    def _pass(self, timestamps: Sequence[int], keys: Iterable[bytes]) -> None:
        """Move stream time past these puts, and stage the removal of entries that have expired then."""
        if not timestamps:
            return
        first_ms = min(timestamps)
        if self._heap is not None or self.lifetime.own or first_ms < 0:
            keys = [*keys]
            self._note(self.lifetime.times(map(self._buffer.rows.__getitem__, keys)), keys)
        else:
            self._heap_first = min(self._heap_first, TIMESTAMP.pack(first_ms))
        self._stream_time_ms = max(self._stream_time_ms, self._least_time_ms, max(timestamps))
        self._expire_due(self._stream_time_ms)

    def _note(self, times: Sequence[bytes], keys: Sequence[bytes]) -> None:
        """Have these keys looked at when they expire, before the commit adds them to the index."""
        self._heap_first = min(self._heap_first, *times)
        if self._heap is not None:
            for entry in zip(times, keys, strict=True):
                heapq.heappush(self._heap, entry)
            if len(self._heap) > 4 * (len(self._buffer.rows) + len(self._looked_at)) + _ENTRIES_KEPT:
                self._heap = None  # most are of overwritten values; it is made again when one of them expires

    def _expire_due(self, now_ms: int, most: float = math.inf) -> bool:
        """Stage the removal of entries that have expired at this time: of all, or of `most` and some more. Returns
        whether there was any. How many are looked at for it depends on the index, what is removed does not."""
        before, gone = self.lifetime.live_from(now_ms), 0
        while gone < most and min(self._heap_first, self._due.first) < before:
            if self._heap_first < before:
                keys = self._take_noted(before, MOST_AT_ONCE)
            else:
                keys = self._due.take(before, MOST_AT_ONCE)
                self._looked_at.update(keys)
                self._indexed.remove(keys)
            gone += self._expire([*dict.fromkeys(keys)], before)
        return gone > 0

    def _take_noted(self, before: bytes, most: int) -> list[bytes]:
        if self._heap is None:
            keys = [*{*(key for key, row in self._buffer.rows.items() if row is not None), *self._looked_at}]
            self._heap = [*zip(self.lifetime.times(self.get_rows(keys)), keys, strict=True)]
            heapq.heapify(self._heap)
        heap, taken = self._heap, list[bytes]()
        while heap and heap[0][0] < before and len(taken) < most:
            taken.append(heapq.heappop(heap)[1])
        self._heap_first = heap[0][0] if heap else NEVER
        return taken

    def _expire(self, keys: Sequence[bytes], before: bytes) -> int:
        """Stage the removal of those of these keys that have expired. Returns their number."""
        rows = self.get_rows(keys, again=False)
        times = self.lifetime.times(rows)
        if left := [(at, key) for key, at in zip(keys, times, strict=True) if before <= at < NEVER]:
            self._note([at for at, _ in left], [key for _, key in left])
        gone = {key: row for key, row, at in zip(keys, rows, times, strict=True) if at < before and row is not None}
        if self._expired is not None:
            self._expired.update(gone)
        tombstones: dict[bytes, bytes | None] = dict.fromkeys(gone)
        if self._origins.rows:
            self._origins.take({**tombstones})  # no record deleted them
        self._buffer.take(tombstones)
        return len(gone)
