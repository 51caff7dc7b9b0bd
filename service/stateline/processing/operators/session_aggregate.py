"""Aggregations over sessions. A row of the store, a timestamped session store, is ``segment ‖ key ‖ end:i64 ‖
start:i64`` → ``timestamp:i64 ‖ aggregate``.

As in Kafka Streams' `KStreamSessionWindowAggregate`, records without a key are left out, and those without a value are
aggregated. A record and the sessions within its gap become one, unless that session would have closed already. The
stored timestamp is the last record's, the change's timestamp is the session's end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias

from stateline.model.windows import SessionWindows
from stateline.processing.operators.folding import Folding
from stateline.processing.operators.interface import OperatorContext
from stateline.processing.operators.rows import Changes, Rows
from stateline.processing.operators.session_cache import CachedSession, SessionCache, Sessions
from stateline.processing.operators.stored_rows import keep_rows
from stateline.processing.operators.window_times import begin, placed_in_time
from stateline_store import TimestampedSessionStore
from stateline_store.rows.timestamped_rows import TIMESTAMP
from stateline_store.rows.windowed_keys import MAX_TIMESTAMP_MS, session_key

_END = attrgetter("end_ms")
_session = partial(tuple.__new__, CachedSession)  # without a call of Python's

# The changelog's key, the session's end, what was there, what is now, and the place of the record that did it.
_Changed: TypeAlias = tuple[bytes, int, CachedSession | None, CachedSession | None, int]


class SessionAggregate:
    """Takes rows, gives changes of the table of sessions. A record for which a function fails changes nothing, and does
    not move time. Sessions that begin and are joined within a slice leave no trace."""

    def __init__(
        self, name: str, store: str, windows: SessionWindows, folding: Folding, context: OperatorContext
    ) -> None:
        opened = context.stores[store]
        if not isinstance(opened, TimestampedSessionStore):
            raise AssertionError(f"Store {store!r} keeps no sessions with timestamps.")
        self._name, self._store, self._context, self._folding = name, opened, context, folding
        self._gap, self._closed_after = windows.gap_ms, windows.closed_after_ms
        self._retention = opened.segments.retention_ms
        begin(opened, windows, context)
        self._known = SessionCache(opened)
        # The aggregate of a session of one record, unless a user's function makes it.
        self._one = None if folding.typed else folding.join(None, None, ())

    def process(self, rows: Rows) -> Changes | None:
        rows = placed_in_time(rows, self._context)
        keys = rows.known_keys
        typed_keys, values = (rows.keys.typed, rows.values.typed) if self._folding.typed else (keys, keys)
        observed, store_time = self._context.times.observed(self._store.name, rows.clock), self._store.stream_time_ms
        before = self._read(keys, rows.timestamps)
        newest, last, late = dict(before), dict[bytes, int](), 0
        gap, retention, closed_after = self._gap, self._retention, self._closed_after
        with_headers = self._store.headers
        changers: dict[bytes, int] = {}  # with headers, the record that changed each session last
        one = None if with_headers else self._one_for(keys)

        def joined(row: tuple[bytes, Any, Any, int]) -> Sessions | None:
            key, typed_key, value, at_ms = row
            sessions = newest[key]
            is_behind = not sessions or sessions[-1][0] < at_ms - gap
            if one and is_behind and at_ms > store_time - retention and at_ms + closed_after > observed:
                return (*sessions, _session((at_ms, at_ms, at_ms, one)))  # as `_joined`, a third of its time
            return self._joined(sessions, store_time, observed, key, typed_key, value, at_ms)

        given = zip(keys, typed_keys, values, rows.timestamps, strict=True)
        may_fail = self._folding.typed or with_headers
        each = self._context.each(self._name, rows.records, given, joined)
        for place, sessions in each if may_fail else enumerate(map(joined, given)):
            if sessions is None:
                late += 1
                continue
            key, at_ms = keys[place], rows.timestamps[place]
            if with_headers:
                different = _differences(key, newest[key], sessions, place, with_equal=True)
                changers.update((each[0], place) for each in different)
            newest[key], last[key] = sessions, place
            observed = max(observed, at_ms)
            store_time = max(store_time, at_ms)
        if late:
            self._context.failures.drop(late, "late")
        if not last:
            return None
        self._context.times.observe(self._store.name, observed, rows.clock)
        changed: list[_Changed] = []
        for key, place in last.items():
            changed += _differences(key, before[key], newest[key], place, with_equal=with_headers)
            self._known.put(key, newest[key])
        self._known.trim()
        if with_headers:
            changed = [(*each[:4], changers.get(each[0], each[4])) for each in changed]
        return self._put(changed, rows, store_time)

    def _one_for(self, keys: Sequence[bytes]) -> bytes | None:
        """Return the aggregate of a session of one record; None if a function makes it, or a key is too large."""
        one, most = self._one, self._context.max_record_bytes
        return one if one and keys and len(max(keys, key=len)) + len(one) <= most else None

    def _put(self, changed: Sequence[_Changed], rows: Rows, store_time: int) -> Changes | None:
        row_keys, ends, old, new, places = zip(*changed, strict=True) if changed else ((),) * 5
        pack = TIMESTAMP.pack
        made = [None if now is None else pack(now[2]) + now[3] for now in new]
        records, stamps = [rows.records[n] for n in places], [rows.timestamps[n] for n in places]
        keep_rows(self._store, self._store.with_segments(row_keys), made, stamps, records, store_time)
        if not self._context.has_readers:
            return None
        return Changes(
            row_keys,
            [None if was is None else was[3] for was in old],
            [None if now is None else now[3] for now in new],
            ends,
            records,
        )

    def _read(self, keys: Sequence[bytes], times: Sequence[int]) -> dict[bytes, Sessions]:
        oldest: dict[bytes, int] = {}
        for key, at_ms in zip(keys, times, strict=True):
            if at_ms <= oldest.get(key, MAX_TIMESTAMP_MS):
                oldest[key] = at_ms
        get, gap = self._known.get, self._gap
        return {key: get(key, at_ms - gap) for key, at_ms in oldest.items()}

    def _joined(
        self, sessions: Sessions, store_time: int, observed: int, key: bytes, typed_key: Any, value: Any, at_ms: int
    ) -> Sessions | None:
        """Return a key's sessions with one more record; None if it is too late. Sessions that the retention hides are
        not joined."""
        least_end = max(at_ms - self._gap, store_time - self._retention + 1)
        first = behind = len(sessions)
        start_ms = end_ms = at_ms
        if sessions and sessions[-1].end_ms >= least_end:  # else it comes behind all of them
            first = behind = bisect_left(sessions, least_end, key=_END)
            while behind < len(sessions) and sessions[behind].start_ms <= at_ms + self._gap:
                start_ms, end_ms = min(start_ms, sessions[behind].start_ms), max(end_ms, sessions[behind].end_ms)
                behind += 1
        if end_ms + self._closed_after <= max(observed, at_ms):
            return None
        found = sessions[first:behind]
        aggregate = self._folding.join(typed_key, value, [s.aggregate for s in found])
        self._context.refuse_too_large(key, aggregate, self._store)
        made = () if aggregate is None else (CachedSession(end_ms, start_ms, at_ms, aggregate),)
        if end_ms >= least_end:
            return (*sessions[:first], *made, *sessions[behind:])
        kept = [s for s in sessions if s not in found and (s.end_ms, s.start_ms) != (end_ms, start_ms)]
        return tuple(sorted((*kept, *made)))


def _differences(key: bytes, before: Sessions, after: Sessions, place: int, *, with_equal: bool) -> Sequence[_Changed]:
    """Return a key's changed sessions, which the record at this place changed. An equal session of another record
    counts only `with_equal`: its headers may differ."""
    if after and before == after[:-1] and not with_equal:  # one more, behind all others
        (end_ms, start_ms, _, _) = now = after[-1]
        return ((session_key(key, start_ms, end_ms), end_ms, None, now, place),)
    old = {(s.end_ms, s.start_ms): s for s in before}
    new = {(s.end_ms, s.start_ms): s for s in after}
    gone = [(span, was, None) for span, was in old.items() if span not in new]
    other = [
        (span, was, now)
        for span, now in new.items()
        for was in [old.get(span)]
        if now != was or (with_equal and now is not was)
    ]
    return [
        (session_key(key, start_ms, end_ms), end_ms, was, now, place)
        for (end_ms, start_ms), was, now in (*gone, *other)
    ]
