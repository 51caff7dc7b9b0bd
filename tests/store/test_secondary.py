"""Readers in another process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateline_store import (
    KeyValueStore,
    NotPresentError,
    Position,
    SecondaryReader,
    StoreClosedError,
    StoreContext,
    StoreState,
    TopicPartition,
)
from store import store_processes as programs

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
        engine = store._engine
        engine._db.flush()  # type: ignore[union-attr]  # a flush is RocksDB's own affair, and made here by hand
        del engine
        if n % 2:
            store.commit({INPUT: n})  # offsets alone
        reader.refresh()
        assert reader.get(b"k") == b"new%d" % n


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


def test_the_notice_file_is_never_replaced(store: KeyValueStore, context: StoreContext) -> None:
    path = context.directory / "s.notice"
    inode = path.stat().st_ino
    store.close()
    store.wipe()
    store.init(context)
    assert path.stat().st_ino == inode


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


@pytest.mark.parametrize("seed", range(2))
def test_readers_follow_a_writer_through_whatever_it_does(tmp_path: Path, seed: int) -> None:
    """Flushes, compactions, deleted logs, reopenings and a wipe: data and Position never disagree or go back."""
    commits = 4000
    command = [sys.executable, programs.__file__]
    pipe = subprocess.PIPE
    followers = [
        subprocess.Popen(
            [*command, "follow", str(tmp_path), str(tmp_path / f"scratch{i}"), str(seed + i), str(commits)],
            stdout=pipe,
            stderr=pipe,
        )
        for i in range(2)
    ]
    subprocess.run([*command, "everything", str(tmp_path), str(seed), str(commits)], check=True, timeout=120)
    for follower in followers:
        out, errors = follower.communicate(timeout=60)
        assert follower.returncode == 0, errors.decode()
        assert int(out) > 5
