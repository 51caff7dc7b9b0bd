"""Aggregations over tumbling, hopping and unlimited windows. A row of the store, a timestamped window store, is
``segment ‖ key ‖ start:i64 ‖ 0:i32`` → ``timestamp:i64 ‖ aggregate``.

As in Kafka Streams' `KStreamWindowAggregate`, records without a key are left out, and those without a value are
aggregated. A record goes into those of its windows that are still open at the largest timestamp so far, its own
included. A window's timestamp is the largest of its records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from stateline.log.interface import Record
from stateline.model.windows import TimeWindows, UnlimitedWindows
from stateline.processing.operators.aggregate import added, counted
from stateline.processing.operators.folding import Folding, later, next_row
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Changes, Rows, plain
from stateline.processing.operators.stored_rows import keep_rows, rows_of, with_fitting_headers
from stateline.processing.operators.window_times import begin, placed_in_time
from stateline_store import WindowStore
from stateline_store.rows.segments import PREFIX
from stateline_store.rows.timestamped_rows import TIMESTAMP

_Window = tuple[bytes, int]  # key and start
_WINDOWS = 32_000  # that are remembered of one store and partition, in at most 4 MB


class _WindowOperator:
    def __init__(self, store: str, windows: TimeWindows, context: OperatorContext) -> None:
        opened = context.stores[store]
        if not isinstance(opened, WindowStore):
            raise AssertionError(f"Store {store!r} keeps no windows.")
        self._store, self._context = opened, context
        self._only_start = windows.start_ms if isinstance(windows, UnlimitedWindows) else None
        self._size = windows.size_ms
        self._advance = self._size if isinstance(windows, UnlimitedWindows) else windows.advance_ms
        self._closed_after = windows.closed_after_ms
        begin(opened, windows, context)
        # Only the operator writes the store, and after a rollback there is a new operator. So a window that starts at
        # `_new_from` or later has a row only if its stored key is in `_put`.
        self._put: set[bytes] = set()
        self._new_from = 0 if opened.is_empty() else opened.stream_time_ms + 1

    def _starts(self, at_ms: int) -> range:
        if self._only_start is not None:
            return range(self._only_start, min(at_ms, self._only_start) + 1)
        first = max(0, at_ms - self._size + self._advance) // self._advance * self._advance
        return range(first, at_ms + 1, self._advance)

    def _rows_of(self, windows: Iterable[_Window], keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the rows of these windows, whose stored keys are `keys`. New windows are not looked up: that would
        take a third of the operator's time."""
        put, new_from = self._put, self._new_from
        known = [key for (_, start), key in zip(windows, keys, strict=True) if key in put or start < new_from]
        if len(known) == len(keys):
            return rows_of(self._store, known)
        rows = dict(zip(known, rows_of(self._store, known), strict=True)) if known else {}
        return list(map(rows.get, keys))

    def _remember(self, keys: Sequence[bytes]) -> None:
        """Remember that rows of these stored keys were put. If they are too many, the newest segment's stay; if it has
        too many itself, windows that start later are remembered."""
        self._put.update(keys)
        if len(self._put) <= _WINDOWS:
            return
        segments, newest_ms = self._store.segments, self._store.stream_time_ms
        segment = segments.id_of(newest_ms)
        first = PREFIX.pack(segment)
        kept = {key for key in self._put if key >= first}
        fits = len(kept) <= _WINDOWS // 2
        self._put = kept if fits else set()
        self._new_from = max(self._new_from, segment * segments.interval_ms if fits else newest_ms + 1)

    def _keep(
        self,
        windows: Iterable[_Window],
        keys: Sequence[bytes],
        old: Iterable[bytes | None],
        new: Sequence[bytes | None],
        stamps: Sequence[int],
        records: Sequence[Record],
        observed_ms: int,
        clock: int = 0,
    ) -> Changes | None:
        """Stage the new rows of these windows. `keys` are their stored keys. Returns the changes."""
        keep_rows(self._store, keys, new, stamps, records, max(start for _, start in windows))
        self._remember(keys)
        self._context.times.observe(self._store.name, observed_ms, clock)
        if not self._context.has_readers:
            return None
        return Changes([key[PREFIX.size :] for key in keys], plain(old), plain(new), stamps, records)


