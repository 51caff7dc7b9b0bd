"""Stores are found by name: whatever ordinals subtopologies have now, each store is where its task looks for it."""

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateline_store import (
    DamagedDataError,
    InvalidArgumentError,
    KeyValueStore,
    LockedError,
    Move,
    NotPresentError,
    SecondaryReader,
    StateDirectory,
    StoreContext,
    TopologyError,
    plan_relocation,
    relocate,
    settle_places,
)
from stateline_store.errors import CallerError, RetryLaterError
from stateline_store.files.offset_checkpoint import read_offset_checkpoint, write_offset_checkpoint
from stateline_store.files.relocation import plan_moves, unknown_stores
from store import relocation_scene as scene

SWAP = {"a": 0, "at": 0, "b": 1}, {"a": 1, "at": 1, "b": 0}
CYCLE = {"a": 0, "at": 0, "b": 1, "ct": 2}, {"a": 1, "at": 1, "b": 2, "ct": 0}
SHIFT = {"a": 0, "b": 1}, {"a": 1, "b": 2}
SPLIT = {"a": 0, "at": 0}, {"a": 0, "at": 3}
MERGE = {"a": 0, "b": 1}, {"a": 4, "b": 4}


def contents(directory: StateDirectory) -> dict[str, bytes]:
    """Every file but the locks, which say who was here last."""
    files = (path for path in directory.application.rglob("*") if path.is_file() and not path.name.endswith("lock"))
    return {str(path.relative_to(directory.application)): path.read_bytes() for path in files}


@pytest.mark.parametrize(("old", "new"), [SWAP, CYCLE, SHIFT, SPLIT, MERGE])
def test_stores_are_moved_with_all_that_belongs_to_them(tmp_path: Path, old: scene.Places, new: scene.Places) -> None:
    directory = scene.build(tmp_path, old, 3)
    expected = [Move(s, f"{old[s]}_{p}", f"{new[s]}_{p}") for s in sorted(new) for p in range(3) if old[s] != new[s]]
    assert plan_relocation(directory, new) == expected
    settled = settle_places(directory, new, automatic=True)
    assert (list(settled.moved), settled.unknown) == (expected, ())
    scene.check(directory, new, 3)
    assert settle_places(directory, new, automatic=False).moved == ()


def test_there_and_back_again_is_as_before(tmp_path: Path) -> None:
    directory = scene.build(tmp_path, CYCLE[0], 2)
    settle_places(directory, CYCLE[1], automatic=True)
    settle_places(directory, CYCLE[0], automatic=True)
    scene.check(directory, CYCLE[0], 2)


def test_switched_off_the_exact_difference_is_refused(tmp_path: Path) -> None:
    directory = scene.build(tmp_path, SPLIT[0], 2)
    before = contents(directory)
    with pytest.raises(TopologyError, match=r"automatic\.state\.relocation=true") as refusal:
        settle_places(directory, SPLIT[1], automatic=False)
    for p in range(2):
        places = f"store 'at' is in {directory.task(f'0_{p}')} and should be in {directory.task(f'3_{p}')}"
        assert places in str(refusal.value)
    assert "'a'" not in str(refusal.value)
    assert contents(directory) == before


def test_a_store_in_two_tasks_is_refused_by_both_paths(tmp_path: Path) -> None:
    directory = scene.build(tmp_path, {"a": 0, "b": 2}, 2)
    scene.write_store(directory, "a", "1_1")
    before = contents(directory)
    for ordinal in (0, 1, 7):
        with pytest.raises(TopologyError) as refusal:
            settle_places(directory, {"a": ordinal, "b": 0}, automatic=True)
        for task in ("0_1", "1_1"):
            assert str(directory.store(task, "a", timestamped=False)) in str(refusal.value)
    assert contents(directory) == before


