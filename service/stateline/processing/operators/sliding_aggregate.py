"""Aggregations over sliding windows. Rows of the store are those of `window_aggregate`.

The steps are those of Kafka Streams' `KStreamSlidingWindowAggregate`: records without a key or a value are left out. A
record makes the window that ends with it, and the window right after it as soon as that has a record. It goes into
every open window around it. Records younger than one difference since 1970 share the window that begins there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import Any, NamedTuple

from stateline.model.windows import SlidingWindows
from stateline.processing.operators.folding import Folding
from stateline.processing.operators.grouping import with_value
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Changes, Rows
from stateline.processing.operators.stored_rows import bare_value, keep_rows
from stateline.processing.operators.window_times import begin, placed_in_time
from stateline_store import TimestampedWindowStore
from stateline_store.rows.timestamped_rows import TIMESTAMP
from stateline_store.rows.windowed_keys import window_key


class _Value(NamedTuple):
    """An aggregate (None before the first record), and the largest timestamp of its records."""

    aggregate: bytes | None
    timestamp_ms: int


class _KeyWindows:
    """One key's windows by their starts: as stored (`before`), and with a slice's changes (`values`)."""

    def __init__(self, found: dict[int, _Value]) -> None:
        self.before = found
        self.values = dict(found)
        self.starts = sorted(found)

    def between(self, first_ms: int, last_ms: int) -> list[int]:
        return self.starts[bisect_left(self.starts, first_ms) : bisect_right(self.starts, last_ms)]

    def put(self, start_ms: int, value: _Value) -> None:
        """Set a window. An aggregate of None deletes it."""
        known = start_ms in self.values
        if value.aggregate is None:
            if known:
                del self.values[start_ms]
                self.starts.remove(start_ms)
            return
        self.values[start_ms] = value
        if not known:
            insort(self.starts, start_ms)


class SlidingAggregate:
    """Takes rows, gives changes of the table of aggregates. A record for which a function fails changes nothing, in
    none of its windows, and does not move time."""

    def __init__(
        self, name: str, store: str, windows: SlidingWindows, folding: Folding, context: OperatorContext
    ) -> None:
        opened = context.stores[store]
        if not isinstance(opened, TimestampedWindowStore):
            raise AssertionError(f"Store {store!r} keeps no windows with timestamps.")
        self._name, self._store, self._context, self._folding = name, opened, context, folding
        self._difference, self._grace = windows.size_ms, windows.grace_ms
        self._retention = opened.segments.retention_ms
        begin(opened, windows, context)

    def process(self, rows: Rows) -> Changes | None:
        rows = with_value(placed_in_time(rows, self._context), self._context.failures)
        keys = rows.known_keys
        typed_keys, values = (rows.keys.typed, rows.values.typed) if self._folding.typed else (keys, keys)
        observed, store_time = self._context.times.observed(self._store.name, rows.clock), self._store.stream_time_ms
        late = 0
        windows_of = self._read(keys, rows.timestamps, observed)
        last, times = dict[tuple[bytes, int], int](), dict[tuple[bytes, int], int]()

        def folded(row: tuple[bytes, Any, Any, int]) -> _Step:
            key, typed_key, value, at_ms = row
            step = _Step(self._folding, typed_key, value, at_ms, self._difference, max(observed, at_ms) - self._grace)
            step.run(windows_of[key], max(0, store_time - self._retention + 1))
            for _, made in step.puts:
                self._context.refuse_too_large(key, made.aggregate, self._store)
            return step

        given = zip(keys, typed_keys, values, rows.timestamps, strict=True)
        for place, step in self._context.each(self._name, rows.records, given, folded):
            observed = max(observed, step.at_ms)
            late += step.late
            for start_ms, made in step.puts:
                windows_of[keys[place]].put(start_ms, made)
                last[keys[place], start_ms], times[keys[place], start_ms] = place, made.timestamp_ms
                store_time = max(store_time, start_ms)
        if late:
            self._context.failures.drop(late, "late")
        return self._keep(rows, windows_of, last, times, observed, store_time) if last else None

    def _read(self, keys: Sequence[bytes], times: Sequence[int], observed: int) -> dict[bytes, _KeyWindows]:
        spans: dict[bytes, tuple[int, int]] = {}
        in_time = observed - self._grace - self._difference
        for key, at_ms in zip(keys, times, strict=True):
            first, last = spans.get(key, (at_ms, at_ms))
            spans[key] = min(first, max(at_ms, in_time)), max(last, at_ms)
        return {key: self._read_one(key, *span) for key, span in spans.items()}

    def _read_one(self, key: bytes, first_ms: int, last_ms: int) -> _KeyWindows:
        with self._store.fetch_with_timestamp(key, first_ms - 2 * self._difference, last_ms + 1) as rows:
            found = {start_ms: _Value(bare_value(self._store, data), at_ms) for start_ms, (data, at_ms) in rows}
        return _KeyWindows(found)

    def _keep(
        self,
        rows: Rows,
        windows_of: dict[bytes, _KeyWindows],
        last: dict[tuple[bytes, int], int],
        times: dict[tuple[bytes, int], int],
        observed: int,
        store_time: int,
    ) -> Changes:
        old = [windows_of[key].before.get(start_ms) for key, start_ms in last]
        new = [windows_of[key].values.get(start_ms) for key, start_ms in last]
        records = [rows.records[place] for place in last.values()]
        stamps = [times[window] for window in last]
        keep_rows(self._store, self._store.stored_keys(last), list(map(_row, new)), stamps, records, store_time)
        self._context.times.observe(self._store.name, observed, rows.clock)
        return Changes(
            [window_key(key, start_ms) for key, start_ms in last],
            [None if value is None else value.aggregate for value in old],
            [None if value is None else value.aggregate for value in new],
            stamps,
            records,
        )


def _row(value: _Value | None) -> bytes | None:
    return None if value is None or value.aggregate is None else TIMESTAMP.pack(value.timestamp_ms) + value.aggregate


class _Step:
    """One record's effect on the windows of its key. `puts` are made if no function fails. Windows that end before
    `close_time` are closed."""

    def __init__(self, folding: Folding, key: Any, value: Any, at_ms: int, difference: int, close_time: int) -> None:
        self._folding, self._key, self._value = folding, key, value
        self.at_ms, self._difference, self._close_time = at_ms, difference, close_time
        self.puts: list[tuple[int, _Value]] = []
        self.late = 0

    def run(self, windows: _KeyWindows, least_start: int) -> None:
        """Process the record. Windows that start before `least_start` are not seen."""
        if self.at_ms + self._difference < self._close_time:
            self.late += 1
        elif self.at_ms < self._difference:
            self._early(windows, least_start)
        else:
            self._usual(windows, least_start)

    def _usual(self, windows: _KeyWindows, least_start: int) -> None:
        """KStreamSlidingWindowAggregate.processReverse and createWindows."""
        at_ms, values = self.at_ms, windows.values
        right: _Value | None = None
        left: _Value | None = None
        previous: int | None = None
        has_left = has_right = False
        seen = windows.between(max(least_start, at_ms - 2 * self._difference), at_ms + 1)
        for start in reversed(seen):
            found, end = values[start], start + self._difference
            if start == at_ms + 1:
                has_right = True
            elif end > at_ms:
                right = right or found
                self._update(start, found)
            elif end == at_ms:
                has_left = True
                self._update(start, found)
                if found.timestamp_ms == at_ms:
                    return  # another record of this time has made what there is to make
                previous = found.timestamp_ms
            else:
                left, previous = found, found.timestamp_ms
                break
        if previous is not None and previous + 1 not in seen and previous + 1 + self._difference >= at_ms:
            self._update(previous + 1, _Value(None, at_ms))
        if not has_left:
            joins = left is not None and previous is not None and at_ms - self._difference <= previous
            self._update(at_ms - self._difference, _Value(left.aggregate if joins and left else None, at_ms))
        if not has_right and right is not None and right.timestamp_ms > at_ms:
            self.puts.append((at_ms + 1, right))

    def _early(self, windows: _KeyWindows, least_start: int) -> None:
        """KStreamSlidingWindowAggregate.processEarly: windows that would begin before 1970 are one window, from
        there."""
        at_ms, values = self.at_ms, windows.values
        combined: _Value | None = None
        right: _Value | None = None
        previous: int | None = None
        has_right = False
        seen = windows.between(least_start, at_ms + 1)
        for start in seen:
            found = values[start]
            if start == 0:
                combined = found
                previous = found.timestamp_ms if found.timestamp_ms < at_ms else None
            elif start <= at_ms:
                right = found
                self._update(start, found)
            else:
                has_right = True
        if right is None and combined is not None and combined.timestamp_ms > at_ms:
            right = combined
        if not has_right and right is not None and right.timestamp_ms > at_ms:
            self.puts.append((at_ms + 1, right))
        if previous is not None and previous + 1 not in seen:
            self._update(previous + 1, _Value(None, at_ms))
        self._update(0, combined or _Value(None, at_ms))

    def _update(self, start: int, value: _Value) -> None:
        if start + self._difference < self._close_time:
            self.late += 1
            return
        aggregate = self._folding.add(self._key, self._value, value.aggregate)
        at_ms = self.at_ms if value.aggregate is None else max(self.at_ms, value.timestamp_ms)
        self.puts.append((start, _Value(aggregate, at_ms)))
