"""Machines of one application: each with a state directory, a worker and a server of its own, in one group."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from stateline.log import Log, open_log
from stateline_store import TopicPartition
from support import TESTS
from support.apps import changes_app
from support.processes.forked import Forked
from support.processes.running_worker import create, produce
from support.processes.served_here import Here, served_here
from support.run.patience import HANGING_S

PARTITIONS = 2
SESSION_MS, POLL_MS = 3_000, 6_000
KEYS = [f"k{n}" for n in range(40)]


def started(command: str, settings: list[str], run: str, **more: str) -> Forked:
    """This command of the application, as a process; `more` are variables of its environment."""
    line = [command, "support.apps.changes_app:app", *(p for s in settings for p in ("--set", s))]
    environment = {**os.environ, "CHANGES_RUN": run, **more}
    return Forked(line, cwd=TESTS, env=environment, output=os.open(os.devnull, os.O_WRONLY))


@dataclass
class Machine:
    """One of them: its directory, its server, and the process of its worker."""

    name: str
    settings: list[str]
    run: str
    server: Here
    stop_server: Callable[[], None]
    worker: Forked | None = None

    def start_worker(self, **more: str) -> None:
        """Start it; `more` are variables of its environment."""
        self.worker = started("worker", self.settings, self.run, **more)

    def stop_worker(self, number: signal.Signals = signal.SIGTERM) -> None:
        assert self.worker is not None
        self.worker.send_signal(number)
        self.worker.wait(HANGING_S)
        self.worker = None

    def get(self, path: str, **parameters: Any) -> httpx.Response:
        return self.server.client.get(path, params=parameters)

    def partitions(self, **parameters: Any) -> dict[str, dict[str, Any]]:
        """What each partition answers for itself; those that refuse are not there."""
        answer = self.get("/v1/stores/counts/range", allow_partial="true", **parameters)
        found: dict[str, dict[str, Any]] = answer.json().get("partitions", {}) if answer.status_code == 200 else {}
        return found

    def active(self) -> set[str]:
        """The partitions that this answers as the owner's, from its own copy."""
        told = self.partitions()
        return {
            p for p, each in told.items() if each["served_by"] == "active" and each.get("node") in (None, self.name)
        }


class Machines:
    """Those of one run, by their names, and what is written for them."""

    def __init__(
        self,
        bootstrap: Mapping[str, str],
        direct: str,
        root: Path,
        stack: ExitStack,
        *settings: str,
        partitions: int = PARTITIONS,
    ) -> None:
        """`bootstrap` is by name the way of each to Kafka, `direct` that of the test itself. In `settings` `{name}` is
        each one's name."""
        self.partitions = partitions
        self.run = uuid4().hex[:8]
        self.app = changes_app.build(self.run)
        self.log: Log = stack.enter_context(closing(open_log(direct, root)))
        create(self.log, {f"in-{self.run}": partitions})
        self.sent: dict[str, int] = dict.fromkeys(KEYS, 0)
        self.root, self._stack, self._settings = root, stack, settings
        self.every = {name: self._machine(name, servers) for name, servers in bootstrap.items()}

    def send(self) -> dict[str, int]:
        """One record of each key more; how often each was written then."""
        records = [(key.encode(), json.dumps(1).encode(), 1_000_000) for key in KEYS]
        produce(self.log, f"in-{self.run}", records)
        self.sent = {key: count + 1 for key, count in self.sent.items()}
        return self.sent

    def bound(self) -> str:
        """A bound of all that was written."""
        with closing(self.log.admin()) as admin:
            ends = admin.committed_ends([self.place(p) for p in range(self.partitions)])
        return json.dumps({f"in-{self.run}": {str(p.partition): end - 1 for p, end in ends.items()}})

    def place(self, partition: int) -> TopicPartition:
        return TopicPartition(f"in-{self.run}", partition)

    def settings(self, name: str, bootstrap: str) -> list[str]:
        """Those of the machine of this name."""
        return [
            f"bootstrap.servers={bootstrap}",
            f"state.dir={self.root / name}",
            f"node.name={name}",
            "commit.interval.ms=50",
            f"session.timeout.ms={SESSION_MS}",
            f"max.poll.interval.ms={POLL_MS}",
            "consumer.heartbeat.interval.ms=300",  # how soon a member hears that the group rebalances
            "processing.guarantee=exactly_once_v2",
            "transaction.timeout.ms=8000",  # or else a stopped worker's holds up its successor for a minute
            *(setting.format(name=name) for setting in self._settings),
        ]

    def add(self, name: str, bootstrap: str) -> Machine:
        """One more."""
        self.every[name] = self._machine(name, bootstrap)
        return self.every[name]

    def _machine(self, name: str, bootstrap: str) -> Machine:
        settings = self.settings(name, bootstrap)
        served = served_here(self.root / name, *settings, app=self.app, until_ready=False)
        running = self._stack.enter_context(ExitStack())
        machine = Machine(name, settings, self.run, running.enter_context(served), running.close)
        self._stack.callback(lambda: _end(machine.worker))
        return machine


def _end(worker: Forked | None) -> None:
    if worker is None:
        return
    worker.send_signal(signal.SIGCONT)
    worker.send_signal(signal.SIGKILL)
    worker.wait(HANGING_S)