def test_both_formats_of_a_store_move_together_and_are_refused_apart(tmp_path: Path) -> None:
    directory = scene.build(tmp_path, {"a": 0}, 1)
    shutil.copytree(directory.task("0_0") / "rocksdb/a", directory.task("0_0") / "rocksdb/a-v2")
    assert len(settle_places(directory, {"a": 1}, automatic=True).moved) == 1
    assert sorted(path.name for path in directory.task("1_0").glob("rocksdb/*")) == ["a", "a-v2"]
    os.renames(directory.task("1_0") / "rocksdb/a-v2", directory.task("0_0") / "rocksdb/a-v2")
    with pytest.raises(TopologyError, match=r"0_0/rocksdb/a-v2.*1_0/a\.position and .*1_0/rocksdb/a\."):
        settle_places(directory, {"a": 1}, automatic=True)


def test_a_position_without_rows_is_no_store_but_is_not_replaced_either(tmp_path: Path) -> None:
    directory = scene.build(tmp_path, {"a": 0}, 1)
    directory.lock_task("1_0").release()
    (directory.task("1_0") / "a.position").write_text("0\n0\n")
    assert plan_relocation(directory, {"a": 0}) == []
    with pytest.raises(TopologyError, match=r"0_0/a\.position.*1_0/a\.position"):
        plan_relocation(directory, {"a": 1})
    with pytest.raises(TopologyError, match=r"1_0/a\.position"):
        settle_places(directory, {"a": 1}, automatic=True)


@pytest.mark.parametrize("left", [(), ("rocksdict-config.json", "LOG")])
def test_a_directory_without_a_database_is_nothing(tmp_path: Path, left: tuple[str, ...]) -> None:
    directory = scene.build(tmp_path, {"a": 0}, 1)
    for place in (directory.task("1_0") / "rocksdb/a", directory.task("2_0") / "rocksdb/a"):
        place.mkdir(parents=True)
        for name in left:
            (place / name).touch()
    settle_places(directory, {"a": 1}, automatic=True)
    shutil.rmtree(directory.task("2_0"))
    scene.check(directory, {"a": 1}, 1)


def test_what_the_topology_does_not_know_stays_and_is_told(tmp_path: Path) -> None:
    directory = scene.build(tmp_path, {"a": 0, "at": 0, "b": 1}, 1)
    settled = settle_places(directory, {"b": 0}, automatic=True)
    assert settled.unknown == (("0_0", "a"), ("0_0", "at"))
    scene.check(directory, {"a": 0, "at": 0, "b": 0}, 1)


def test_a_store_of_the_user_with_a_directory_of_its_own_moves_too(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, scene.APP)
    directory.lock_task("0_0").release()
    (directory.task("0_0") / "mine").mkdir()
    (directory.task("0_0") / "mine/data").write_bytes(b"rows")
    write_offset_checkpoint(directory.task("0_0") / ".checkpoint", {scene.changelog("mine", 0): 5})
    scene.write_store(directory, "other", "0_0")
    (directory.task("0_0") / "topics.json").unlink()
    settle_places(directory, {"mine": 1, "other": 0, "rocksdb": 1, "topics.json": 1, ".lock": 1}, automatic=True)
    assert (directory.task("1_0") / "mine/data").read_bytes() == b"rows"
    assert (directory.task("1_0") / ".checkpoint").read_text() == "0\n1\napp-mine-changelog 0 5\n"
    assert read_offset_checkpoint(directory.task("0_0") / ".checkpoint").keys() == {scene.changelog("other", 0)}
    scene.check_store(directory, "0_0", "other")


def test_files_of_another_store_that_look_like_this_one_stay(tmp_path: Path) -> None:
    directory = scene.build(tmp_path, {"x": 0, "x.position": 0}, 1)
    settle_places(directory, {"x": 0, "x.position": 1}, automatic=True)
    scene.check(directory, {"x": 0, "x.position": 1}, 1)


