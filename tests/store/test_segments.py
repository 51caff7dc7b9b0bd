"""Segments, and the bounds of scans over keys with suffixes in them."""

import struct
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline_store import (
    InvalidArgumentError,
    IsolationLevel,
    KeyRange,
    KeyValueStore,
    Segments,
    StoreContext,
    StoreIterator,
)
from stateline_store.reads.keyed_scans import end_of_keys
from stateline_store.rows.segments import PREFIX, SegmentRange, existing, present, scan_segments

KEYS = st.binary(max_size=4) | st.text(alphabet="\x00\x01", max_size=30).map(str.encode)


@pytest.fixture
def store(context: StoreContext) -> Iterator[KeyValueStore]:
    """Rows ``segment ‖ letter`` of the segments 1 to 3, half of them staged."""
    store = KeyValueStore("s", persistent=False)
    store.init(context)
    for segment in (1, 2, 3):
        store.put_all((PREFIX.pack(segment) + key, b"%d" % segment + key) for key in (b"a", b"b", b"c"))
        if segment == 1:
            store.commit({})
    yield store
    store.close()


def found(rows: StoreIterator) -> bytes:
    return b" ".join(value for _, value in rows)


@pytest.mark.parametrize(
    ("retention", "interval"), [(0, 60_000), (119_999, 60_000), (120_002, 60_001), (86_400_000, 43_200_000)]
)
def test_segments_are_half_a_retention_and_a_minute_at_least(retention: int, interval: int) -> None:
    assert Segments.of_retention(retention).interval_ms == interval
    with pytest.raises(InvalidArgumentError):
        Segments.of_retention(-1)


def test_a_segment_takes_puts_until_all_of_it_is_older_than_the_retention() -> None:
    segments = Segments(100_000, 60_000)
    times = (-1, 100_000, 159_999, 160_000, 219_999, 220_000)
    assert [segments.oldest_live(time) for time in times] == [0, 0, 0, 1, 1, 2]
    assert [segments.oldest_readable_ms(time) for time in times] == [0, 1, 60_000, 60_001, 120_000, 120_001]


def test_only_a_segment_that_has_just_died_is_removed() -> None:
    segments = Segments(100_000, 60_000)
    assert segments.expired(-1, 159_999) is None
    assert segments.expired(159_999, 160_000) == KeyRange(PREFIX.pack(0), PREFIX.pack(1))
    assert segments.expired(160_000, 160_000) is None
    assert segments.expired(160_000, 340_000) == KeyRange(PREFIX.pack(1), PREFIX.pack(4))


def test_segments_are_scanned_in_order_of_time_and_of_keys_within_each(store: KeyValueStore) -> None:
    reader = store.reader(IsolationLevel.READ_UNCOMMITTED)
    assert found(scan_segments(reader, range(9))) == b"1a 1b 1c 2a 2b 2c 3a 3b 3c"
    assert found(scan_segments(reader, range(1, 3), reverse=True)) == b"2c 2b 2a 1c 1b 1a"
    assert found(scan_segments(reader, range(2, 4), b"b")) == b"2b 2c 3b 3c"
    assert found(scan_segments(reader, range(2, 4), b"b", b"c")) == b"2b 3b"
    assert found(scan_segments(reader, range(0))) == b""


def test_all_segments_are_seen_at_the_moment_the_scan_is_made(store: KeyValueStore) -> None:
    scan = scan_segments(store.reader(IsolationLevel.READ_UNCOMMITTED), range(1, 4))
    first = next(scan)
    store.put(PREFIX.pack(3) + b"a", None)
    store.put(PREFIX.pack(2) + b"d", b"new")
    store.commit({})
    assert (first[0], found(scan)) == (b"a", b"1b 1c 2a 2b 2c 3a 3b 3c")


@pytest.fixture(params=[True, False], ids=["rocksdb", "memory"])
def sparse(request: pytest.FixtureRequest, context: StoreContext) -> Iterator[KeyValueStore]:
    """A few segments out of a hundred thousand, committed and staged, and the latest values of versions behind them."""
    store = KeyValueStore("s", persistent=request.param)
    store.init(context)
    for segment, staged in ((0, 0), (3, 1), (4, 0), (5, 1), (70_000, 0), (99_999, 0), (-1, 1)):
        store.put_all((PREFIX.pack(segment) + key, b"%d" % segment + key) for key in (b"a", b"b", b"bb", b"c"))
        store.put(PREFIX.pack(segment) + b"gone", b"")
        if not staged:
            store.commit({})
    store.put_all((PREFIX.pack(segment) + b"gone", None) for segment in (0, 3, 4, 5, 70_000, 99_999, -1))
    yield store
    store.close()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("start", "stop"), [(b"", None), (b"b", None), (b"b", b"c"), (b"a", b"a\0"), (b"d", b"e")])
def test_many_segments_are_read_as_each_of_them_would_be(
    sparse: KeyValueStore, start: bytes, stop: bytes | None, reverse: bool
) -> None:
    reader = sparse.reader(IsolationLevel.READ_UNCOMMITTED)
    rows = [(PREFIX.unpack_from(key)[0], key[8:], value) for key, value in sparse.all(reverse=reverse)]
    for segments in (range(100_001), range(1, 70_000), range(70_001, 80_000), range(4, 99_999)):
        expected = [
            (key, value)
            for segment, key, value in rows
            if segment in segments and key >= start and (stop is None or key < stop)
        ]
        assert list(scan_segments(reader, segments, start, stop, reverse=reverse)) == expected


def test_segments_that_do_not_exist_are_not_visited(sparse: KeyValueStore) -> None:
    reader, visited = sparse.reader(IsolationLevel.READ_UNCOMMITTED), []

    def visit(keys: SegmentRange, segment: int) -> tuple[bytes, bytes]:
        visited.append(segment)
        return within(keys, segment)

    within = SegmentRange.within
    with patch.object(SegmentRange, "within", visit), patch.object(reader, "scan", wraps=reader.scan) as scan:
        assert len(list(scan_segments(reader, range(100_000), b"b", b"c"))) == 12
        assert scan.call_count == 1
    assert len(visited) < 30  # of committed and of staged rows: each segment that exists, the next one, and the end


def test_the_segments_that_exist_are_found(sparse: KeyValueStore) -> None:
    scan = sparse.reader(IsolationLevel.READ_UNCOMMITTED).scan
    assert list(existing(scan, range(1, 99_999))) == [3, 4, 5, 70_000]
    assert list(existing(scan, range(5, 7))) == [5, 6]  # few are not looked for
    assert list(present(scan)) == [0, 3, 4, 5, 70_000, 99_999, -1]


@given(upper=KEYS, keys=st.lists(KEYS, max_size=10), times=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=3))
def test_the_end_of_a_range_is_behind_each_of_its_rows_and_not_far_behind(
    upper: bytes, keys: list[bytes], times: list[int]
) -> None:
    greatest = struct.pack(">qi", max(times), 9)
    end = end_of_keys(upper, greatest)
    prefixes = [upper[:length] for length in range(len(upper) + 1)]
    inside = [key for key in prefixes + keys if key <= upper]
    rows = [key + struct.pack(">qi", time, 9) for key in inside for time in times]
    assert all(row < end for row in rows)
    assert end == max(rows) + b"\0"  # the least that will do


def test_the_end_of_a_range_takes_no_longer_for_long_keys() -> None:
    upper = bytes(100_000)
    assert end_of_keys(upper, b"\x01" + bytes(11)) == b"\x01" + bytes(12)
