"""Backups of several nodes: which of them are whole, and whose stores are taken if a task moved meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from stateline.backup.cut import find_cut
from stateline.backup.location import BackupLocation
from stateline.backup.reading import backups, tasks
from stateline_store import DamagedDataError, Position, TopicPartition
from stateline_store.snapshots.backup import Backup, backup_id, settled
from stateline_store.snapshots.checkpoints import CheckpointPart
from stateline_store.snapshots.store_copies import StoreCopy

TYPES = {"kind": "key_value", "key_type": "string", "value_type": "string"}
DECLARED = {
    "a": {**TYPES, "partitions": 2, "subtopology": 0},
    "b": {**TYPES, "partitions": 2, "subtopology": 0},
    "c": {**TYPES, "partitions": 1, "subtopology": 1},
}
OLDER = {name: {k: v for k, v in told.items() if k != "subtopology"} for name, told in DECLARED.items()}
Stores = Mapping[str, Mapping[str, object]]


@pytest.fixture
def location(tmp_path: Path) -> BackupLocation:
    return BackupLocation(str(tmp_path), "app")


def part(store: str, task: str, read: int, committed_at_ms: int = 1) -> CheckpointPart:
    place = int(task.partition("_")[2])
    position = Position.of({TopicPartition("in", place): read})
    return CheckpointPart(store, place, f"{task}/{store}", 1, committed_at_ms, position, {})


def backed_up(
    location: BackupLocation, at_ms: int, node: str, parts: list[CheckpointPart], stores: Stores, *idle: str
) -> str:
    """Write a manifest of this moment. `idle` are tasks whose stores had nothing yet."""
    copy, running = StoreCopy("here", {}, tuple(parts), {}), {each.directory.partition("/")[0] for each in parts}
    committed = {task: {"in": (1, None, None)} for task in (*running, *idle)}
    made = Backup(backup_id(at_ms), node, "app", at_ms, "", stores, {}, committed, {}, copy)
    location.write(made)
    return made.id


def of_tasks(read: int, *names: str) -> list[CheckpointPart]:
    """All stores of these tasks."""
    return [part(name, task, read) for task in names for name in (("c",) if task == "1_0" else ("a", "b"))]


def test_a_backup_without_any_partition_of_a_store_is_not_whole(location: BackupLocation) -> None:
    first = backed_up(location, 1, "one", of_tasks(5, "0_0", "0_1"), DECLARED)
    assert backed_up(location, 1, "two", of_tasks(5, "1_0"), DECLARED) == first
    second = backed_up(location, 2, "one", of_tasks(6, "0_0", "0_1"), DECLARED)
    assert find_cut(location.url).id == first
    with pytest.raises(DamagedDataError, match="no partition 0 of 'c'"):
        find_cut(location.url, second).parts("c")
    assert find_cut(location.url, second).parts("a").keys() == {0, 1}


def test_a_store_that_has_nothing_yet_is_no_missing_one(location: BackupLocation) -> None:
    made = backed_up(location, 1, "one", [*of_tasks(5, "0_0"), part("a", "0_1", 5)], DECLARED)
    backed_up(location, 1, "two", [], DECLARED, "1_0")
    cut = find_cut(location.url)
    assert cut.id == made
    assert {name: [*cut.parts(name)] for name in cut.stores} == {"a": [0, 1], "b": [0], "c": []}
    for name in cut.stores:
        of_store = cut.of_store(name)
        assert (of_store.id, of_store.parts(name), of_store.position(name)) == (
            made, cut.parts(name), cut.position(name),
        )  # fmt: skip
        assert {each.store for own in of_store.manifests for each in own.copy.parts} <= {name}


def test_an_older_manifest_says_of_no_partition_that_it_had_nothing(location: BackupLocation) -> None:
    made = backed_up(location, 1, "one", [*of_tasks(5, "0_0"), part("a", "0_1", 5)], OLDER)
    assert find_cut(location.url, made).parts("a").keys() == {0, 1}
    with pytest.raises(DamagedDataError, match="no partition 1 of 'b'"):
        find_cut(location.url, made).parts("b")


@pytest.mark.parametrize(("ahead", "behind"), [("one", "two"), ("two", "one")])
def test_of_a_task_that_moved_all_stores_are_those_of_the_node_that_read_more(
    location: BackupLocation, ahead: str, behind: str
) -> None:
    """The clock of the other node is fast, as to one of its stores."""
    late = [part("a", "0_0", 5, committed_at_ms=900), part("b", "0_0", 5, committed_at_ms=1)]
    made = backed_up(location, 1, behind, [*late, *of_tasks(5, "0_1")], DECLARED)
    backed_up(location, 1, ahead, [*of_tasks(7, "0_0"), *of_tasks(5, "1_0")], DECLARED)
    cut = find_cut(location.url, made)
    for store in ("a", "b"):
        parts = cut.parts(store)
        assert {number: found.node for number, found in parts.items()} == {0: ahead, 1: behind}
        assert cut.position(store).get("in", 0) == 7
    found = [each for each in backups(location) if "0_0" in tasks(each)]
    assert [each.node for each in found] == [ahead], "a restore takes the same"
    assert [each.node for each in backups(location) if "0_0" in each.committed] == [ahead]


def _numbered(parts: int = 1, read: int = 5, committed: int = 5, written: int = 5) -> Backup:
    """A manifest of task 0_0 with these numbers of progress."""
    names = ("a", "b")[:parts]
    every = tuple(part(name, "0_0", read if name == "a" else 0) for name in names)
    offsets = {"0_0/a": written, "0_0/b": 0}
    at = {"0_0": {"in": (committed, None, None), "other": (1, None, None)}}
    return Backup("1", "one", "app", 1, "", DECLARED, offsets, at, {}, StoreCopy("here", {}, every, {}))


@pytest.mark.parametrize(
    ("ahead", "behind"),
    [
        (_numbered(parts=2, read=1), _numbered(parts=1, read=9)),
        (_numbered(read=6, committed=1), _numbered(read=5, committed=9)),
        (_numbered(committed=6, written=1), _numbered(committed=5, written=9)),
        (_numbered(written=6), _numbered(written=5)),
    ],
    ids=["parts", "read", "committed", "written"],
)
@pytest.mark.parametrize("names", [("one", "two"), ("two", "one")])
def test_each_number_of_progress_decides_before_the_ones_after_it(
    ahead: Backup, behind: Backup, names: tuple[str, str]
) -> None:
    two = replace(ahead, node=names[0]), replace(behind, node=names[1])
    for manifests in (two, two[::-1]):
        (owner,) = (each for each in settled(manifests) if each.committed)
        assert owner.node == names[0]
        assert all(not each.copy.parts for each in settled(manifests) if each.node != names[0])
