"""What every session store does: plain and timestamped, in RocksDB and in memory."""

import struct
from collections.abc import Callable, Iterator

import pytest

from stateline_store import (
    Change,
    DamagedDataError,
    InvalidArgumentError,
    IsolationLevel,
    Position,
    SessionStore,
    StoreClosedError,
    StoreContext,
    TimestampedSessionStore,
    TopicPartition,
    ValueAndTimestamp,
    Windowed,
)

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
LAST = 2**63 - 1
RETENTION, INTERVAL = 10_000, 60_000
Make = Callable[..., SessionStore]

KINDS: dict[str, tuple[type[SessionStore], bool]] = {
    "session-rocksdb": (SessionStore, True),
    "session-memory": (SessionStore, False),
    "timestamped-rocksdb": (TimestampedSessionStore, True),
    "timestamped-memory": (TimestampedSessionStore, False),
}


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, context: StoreContext) -> Iterator[Make]:
    """Makes open stores of each kind in turn; each follows the one before in the same directory."""
    kind, persistent = KINDS[request.param]
    opened: list[SessionStore] = []

    def open_one(*, retention_ms: int = RETENTION) -> SessionStore:
        for store in opened:
            store.close()
        store = kind("s", retention_ms=retention_ms, persistent=persistent)
        store.init(context)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(make: Make) -> SessionStore:
    return make()


def put(store: SessionStore, *sessions: tuple[bytes, int, int]) -> None:
    """Sessions with their number as aggregate; the first half is committed."""
    for at, session in enumerate(sessions):
        if at == len(sessions) // 2:
            store.commit({})
        store.put(Windowed(*session), b"%d" % (at + 1))


def values(rows: Iterator[tuple[Windowed, bytes]]) -> bytes:
    return b"".join(value for _, value in rows)


def test_sessions_are_found_by_an_end_and_a_start(store: SessionStore) -> None:
    put(store, (b"a", 10, 10), (b"a", 500, 1000), (b"a", 1500, 2000), (b"a", 2500, 3000))
    assert list(store.find_sessions(b"a", 0, 1000)) == [
        (Windowed(b"a", 10, 10), b"1"),
        (Windowed(b"a", 500, 1000), b"2"),
    ]
    assert values(store.find_sessions(b"a", 0, 1000, reverse=True)) == b"21"
    assert values(store.find_sessions(b"a", 400, 600)) == b"2"
    assert values(store.find_sessions(b"a", 1000, 500)) == b"2"  # both bounds included
    assert values(store.find_sessions(b"a", 1001, 1499)) == b""
    assert values(store.find_sessions(b"a", -1, LAST)) == b"1234"
    assert values(store.find_sessions(b"a", 0, -1)) == values(store.find_sessions(b"a", 2**70, 2**70)) == b""


def test_sessions_to_merge_are_those_that_overlap(store: SessionStore) -> None:
    put(store, *((b"a", 100 * n + bool(n), 100 * n + 100) for n in range(5)))
    assert values(store.find_sessions(b"a", 150, 300)) == b"23"
    assert values(store.find_sessions(b"a", 150, 300, reverse=True)) == b"32"
    store.put(Windowed(b"b", 0, 0), b"x")
    store.put(Windowed(b"b", 1000, 1000), b"y")
    assert values(store.find_sessions(b"b", -1, 1000)) == b"xy"


def test_fetch_gives_every_session_of_one_key_by_its_end(store: SessionStore) -> None:
    put(store, (b"a", 100, 100), (b"a", 0, 0), (b"aa", 0, 0), (b"a", 10, 10), (b"a", 900, 1000), (b"a", 5, 1000))
    assert values(store.fetch(b"a")) == b"24165"
    assert values(store.fetch(b"a", reverse=True)) == b"56142"
    assert values(store.find_sessions_of_keys(b"a", b"a", 0, LAST)) == b"24165"
    assert values(store.fetch(b"b")) == b""


