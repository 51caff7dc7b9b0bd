"""Databases as Kafka Streams makes them, copied to databases of Stateline."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from stateline_store import DamagedDataError, Layout, Position, StoreTypes, TopicPartition, TopologyError
from stateline_store.adoption.adopted_store import Target, adopt_store
from stateline_store.adoption.java_store import JavaFiles, JavaStore, find_java_store, java_stores
from stateline_store.rocksdb.offline_store import OfflineStore
from stateline_store.rows.headers import NO_HEADERS, join_headers
from stateline_store.rows.windowed_keys import window_key
from stateline_store.scan import EVERY_KEY

TYPES = StoreTypes("bytes", "bytes")
PLACE = TopicPartition("app-store-changelog", 3)


def database(path: Path, families: Mapping[str, Mapping[bytes, bytes]]) -> None:
    """Make a database with these rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    names = {name: Options(raw_mode=True) for name in families}
    db = Rdict(str(path), options, column_families={"default": Options(raw_mode=True), **names})
    for name, rows in families.items():
        family = db.get_column_family(name)
        for key, value in rows.items():
            family[key] = value
        family.flush()
        family.close()
    db.close()


def i64(number: int) -> bytes:
    return struct.pack(">q", number)


def copied(task: Path, to: Path, layout: Layout) -> dict[bytes, bytes]:
    """Adopt the task's store, and return the rows of the copy."""
    files = find_java_store(task, "store")
    assert files is not None
    path = to / "rocksdb" / "store"
    with JavaStore(files) as java:
        assert adopt_store(java, Target(to, path, layout, TYPES, java.offsets, java.position)) >= 0
    with OfflineStore(path) as store, store.scan(EVERY_KEY) as scan:
        assert store.commit.offsets == {PLACE: 8}
        return dict(scan)


OFFSETS = {str(PLACE).encode(): i64(8), b"status": i64(0)}


def test_rows_without_a_timestamp_that_an_old_version_left_get_an_unknown_one(tmp_path: Path) -> None:
    families = {
        "default": {b"a": b"old", b"b": b"old", b"d": b"old"},
        "keyValueWithTimestamp": {b"b": i64(7) + b"new", b"c": i64(9) + b"new"},
        "offsets": OFFSETS,
    }
    database(tmp_path / "java/rocksdb/store", families)
    rows = copied(tmp_path / "java", tmp_path / "here", Layout("key_value", timestamped=True))
    unknown = i64(-1) + b"old"
    assert rows == {b"a": unknown, b"b": i64(7) + b"new", b"c": i64(9) + b"new", b"d": unknown}


def test_rows_with_headers_get_the_timestamp_first_and_older_rows_no_headers(tmp_path: Path) -> None:
    held = (("a", b"xy"), ("none", None))
    joined = join_headers(b"new", held)
    headers, rest = joined[:-3], joined[-3:]
    families = {
        "default": {b"a": b"oldest", b"b": b"oldest"},
        "keyValueWithTimestamp": {b"b": i64(7) + b"old", b"c": i64(8) + b"old"},
        "keyValueWithTimestampAndHeaders": {b"c": headers + i64(9) + rest, b"d": NO_HEADERS + i64(10) + rest},
        "offsets": OFFSETS,
    }
    database(tmp_path / "java/rocksdb/store", families)
    rows = copied(tmp_path / "java", tmp_path / "here", Layout("key_value", timestamped=True, headers=True))
    assert rows == {
        b"a": i64(-1) + NO_HEADERS + b"oldest",
        b"b": i64(7) + NO_HEADERS + b"old",
        b"c": i64(9) + joined,
        b"d": i64(10) + NO_HEADERS + b"new",
    }


def test_a_row_that_is_too_short_for_its_headers_is_refused(tmp_path: Path) -> None:
    database(tmp_path / "java/rocksdb/store", {"keyValueWithTimestampAndHeaders": {b"a": b"\0abc"}, "offsets": OFFSETS})
    with pytest.raises(DamagedDataError, match="no value with headers"):
        copied(tmp_path / "java", tmp_path / "here", Layout("key_value", timestamped=True, headers=True))


def test_segments_of_a_killed_process_with_different_offsets_are_not_closed(tmp_path: Path) -> None:
    for start, offsets in ((0, {str(PLACE).encode(): i64(8)}), (60_000, {str(PLACE).encode(): i64(9)})):
        rows = {window_key(b"key", start): b"1"}
        database(tmp_path / f"java/store/store.{start}", {"default": rows, "offsets": offsets})
    files = find_java_store(tmp_path / "java", "store")
    assert files is not None
    with JavaStore(files) as java:
        assert not java.is_closed


