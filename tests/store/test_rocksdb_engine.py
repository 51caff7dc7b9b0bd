"""What lies on disk, and what happens when it cannot be read or written."""

import ctypes
import gc
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Cache, Options, Rdict, ReadOptions, WriteBufferManager

from stateline_store import (
    CallerError,
    DamagedDataError,
    IsolationLevel,
    KeyValueStore,
    LockedError,
    NotPresentError,
    PoisonedError,
    Position,
    RetryLaterError,
    SecondaryReader,
    StoreContext,
    TopicPartition,
)
from stateline_store.engines.engine import Commit
from stateline_store.rocksdb import options as rocksdb_options
from stateline_store.rocksdb.engine import RocksDBEngine
from stateline_store.rocksdb.options import DEFAULT_TUNING, WRITE_BUFFERS_BYTES, primary_options
from stateline_store.rocksdb.rows import rows_at_least
from stateline_store.scan import EVERY_KEY, LARGEST_CHUNK_BYTES
from support.rocksdb import database_of, offsets_of, write_to
from support.run.patience import HANGING_S

CHANGELOG = TopicPartition("my-topic", 3)


@pytest.fixture
def store(context: StoreContext) -> Iterator[KeyValueStore]:
    store = KeyValueStore("s")
    store.init(context)
    yield store
    store.close()


@pytest.fixture
def directory(context: StoreContext) -> Path:
    return context.directory / "rocksdb" / "s"


def test_the_offsets_column_family_holds_the_documented_rows(tmp_path: Path) -> None:
    engine = RocksDBEngine(tmp_path / "db")
    position = Position({"in": {3: 5}})
    engine.write({b"k": b"v"}, Commit(7, 1234, position, {CHANGELOG: -2}))
    rows = dict(database_of(engine).get_column_family("offsets").items())
    assert rows == {
        b"my-topic-3": struct.pack(">q", -2),
        b"position": position.encode(),
        b"format_version": struct.pack(">I", 1),
        b"commit_number": struct.pack(">Q", 7),
        b"committed_at": struct.pack(">Q", 1234),
        b"layout": b'{"kind": "key_value", "retain_duplicates": false, "segment_interval_ms": null, '
        b'"timestamped": false}',
    }
    assert dict(database_of(engine).items()) == {b"k": b"v"}
    engine.close()


def test_a_commit_keeps_the_offsets_that_it_does_not_move(tmp_path: Path) -> None:
    engine = RocksDBEngine(tmp_path / "db")
    other = TopicPartition("t", 0)
    engine.write({}, Commit(1, 1, Position(), {CHANGELOG: 1, other: 5}))
    engine.write({}, Commit(2, 2, Position(), {CHANGELOG: 2}))
    assert engine.last_commit().offsets == {CHANGELOG: 2, other: 5}
    engine.close()


def test_a_newer_format_is_refused_by_its_number(store: KeyValueStore, context: StoreContext) -> None:
    offsets_of(store)[b"format_version"] = struct.pack(">I", 9)
    store.close()
    with pytest.raises(CallerError, match=r"format version 9.*up to 1"):
        store.init(context)
    assert not store.is_open


def test_a_store_open_elsewhere_is_locked(store: KeyValueStore, context: StoreContext) -> None:
    with pytest.raises(LockedError, match="rocksdb/s"):
        KeyValueStore("s").init(context)
    script = (
        "import sys; from pathlib import Path; from stateline_store import *\n"
        "try: KeyValueStore('s').init(StoreContext('0_0', Path(sys.argv[1])))\n"
        "except LockedError: sys.exit(7)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(context.directory)], check=False).returncode == 7
    store.put(b"k", b"v")
    store.commit({})


class FailingDatabase:
    """The seam: a database whose next writes fail, everything else goes through."""

    def __init__(self, db: Rdict, message: str) -> None:
        self._db = db
        self._message = message

    def write(self, *_: object) -> None:
        raise Exception(self._message)

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)


def test_a_failed_commit_poisons_the_store_until_it_is_reopened(store: KeyValueStore, context: StoreContext) -> None:
    store.put(b"kept", b"1")
    store.commit({CHANGELOG: 1})
    reader, scan = store.reader(IsolationLevel.READ_COMMITTED), store.all()
    store.put(b"lost", b"1")
    failing: Any = FailingDatabase(database_of(store), "IO error: No space left on device: While appending to file")
    write_to(store, failing)
    del failing
    with pytest.raises(PoisonedError, match="No space left on device"):
        store.commit({CHANGELOG: 2})
    for call in (
        lambda: store.get(b"kept"),
        lambda: store.put(b"k", b"v"),
        lambda: store.get(b"lost"),
        lambda: store.all(),
        lambda: store.commit({CHANGELOG: 3}),
        lambda: store.rollback(),
        lambda: reader.get(b"kept"),
        lambda: store.position(IsolationLevel.READ_COMMITTED),
    ):
        with pytest.raises(PoisonedError):
            call()
    with pytest.raises((PoisonedError, CallerError)):
        list(scan)
    store.close()
    store.init(context)
    assert dict(store.all()) == {b"kept": b"1"}
    assert store.committed_offset(CHANGELOG) == 1