@pytest.mark.parametrize(
    ("lower", "upper", "found"),
    [
        (b"aa", b"bb", b"23456"),
        (None, b"bb", b"123456"),
        (b"aa", None, b"234567"),
        (None, None, b"1234567"),
        (b"c", None, b""),
        (b"b", b"b", b"5"),
    ],
)
@pytest.mark.parametrize("level", [COMMITTED, UNCOMMITTED])
def test_a_range_of_keys_includes_both_ends(
    store: SessionStore, lower: bytes | None, upper: bytes | None, found: bytes, level: IsolationLevel
) -> None:
    ends = [(b"a", 0), (b"aa", 10), (b"aaa", 100), (b"aaaa", 100), (b"b", 1000), (b"bb", 2000), (b"bbb", 3000)]
    put(store, *((key, max(0, end - 500), end) for key, end in ends))
    reads, cut = store.reads(level), 8 * store.timestamped
    seen = bytes(n for n in found if level is UNCOMMITTED or n <= b"3"[0])
    rows = [value[cut:] for _, value in reads.fetch_keys(lower, upper)]
    assert b"".join(rows) == seen
    assert [value[cut:] for _, value in reads.find_sessions_of_keys(lower, upper, 0, LAST, reverse=True)] == rows[::-1]
    assert values(store.fetch_keys(lower, upper)) == found


def test_lower_above_upper_is_empty_and_warns(store: SessionStore, caplog: pytest.LogCaptureFixture) -> None:
    put(store, (b"a", 0, 1), (b"b", 0, 1))
    assert list(store.find_sessions_of_keys(struct.pack(">i", -1), struct.pack(">i", 1), 0, 10)) == []
    assert "is empty" in caplog.text


def test_sessions_of_all_keys_are_found_by_when_they_ended(store: SessionStore) -> None:
    put(store, (b"a", 0, 0), (b"b", 10, 20), (b"c", 30, 40))
    spans = [(0, 0), (0, 20), (0, 19), (1, 20), (19, 41), (0, 40), (-1, LAST)]
    found = [values(store.find_sessions_ended(*span)) for span in spans]
    assert found == [b"1", b"12", b"1", b"2", b"23", b"123", b"123"]
    assert values(store.find_sessions_ended(0, 40, reverse=True)) == b"321"


def test_rows_come_by_segment_of_their_end_then_by_key_end_and_start(store: SessionStore) -> None:
    put(
        store,
        (b"b", 0, 111_000),
        (b"a", 9, 112_000),
        (b"a", 8, 112_000),
        (b"b", 0, 110_500),
        (b"a", 0, 111_500),
        (b"a", 0, 120_000),
    )
    assert values(store.all()) == b"532416"
    assert values(store.all(reverse=True)) == b"614235"


def test_an_exact_session_is_fetched(store: SessionStore) -> None:
    put(store, (b"a", 0, 4), (b"aa", 0, 3), (b"aa", 0, 4), (b"aa", 1, 4), (b"aaa", 0, 4))
    assert store.fetch_session(b"aa", 0, 4) == b"3"
    assert store.fetch_session(b"a", 0, 3) is None
    for start, end in [(4, 0), (-1, 4), (0, LAST), (0, -1)]:
        assert store.fetch_session(b"aa", start, end) is None


def test_a_removed_session_and_one_put_with_none_are_gone(store: SessionStore) -> None:
    put(store, (b"a", 0, 1000), (b"a", 1500, 2500), (b"b", 0, 10), (b"c", 0, 10))
    store.remove(Windowed(b"a", 0, 1000))
    store.put(Windowed(b"b", 0, 10), None)
    store.remove(Windowed(b"never", 0, 1))
    assert values(store.all()) == b"24"
    store.commit({})
    assert values(store.all()) == b"24"
    assert len(list(store.reader(COMMITTED).range(None, None))) == 2


