"""What timestamps add."""

from collections.abc import Iterator

import pytest

from stateline_store import (
    InvalidArgumentError,
    IsolationLevel,
    StoreContext,
    TimestampedKeyValueStore,
    ValueAndTimestamp,
)


@pytest.fixture
def table(context: StoreContext) -> Iterator[TimestampedKeyValueStore]:
    table = TimestampedKeyValueStore("t")
    table.init(context)
    yield table
    table.close()


def test_stored_bytes_are_the_timestamp_then_the_value(table: TimestampedKeyValueStore) -> None:
    table.put_with_timestamp(b"k", b"v", 258)
    stored = bytes.fromhex("0000000000000102") + b"v"
    assert list(table.staged()) == [(b"k", stored)]
    table.commit({})
    assert table.reader(IsolationLevel.READ_COMMITTED).get(b"k") == stored


def test_reads_give_value_and_timestamp(table: TimestampedKeyValueStore) -> None:
    table.put_all_with_timestamp([(b"a", b"1", 5), (b"b", b"", 6), (b"c", b"3", 7), (b"c", None, 8)])
    table.commit({})
    table.put_with_timestamp(b"ab", b"2", -1)
    rows = [(b"a", ValueAndTimestamp(b"1", 5)), (b"ab", (b"2", -1)), (b"b", (b"", 6))]
    assert list(table.all_with_timestamp()) == rows
    assert list(table.range_with_timestamp(b"ab", b"b", reverse=True)) == rows[:0:-1]
    assert list(table.prefix_scan_with_timestamp(b"a")) == rows[:2]
    assert table.get_with_timestamp(b"a") == rows[0][1]
    assert table.get_with_timestamp(b"c") is None


def test_plain_calls_work_on_values_with_an_unknown_timestamp(table: TimestampedKeyValueStore) -> None:
    table.put(b"a", b"1")
    assert table.get_with_timestamp(b"a") == (b"1", -1)
    table.put_with_timestamp(b"a", b"2", 9)
    assert (table.get(b"a"), list(table.all())) == (b"2", [(b"a", b"2")])
    assert table.put_if_absent_with_timestamp(b"a", b"3", 10) == (b"2", 9)
    assert table.delete_with_timestamp(b"a") == (b"2", 9)
    assert table.put_if_absent_with_timestamp(b"a", b"3", 10) is None


@pytest.mark.parametrize("bad", [(None, b"1", 1), (b"k", "v", 1), (b"k", b"v", 2**63), (b"k", b"v", "1")])
def test_one_refused_entry_stages_nothing(table: TimestampedKeyValueStore, bad: tuple[bytes, bytes, int]) -> None:
    with pytest.raises(InvalidArgumentError):
        table.put_all_with_timestamp([(b"a", b"1", 1), bad])
    with pytest.raises(InvalidArgumentError):
        table.put_with_timestamp(*bad)
    assert table.staged_records == 0


def test_the_two_formats_never_share_a_directory(table: TimestampedKeyValueStore, context: StoreContext) -> None:
    table.put(b"k", b"v")
    table.commit({})
    assert (context.directory / "rocksdb" / "t-v2").is_dir()
    assert (context.directory / "t-v2.notice").is_file()
