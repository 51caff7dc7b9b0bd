"""A worker that is waited for says when it has its tasks and they run, and not before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stateline.log import open_log
from stateline.log.interface import NewTopic
from stateline.processes.child import ReadyPipe
from support.processes.query_server import wait_until
from support.run.patience import HANGING_S

APPLICATION = """
from stateline import App, serdes

app = App("waited-for")
app.table("orders", key=serdes.string, value=serdes.json)
"""

UNLUCKY = """

@app.process("orders", stores=[])
def ship(order):
    if order.value == 4_999:
        raise ValueError("unlucky")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "orders.py").write_text(APPLICATION)
    return tmp_path


@pytest.fixture
def pipe() -> Iterator[ReadyPipe]:
    made = ReadyPipe()
    yield made
    made.close()


def started(folder: Path, pipe: ReadyPipe, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "stateline", "worker", "orders:app", "--set", "bootstrap.servers=embedded:log.db"]
    command += options
    environment = {**os.environ, **pipe.environment(takes_over=False)}
    process = subprocess.Popen(command, cwd=folder, env=environment, pass_fds=[pipe.write_end])
    pipe.started()
    return process


def test_a_worker_that_cannot_begin_does_not_say_that_it_is_ready(folder: Path, pipe: ReadyPipe) -> None:
    assert started(folder, pipe).wait(HANGING_S) == 2, "its topic is missing"
    assert not pipe.is_said()


def test_a_worker_that_has_its_tasks_says_so(folder: Path, pipe: ReadyPipe) -> None:
    with closing(open_log(f"embedded:{folder / 'log.db'}", folder)) as log, closing(log.admin()) as admin:
        admin.create_topics([NewTopic("orders", 1)])
    process = started(folder, pipe)
    wait_until(pipe.is_said)
    process.terminate()
    assert process.wait(HANGING_S) == 0


def test_a_worker_that_ends_at_a_record_again_and_again_does_not_say_that_it_is_ready(
    folder: Path, pipe: ReadyPipe
) -> None:
    never = 'App("waited-for", config={"commit.interval.ms": 3_600_000})'
    (folder / "orders.py").write_text(APPLICATION.replace('App("waited-for")', never) + UNLUCKY)
    with closing(open_log(f"embedded:{folder / 'log.db'}", folder)) as log, closing(log.admin()) as admin:
        admin.create_topics([NewTopic("orders", 1)])
        with closing(log.producer()) as producer:
            for n in range(5_000):  # more than it reads at once
                producer.produce("orders", b"a", b"%d" % n, timestamp_ms=0)
            producer.flush()
    assert started(folder, pipe).wait(HANGING_S) == 1, "it has failed at the record"
    assert not pipe.is_said()


def test_a_worker_whose_share_is_empty_says_that_it_is_ready(folder: Path, pipe: ReadyPipe) -> None:
    with closing(open_log(f"embedded:{folder / 'log.db'}", folder)) as log, closing(log.admin()) as admin:
        admin.create_topics([NewTopic("orders", 1)])
    with closing(ReadyPipe()) as other:
        processes = [started(folder, pipe), started(folder, other, "--instance", "worker-1")]
        wait_until(other.is_said)
        wait_until(pipe.is_said)
    for process in processes:
        process.terminate()
        assert process.wait(HANGING_S) == 0