@pytest.mark.parametrize("suffix", [b"", bytes(1), bytes(8), bytes(16), bytes(24), b"\x00\x01", b"\xff" * 16])
def test_a_key_that_begins_like_another_is_not_taken_for_it(store: SessionStore, suffix: bytes) -> None:
    keys = sorted({b"\0" + suffix, b"\0", b"\0\0", b"\0\0\0"})
    for n, key in enumerate(keys * 3):
        store.put(Windowed(key, n, 100), b"%d" % n)
    for n, key in enumerate(keys):
        mine = b"".join(b"%d" % at for at in range(n, 3 * len(keys), len(keys)))
        assert values(store.fetch(key)) == values(store.fetch_keys(key, key)) == mine
        assert {session.key for session, _ in store.fetch_keys(None, key)} == set(keys[: n + 1])


def test_exact_keys_are_found_over_a_retention_of_most_of_time(make: Make) -> None:
    long = 0x7A00000000000000
    store = make(retention_ms=long)
    put(store, (b"a", 0, 0), (b"aa", 0, 10), (b"a", 10, 20), (b"aa", 10, 20), (b"a", long - 2, long - 1))
    assert values(store.find_sessions(b"a", 0, LAST)) == b"135"
    assert values(store.find_sessions(b"aa", 0, LAST)) == b"24"
    assert values(store.find_sessions_of_keys(b"a", b"aa", 0, LAST)) == b"13245"
    assert values(store.find_sessions_of_keys(b"a", b"aa", 10, 0)) == b"2"


@pytest.mark.parametrize("level", [COMMITTED, UNCOMMITTED])
def test_an_expired_put_is_dropped_and_counted_and_leaves_the_position_alone(
    store: SessionStore, level: IsolationLevel
) -> None:
    store.put(Windowed(b"initial", 0, 2 * INTERVAL), b"1")
    store.commit({}, position=Position.of({TopicPartition("input", 0): 1}))
    store.put(Windowed(b"late", 0, 0), b"2")
    store.put(Windowed(b"late", 0, 1), None)
    store.remove(Windowed(b"late", 0, 2))  # nothing is lost by it, so it does not count
    store.put(Windowed(b"in time", 0, 2 * INTERVAL), b"3")
    assert (store.dropped_records, store.staged_records) == (2, 1)
    assert store.position(level) == Position.of({TopicPartition("input", 0): 1})


def test_reads_see_nothing_that_ended_a_retention_ago(store: SessionStore) -> None:
    store.put(Windowed(b"a", 0, 0), b"1")
    store.put(Windowed(b"aa", 0, INTERVAL), b"2")
    store.put(Windowed(b"a", 10, INTERVAL + 1), b"3")
    store.put(Windowed(b"aa", 10, INTERVAL + RETENTION), b"4")
    assert values(store.all()) == values(store.fetch_keys(b"a", b"b")) == b"34"
    assert store.fetch_session(b"aa", 0, INTERVAL) is None
    assert store.fetch_session(b"a", 10, INTERVAL + 1) == b"3"
    assert values(store.find_sessions(b"aa", 0, LAST)) == b"4"


def test_a_commit_drops_segments_that_have_expired_and_no_others(store: SessionStore) -> None:
    put(store, (b"a", 0, 0), (b"a", 0, INTERVAL), (b"a", 0, 2 * INTERVAL))
    store.commit({})
    rows = store.reader(COMMITTED).range(None, None)
    assert [key[:8] for key, _ in rows] == [struct.pack(">q", segment) for segment in (1, 2)]
    store.put(Windowed(b"a", 0, 9 * INTERVAL), b"9")
    store.commit({})
    assert [key[:8] for key, _ in store.reader(COMMITTED).range(None, None)] == [struct.pack(">q", 9)]


