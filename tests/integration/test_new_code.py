"""`stateline run` takes over changed code while clients ask: nobody is refused, and nobody gets a wrong answer.

Clients ask at a steady rate, whether or not earlier answers have come, each over a connection of its own. The keys that
they ask for were written under the first code; what is written under the second one shows that this runs.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateline.log import open_log
from stateline.log.interface import NewTopic
from support.processes.forked import Forked
from support.processes.ports import free_port
from support.processes.query_server import wait_until
from support.run.length import long_only, on_one_log
from support.run.patience import HANGING_S

EVERY_S = 0.01  # a question
KEYS = 20
# What a client may be told while a worker is away: docs/operations/new-code.md.
TYPED = {"NOT_READY", "NOT_PRESENT", "NOT_ACTIVE"}
CODE = """
from stateline import App, serdes, stores

app = App("{name}", config={{"commit.interval.ms": 100}})
numbers = app.topic("{name}-numbers", key=serdes.string, value=serdes.int64)
scaled = app.store(stores.key_value("scaled", key=serdes.string, value=serdes.{value}))


@app.process(numbers, stores=[scaled])
def scale(number, scaled):
    scaled.put(number.key, number.value * {factor})
"""


@dataclass
class Run:
    """`stateline run` of an application in a file of its own."""

    name: str
    folder: Path
    bootstrap: str
    port: int
    process: Forked
    code: str

    def write_code(self, *, factor: str = "1", value: str = "int64") -> None:
        (self.folder / "scaling.py").write_text(self.code.format(name=self.name, factor=factor, value=value))

    def write(self, first: int) -> None:
        """The numbers from this one on, one for each key."""
        with closing(open_log(self.bootstrap, self.folder)) as log, closing(log.producer()) as producer:
            for n in range(first, first + KEYS):
                producer.produce(f"{self.name}-numbers", b"k%d" % n, n.to_bytes(8), timestamp_ms=n)
            producer.flush()

    def ask(self, n: int, level: str) -> tuple[int, dict[str, Any]]:
        """Over a connection of its own."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=HANGING_S)
        with closing(connection):
            connection.request("GET", f"/v1/stores/scaled/keys/k{n}?isolation_level={level}")
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def has(self, n: int, value: int) -> Callable[[], bool]:
        return lambda: self.ask(n, "read_committed")[1].get("value") == value

    def says(self, text: str, times: int = 1) -> Callable[[], bool]:
        return lambda: (self.folder / "log").read_text().count(text) >= times or self.process.poll() is not None


@pytest.fixture
def started(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Run]]:
    """Starts the application, with numbers in its store."""
    running: list[Run] = []

    def start(bootstrap: str, *options: str, code: str = CODE) -> Run:
        port, name = free_port(), f"scaling-{tmp_path.name[-8:].replace('_', '-')}"
        command = ["run", "scaling:app", "--set", f"server.port={port}", "--set", f"bootstrap.servers={bootstrap}"]
        command += ["--set", f"state.dir={tmp_path / 'state'}", *options]
        with closing(open_log(bootstrap, tmp_path)) as log, closing(log.admin()) as admin:
            admin.create_topics([NewTopic(f"{name}-numbers", 2)])
        run = Run(name, tmp_path, bootstrap, port, None, code)  # type: ignore[arg-type]
        run.write_code()
        run.write(0)
        with (tmp_path / "log").open("wb") as output:
            run.process = Forked(command, cwd=tmp_path, env=dict(os.environ), output=output.fileno())
        running.append(run)
        wait_until(lambda: run.process.poll() is not None or _is_ready(run))
        wait_until(run.has(KEYS - 1, KEYS - 1))
        return run

    yield start
    for run in running:
        run.process.terminate()
        assert run.process.wait(HANGING_S) == 0, (tmp_path / "log").read_text()


def _is_ready(run: Run) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{run.port}/readyz").status_code == 200
    except httpx.TransportError:
        return False