def test_segments_become_one_database_in_the_order_of_time(tmp_path: Path) -> None:
    for start in (60_000, 0, 600_000):
        rows = {window_key(b"key", start): b"1", window_key(b"other", start + 59_999): b"2"}
        database(tmp_path / f"java/store/store.{start}", {"default": rows, "offsets": OFFSETS})
    rows = copied(tmp_path / "java", tmp_path / "here", Layout("window", segment_interval_ms=60_000))
    assert list(rows) == sorted(rows)
    assert len(rows) == 6
    assert rows[i64(10) + window_key(b"key", 600_000)] == b"1"
    assert java_stores(tmp_path / "java") == ["store"]


def test_a_segment_whose_families_a_kill_prevented_has_no_rows(tmp_path: Path) -> None:
    """Java makes the families of a new segment after its database."""
    row = {window_key(b"key", 0): i64(7) + b"1"}
    database(tmp_path / "java/store/store.0", {"keyValueWithTimestamp": row, "offsets": OFFSETS})
    database(tmp_path / "java/store/store.60000", {"default": {}, "offsets": OFFSETS})
    layout = Layout("window", timestamped=True, segment_interval_ms=60_000)
    rows = copied(tmp_path / "java", tmp_path / "here", layout)
    assert rows == {i64(0) + window_key(b"key", 0): i64(7) + b"1"}


def test_segments_of_another_length_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    database(tmp_path / "java/store/store.60000", {"default": {window_key(b"key", 60_000): b"1"}, "offsets": OFFSETS})
    with pytest.raises(TopologyError, match="retention that Java has"):
        copied(tmp_path / "java", tmp_path / "here", Layout("window", segment_interval_ms=50_000))
    assert list((tmp_path / "here").iterdir()) == []


def test_a_store_that_was_open_and_one_with_headers_say_so(tmp_path: Path) -> None:
    opened = {**OFFSETS, b"status": i64(1)}
    position = Position.of({TopicPartition("in", 3): 4})
    families = {
        "keyValueWithTimestampAndHeaders": {b"a": b"row"},
        "offsets": {**opened, b"position": position.encode()},
    }
    database(tmp_path / "java/rocksdb/store", families)
    with JavaStore(JavaFiles(tmp_path / "java", "store", (tmp_path / "java/rocksdb/store",))) as java:
        assert (java.is_closed, java.has_headers, java.timestamped) == (False, True, True)
        assert (java.offsets, java.position) == ({PLACE: 8}, position)


def test_offsets_before_4_3_come_from_the_checkpoint_file_of_the_task(tmp_path: Path) -> None:
    database(tmp_path / "java/rocksdb/store", {"default": {b"a": b"1"}})
    (tmp_path / "java/.checkpoint").write_text(f"0\n2\n{PLACE.topic} {PLACE.partition} 8\nother 3 -4\n")
    (tmp_path / "java/store.position").write_text("0\n1\nin 3 4\n")
    with JavaStore(JavaFiles(tmp_path / "java", "store", (tmp_path / "java/rocksdb/store",))) as java:
        assert (java.offsets, java.position) == ({PLACE: 8}, Position.of({TopicPartition("in", 3): 4}))
        assert not java.has_own_offsets
    assert copied(tmp_path / "java", tmp_path / "here", Layout("key_value")) == {b"a": b"1"}


def test_a_row_that_is_no_version_is_refused_in_a_versioned_store(tmp_path: Path) -> None:
    database(tmp_path / "java/rocksdb/store", {"default": {b"a": b"1"}, "offsets": OFFSETS})
    with pytest.raises(TopologyError, match="not those of a versioned store"):
        copied(tmp_path / "java", tmp_path / "here", Layout("versioned", segment_interval_ms=20_000))


def test_stream_time_and_the_number_of_duplicates_go_on_in_the_copy(tmp_path: Path) -> None:
    for start in (0, 60_000, 120_000):
        rows = {window_key(b"key", start + 5, number): b"1" for number in (start // 60_000, 9 - start // 60_000)}
        database(tmp_path / f"java/store/store.{start}", {"default": rows, "offsets": OFFSETS})
    layout = Layout("window", segment_interval_ms=60_000, retain_duplicates=True)
    assert len(copied(tmp_path / "java", tmp_path / "here", layout)) == 6
    with OfflineStore(tmp_path / "here/rocksdb/store") as store:
        assert (store.commit.stream_time_ms, store.commit.sequence) == (120_005, 9)