def test_stream_time_is_kept_across_restarts_and_goes_back_at_a_rollback(make: Make) -> None:
    store = make()
    store.put(Windowed(b"a", 0, 5 * INTERVAL), b"1")
    store.commit({})
    store.remove(Windowed(b"a", 0, 9 * INTERVAL))
    assert (store.stream_time_ms, values(store.all())) == (9 * INTERVAL, b"")
    store.rollback()
    assert (store.stream_time_ms, values(store.all())) == (5 * INTERVAL, b"1")
    store = make()
    assert store.stream_time_ms == (5 * INTERVAL if store.persistent else -1)


@pytest.mark.parametrize("level", [COMMITTED, UNCOMMITTED])
def test_an_open_iterator_keeps_what_it_saw_when_a_commit_drops_its_segment(
    store: SessionStore, level: IsolationLevel
) -> None:
    put(store, (b"a", 0, 1), (b"b", 0, 2), (b"c", 0, 3), (b"d", 0, 4))
    expected = list(store.reads(level).all())
    started, fresh = store.reads(level).all(), store.reads(level).all(reverse=True)
    first = next(started)
    store.remove(Windowed(b"a", 0, 1))
    store.put(Windowed(b"z", 0, 99 * INTERVAL), b"9")
    store.commit({})
    assert values(store.all()) == b"9"
    assert [first, *started] == expected
    assert list(fresh) == expected[::-1]


@pytest.mark.parametrize("level", [COMMITTED, UNCOMMITTED])
def test_closing_under_an_iterator_never_looks_like_the_end_of_data(store: SessionStore, level: IsolationLevel) -> None:
    put(store, (b"a", 0, 1), (b"a", 0, 2), (b"a", 0, 3), (b"a", 0, 4))
    reads = store.reads(level)
    scans = [reads.all(), reads.fetch(b"a"), reads.find_sessions_ended(0, 9)]
    next(scans[0])
    store.close()
    for scan in scans:
        with pytest.raises(StoreClosedError):
            list(scan)
    for read in (
        lambda: reads.find_sessions(b"a", LAST, 0),
        lambda: reads.fetch_session(b"a", 0, LAST),
        lambda: store.fetch_session(b"a", 0, LAST),
        lambda: store.fetch(b"a"),
        lambda: store.put(Windowed(b"a", 0, 1), b"1"),
        lambda: store.remove(Windowed(b"a", 0, 1)),
        lambda: store.restore([]),
    ):
        with pytest.raises(StoreClosedError):
            read()


@pytest.mark.parametrize(
    ("session", "aggregate"),
    [
        (Windowed(b"a", 2, 1), b"1"),
        (Windowed(b"a", -1, 1), b"1"),
        (Windowed(b"a", 0, 2**63), b"1"),
        (("a", 0, 1), b"1"),
        ((None, 0, 1), b"1"),
        ((b"a", 0, None), b"1"),
        (None, b"1"),
        (Windowed(b"a", 0, 1), "1"),
    ],
)
def test_a_refused_put_changes_nothing(store: SessionStore, session: Windowed, aggregate: bytes) -> None:
    with pytest.raises(InvalidArgumentError):
        store.put(session, aggregate)
    if isinstance(aggregate, bytes):
        with pytest.raises(InvalidArgumentError):
            store.remove(session)
    assert (store.staged_records, store.stream_time_ms, store.dropped_records) == (0, -1, 0)


def test_reads_refuse_keys_that_are_not_bytes(store: SessionStore) -> None:
    for read in (
        lambda: store.fetch(None),  # type: ignore[arg-type]  # the mistake under test
        lambda: store.find_sessions("a", 0, 1),  # type: ignore[arg-type]  # the mistake under test
        lambda: store.fetch_keys(None, "a"),  # type: ignore[arg-type]  # the mistake under test
        lambda: store.fetch_session("a", 0, 1),  # type: ignore[arg-type]  # the mistake under test
    ):
        with pytest.raises(InvalidArgumentError):
            read()


# -- changelog ------------------------------------------------------------------------------------------


