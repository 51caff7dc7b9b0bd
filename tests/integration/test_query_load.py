"""Servers and workers are killed with `kill -9` while clients ask: no wrong answer, only typed failures, and all is
well again a moment later.

Each answer is held against what the input up to the position that comes with it makes; under exactly-once that is true
at both isolation levels.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateline.log import Log
from support import TESTS
from support.oracles.crash_watch import KEYS, PARTITIONS, WatchedRun
from support.oracles.history import History
from support.processes.forked import Forked
from support.processes.ports import free_port
from support.processes.query_server import wait_until
from support.run.length import long_or_short
from support.run.patience import HANGING_S

KILLS = long_or_short(10, 4)
CLIENTS = 3
IDLE_S = long_or_short(0.0, 0.02)  # of each client, after an answer
LEVELS = ("read_committed", "read_uncommitted")
_log = logging.getLogger(__name__)
# What a client may be told while a process is away.
TYPED = {"NOT_READY", "NOT_PRESENT", "NOT_ACTIVE"}


class Asker(threading.Thread):
    """A client that asks all the time; what it was told is counted, and every answer checked."""

    def __init__(self, url: str, topic: str, history: History, seed: int) -> None:
        super().__init__(name=f"asker-{seed}")
        self._url, self._topic, self._history = url, topic, history
        self._random = random.Random(seed)
        self.told: Counter[str] = Counter()
        self.done = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with httpx.Client(base_url=self._url, timeout=HANGING_S) as client:
                while not self.done.is_set():
                    self._ask(client)
                    self.done.wait(IDLE_S)
        except BaseException as error:  # noqa: BLE001 - raised again by the test's own thread
            self.error = error

    def _ask(self, client: httpx.Client) -> None:
        partition, level = self._random.randrange(PARTITIONS), self._random.choice(LEVELS)
        key, store = f"p{partition}-{self._random.randrange(KEYS)}", self._random.choice(("newest", "counts"))
        try:
            answer = client.get(
                f"/v1/stores/{store}/keys/{key}", params={"isolation_level": level, "partition": partition}
            )
        except httpx.TransportError:
            self.told["no connection"] += 1
            self.done.wait(0.01)
            return
        body = answer.json()
        if answer.headers["content-type"] == "application/problem+json":
            assert body["reason"] in TYPED, str(body)
            self.told[body["reason"]] += 1
            return
        self.told["answer"] += 1
        self._check(store, key, partition, body)

    def _check(self, store: str, key: str, partition: int, body: dict[str, Any]) -> None:
        offset = body["position"].get(self._topic, {}).get(str(partition), -1)
        wanted = self._history.at(partition, key.encode(), offset)
        assert body["found"] == (wanted is not None), f"{key} at {offset}: {body}"
        if wanted is None:
            return
        newest, counts = wanted
        assert body["value"] == (newest if store == "newest" else counts), f"{store} {key} at {offset}: {body}"


class Askers:
    """Clients that ask until the end; a wrong answer is raised here."""

    def __init__(self, url: str, topic: str, history: History) -> None:
        self._all = [Asker(url, topic, history, seed) for seed in range(CLIENTS)]

    def __enter__(self) -> Askers:
        for asker in self._all:
            asker.start()
        return self

    def __exit__(self, *error: object) -> None:
        for asker in self._all:
            asker.done.set()
        for asker in self._all:
            asker.join()
        self._raise()

    @property
    def told(self) -> Counter[str]:
        return sum((asker.told for asker in self._all), Counter())

    def until_answered(self, more: int) -> None:
        """Wait for so many more answers."""
        goal = self.told["answer"] + more

        def are_there() -> bool:
            self._raise()
            return self.told["answer"] >= goal

        wait_until(are_there)

    def _raise(self) -> None:
        for asker in self._all:
            if asker.error is not None:
                raise asker.error


def start_server(run: WatchedRun, port: int, output: Path) -> Forked:
    command = ["serve", "support.apps.crash_app:app"]
    for setting in (*run.settings, f"server.port={port}"):
        command += ["--set", setting]
    with output.open("ab") as file:
        environment = {**os.environ, "CRASH_RUN": run.name}
        return Forked(command, cwd=TESTS, env=environment, output=file.fileno())


def kill(process: Forked) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("bootstrap", long_or_short(["embedded", "kafka"], ["kafka"]), indirect=True)
def test_no_answer_is_wrong_while_servers_and_workers_are_killed(bootstrap: str, log: Log, tmp_path: Path) -> None:
    port, output, chance = free_port(), tmp_path / "server.log", random.Random(5)
    recoveries_s: list[float] = []
    with WatchedRun(bootstrap, log, "exactly_once_v2", tmp_path) as run:
        worker, server = run.start_worker(), start_server(run, port, output)
        try:
            with Askers(f"http://127.0.0.1:{port}", run.topic, History(run.inputs)) as askers:
                for number in range(KILLS):
                    askers.until_answered(20)
                    time.sleep(chance.uniform(0, 0.3))
                    killed_at = time.monotonic()
                    if number % 2:
                        kill(server)
                        server = start_server(run, port, output)
                    else:
                        kill(worker)
                        worker = run.start_worker()
                    askers.until_answered(20)
                    recoveries_s.append(round(time.monotonic() - killed_at, 2))
            told = askers.told
        finally:
            kill(worker)
            kill(server)
        run.work_off()
    _log.info("seconds from each kill to twenty more answers: %s", recoveries_s)
    assert told["answer"] > 20 * KILLS
    assert told["no connection"] > 0, "no client noticed that a server was killed"
    run.check_forwarded()
