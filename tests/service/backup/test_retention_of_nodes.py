"""Backups of several nodes after sweeps: the newest whole ones stay, with all their manifests."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateline.backup.cut import find_cut
from stateline.backup.location import BackupLocation
from stateline.backup.retention import sweep
from stateline_store import DoesNotExistError, Position
from stateline_store.snapshots.backup import Backup, backup_id
from stateline_store.snapshots.checkpoints import CheckpointPart
from stateline_store.snapshots.store_copies import StoreCopy

DAY_MS = 86_400_000
RETENTION_MS = 7 * DAY_MS
TYPES = {"kind": "key_value", "key_type": "string", "value_type": "string"}
DECLARED = {
    "a": {**TYPES, "partitions": 2, "subtopology": 0},
    "b": {**TYPES, "partitions": 1, "subtopology": 1},
}
STORE_OF = {"0": "a", "1": "b"}
TASKS = ("0_0", "0_1", "1_0")


@pytest.fixture
def location(tmp_path: Path) -> BackupLocation:
    return BackupLocation(str(tmp_path), "app")


def put(location: BackupLocation, at_ms: int, node: str, tasks: Iterable[str], idle: Iterable[str] = ()) -> None:
    """Write a manifest of this moment. `idle` are tasks whose stores had nothing yet."""
    parts = tuple(
        CheckpointPart(STORE_OF[task[0]], int(task[2:]), f"{task}/s", 1, 1, Position(), {}) for task in sorted(tasks)
    )
    committed = {task: {"in": (1, None, None)} for task in sorted({*tasks, *idle})}
    copy = StoreCopy("x", {}, parts, {})
    location.write(Backup(backup_id(at_ms), node, "app", at_ms, "", DECLARED, {}, committed, {}, copy))


def days_ago(days: float) -> int:
    return int(time.time() * 1000 - days * DAY_MS)


def test_a_manifest_of_tasks_that_had_nothing_yet_stays(location: BackupLocation) -> None:
    at_ms = days_ago(8)
    put(location, at_ms, "one", ["0_0"])
    put(location, at_ms, "two", [], ["0_1", "1_0"])
    assert sweep(location, RETENTION_MS, 3).manifests == ()
    assert find_cut(location.url).id == backup_id(at_ms)


def test_whole_backups_stay_when_newer_ones_lack_a_node(location: BackupLocation) -> None:
    at_ms = days_ago(8)
    for number in range(5):
        put(location, at_ms + number, "one", ["0_0"])
        put(location, at_ms + number, "two", ["0_1", "1_0"])
    for number in range(5, 8):
        put(location, at_ms + number, "one", ["0_0"])
    sweep(location, RETENTION_MS, 3)
    assert location.manifests() == [
        *((backup_id(at_ms + number), node) for number in range(2, 5) for node in ("one", "two")),
        *((backup_id(at_ms + number), "one") for number in range(5, 8)),
    ]
    assert find_cut(location.url).id == backup_id(at_ms + 4)


MANIFESTS = st.dictionaries(
    st.tuples(st.integers(0, 20), st.sampled_from(["one", "two", "three"])),
    st.tuples(st.sets(st.sampled_from(TASKS)), st.sets(st.sampled_from(TASKS))),
)


@given(MANIFESTS, st.integers(1, 3), st.lists(st.integers(0, 20), max_size=3))
@settings(deadline=None)
def test_the_newest_whole_backup_stays_whole_after_any_sweeps(
    made: dict[tuple[int, str], tuple[set[str], set[str]]], keep: int, sweeps: list[int]
) -> None:
    with TemporaryDirectory() as root:
        location, first_ms = BackupLocation(root, "app"), days_ago(20)
        for (number, node), (tasks, idle) in made.items():
            put(location, first_ms + number * DAY_MS, node, tasks, idle)
        before = _newest_whole(location)
        for days in sweeps:
            sweep(location, days * DAY_MS, keep)
            assert _newest_whole(location) == before


def _newest_whole(location: BackupLocation) -> str | None:
    try:
        return find_cut(location.url).id
    except DoesNotExistError:
        return None
