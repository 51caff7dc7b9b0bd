"""Checkpoints by hard links: each shows exactly its commit, whatever the database does meanwhile and later."""

from __future__ import annotations

import os
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from stateline_store import (
    CallerError,
    CursorExpiredError,
    DamagedDataError,
    DoesNotExistError,
    IsolationLevel,
    KeyValueStore,
    NotPresentError,
    Position,
    RetryLaterError,
    StoreContext,
    TooManyRequestsError,
    TopicPartition,
    store_path,
)
from stateline_store.rocksdb.options import Tuning
from stateline_store.scan import EVERY_KEY, KeyRange
from stateline_store.snapshots.checkpoints import Checkpoint, CheckpointPart, link_database
from stateline_store.snapshots.snapshot import CallerShare, PartsElsewhere, Pin, Snapshot
from stateline_store.snapshots.snapshot_directory import SnapshotDirectory

SOURCE = TopicPartition("orders", 0)
MANY_FLUSHES = Tuning(write_buffer_bytes=64 * 1024, level_base_bytes=256 * 1024)
DAY_MS = 24 * 60 * 60 * 1000


def opened(task: Path, tuning: Tuning = MANY_FLUSHES) -> KeyValueStore:
    store = KeyValueStore("totals", tuning=tuning)
    store.init(StoreContext("0_0", task))
    return store


def linked(store: KeyValueStore, task: Path, snapshot: Path, name: str = "totals") -> CheckpointPart:
    snapshot.mkdir(exist_ok=True)
    lengths = link_database(store_path(task, "totals", timestamped=False), snapshot / name)
    return CheckpointPart("totals", 0, name, store.commit_number, store.committed_at_ms, committed(store), lengths)


def committed(store: KeyValueStore) -> Position:
    return store.position(IsolationLevel.READ_COMMITTED)


def rows(checkpoint: Checkpoint) -> dict[bytes, bytes]:
    with checkpoint.scan(EVERY_KEY) as scan:
        return dict(scan)


def put(store: KeyValueStore, offset: int, **pairs: str) -> None:
    for key, value in pairs.items():
        store.put(key.encode(), value.encode())
    store.commit({}, position=Position.of({SOURCE: offset}))


def test_every_checkpoint_shows_its_commit_while_the_store_flushes_and_compacts(tmp_path: Path) -> None:
    """Oracle: a dict of what was committed. What is staged never shows."""
    dice = random.Random(7)
    store, truth, made = opened(tmp_path), dict[bytes, bytes](), []
    for number in range(300):
        for _ in range(dice.randrange(1, 60)):
            key = b"key-%d" % dice.randrange(500)
            value = dice.randbytes(dice.randrange(200)) if dice.random() < 0.8 else None
            if value is None:
                truth.pop(key, None)
                store.delete(key)
            else:
                truth[key] = value
                store.put(key, value)
        store.commit({}, position=Position.of({SOURCE: number}))
        if number % 7 == 0:
            store.put(b"staged", b"never seen")
            part = linked(store, tmp_path, tmp_path / "snapshots", str(number))
            store.rollback()
            made.append((part, dict(truth)))
    deadline_s = time.monotonic() + 60
    database = store_path(tmp_path, "totals", timestamped=False)
    while all((database / path.name).exists() for path in (tmp_path / "snapshots").rglob("*.sst")):
        assert time.monotonic() < deadline_s, "no compaction came in between: the test shows nothing"
        put(store, 1_000, **{f"key-{dice.randrange(500)}": "x" * 500})
    store.close()
    for part, expected in made:
        with Checkpoint(tmp_path / "snapshots", part) as checkpoint:
            assert rows(checkpoint) == expected
            assert checkpoint.commit.position == part.position == Position.of({SOURCE: part.commit - 1})


def test_commits_that_follow_do_not_show_though_the_log_is_shared(tmp_path: Path) -> None:
    store = opened(tmp_path, Tuning())
    put(store, 1, a="1")
    part = linked(store, tmp_path, tmp_path / "s")
    put(store, 2, a="2", b="2")
    log = next(name for name in part.lengths if name.endswith(".log"))
    assert (tmp_path / "s" / "totals" / log).stat().st_size > part.lengths[log]
    with Checkpoint(tmp_path / "s", part) as checkpoint:
        assert rows(checkpoint) == {b"a": b"1"}
        with checkpoint.scan(KeyRange(b"b")) as scan:
            assert list(scan) == []
    store.close()