class WindowCount(_WindowOperator):
    """Takes rows, gives changes of the table of counts."""

    def process(self, rows: Rows) -> Changes | None:
        rows = placed_in_time(rows, self._context)
        rows = with_fitting_headers(rows, rows.known_keys, [None] * len(rows.records), self._store, self._context)
        if not rows.records:
            return None
        observed = max(self._context.times.observed(self._store.name), max(rows.timestamps))
        windows, timestamps, records = self._open_windows(rows)
        if not windows:
            return None  # all were late, so that none was the newest
        counts, newest = counted(windows, timestamps)
        keys = self._store.stored_keys(counts)
        old = self._rows_of(counts, keys)
        new, stamps = added(counts, newest, old)
        last = dict(zip(windows, records, strict=True))
        return self._keep(counts, keys, old, new, stamps, list(last.values()), observed)

    def _open_windows(self, rows: Rows) -> tuple[list[_Window], Sequence[int], Sequence[Record]]:
        """Return a window for each record (several if they overlap), the records' timestamps, and the records."""
        keys, times, records = rows.known_keys, rows.timestamps, rows.records
        oldest, only = min(times), self._only_start
        last_ms = max(self._context.times.observed(self._store.name), max(times))
        if only is not None or self._starts(oldest)[0] + self._closed_after > last_ms:
            if only is None and self._size == self._advance:
                size = self._size
                return list(zip(keys, [at_ms - at_ms % size for at_ms in times], strict=True)), times, records
            found = [((key, s), n) for n, (key, t) in enumerate(zip(keys, times, strict=True)) for s in self._starts(t)]
        else:
            found = list(self._not_late(keys, times))
        places = [place for _, place in found]
        return [window for window, _ in found], [times[n] for n in places], [records[n] for n in places]

    def _not_late(self, keys: Sequence[bytes], times: Sequence[int]) -> Iterator[tuple[_Window, int]]:
        observed, late = self._context.times.observed(self._store.name), 0
        for place, (key, at_ms) in enumerate(zip(keys, times, strict=True)):
            observed = max(observed, at_ms)
            for start in self._starts(at_ms):
                if start + self._closed_after > observed:
                    yield (key, start), place
                else:
                    late += 1
        if late:
            self._context.failures.drop(late, "late")


class WindowFold(_WindowOperator):
    """Takes rows, gives changes of the table of aggregates. A record for which a function fails changes nothing, in
    none of its windows, and does not move time."""

    def __init__(self, name: str, store: str, windows: TimeWindows, folding: Folding, context: OperatorContext) -> None:
        super().__init__(store, windows, context)
        self._name, self._folding = name, folding

    def process(self, rows: Rows) -> Changes | None:
        rows = placed_in_time(rows, self._context)
        keys = rows.known_keys
        observed, late = self._context.times.observed(self._store.name, rows.clock), 0
        store_time, retention = self._store.stream_time_ms, self._store.segments.retention_ms
        stored = self._stored(keys, rows.timestamps, observed)
        newest, last, gone_ms = dict(stored), dict[_Window, int](), dict[_Window, int]()
        refuse = partial(self._context.refuse_too_large, store=self._store)

        def folded(row: tuple[bytes, Any, Any, int]) -> list[tuple[_Window, bytes | None]]:
            key, typed_key, value, at_ms = row
            windows = [(key, start) for start in self._starts(at_ms) if start + self._closed_after > observed]
            made = []
            for window in windows:
                # Only a cogrouped stream that is behind others meets what the retention hides.
                before = newest[window] if window[1] > store_time - retention else None
                made.append((window, next_row(self._folding, before, key, typed_key, value, at_ms, refuse)))
            return made

        given = zip(keys, rows.keys.typed, rows.values.typed, rows.timestamps, strict=True)
        for place, results in self._context.each(self._name, rows.records, given, folded):
            at_ms = rows.timestamps[place]
            observed = max(observed, at_ms)
            late += len(self._starts(at_ms)) - len(results)
            for window, new in results:
                if new is None:
                    gone_ms[window] = later(newest[window], at_ms)
                newest[window], last[window] = new, place
                store_time = max(store_time, window[1])
        if late:
            self._context.failures.drop(late, "late")
        if not last:
            return None
        new_rows = {window: newest[window] for window in last}
        stamps = [gone_ms[window] if row is None else TIMESTAMP.unpack_from(row)[0] for window, row in new_rows.items()]
        records = [rows.records[place] for place in last.values()]
        old = map(stored.__getitem__, last)
        new = list(new_rows.values())
        return self._keep(last, self._store.stored_keys(last), old, new, stamps, records, observed, rows.clock)

    def _stored(self, keys: Sequence[bytes], times: Sequence[int], observed: int) -> dict[_Window, bytes | None]:
        wanted = dict.fromkeys(
            (key, start)
            for key, at_ms in zip(keys, times, strict=True)
            for start in self._starts(at_ms)
            if start + self._closed_after > observed
        )
        return dict(zip(wanted, self._rows_of(wanted, self._store.stored_keys(wanted)), strict=True))