def test_changelog_keys_are_those_of_kafka_streams(store: SessionStore) -> None:
    store.put(Windowed(b"k", 1, 258), b"v")
    store.remove(Windowed(b"k", 2, 259))
    time = -1 if store.timestamped else None
    assert list(store.staged_changes()) == [
        Change(b"k" + bytes.fromhex("0000000000000102 0000000000000001"), b"v", time),
        Change(b"k" + bytes.fromhex("0000000000000103 0000000000000002"), None, None),
    ]


def test_a_store_restored_from_a_changelog_answers_as_the_one_that_wrote_it(make: Make) -> None:
    store = make()
    changelog: list[Change] = []
    for n in range(3):
        for key in (b"a", b"b", b"c"):
            store.put(Windowed(key, n, n * INTERVAL // 12), b"%d" % n)
        before = max(n - 1, 0)
        store.remove(Windowed(b"b", before, before * INTERVAL // 12))
        changelog += store.staged_changes()
        store.commit({})
    rows = list(store.all())
    assert len(rows) == 5  # of nine two are removed and two have expired
    store.close()
    store.wipe()
    store = make()
    store.restore((key, value, -1 if time is None else time) for key, value, time in changelog)
    assert list(store.all()) == rows
    store.commit({})
    assert list(store.all()) == rows


def test_restored_records_of_expired_segments_are_left_out_and_move_stream_time(store: SessionStore) -> None:
    def change(end: int) -> tuple[bytes, bytes, int]:
        return b"a" + struct.pack(">qq", end, 0), b"%d" % end, end

    store.restore([change(0), change(9 * INTERVAL), change(9 * INTERVAL - 1), change(8 * INTERVAL - 1)])
    assert (store.staged_records, store.dropped_records, store.stream_time_ms) == (2, 0, 9 * INTERVAL)
    assert values(store.all()) == b"%d%d" % (9 * INTERVAL - 1, 9 * INTERVAL)


@pytest.mark.parametrize("key", [b"", bytes(15), b"k" + struct.pack(">qq", -1, 0)])
def test_a_changelog_that_is_not_of_a_session_store_is_refused_as_a_whole(store: SessionStore, key: bytes) -> None:
    with pytest.raises(DamagedDataError):
        store.restore([(b"a" + struct.pack(">qq", 9, 0), b"1", 9), (key, b"2", 9)])
    assert (store.staged_records, store.stream_time_ms) == (0, -1)


# -- timestamps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [True, False])
def test_a_timestamped_store_gives_aggregate_and_timestamp(context: StoreContext, persistent: bool) -> None:
    store = TimestampedSessionStore("s", retention_ms=RETENTION, persistent=persistent)
    store.init(context)
    a, b, c = Windowed(b"a", 0, 5), Windowed(b"a", 7, 9), Windowed(b"b", 0, 9)
    store.put_with_timestamp(a, b"1", 17)
    store.commit({})
    store.put_with_timestamp(b, b"2", 18)
    store.put(c, b"3")
    rows = [(a, ValueAndTimestamp(b"1", 17)), (b, ValueAndTimestamp(b"2", 18)), (c, ValueAndTimestamp(b"3", -1))]
    assert list(store.all_with_timestamp()) == list(store.fetch_keys_with_timestamp(None, b"b")) == rows
    assert list(store.all_with_timestamp(reverse=True)) == rows[::-1]
    assert list(store.fetch_with_timestamp(b"a")) == rows[:2]
    assert list(store.find_sessions_with_timestamp(b"a", 6, 7)) == rows[1:2]
    assert list(store.find_sessions_of_keys_with_timestamp(b"a", None, 6, 7)) == rows[1:]
    assert store.fetch_session_with_timestamp(*a) == (b"1", 17)
    assert store.fetch_session_with_timestamp(b"a", 0, 6) is None
    assert [change.timestamp for change in store.staged_changes()] == [18, -1]
    with pytest.raises(InvalidArgumentError):
        store.put_with_timestamp(a, b"1", 2**63)
    store.close()