def test_an_offset_that_the_target_still_had_does_not_outlive_the_move(tmp_path: Path) -> None:
    directory = scene.build(tmp_path, {"a": 0}, 1)
    (directory.task("0_0") / ".checkpoint").unlink()
    directory.lock_task("1_0").release()
    stale, other = {scene.changelog("a", 0): 999_999}, {scene.changelog("b", 0): 3}
    write_offset_checkpoint(directory.task("1_0") / ".checkpoint", stale | other)
    settle_places(directory, {"a": 1}, automatic=True)
    assert (directory.task("1_0") / ".checkpoint").read_text() == "0\n1\napp-b-changelog 0 3\n"


def test_two_ids_of_one_topic_are_neither_of_them(tmp_path: Path) -> None:
    directory = scene.build(tmp_path, {"a": 0, "b": 1}, 1)
    for task, ids in (("0_0", {"x": "1", "y": "2"}), ("1_0", {"y": "3", "z": "4"})):
        (directory.task(task) / "topics.json").write_text(json.dumps(ids))
    settle_places(directory, {"a": 1, "b": 1}, automatic=True)
    assert json.loads((directory.task("1_0") / "topics.json").read_bytes()) == {"x": "1", "y": "", "z": "4"}


@pytest.mark.parametrize("held", ["0_1", "1_1"])
def test_a_task_of_a_live_process_is_named_and_nothing_moves(tmp_path: Path, held: str) -> None:
    directory = scene.build(tmp_path, SWAP[0], 2)
    before = contents(directory)
    command = [sys.executable, scene.__file__, "own", str(tmp_path), held]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"owned\n"
        with pytest.raises(LockedError, match=rf"{held}/\.lock is held by process {owner.pid}"):
            settle_places(directory, SWAP[1], automatic=True)
    assert contents(directory) == before
    settle_places(directory, SWAP[1], automatic=True)
    scene.check(directory, SWAP[1], 2)


def test_of_several_processes_that_start_at_once_one_moves_everything(tmp_path: Path) -> None:
    directory = scene.build(tmp_path, CYCLE[0], 3)
    places = [f"{store}={ordinal}" for store, ordinal in CYCLE[1].items()]
    command = [sys.executable, scene.__file__, "settle", str(tmp_path), "automatic", *places]
    starts = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    moved = [int(start.communicate()[0]) for start in starts]
    assert [start.returncode for start in starts] == [0, 0, 0]
    assert sorted(moved) == [0, 0, 12]
    scene.check(directory, CYCLE[1], 3)


