"""The tables that a manifest names are those that RocksDB names, and without some of them it opens the others."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from stateline_store import (
    DamagedDataError,
    ExpiringKeyValueStore,
    IsolationLevel,
    KeyValueStore,
    StoreContext,
    TimestampedKeyValueStore,
    store_path,
)
from stateline_store.reads.splits import TableFile, splits
from stateline_store.rocksdb.manifest import manifest_path
from stateline_store.rocksdb.manifest_tables import LiveTable, drop_tables, live_tables
from stateline_store.rocksdb.options import Tuning
from stateline_store.rows.log_records import append_record, read_records
from stateline_store.scan import EVERY_KEY, KeyRange
from stateline_store.snapshots.checkpoints import Checkpoint, CheckpointPart, link_database


@pytest.fixture
def part(tmp_path: Path) -> CheckpointPart:
    """A store of many tables on several levels, with deletes, and rows in its log."""
    chance, store = random.Random(4), KeyValueStore("s", tuning=Tuning(60_000, 240_000))
    store.init(StoreContext("0_0", tmp_path / "0_0"))
    for number in range(60_000):
        key = b"%06d" % (number if number < 40_000 else chance.randrange(30_000, 40_000))
        store.put(key, None if chance.random() < 0.1 else b"%d" % number * 6)
        if number % 500 == 0:
            store.commit({})
    store.commit({})
    lengths = link_database(store_path(tmp_path / "0_0", "s", timestamped=False), tmp_path / "linked")
    shutil.copytree(tmp_path / "linked", tmp_path / "part")  # RocksDB goes on writing to what was linked
    for name, length in lengths.items():
        os.truncate(tmp_path / "part" / name, length)
    position = store.position(IsolationLevel.READ_COMMITTED)
    part = CheckpointPart("s", 0, "part", store.commit_number, 0, position, lengths)
    store.close()
    return part


def test_the_tables_are_those_that_rocksdb_names(part: CheckpointPart, tmp_path: Path) -> None:
    found = live_tables(tmp_path / "part")
    assert len({each.level for each in found}) > 1
    assert {each.family for each in found} == {0, 1}
    with Checkpoint(tmp_path, part) as checkpoint:
        for size in (1, 100_000, 400_000):
            tables = [TableFile(each.first, each.last, each.size) for each in found]
            assert splits(tables, size) == checkpoint.splits(size)
    there = {path.name: path.stat().st_size for path in (tmp_path / "part").glob("*.sst")}
    assert {each.name: each.size for each in found}.items() <= there.items()


def test_a_split_is_read_without_the_tables_of_others(part: CheckpointPart, tmp_path: Path) -> None:
    with Checkpoint(tmp_path, part) as checkpoint:
        every, found = list(checkpoint.scan(EVERY_KEY)), checkpoint.splits(200_000)
    assert len(found) > 2
    read, most = list[tuple[bytes, bytes]](), 0
    for number, (keys, _) in enumerate(found):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "part", folder / "part")
        tables = live_tables(folder / "part")
        others = [each for each in tables if each.family == 0 and not each.has_keys_in(keys)]
        drop_tables(folder / "part", others)
        for each in others:
            (folder / "part" / each.name).unlink()
        assert {each.number for each in live_tables(folder / "part")} == {
            each.number for each in tables if each not in others
        }
        most = max(most, len(others))
        manifest = manifest_path(folder / "part")
        grown = {**part.lengths, manifest.name: manifest.stat().st_size}
        with Checkpoint(folder, replace(part, lengths=grown)) as checkpoint:
            read += checkpoint.scan(keys)
    assert read == every
    assert most > 3


def test_the_tables_of_an_index_of_expiries_have_its_name_and_go_with_it(tmp_path: Path) -> None:
    found = list[set[str]]()
    for number, store in enumerate((ExpiringKeyValueStore("s", ttl_ms=100), TimestampedKeyValueStore("s"))):
        store.init(StoreContext("0_0", tmp_path))
        store.put_with_timestamp(b"k", b"v", 1)
        store.commit({})
        store.close()
        link_database(store_path(tmp_path, "s", timestamped=True), tmp_path / str(number))
        tables = live_tables(tmp_path / str(number))
        assert all((tmp_path / str(number) / each.name).exists() for each in tables)
        found.append({each.family_name for each in tables})
    assert found == [{"default", "offsets", "expiry"}, {"default", "offsets"}]


def test_the_rows_are_read_without_the_tables_of_an_index_of_expiries(tmp_path: Path) -> None:
    store, path = ExpiringKeyValueStore("s", ttl_ms=100), tmp_path / "part"
    for key in (b"in a table", b"in the log"):
        store.init(StoreContext("0_0", tmp_path))  # what the log holds is flushed
        store.put_with_timestamp(key, b"v", 1)
        store.commit({})
        if key == b"in a table":
            store.close()
    lengths = link_database(store_path(tmp_path, "s", timestamped=True), tmp_path / "linked")
    shutil.copytree(tmp_path / "linked", path)
    position, number = store.position(IsolationLevel.READ_COMMITTED), store.commit_number
    store.close()
    index = [each for each in live_tables(path) if each.family_name == "expiry"]
    drop_tables(path, index)
    for each in index:
        (path / each.name).unlink()
    lengths[manifest_path(path).name] = manifest_path(path).stat().st_size
    with Checkpoint(tmp_path, CheckpointPart("s", 0, "part", number, 0, position, lengths)) as checkpoint:
        assert [key for key, _ in checkpoint.scan(EVERY_KEY)] == [b"in a table", b"in the log"]
    assert index


def test_a_manifest_without_its_end_is_refused(part: CheckpointPart, tmp_path: Path) -> None:
    manifest = manifest_path(tmp_path / part.directory)
    content = manifest.read_bytes()
    manifest.unlink()
    manifest.write_bytes(content[:-1])
    with pytest.raises(DamagedDataError, match="in the middle of an edit"):
        live_tables(tmp_path / "part")


def test_tables_with_keys_in_a_range_are_found() -> None:
    table = LiveTable(0, 0, 7, 1, b"b", b"d")
    inside = [KeyRange(), KeyRange(b"d"), KeyRange(b"a", b"b\0"), KeyRange(b"c", b"c\0")]
    outside = [KeyRange(b"d\0"), KeyRange(b"a", b"b"), KeyRange(b"c", b"c"), KeyRange(b"", b"")]
    assert [table.has_keys_in(each) for each in (*inside, *outside)] == [True] * 4 + [False] * 4


def test_records_of_any_length_can_be_appended(tmp_path: Path) -> None:
    chance, log = random.Random(1), tmp_path / "log"
    lengths = [0, 1, 100, 32_000, 32_747, 32_754, 32_761, 32_768, 100_000]
    written = [chance.randbytes(chance.choice(lengths)) for _ in range(200)]
    for each in written:
        append_record(log, each)
    assert [record for record, _ in read_records(log, checked=True)] == written
