"""Final results: each window or session once, when it has closed.

This is Kafka Streams' ``EmitStrategy.onWindowClose`` (KIP-825), and ``suppress(untilWindowCloses)``. It looks windows
up in the aggregation's store. That store also keeps how far results were emitted, in the same commit as the windows and
the results (`window_times.begin` says what holds after a crash).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from stateline.log.interface import Record
from stateline.model.windows import AnyWindows, SessionWindows
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.leaving_rows import Leaving, LeavingRows
from stateline.processing.operators.rows import Changes
from stateline.processing.operators.stored_rows import rows_of
from stateline_store.rows.segments import PREFIX
from stateline_store.rows.timestamped_rows import TIMESTAMP
from stateline_store.rows.windowed_keys import MAX_TIMESTAMP_MS, SESSION_SUFFIX, WINDOW_SUFFIX
from stateline_store.stores.segmented_store import SegmentedStore


class EmitFinal:
    """Takes changes of windows as a sign that time passes. Gives final values by time, then by key."""

    def __init__(self, store: str, windows: AnyWindows, context: OperatorContext) -> None:
        opened = context.stores[store]
        if not isinstance(opened, SegmentedStore):
            raise AssertionError(f"Store {store!r} keeps no windows.")
        self._store, self._times = opened, context.times
        self._sessions = isinstance(windows, SessionWindows)
        # The first of the two numbers behind a key (a window's start, a session's end) decides when it closes.
        self._suffix = SESSION_SUFFIX if self._sessions else WINDOW_SUFFIX
        self._closed_after = windows.closed_after_ms
        self._leaving = LeavingRows(self._kept, known_from_ms=self._times.emitted(store) - self._closed_after + 1)

    def process(self, changes: Changes) -> Changes | None:
        now = self._times.observed(self._store.name)
        last_ms = now - self._closed_after
        kept = (key for key, new in zip(changes.keys, changes.new, strict=True) if new is not None)
        self._leaving.add(self._timed(kept))
        self._times.emit(self._store.name, now)
        return self._final(self._leaving.take(last_ms), changes.records[-1])

    def _timed(self, keys: Iterable[bytes]) -> Iterator[Leaving]:
        unpack, width = self._suffix.unpack_from, self._suffix.size
        return ((unpack(key, len(key) - width)[0], key) for key in keys)

    def _kept(self, from_ms: int) -> Iterator[Leaving]:
        with self._store.rows_between(from_ms, MAX_TIMESTAMP_MS) as rows:
            yield from self._timed(key[PREFIX.size :] for key, _ in rows)

    def _final(self, closed: Sequence[Leaving], record: Record) -> Changes | None:
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
