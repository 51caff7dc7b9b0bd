"""Timestamped stores over plain files: what an application sees of them, and what is on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from stateline_store import (
    IsolationLevel,
    KeyValueStore,
    Position,
    SecondaryReader,
    SessionStore,
    StoreClosedError,
    StoreContext,
    TimestampedKeyValueStore,
    TimestampedSessionStore,
    TimestampedWindowStore,
    TopicPartition,
    TopologyError,
    TransactionalStore,
    Windowed,
    WindowStore,
)
from stateline_store.engines.engine import Commit, Engine
from stateline_store.engines.memory_engine import MemoryEngine
from stateline_store.files.directory import notice_path, store_path
from stateline_store.reads.plain_values import PlainValuesEngine, PlainValuesReader
from stateline_store.rocksdb.engine import RocksDBEngine
from stateline_store.rocksdb.offline_store import OfflineStore
from stateline_store.scan import EVERY_KEY, KeyRange

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
CHANGELOG = TopicPartition("changelog", 0)
UNKNOWN = b"\xff" * 8  # the timestamp -1
AT_5 = (5).to_bytes(8, "big")
HOUR_MS = 3_600_000


@pytest.fixture
def plain(tmp_path: Path) -> StoreContext:
    """A context that opens timestamped stores on plain files."""
    return StoreContext("0_0", tmp_path, CHANGELOG, plain_format=True)


@pytest.fixture
def upgrading(plain: StoreContext) -> Iterator[TimestampedKeyValueStore]:
    """A store declared as timestamped, over plain files that hold a=1, b=2, c=b"" from before."""
    with closing(KeyValueStore("s")) as old:
        old.init(plain)
        old.put_all([(b"a", b"1"), (b"b", b"2"), (b"c", b"")])
        old.commit({CHANGELOG: 3}, position=Position({"in": {0: 7}}))
    with closing(TimestampedKeyValueStore("s")) as store:
        store.init(plain)
        yield store


@pytest.fixture(params=["rocksdb", "memory"])
def engines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Engine, PlainValuesEngine]]:
    """An engine, and the timestamped view of it."""
    engine: Engine = RocksDBEngine(tmp_path / "s") if request.param == "rocksdb" else MemoryEngine()
    with closing(PlainValuesEngine(engine)) as shown:
        yield engine, shown


def test_timestamps_do_not_reach_the_engine_below_and_come_back_as_unknown(
    engines: tuple[Engine, PlainValuesEngine],
) -> None:
    below, shown = engines
    shown.write({b"a": AT_5 + b"1", b"b": AT_5, b"gone": AT_5 + b"x"}, Commit(1))
    shown.write({b"gone": None}, Commit(2, position=Position({"in": {0: 3}})))
    assert [below.get(key) for key in (b"a", b"b", b"gone")] == [b"1", b"", None]
    assert [shown.get(key) for key in (b"a", b"b", b"gone")] == [UNKNOWN + b"1", UNKNOWN, None]
    assert shown.last_commit() == below.last_commit()
    assert shown.last_commit().number == 2
    assert shown.approximate_num_entries() == below.approximate_num_entries()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("keys", [EVERY_KEY, KeyRange(b"010", b"500"), KeyRange.prefixed(b"9"), KeyRange(b"5", b"5")])
def test_a_scan_has_the_rows_of_the_engine_below_with_unknown_timestamps(
    engines: tuple[Engine, PlainValuesEngine], keys: KeyRange, reverse: bool
) -> None:
    below, shown = engines
    shown.write({b"%03d" % n: AT_5 + b"%d" % n for n in range(1_000)}, Commit(1))
    with below.scan(keys, reverse=reverse) as rows:
        wanted = [(key, UNKNOWN + value) for key, value in rows]
    scan = shown.scan(keys, reverse=reverse)
    shown.write({b"%03d" % n: None for n in range(1_000)}, Commit(2))
    with scan:
        assert list(scan) == wanted
    with shown.scan(keys, reverse=reverse) as rows:
        assert list(rows) == []


def test_rows_of_before_have_no_timestamp_and_new_ones_until_they_are_committed(
    upgrading: TimestampedKeyValueStore,
) -> None:
    upgrading.put_with_timestamp(b"b", b"3", 5)
    upgrading.put_with_timestamp(b"d", b"4", 6)
    upgrading.delete(b"c")
    staged = {key: tuple(found) for key, found in upgrading.all_with_timestamp()}
    assert staged == {b"a": (b"1", -1), b"b": (b"3", 5), b"d": (b"4", 6)}
    assert [tuple(change) for change in upgrading.staged_changes()] == [(b"b", b"3", 5), (b"c", None, None),
                                                                        (b"d", b"4", 6)]  # fmt: skip
    with upgrading.reader(COMMITTED).scan(EVERY_KEY) as rows:
        assert dict(rows) == {b"a": UNKNOWN + b"1", b"b": UNKNOWN + b"2", b"c": UNKNOWN}
    upgrading.commit({CHANGELOG: 9}, position=Position({"in": {0: 8}}))
    assert {key: tuple(found) for key, found in upgrading.all_with_timestamp()} == {
        b"a": (b"1", -1), b"b": (b"3", -1), b"d": (b"4", -1),
    }  # fmt: skip
    assert upgrading.committed_offset(CHANGELOG) == 9
    assert upgrading.position(COMMITTED) == Position({"in": {0: 8}})


def test_the_files_stay_those_of_a_plain_store(upgrading: TimestampedKeyValueStore, plain: StoreContext) -> None:
    upgrading.put_with_timestamp(b"b", b"3", 5)
    upgrading.commit({CHANGELOG: 9})
    upgrading.close()
    assert [path.name for path in (plain.directory / "rocksdb").iterdir()] == ["s"]
    with closing(KeyValueStore("s")) as old:
        old.init(plain)
        assert dict(old.all()) == {b"a": b"1", b"b": b"3", b"c": b""}
        assert old.committed_offset(CHANGELOG) == 9


def test_a_rollback_takes_back_timestamps_too(upgrading: TimestampedKeyValueStore) -> None:
    upgrading.put_with_timestamp(b"b", b"3", 5)
    upgrading.rollback()
    assert upgrading.get_with_timestamp(b"b") == (b"2", -1)


def test_an_iterator_over_plain_files_does_not_take_a_closed_store_for_the_end(
    upgrading: TimestampedKeyValueStore,
) -> None:
    upgrading.put_all((b"%04d" % n, b"v") for n in range(5_000))
    upgrading.commit({})
    rows = upgrading.reader(COMMITTED).scan(EVERY_KEY)
    next(rows)
    upgrading.close()
    with pytest.raises(StoreClosedError):
        list(rows)


def test_a_wiped_store_takes_the_plain_files_with_it_and_no_others(
    upgrading: TimestampedKeyValueStore, plain: StoreContext
) -> None:
    built = store_path(plain.directory, "s", timestamped=True)
    built.mkdir()
    upgrading.close()
    upgrading.wipe()
    assert [path.name for path in (plain.directory / "rocksdb").iterdir()] == [built.name]


def test_a_reader_in_another_process_shows_what_the_owner_shows(
    upgrading: TimestampedKeyValueStore, plain: StoreContext, tmp_path: Path
) -> None:
    store, notice = (find(plain.directory, "s", timestamped=False) for find in (store_path, notice_path))
    with closing(SecondaryReader(store, notice, tmp_path / "scratch")) as secondary:
        there, here = PlainValuesReader(secondary), upgrading.reader(COMMITTED)
        for round_ in range(3):
            for read in (
                lambda reader: list(reader.scan(EVERY_KEY)),
                lambda reader: list(reader.range(b"a", b"b", reverse=True)),
                lambda reader: list(reader.prefix_scan(b"c")),
                lambda reader: [reader.get(key) for key in (b"a", b"zz")],
                lambda reader: (reader.position, reader.stream_time_ms, reader.isolation_level),
            ):
                assert read(there) == read(here)
            upgrading.put_with_timestamp(b"a", b"%d" % round_, round_)
            upgrading.commit({}, position=Position({"in": {0: 8 + round_}}))
            secondary.refresh()
        assert there.get(b"a") == UNKNOWN + b"2"


def windows() -> tuple[WindowStore, TimestampedWindowStore]:
    return (
        WindowStore("s", retention_ms=HOUR_MS, window_size_ms=10),
        TimestampedWindowStore("s", retention_ms=HOUR_MS, window_size_ms=10),
    )


def test_windows_over_plain_files_expire_and_keep_their_stream_time(plain: StoreContext) -> None:
    before, now = windows()
    with closing(before) as old:
        old.init(plain)
        old.put(b"k", b"1", HOUR_MS)
        old.commit({})
    with closing(now) as store:
        store.init(plain)
        assert store.stream_time_ms == HOUR_MS
        store.put_with_timestamp(b"k", b"2", 17, HOUR_MS + 10)
        assert next(iter(store.staged_changes()))[1:] == (b"2", 17)
        store.commit({})
        assert dict(store.fetch_with_timestamp(b"k", 0, 2 * HOUR_MS)) == {HOUR_MS: (b"1", -1), HOUR_MS + 10: (b"2", -1)}
        store.put_with_timestamp(b"k", b"3", 18, 9 * HOUR_MS)
        store.commit({})
    with OfflineStore(store_path(plain.directory, "s", timestamped=False)) as files, files.scan(EVERY_KEY) as rows:
        assert [value for _, value in rows] == [b"3"]


def test_sessions_over_plain_files_are_read_without_timestamps(plain: StoreContext) -> None:
    session = Windowed(b"k", 5, 9)
    with closing(SessionStore("s", retention_ms=HOUR_MS)) as old:
        old.init(plain)
        old.put(session, b"1")
        old.commit({})
    with closing(TimestampedSessionStore("s", retention_ms=HOUR_MS)) as store:
        store.init(plain)
        assert store.fetch_session_with_timestamp(b"k", 5, 9) == (b"1", -1)
        store.remove(session)
        store.put_with_timestamp(Windowed(b"k", 5, 12), b"2", 12)
        store.commit({})
        assert [tuple(found) for _, found in store.fetch_with_timestamp(b"k")] == [(b"2", -1)]


KINDS: dict[str, Callable[[], TransactionalStore]] = {
    "key_value": lambda: TimestampedKeyValueStore("s"),
    "window": lambda: windows()[1],
    "session": lambda: TimestampedSessionStore("s", retention_ms=HOUR_MS),
}


@pytest.mark.parametrize("written", KINDS)
@pytest.mark.parametrize("opened", KINDS)
def test_plain_files_are_those_of_their_own_kind_only(plain: StoreContext, written: str, opened: str) -> None:
    with ExitStack() as closed:
        first = closed.enter_context(closing(KINDS[written]()))
        first.init(plain)
        first.close()
        store = closed.enter_context(closing(KINDS[opened]()))
        if written == opened:
            store.init(plain)
        else:
            with pytest.raises(TopologyError, match=f"holds a {written} store"):
                store.init(plain)


def test_files_with_timestamps_under_the_plain_name_are_refused(plain: StoreContext) -> None:
    with closing(TimestampedKeyValueStore("s")) as store:
        store.init(StoreContext("0_0", plain.directory, CHANGELOG))
        store.put_with_timestamp(b"a", b"1", 5)
        store.commit({})
    old, new = (store_path(plain.directory, "s", timestamped=timestamped) for timestamped in (True, False))
    old.rename(new)
    with pytest.raises(TopologyError, match="holds a timestamped_key_value store"):
        TimestampedKeyValueStore("s").init(plain)
    with OfflineStore(new) as files:
        assert files.commit.number == 1