def test_an_empty_store_has_an_empty_checkpoint(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with Checkpoint(tmp_path / "s", linked(store, tmp_path, tmp_path / "s")) as checkpoint:
        assert (rows(checkpoint), checkpoint.commit.number) == ({}, 0)
    store.close()


def test_an_open_checkpoint_is_read_to_its_end_after_it_was_deleted(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(40):
        put(store, number, **{f"k{number:03}-{i:03}": "v" * 100 for i in range(50)})
    part = linked(store, tmp_path, tmp_path / "s")
    store.close()
    with Checkpoint(tmp_path / "s", part) as checkpoint, checkpoint.scan(EVERY_KEY) as scan:
        next(scan)
        shutil.rmtree(tmp_path / "s")
        shutil.rmtree(tmp_path / "rocksdb")
        assert sum(1 for _ in scan) == 40 * 50 - 1
        assert len(rows(checkpoint)) == 40 * 50
    with pytest.raises(NotPresentError):
        Checkpoint(tmp_path / "s", part)


def test_an_opening_leaves_nothing_behind(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, 1, a="1")
    part = linked(store, tmp_path, tmp_path / "s")
    before = sorted((tmp_path / "s").rglob("*"))
    with Checkpoint(tmp_path / "s", part):
        assert sorted((tmp_path / "s").rglob("*")) == before
    store.close()


def test_a_checkpoint_of_another_commit_or_with_a_shorter_log_is_damaged(tmp_path: Path) -> None:
    store = opened(tmp_path, Tuning())
    put(store, 1, a="1")
    put(store, 2, a="2")
    part = linked(store, tmp_path, tmp_path / "s")
    store.close()
    log = next(name for name in part.lengths if name.endswith(".log"))
    shorter = {**part.lengths, log: part.lengths[log] - 20}
    with pytest.raises(DamagedDataError, match="shows commit 1 instead of 2"):
        Checkpoint(tmp_path / "s", CheckpointPart("totals", 0, "totals", 2, 0, part.position, shorter))
    os.truncate(tmp_path / "s" / "totals" / log, 5)
    with pytest.raises(DamagedDataError, match="shorter"):
        Checkpoint(tmp_path / "s", part)


def test_without_a_database_there_is_nothing_to_link(tmp_path: Path) -> None:
    with pytest.raises(NotPresentError):
        link_database(tmp_path / "none", tmp_path / "target")


# ---- leases


@pytest.fixture
def snapshots(tmp_path: Path) -> SnapshotDirectory:
    return SnapshotDirectory(tmp_path / "app")


@pytest.fixture
def part(tmp_path: Path) -> CheckpointPart:
    return CheckpointPart("totals", 0, "0_0/totals", 3, 5, Position.of({SOURCE: 7}), {"000004.log": 9})


def made(snapshots: SnapshotDirectory, part: CheckpointPart, *, now_ms: int = 0, until_ms: int = 100) -> Snapshot:
    making = snapshots.begin(now_ms, 10, -1)
    (making.path / "0_0" / "totals").mkdir(parents=True)
    (making.path / "0_0" / "totals" / "000001.sst").write_bytes(b"x" * 10_000)
    return snapshots.finish(making, [part], now_ms, until_ms)


def test_a_snapshot_is_found_by_every_process_until_its_lease_ends(
    snapshots: SnapshotDirectory, part: CheckpointPart, tmp_path: Path
) -> None:
    snapshot = made(snapshots, part)
    other = SnapshotDirectory(tmp_path / "app")
    assert other.find(snapshot.id, 99) == snapshot == Snapshot.decode(snapshot.encode())
    assert other.all(99) == [snapshot]
    assert snapshot.part("totals", 0) == part
    with pytest.raises(DoesNotExistError, match="partition 1"):
        snapshot.part("totals", 1)
    with pytest.raises(CursorExpiredError):
        other.find(snapshot.id, 100)
    assert other.all(100) == []


def test_a_renewed_lease_ends_later(snapshots: SnapshotDirectory, part: CheckpointPart) -> None:
    snapshot = made(snapshots, part)
    assert snapshots.renew(snapshot.id, 50, 500).expires_at_ms == 500
    assert snapshots.sweep(499) == []
    assert snapshots.find(snapshot.id, 499).parts == (part,)
    assert snapshots.sweep(500) == [snapshot.id]
    with pytest.raises(CursorExpiredError):
        snapshots.renew(snapshot.id, 501, 1000)


@pytest.mark.parametrize("unknown", ["", "x", "..", "0" * 24, "../0_0", "0" * 25, "G" * 24])
def test_an_id_that_never_was_does_not_exist(snapshots: SnapshotDirectory, part: CheckpointPart, unknown: str) -> None:
    for there_are_some in (False, True):
        if there_are_some:
            made(snapshots, part)
        for call in (
            lambda: snapshots.find(unknown, 0),
            lambda: snapshots.renew(unknown, 0, 1),
            lambda: snapshots.release(unknown, 0),
        ):
            with pytest.raises(DoesNotExistError):
                call()


def test_a_released_or_expired_one_is_gone_and_remembered_for_a_day(
    snapshots: SnapshotDirectory, part: CheckpointPart
) -> None:
    released, expired = made(snapshots, part), made(snapshots, part)
    snapshots.release(released.id, 1)
    assert snapshots.sweep(100) == [expired.id]
    for each in (released, expired):
        with pytest.raises(CursorExpiredError):
            snapshots.find(each.id, 101)
    assert sorted(os.listdir(snapshots.path)) == sorted([".lock", f".gone-{released.id}", f".gone-{expired.id}"])
    now_ms = int((snapshots.path / f".gone-{released.id}").stat().st_mtime * 1000)
    snapshots.sweep(now_ms + 2 * DAY_MS)
    assert os.listdir(snapshots.path) == [".lock"]
    with pytest.raises(DoesNotExistError):
        snapshots.find(released.id, 0)


def test_what_is_given_up_was_never_there_and_its_pin_is_free(
    snapshots: SnapshotDirectory, part: CheckpointPart
) -> None:
    pin, elsewhere = Pin("job 7", "ann", frozenset({"totals"})), PartsElsewhere("two", (part,))
    making = snapshots.begin(0, 10, -1, snapshot_id="0" * 24)
    snapshot = snapshots.finish(making, [part], 0, 100, "ann", pin, [elsewhere])
    assert (snapshot.id, snapshots.find("0" * 24, 1)) == ("0" * 24, snapshot)
    assert snapshot.elsewhere == (elsewhere,)
    assert snapshots.renew(snapshot.id, 1, 200).elsewhere == (elsewhere,)
    snapshots.give_up(snapshot.id, replace(pin, text="job 8"))
    assert sorted(os.listdir(snapshots.path)) == sorted([".lock", pin.file_name])
    snapshots.finish(snapshots.begin(0, 10, -1, snapshot_id="0" * 24), [part], 0, 100)
    snapshots.give_up(snapshot.id, pin)
    assert os.listdir(snapshots.path) == [".lock"]


def test_what_is_given_up_while_it_is_made_is_never_finished(
    snapshots: SnapshotDirectory, part: CheckpointPart
) -> None:
    pin = Pin("job 7", None, frozenset({"totals"}))
    for pinned in (None, pin):
        making = snapshots.begin(0, 10, -1)
        snapshots.give_up(making.id, pin)
        with pytest.raises(RetryLaterError):
            snapshots.finish(making, [part], 0, 100, None, pinned)
        making.close()
        assert snapshots.all(1) == []
    assert snapshots.pinned(pin, 1) is None


def test_a_pin_stands_for_one_snapshot_and_when_that_is_gone_for_none(
    snapshots: SnapshotDirectory, part: CheckpointPart
) -> None:
    pin = Pin("job 7", "ann", frozenset({"totals"}))
    assert snapshots.pinned(pin, 0) is None
    first, second = snapshots.begin(0, 10, -1), snapshots.begin(0, 10, -1)
    snapshot = snapshots.finish(first, [part], 0, 100, "ann", pin)
    assert snapshots.pinned(pin, 1) == snapshot
    assert snapshots.finish(second, [part], 0, 100, "ann", pin) == snapshot, "the second gets what the first has made"
    second.close()
    for other in (replace(pin, owner="bob"), replace(pin, text="job 8"), replace(pin, stores=frozenset({"a"}))):
        assert snapshots.pinned(other, 1) is None
    assert snapshots.sweep(1) == [second.id]
    snapshots.release(snapshot.id, 1)
    with pytest.raises(CursorExpiredError, match="of this pin has ended: use another pin"):
        snapshots.pinned(pin, 2)
    now_ms = int((snapshots.path / f".gone-{snapshot.id}").stat().st_mtime * 1000)
    for _ in range(2):  # whichever of the two is looked at first
        snapshots.sweep(now_ms + 2 * DAY_MS)
    assert os.listdir(snapshots.path) == [".lock"]
    assert snapshots.pinned(pin, 0) is None


@pytest.mark.parametrize("left", ["", "0123", "0" * 24])
def test_a_pin_that_a_crash_left_stands_for_nothing(
    snapshots: SnapshotDirectory, part: CheckpointPart, left: str
) -> None:
    pin = Pin("job 7", None, frozenset({"totals"}))
    snapshot = made(snapshots, part)
    (snapshots.path / pin.file_name).write_text(left)
    assert snapshots.pinned(pin, 0) is None
    snapshots.sweep(0)
    assert sorted(os.listdir(snapshots.path)) == [".lock", snapshot.id]


def test_one_that_is_being_made_stays_and_one_that_was_given_up_goes(snapshots: SnapshotDirectory) -> None:
    making = snapshots.begin(0, 10, -1)
    assert snapshots.sweep(10**15) == []
    with pytest.raises(DoesNotExistError):
        snapshots.find(making.id, 0)
    making.close()
    assert snapshots.sweep(0) == [making.id]
    assert os.listdir(snapshots.path) == [".lock"]


def test_what_an_interrupted_deletion_left_goes_with_the_next_sweep(
    snapshots: SnapshotDirectory, part: CheckpointPart
) -> None:
    snapshot = made(snapshots, part)
    (snapshots.path / snapshot.id).rename(snapshots.path / f".deleted-{snapshot.id}")
    snapshots.sweep(0)
    assert os.listdir(snapshots.path) == [".lock"]


def test_more_than_the_most_are_refused_until_one_goes(snapshots: SnapshotDirectory, part: CheckpointPart) -> None:
    first = made(snapshots, part)
    making = snapshots.begin(0, 2, -1)
    with pytest.raises(TooManyRequestsError, match=r"server\.snapshots\.max allows 2"):
        snapshots.begin(0, 2, -1)
    snapshots.begin(100, 2, -1).close()  # the first one's lease has ended, though nobody has swept yet
    snapshots.sweep(0)
    making.close()
    snapshots.release(first.id, 0)
    snapshots.begin(0, 2, -1).close()


def test_one_that_was_given_up_counts_for_nobody_though_nobody_has_swept_yet(snapshots: SnapshotDirectory) -> None:
    """Those who asked for one pin at once and came second have given up theirs; so has a server that was killed."""
    share = CallerShare("caller", 1)
    snapshots.begin(0, 2, -1, share).close()
    making = snapshots.begin(0, 2, -1, share)
    with pytest.raises(TooManyRequestsError, match=r"1 snapshots are yours"):
        snapshots.begin(0, 2, -1, share)
    snapshots.begin(0, 2, -1).close()
    making.close()


def test_bytes_count_that_nobody_else_has_and_each_once(
    snapshots: SnapshotDirectory, part: CheckpointPart, tmp_path: Path
) -> None:
    shared = tmp_path / "000001.sst"
    shared.write_bytes(b"x" * 100_000)
    making = [snapshots.begin(0, 10, -1) for _ in range(2)]
    for each in making:
        os.link(shared, each.path / "000001.sst")
    for each in making:
        snapshots.finish(each, [part], 0, 100)
    before = snapshots.kept_bytes()
    assert before < 100_000
    shared.unlink()  # a compaction
    assert 100_000 <= snapshots.kept_bytes() - before < 110_000
    with pytest.raises(TooManyRequestsError, match=r"server\.snapshots\.max\.bytes allows 100000"):
        snapshots.begin(0, 10, 100_000)
    snapshots.begin(0, 10, 10_000_000).close()


def test_a_running_backup_uses_up_no_limit_of_readers(
    snapshots: SnapshotDirectory, part: CheckpointPart, tmp_path: Path
) -> None:
    backup, making = snapshots.begin_for_backup(), snapshots.begin(0, 1, 100_000)
    old, shared = tmp_path / "000001.sst", tmp_path / "000002.sst"
    for each in (old, shared):
        each.write_bytes(b"x" * 100_000)
        os.link(each, backup.path / each.name)
    os.link(shared, making.path / shared.name)
    snapshots.finish(making, [part], 0, 100)
    old.unlink()  # a compaction
    assert snapshots.kept_bytes() < 100_000, "only the backup has it"
    snapshots.begin(0, 2, 100_000).close()
    shared.unlink()
    assert 100_000 <= snapshots.kept_bytes() < 200_000, "the reader keeps it too"
    assert [each.id for each in snapshots.all(0)] == [making.id]
    assert snapshots.sweep(0) != []
    assert backup.path.exists()
    backup.close()
    assert snapshots.sweep(0) == [backup.id]


def test_a_manifest_of_a_newer_version_stays_and_a_damaged_one_goes(
    snapshots: SnapshotDirectory, part: CheckpointPart
) -> None:
    newer, damaged = made(snapshots, part), made(snapshots, part)
    (snapshots.path / newer.id / "snapshot.json").write_text('{"format": 2, "id": "x"}')
    (snapshots.path / damaged.id / "snapshot.json").write_text("{}")
    with pytest.raises(CallerError, match="newer version"):
        snapshots.find(newer.id, 0)
    assert snapshots.sweep(10**15) == [damaged.id]