class Traffic:
    """Asks from its start to its stop; what was told is counted: by level, ``ok``, a reason, or what went wrong."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._done = threading.Event()
        self._pool = ThreadPoolExecutor(32)
        self._answers: list[Future[tuple[str, str]]] = []
        self._thread = threading.Thread(target=self._ask_steadily)
        self._thread.start()

    def _ask_steadily(self) -> None:
        began_s = time.monotonic()
        for n in count():
            if self._done.wait(max(0.0, began_s + n * EVERY_S - time.monotonic())):
                return
            level = ("read_committed", "read_uncommitted")[n % 2]
            self._answers.append(self._pool.submit(self._ask, n % KEYS, level))

    def _ask(self, n: int, level: str) -> tuple[str, str]:
        try:
            status, answer = self._run.ask(n, level)
        except (OSError, HTTPException) as error:
            return level, f"{type(error).__name__}: {error}"
        if status == 200:
            return level, "ok" if answer["value"] == n else f"k{n} = {answer['value']}"
        return level, str(answer.get("reason", f"{status}: {answer}"))

    def stop(self) -> Counter[tuple[str, str]]:
        self._done.set()
        self._thread.join()
        self._pool.shutdown()
        return Counter(answer.result() for answer in self._answers)


@on_one_log("embedded", "a group is all that differs")
def test_code_changes_under_traffic_and_nobody_is_refused_or_told_anything_wrong(
    started: Callable[..., Run], bootstrap: str
) -> None:
    processes = 1 if bootstrap.startswith("embedded") else 2
    run = started(bootstrap, "--set", f"server.processes={processes}", "--set", "num.workers=2")
    traffic = Traffic(run)
    run.write_code(factor="10")
    run.process.send_signal(signal.SIGHUP)
    wait_until(run.says("Everything runs the new code."))
    told = traffic.stop()
    assert {what for _, what in told} <= {"ok", *TYPED}, told
    if bootstrap.startswith("embedded"):  # nobody else can have the stores: answers come from disk all the while
        assert {what for level, what in told if level == "read_committed"} == {"ok"}, told
    assert told["read_committed", "ok"] > 0 < told["read_uncommitted", "ok"]
    run.write(KEYS)
    wait_until(run.has(KEYS, KEYS * 10))
    assert run.has(1, 1)()


@long_only("test_source_files.py sees what is saved, and test_renewal.py goes on after a mistake")
def test_with_reload_a_change_runs_when_it_is_saved_and_a_mistake_leaves_what_runs(
    started: Callable[..., Run], tmp_path: Path
) -> None:
    run = started(f"embedded:{tmp_path / 'log.db'}", "--reload")
    run.write_code(factor="(")
    wait_until(run.says("SyntaxError"))
    assert "scaling.py, line 11" in (run.folder / "log").read_text()
    run.write(KEYS)
    wait_until(run.has(KEYS, KEYS))
    run.write_code(factor="10")
    wait_until(run.says("Everything runs the new code."))
    run.write(2 * KEYS)
    wait_until(run.has(2 * KEYS, 2 * KEYS * 10))
    run.write_code(factor="100", value="float64")  # what is on disk means something else now
    wait_until(run.says("Nothing was replaced: ", times=2))
    assert (run.folder / "log").read_text().count("worker-0 stopped") == 1, "the good worker was stopped for it"
    run.write(3 * KEYS)
    wait_until(run.has(3 * KEYS, 3 * KEYS * 10))


@long_only("test_renewal.py has what is asked for while something else is done")
def test_a_sighup_that_comes_while_the_code_is_loaded_is_heeded_when_it_runs(
    started: Callable[..., Run], tmp_path: Path
) -> None:
    """The module sends it, as a reload that follows on a start would."""
    sends = "import os, pathlib, signal\n\nif not pathlib.Path('sent').exists():  # by the first that loads it\n"
    sends += "    pathlib.Path('sent').touch()\n    os.kill(os.getpid(), signal.SIGHUP)\n"
    run = started(f"embedded:{tmp_path / 'log.db'}", code=sends + CODE)
    wait_until(run.says("Everything runs the new code."))
    assert run.process.poll() is None


@long_only("test_stand_in.py kills servers, and asks until the next one answers")
def test_clients_are_told_to_ask_again_while_a_killed_server_starts_again(
    started: Callable[..., Run], tmp_path: Path
) -> None:
    run = started(f"embedded:{tmp_path / 'log.db'}")
    told = Counter[int]()

    def is_refused() -> bool:
        for pid in _servers(run):
            os.kill(pid, signal.SIGKILL)
        with suppress(OSError, HTTPException):  # it was taken by one that died
            told[run.ask(1, "read_committed")[0]] += 1
        return told[503] > 0

    wait_until(is_refused)
    wait_until(run.has(1, 1))
    assert set(told) <= {200, 503}


def _servers(run: Run) -> list[int]:
    children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"\0serve\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]
