"""Random operations on session stores against a plain oracle."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from stateline_store import (
    IsolationLevel,
    Reader,
    SessionReads,
    SessionStore,
    TimestampedSessionStore,
    Windowed,
    WindowedIterator,
)
from store.windowed_machine import (
    BOUNDS,
    KEYS,
    LEVELS,
    RETENTION,
    SETTINGS,
    TIMES,
    UNCOMMITTED,
    VALUES,
    WindowedMachine,
)
from store.windowed_oracle import Oracle

SPANS = st.tuples(TIMES, TIMES).map(lambda span: (min(span), max(span)))
Rows = list[tuple[Windowed, bytes]]


class SessionMachine(WindowedMachine[SessionStore]):
    kind: type[SessionStore]

    def make(self, *, persistent: bool) -> SessionStore:
        return self.kind("s", retention_ms=RETENTION, persistent=persistent)

    def make_oracle(self) -> Oracle:
        return Oracle(RETENTION, ">qq")

    def seen(self, level: IsolationLevel, *, reverse: bool = False) -> Rows:
        rows = self.oracle.seen(level, reverse=reverse)
        return [(Windowed(key, start, end), value) for (key, end, start), value in rows]

    def values(self, rows: WindowedIterator) -> Rows:
        return [(session, self.plain(value)) for session, value in rows]

    def check_all(self, reader: Reader, level: IsolationLevel) -> None:
        reads, seen = SessionReads(reader, self.store.segments), self.seen(level)
        assert self.values(reads.all()) == seen
        for key in {session.key for session, _ in seen}:
            assert self.values(reads.fetch(key)) == [row for row in seen if row[0].key == key]

    @rule(key=KEYS, aggregate=st.none() | VALUES, span=SPANS)
    def put(self, key: bytes, aggregate: bytes | None, span: tuple[int, int]) -> None:
        self.store.put(Windowed(key, *span), aggregate)
        self.oracle.put(key, span[1], span[0], aggregate)

    @rule(key=KEYS, span=SPANS)
    def remove(self, key: bytes, span: tuple[int, int]) -> None:
        self.store.remove(Windowed(key, *span))
        self.oracle.put(key, span[1], span[0], None, counted=False)

    @rule(key=KEYS, start=BOUNDS, end=BOUNDS, level=LEVELS)
    def fetch_session(self, key: bytes, start: int, end: int, level: IsolationLevel) -> None:
        found = self.store.reads(level).fetch_session(key, start, end)
        expected = dict(self.seen(level)).get(Windowed(key, start, end))
        assert (None if found is None else self.plain(found)) == expected

    @rule(key=KEYS, earliest_end=BOUNDS, latest_start=BOUNDS, level=LEVELS, reverse=st.booleans())
    def find_sessions(
        self, key: bytes, earliest_end: int, latest_start: int, level: IsolationLevel, reverse: bool
    ) -> None:
        rows = self.store.reads(level).find_sessions(key, earliest_end, latest_start, reverse=reverse)
        assert self.values(rows) == [
            row
            for row in self.seen(level, reverse=reverse)
            if row[0].key == key and row[0].end_ms >= earliest_end and row[0].start_ms <= latest_start
        ]

    @rule(
        lower=st.none() | KEYS,
        upper=st.none() | KEYS,
        earliest_end=BOUNDS,
        latest_start=BOUNDS,
        level=LEVELS,
        reverse=st.booleans(),
    )
    def find_sessions_of_keys(
        self,
        lower: bytes | None,
        upper: bytes | None,
        earliest_end: int,
        latest_start: int,
        level: IsolationLevel,
        reverse: bool,
    ) -> None:
        reads = self.store.reads(level)
        rows = reads.find_sessions_of_keys(lower, upper, earliest_end, latest_start, reverse=reverse)
        inside = [
            (session, value)
            for session, value in self.seen(level, reverse=reverse)
            if (lower is None or lower <= session.key) and (upper is None or session.key <= upper)
        ]
        assert self.values(rows) == [
            row for row in inside if row[0].end_ms >= earliest_end and row[0].start_ms <= latest_start
        ]
        assert self.values(reads.fetch_keys(lower, upper, reverse=reverse)) == inside

    @rule(first=BOUNDS, last=BOUNDS, level=LEVELS, reverse=st.booleans())
    def find_sessions_ended(self, first: int, last: int, level: IsolationLevel, reverse: bool) -> None:
        rows = self.store.reads(level).find_sessions_ended(first, last, reverse=reverse)
        assert self.values(rows) == [r for r in self.seen(level, reverse=reverse) if first <= r[0].end_ms <= last]

    @rule()
    def everything(self) -> None:
        seen = self.seen(UNCOMMITTED)
        assert list(self.store.all()) == seen
        assert list(self.store.all(reverse=True)) == seen[::-1]


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("kind", [SessionStore, TimestampedSessionStore])
def test_a_session_store_behaves_as_a_dict_with_a_stream_time(kind: type[SessionStore], persistent: bool) -> None:
    machine = type("Machine", (SessionMachine,), {"kind": kind, "persistent": persistent})
    run_state_machine_as_test(machine, settings=SETTINGS)
