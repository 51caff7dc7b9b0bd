"""The sessions of recently used keys, because reading a store of sessions costs more than everything else.

Only the operator writes the store, and after a rollback it starts with an empty cache. So the cache equals the store.
"""

from __future__ import annotations

from typing import NamedTuple

from stateline.processing.operators.stored_rows import bare_value
from stateline_store import TimestampedSessionStore
from stateline_store.rows.windowed_keys import MAX_TIMESTAMP_MS

_KEYS = 20_000  # of one store and partition: at least half as many are those that were met last
_SESSIONS = 16  # of one key, the newest
_BYTES = 32 * 1024 * 1024  # of aggregates, of all keys


class CachedSession(NamedTuple):
    """From the first record to the last one, with the timestamp of the newest record."""

    end_ms: int
    start_ms: int
    timestamp_ms: int
    aggregate: bytes


Sessions = tuple[CachedSession, ...]  # by end, then start


_Known = tuple[int, Sessions, int]
"""The end from which a key's sessions are known, these, and the bytes of their aggregates."""


class SessionCache:
    """Sessions by key, for each those that end at some time or later. Forgotten keys seldom have sessions that matter:
    these ended before `_complete_from`, and most records ask for later ones.

    There are two generations, because taking out the oldest of all keys would cost each record more than putting it.
    """

    def __init__(self, store: TimestampedSessionStore) -> None:
        self._store = store
        self._younger: dict[bytes, _Known] = {}
        self._older: dict[bytes, _Known] = {}
        self._younger_bytes = 0
        self._younger_end = self._older_end = 0  # all sessions of their keys end before
        self._complete_from = 0 if store.is_empty() else store.stream_time_ms + 1

    def get(self, key: bytes, earliest_end: int) -> Sessions:
        """Return a key's sessions that end at this time or later, and perhaps older ones."""
        known = self._younger.get(key) or self._older.get(key)
        if known is not None and known[0] <= earliest_end:
            return known[1]
        if known is None and earliest_end >= self._complete_from:
            return ()
        with self._store.find_sessions_with_timestamp(key, earliest_end, MAX_TIMESTAMP_MS) as rows:
            sessions = tuple(
                CachedSession(s.end_ms, s.start_ms, at_ms, bare_value(self._store, data)) for s, (data, at_ms) in rows
            )
        self._keep(key, earliest_end, sessions)
        return sessions

    def put(self, key: bytes, sessions: Sessions) -> None:
        """Keep what became of the sessions that `get` returned since the last `trim`."""
        known = self._younger.get(key) or self._older.get(key)
        earliest_end = self._complete_from if known is None else known[0]
        if len(sessions) > _SESSIONS:
            earliest_end = max(earliest_end, sessions[-_SESSIONS - 1].end_ms + 1)
            sessions = sessions[-_SESSIONS:]
        self._keep(key, earliest_end, sessions)

    def _keep(self, key: bytes, earliest_end: int, sessions: Sessions) -> None:
        size = 0
        for _, _, _, aggregate in sessions:
            size += len(aggregate)
        before = self._younger.get(key)
        self._younger_bytes += size if before is None else size - before[2]
        self._younger_end = max(self._younger_end, sessions[-1][0] + 1 if sessions else earliest_end)
        self._younger[key] = earliest_end, sessions, size

    def trim(self) -> None:
        """Forget the older keys when there are too many. Call it between slices: within a slice, keys of `get` must
        stay."""
        if len(self._younger) * 2 <= _KEYS and self._younger_bytes * 2 <= _BYTES:
            return
        self._complete_from = max(self._complete_from, self._older_end)
        self._older, self._younger = self._younger, {}
        self._older_end, self._younger_end, self._younger_bytes = self._younger_end, 0, 0
