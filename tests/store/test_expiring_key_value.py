"""A store whose entries have a time to live, against a dict that is looked through after every put."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from stateline_store import (
    ExpiringKeyValueStore,
    InvalidArgumentError,
    IsolationLevel,
    SecondaryReader,
    StoreContext,
    TimestampedKeyValueStore,
    TopicPartition,
    notice_path,
    store_path,
)
from stateline_store.rows.timestamped_rows import join

TTL = 100
CHANGELOG = TopicPartition("changelog", 0)
Rows = dict[bytes, tuple[bytes, int]]


class Oracle:
    """What is there, and stream time."""

    def __init__(self) -> None:
        self.rows: Rows = {}
        self.time = -1

    def copy(self) -> Oracle:
        made = Oracle()
        made.rows, made.time = dict(self.rows), self.time
        return made

    def put(self, key: bytes, value: bytes | None, at: int) -> None:
        if value is None:
            self.rows.pop(key, None)
            return
        self.rows[key] = (value, at)
        self.time = max(self.time, at)
        self.rows = {k: row for k, row in self.rows.items() if row[1] < 0 or row[1] >= self.time - TTL}


def rows_of(store: TimestampedKeyValueStore) -> Rows:
    with store.all_with_timestamp() as rows:
        return {key: (found.value, found.timestamp) for key, found in rows}


def opened(folder: Path, *, persistent: bool = True, ttl: int = TTL) -> ExpiringKeyValueStore:
    store = ExpiringKeyValueStore("s", ttl_ms=ttl, persistent=persistent)
    store.init(StoreContext("0_0", folder))
    return store


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_there_is_what_a_dict_has_through_commits_rollbacks_savepoints_and_openings(
    tmp_path: Path, seed: int, persistent: bool
) -> None:
    draw, now = random.Random(seed), 1_000
    store, there = opened(tmp_path, persistent=persistent), Oracle()
    committed, saved = there.copy(), None
    for step in range(600):
        now += draw.choice([0, 0, 1, 5, 20, 300 if draw.random() < 0.03 else 2])
        what = draw.random()
        key = b"%d" % draw.randrange(40)
        if what < 0.6:
            value, at = draw.choice([b"v%d" % step, b"v%d" % step, None]), now - draw.choice([0, 0, 3, 60, 150])
            store.put_with_timestamp(key, value, at)
            there.put(key, value, at)
        elif what < 0.75:
            changes = [
                (b"%d" % draw.randrange(40), draw.choice([b"x", None]), now - draw.randrange(130)) for _ in range(5)
            ]
            store.restore(changes)
            for change in changes:
                there.put(*change)
        elif what < 0.83:
            store.savepoint()
            saved = there.copy()
        elif what < 0.9:
            store.rollback_to_savepoint()
            there, saved = saved or there, None
        elif what < 0.95:
            store.commit({CHANGELOG: step})
            committed, saved = there.copy(), None
        elif what < 0.98 or not persistent:
            store.rollback()
            there, saved = committed.copy(), None
        else:
            store.close()
            store, there, saved = opened(tmp_path), committed.copy(), None
        assert rows_of(store) == there.rows, step
        assert store.stream_time_ms == there.time
    store.close()


def test_its_changelog_makes_the_same_of_a_plain_store_and_of_a_copy(tmp_path: Path) -> None:
    """What expires is in the changelog as a tombstone, so that a reader that knows no time to live has the same."""
    draw = random.Random(5)
    store, copy, plain = opened(tmp_path / "a"), opened(tmp_path / "b"), TimestampedKeyValueStore("s", persistent=False)
    plain.init(StoreContext("0_0", tmp_path / "c"))
    for commit in range(60):
        at = 1_000 + commit * 17
        store.put_all_with_timestamp([(b"%d" % draw.randrange(30), b"v", at - draw.randrange(140)) for _ in range(6)])
        changes = [(key, value, -1 if stamp is None else stamp) for key, value, stamp in store.staged_changes()]
        copy.restore(changes)
        plain.restore(changes)
        store.commit({CHANGELOG: commit})
        copy.commit({CHANGELOG: commit})
        assert rows_of(store) == rows_of(copy) == rows_of(plain)


def test_readers_of_another_process_and_of_what_is_committed_see_it_gone_with_the_commit(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put_with_timestamp(b"old", b"v", 10)
    store.commit({CHANGELOG: 0})
    path = store_path(tmp_path, "s", timestamped=True)
    with_files = SecondaryReader(path, notice_path(tmp_path, "s", timestamped=True), tmp_path / "secondary")
    store.put_with_timestamp(b"new", b"v", 11 + TTL)
    assert store.get(b"old") is None
    reader = store.reader(IsolationLevel.READ_COMMITTED)
    assert reader.get(b"old") == with_files.get(b"old") == join(b"v", 10)
    store.commit({CHANGELOG: 1})
    with_files.refresh()
    assert reader.get(b"old") is with_files.get(b"old") is None
    with_files.close()
    store.close()


def test_an_entry_of_just_the_time_to_live_is_there_and_one_a_millisecond_older_is_not(tmp_path: Path) -> None:
    store = opened(tmp_path, persistent=False)
    store.put_with_timestamp(b"k", b"v", 10)
    store.put_with_timestamp(b"t", b"v", 10 + TTL)
    assert store.get(b"k") == b"v"
    store.put_with_timestamp(b"t", b"v", 11 + TTL)
    assert store.get(b"k") is None


def test_files_without_a_time_to_live_get_one_and_lose_it_again(tmp_path: Path) -> None:
    plain = TimestampedKeyValueStore("s")
    plain.init(StoreContext("0_0", tmp_path))
    plain.put_all_with_timestamp([(b"old", b"v", 10), (b"unknown", b"v", -1), (b"new", b"v", 500)])
    plain.commit({CHANGELOG: 0})
    plain.close()
    store = opened(tmp_path)
    store.put_with_timestamp(b"late", b"v", 399)  # the newest entry says what time it is
    assert rows_of(store) == {b"unknown": (b"v", -1), b"new": (b"v", 500)}
    store.commit({CHANGELOG: 1})
    store.close()
    plain.init(StoreContext("0_0", tmp_path))
    plain.put_with_timestamp(b"later", b"v", 9_000)
    assert plain.get(b"new") == b"v"
    plain.close()


def test_a_shorter_time_to_live_holds_from_the_next_put_on(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put_all_with_timestamp([(b"a", b"v", 50), (b"b", b"v", 100)])
    store.commit({CHANGELOG: 0})
    store.close()
    store = opened(tmp_path, ttl=20)
    store.put_with_timestamp(b"c", b"v", 90)
    assert store.get(b"a") is None
    store.close()


def test_operators_rows_expire_too_and_what_has_expired_is_told_to_who_watches(tmp_path: Path) -> None:
    store = opened(tmp_path, persistent=False)
    store.watch_expired()
    store.put_rows({b"a": join(b"1", 10), b"b": join(b"2", 150)})
    assert store.take_expired() == {b"a": join(b"1", 10)}
    assert store.take_expired() == {}
    store.put_rows({b"c": join(b"3", 400)})
    store.rollback()
    assert store.take_expired() == {}


@pytest.mark.parametrize("ttl", [0, -1])
def test_no_time_is_refused(ttl: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="time to live"):
        ExpiringKeyValueStore("s", ttl_ms=ttl)
