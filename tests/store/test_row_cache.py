"""A database's owner reads what the database has, whatever it keeps in memory; and it keeps a bounded part."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from stateline_store import PoisonedError, Position
from stateline_store.engines import row_cache
from stateline_store.engines.engine import Commit
from stateline_store.engines.row_cache import UNKNOWN, RowCache
from stateline_store.rocksdb.engine import RocksDBEngine
from stateline_store.rows.transaction_buffer import ENTRY_OVERHEAD
from stateline_store.scan import KeyRange
from support.rocksdb import writes_of

ROW = ENTRY_OVERHEAD + 2 + 3  # bytes of a row as below


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[RocksDBEngine]:
    with closing(RocksDBEngine(tmp_path / "db")) as engine:
        yield engine


@pytest.fixture(autouse=True)
def no_other_caches() -> None:
    row_cache.shared.caches.clear()
    row_cache.shared.grown_bytes = 0


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


def held(*caches: RowCache) -> int:
    """Bytes of all that these caches have, counted one by one."""
    return sum(
        ENTRY_OVERHEAD + len(key) + len(value or b"")
        for cache in caches
        for generation in (cache.younger, cache.older)
        for key, value in generation.items()
    )


def test_of_rows_that_are_only_written_nothing_is_kept(engine: RocksDBEngine) -> None:
    engine.get(b"00")
    engine.write(rows(0, 50), commit(1))
    assert held(engine.cache) == 0


def test_of_rows_that_are_written_and_asked_for_all_are_kept(engine: RocksDBEngine) -> None:
    for number in range(1, 4):
        engine.get_many(list(rows(0, 20)))
        engine.write(rows(10, 50), commit(number))
    assert engine.cache.get(b"49") == b"abc"
    assert len(engine.cache.younger) == 50


def test_what_all_have_stays_within_the_budget_whatever_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = 200_000
    monkeypatch.setattr(row_cache, "ROW_CACHE_BYTES", budget)
    monkeypatch.setattr(row_cache, "_LOOK_BYTES", 1_000)
    chance = random.Random(1)
    caches = [RowCache() for _ in range(30)]
    largest = 0
    for _ in range(3_000):
        cache = chance.choice(caches)
        size = chance.choice([0, 3, 300, 3_000])
        written = {b"%d" % chance.randrange(60): bytes(chance.randrange(size + 1)) or None for _ in range(5)}
        chance.choice([cache.keep, cache.committed])(written)
        for key, value in written.items():
            assert cache.get(key) in (value, UNKNOWN)
        largest = max(largest, held(*caches))
    assert budget / 4 < largest <= budget + 2 * 15_000 + 1_000


def test_rows_that_come_again_stay_and_those_that_do_not_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_cache, "ROW_CACHE_BYTES", 80 * ROW)
    monkeypatch.setattr(row_cache, "_LOOK_BYTES", 1)
    cache, small = RowCache(), RowCache()
    small.keep(rows(0, 5))
    cache.keep(rows(0, 9))
    for first in range(15, 90, 5):
        cache.keep(rows(first, first + 5) | {b"hot": b"abc"})
        assert cache.get(b"hot") == b"abc"
    assert cache.get_many(list(rows(0, 50))) == [UNKNOWN] * 50
    assert cache.get_many(list(rows(80, 90))) == [b"abc"] * 10
    assert small.get_many(list(rows(0, 5))) == [b"abc"] * 5, "the largest one goes first"


def test_a_batch_that_would_fill_it_leaves_nothing_that_it_has_overwritten(
    engine: RocksDBEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_cache, "ROW_CACHE_BYTES", 100_000)
    engine.write({b"a": b"old", b"b": b"old"}, commit(1))
    assert engine.get_many([b"a", b"b"]) == [b"old", b"old"]
    engine.write({b"a": bytes(20_000)}, commit(2))
    assert engine.get_many([b"a", b"b"]) == [bytes(20_000), b"old"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError])
def test_a_write_that_is_interrupted_once_it_is_on_disk_is_read_from_there(
    engine: RocksDBEngine, monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
) -> None:
    engine.write({b"a": b"old"}, commit(1))
    assert engine.get(b"a") == b"old"
    write = writes_of(engine).commit

    def interrupted(*arguments: object, **named: object) -> None:
        write(*arguments, **named)  # type: ignore[arg-type]
        raise failure

    monkeypatch.setattr(writes_of(engine), "commit", interrupted)
    with pytest.raises((KeyboardInterrupt, PoisonedError)):
        engine.write({b"a": b"new"}, commit(2))
    if failure is KeyboardInterrupt:
        assert engine.get(b"a") == b"new"
    else:
        with pytest.raises(PoisonedError):
            engine.get(b"a")


def test_the_caches_of_other_threads_are_their_own(engine: RocksDBEngine) -> None:
    engine.get(b"00")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: len(row_cache.shared.caches)).result() == 0
        assert pool.submit(lambda: RowCache() in row_cache.shared.caches).result()
    assert list(row_cache.shared.caches) == [engine.cache]
