"""Readers in another process."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Rdict

from stateline_store import (
    CommitNotice,
    DamagedDataError,
    KeyValueStore,
    NotPresentError,
    Position,
    RetryLaterError,
    SecondaryReader,
    StoreClosedError,
    StoreContext,
    StoreState,
    TopicPartition,
)
from stateline_store.rocksdb import secondary as rocksdb_secondary
from stateline_store.rocksdb.secondary import RocksDBSecondary
from store import store_processes as programs
from support.rocksdb import database_of
from support.run.length import long_or_short
from support.run.patience import HANGING_S

INPUT = TopicPartition("input", 0)


@pytest.fixture
def store(context: StoreContext) -> Iterator[KeyValueStore]:
    store = KeyValueStore("s")
    store.init(context)
    yield store
    store.close()


def read(context: StoreContext, scratch: Path) -> SecondaryReader:
    return SecondaryReader(context.directory / "rocksdb" / "s", context.directory / "s.notice", scratch)


@pytest.fixture
def reader(store: KeyValueStore, context: StoreContext, tmp_path: Path) -> Iterator[SecondaryReader]:
    reader = read(context, tmp_path / "scratch")
    yield reader
    reader.close()


def test_a_store_that_no_owner_opened_is_not_present(context: StoreContext, tmp_path: Path) -> None:
    with pytest.raises(NotPresentError):
        read(context, tmp_path / "scratch")
    assert not (tmp_path / "scratch").exists()


def test_a_refresh_reflects_the_newest_commit_and_nothing_staged(store: KeyValueStore, reader: SecondaryReader) -> None:
    store.put_all([(b"a", b"1"), (b"b", b"2")])
    reader.refresh()
    assert reader.get(b"a") is None
    store.commit({}, position=Position.of({INPUT: 5}))
    reader.refresh()
    assert list(reader.range(None, None, reverse=True)) == [(b"b", b"2"), (b"a", b"1")]
    assert list(reader.prefix_scan(b"a")) == [(b"a", b"1")]
    assert (reader.position, reader.commit_number) == (Position.of({INPUT: 5}), 1)


def test_nothing_moves_between_two_refreshes(store: KeyValueStore, reader: SecondaryReader) -> None:
    store.put(b"a", b"1")
    store.commit({}, position=Position.of({INPUT: 1}))
    assert (reader.get(b"a"), reader.position) == (None, Position())
    reader.refresh()
    scan = reader.range(None, None)
    store.put(b"a", b"2")
    store.commit({}, position=Position.of({INPUT: 2}))
    reader.refresh()
    assert list(scan) == [(b"a", b"1")]
    assert (reader.get(b"a"), reader.position) == (b"2", Position.of({INPUT: 2}))


def test_a_scan_outlives_reopening_and_close(
    store: KeyValueStore, reader: SecondaryReader, context: StoreContext
) -> None:
    store.put_all((b"%03d" % i, b"1") for i in range(500))
    store.commit({})
    reader.refresh()
    scan = reader.range(None, None)
    next(scan)
    store.close()
    store.wipe()
    store.init(context)
    reader.refresh()
    reader.close()
    assert len(list(scan)) == 499


def test_a_reopened_store_is_followed(store: KeyValueStore, reader: SecondaryReader, context: StoreContext) -> None:
    for n in range(1, 4):
        store.put(b"n", bytes((n,)))
        store.commit({}, position=Position.of({INPUT: n}))
        reader.refresh()
        assert (reader.get(b"n"), reader.commit_number) == (bytes((n,)), n)
        store.close()
        reader.refresh()
        store.init(context)
        reader.refresh()
        assert (reader.get(b"n"), reader.commit_number) == (bytes((n,)), n)


def test_a_flush_between_two_refreshes_hides_nothing(store: KeyValueStore, reader: SecondaryReader) -> None:
    for n in range(1, 6):
        store.put(b"k", b"old%d" % n)
        store.commit({})
        reader.refresh()
        store.put(b"k", b"new%d" % n)
        store.commit({})
        database_of(store).flush()  # a flush is RocksDB's own affair, and made here by hand
        if n % 2:
            store.commit({INPUT: n})  # offsets alone
        reader.refresh()
        assert reader.get(b"k") == b"new%d" % n


def test_a_reader_is_behind_from_the_announcement_to_the_refresh(store: KeyValueStore, reader: SecondaryReader) -> None:
    assert not reader.is_behind
    store.put(b"a", b"1")
    assert not reader.is_behind
    store.commit({}, announce=False)
    assert not reader.is_behind
    store.announce_commit()
    assert reader.is_behind
    reader.refresh()
    assert not reader.is_behind


def test_a_reader_is_behind_after_a_reopening_and_a_wipe(
    store: KeyValueStore, reader: SecondaryReader, context: StoreContext
) -> None:
    store.close()
    store.init(context)
    assert reader.is_behind
    reader.refresh()
    assert not reader.is_behind
    store.close()
    store.wipe()
    assert reader.is_behind
    for _ in range(2):
        with pytest.raises(NotPresentError):
            reader.refresh()
        assert reader.is_behind
    store.init(context)
    reader.refresh()
    assert not reader.is_behind


def test_a_commit_that_is_announced_but_not_there_is_an_error_until_it_is(
    store: KeyValueStore, reader: SecondaryReader, context: StoreContext
) -> None:
    store.put(b"a", b"1")
    store.commit({})
    reader.refresh()
    notice = CommitNotice(context.directory / "s.notice")
    notice.publish(store.commit_number + 1, store.committed_at_ms)
    notice.close()
    for _ in range(2):
        with pytest.raises(RetryLaterError, match="shows commit 1, but 2 is announced"):
            reader.refresh()
        with pytest.raises(RetryLaterError):
            reader.get(b"a")
        assert reader.is_behind
    store.put(b"a", b"2")
    store.commit({}, announce=False)
    reader.refresh()
    assert (reader.get(b"a"), reader.commit_number) == (b"2", 2)


class Interrupted(SecondaryReader):
    """A reader on which something happens, once, just before or after it moves to a newer state."""

    before_moving: Callable[[], None] | None = None
    after_moving: Callable[[], None] | None = None

    def _moved(self, generation: int, *, again: bool) -> RocksDBSecondary:
        before, self.before_moving = self.before_moving, None
        if before is not None:
            before()
        secondary = super()._moved(generation, again=again)
        after, self.after_moving = self.after_moving, None
        if after is not None:
            after()
        return secondary


@pytest.mark.parametrize("moment", ["before_moving", "after_moving"])
def test_a_store_that_is_rebuilt_during_a_refresh_is_read_as_it_is_after_it(
    store: KeyValueStore, context: StoreContext, tmp_path: Path, moment: str
) -> None:
    def rebuild() -> None:
        store.close()
        store.wipe()
        store.init(context)
        store.put(b"new", b"2")
        store.commit({}, position=Position.of({INPUT: 2}))

    reader = Interrupted(context.directory / "rocksdb" / "s", context.directory / "s.notice", tmp_path / "scratch")
    store.put(b"old", b"1")
    store.commit({}, position=Position.of({INPUT: 1}))
    setattr(reader, moment, rebuild)
    reader.refresh()
    assert not reader.is_behind
    assert (reader.get(b"old"), reader.get(b"new"), reader.position) == (None, b"2", Position.of({INPUT: 2}))
    reader.close()


@pytest.fixture
def damage(store: KeyValueStore, context: StoreContext, tmp_path: Path) -> Iterator[Callable[[], SecondaryReader]]:
    """Commits a=1 and makes a reader whose open table files read as empty; those in the store's directory are
    whole.
    """
    readers: list[SecondaryReader] = []

    def make() -> SecondaryReader:
        store.put(b"a", b"1")
        store.commit({})
        store.close()  # writes table files
        readers.append(read(context, tmp_path / "scratch"))
        tables = list((context.directory / "rocksdb" / "s").glob("*.sst"))
        assert tables
        for table in tables:
            opened = table.rename(tmp_path / table.name)
            shutil.copyfile(opened, table)
            os.truncate(opened, 0)
        return readers[0]

    yield make
    for reader in readers:
        reader.close()


def test_a_read_that_fails_is_answered_from_a_new_opening(damage: Callable[[], SecondaryReader]) -> None:
    reader = damage()
    assert (reader.get(b"a"), reader.commit_number) == (b"1", 1)


def test_a_read_that_fails_is_not_answered_from_another_commit(
    damage: Callable[[], SecondaryReader], store: KeyValueStore, context: StoreContext
) -> None:
    reader = damage()
    store.init(context)
    store.put(b"a", b"2")
    store.commit({})
    with pytest.raises(RetryLaterError, match="moved on"):
        reader.get(b"a")
    assert (reader.get(b"a"), reader.commit_number) == (b"2", 2)


def test_a_read_that_fails_again_is_an_error_and_not_an_absent_key(
    damage: Callable[[], SecondaryReader], context: StoreContext
) -> None:
    reader = damage()
    for table in (context.directory / "rocksdb" / "s").glob("*.sst"):
        os.truncate(table, 0)
    with pytest.raises((RetryLaterError, DamagedDataError)):
        reader.get(b"a")


def test_the_notice_shows_what_the_owner_publishes(store: KeyValueStore, reader: SecondaryReader) -> None:
    notice = reader.notice
    store.set_state(StoreState.RESTORING, 12)
    assert (notice.state, notice.restore_remaining) == (StoreState.RESTORING, 12)
    store.put(b"a", b"1")
    store.publish_staged()
    assert (notice.staged_records, notice.staged_bytes) == (1, store.approximate_num_uncommitted_bytes)
    store.commit({})
    assert (notice.staged_records, notice.staged_bytes) == (0, 0)
    assert (notice.commit_number, notice.committed_at_ms) == (1, store.committed_at_ms)
    store.close()
    assert notice.state is StoreState.CLOSED


def test_what_a_restore_that_was_broken_off_has_left_stays_said_until_a_store_is_active(
    store: KeyValueStore, reader: SecondaryReader, context: StoreContext
) -> None:
    notice = reader.notice
    store.set_state(StoreState.RESTORING, 12)
    store.set_state(StoreState.STANDBY)
    store.close()
    assert (notice.state, notice.restore_remaining) == (StoreState.STANDBY, 12)
    store.init(context)
    store.set_state(StoreState.RESTORING)
    store.close()
    assert (notice.state, notice.restore_remaining) == (StoreState.CLOSED, 12)
    store.init(context)
    store.set_state(StoreState.ACTIVE)
    assert notice.restore_remaining == 0


def test_the_notice_file_is_never_replaced(store: KeyValueStore, context: StoreContext) -> None:
    path = context.directory / "s.notice"
    inode = path.stat().st_ino
    store.close()
    store.wipe()
    store.init(context)
    assert path.stat().st_ino == inode


def test_a_reader_needs_no_right_to_write_and_leaves_nothing(
    store: KeyValueStore, context: StoreContext, tmp_path: Path, as_nobody: Callable[[], None]
) -> None:
    store.put(b"a", b"1")
    store.commit({})
    paths = (context.directory, *context.directory.rglob("*"))
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    tmp_path.chmod(0o755)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch").chmod(0o777)
    before = {path: path.stat().st_mtime_ns for path in paths}
    as_nobody()
    with closing(read(context, tmp_path / "scratch")) as reader:
        assert reader.get(b"a") == b"1"
    assert {path: path.stat().st_mtime_ns for path in (context.directory, *context.directory.rglob("*"))} == before


def test_a_reader_of_a_store_that_has_moved_makes_nothing_in_its_old_place(
    store: KeyValueStore, context: StoreContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it goes in the very moment of the opening."""
    place = context.directory / "rocksdb" / "s"

    def gone_by_now(*args: Any, **options: Any) -> Rdict:
        place.exists() and place.rename(tmp_path / "elsewhere")
        return Rdict(*args, **options)

    monkeypatch.setattr(rocksdb_secondary, "Rdict", gone_by_now)
    with pytest.raises(RetryLaterError):
        read(context, tmp_path / "scratch")
    assert not place.exists()


