"""What every window store does: plain and timestamped, in RocksDB and in memory."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from stateline_store import (
    Change,
    DamagedDataError,
    InvalidArgumentError,
    IsolationLevel,
    Position,
    StoreClosedError,
    StoreContext,
    TimestampedWindowStore,
    TopicPartition,
    ValueAndTimestamp,
    Windowed,
    WindowStore,
)
from stateline_store.rocksdb.engine import RocksDBEngine

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
LAST = 2**63 - 1
SIZE, INTERVAL = 3, 60_000
RETENTION = 2 * INTERVAL
START = INTERVAL - 4  # of the first windows, so that two segments are in play
KEYS = [struct.pack(">i", n) for n in range(6)]
Make = Callable[..., WindowStore]

KINDS: dict[str, tuple[type[WindowStore], bool]] = {
    "window-rocksdb": (WindowStore, True),
    "window-memory": (WindowStore, False),
    "timestamped-rocksdb": (TimestampedWindowStore, True),
    "timestamped-memory": (TimestampedWindowStore, False),
}


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, context: StoreContext) -> Iterator[Make]:
    """Makes open stores of each kind in turn; each follows the one before in the same directory."""
    kind, persistent = KINDS[request.param]
    opened: list[WindowStore] = []

    def open_one(*, duplicates: bool = False, retention_ms: int = RETENTION, size: int = SIZE) -> WindowStore:
        for store in opened:
            store.close()
        store = kind(
            "s", retention_ms=retention_ms, window_size_ms=size, retain_duplicates=duplicates, persistent=persistent
        )
        store.init(context)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(make: Make) -> WindowStore:
    return make()


def fill(store: WindowStore) -> None:
    """Six windows, half of them committed: values 0 … 5 of the keys of that number."""
    for at, offset in enumerate([0, 1, 2, 2, 4, 5]):
        store.put(KEYS[at], b"%d" % at, START + offset)
        if at == 2:
            store.commit({})


def values(rows: Iterator[tuple[object, bytes]]) -> bytes:
    return b"".join(value for _, value in rows)


def stored_rows(store: WindowStore) -> int:
    """Rows that lie in the store, readable or not."""
    return len(list(store.reader(COMMITTED).range(None, None)))


def test_a_window_is_fetched_by_key_and_start(store: WindowStore) -> None:
    fill(store)
    assert store.fetch_one(KEYS[2], START + 2) == b"2"
    assert store.fetch_one(KEYS[2], START + 3) is None
    assert store.fetch_one(KEYS[1], START + 2) is None
    assert store.fetch_one(KEYS[1], -1) is None
    assert store.fetch_one(KEYS[1], LAST) is None
    store.put(KEYS[2], b"new", START + 2)
    assert store.fetch_one(KEYS[2], START + 2) == b"new"
    store.rollback()
    assert store.fetch_one(KEYS[2], START + 2) == b"2"


@pytest.mark.parametrize("level", [COMMITTED, UNCOMMITTED])
def test_a_reader_sees_what_its_level_shows(store: WindowStore, level: IsolationLevel) -> None:
    fill(store)
    seen = 3 if level is COMMITTED else 6
    reads = store.reads(level)
    assert [row[0].key for row in reads.all()] == KEYS[:seen]
    assert (reads.fetch_one(KEYS[5], START + 5) is None) is (level is COMMITTED)
    store.commit({})
    assert [row[0].key for row in reads.all()] == KEYS


def test_fetch_gives_the_windows_of_one_key_in_time_order_with_both_bounds_included(store: WindowStore) -> None:
    fill(store)
    for offset in (7, 3, 5, 4, 8, 6):
        store.put(KEYS[2], b"+%d" % offset, START + offset)
    rows = [(START + 2, b"2"), *((START + n, b"+%d" % n) for n in range(3, 9))]
    for first in range(-1, 12):
        for last in range(-1, 12):
            expected = [row for row in rows if first <= row[0] - START <= last]
            assert list(store.fetch(KEYS[2], START + first, START + last)) == expected
            assert list(store.fetch(KEYS[2], START + first, START + last, reverse=True)) == expected[::-1]


def test_a_negative_from_means_the_beginning_and_a_to_beyond_all_time_means_the_end(store: WindowStore) -> None:
    store.put(b"a", b"1", 0)
    store.put(b"a", b"2", 5)
    assert values(store.fetch(b"a", -100, 2**80)) == values(store.fetch_all(-1, LAST)) == b"12"
    assert values(store.fetch(b"a", -100, -1)) == values(store.fetch_all(2**80, 2**81)) == b""


def test_all_and_fetch_all_are_in_time_order_over_segments(store: WindowStore) -> None:
    fill(store)
    assert [row[0].key for row in store.all()] == KEYS
    assert [row[0].key for row in store.all(reverse=True)] == KEYS[::-1]
    assert values(store.fetch_all(START + 1, START + 4)) == b"1234"
    assert values(store.fetch_all(START, START + 3)) == b"0123"
    assert values(store.fetch_all(START + 1, START + 5, reverse=True)) == b"54321"


def test_within_a_segment_rows_come_by_key_and_segments_come_by_time(store: WindowStore) -> None:
    for key, start in [(b"b", INTERVAL), (b"c", 0), (b"a", INTERVAL + 1), (b"b", 1)]:
        store.put(key, key, start)
    assert values(store.all()) == b"bcab"
    assert values(store.fetch_keys(b"a", b"b", 0, LAST)) == b"bab"


@pytest.mark.parametrize(
    ("lower", "upper", "first", "last", "found"),
    [
        (0, 1, -SIZE, SIZE, b"01"),
        (1, 1, -SIZE, SIZE, b"1"),
        (1, 3, -SIZE, SIZE, b"123"),
        (0, 5, -SIZE, SIZE, b"0123"),
        (0, 5, -SIZE, SIZE + 5, b"012345"),
        (0, 5, 2, SIZE + 5, b"2345"),
        (4, 5, 2, SIZE, b""),
        (0, 3, 3, SIZE + 5, b""),
        (None, 2, -SIZE, SIZE + 2, b"012"),
        (2, None, -SIZE, SIZE + 5, b"2345"),
        (None, None, -SIZE, SIZE + 5, b"012345"),
    ],
)
def test_a_range_of_keys_and_of_time_includes_its_bounds(
    store: WindowStore, lower: int | None, upper: int | None, first: int, last: int, found: bytes
) -> None:
    fill(store)
    low, high = (None if n is None else KEYS[n] for n in (lower, upper))
    assert values(store.fetch_keys(low, high, START + first, START + last)) == found
    assert values(store.fetch_keys(low, high, START + first, START + last, reverse=True)) == found[::-1]


def test_lower_above_upper_is_empty_and_warns(store: WindowStore, caplog: pytest.LogCaptureFixture) -> None:
    fill(store)
    assert list(store.fetch_keys(struct.pack(">i", -1), KEYS[1], 0, LAST)) == []
    assert "is empty" in caplog.text


@pytest.mark.parametrize("suffix", [b"", bytes(1), bytes(8), bytes(12), bytes(20), b"\x00\x01", b"\xff" * 12])
def test_a_key_that_begins_like_another_is_not_taken_for_it(store: WindowStore, suffix: bytes) -> None:
    keys = sorted({b"a" + suffix, b"a", b"a\x00", b"a\x00\x00", b"aa"})
    for start in (0, 1, INTERVAL - 1):
        for key in keys:
            store.put(key, b"%d" % start, start)
    for key in keys:
        assert values(store.fetch(key, 0, LAST)) == values(store.fetch_keys(key, key, 0, LAST)) == b"0159999"
        below = [row[0] for row in store.fetch_keys(None, key, 0, LAST)]
        assert {row.key for row in below} == {k for k in keys if k <= key}
        assert len(below) == 3 * len({k for k in keys if k <= key})


def test_exact_keys_are_found_over_a_retention_of_most_of_time(make: Make) -> None:
    long = 0x7A00000000000000
    store = make(retention_ms=long, size=long)
    for key, value, start in [
        (b"a", b"1", 0),
        (b"aa", b"2", 0),
        (b"a", b"3", 1),
        (b"aa", b"4", 1),
        (b"a", b"5", long - 1),
    ]:
        store.put(key, value, start)
    assert values(store.fetch(b"a", 0, LAST)) == b"135"
    assert list(store.fetch_keys(b"a", b"a", 0, LAST)) == [
        (Windowed(b"a", 0, long), b"1"),
        (Windowed(b"a", 1, long + 1), b"3"),
        (Windowed(b"a", long - 1, LAST), b"5"),  # its end would be beyond all time
    ]
    assert values(store.fetch_keys(b"aa", b"aa", 0, LAST)) == b"24"


def test_none_deletes_a_window(store: WindowStore) -> None:
    fill(store)
    store.put(KEYS[1], None, START + 1)
    store.put(KEYS[3], None, START + 2)
    store.put(KEYS[0], None, START + 1)  # there is none
    assert values(store.all()) == b"0245"
    store.commit({})
    assert values(store.all()) == b"0245"
    assert stored_rows(store) == 4


def test_empty_bytes_are_a_value_and_an_empty_key_is_a_key(store: WindowStore) -> None:
    store.put(b"", b"", 7)
    assert store.fetch_one(b"", 7) == b""
    assert list(store.all()) == [(Windowed(b"", 7, 7 + SIZE), b"")]
    assert list(store.fetch(b"", 0, 10)) == [(7, b"")]


@pytest.mark.parametrize("level", [COMMITTED, UNCOMMITTED])
def test_an_expired_put_is_dropped_and_counted_and_leaves_the_position_alone(
    store: WindowStore, level: IsolationLevel
) -> None:
    store.put(b"a", b"1", 2 * RETENTION)
    store.commit({}, position=Position.of({TopicPartition("input", 0): 1}))
    store.put(b"a", b"late", RETENTION - 1)
    store.put(b"a", b"in time", RETENTION)  # its segment is not all too old
    assert (store.dropped_records, store.staged_records) == (1, 1)
    assert store.position(level) == Position.of({TopicPartition("input", 0): 1})
    assert store.fetch_one(b"a", RETENTION - 1) is None
    store.close()
    assert store.dropped_records == 1


def test_reads_see_nothing_of_the_retention_or_older(store: WindowStore) -> None:
    for start in (0, 1, 2):
        store.put(b"a", b"%d" % start, start)
    store.commit({})
    store.put(b"b", b"x", RETENTION)  # in the last millisecond of window 0's life; its segment lives on
    assert values(store.fetch(b"a", 0, LAST)) == values(store.fetch_all(0, 5)) == b"12"
    assert values(store.all()) == b"12x"
    assert (store.fetch_one(b"a", 0), store.fetch_one(b"a", 1)) == (None, b"1")
    assert len(list(store.reads(COMMITTED).all())) == 3  # stream time is not committed either
    store.put(b"b", b"y", 4 * RETENTION)
    assert list(store.fetch(b"a", 0, 10)) == []
    assert list(store.fetch_keys(b"a", b"a", 0, 10)) == []
    assert store.dropped_records == 0


def test_a_commit_drops_segments_that_have_expired_and_no_others(store: WindowStore) -> None:
    for segment in range(4):
        store.put(b"a", b"%d" % segment, segment * INTERVAL)
    store.commit({})  # the first has expired in the commit that brings it
    assert stored_rows(store) == 3
    store.put(b"a", b"4", 4 * INTERVAL - 1)
    store.commit({})
    assert stored_rows(store) == 4
    store.put(b"a", b"5", 5 * INTERVAL)
    assert stored_rows(store) == 4
    store.rollback()
    store.commit({})
    assert stored_rows(store) == 4
    store.put(b"b", b"6", 5 * INTERVAL)
    store.commit({})
    assert values(store.all()) == b"46"
    assert stored_rows(store) == 3  # one of them older than the retention, in a segment that is not
    store.put(b"b", b"7", 50 * INTERVAL)
    store.commit({})
    assert stored_rows(store) == 1


def test_stored_keys_are_those_that_puts_write_and_rows_are_staged_under(store: WindowStore) -> None:
    windows = [(b"", 0), (b"a", START), (b"abc", 7 * INTERVAL)]
    for key, start in windows:
        store.put(key, b"v", start)
    keys = store.stored_keys(windows)
    assert keys == [key for key, _ in store.staged()]
    assert store.with_segments(key[8:] for key in keys) == keys
    assert all(row is not None and row.endswith(b"v") for row in store.get_rows(keys))
    store.put_rows(dict.fromkeys(keys, None), 8 * INTERVAL)
    assert list(store.all()) == []
    assert store.stream_time_ms == 8 * INTERVAL


def test_rows_between_times_are_there_until_a_commit_has_removed_them(store: WindowStore) -> None:
    def between(first_ms: int, last_ms: int) -> bytes:
        with store.rows_between(first_ms, last_ms) as rows:
            return b"".join(row[-1:] for _, row in rows)

    for at, start in enumerate([START, START + INTERVAL, START + 2 * INTERVAL]):
        store.put(b"k", b"%d" % at, start)
        if at == 1:
            store.commit({})
    assert between(-5, LAST) == b"012"
    assert between(START + INTERVAL, START + 2 * INTERVAL) == b"12"
    store.put(b"k", b"3", 100 * INTERVAL)
    assert values(store.all()) == b"3"
    assert between(0, LAST) == b"0123"
    store.commit({})
    assert between(0, LAST) == b"3"


def test_a_put_after_expiry_is_kept(store: WindowStore) -> None:
    store.put(b"a", b"1", 0)
    store.commit({})
    store.put(b"a", b"2", 10 * RETENTION)
    store.commit({})
    store.put(b"a", b"3", 10 * RETENTION - 1)
    store.commit({})
    assert values(store.all()) == b"32"
    store.put(b"a", b"4", 9 * RETENTION - 1)
    store.put(b"a", None, 9 * RETENTION - 1)
    assert (store.dropped_records, store.staged_records) == (2, 0)


def test_stream_time_is_kept_across_restarts_and_goes_back_at_a_rollback(make: Make) -> None:
    store = make()
    assert store.stream_time_ms == -1
    store.put(b"a", b"1", 5 * RETENTION)
    store.commit({})
    store.put(b"a", b"2", 9 * RETENTION)
    assert (store.stream_time_ms, store.reader(COMMITTED).stream_time_ms) == (9 * RETENTION, 5 * RETENTION)
    store.rollback()
    assert (store.stream_time_ms, values(store.all())) == (5 * RETENTION, b"1")
    store.put(b"a", b"2", 9 * RETENTION)
    store = make()
    assert store.stream_time_ms == (5 * RETENTION if store.persistent else -1)
    store.put(b"a", b"late", 0)
    assert store.dropped_records == store.persistent


def test_what_a_longer_retention_left_behind_goes_when_segments_roll(make: Make) -> None:
    store = make(retention_ms=RETENTION)
    store.put(b"a", b"1", 0)
    store.put(b"a", b"2", RETENTION)
    store.commit({})
    if not store.persistent:
        return
    store = make(retention_ms=INTERVAL)  # the same segments
    assert (values(store.all()), stored_rows(store)) == (b"2", 2)
    store.put(b"a", b"3", RETENTION + INTERVAL)
    store.commit({})
    assert stored_rows(store) == 2


@pytest.mark.parametrize("level", [COMMITTED, UNCOMMITTED])
def test_an_open_iterator_keeps_what_it_saw_when_a_commit_drops_its_segment(
    store: WindowStore, level: IsolationLevel
) -> None:
    fill(store)
    expected = list(store.reads(level).all())
    started, fresh = store.reads(level).all(), store.reads(level).all(reverse=True)
    first = next(started)
    store.put(KEYS[0], None, START)
    store.put(b"z", b"9", 99 * INTERVAL)
    store.commit({})
    assert values(store.all()) == b"9"
    assert [first, *started] == expected
    assert list(fresh) == expected[::-1]


def test_the_owner_may_write_while_iterating(store: WindowStore) -> None:
    fill(store)
    for (key, start, _), _ in store.all():
        store.put(key, None, start)
        store.put(key, b"x", start + INTERVAL)
        store.commit({})
    assert values(store.all()) == b"xxxxxx"


def test_an_iterator_closed_early_leaves_everything_in_place(store: WindowStore) -> None:
    fill(store)
    with store.all() as rows:
        assert next(rows)[1] == b"0"
    assert list(rows) == []
    assert values(store.all()) == b"012345"


@pytest.mark.parametrize("level", [COMMITTED, UNCOMMITTED])
def test_closing_under_an_iterator_never_looks_like_the_end_of_data(store: WindowStore, level: IsolationLevel) -> None:
    fill(store)
    reads = store.reads(level)
    scans = [reads.all(), reads.fetch(KEYS[2], 0, LAST), reads.all(reverse=True)]
    next(scans[0])
    store.close()
    for scan in scans:
        with pytest.raises(StoreClosedError):
            list(scan)
    for read in (
        lambda: reads.all(),
        lambda: reads.fetch(b"a", 5, 4),
        lambda: reads.fetch_one(b"a", LAST),
        lambda: store.fetch_one(b"a", LAST),
        lambda: store.fetch_all(5, 4),
        lambda: store.put(b"a", b"1", 1),
        lambda: store.restore([]),
    ):
        with pytest.raises(StoreClosedError):
            read()


@pytest.mark.parametrize(
    ("key", "value", "start"),
    [
        (b"a", b"1", -1),
        (b"a", b"1", 2**63),
        (b"a", b"1", "1"),
        (b"a", b"1", None),
        ("a", b"1", 1),
        (None, b"1", 1),
        (b"a", "1", 1),
        (b"a", 1, 1),
    ],
)
def test_a_refused_put_changes_nothing(store: WindowStore, key: bytes, value: bytes, start: int) -> None:
    with pytest.raises(InvalidArgumentError):
        store.put(key, value, start)
    assert (store.staged_records, store.stream_time_ms, store.dropped_records) == (0, -1, 0)


def test_reads_refuse_keys_that_are_not_bytes(store: WindowStore) -> None:
    fill(store)
    for read in (
        lambda: store.fetch(None, 0, 1),  # type: ignore[arg-type]  # the mistake under test
        lambda: store.fetch_one("a", 0),  # type: ignore[arg-type]  # the mistake under test
        lambda: store.fetch_keys("a", None, 0, 1),  # type: ignore[arg-type]  # the mistake under test
    ):
        with pytest.raises(InvalidArgumentError):
            read()


@pytest.mark.parametrize(("retention", "size"), [(-1, 0), (10, -1), (10, 11)])
def test_a_window_is_not_longer_than_the_retention(retention: int, size: int) -> None:
    with pytest.raises(InvalidArgumentError):
        WindowStore("s", retention_ms=retention, window_size_ms=size)


# -- duplicates -----------------------------------------------------------------------------------------


def test_duplicates_are_kept_in_the_order_of_their_puts(make: Make) -> None:
    store = make(duplicates=True)
    for start in (0, 10 * SIZE, 20 * SIZE):
        store.put(b"a", b"%d," % start, start)
        store.put(b"a", b"%d;" % start, start)
    store.put(b"a", b"0,", 0)
    store.put(b"a", None, 0)  # nothing can be deleted
    assert list(store.fetch(b"a", 0, 10 * SIZE)) == [(0, b"0,"), (0, b"0;"), (0, b"0,"), (30, b"30,"), (30, b"30;")]
    assert values(store.fetch(b"a", 0, 10 * SIZE, reverse=True)) == b"30;30,0,0;0,"
    assert store.fetch_one(b"a", 30) == b"30;"
    assert store.fetch_one(b"a", 31) is None
    assert [change.key[-4:] for change in store.staged_changes()][:3] == [b"\0\0\0\1", b"\0\0\0\2", b"\0\0\0\7"]


def test_a_none_in_a_store_of_duplicates_does_not_move_stream_time(make: Make) -> None:
    store = make(duplicates=True)
    store.put(b"a", None, 5)
    assert (store.stream_time_ms, store.staged_records) == (-1, 0)


def test_a_put_that_is_refused_takes_no_number_and_one_that_is_dropped_does_as_in_kafka_streams(make: Make) -> None:
    store = make(duplicates=True)
    store.put(b"a", b"1", 10 * RETENTION)
    for key, value, start in ((b"a", b"", -1), ("a", b"", 10 * RETENTION), (b"a", "", 10 * RETENTION)):
        with pytest.raises(InvalidArgumentError):
            store.put(key, value, start)  # type: ignore[arg-type]
    store.put(b"a", b"2", 10 * RETENTION)
    store.put(b"a", b"too late", 0)
    store.put(b"a", b"4", 10 * RETENTION)
    assert [change.key[-1] for change in store.staged_changes()] == [1, 2, 4]


def test_duplicates_survive_a_restart_without_being_overwritten(make: Make) -> None:
    store = make(duplicates=True)
    store.put(b"a", b"1", 5)
    store.put(b"a", b"2", 5)
    store.commit({})
    store.put(b"a", b"dropped", 5)
    if not store.persistent:
        return
    store = make(duplicates=True)
    store.put(b"a", b"3", 5)
    store.commit({})
    assert values(store.fetch(b"a", 0, 5)) == b"123"
    assert values(store.fetch(b"a", 0, 5, reverse=True)) == b"321"


def test_restored_duplicates_are_not_overwritten_by_later_puts(make: Make) -> None:
    store = make(duplicates=True)
    store.restore([(b"a" + struct.pack(">qi", 5, 7), b"1", 5), (b"a" + struct.pack(">qi", 5, 3), b"0", 5)])
    store.put(b"a", b"2", 5)
    assert values(store.fetch(b"a", 0, 5)) == b"012"
    assert [change.key[-4:] for change in store.staged_changes()][-1] == b"\0\0\0\x08"


def test_sequence_numbers_begin_anew_behind_the_last(make: Make) -> None:
    store = make(duplicates=True)
    store.restore([(b"a" + struct.pack(">qi", 5, 2**31 - 1), b"1", 5)])
    store.put(b"a", b"2", 5)
    assert [change.key[-4:] for change in store.staged_changes()] == [b"\0\0\0\1", b"\x7f\xff\xff\xff"]


# -- changelog ------------------------------------------------------------------------------------------


def test_changelog_keys_are_those_of_kafka_streams(store: WindowStore) -> None:
    store.put(b"k", b"v", 258)
    store.put(b"k", None, 259)
    time = -1 if store.timestamped else None
    assert list(store.staged_changes()) == [
        Change(b"k" + bytes.fromhex("0000000000000102 00000000"), b"v", time),
        Change(b"k" + bytes.fromhex("0000000000000103 00000000"), None, None),
    ]
    assert [key for key, _ in store.staged()] == [bytes(8) + change.key for change in store.staged_changes()]


def test_a_store_restored_from_a_changelog_answers_as_the_one_that_wrote_it(make: Make) -> None:
    store = make()
    changelog: list[Change] = []
    for n in range(3):
        for at, key in enumerate(KEYS):
            store.put(key, b"%d" % n, (at + n) * INTERVAL // 3)
        store.put(KEYS[n], None, n * INTERVAL // 3)
        changelog += store.staged_changes()
        store.commit({})
    rows = list(store.all())
    assert len(rows) > 10
    store.close()
    store.wipe()
    store = make()
    store.restore((key, value, -1 if time is None else time) for key, value, time in changelog)
    assert list(store.all()) == rows
    store.commit({})
    assert list(store.all()) == rows


def test_restored_records_of_expired_segments_are_left_out_and_move_stream_time(store: WindowStore) -> None:
    def change(start: int) -> tuple[bytes, bytes, int]:
        return b"a" + struct.pack(">qi", start, 0), b"%d" % start, start

    store.restore([change(0), change(9 * RETENTION), change(8 * RETENTION), change(8 * RETENTION - 1)])
    assert (store.staged_records, store.dropped_records, store.stream_time_ms) == (2, 0, 9 * RETENTION)
    store.commit({})
    store.restore([change(0)])
    assert (store.staged_records, stored_rows(store)) == (0, 2)
    assert values(store.all()) == b"%d" % (9 * RETENTION)


@pytest.mark.parametrize("key", [b"", bytes(11), b"k" + struct.pack(">qi", -1, 0), None])
def test_a_changelog_that_is_not_of_a_window_store_is_refused_as_a_whole(store: WindowStore, key: bytes) -> None:
    with pytest.raises(DamagedDataError):
        store.restore([(b"a" + struct.pack(">qi", 9, 0), b"1", 9), (key, b"2", 9)])
    assert (store.staged_records, store.stream_time_ms) == (0, -1)


# -- timestamps -----------------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["rocksdb", "memory"])
def stamped(request: pytest.FixtureRequest, context: StoreContext) -> Iterator[TimestampedWindowStore]:
    store = TimestampedWindowStore("s", retention_ms=RETENTION, window_size_ms=SIZE, persistent=request.param)
    store.init(context)
    yield store
    store.close()


def test_a_timestamped_store_gives_value_and_timestamp(stamped: TimestampedWindowStore) -> None:
    stamped.put_with_timestamp(b"a", b"1", 17, 5)
    stamped.commit({})
    stamped.put_with_timestamp(b"b", b"2", 18, 5)
    stamped.put(b"b", b"3", 6)
    rows = [
        (Windowed(b"a", 5, 5 + SIZE), ValueAndTimestamp(b"1", 17)),
        (Windowed(b"b", 5, 5 + SIZE), ValueAndTimestamp(b"2", 18)),
        (Windowed(b"b", 6, 6 + SIZE), ValueAndTimestamp(b"3", -1)),
    ]
    assert list(stamped.all_with_timestamp()) == list(stamped.fetch_all_with_timestamp(0, 9)) == rows
    assert list(stamped.all_with_timestamp(reverse=True)) == rows[::-1]
    assert list(stamped.fetch_keys_with_timestamp(b"b", None, 0, 5)) == rows[1:2]
    assert list(stamped.fetch_with_timestamp(b"b", 0, 9)) == [(5, (b"2", 18)), (6, (b"3", -1))]
    assert stamped.fetch_one_with_timestamp(b"a", 5) == (b"1", 17)
    assert stamped.fetch_one_with_timestamp(b"a", 6) is None
    assert stamped.fetch_one(b"a", 5) == b"1"
    stamped.put_with_timestamp(b"a", None, 19, 5)
    assert stamped.fetch_one_with_timestamp(b"a", 5) is None


def test_a_timestamp_travels_beside_the_plain_value_through_the_changelog(stamped: TimestampedWindowStore) -> None:
    stamped.put_with_timestamp(b"a", b"1", 17, 5)
    key = b"a" + struct.pack(">qi", 5, 0)
    assert list(stamped.staged_changes()) == [Change(key, b"1", 17)]
    assert [stored for _, stored in stamped.staged()] == [struct.pack(">q", 17) + b"1"]
    stamped.rollback()
    stamped.restore([(key, b"1", 17)])
    assert stamped.fetch_one_with_timestamp(b"a", 5) == (b"1", 17)


@pytest.mark.parametrize(("value", "timestamp"), [("v", 1), (b"v", 2**63), (b"v", "1")])
def test_what_is_no_value_and_timestamp_is_refused(
    stamped: TimestampedWindowStore, value: bytes, timestamp: int
) -> None:
    with pytest.raises(InvalidArgumentError):
        stamped.put_with_timestamp(b"k", value, timestamp, 1)
    assert stamped.staged_records == 0


def test_a_database_keeps_the_segments_it_began_with_when_the_retention_changes(tmp_path: Path) -> None:
    context, hour = StoreContext("0_0", tmp_path), 3_600_000
    store = WindowStore("s", retention_ms=hour, window_size_ms=1000)
    store.init(context)
    for start_ms in range(0, hour, hour // 8):
        store.put(b"k", b"%d" % start_ms, start_ms)
    store.commit({})
    seen = list(store.fetch(b"k", 0, hour))
    store.close()
    longer = WindowStore("s", retention_ms=4 * hour, window_size_ms=1000)
    longer.init(context)
    assert longer.segments.interval_ms == hour // 2
    assert list(longer.fetch(b"k", 0, hour)) == seen
    longer.put(b"k", b"late", 3 * hour)
    assert [start for start, _ in longer.fetch(b"k", 0, 3 * hour)] == [start for start, _ in seen] + [3 * hour]
    longer.close()


def test_windows_in_short_segments_of_a_retention_that_was_raised_are_read_in_one_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateline_store.rocksdb.segment_lengths.MOST_BYTES", 0)  # too large to be moved to longer ones
    context, minute = StoreContext("0_0", tmp_path), 60_000
    store = WindowStore("s", retention_ms=minute, window_size_ms=1000)
    store.init(context)
    store.put(b"k", b"first", 0)
    store.commit({})
    store.close()
    now = 10_000 * minute
    longer = WindowStore("s", retention_ms=2 * now, window_size_ms=1000)
    longer.init(context)
    longer.put(b"k", b"last", now)
    with patch.object(RocksDBEngine, "scan", autospec=True, side_effect=RocksDBEngine.scan) as scanned:
        assert list(longer.fetch(b"k", 0, now)) == [(0, b"first"), (now, b"last")]
        assert list(longer.fetch(b"k", 1, now, reverse=True)) == [(now, b"last")]
        assert [value for _, value in longer.fetch_keys(b"a", b"k", 0, now)] == [b"first", b"last"]
        assert [value for _, value in longer.fetch_all(0, now)] == [b"first", b"last"]
    assert scanned.call_count == 4
    longer.close()
