"""Segments of a store whose retention was raised: as long as the new one's, with all rows in them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stateline_store import (
    IsolationLevel,
    SecondaryReader,
    SessionStore,
    StoreContext,
    TimestampedWindowStore,
    TransactionalStore,
    VersionedReads,
    VersionedStore,
    Windowed,
    WindowStore,
)
from stateline_store.files.directory import notice_path, store_path
from stateline_store.rows.segments import EVERY_SEGMENT, segment_of
from support.run.length import long_or_short

MINUTE, DAY = 60_000, 86_400_000
S = 10
KEYS = (b"a", b"b", b"bb")
PUTS = st.lists(
    st.tuples(st.sampled_from(KEYS), st.none() | st.binary(max_size=2), st.integers(0, 40 * S)), max_size=60
)


def versioned(interval_ms: int, *, persistent: bool = True) -> VersionedStore:
    return VersionedStore("s", history_retention_ms=30 * S, segment_interval_ms=interval_ms, persistent=persistent)


def segments(store: TransactionalStore) -> set[int]:
    with store.reader(IsolationLevel.READ_UNCOMMITTED).scan(EVERY_SEGMENT) as rows:
        return {segment_of(key) for key, _ in rows}


def history(store: VersionedStore) -> list[object]:
    moments = [store.get_as_of(key, at) for key in KEYS for at in range(-1, 41 * S, S // 2)]
    return [store.get(key) for key in KEYS] + moments + [list(store.get_versions(key)) for key in KEYS]


@example([(b"a", None, 5), (b"a", b"v", 12), (b"a", None, 25), (b"a", b"w", 47)], [(b"a", b"x", 7)], 8 * S)
@example([(b"a", None, 5), (b"a", None, 15), (b"a", b"v", 25), (b"a", None, 35)], [(b"a", b"x", 30)], 8 * S)
@settings(max_examples=long_or_short(60, 25), deadline=None)
@given(before=PUTS, after=PUTS, interval_ms=st.sampled_from([8 * S, 8 * S + 3, 40 * S]))
def test_versions_are_the_same_in_longer_segments_and_go_on_the_same(
    before: list[tuple[bytes, bytes | None, int]], after: list[tuple[bytes, bytes | None, int]], interval_ms: int
) -> None:
    with tempfile.TemporaryDirectory() as directory, closing(versioned(interval_ms, persistent=False)) as like:
        context = StoreContext("0_0", Path(directory))
        like.init(context)
        with closing(versioned(S)) as short:
            short.init(context)
            for put in before:
                short.put(*put)
                like.put(*put)
            short.commit({})
            seen = history(short)
        with closing(versioned(interval_ms)) as longer:
            longer.init(context)
            assert longer.segments.interval_ms == interval_ms
            assert history(longer) == seen == history(like)
            for put in after:
                assert longer.put(*put) == like.put(*put)
            longer.commit({})
            assert history(longer) == history(like)


def windows(retention_ms: int) -> WindowStore:
    return WindowStore("s", retention_ms=retention_ms, window_size_ms=1000)


def stamped(retention_ms: int) -> TimestampedWindowStore:
    return TimestampedWindowStore("s", retention_ms=retention_ms, window_size_ms=1000)


@pytest.mark.parametrize("make", [windows, stamped])
def test_windows_move_to_longer_segments(make: Callable[[int], WindowStore], tmp_path: Path) -> None:
    context = StoreContext("0_0", tmp_path)
    with closing(make(10 * MINUTE)) as store:
        store.init(context)
        for start_ms in range(0, 10 * MINUTE, MINUTE // 2):
            store.put(b"k%d" % (start_ms % 7), b"12345678%d" % start_ms, start_ms)
        store.commit({})
        seen = sorted(store.all())
        assert segments(store) == {0, 1}
    with closing(make(DAY)) as longer:
        longer.init(context)
        assert (sorted(longer.all()), segments(longer)) == (seen, {0})
        assert longer.fetch_one(b"k0", 0) == b"123456780"


def test_sessions_move_to_longer_segments_by_their_ends(tmp_path: Path) -> None:
    context = StoreContext("0_0", tmp_path)
    sessions = [Windowed(b"k", at, at + MINUTE) for at in range(0, 100 * MINUTE, 7 * MINUTE)]
    with closing(SessionStore("s", retention_ms=100 * MINUTE)) as store:
        store.init(context)
        for session in sessions:
            store.put(session, b"v")
        store.commit({})
    with closing(SessionStore("s", retention_ms=30 * DAY)) as longer:
        longer.init(context)
        assert [session for session, _ in longer.all()] == sessions
        assert segments(longer) == {0}


def busy(context: StoreContext) -> None:
    with closing(versioned(S)) as store:
        store.init(context)
        for at_ms in range(0, 30 * S, S // 2):
            store.put(b"k", b"%d" % at_ms, at_ms)
        store.commit({})


def test_a_reader_in_another_process_follows(tmp_path: Path) -> None:
    context = StoreContext("0_0", tmp_path)
    busy(context)
    at = store_path(tmp_path, "s", timestamped=False), notice_path(tmp_path, "s", timestamped=False)
    with closing(SecondaryReader(*at, tmp_path / "scratch")) as reader, closing(versioned(10 * S)) as longer:
        longer.init(context)
        reader.refresh()
        assert reader.layout.segment_interval_ms == 10 * S
        record = VersionedReads(reader, longer.segments).get_as_of(b"k", 15)
        assert record is not None
        assert record.value == b"15"


def test_a_store_that_is_too_large_keeps_its_segments_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    context = StoreContext("0_0", tmp_path)
    busy(context)
    monkeypatch.setattr("stateline_store.rocksdb.segment_lengths.MOST_BYTES", 100)
    with closing(versioned(10 * S)) as longer:
        longer.init(context)
        assert longer.segments.interval_ms == S
        assert longer.get_as_of(b"k", 15) == (b"15", 15, 20)
    assert "give it another name" in caplog.text