def test_closing_removes_the_scratch_files(store: KeyValueStore, context: StoreContext, tmp_path: Path) -> None:
    one, two = read(context, tmp_path / "scratch"), read(context, tmp_path / "scratch")
    assert len(os.listdir(tmp_path / "scratch")) == 2
    one.close()
    one.close()
    assert len(os.listdir(tmp_path / "scratch")) == 1
    two.close()
    assert not (tmp_path / "scratch").exists()
    with pytest.raises(StoreClosedError):
        one.get(b"a")


@pytest.mark.parametrize("seed", range(long_or_short(2, 1)))
def test_readers_follow_a_writer_through_whatever_it_does(tmp_path: Path, seed: int) -> None:
    """Flushes, compactions, deleted logs, reopenings and a wipe: data and Position never disagree or go back."""
    commits = 4000
    pipe = subprocess.PIPE
    followers = [
        subprocess.Popen(
            [*programs.COMMAND, "follow", str(tmp_path), str(tmp_path / f"scratch{i}"), str(seed + i), str(commits)],
            cwd=programs.TESTS,
            stdout=pipe,
            stderr=pipe,
        )
        for i in range(2)
    ]
    everything = [*programs.COMMAND, "everything", str(tmp_path), str(seed), str(commits)]
    subprocess.run(everything, cwd=programs.TESTS, check=True, timeout=HANGING_S)
    for follower in followers:
        out, errors = follower.communicate(timeout=HANGING_S)
        assert follower.returncode == 0, errors.decode()
        assert int(out) > 5
