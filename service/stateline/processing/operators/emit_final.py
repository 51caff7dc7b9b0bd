"""Final results: each window or session once, when it has closed.

This is Kafka Streams' ``EmitStrategy.onWindowClose`` (KIP-825), and ``suppress(untilWindowCloses)``. It looks windows
up in the aggregation's store. That store also keeps how far results were emitted, in the same commit as the windows and
the results (`window_times.begin` says what holds after a crash).
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from stateline.log.interface import Record
from stateline.model.windows import AnyWindows, SessionWindows
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Changes
from stateline.processing.operators.stored_rows import rows_of
from stateline_store.rows.segments import PREFIX
from stateline_store.rows.timestamped_rows import TIMESTAMP
from stateline_store.rows.windowed_keys import MAX_TIMESTAMP_MS, SESSION_SUFFIX, WINDOW_SUFFIX
from stateline_store.stores.segmented_store import SegmentedStore

_KEYS = 50_000  # of windows that close next; of one store and partition


class EmitFinal:
    """Takes changes of windows as a sign that time passes. Gives final values by time, then by key. It keeps the keys
    of open windows in memory. If they are too many, it keeps those that close next, and looks through the store for
    more when these have closed."""

    def __init__(self, store: str, windows: AnyWindows, context: OperatorContext) -> None:
        opened = context.stores[store]
        if not isinstance(opened, SegmentedStore):
            raise AssertionError(f"Store {store!r} keeps no windows.")
        self._store, self._times = opened, context.times
        self._sessions = isinstance(windows, SessionWindows)
        # The first of the two numbers behind a key (a window's start, a session's end) decides when it closes.
        self._suffix = SESSION_SUFFIX if self._sessions else WINDOW_SUFFIX
        self._closed_after = windows.closed_after_ms
        # `_next` has the windows that close up to this time and were not emitted yet.
        self._known_to = self._times.emitted(store) - self._closed_after
        self._next: list[tuple[int, bytes]] = []
        self._waiting: set[bytes] = set()

    def process(self, changes: Changes) -> Changes | None:
        now = self._times.observed(self._store.name)
        last_ms = now - self._closed_after
        self._remember((key for key, new in zip(changes.keys, changes.new, strict=True) if new is not None), last_ms)
        if last_ms > self._known_to:
            from_ms, self._known_to = self._known_to + 1, MAX_TIMESTAMP_MS
            with self._store.rows_between(from_ms, MAX_TIMESTAMP_MS) as rows:
                self._remember((key[PREFIX.size :] for key, _ in rows), last_ms, from_ms)
        self._times.emit(self._store.name, now)
        return self._close(last_ms, changes.records[-1])

    def _remember(self, keys: Iterable[bytes], last_ms: int, from_ms: int = 0) -> None:
        """Remember keys of this time or later; if they are too many, not those of the latest times. All that close up
        to `last_ms` are needed now."""
        unpack, width, waiting, most = self._suffix.unpack_from, self._suffix.size, self._waiting, _KEYS
        for key in keys:
            time_ms = unpack(key, len(key) - width)[0]
            if from_ms <= time_ms <= self._known_to and key not in waiting:
                waiting.add(key)
                heappush(self._next, (time_ms, key))
                if len(waiting) > most:
                    self._forget_later_half(last_ms)
                    most = max(_KEYS, 2 * len(waiting))

    def _forget_later_half(self, last_ms: int) -> None:
        self._next.sort()  # a sorted list is a heap
        # All windows of one time are known, or none. Forgetting makes no window known.
        middle_ms = self._next[len(self._next) // 2][0]
        self._known_to = min(self._known_to, max(middle_ms - 1, last_ms))
        self._next = [(time_ms, key) for time_ms, key in self._next if time_ms <= self._known_to]
        self._waiting.intersection_update([key for _, key in self._next])

    def _close(self, last_ms: int, record: Record) -> Changes | None:
        closed = []
        while self._next and self._next[0][0] <= last_ms:
            closed.append(heappop(self._next))
        self._waiting.difference_update(key for _, key in closed)
        stored = rows_of(self._store, self._store.with_segments(key for _, key in closed))
        # Some sessions have become part of others since.
        there = [(key, row, at_ms) for (at_ms, key), row in zip(closed, stored, strict=True) if row is not None]
        if not there:
            return None
        return Changes(
            [key for key, _, _ in there],
            [None] * len(there),
            [row[8:] for _, row, _ in there],
            [at_ms if self._sessions else TIMESTAMP.unpack_from(row)[0] for _, row, at_ms in there],
            [record] * len(there),
        )
