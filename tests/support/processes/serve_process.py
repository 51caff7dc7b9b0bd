"""`stateline serve` as a process, for tests of how it starts, stops, logs and is made of processes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from support import TESTS
from support.processes.forked import Forked
from support.processes.ports import free_port
from support.processes.query_server import PARTITIONS, make_app
from support.processes.query_server import wait_until as wait_for_s
from support.run.patience import HANGING_S, PATIENT

PATIENCE_S = HANGING_S


@dataclass
class Served:
    """A server that runs, and what it says."""

    process: Forked
    url: str
    log: Path

    def fresh(self, path: str, **parameters: Any) -> httpx.Response:
        """The answer over a connection of its own."""
        with httpx.Client(timeout=PATIENCE_S) as client:
            return client.get(f"{self.url}{path}", **parameters)

    def lines(self, containing: str) -> list[str]:
        """Lines of its log that have this in them."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if containing in line]

    def children(self) -> list[int]:
        """The server processes that the parent has started and that live."""
        return [pid for pid in descendants_of(self.process.pid) if "--listener" in arguments_of(pid)]

    def scans(self) -> list[int]:
        """The scan processes that live."""
        return [pid for pid in descendants_of(self.process.pid) if "--scans" in arguments_of(pid)]


@contextlib.contextmanager
def served(directory: Path, *settings: str) -> Iterator[Served]:
    """Serve the application of `query_server` from this state directory; killed at the end if it still runs."""
    directory.mkdir(exist_ok=True)
    port = free_port()
    given = ("default.state.isolation.level=read_committed", f"state.dir={directory}", f"server.port={port}", PATIENT)
    command = ["serve", "support.apps.flights_app:app"]
    for setting in (*given, *settings):
        command += ["--set", setting]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    log = directory / f"serve-{port}.log"
    with log.open("wb") as output:
        process = Forked(command, cwd=directory, env=environment, output=output.fileno())
    one = Served(process, f"http://127.0.0.1:{port}", log)
    try:
        yield one
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll until it holds; fails when it does not."""
    wait_for_s(condition, PATIENCE_S)


def until_ready(one: Served) -> None:
    """Wait until it answers that it is ready; its log is the message when it ends before."""
    wait_until(lambda: one.process.poll() is not None or status_of(one, "/readyz") == 200)
    assert one.process.poll() is None, one.log.read_text()


def until_all_ready(one: Served, processes: int) -> None:
    """Wait until each of several processes has opened every store, and nobody else answers for them."""
    persistent = sum(definition.persistent for definition in make_app().topology().stores.values())
    all_open = f"stateline_secondaries_open {float(processes * persistent * PARTITIONS)}\n"
    until_ready(one)
    wait_until(lambda: bool(one.lines("Answering at")))
    wait_until(lambda: all_open in one.fresh("/metrics").text)


def halt(pid: int) -> None:
    """Halt a process, and wait until the kernel has."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "T")


def status_of(one: Served, path: str) -> int | None:
    """The status of an answer over a new connection; None when there is none."""
    try:
        return one.fresh(path).status_code
    except httpx.TransportError:
        return None


def descendants_of(pid: int) -> Iterator[int]:
    try:
        own = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:  # gone
        return
    for child in map(int, own):
        yield child
        yield from descendants_of(child)


def arguments_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []
