"""Entries with a time to live of their own, and the index that finds them, against a dict."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rocksdict import Rdict

from stateline_store import (
    DamagedDataError,
    ExpiringKeyValueStore,
    InvalidArgumentError,
    RetryLaterError,
    SecondaryReader,
    StoreContext,
    TimestampedKeyValueStore,
    TopicPartition,
    notice_path,
    store_path,
)
from stateline_store.rocksdb.engine import RocksDBEngine
from stateline_store.rocksdb.offline_store import OfflineStore
from stateline_store.rocksdb.options import Tuning
from stateline_store.rocksdb.write_ahead_logs import Damage, find_damage
from stateline_store.rows import known_keys
from stateline_store.rows.expiry import NEVER, DueEntries, Lifetime, entries_of, index_rows, with_expiry
from stateline_store.rows.headers import join_headers, split_headers
from stateline_store.rows.known_keys import KnownKeys
from stateline_store.scan import EVERY_KEY
from stateline_store.snapshots.checkpoints import link_database
from stateline_store.stores import expiring_key_value
from store import expiring_writer
from support import TESTS
from support.rocksdb import database_of
from support.run.patience import HANGING_S

CHANGELOG = TopicPartition("changelog", 0)
SMALL = Tuning(write_buffer_bytes=64 * 1024)
Entry = tuple[int, int | None]
"""A timestamp, and when the entry expires if it says so."""


class Step(NamedTuple):
    kind: str
    key: bytes = b""
    ago_ms: int | None = 0  # None: the timestamp is unknown
    lives_ms: int | None = None


KEYS = st.sampled_from([b"%d" % n for n in range(6)])
AGES = st.sampled_from([0, 0, 1, 40, 130, -30, None])
LIVES = st.sampled_from([None, 0, 5, 300])
PUTS = st.builds(Step, st.just("put"), KEYS, AGES, LIVES)
OTHERS = st.sampled_from(["delete", "commit", "rollback", "savepoint", "undo", "reopen", "clock", "later"])
STEPS = st.lists(st.one_of(PUTS, PUTS, st.builds(Step, OTHERS, KEYS)), max_size=60)


class Oracle:
    """What is there by a rule that looks at everything after each step."""

    def __init__(self, ttl_ms: int, rows: dict[bytes, Entry] | None = None, time_ms: int = -1) -> None:
        self.ttl_ms, self.rows, self.time_ms = ttl_ms, dict(rows or {}), time_ms

    def copy(self) -> Oracle:
        return Oracle(self.ttl_ms, self.rows, self.time_ms)

    def expire(self, now_ms: int) -> None:
        self.rows = {key: entry for key, entry in self.rows.items() if self._ends(*entry) >= now_ms}

    def _ends(self, at_ms: int, ends_ms: int | None) -> float:
        if ends_ms is not None:
            return ends_ms
        return at_ms + self.ttl_ms if self.ttl_ms and at_ms >= 0 else float("inf")


def opened(folder: Path, ttl_ms: int = 0, *, own_ttl: bool = True, persistent: bool = True) -> ExpiringKeyValueStore:
    store = ExpiringKeyValueStore(
        "s", ttl_ms=ttl_ms, own_ttl=own_ttl, headers=True, persistent=persistent, tuning=SMALL
    )
    store.init(StoreContext("0_0", folder))
    return store


def stored(ends_ms: int | None) -> bytes:
    return join_headers(b"v", () if ends_ms is None else with_expiry((), ends_ms))


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize(("ttl_ms", "own"), [(0, True), (100, True), (100, False)])
@settings(max_examples=60, deadline=None)
@given(steps=STEPS, unseen=st.sampled_from([0, 2]))
def test_what_is_there_is_what_a_dict_has(
    ttl_ms: int, own: bool, persistent: bool, steps: list[Step], unseen: int
) -> None:
    check_steps(ttl_ms, steps, unseen, own=own, persistent=persistent)


@pytest.mark.parametrize("seed", range(24))
def test_what_is_there_is_what_a_dict_has_after_very_many_steps(seed: int) -> None:
    draw, steps = random.Random(seed), list[Step]()
    keys, longest = draw.choice([3, 8, 40]), draw.choice([20, 200, 2_000])
    for _ in range(400):
        ago_ms = draw.choice([0, 0, draw.randrange(150), -draw.randrange(40), None])
        lives_ms = None if ago_ms is None or draw.random() < 0.2 else draw.randrange(longest)
        steps.append(Step(draw.choice(KINDS), b"%d" % draw.randrange(keys), ago_ms, lives_ms))
    check_steps(draw.choice([0, 100]), steps, draw.choice([0, 2]), own=True, persistent=seed % 4 == 0)
    check_steps(100, steps, draw.choice([0, 2]), own=False, persistent=seed % 4 == 0)


KINDS = (
    *["put"] * 60,
    *["commit"] * 15,
    *["delete"] * 5,
    *["savepoint", "clock"] * 4,
    *["undo", "rollback"] * 2,
    "reopen",
)


def check_steps(ttl_ms: int, steps: list[Step], unseen: int, *, own: bool, persistent: bool) -> None:
    with TemporaryDirectory() as folder, patch.object(expiring_key_value, "_UNSEEN_COMMITS", unseen):
        store, now_ms = opened(Path(folder), ttl_ms, own_ttl=own, persistent=persistent), 1_000
        there = Oracle(ttl_ms)
        committed, saved = there.copy(), None
        for number, step in enumerate(steps):
            now_ms += 7
            match step.kind:
                case "put":
                    at_ms = -1 if step.ago_ms is None else now_ms - step.ago_ms
                    ends_ms = None if step.lives_ms is None or not own else at_ms + step.lives_ms
                    store.put_with_timestamp(step.key, stored(ends_ms), at_ms)
                    there.rows[step.key] = (at_ms, ends_ms)
                    there.time_ms = max(there.time_ms, at_ms)
                    there.expire(there.time_ms)
                case "delete":
                    store.put(step.key, None)
                    there.rows.pop(step.key, None)
                case "clock":
                    store.expire(now_ms)
                    there.expire(now_ms)
                case "later":
                    now_ms += 60
                case "commit":
                    store.commit({CHANGELOG: number})
                    committed, saved = there.copy(), None
                case "savepoint":
                    store.savepoint()
                    saved = there.copy()
                case "undo":
                    store.rollback_to_savepoint()
                    there, saved = saved or there, None
                case "reopen" if persistent:
                    store.close()
                    store.init(StoreContext("0_0", Path(folder)))
                    there, saved = committed.copy(), None
                case _:
                    store.rollback()
                    there, saved = committed.copy(), None
            with store.all_with_timestamp() as rows:
                assert {key: found.timestamp for key, found in rows} == {k: at for k, (at, _) in there.rows.items()}
        store.close()


def test_an_entry_may_live_longer_or_shorter_than_the_others(tmp_path: Path) -> None:
    store = opened(tmp_path, ttl_ms=100)
    for key, lives_ms in ((b"short", 10), (b"long", 500), (b"as the store says", None)):
        store.put_with_timestamp(key, stored(None if lives_ms is None else lives_ms), 0)
    store.commit({CHANGELOG: 0})
    left = []
    for time_ms in (10, 11, 100, 101, 500, 501):
        store.put_with_timestamp(b"t", stored(10_000), time_ms)
        left.append([key for key in (b"short", b"long", b"as the store says") if store.get(key) is not None])
    both = [b"long", b"as the store says"]
    assert left == [[b"short", *both], both, both, [b"long"], [b"long"], []]
    store.close()


def test_an_entry_may_get_a_shorter_life_after_its_index_entry_came_due(tmp_path: Path) -> None:
    store = opened(tmp_path)
    steps = [(100, 0), (500, 1), (600, 150), (550, 151)]  # the third put finds the index entry of the first one due
    for number, (ends_ms, at_ms) in enumerate(steps):
        store.put_with_timestamp(b"t", stored(at_ms), at_ms)
        store.put_with_timestamp(b"k", stored(ends_ms), at_ms)
        store.commit({CHANGELOG: number})
    store.put_with_timestamp(b"t", stored(551), 551)
    assert store.get(b"k") is None
    store.close()


@pytest.mark.parametrize("own", [True, False])
def test_an_entry_that_could_not_expire_for_a_while_expires_again(tmp_path: Path, own: bool) -> None:
    """Its index entry came due in the commit that made it last for ever."""
    store = opened(tmp_path, 0 if own else 100, own_ttl=own)
    store.put_with_timestamp(b"k", stored(100 if own else None), 0)
    store.commit({CHANGELOG: 0})
    store.put_with_timestamp(b"k", stored(None), -1)
    store.put_with_timestamp(b"t", stored(None), 101)
    store.commit({CHANGELOG: 1})
    store.put_with_timestamp(b"k", stored(300 if own else None), 200)
    store.commit({CHANGELOG: 2})
    assert store.get(b"k") is not None
    store.put_with_timestamp(b"t", stored(None), 301)
    assert store.get(b"k") is None
    store.close()


def test_the_clock_expires_at_most_so_many_at_once_and_all_in_the_end(tmp_path: Path) -> None:
    with closing(ExpiringKeyValueStore("s", ttl_ms=100)) as store:
        store.init(StoreContext("0_0", tmp_path))
        store.put_all_with_timestamp([(b"%d" % n, b"v", n % 50) for n in range(25_000)])
        store.commit({CHANGELOG: 0})
        staged = []
        while store.expire(1_000):
            staged.append(store.staged_records)
            store.commit({CHANGELOG: len(staged)})
        assert staged == [10_000, 10_000, 5_000]
        assert store.is_empty()


@pytest.mark.parametrize("persistent", [True, False])
def test_one_put_expires_all_whatever_the_index_has(tmp_path: Path, persistent: bool) -> None:
    """Restored rows are those of the owner at each commit, though their index is another one."""
    with closing(ExpiringKeyValueStore("s", ttl_ms=100, persistent=persistent)) as store:
        store.init(StoreContext("0_0", tmp_path))
        store.put_all_with_timestamp([(b"kept %d" % n, b"v", 1) for n in range(12_000)])
        store.put_all_with_timestamp([(b"gone %d" % n, b"v", 2) for n in range(25_000)])
        store.commit({CHANGELOG: 0})
        store.put_all_with_timestamp([(b"kept %d" % n, b"v", 101) for n in range(12_000)])
        store.commit({CHANGELOG: 1})
        store.put_with_timestamp(b"kept 0", b"v", 150)
        with store.all() as rows:
            assert len([*rows]) == 12_000
        assert not store.expire(150)


def test_the_clock_removes_something_though_many_others_were_overwritten(tmp_path: Path) -> None:
    with closing(ExpiringKeyValueStore("s", ttl_ms=100)) as store:
        store.init(StoreContext("0_0", tmp_path))
        store.put_all_with_timestamp([(b"%d" % n, b"v", 1) for n in range(12_000)])
        store.put_with_timestamp(b"gone", b"v", 2)
        store.commit({CHANGELOG: 0})
        store.put_all_with_timestamp([(b"%d" % n, b"v", 101) for n in range(12_000)])
        store.commit({CHANGELOG: 1})
        assert store.expire(150)
        assert store.get(b"gone") is None


def test_what_a_killed_owner_leaves_expires_as_well(tmp_path: Path) -> None:
    store = ExpiringKeyValueStore("s", ttl_ms=100)  # nothing is flushed: no log goes away under the copy
    store.init(StoreContext("0_0", tmp_path / "a"))
    for commit in range(40):
        store.put_all_with_timestamp([(b"%d-%d" % (commit, n), b"v" * 50, 100 * commit + n) for n in range(60)])
        store.commit({CHANGELOG: commit})
        if commit % 13 == 5:
            shutil.copytree(tmp_path / "a", tmp_path / str(commit))  # as a kill leaves it
            with closing(ExpiringKeyValueStore("s", ttl_ms=100)) as left:
                left.init(StoreContext("0_0", tmp_path / str(commit)))
                with left.all() as rows:
                    assert len([*rows]) > 60
                assert left.expire(10_000_000)
                assert left.is_empty()
    store.close()


def test_overwrites_do_not_make_the_index_grow(tmp_path: Path) -> None:
    with closing(ExpiringKeyValueStore("s", ttl_ms=10**9)) as store:
        store.init(StoreContext("0_0", tmp_path))
        for commit in range(100):
            store.put_all_with_timestamp([(b"%d" % n, b"v", 1_000 * commit + n) for n in range(1_000)])
            store.commit({CHANGELOG: commit})
        rows = store._open().due(bytes(8), 10**6)
    assert sum(len(entries_of(content)) for _, content in rows) <= 20_000


def test_few_entries_are_in_memory_however_late_they_expire(tmp_path: Path) -> None:
    """Also if each key is overwritten before it expires, and so goes into the index again."""
    with closing(ExpiringKeyValueStore("s", ttl_ms=100_000)) as store:
        store.init(StoreContext("0_0", tmp_path))
        draw, most = random.Random(7), 0
        for commit in range(400):
            puts = [(b"%d" % draw.randrange(5_000), b"v", 1_000 * commit + n) for n in range(200)]
            store.put_all_with_timestamp(puts)
            store.commit({CHANGELOG: commit})
            most = max(most, len(store._due._entries))
        assert most < 1_000


def test_files_get_an_index_and_lose_it_with_the_declaration(tmp_path: Path) -> None:
    path = store_path(tmp_path, "s", timestamped=True)
    plain = TimestampedKeyValueStore("s", headers=True)
    plain.init(StoreContext("0_0", tmp_path))
    plain.put_all_with_timestamp([(b"old", stored(None), 10), (b"own", stored(900), 10), (b"new", stored(None), 500)])
    plain.commit({CHANGELOG: 0})
    plain.close()
    for ttl_ms, left in ((1_000, {b"own", b"old", b"new"}), (100, {b"own", b"new"})):
        store = opened(tmp_path, ttl_ms)
        store.put_with_timestamp(b"t", stored(510), 510)
        assert {key for key in (b"old", b"own", b"new") if store.get(key) is not None} == left
        store.close()
    assert "expiry" in Rdict.list_cf(str(path))
    plain.init(StoreContext("0_0", tmp_path))
    assert plain.get(b"old") == stored(None)  # none of it was committed
    plain.close()
    assert Rdict.list_cf(str(path)) == ["default", "offsets"]


def test_a_damaged_index_closes_the_store_which_can_be_wiped_then(tmp_path: Path) -> None:
    store = opened(tmp_path, 100)
    store.put_with_timestamp(b"k", stored(None), 10)
    store.commit({CHANGELOG: 0})
    engine = store._open()
    assert isinstance(engine, RocksDBEngine)
    assert engine.index is not None
    engine.index._family.put(b"", b"short")
    store.close()
    with pytest.raises(DamagedDataError, match="index of expiries"):
        store.init(StoreContext("0_0", tmp_path))
    store.wipe()
    store.init(StoreContext("0_0", tmp_path))
    assert store.is_empty()
    store.close()
    ((_, row),) = index_rows([(bytes(8), b"one"), (bytes(7) + b"\1", b"two")], 1_000, 1)
    assert len(entries_of(row)) == 2
    for damaged in (*(row[:length] for length in range(len(row))), row + b"x"):
        with pytest.raises(DamagedDataError, match="index of expiries"):
            entries_of(damaged)


def test_overwrites_of_a_key_that_is_staged_take_no_memory_and_it_expires_by_the_last_one(tmp_path: Path) -> None:
    store, most = opened(tmp_path, 100), 0
    for at in range(0, 2_000_000, 200):  # `k` expires the other key
        store.put_with_timestamp(b"other", stored(None), at)
        store.put_with_timestamp(b"k", stored(2_000_000), at + 150)
        most = max(most, len(store._heap or ()))
    assert 0 < most <= 1_100
    store.put_with_timestamp(b"now", stored(None), 2_000_000)
    assert store.get(b"k") is not None
    store.put_with_timestamp(b"now", stored(None), 2_000_001)
    assert store.get(b"k") is None
    store.close()


def killed_while_indexing(folder: Path, ttl_ms: int, batch: int) -> int:
    """Open the store in a process that ends behind this batch. Returns its exit code."""
    writer = f"from store.test_own_time_to_live import *; opened(Path({str(folder)!r}), {ttl_ms})"
    environment = {**os.environ, "STATELINE_CRASH_AT": f"expiry:batch-written#{batch}"}
    died = subprocess.run([sys.executable, "-c", writer], env=environment, cwd=TESTS, check=False, timeout=HANGING_S)
    return died.returncode


@pytest.mark.parametrize("batch", [1, 2])
def test_an_index_that_was_made_in_part_is_made_whole_after_kill_9(tmp_path: Path, batch: int) -> None:
    plain = TimestampedKeyValueStore("s", headers=True)
    plain.init(StoreContext("0_0", tmp_path))
    plain.put_all_with_timestamp([(b"%d" % n, stored(None), 10) for n in range(4_000)])
    plain.commit({CHANGELOG: 0})
    plain.close()
    assert killed_while_indexing(tmp_path, 100, batch) == -9
    with closing(opened(tmp_path, 100)) as store:
        assert store.expire(1_000)
        assert store.is_empty()


def test_after_a_part_of_an_index_of_another_declaration_that_of_the_former_one_is_made_whole(tmp_path: Path) -> None:
    plain = TimestampedKeyValueStore("s", headers=True)
    plain.init(StoreContext("0_0", tmp_path))
    plain.put_all_with_timestamp([(b"by its own", stored(1_010), 10), (b"by the store's", stored(None), 10)])
    plain.commit({CHANGELOG: 0})
    plain.close()
    opened(tmp_path, 1_000).close()
    assert killed_while_indexing(tmp_path, 5_000, batch=1) == -9  # it has replaced the row of both times
    with closing(opened(tmp_path, 1_000)) as store:
        assert store.expire(1_011)
        assert store.is_empty()


@pytest.mark.parametrize("seed", range(2))
def test_a_writer_killed_while_entries_expire_leaves_its_rows_and_an_index_of_all(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(3):
        command = [sys.executable, "-m", "store.expiring_writer", str(tmp_path)]
        writer = subprocess.Popen(command, cwd=TESTS, stdout=subprocess.PIPE)
        assert writer.stdout is not None
        for _ in range(draw.randrange(20, 300)):
            acknowledged = int(writer.stdout.readline())
        writer.kill()
        rest, _ = writer.communicate()
        acknowledged = int((rest.split(b"\n")[:-1] or [b"%d" % acknowledged])[-1])
        store = expiring_writer.opened(tmp_path)
        assert store.committed_offset(CHANGELOG) in (acknowledged, acknowledged + 1)
        with store.all_with_timestamp() as rows:
            found = {key: at for key, (_, at) in rows}
        assert found == expiring_writer.there_after(store.committed_offset(CHANGELOG) or 0)
        while store.expire(2**60):
            pass
        assert store.is_empty()
        store.close()


@pytest.mark.parametrize("flushed", [True, False])
def test_a_checkpoint_opens_as_a_store_whose_entries_expire(tmp_path: Path, flushed: bool) -> None:
    """Backups and copies for standbys are made of checkpoints."""
    with closing(expiring_writer.opened(tmp_path)) as store:
        for number in range(1, 40):
            expiring_writer.write(store, number)
        if flushed:
            database_of(store).flush()
        path = store_path(tmp_path / "copy", "s", timestamped=True)
        path.parent.mkdir(parents=True)
        lengths = link_database(store_path(tmp_path, "s", timestamped=True), path)
        for name, length in lengths.items():  # as for a copy: RocksDB appends to these files
            content = (path / name).read_bytes()[:length]
            (path / name).unlink()
            (path / name).write_bytes(content)
    with closing(expiring_writer.opened(tmp_path / "copy")) as copy:
        for number in (39, 40):
            if number == 40:
                expiring_writer.write(copy, number)
            with copy.all_with_timestamp() as rows:
                assert {key: at for key, (_, at) in rows} == expiring_writer.there_after(number)
        while copy.expire(2**60):
            pass
        assert copy.is_empty()


def test_readers_of_the_files_need_not_know_the_index(tmp_path: Path) -> None:
    path = store_path(tmp_path, "s", timestamped=True)
    store = ExpiringKeyValueStore("s", ttl_ms=100, tuning=SMALL)
    store.init(StoreContext("0_0", tmp_path))
    store.put_all_with_timestamp([(b"%d" % n, b"v" * 50, 10) for n in range(3_000)])
    store.commit({CHANGELOG: 0})
    with closing(SecondaryReader(path, notice_path(tmp_path, "s", timestamped=True), tmp_path / "scratch")) as reader:
        assert reader.rows_at_least() <= 3_000
        store.expire(1_000)
        store.commit({CHANGELOG: 1})
        reader.refresh()
        assert reader.get(b"1") is None
    store.close()
    with OfflineStore(path) as offline, offline.scan(EVERY_KEY) as rows:
        assert [*rows] == []


def test_logs_are_whole_though_the_index_is_seldom_written(tmp_path: Path) -> None:
    path = store_path(tmp_path, "s", timestamped=True)
    for lives in (True, True, False, True):
        store = ExpiringKeyValueStore("s", ttl_ms=10**9, tuning=SMALL) if lives else TimestampedKeyValueStore("s")
        store.init(StoreContext("0_0", tmp_path))
        for commit in range(30):
            store.put_all_with_timestamp([(b"%d" % n, bytes(2_000), commit) for n in range(20)])
            store.commit({CHANGELOG: commit})
        assert damage_of(path) is None
        store.close()
        assert damage_of(path) is None


def damage_of(path: Path) -> Damage | None:
    while True:
        with contextlib.suppress(RetryLaterError):  # a flush ended just then
            return find_damage(path)


def test_entries_come_in_the_order_of_their_times() -> None:
    keys = [b"k%d" % n for n in range(1_000)]
    times = [(n * 7919 % 1_000).to_bytes(8) for n in range(1_000)]
    rows = sorted(index_rows(zip(times, keys, strict=True), 3, 1))
    due = DueEntries(lambda start, most: [row for row in rows if row[0] >= start][:most])
    taken = [due.take(before.to_bytes(8), 30) for before in range(0, 1_001, 25)]
    assert [key for some in taken for key in some] == [key for _, key in sorted(zip(times, keys, strict=True))]


def test_an_index_row_has_the_bytes_that_are_documented() -> None:
    key, content = index_rows([((5).to_bytes(8), b"k")], 0, 1)[0]
    text = (Path(__file__).parents[2] / "docs/formats/stores.md").read_text()
    assert f"    {key.hex(' ')}        key\n    {content.hex(' ')}                 value\n" in text


def test_an_expiry_is_a_header() -> None:
    headers = with_expiry((("a", b"1"), ("stateline-expires-at", b"old")), 77)
    assert headers == (("stateline-expires-at", (77).to_bytes(8)), ("a", b"1"))
    assert split_headers(join_headers(b"v", headers)) == (b"v", headers)
    assert with_expiry((), 2**63) == (("stateline-expires-at", (2**63 - 1).to_bytes(8)),)


OTHERS_OF_A_ROW = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "stateline-expires-at", "n" * 64]),
        st.sampled_from([None, b"", b"short", (7).to_bytes(8), b"\x80" + bytes(7), bytes(5_000)]),
    ),
    max_size=70,
)


@settings(deadline=None)
@given(headers=OTHERS_OF_A_ROW, value=st.sampled_from([b"", b"v"]), is_first=st.booleans())
def test_the_first_expiry_among_headers_counts_and_none_of_a_value(
    headers: list[tuple[str, bytes | None]], value: bytes, is_first: bool
) -> None:
    given_headers = with_expiry(headers, 5) if is_first else headers
    values = (value, b"\x28stateline-expires-at\x10" + bytes(8), b"\1\x28stateline-expires-at\x10" + bytes(8))
    times = [at for name, at in given_headers if name == "stateline-expires-at" and at and len(at) == 8 and at[0] < 128]
    for each in values:
        row = (3).to_bytes(8) + join_headers(each, given_headers)
        assert Lifetime(0, own=True).times([row]) == [times[0] if times else NEVER]


def test_keys_are_known_until_removed_and_few_are_forgotten_in_a_table_of_twenty_bytes_a_key() -> None:
    known, keys = KnownKeys(), [b"key %d" % n for n in range(40_000)]
    before = 0
    for count in (500, 818, 820, 3_000, 6_500, 40_000):
        known.add(keys[before:count])
        assert len(known.unknown(keys[:count])) < count / 1_000
        assert known._slots.itemsize * len(known._slots) <= max(8_192, 20 * count + 8)
        assert known._used == len(known._slots) - known._slots.count(-1)
        before = count
    known.add(keys[50:150])
    known.remove(keys[:100])
    assert set(keys[:100]) <= set(known.unknown(keys))
    assert len(known.unknown([b"new %d" % n for n in range(1_000)])) == 1_000


def test_a_full_table_of_keys_stays_as_large_and_has_the_newest_ones() -> None:
    known, keys = KnownKeys(), [b"key %d" % n for n in range(20_000)]
    with patch.object(known_keys, "_MOST_SLOTS", 1 << 12):
        for at in range(0, len(keys), 100):
            known.add(keys[at : at + 100])
    assert len(known._slots) == 1 << 12
    assert known._used == (1 << 12) - known._slots.count(-1) > 3_600
    assert len(known.unknown(keys[-100:])) < 20


@pytest.mark.parametrize(("ttl_ms", "headers", "said"), [(0, False, "needs headers=True"), (-1, True, "time to live")])
def test_a_store_that_cannot_be_is_refused(ttl_ms: int, headers: bool, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        ExpiringKeyValueStore("s", ttl_ms=ttl_ms, own_ttl=True, headers=headers)
