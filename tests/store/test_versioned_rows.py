"""The bytes of versioned rows: written by hand, and against a plain list of versions."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline_store import DamagedDataError, IsolationLevel, StoreContext, VersionedStore
from stateline_store.rows.segments import PREFIX
from stateline_store.rows.versioned_rows import Version, append, bounds, find, join, new_row, versions

# valid_to, oldest, (timestamp, size) of the newest, of a tombstone, of the oldest; the oldest value, the newest
THREE = bytes.fromhex(
    "0000000000000028 000000000000000a 000000000000001e 00000003 0000000000000014 ffffffff 000000000000000a 00000002"
    "6f6c 6e6577"
)
ONE = bytes.fromhex("0000000000000014 000000000000000a 000000000000000a 00000001 76")
DEGENERATE = bytes.fromhex("0000000000000014 0000000000000014 0000000000000014 ffffffff")

TIMES = st.sets(st.integers(0, 2**63 - 1), min_size=2, max_size=8).map(sorted)
VALUE = st.none() | st.binary(max_size=5)


@st.composite
def histories(draw: st.DrawFn) -> list[Version]:
    """Versions of one row, the newest first, each ending where the next begins."""
    times = draw(TIMES)
    return [Version(start, draw(VALUE), end) for start, end in zip(times[-2::-1], times[:0:-1], strict=True)]


def test_a_row_is_written_as_kafka_streams_writes_it() -> None:
    newest, tombstone, oldest = Version(30, b"new", 40), Version(20, None, 30), Version(10, b"ol", 20)
    assert join([newest, tombstone, oldest]) == THREE
    assert versions(THREE) == [newest, tombstone, oldest]
    assert bounds(THREE) == (40, 10)
    assert append(append(new_row(10, b"ol", 20), 20, None, 30), 30, b"new", 40) == THREE
    assert new_row(10, b"v", 20) == ONE


def test_a_gap_is_a_tombstone() -> None:
    assert append(new_row(10, b"ol", 20), 30, b"new", 40) == THREE


def test_a_degenerate_row_is_a_tombstone_that_ends_where_it_begins() -> None:
    assert new_row(20, None, 20) == DEGENERATE
    assert versions(DEGENERATE) == [Version(20, None, 20)]
    assert append(DEGENERATE, 20, b"v", 30) == new_row(20, b"v", 30)
    assert append(DEGENERATE, 25, b"v", 30) == join([Version(25, b"v", 30), Version(20, None, 25)])


def test_empty_bytes_are_no_tombstone() -> None:
    assert versions(new_row(1, b"", 2)) == [Version(1, b"", 2)]
    assert versions(new_row(1, None, 2)) == [Version(1, None, 2)]


@given(histories())
def test_what_is_joined_is_found_again(history: list[Version]) -> None:
    row = join(history)
    assert versions(row) == history
    assert bounds(row) == (history[0].valid_to, history[-1].timestamp)
    for version in history:
        for time in (version.timestamp, version.valid_to - 1):
            assert find(row, time) == version


@given(histories())
def test_appending_gives_what_joining_gives(history: list[Version]) -> None:
    oldest_first = history[::-1]
    row = new_row(*oldest_first[0])
    for version in oldest_first[1:]:
        row = append(row, *version)
    assert row == join(history)


@pytest.mark.parametrize(
    "row",
    [
        b"",
        THREE[:15],
        THREE[:-1],
        THREE + b"x",
        THREE[:30],
        ONE[:8] + PREFIX.pack(9) + ONE[16:],  # no entry is the oldest
        ONE[:8] + PREFIX.pack(11) + ONE[16:],
        DEGENERATE[:24] + b"\xff\xff\xff\xfe",  # size -2
        ONE[:24] + b"\x7f\xff\xff\xff" + ONE[28:],
    ],
)
def test_bytes_that_are_no_row_are_damaged_data(row: bytes) -> None:
    with pytest.raises(DamagedDataError, match="rebuild the store"):
        versions(row)


def test_what_overlaps_the_row_is_not_appended() -> None:
    with pytest.raises(DamagedDataError):
        append(ONE, 19, b"v", 30)


@pytest.fixture
def store(context: StoreContext) -> Iterator[VersionedStore]:
    store = VersionedStore("s", history_retention_ms=1000, segment_interval_ms=10)
    store.init(context)
    yield store
    store.close()


def rows(store: VersionedStore) -> dict[tuple[int, bytes], bytes]:
    """(segment, key) → row, as committed."""
    store.commit({})
    stored = store.reader(IsolationLevel.READ_COMMITTED).range(None, None)
    return {(PREFIX.unpack_from(key)[0], key[8:]): row for key, row in stored}


def test_the_latest_value_is_apart_and_the_others_are_where_they_end(store: VersionedStore) -> None:
    for value, timestamp in ((b"ol", 10), (None, 20), (b"new", 21), (b"last", 29)):
        store.put(b"k", value, timestamp)
    store.put(b"deleted", None, 15)
    assert rows(store) == {
        (1, b"deleted"): new_row(15, None, 15),
        (2, b"k"): join([Version(21, b"new", 29), Version(20, None, 21), Version(10, b"ol", 20)]),
        (-1, b"k"): PREFIX.pack(29) + b"last",
    }


def test_a_version_that_ends_earlier_than_before_moves_to_the_older_segment(store: VersionedStore) -> None:
    for value, timestamp in ((b"c", 45), (b"a", 5), (b"b", 15)):
        store.put(b"k", value, timestamp)
    assert rows(store) == {
        (1, b"k"): new_row(5, b"a", 15),
        (4, b"k"): new_row(15, b"b", 45),
        (-1, b"k"): PREFIX.pack(45) + b"c",
    }


def test_a_late_put_takes_the_place_of_a_degenerate_row(store: VersionedStore) -> None:
    store.put(b"k", None, 15)
    store.put(b"k", b"v", 12)
    assert rows(store) == {(1, b"k"): new_row(12, b"v", 15)}
    store.put(b"k", b"u", 11)
    assert rows(store) == {(1, b"k"): join([Version(12, b"v", 15), Version(11, b"u", 12)])}
