"""Values with the headers of their records: their bytes, and a store that gets them in place."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline_store import (
    DamagedDataError,
    IsolationLevel,
    KeyValueStore,
    NotPresentError,
    RetryLaterError,
    SecondaryReader,
    StoreContext,
    TimestampedKeyValueStore,
    TimestampedWindowStore,
    TopologyError,
)
from stateline_store.errors import InvalidArgumentError
from stateline_store.files.directory import notice_path, store_path
from stateline_store.inspection.offline_entries import entries
from stateline_store.rocksdb.offline_store import OfflineStore
from stateline_store.rows.headers import Headers, join_headers, split_headers, without_headers
from stateline_store.scan import EVERY_KEY

TEXTS = st.text(max_size=70)
HEADERS = st.lists(st.tuples(TEXTS, st.none() | st.binary(max_size=200)), max_size=5).map(tuple)
WRITER = """
import sys, pathlib
from stateline_store import StoreContext, TimestampedKeyValueStore
from stateline_store.rocksdb import added_headers
added_headers.BATCH_BYTES = 50
TimestampedKeyValueStore("s", headers=True).init(StoreContext("0_0", pathlib.Path(sys.argv[1])))
"""
OF_WINDOWS = WRITER.replace("KeyValueStore", "WindowStore").replace(
    '("s"', '("s", retention_ms=120_000, window_size_ms=1000'
)


@given(st.binary(max_size=20), HEADERS)
def test_a_value_and_its_headers_come_apart_as_they_were_joined(value: bytes, headers: Headers) -> None:
    joined = join_headers(value, headers)
    assert split_headers(joined) == (value, headers)
    assert without_headers(joined) == value


@pytest.mark.parametrize(
    ("headers", "joined"),
    [
        ((), "00 76"),
        ((("a", b"xy"),), "0c 02 02 61 04 78 79 76"),
        ((("a", None), ("é", b"")), "10 04 02 61 01 04 c3 a9 00 76"),
    ],
)
def test_headers_have_the_bytes_of_kafka_streams(headers: Headers, joined: str) -> None:
    assert join_headers(b"v", headers) == bytes.fromhex(joined)


def test_a_length_of_more_than_63_takes_two_bytes() -> None:
    joined = join_headers(b"v", [("n", bytes(100))])
    assert joined[:2] == bytes.fromhex("d2 01")  # zig-zag of 105
    assert split_headers(joined) == (b"v", (("n", bytes(100)),))


LONG_LENGTH = "8c 80 80 80 80 00 02 02 61 04 78 79 76"  # 6 in six bytes, and Kafka's have five at most
NO_NAME = "06 02 01 00 76"


@pytest.mark.parametrize(
    "damaged",
    ["", "ff", "04 02", "01 76", "06 02 08 61 76", "04 04 02 61 76", "04 00 00 76", "02 01 76", LONG_LENGTH, NO_NAME],
)
def test_bytes_that_are_no_headers_are_damage(damaged: str) -> None:
    with pytest.raises(DamagedDataError):
        split_headers(bytes.fromhex(damaged))


def test_a_store_without_timestamps_has_no_headers() -> None:
    with pytest.raises(InvalidArgumentError, match="only a timestamped store has headers"):
        KeyValueStore("s", headers=True)


def filled(directory: Path) -> dict[bytes, bytes]:
    """Commit ten rows without headers. Returns the rows with headers."""
    with closing(TimestampedKeyValueStore("s")) as store:
        store.init(StoreContext("0_0", directory))
        for number in range(10):
            store.put_with_timestamp(b"%d" % number, b"value %d" % number, number)
        store.commit({})
    return {b"%d" % n: n.to_bytes(8, "big") + b"\0" + b"value %d" % n for n in range(10)}


def rows(store: TimestampedKeyValueStore) -> dict[bytes, bytes]:
    with store.reader(IsolationLevel.READ_COMMITTED).scan(EVERY_KEY) as scan:
        return dict(scan)


def test_a_timestamped_store_gets_headers_in_place_and_does_not_lose_them_silently(tmp_path: Path) -> None:
    expected = filled(tmp_path)
    path, notice = store_path(tmp_path, "s", timestamped=True), notice_path(tmp_path, "s", timestamped=True)
    with (
        closing(SecondaryReader(path, notice, tmp_path / "scratch")) as reader,
        closing(TimestampedKeyValueStore("s", headers=True)) as store,
    ):
        store.init(StoreContext("0_0", tmp_path))
        assert rows(store) == expected
        reader.refresh()
        assert reader.layout.headers
        assert reader.get(b"1") == expected[b"1"]
        store.put_with_timestamp(b"1", join_headers(b"new", [("h", b"x")]), 7)
        store.commit({})
    with pytest.raises(TopologyError, match="headers=True"):
        TimestampedKeyValueStore("s").init(StoreContext("0_0", tmp_path))
    with OfflineStore(path) as offline:
        assert [(each.value, each.headers) for each in entries(offline, b"1", b"2", timestamped=True)] == [
            (b"new", (("h", b"x"),)),
            (b"value 2", ()),
        ]


def killed_while_headers_are_added(directory: Path, writer: str, batch: int) -> None:
    environment = {"STATELINE_CRASH_AT": f"headers:batch-written#{batch}"}
    died = subprocess.run([sys.executable, "-c", writer, str(directory)], env=environment, check=False, timeout=60)
    assert died.returncode == -9


@pytest.mark.parametrize("batch", [1, 2])
def test_headers_that_were_added_in_part_are_added_to_the_end_after_kill_9(tmp_path: Path, batch: int) -> None:
    expected = filled(tmp_path)
    killed_while_headers_are_added(tmp_path, WRITER, batch)
    path = store_path(tmp_path, "s", timestamped=True)
    with OfflineStore(path) as offline, pytest.raises(RetryLaterError, match="start its worker"):
        list(entries(offline, None, None, timestamped=True))
    with pytest.raises(NotPresentError):
        SecondaryReader(path, notice_path(tmp_path, "s", timestamped=True), tmp_path / "scratch")
    with closing(TimestampedKeyValueStore("s", headers=True)) as store:
        store.init(StoreContext("0_0", tmp_path))
        assert rows(store) == expected
    with OfflineStore(path) as offline:
        assert offline.layout is not None
        assert offline.layout.headers_up_to is None


def windows(retention_ms: int, *, headers: bool) -> TimestampedWindowStore:
    return TimestampedWindowStore("s", retention_ms=retention_ms, window_size_ms=1000, headers=headers)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_a_longer_retention_after_kill_9_leaves_no_row_without_headers(tmp_path: Path, batch: int) -> None:
    with closing(windows(120_000, headers=False)) as short:
        short.init(StoreContext("0_0", tmp_path))
        for start in (0, 60_000):
            for key in (b"a", b"b"):
                short.put_with_timestamp(key, b"a value of some length: %d" % start, start, start)
        short.commit({})
    killed_while_headers_are_added(tmp_path, OF_WINDOWS, batch)
    with closing(windows(7_200_000, headers=True)) as longer:
        longer.init(StoreContext("0_0", tmp_path))
        assert longer.segments.interval_ms == 3_600_000
        with longer.reader(IsolationLevel.READ_COMMITTED).scan(EVERY_KEY) as scan:
            assert [split_headers(row[8:]) for _, row in scan] == [
                (b"a value of some length: %d" % start, ()) for _ in (b"a", b"b") for start in (0, 60_000)
            ]
