"""kill -9 between any two steps of a relocation: the next start finishes it, nothing is lost and nothing is twice."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stateline_store import StateDirectory, TopologyError, clean, settle_places
from store import relocation_scene as scene

OLD, NEW = {"a": 0, "bt": 1, "c": 2}, {"a": 1, "bt": 2, "c": 0}
ONCE = [
    "relocation:tasks-locked",
    ".relocation.json:draft-written",
    "relocation:journal-written",
    "relocation:journal-removed",
]
PER_MOVE = [
    "relocation:notices-withdrawn",
    "relocation:database-moved",
    "relocation:position-moved",
    "relocation:offset-given",
    "relocation:offset-taken",
    "relocation:topics-copied",
    "relocation:notices-removed",
]
STEPS = [*ONCE, *(f"{step}#{n}" for step in PER_MOVE for n in (1, 2, 3)), ".checkpoint:renamed", ".checkpoint:removed"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three stores in three subtopologies, made once."""
    path = tmp_path_factory.mktemp("built")
    scene.build(path, OLD, 1)
    return path


@pytest.fixture
def directory(built: Path, tmp_path: Path) -> StateDirectory:
    shutil.copytree(built, tmp_path / "state")
    return StateDirectory(tmp_path / "state", scene.APP)


def start(directory: StateDirectory, places: scene.Places, crash_at: str) -> int:
    """One start of the application; its exit status."""
    arguments = [f"{store}={ordinal}" for store, ordinal in places.items()]
    state_dir = str(directory.application.parent)
    command = [sys.executable, scene.__file__, "settle", state_dir, "automatic", *arguments]
    environment = os.environ | {"STATELINE_CRASH_AT": crash_at}
    return subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False).returncode


@pytest.mark.parametrize("step", STEPS)
def test_the_next_start_finishes(directory: StateDirectory, step: str) -> None:
    assert start(directory, NEW, step) == -9
    settle_places(directory, NEW, automatic=True)
    scene.check(directory, NEW, 1)


def test_a_start_that_is_killed_again_and_again_gets_there(directory: StateDirectory) -> None:
    """Each start dies at the next step of all: every step is done on what every other one left."""
    for step in [*ONCE[:3], *PER_MOVE, *reversed(PER_MOVE), "relocation:offset-given#2", "relocation:database-moved#2"]:
        assert start(directory, NEW, step) in (-9, 0), step
    settle_places(directory, NEW, automatic=True)
    scene.check(directory, NEW, 1)


@pytest.mark.parametrize("step", ["relocation:journal-written", "relocation:offset-given#2"])
def test_it_is_finished_before_the_topology_is_looked_at(directory: StateDirectory, step: str) -> None:
    assert start(directory, NEW, step) == -9
    settled = settle_places(directory, {}, automatic=False)
    assert len(settled.moved) == 3
    scene.check(directory, NEW, 1)
    assert start(directory, OLD, step) == -9
    settled = settle_places(directory, NEW, automatic=True)
    assert len(settled.moved) == 6
    scene.check(directory, NEW, 1)


def test_a_cleaner_keeps_off_what_is_half_way(directory: StateDirectory) -> None:
    assert start(directory, NEW, "relocation:database-moved#2") == -9
    assert clean(directory, [], 0, 2**50, lambda task: False) == []
    settle_places(directory, NEW, automatic=True)
    scene.check(directory, NEW, 1)
    assert clean(directory, [], 0, 2**50, lambda task: False) == ["0_0", "1_0", "2_0"]


def test_a_store_made_at_the_target_meanwhile_is_refused_and_both_are_kept(directory: StateDirectory) -> None:
    assert start(directory, NEW, "relocation:journal-written") == -9
    scene.write_store(directory, "a", "1_0")
    with pytest.raises(TopologyError, match=r"0_0/rocksdb/a .*1_0/rocksdb/a,"):
        settle_places(directory, NEW, automatic=True)
    scene.check_store(directory, "0_0", "a")
    shutil.rmtree(directory.store("1_0", "a", timestamped=False))
    (directory.task("1_0") / "a.position").unlink()
    settle_places(directory, NEW, automatic=True)
    scene.check(directory, NEW, 1)
