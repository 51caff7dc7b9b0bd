"""A database's owner reads what the database has, whatever it keeps in memory; and it keeps a bounded part."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stateline_store import Position, row_cache
from stateline_store.engine import Commit
from stateline_store.rocksdb_engine import RocksDBEngine
from stateline_store.row_cache import UNKNOWN, RowCache
from stateline_store.scan import KeyRange
from stateline_store.transaction_buffer import ENTRY_OVERHEAD

ROW = ENTRY_OVERHEAD + 2 + 3  # bytes of a row as below


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[RocksDBEngine]:
    with closing(RocksDBEngine(tmp_path / "db")) as engine:
        yield engine


@pytest.fixture(autouse=True)
def no_other_caches() -> None:
    for cache in list(row_cache._caches):
        cache.clear()


def commit(number: int) -> Commit:
    return Commit(number, 1, Position(), {})


def rows(first: int, last: int) -> dict[bytes, bytes | None]:
    return {b"%02d" % n: b"abc" for n in range(first, last)}


@pytest.mark.parametrize("budget_rows", [0, 7, 30, 1000])
def test_reads_equal_a_dict_however_little_is_kept(
    engine: RocksDBEngine, monkeypatch: pytest.MonkeyPatch, budget_rows: int
) -> None:
    monkeypatch.setattr(row_cache, "ROW_CACHE_BYTES", budget_rows * ROW)
    monkeypatch.setattr(row_cache, "_LOOK_BYTES", 1)
    expected: dict[bytes, bytes] = {}
    chance = random.Random(budget_rows)
    keys = [b"%02d" % n for n in range(60)]
    for number in range(1, 400):
        written = {key: chance.choice([None, b"%03d" % number]) for key in chance.sample(keys, chance.randrange(20))}
        expired = KeyRange(b"10", b"20") if not chance.randrange(10) else None
        if expired is not None:
            expected = {key: value for key, value in expected.items() if not b"10" <= key < b"20"}
            written = {key: value for key, value in written.items() if not b"10" <= key < b"20"}
        engine.write(written, commit(number), expired)
        for key, value in written.items():
            expected.pop(key, None)
            if value is not None:
                expected[key] = value
        some = chance.sample(keys, chance.randrange(8))
        assert engine.get_many(some) == [expected.get(key) for key in some]
        for key in chance.sample(keys, chance.randrange(8)):
            assert engine.get(key) == expected.get(key)


def test_what_is_kept_is_answered_without_the_database(engine: RocksDBEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.write(rows(0, 10), commit(1))
    read = [engine.get(b"03"), *engine.get_many([b"04", b"77"])]
    monkeypatch.setattr(engine, "_db", None)
    assert [engine.get(b"03"), *engine.get_many([b"04", b"77"])] == read == [b"abc", b"abc", None]
    monkeypatch.undo()


def test_of_rows_that_are_only_written_nothing_is_kept(engine: RocksDBEngine) -> None:
    engine.get(b"00")
    engine.write(rows(0, 50), commit(1))
    assert engine._cache.size_bytes == 0


def test_of_rows_that_are_written_and_asked_for_the_newest_are_kept(engine: RocksDBEngine) -> None:
    for number in range(1, 4):
        engine.get_many(list(rows(0, 20)))
        engine.write(rows(10, 50), commit(number))
    assert engine._cache.get(b"49") == b"abc"
    assert 49 * ROW < engine._cache.size_bytes <= 50 * ROW, "each once"


def test_the_largest_cache_of_the_process_forgets_first_and_what_was_kept_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_cache, "ROW_CACHE_BYTES", 40 * ROW)
    monkeypatch.setattr(row_cache, "_LOOK_BYTES", 1)
    small, large = RowCache(), RowCache()
    small.keep(rows(0, 5))
    large.keep(rows(0, 20))
    large.keep(rows(20, 36))  # beyond: these and the ones before are the older half now
    large.keep(rows(40, 50))  # and now they are gone
    assert small.get_many(list(rows(0, 5))) == [b"abc"] * 5
    assert large.get_many(list(rows(0, 36))) == [UNKNOWN] * 36
    assert large.get_many(list(rows(40, 50))) == [b"abc"] * 10
    assert small.size_bytes + large.size_bytes <= 40 * ROW
