"""Splits: ranges of stored keys by RocksDB's tables, each key in one, and about as large as asked for."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from stateline_store import IsolationLevel, KeyValueStore, StoreContext, store_path
from stateline_store.reads.splits import LONGEST_BOUNDARY, TableFile, common, splits
from stateline_store.rocksdb.options import Tuning
from stateline_store.scan import EVERY_KEY, KeyRange
from stateline_store.snapshots.checkpoints import Checkpoint, CheckpointPart, link_database

_KEYS = st.binary(max_size=4)
_TABLES = st.lists(st.builds(lambda a, b, n: TableFile(min(a, b), max(a, b), n), _KEYS, _KEYS, st.integers(1, 1000)))


@given(_TABLES, st.integers(1, 3000))
def test_every_key_is_in_one_split_and_every_byte_is_counted(tables: list[TableFile], size: int) -> None:
    found = splits(tables, size)
    assert found[0].keys.start == b""
    assert found[-1].keys.end is None
    assert [each.keys.end for each in found[:-1]] == [each.keys.start for each in found[1:]]
    assert not any(each.keys.is_empty for each in found)
    assert abs(sum(each.size for each in found) - sum(table.size for table in tables)) <= len(found)


def test_tables_that_follow_each_other_are_put_together_to_the_size_that_is_asked_for() -> None:
    tables = [TableFile(b"%03d" % n, b"%03d!" % n, 10) for n in range(100)]
    assert [each.size for each in splits(tables, 10)] == [10] * 100
    assert [each.size for each in splits(tables, 250)] == [250] * 4
    assert splits(tables, 10_000) == [(EVERY_KEY, 1000)] == splits(reversed(tables), 10_000)
    assert splits([], 1) == [(EVERY_KEY, 0)]


def test_small_tables_make_no_boundary_nor_do_long_keys_make_long_ones() -> None:
    tables = [TableFile(b"a", b"c", 1000), TableFile(b"b", b"b", 1), TableFile(b"d" * 5000, b"e", 1000)]
    assert [each.keys.start for each in splits(tables, 500)] == [b"", b"d" * LONGEST_BOUNDARY]


@given(*[st.builds(KeyRange, _KEYS, st.none() | _KEYS)] * 2, _KEYS)
def test_what_two_ranges_have_in_common_is_in_both(one: KeyRange, other: KeyRange, key: bytes) -> None:
    def has(keys: KeyRange) -> bool:
        return keys.start <= key and (keys.end is None or key < keys.end)

    assert has(common(one, other)) == (has(one) and has(other))


def test_the_splits_of_a_checkpoint_have_all_rows_of_tables_and_logs(tmp_path: Path) -> None:
    store = KeyValueStore("s", tuning=Tuning(64 * 1024, 256 * 1024))
    store.init(StoreContext("0_0", tmp_path / "0_0"))
    oracle: dict[bytes, bytes] = {}
    for commit in range(30):
        rows = {b"%06d" % (commit * 250 + n): os.urandom(100) for n in range(300)}
        for row in rows.items():
            store.put(*row)
        oracle |= rows
        store.commit({})
    (tmp_path / "snapshot").mkdir()
    lengths = link_database(store_path(tmp_path / "0_0", "s", timestamped=False), tmp_path / "snapshot" / "s")
    position = store.position(IsolationLevel.READ_COMMITTED)
    part = CheckpointPart("s", 0, "s", store.commit_number, 0, position, lengths)
    store.close()
    with Checkpoint(tmp_path / "snapshot", part) as checkpoint:
        for size in (1, 50_000, 200_000):
            found = checkpoint.splits(size)
            assert len(found) > 1
            assert [row for each in found for row in checkpoint.scan(each.keys)] == sorted(oracle.items())
        assert len(checkpoint.splits(10**9)) == 1
