"""When a worker that cannot run its tasks leaves its group, and when it joins it again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stateline.worker.group import fitness
from stateline.worker.group.fitness import Fitness
from stateline_store import StorageError

FULL = StorageError("The disk is full.")


class Clock:
    """Stands still unless it is put forward."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s

    def go_on(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(fitness, "monotonic", clock)
    return clock


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory that can be written to as long as it is there."""
    place = tmp_path / "application"
    place.mkdir()
    return place


def rests(worker: Fitness, clock: Clock) -> float:
    """For how long it waits until it works again, a second at a time."""
    began_s = clock()
    while not worker.may_work():
        clock.go_on(1)
    return clock() - began_s


def leaves(worker: Fitness, clock: Clock, place: Path, *, is_alone: bool = False) -> None:
    """Nothing can be written, until it has left."""
    shutil.rmtree(place)
    worker.failed(FULL, 0)
    while not worker.is_to_leave:
        assert not worker.may_work()
        clock.go_on(1)
    worker.left(is_alone=is_alone)
    place.mkdir()


def test_tasks_are_started_again_at_once_and_all_is_well_with_the_next_commit(place: Path, clock: Clock) -> None:
    worker = Fitness(place, "worker-0")
    assert worker.may_work()
    worker.failed(FULL, 5)
    assert worker.fault == "The disk is full."
    assert not worker.is_to_leave
    assert worker.may_work()
    worker.runs(5)
    assert worker.fault == "The disk is full.", "nothing was written since"
    worker.runs(6)
    assert worker.fault == ""


def test_tasks_that_have_nothing_to_commit_are_well_when_they_have_run_for_a_while(place: Path, clock: Clock) -> None:
    worker = Fitness(place, "worker-0")
    worker.failed(FULL, 0)
    worker.runs(0)
    clock.go_on(14)
    worker.runs(0)
    assert worker.fault
    clock.go_on(2)
    worker.runs(0)
    assert worker.fault == ""


def test_after_two_starts_that_failed_it_leaves(place: Path, clock: Clock) -> None:
    worker = Fitness(place, "worker-0")
    worker.failed(FULL, 0)
    for _ in range(2):
        assert not worker.is_to_leave
        assert rests(worker, clock) <= 5
        worker.failed(FULL, 0)
    assert worker.is_to_leave
    worker.left()
    assert not worker.is_to_leave
    assert "has left its group" in worker.fault


def test_it_leaves_when_nothing_could_be_written_for_15_s_and_joins_when_something_can(
    place: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitness, "_STARTS", 100)
    worker, began_s = Fitness(place, "worker-0"), clock()
    leaves(worker, clock, place)
    assert clock() - began_s == 15
    shutil.rmtree(place)
    for _ in range(60):
        assert not worker.may_work()
        clock.go_on(1)
    assert "cannot be written: No such file" in worker.fault
    place.mkdir()
    assert rests(worker, clock) <= 5
    assert not worker.is_out
    assert list(place.iterdir()) == [], "what it has tried is gone"


def test_each_time_it_rests_twice_as_long_until_it_has_worked_for_a_minute(place: Path, clock: Clock) -> None:
    worker, found = Fitness(place, "worker-0"), list[float]()
    for _ in range(9):
        leaves(worker, clock, place)
        found.append(rests(worker, clock))
    assert found == [5, 10, 20, 40, 80, 160, 320, 600, 600]
    worker.runs(1)
    clock.go_on(61)
    leaves(worker, clock, place)
    assert rests(worker, clock) == 5


def test_one_that_is_alone_rests_5_s_each_time(place: Path, clock: Clock) -> None:
    worker = Fitness(place, "worker-0")
    for _ in range(9):
        leaves(worker, clock, place, is_alone=True)
        assert rests(worker, clock) == 5


def test_one_that_nobody_can_ask_goes_on_for_15_s_and_stays_out_while_that_is_said(place: Path, clock: Clock) -> None:
    worker = Fitness(place, "worker-0")
    for _ in range(14):
        worker.hear("No node links with this one.")
        assert worker.may_work()
        assert not worker.is_to_leave
        clock.go_on(1)
    clock.go_on(1)
    worker.hear("No node links with this one.")
    assert worker.is_to_leave
    worker.put_off()
    assert not worker.is_to_leave, "it is asked again later"
    assert worker.fault == "", "it runs all that it has"
    clock.go_on(9)
    worker.hear("No node links with this one.")
    clock.go_on(6)
    assert worker.is_to_leave
    assert worker.is_working
    worker.left()
    for _ in range(100):
        worker.hear("No node links with this one.")
        assert not worker.may_work()
        clock.go_on(1)
    assert rests(worker, clock) <= 10
    assert worker.fault == ""
