"""The sessions of recently used keys, because reading a store of sessions costs more than everything else.

Only the operator writes the store, and after a rollback it starts with an empty cache. So the cache equals the store.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from stateline.processing.operators.stored_rows import bare_value
from stateline_store import TimestampedSessionStore
from stateline_store.rows.timestamped_rows import TIMESTAMP
from stateline_store.rows.windowed_keys import MAX_TIMESTAMP_MS

_KEYS = 20_000  # of one store and partition, those that were met last
_SESSIONS = 16  # of one key, the newest
_BYTES = 32 * 1024 * 1024  # of aggregates, of all keys


class CachedSession(NamedTuple):
    """From the first record to the last one, with the timestamp of the newest record."""

    end_ms: int
    start_ms: int
    timestamp_ms: int
    aggregate: bytes

    @property
    def row(self) -> bytes:
        return TIMESTAMP.pack(self.timestamp_ms) + self.aggregate


Sessions = tuple[CachedSession, ...]  # by end, then start


class SessionCache:
    """Sessions by key, for each those that end at some time or later. Forgotten keys seldom have sessions that matter:
    these ended before `_complete_from`, and most records ask for later ones."""

    def __init__(self, store: TimestampedSessionStore) -> None:
        self._store = store
        # By key: the end from which its sessions are known, these, and the bytes of their aggregates. The key that was
        # met last comes last. A plain dict gets slower with each first one that is taken out.
        self._known: OrderedDict[bytes, tuple[int, Sessions, int]] = OrderedDict()
        self._bytes = 0
        self._complete_from = 0 if store.is_empty() else store.stream_time_ms + 1

    def get(self, key: bytes, earliest_end: int) -> Sessions:
        """Return a key's sessions that end at this time or later, and perhaps older ones."""
        known = self._known.get(key)
        if known is not None and known[0] <= earliest_end:
            return known[1]
        if known is None and earliest_end >= self._complete_from:
            sessions: Sessions = ()
        else:
            with self._store.find_sessions_with_timestamp(key, earliest_end, MAX_TIMESTAMP_MS) as rows:
                sessions = tuple(
                    CachedSession(s.end_ms, s.start_ms, at_ms, bare_value(self._store, data))
                    for s, (data, at_ms) in rows
                )
        self._keep(key, earliest_end, sessions, 0 if known is None else known[2])
        return sessions

    def put(self, key: bytes, sessions: Sessions) -> None:
        earliest_end, _, size = self._known[key]
        if len(sessions) > _SESSIONS:
            earliest_end = max(earliest_end, sessions[-_SESSIONS - 1].end_ms + 1)
            sessions = sessions[-_SESSIONS:]
        self._keep(key, earliest_end, sessions, size)
        self._known.move_to_end(key)

    def _keep(self, key: bytes, earliest_end: int, sessions: Sessions, size_before: int) -> None:
        size = 0
        for _, _, _, aggregate in sessions:
            size += len(aggregate)
        self._known[key] = earliest_end, sessions, size
        self._bytes += size - size_before

    def trim(self) -> None:
        """Forget keys beyond the limits. Call it between slices: within a slice, keys of `get` must stay."""
        while len(self._known) > _KEYS or self._bytes > _BYTES:
            _, (_, sessions, size) = self._known.popitem(last=False)
            self._bytes -= size
            if sessions:
                self._complete_from = max(self._complete_from, sessions[-1].end_ms + 1)
