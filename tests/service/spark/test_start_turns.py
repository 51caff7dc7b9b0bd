"""Drivers that start at once take turns: a process each, as under `stateline run`."""

from __future__ import annotations

import multiprocessing
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from stateline.spark.drivers.process import in_turn
from stateline_store import TaskLock
from support.run.patience import HANGING_S

PROCESSORS = 2


def _driver(pipelines: Path, told: Connection) -> None:
    """Says that it starts, is told that it has started, and goes on."""
    with in_turn(pipelines, threading.Event(), PROCESSORS) as has_started:
        told.send("starts")
        told.recv()
        has_started()
        told.send("has started")
        told.recv()


class Driver:
    def __init__(self, pipelines: Path) -> None:
        context = multiprocessing.get_context("fork")
        self._told, other = context.Pipe()
        self.process = context.Process(target=_driver, args=(pipelines, other), daemon=True)
        self.process.start()

    def says(self, text: str) -> bool:
        return self._told.poll(HANGING_S) and self._told.recv() == text

    @property
    def waits(self) -> bool:
        return not self._told.poll(0.5)

    def goes_on(self) -> None:
        self._told.send(None)


def test_no_more_drivers_start_at_a_time_than_there_are_processors(tmp_path: Path) -> None:
    first, second = Driver(tmp_path), Driver(tmp_path)
    assert first.says("starts")
    assert second.says("starts")
    third, fourth = Driver(tmp_path), Driver(tmp_path)
    assert third.waits
    assert fourth.waits
    first.goes_on()
    assert first.says("has started")
    second.process.kill()
    assert third.says("starts")
    assert fourth.says("starts")


def test_pipelines_that_have_started_at_once_let_go_of_their_drivers_turn_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, inside, together = TaskLock.release, threading.Lock(), list[bool]()

    def slow(lock: TaskLock) -> None:
        is_alone = inside.acquire(blocking=False)
        together.append(not is_alone)
        time.sleep(0.02)
        release(lock)
        if is_alone:
            inside.release()

    monkeypatch.setattr(TaskLock, "release", slow)
    with in_turn(tmp_path, threading.Event(), 1) as has_started:
        pipelines = [threading.Thread(target=has_started) for _ in range(4)]
        for pipeline in pipelines:
            pipeline.start()
        for pipeline in pipelines:
            pipeline.join()
    assert together == [False] * 5, "a file's number is closed twice: the second time it may be another file's"


def test_a_driver_that_is_told_to_stop_waits_no_longer(tmp_path: Path) -> None:
    stopping = threading.Event()
    with in_turn(tmp_path, stopping, 1):
        threading.Timer(0.2, stopping.set).start()
        with in_turn(tmp_path, stopping, 1):
            assert stopping.is_set()


def test_a_driver_that_hangs_keeps_the_others_for_a_while_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateline.spark.drivers.process._PATIENCE_S", 0.3)
    with in_turn(tmp_path, threading.Event(), 1), in_turn(tmp_path, threading.Event(), 1):
        pass