def test_a_failed_forget_poisons_the_store_until_it_is_reopened(store: KeyValueStore, context: StoreContext) -> None:
    store.commit({CHANGELOG: 1}, position=Position({"gone": {0: 7}}))
    failing: Any = FailingDatabase(database_of(store), "IO error: No space left on device")
    write_to(store, failing)
    del failing
    with pytest.raises(PoisonedError, match="No space left on device"):
        store.forget("gone")
    with pytest.raises(PoisonedError):
        store.put(b"k", b"v")
    with pytest.raises(PoisonedError):
        store.rollback()
    store.close()
    store.init(context)
    assert store.position(IsolationLevel.READ_COMMITTED) == Position({"gone": {0: 7}})


@pytest.mark.parametrize("sync", [False, True])
def test_commits_and_forgetting_a_topic_are_synced_if_that_is_set(tmp_path: Path, sync: bool) -> None:
    store, synced = KeyValueStore("s"), list[bool]()
    store.init(StoreContext("0_0", tmp_path, CHANGELOG, sync=sync))

    class Watched(FailingDatabase):
        def write(self, *arguments: Any) -> None:
            synced.append(arguments[1].sync)
            self._db.write(*arguments)

    watched: Any = Watched(database_of(store), "")
    write_to(store, watched)
    store.put(b"a", b"1")
    store.commit({CHANGELOG: 1}, position=Position({"gone": {0: 7}}))
    store.forget("gone")
    assert synced == [sync, sync]
    store.close()


def test_a_real_write_error_poisons_the_store_and_loses_nothing_committed(tmp_path: Path) -> None:
    # A file size limit is a disk that fills up, without needing one; its signal must be ignored to get the error.
    script = (
        "import resource, signal, sys; from pathlib import Path; from stateline_store import *\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "s = KeyValueStore('s'); s.init(StoreContext('0_0', Path(sys.argv[1])))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))\n"
        "n = 0\n"
        "try:\n"
        "    while n < 100:\n"
        "        s.put(b'%03d' % n, bytes(100_000)); s.commit({}); n += 1\n"
        "except PoisonedError: print(n)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True, timeout=HANGING_S
    )
    committed = int(ran.stdout)
    store = KeyValueStore("s")
    store.init(StoreContext("0_0", tmp_path))
    assert [key for key, _ in store.all()] == [b"%03d" % n for n in range(committed)]
    assert store.commit_number == committed
    store.close()


