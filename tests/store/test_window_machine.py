"""Random operations on window stores against a plain oracle."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from stateline_store import IsolationLevel, Reader, TimestampedWindowStore, WindowReads, WindowStore
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

SIZE = 10


class WindowMachine(WindowedMachine[WindowStore]):
    kind: type[WindowStore]
    duplicates: bool

    def make(self, *, persistent: bool) -> WindowStore:
        return self.kind(
            "s",
            retention_ms=RETENTION,
            window_size_ms=SIZE,
            retain_duplicates=self.duplicates,
            persistent=persistent,
        )

    def make_oracle(self) -> Oracle:
        return Oracle(RETENTION, ">qi")

    def check_all(self, reader: Reader, level: IsolationLevel) -> None:
        reads = WindowReads(reader, self.store.segments, SIZE, retain_duplicates=self.duplicates)
        rows = [(key, start, end, self.plain(value)) for (key, start, end), value in reads.all()]
        seen = [(key, start, start + SIZE, value) for (key, start, _), value in self.oracle.seen(level)]
        assert rows == seen
        for key in {row[0] for row in seen}:
            of_key = [(start, self.plain(value)) for start, value in reads.fetch(key, 0, 2**63)]
            assert of_key == [row[1::2] for row in seen if row[0] == key]

    @rule(key=KEYS, value=st.none() | VALUES, start=TIMES)
    def put(self, key: bytes, value: bytes | None, start: int) -> None:
        self.store.put(key, value, start)
        if self.duplicates and value is None:
            return
        self.oracle.now.sequence += self.duplicates
        self.oracle.put(key, start, self.oracle.now.sequence, value)

    @rule(key=KEYS, start=BOUNDS, level=LEVELS)
    def fetch_one(self, key: bytes, start: int, level: IsolationLevel) -> None:
        found = self.store.reads(level).fetch_one(key, start)
        expected = [value for row, value in self.oracle.seen(level) if row[:2] == (key, start)]
        assert (None if found is None else self.plain(found)) == (expected[-1] if expected else None)
        assert self.store.fetch_one(key, start) == self.store.fetch_one(key, start)

    @rule(key=KEYS, first=BOUNDS, last=BOUNDS, level=LEVELS, reverse=st.booleans())
    def fetch(self, key: bytes, first: int, last: int, level: IsolationLevel, reverse: bool) -> None:
        rows = self.store.reads(level).fetch(key, first, last, reverse=reverse)
        assert [(start, self.plain(value)) for start, value in rows] == [
            (row[1], value)
            for row, value in self.oracle.seen(level, reverse=reverse)
            if row[0] == key and first <= row[1] <= last
        ]

    @rule(
        lower=st.none() | KEYS,
        upper=st.none() | KEYS,
        first=BOUNDS,
        last=BOUNDS,
        level=LEVELS,
        reverse=st.booleans(),
    )
    def fetch_keys(
        self, lower: bytes | None, upper: bytes | None, first: int, last: int, level: IsolationLevel, reverse: bool
    ) -> None:
        rows = self.store.reads(level).fetch_keys(lower, upper, first, last, reverse=reverse)
        assert [(key, start, self.plain(value)) for (key, start, _), value in rows] == [
            (key, start, value)
            for (key, start, _), value in self.oracle.seen(level, reverse=reverse)
            if (lower is None or lower <= key) and (upper is None or key <= upper) and first <= start <= last
        ]

    @rule()
    def everything(self) -> None:
        seen = [((key, start, start + SIZE), value) for (key, start, _), value in self.oracle.seen(UNCOMMITTED)]
        assert list(self.store.all()) == list(self.store.fetch_all(-1, 2**63)) == seen
        assert list(self.store.all(reverse=True)) == seen[::-1]


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize(
    ("kind", "duplicates"), [(WindowStore, False), (TimestampedWindowStore, False), (WindowStore, True)]
)
def test_a_window_store_behaves_as_a_dict_with_a_stream_time(
    kind: type[WindowStore], duplicates: bool, persistent: bool
) -> None:
    names = {"kind": kind, "duplicates": duplicates, "persistent": persistent}
    run_state_machine_as_test(type("Machine", (WindowMachine,), names), settings=SETTINGS)
