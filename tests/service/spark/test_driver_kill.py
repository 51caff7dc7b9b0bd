"""A driver that is killed or stopped at any moment, as a real process."""

from __future__ import annotations

import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from service.spark import departures as d
from stateline.deployment.pipeline_status import read_status
from stateline.log.embedded import EmbeddedLog
from support.run.length import long_or_short
from support.run.patience import HANGING_S

_KILLS, _DEPARTURES = long_or_short((4, 8_000), (2, 3_000))
_DRIVER = Path(__file__).with_name("driver.py")


class Driver:
    """The process, and the numbers of the micro-batches that it says are done."""

    def __init__(self, state: Path) -> None:
        self.process = subprocess.Popen([sys.executable, str(_DRIVER), str(state)], stdout=subprocess.PIPE, text=True)
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
        assert line is not None, f"the driver ended with {self.process.wait()}"
        return int(line)

    def end(self, number: signal.Signals) -> int:
        """Send this signal, wait for the process; its exit code."""
        self.process.send_signal(number)
        code = self.process.wait(HANGING_S)
        self._reader.join(HANGING_S)
        assert not self._reader.is_alive(), "something of the driver's lives on"
        return code


@contextmanager
def driver(state: Path) -> Iterator[Driver]:
    running = Driver(state)
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
def state(tmp_path: Path, class_archive: Path) -> Path:
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / f"spark-{pyspark.__version__}.jsa").symlink_to(class_archive)
    return tmp_path


@pytest.fixture
def log(state: Path) -> EmbeddedLog:
    made = EmbeddedLog(state / "log.db")
    d.create_topics(made)
    return made


def test_every_update_is_written_exactly_once_however_often_the_driver_is_killed(state: Path, log: EmbeddedLog) -> None:
    made = d.random_departures(_DEPARTURES, seed=3)
    d.load(log, made)
    chance = random.Random(5)
    for _ in range(_KILLS):
        with driver(state) as running:
            for _ in range(chance.randrange(1, 3)):
                running.next_batch()
            time.sleep(chance.random() * 0.6)  # lands anywhere in a micro-batch; nothing depends on where
            running.end(signal.SIGKILL)
    _finish(state, log, made)
    assert d.written_updates(log) == d.expected_updates(log)
    assert d.newest_updates(log) == {d.update(*item) for item in d.totals(made).items()}


def test_a_driver_told_to_stop_ends_with_0_and_the_next_one_goes_on(state: Path, log: EmbeddedLog) -> None:
    made = d.random_departures(1_500, seed=4)
    d.load(log, made[:900])
    with driver(state) as running:
        running.next_batch()
        status = read_status(state / "flights" / "pipelines" / "hourly")
        assert status is not None
        assert (status.pid, status.state) == (running.process.pid, "running")
        assert running.end(signal.SIGINT) == 0
    assert read_status(state / "flights" / "pipelines" / "hourly") is None
    d.load(log, made[900:])
    _finish(state, log, made)
    assert d.written_updates(log) == d.expected_updates(log)


def _finish(state: Path, log: EmbeddedLog, made: list[d.Departure]) -> None:
    """Run a driver until every departure is in the results."""
    with driver(state) as running:
        while d.counted(log) < len(made):
            running.next_batch()
        assert running.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_spark_starts_does_not_wait_for_it(state: Path, log: EmbeddedLog, number: signal.Signals) -> None:
    with driver(state) as running:
        deadline = time.monotonic() + HANGING_S
        while not starts_java(running.process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert running.end(number) == 0  # its output has ended then, too, which its JVM had inherited
    assert not (state / "flights" / "pipelines" / "hourly" / "checkpoint").exists(), "the query was begun all the same"