def test_the_wait_for_another_relocation_has_an_end(tmp_path: Path) -> None:
    directory = scene.build(tmp_path, {"a": 0}, 1)
    relocating = subprocess.Popen(
        ["flock", str(directory.application / ".relocation.lock"), "sh", "-c", "echo; cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with relocating:
        assert relocating.stdout is not None
        relocating.stdout.readline()
        with pytest.raises(LockedError, match="longer than 50 ms"):
            settle_places(directory, {"a": 1}, automatic=True, wait_ms=50)
    settle_places(directory, {"a": 1}, automatic=True, wait_ms=50)


def test_readers_of_the_old_place_are_told_and_the_new_place_is_published(tmp_path: Path) -> None:
    directory = scene.build(tmp_path, {"a": 0}, 1)

    def paths(task: str) -> tuple[Path, Path]:
        return directory.store(task, "a", timestamped=False), directory.notice(task, "a", timestamped=False)

    reader = SecondaryReader(*paths("0_0"), tmp_path / "reader")
    assert dict(reader.range(None, None)) == scene.rows("a", 0)
    settle_places(directory, {"a": 1}, automatic=True)
    with pytest.raises(NotPresentError):
        reader.refresh()
    store = KeyValueStore("a")
    store.init(StoreContext("1_0", directory.task("1_0")))
    with pytest.raises(NotPresentError):
        reader.refresh()
    there = SecondaryReader(*paths("1_0"), tmp_path / "other-reader")
    assert dict(there.range(None, None)) == scene.rows("a", 0)
    there.close()
    store.close()
    settle_places(directory, {"a": 0}, automatic=True)
    store.init(StoreContext("0_0", directory.task("0_0")))
    reader.refresh()
    assert dict(reader.range(None, None)) == scene.rows("a", 0)
    store.close()
    reader.close()


def test_moves_that_cannot_be_right_are_refused(tmp_path: Path) -> None:
    directory = scene.build(tmp_path, {"a": 0, "b": 1}, 2)
    before = contents(directory)
    for moves, error in (
        ([Move("a", "0_0", "1_1")], InvalidArgumentError),
        ([Move("a", "0_0", "1_0"), Move("a", "0_0", "2_0")], InvalidArgumentError),
        ([Move("a", "5_0", "1_0")], RetryLaterError),
        ([Move("b", "1_0", "1_0")], TopologyError),
    ):
        with pytest.raises(error):
            relocate(directory, moves)
    assert contents(directory) == before
    relocate(directory, [Move("a", "0_0", "1_0")])
    relocate(directory, [Move("a", "0_1", "1_1")])
    scene.check(directory, {"a": 1, "b": 1}, 2)


@pytest.mark.parametrize(
    ("journal", "error"),
    [
        (b'{"version": 2, "moves": []}', CallerError),
        (b'{"version": 1, "moves": [{"store": "a"}]}', DamagedDataError),
        (b'{"version": 1', DamagedDataError),
        (b"[]", DamagedDataError),
    ],
)
def test_a_journal_that_cannot_be_followed_is_named_and_stops_the_start(
    tmp_path: Path, journal: bytes, error: type[Exception]
) -> None:
    directory = scene.build(tmp_path, {"a": 0}, 1)
    (directory.application / ".relocation.json").write_bytes(journal)
    before = contents(directory)
    with pytest.raises(error, match=r"\.relocation\.json"):
        settle_places(directory, {"a": 1}, automatic=True)
    assert contents(directory) == before


def test_a_damaged_checkpoint_is_named_before_anything_moves(tmp_path: Path) -> None:
    directory = scene.build(tmp_path, {"a": 0}, 1)
    (directory.task("0_0") / ".checkpoint").write_text("0\n7\n")
    before = contents(directory)
    with pytest.raises(DamagedDataError, match=r"0_0/\.checkpoint"):
        settle_places(directory, {"a": 1}, automatic=True)
    assert contents(directory) == before


STORES = st.dictionaries(st.sampled_from("abcdefgh"), st.tuples(st.integers(0, 3), st.integers(0, 3)))


@settings(deadline=None)
@given(STORES, st.integers(1, 3), st.sets(st.sampled_from("abcdefgh")))
def test_a_plan_brings_every_store_to_its_subtopology(
    places: dict[str, tuple[int, int]], partitions: int, dropped: set[str]
) -> None:
    def listing(which: int) -> dict[str, frozenset[str]]:
        tasks: dict[str, set[str]] = {}
        for store, place in places.items():
            at = place[0] if store in dropped else place[which]
            for p in range(partitions):
                tasks.setdefault(f"{at}_{p}", set()).update([f"rocksdb/{store}/", f"{store}.position"])
        return {task: frozenset(names) for task, names in tasks.items()}

    wanted = {store: place[1] for store, place in places.items() if store not in dropped}
    directory = StateDirectory.__new__(StateDirectory)  # a plan reads no path: it only names them when it refuses
    held = {task: set(names) for task, names in listing(0).items()}
    for move in plan_moves(listing(0), wanted, directory):
        names = {f"rocksdb/{move.store}/", f"{move.store}.position"}
        assert names <= held[move.source]
        held[move.source] -= names
        held.setdefault(move.target, set()).update(names)
    assert {task: names for task, names in held.items() if names} == listing(1)
    strays = [(f"{places[store][0]}_{p}", store) for store in dropped & places.keys() for p in range(partitions)]
    assert sorted(unknown_stores(listing(0), wanted)) == sorted(strays)


def test_moves_are_logged_with_their_paths(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = scene.build(tmp_path, {"a": 0}, 1)
    with caplog.at_level(logging.INFO):
        settle_places(directory, {"a": 1}, automatic=True)
    assert f"Store 'a' moved from {directory.task('0_0')} to {directory.task('1_0')}" in caplog.text
