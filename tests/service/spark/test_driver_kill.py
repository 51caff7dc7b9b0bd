"""A driver that is killed or stopped at any moment, as a real process."""

from __future__ import annotations

import os
import queue
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pyspark
import pytest

from service.spark import departures as d
from stateline.deployment.pipelines.status import read_status
from stateline.log.embedded import EmbeddedLog
from support.processes.pipeline_processes import jvm_of
from support.run.length import long_only, long_or_short
from support.run.patience import HANGING_S
from support.spark.on_cluster import Cluster

_KILLS, _STOPS, _DEPARTURES = 4, 1, 8_000
_BATCH = 400  # departures, in driver.py
_DRIVER = Path(__file__).with_name("driver.py")


class Driver:
    """The process, the numbers of the micro-batches that it says are done, and all else that it and its JVM say."""

    def __init__(self, state: Path, given: Sequence[str]) -> None:
        self._said = state / "driver.log"
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, str(_DRIVER), str(state), *given], stdout=subprocess.PIPE, stderr=said, text=True
            )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def next_batch(self) -> int:
        """Wait for the end of the next micro-batch."""
        line = self._lines.get(timeout=HANGING_S)
        assert line is not None, f"the driver ended with {self.process.wait()}: {self.said()}"
        return int(line)

    def said(self) -> str:
        """What is no micro-batch."""
        return self._said.read_text(errors="replace")

    def end(self, number: signal.Signals) -> int:
        """Send this signal, wait for the process; its exit code."""
        self.process.send_signal(number)
        return self.exit_code()

    def exit_code(self) -> int:
        """Of the process, and all that it started, once they have ended."""
        code = self.process.wait(HANGING_S)
        self._reader.join(HANGING_S)
        assert not self._reader.is_alive(), "something of the driver's lives on"
        return code


@contextmanager
def driver(state: Path, given: Sequence[str] = ()) -> Iterator[Driver]:
    running = Driver(state, given)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.end(signal.SIGKILL)


def starts_java(pid: int) -> bool:
    """Whether this process has begun to start a JVM."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return any(b"spark" in Path(f"/proc/{child}/cmdline").read_bytes() for child in children)


@pytest.fixture
def state(tmp_path: Path, class_archive: Path, python_of_spark: None) -> Path:
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / f"spark-{pyspark.__version__}.jsa").symlink_to(class_archive)
    return tmp_path


@pytest.fixture
def log(state: Path) -> EmbeddedLog:
    made = EmbeddedLog(state / "log.db")
    d.create_topics(made)
    return made


@pytest.fixture
def given(cluster: Cluster | None) -> list[str]:
    """Settings of a driver on the cluster, if there is one."""
    return [] if cluster is None else [*cluster.settings, f"pipeline.checkpoint.location={cluster.new_folder()}"]


@long_only("test_pipeline_crashes.py kills drivers at the steps of a micro-batch, and others go on")
def test_every_update_is_written_exactly_once_however_the_driver_is_killed_and_stopped(
    state: Path, log: EmbeddedLog, given: list[str]
) -> None:
    made = d.random_departures(_DEPARTURES, seed=3)
    left, chance = iter(made), random.Random(5)

    def load(batches: int) -> None:
        d.load(log, islice(left, batches * _BATCH))

    for _ in range(_KILLS):
        with _in_its_work(state, given, load, chance) as running:
            running.end(signal.SIGKILL)
    with _in_its_work(state, given, load, chance) as running:
        _loses_its_jvm(state, running)
    for _ in range(_STOPS):
        with _in_its_work(state, given, load, chance) as running:
            _is_told_to_stop(state, running)
    rest = [*left]
    assert rest, "it was killed when it had done all"
    d.load(log, rest)
    with driver(state, given) as running:
        while d.counted(log) < len(made):
            running.next_batch()
        code = running.end(signal.SIGTERM)
        assert code == 0, running.said()
    assert d.written_updates(log) == d.expected_updates(log)
    assert d.newest_updates(log) == {d.update(*item) for item in d.totals(made).items()}


def test_a_driver_that_loses_its_jvm_says_so_and_has_written_each_update_once(
    state: Path, log: EmbeddedLog, given: list[str]
) -> None:
    d.load(log, d.random_departures(2 * _BATCH, seed=3))
    with driver(state, given) as running:
        running.next_batch()
        _loses_its_jvm(state, running)
    assert d.markers(log)
    assert d.written_updates(log) == d.expected_updates(log)


@contextmanager
def _in_its_work(
    state: Path, given: Sequence[str], load: Callable[[int], None], chance: random.Random
) -> Iterator[Driver]:
    """A driver that has done some micro-batches and is somewhere in another; nothing depends on where."""
    batches = chance.randrange(1, 3)
    load(batches)
    with driver(state, given) as running:
        for _ in range(batches):
            running.next_batch()
        load(1)  # a driver that had the records before might be through with all of them
        time.sleep(chance.random() * 0.6)
        yield running


def _loses_its_jvm(state: Path, running: Driver) -> None:
    os.kill(jvm_of(running.process.pid), signal.SIGKILL)
    assert running.exit_code() == 1, running.said()
    assert "StatelineError: Spark has ended: start the pipelines again." in running.said()
    status = read_status(state / "flights" / "pipelines" / "hourly")
    assert status is not None
    assert (status.state, status.last_error) == ("restarting", "Spark has ended.")


def _is_told_to_stop(state: Path, running: Driver) -> None:
    """It ends between two micro-batches: without a word."""
    status = read_status(state / "flights" / "pipelines" / "hourly")
    assert status is not None
    assert (status.pid, status.state) == (running.process.pid, "running")
    assert running.end(signal.SIGINT) == 0, running.said()
    assert not re.search("Error|Exception|Traceback", running.said()), running.said()
    assert read_status(state / "flights" / "pipelines" / "hourly") is None


@pytest.mark.parametrize("number", long_or_short([signal.SIGTERM, signal.SIGINT], [signal.SIGTERM]))
def test_a_stop_while_spark_starts_does_not_wait_for_it(state: Path, log: EmbeddedLog, number: signal.Signals) -> None:
    with driver(state) as running:
        deadline = time.monotonic() + HANGING_S
        while not starts_java(running.process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        code = running.end(number)
        assert code == 0, running.said()  # its output has ended then, too, which its JVM had inherited
    assert not (state / "flights" / "pipelines" / "hourly" / "checkpoint").exists(), "the query was begun all the same"


_STOPPED_WITHOUT_A_NUMBER = """
import subprocess
from stateline.spark.drivers.process import kill_jvm
left = subprocess.Popen.__new__(subprocess.Popen)
left.args, left.pid = ["spark-submit"], None
kill_jvm()
"""


def test_a_stop_in_the_instant_in_which_a_process_has_no_number_yet_is_a_stop_too() -> None:
    # In a process of its own: the JVM of these tests' session would be killed.
    subprocess.run([sys.executable, "-c", _STOPPED_WITHOUT_A_NUMBER], check=True, timeout=HANGING_S)