def _spoil(pattern: str) -> Callable[[Path], None]:
    def spoil(directory: Path) -> None:
        for path in directory.glob(pattern):
            data = path.read_bytes()
            path.write_bytes(data[: len(data) // 4] + b"\x55" * (len(data) - len(data) // 4))

    return spoil


@pytest.mark.parametrize("pattern", ["MANIFEST-*", "CURRENT", "*.sst"])
def test_damage_is_named_and_never_wiped(
    store: KeyValueStore, context: StoreContext, directory: Path, pattern: str
) -> None:
    store.put_all((b"%05d" % i, bytes(100)) for i in range(5000))
    store.commit({})
    store.close()
    store.init(context)  # what was in the log is in table files from here on
    store.close()
    files = sorted(path.name for path in directory.glob("*.sst"))
    assert files
    _spoil(pattern)(directory)
    with pytest.raises(DamagedDataError, match=r"rocksdb/s is damaged.*delete this directory"):
        store.init(context)
    assert sorted(path.name for path in directory.glob("*.sst")) == files


def test_an_empty_current_is_damage(store: KeyValueStore, context: StoreContext, directory: Path) -> None:
    store.close()
    (directory / "CURRENT").write_bytes(b"")
    with pytest.raises(DamagedDataError, match="is damaged"):
        store.init(context)


def test_damage_in_the_middle_of_a_table_is_never_the_end_of_data(
    store: KeyValueStore, context: StoreContext, directory: Path
) -> None:
    store.put_all((b"%05d" % i, struct.pack(">I", i * 2654435761 % 2**32) * 25) for i in range(50_000))
    store.commit({})
    store.close()
    store.init(context)
    store.close()
    table = max(directory.glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(table.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 20_000] = bytes(20_000)
    table.write_bytes(data)
    store.init(context)
    with pytest.raises(DamagedDataError):
        list(store.all())
    with pytest.raises(DamagedDataError):
        list(store.all(reverse=True))


def test_a_wiped_store_is_empty_and_readers_are_told(
    store: KeyValueStore, context: StoreContext, directory: Path, tmp_path: Path
) -> None:
    store.put(b"k", b"v")
    store.commit({CHANGELOG: 4})
    reader = SecondaryReader(directory, context.directory / "s.notice", tmp_path / "scratch")
    with pytest.raises(CallerError):
        store.wipe()
    store.close()
    store.wipe()
    assert not directory.exists()
    with pytest.raises(NotPresentError):
        reader.refresh()
    store.init(context)
    assert list(store.all()) == []
    assert store.committed_offset(CHANGELOG) is None
    reader.refresh()
    assert (reader.get(b"k"), reader.position) == (None, Position())
    reader.close()


def test_a_wipe_mends_a_damaged_store(store: KeyValueStore, context: StoreContext, directory: Path) -> None:
    store.close()
    _spoil("MANIFEST-*")(directory)
    with pytest.raises(DamagedDataError):
        store.init(context)
    store.wipe()
    store.init(context)
    assert list(store.all()) == []


def test_an_unknown_column_family_is_refused(store: KeyValueStore, context: StoreContext) -> None:
    database_of(store).create_column_family("future", primary_options(DEFAULT_TUNING)).close()
    store.close()
    with pytest.raises(CallerError, match="column families"):
        store.init(context)


def test_a_copy_of_a_live_directory_opens_at_a_commit(store: KeyValueStore, directory: Path, tmp_path: Path) -> None:
    for n in range(1, 6):
        store.put_all((b"%02d" % i, bytes((n,))) for i in range(10))
        store.commit({CHANGELOG: n})
    shutil.copytree(directory, tmp_path / "copy")
    engine = RocksDBEngine(tmp_path / "copy")
    assert {value for _, value in engine.scan(EVERY_KEY)} == {bytes((5,))}
    assert engine.last_commit().offsets == {CHANGELOG: 5}
    engine.close()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "0_0").touch()
    with pytest.raises((RetryLaterError, CallerError), match="0_0"):
        KeyValueStore("s").init(StoreContext("0_0", tmp_path / "0_0"))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("large", ["key", "value"])
def test_large_rows_among_small_ones_are_not_read_ahead(store: KeyValueStore, large: str, reverse: bool) -> None:
    for number in range(1400):
        padding = bytes(200_000 if number // 10 == 70 else 10)
        key = b"%04d" % number
        store.put(*((key + padding, b"") if large == "key" else (key, padding)))
    store.commit({})
    chunks = list(store.all(reverse=reverse).chunks())
    assert sum(map(len, chunks)) == 1400
    assert max(sum(len(key) + len(value) for key, value in rows) for rows in chunks) < LARGEST_CHUNK_BYTES + 201_000


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("flushed", [False, True])
def test_a_scan_does_not_cross_the_deleted_rows_beside_its_range(
    store: KeyValueStore, monkeypatch: pytest.MonkeyPatch, flushed: bool, reverse: bool
) -> None:
    def few_steps() -> ReadOptions:
        options = ReadOptions()
        options.set_max_skippable_internal_keys(10)  # an iterator that has crossed more ends with an error
        return options

    monkeypatch.setattr("stateline_store.rocksdb.scans.ReadOptions", few_steps)
    rows = [b"b-one", b"c-1", b"c-2", b"d-one"]
    deleted = [letter + b"-%03d" % number for letter in (b"a", b"b-o", b"c", b"d", b"e") for number in range(100)]
    store.put_all([(key, b"v") for key in rows + deleted])
    store.commit({})
    store.put_all([(key, None) for key in deleted])
    store.commit({})
    if flushed:
        database_of(store).flush()
    for lower, upper, expected in (
        (b"b-one", b"b-one", 1),
        (b"c-1", b"c-2", 2),
        (b"d-on", b"d-oo", 1),
        (b"x", None, 0),
    ):
        assert len(list(store.range(lower, upper, reverse=reverse))) == expected
    assert not list(store.prefix_scan(b"bb", reverse=reverse))


def test_the_end_of_a_range_is_held_while_it_is_scanned(store: KeyValueStore) -> None:
    """RocksDB reads it out of the bytes that were given, with each step."""
    keys = [b"key-%02d" % number for number in range(100)]
    store.put_all([(key, b"v") for key in keys])
    store.commit({})
    scans = [iter(store.range(b"key-00", b"key-%02d" % end)) for end in range(100)]
    gc.collect()
    churn = [bytes((fill,)) * 7 for fill in range(256) for _ in range(100)]  # over what was freed
    assert [sum(1 for _ in scan) for scan in scans] == list(range(1, 101))
    del churn


def test_rocksdb_reads_the_end_of_a_range_from_the_very_bytes_that_were_given(tmp_path: Path) -> None:
    """What `rocksdb_scans` rests on: another version of rocksdict may copy them, or free them earlier."""
    engine = RocksDBEngine(tmp_path / "db")
    engine.write({b"%d" % number: b"" for number in range(10)}, Commit(1, 1))
    options, end = ReadOptions(), bytes(bytearray(b"8,"))
    options.set_iterate_upper_bound(end)
    rows = database_of(engine).items(read_opt=options)
    del options
    ctypes.memmove(id(end) + bytes.__basicsize__ - 1, b"3", 1)
    assert [key for key, _ in rows] == [b"0", b"1", b"2", b"3"]
    del rows
    engine.close()


def test_a_database_says_how_it_stands(store: KeyValueStore) -> None:
    for key in (b"a", b"b", b"c"):
        store.put(key, b"v")
    assert store.engine_properties()["num-entries-active-mem-table"] == 0
    store.commit({})
    found = store.engine_properties()
    assert found["num-entries-active-mem-table"] == found["estimate-num-keys"] == 3
    assert found["background-errors"] == found["is-write-stopped"] == 0
    assert found["size-all-mem-tables"] > 0


def test_a_store_in_memory_has_no_database_to_speak_of(context: StoreContext) -> None:
    store = KeyValueStore("m", persistent=False)
    store.init(context)
    assert store.engine_properties() == {}
    store.close()


def test_many_stores_of_few_rows_do_not_flush_at_each_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Cache(1024 * 1024), WriteBufferManager(WRITE_BUFFERS_BYTES // 12, False)
    monkeypatch.setattr(rocksdb_options, "_shared", lambda: shared)  # five stores are to it what sixty are to a worker
    engines = [RocksDBEngine(tmp_path / str(number)) for number in range(5)]
    for number in range(1, 41):
        rows: dict[bytes, bytes | None] = {b"%d-%d" % (number, row): b"v" * 100 for row in range(20)}
        for engine in engines:
            engine.write(rows, Commit(number, 1))
    files = list(tmp_path.rglob("*.sst"))
    for engine in engines:
        engine.close()
    assert not files


def test_stores_that_stand_still_with_full_memtables_do_not_make_another_one_flush_at_each_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Cache(1024 * 1024), WriteBufferManager(4 * 1024 * 1024, False)
    monkeypatch.setattr(rocksdb_options, "_shared", lambda: shared)
    restored = [RocksDBEngine(tmp_path / f"restored-{number}") for number in range(4)]
    for engine in restored:
        engine.write({b"%d" % row: b"v" * 1000 for row in range(870)}, Commit(1, 1))
    small = RocksDBEngine(tmp_path / "small")
    for number in range(1, 101):
        small.write({b"%d" % number: b"v"}, Commit(number, 1))
    deadline = time.monotonic() + 60
    while sum(engine.memtable_bytes for engine in restored) > 3 * 870 * 1100 or not list(tmp_path.rglob("*.sst")):
        assert time.monotonic() < deadline, "nothing was flushed"
        time.sleep(0.01)  # flushes happen in the background
    flushed = list(small.directory.glob("*.sst"))
    for engine in [small, *restored]:
        engine.close()
    assert not flushed
    for number in range(4):
        engine = RocksDBEngine(tmp_path / f"restored-{number}")
        assert (engine.last_commit().number, engine.get(b"869")) == (1, b"v" * 1000)
        engine.close()


def test_rows_are_at_least_those_of_the_largest_run_less_all_deletes(tmp_path: Path) -> None:
    (options := Options(raw_mode=True)).set_disable_auto_compactions(True)
    db = Rdict(str(tmp_path), options)
    steps = (
        (range(1000), b"x", 1000),
        (range(1000), b"y", 1000),
        (range(0, 1000, 2), None, 500),
        (range(9), b"z", 500),
    )
    assert rows_at_least(db, tmp_path) == 0
    for numbers, value, certain in steps:
        for number in numbers:
            key = b"%05d" % number
            db.delete(key) if value is None else db.put(key, value)
        db.flush()
        assert rows_at_least(db, tmp_path) == certain
    db.compact_range(None, None)
    assert rows_at_least(db, tmp_path) == 505
    db.close()
