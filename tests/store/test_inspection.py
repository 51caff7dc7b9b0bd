"""Inspecting a state directory: what it shows, what it says of damage, and that it writes nothing."""

from __future__ import annotations

import itertools
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict

from stateline_store import (
    CallerError,
    DamagedDataError,
    DoesNotExistError,
    InvalidArgumentError,
    KeyValueStore,
    Layout,
    Position,
    RetryLaterError,
    StateDirectory,
    StoreContext,
    TimestampedKeyValueStore,
    TopicPartition,
    VersionedStore,
)
from stateline_store.engines.engine import Commit
from stateline_store.inspection.inspection import inspect_directory, inspect_store, inspect_task, lock_holder
from stateline_store.inspection.inspection_report import StoreReport
from stateline_store.inspection.offline_entries import Entry, entries
from stateline_store.rocksdb import offline_store
from stateline_store.rocksdb.engine import RocksDBEngine
from stateline_store.rocksdb.offline_store import OfflineStore
from stateline_store.rocksdb.rows import read_commit
from stateline_store.rows.segments import PREFIX, present
from stateline_store.rows.windowed_keys import session_key, split_window_key, window_key
from support.rocksdb import database_of

CHANGELOG = TopicPartition("app-orders-changelog", 3)
MINUTE = 60_000


def filled(task: Path, store: KeyValueStore, rows: dict[bytes, bytes]) -> KeyValueStore:
    """The store, open in this task, with these rows committed."""
    store.init(StoreContext(task.name, task, CHANGELOG))
    for key, value in rows.items():
        store.put(key, value)
    store.commit({CHANGELOG: 7}, position=Position({"orders": {3: 9}}))
    return store


def on_disk(directory: Path) -> dict[str, tuple[int, int, int]]:
    """Every file and directory below: mode, size, modification time."""
    found = ((path, path.lstat()) for path in directory.rglob("*"))
    return {str(path): (stat.st_mode, stat.st_size, stat.st_mtime_ns) for path, stat in found}


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """An application's directory with two stores in task 0_3, closed, and a task 0_10 without any."""
    directory = StateDirectory(tmp_path / "state", "app")
    directory.lock_task("0_10").release()
    directory.lock_task("0_3").release()
    filled(directory.task("0_3"), KeyValueStore("totals"), {b"Ada": b"1", b"Bob": b"2"}).close()
    filled(directory.task("0_3"), TimestampedKeyValueStore("orders"), {b"Ada": b"{}"}).close()
    return directory.application


@pytest.fixture
def task(application: Path) -> Path:
    return application / "0_3"


def the_store(directory: Path, name: str = "totals") -> StoreReport:
    (store,) = (store for _, task in inspect_directory(directory).tasks for store in task.stores if store.name == name)
    return store


# What is shown


@pytest.mark.parametrize(("below", "level"), [("", "state directory"), ("app", "application"), ("app/0_3", "task")])
def test_each_level_of_a_state_directory_can_be_inspected(application: Path, below: str, level: str) -> None:
    report = inspect_directory(application.parent / below)
    assert report.level == level
    assert {one.application_id for one in report.applications} == {"app"}
    assert [task.task_id for _, task in report.tasks] == (["0_3"] if level == "task" else ["0_3", "0_10"])
    assert not list(report.problems)


