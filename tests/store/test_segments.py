"""Segments, and the bounds of scans over keys with suffixes in them."""

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline_store import InvalidArgumentError, KeyRange, KeyValueStore, Segments, StoreContext, StoreIterator
from stateline_store.keyed_scans import end_of_keys
from stateline_store.segments import PREFIX, scan_segments

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
    reader = store._own_reader()
    assert found(scan_segments(reader, range(9))) == b"1a 1b 1c 2a 2b 2c 3a 3b 3c"
    assert found(scan_segments(reader, range(1, 3), reverse=True)) == b"2c 2b 2a 1c 1b 1a"
    assert found(scan_segments(reader, range(2, 4), b"b")) == b"2b 2c 3b 3c"
    assert found(scan_segments(reader, range(2, 4), b"b", b"c")) == b"2b 3b"
    assert found(scan_segments(reader, range(0))) == b""


def test_all_segments_are_seen_at_the_moment_the_scan_is_made(store: KeyValueStore) -> None:
    scan = scan_segments(store._own_reader(), range(1, 4))
    first = next(scan)
    store.put(PREFIX.pack(3) + b"a", None)
    store.put(PREFIX.pack(2) + b"d", b"new")
    store.commit({})
    assert (first[0], found(scan)) == (b"a", b"1b 1c 2a 2b 2c 3a 3b 3c")


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