def test_a_relative_path_shows_the_same(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = inspect_directory(task).applications
    monkeypatch.chdir(task)
    assert inspect_directory(Path()).applications == expected


def test_a_store_is_shown_as_its_last_commit_left_it(task: Path) -> None:
    orders, totals = inspect_task(task).stores
    assert (orders.name, orders.kind, orders.timestamped, orders.approximate_entries) == (
        "orders",
        "key_value",
        True,
        1,
    )
    assert (totals.name, totals.kind, totals.timestamped, totals.approximate_entries) == (
        "totals",
        "key_value",
        False,
        2,
    )
    assert totals.layout == Layout("key_value")
    assert totals.format_version == 1
    commit = totals.commit
    assert commit is not None
    assert (commit.number, commit.offsets, commit.position) == (1, {CHANGELOG: 7}, Position({"orders": {3: 9}}))
    assert totals.size_bytes >= sum(file.stat().st_size for file in totals.path.glob("*.sst"))


def test_what_a_store_is_comes_from_its_layout_and_not_from_its_name(task: Path) -> None:
    layout = Layout("window", True, MINUTE, retain_duplicates=True)
    engine = RocksDBEngine(task / "rocksdb" / "clicks", layout=layout)
    engine.write({}, Commit(1, 5, stream_time_ms=1234, sequence=6))
    engine.close()
    clicks = the_store(task, "clicks")
    assert (clicks.kind, clicks.timestamped, clicks.layout) == ("window", True, layout)
    assert clicks.commit is not None
    assert clicks.commit.stream_time_ms == 1234


@pytest.mark.parametrize(("directory", "timestamped"), [("old", False), ("old-v2", True)])
def test_a_database_without_a_format_is_what_its_directory_says(task: Path, directory: str, timestamped: bool) -> None:
    database(task / "rocksdb" / directory, {})
    old = the_store(task, "old")
    assert (old.kind, old.timestamped, old.layout, old.problem) == ("key_value", timestamped, None, None)


def test_both_formats_of_a_store_are_shown_while_one_takes_the_place_of_the_other(task: Path) -> None:
    filled(task, KeyValueStore("orders"), {}).close()
    orders = [store for store in inspect_task(task).stores if store.name == "orders"]
    assert [(store.path.name, store.timestamped) for store in orders] == [("orders", False), ("orders-v2", True)]


def test_the_files_beside_stores_are_shown(task: Path) -> None:
    (task / ".checkpoint").write_text("0\n1\napp-mine-changelog 3 41\n")
    (task / "totals.position").write_text("0\n1\norders 3 9\n")
    (task / "topics.json").write_text('{"orders": "an id"}')
    (task / ".wiped-old").mkdir()
    (task / ".wiped-old" / "000001.sst").write_bytes(b"x" * 5000)
    (task / "mine.db").write_bytes(b"x")
    (task.parent / ".relocation.json").write_text("{}")
    (task.parent / "topology.json").write_text("{}")
    (application,) = inspect_directory(task.parent).applications
    report = application.tasks[0]
    assert report.offset_checkpoint == {TopicPartition("app-mine-changelog", 3): 41}
    assert report.positions == {"totals": Position({"orders": {3: 9}})}
    assert report.topics == {"orders": "an id"}
    assert [(other.path.name, other.what) for other in report.others] == [(".wiped-old", "trash"), ("mine.db", "other")]
    assert report.others[0].size_bytes >= 5000
    assert [(other.path.name, other.what) for other in application.others] == [(".relocation.json", "journal")]
    assert application.tasks[1].offset_checkpoint is None
    assert application.tasks[1].topics is None


def test_a_tasks_owner_is_named_while_it_lives(task: Path) -> None:
    assert lock_holder(task / ".lock") == (False, None)
    program = (
        "import sys; from pathlib import Path; from stateline_store import TaskLock\n"
        "lock = TaskLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(task / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        report = inspect_task(task)
        owner.communicate()
    assert (report.locked, report.owner_pid) == (True, owner.pid)
    assert lock_holder(task / ".lock") == (False, None)
    assert lock_holder(task / "none") == (False, None)


# Nothing is written


def test_nothing_changes_below_the_directory(application: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = application.parent.parent / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    store = filled(application / "0_10", KeyValueStore("open"), {b"Ada": b"1"})
    before = on_disk(application)
    report = inspect_directory(application.parent)
    for _, task in report.tasks:
        for found in task.stores:
            with OfflineStore(found.path) as opened:
                assert list(entries(opened, None, None, timestamped=found.timestamped))
    assert on_disk(application) == before
    assert not list(scratch.iterdir())
    store.put(b"Bob", b"2")
    store.commit({})  # and the owner goes on
    store.close()


def test_an_open_store_shows_its_newest_commit_without_a_flush(task: Path) -> None:
    store = filled(task, KeyValueStore("open"), {b"Ada": b"1"})
    store.put(b"Ada", b"2")
    store.commit({CHANGELOG: 8})
    store.put(b"Ada", b"3")  # staged only
    found = the_store(task, "open")
    assert found.commit is not None
    assert (found.commit.number, found.commit.offsets) == (2, {CHANGELOG: 8})
    with OfflineStore(found.path) as opened:
        assert list(entries(opened, b"Ada", b"Ada", timestamped=False)) == [Entry(b"Ada", b"2")]
    store.close()


def test_another_user_without_write_permission_sees_the_same(application: Path, as_nobody: Callable[[], None]) -> None:
    expected = inspect_directory(application)
    for path in (application.parent.parent, application.parent, application, *application.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    as_nobody()
    assert not os.access(application, os.W_OK, effective_ids=True)
    assert inspect_directory(application) == expected


def test_what_may_not_be_read_is_said_and_the_rest_goes_on(application: Path, as_nobody: Callable[[], None]) -> None:
    for path in (application.parent.parent, application.parent, application, *application.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    (application / "0_3" / "rocksdb" / "totals").chmod(0o700)
    newest(application / "0_3" / "rocksdb" / "orders-v2", "*.sst").chmod(0o600)
    (application / "0_3" / ".lock").chmod(0o600)
    (application / "0_10").chmod(0o700)
    as_nobody()
    report = inspect_directory(application.parent)
    (first, second) = (task for _, task in report.tasks)
    for store in first.stores:
        assert store.problem is not None
        assert store.problem.state == "not readable"
        assert "Inspect it as its owner" in store.problem.message
    assert first.locked is None
    assert {problem.state for problem in second.problems} == {"not readable"}
    assert str(application / "0_10") in second.problems[0].message


def test_an_application_that_may_not_be_read_is_not_left_out(application: Path, as_nobody: Callable[[], None]) -> None:
    for path in (application.parent.parent, application.parent):
        path.chmod(0o755)
    StateDirectory(application.parent, "other").lock_task("0_0").release()
    application.parent.joinpath("other").chmod(0o755)
    application.chmod(0o700)
    as_nobody()
    report = inspect_directory(application.parent)
    assert [one.application_id for one in report.applications] == ["app", "other"]
    assert [problem.path.name for problem in report.problems][:1] == ["app"]
    with pytest.raises(RetryLaterError, match="cannot be read"):
        inspect_directory(application)


# Damage


def newest(directory: Path, pattern: str) -> Path:
    return max(directory.glob(pattern))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a table cut short": lambda path: cut(newest(path, "*.sst")),
    "a table gone": lambda path: newest(path, "*.sst").unlink(),
    "another manifest": lambda path: newest(path, "MANIFEST-*").write_bytes(b"not a manifest"),
    "no manifest": lambda path: newest(path, "MANIFEST-*").unlink(),
    "no CURRENT": lambda path: (path / "CURRENT").unlink(),
    "an empty CURRENT": lambda path: (path / "CURRENT").write_bytes(b""),
    "offsets of nonsense": lambda path: damage_offsets(path),
}


def database(path: Path, offsets: dict[bytes, bytes], *families: str) -> None:
    """A database with these rows in its column family `offsets`, made or added to by hand."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    path.mkdir(parents=True, exist_ok=True)
    names = {name: Options(raw_mode=True) for name in ("default", "offsets", *families)}
    db: Any = Rdict(str(path), options, column_families=names)
    family = db.get_column_family("offsets")
    for key, value in offsets.items():
        family[key] = value
    family.close()
    db.close()


def damage_offsets(path: Path) -> None:
    database(path, {b"commit_number": b"?"})


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_said_in_the_stores_row_and_the_rest_goes_on(task: Path, damage: str) -> None:
    DAMAGES[damage](task / "rocksdb" / "totals")
    orders, totals = inspect_task(task).stores
    assert orders.problem is None
    assert totals.problem is not None
    assert totals.problem.state == "damaged"
    assert str(task / "rocksdb" / "totals") in totals.problem.message
    assert "stateline-inspect-" not in totals.problem.message
    assert totals.size_bytes > 0
    assert (totals.kind, totals.commit, totals.approximate_entries) == (None, None, None)


def test_damage_inside_a_table_is_met_when_its_rows_are_read(task: Path) -> None:
    path = task / "rocksdb" / "totals"
    (table,) = (table for table in path.glob("*.sst") if b"Bob" in table.read_bytes())
    content = bytearray(table.read_bytes())
    content[content.index(b"Bob")] ^= 1
    table.write_bytes(content)
    with OfflineStore(path) as store, pytest.raises(DamagedDataError, match="checksum"):
        list(entries(store, None, None, timestamped=False))


def test_a_newer_format_is_named_and_not_read(task: Path) -> None:
    database(task / "rocksdb" / "totals", {b"format_version": struct.pack(">I", 2)})
    problem = the_store(task).problem
    assert problem is not None
    assert problem.state == "newer format"
    assert "format version 2" in problem.message


def test_column_families_of_another_program_are_named(task: Path) -> None:
    database(task / "rocksdb" / "totals", {}, "keyValueWithTimestamp")
    problem = the_store(task).problem
    assert problem is not None
    assert problem.state == "newer format"
    assert "keyValueWithTimestamp" in problem.message


def test_a_database_without_offsets_is_none_of_statelines(task: Path) -> None:
    path = task / "rocksdb" / "foreign"
    Rdict(str(path), Options(raw_mode=True)).close()
    with pytest.raises(CallerError, match="no store of Stateline's"):
        OfflineStore(path)


def test_a_directory_that_holds_no_database_yet_is_said_to(task: Path) -> None:
    (task / "rocksdb" / "begun").mkdir()
    problem = the_store(task, "begun").problem
    assert problem is not None
    assert problem.state == "not readable"
    assert "no database yet" in problem.message


@pytest.mark.parametrize("name", [".checkpoint", "totals.position", "topics.json"])
@pytest.mark.parametrize("content", [b"", b"\xff", b"[1]"])
def test_a_damaged_file_beside_stores_is_said_and_the_rest_goes_on(task: Path, name: str, content: bytes) -> None:
    (task / name).write_bytes(content)
    report = inspect_task(task)
    assert [(problem.path.name, problem.state) for problem in report.problems] == [(name, "damaged")]
    assert len(report.stores) == 2


# While it is being written


def flushing(store: KeyValueStore, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the store's owner commit and flush in the midst of the next openings."""
    left = iter(range(times))

    def after_a_flush(offsets: Rdict, directory: Path) -> Commit:
        if next(left, None) is not None:
            store.put(b"Ada", b"moved")
            store.commit({})
            database_of(store).flush()  # no store flushes on demand
        return read_commit(offsets, directory)

    monkeypatch.setattr(offline_store, "read_commit", after_a_flush)


def test_a_flush_during_an_opening_is_followed_by_another_try(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(task, KeyValueStore("busy"), {b"Ada": b"1"})
    flushing(store, 1, monkeypatch)
    commit = inspect_store(task / "rocksdb" / "busy").commit
    assert commit is not None
    assert commit.number == 2
    store.close()


def test_a_store_that_is_flushed_at_every_try_says_so(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(task, KeyValueStore("busy"), {b"Ada": b"1"})
    flushing(store, 2, monkeypatch)
    problem = inspect_store(task / "rocksdb" / "busy").problem
    assert problem is not None
    assert (problem.state, "being written" in problem.message) == ("not readable", True)
    store.close()


# What is refused


def test_a_directory_that_is_none_is_refused_with_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(DoesNotExistError, match=r"There is no .*nowhere: give a state directory"):
        inspect_directory(tmp_path / "nowhere")
    with pytest.raises(InvalidArgumentError, match="it is empty"):
        inspect_directory(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgumentError, match="is a file"):
        inspect_directory(tmp_path / "file")
    with pytest.raises(InvalidArgumentError, match="it holds file"):
        inspect_directory(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InvalidArgumentError, match="link"):
        inspect_directory(tmp_path / "link")


def test_a_state_directory_in_which_no_worker_has_run_yet_is_empty(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"")
    assert inspect_directory(tmp_path).applications == ()


# Entries


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Layout, dict[bytes, bytes]], OfflineStore]:
    def write(layout: Layout, rows: dict[bytes, bytes]) -> OfflineStore:
        engine = RocksDBEngine(tmp_path / "s", layout=layout)
        engine.write(dict(rows), Commit(1, 1))
        engine.close()
        return OfflineStore(tmp_path / "s")

    return write


Written = Callable[[Layout, dict[bytes, bytes]], OfflineStore]


def test_values_of_timestamped_stores_come_with_their_time(task: Path) -> None:
    store = TimestampedKeyValueStore("times")
    store.init(StoreContext("0_3", task))
    store.put_with_timestamp(b"a", b"1", 50)
    store.put(b"b", b"2")
    store.commit({})
    store.close()
    with OfflineStore(the_store(task, "times").path) as opened:
        assert list(entries(opened, None, None, timestamped=True)) == [Entry(b"a", b"1", 50), Entry(b"b", b"2", -1)]


def test_windows_are_taken_apart(written: Written) -> None:
    rows = {
        PREFIX.pack(1) + window_key(b"k", MINUTE, 3): struct.pack(">q", 61_000) + b"v",
        PREFIX.pack(0) + window_key(b"k", 5): struct.pack(">q", 7) + b"w",
    }
    with written(Layout("window", True, MINUTE, True), rows) as store:
        assert list(present(store.scan)) == [0, 1]
        assert list(entries(store, b"k", b"k", timestamped=False)) == [
            Entry(b"k", b"w", 7, segment=0, start_ms=5, sequence=0),
            Entry(b"k", b"v", 61_000, segment=1, start_ms=MINUTE, sequence=3),
        ]


def test_sessions_are_taken_apart(written: Written) -> None:
    rows = {PREFIX.pack(2) + session_key(b"k", 100_000, 130_000): b"v"}
    with written(Layout("session", False, MINUTE), rows) as store:
        assert list(entries(store, None, None, timestamped=False)) == [
            Entry(b"k", b"v", segment=2, start_ms=100_000, end_ms=130_000)
        ]


def test_a_range_of_windows_has_every_key_between_its_ends_whatever_their_bytes(written: Written) -> None:
    keys = [bytes(key) for size in range(3) for key in itertools.product((0, 0x61, 0xFF), repeat=size)]
    starts = (0, 0x6161616161616161, 2**63 - 1)
    rows = {
        PREFIX.pack(segment) + window_key(key, start): b"" for segment in (0, 7) for key in keys for start in starts
    }
    bounds = [None, *keys]
    with written(Layout("window", False, MINUTE), rows) as store:
        for lower, upper in itertools.product(bounds, bounds):
            expected = [
                (PREFIX.unpack_from(row)[0], *split_window_key(row[8:]))
                for row in sorted(rows)
                if (lower or b"") <= split_window_key(row[8:])[0]
                and (upper is None or split_window_key(row[8:])[0] <= upper)
            ]
            found = entries(store, lower, upper, timestamped=False)
            assert [(e.segment, e.key, e.start_ms, e.sequence) for e in found] == expected, (lower, upper)


def test_a_row_that_makes_no_sense_is_damage(written: Written) -> None:
    with written(Layout("window", False, MINUTE), {b"short": b""}) as store, pytest.raises(DamagedDataError):
        list(entries(store, None, None, timestamped=False))


def test_every_version_of_a_key_is_shown_with_the_time_for_which_it_held(task: Path) -> None:
    store = VersionedStore("prices", history_retention_ms=10 * MINUTE, segment_interval_ms=MINUTE)
    store.init(StoreContext("0_3", task))
    for timestamp, value in ((1, b"a"), (5, None), (9, b"b"), (12, b"c"), (2 * MINUTE, b"d")):
        store.put(b"k", value, timestamp)
    store.put(b"gone", b"d", 1)
    store.put(b"gone", None, 2)
    store.commit({})
    store.close()
    found = the_store(task, "prices")
    assert found.kind == "versioned"
    with OfflineStore(found.path) as opened:
        versions = list(entries(opened, b"k", b"k", timestamped=False))
        assert [(e.value, e.timestamp_ms, e.valid_to_ms, e.segment) for e in versions] == [
            (b"b", 9, 12, 0),
            (None, 5, 9, 0),
            (b"a", 1, 5, 0),
            (b"c", 12, 2 * MINUTE, 2),
            (b"d", 2 * MINUTE, None, -1),
        ]
        gone = list(entries(opened, b"gone", b"gone", timestamped=False))
        assert [(e.value, e.timestamp_ms, e.valid_to_ms) for e in gone] == [(b"d", 1, 2)]
