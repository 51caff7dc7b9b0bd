"""A node of `changes_app` that works, is backed up and restored by the commands of its owner, and is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from stateline.log.embedded import EmbeddedLog
from support import TESTS
from support.apps import changes_app
from support.processes import forked
from support.processes.forked import Forked
from support.processes.query_server import wait_until
from support.processes.running_worker import produce
from support.processes.served_here import served_here
from support.run.patience import HANGING_S

PARTITIONS = 3
RUN = "backups"


class Node:
    """A worker over an embedded log, and the commands of its owner."""

    def __init__(self, root: Path, url: str) -> None:
        self.state, self.url = root / "state", url
        self.settings = [f"state.dir={self.state}", f"backup.location={url}", "commit.interval.ms=50"]
        self.worker: Forked | None = None
        self.expected: dict[str, Any] = {}
        self.counts: Counter[str] = Counter()
        assert self.stateline("topics", "--create", "--partitions", str(PARTITIONS)).returncode == 0

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "CHANGES_RUN": RUN, "PYTHONPATH": str(TESTS)}

    def stateline(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the application."""
        count = 2 if words[0] == "backup" else 1
        line = [*words[:count], "support.apps.changes_app:app", *words[count:], *self._given()]
        return forked.run(line, env=self.environment)

    def backup(self, *words: str, code: int = 0) -> Any:
        """Run `stateline backup`; what it prints as JSON, or its error."""
        done = self.stateline("backup", *words, "--json")
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if done.stdout else done.stderr

    def killed_backup(self, step: str) -> None:
        """Run `stateline backup now` until it comes to this step, where it kills itself."""
        line = [sys.executable, "-m", "stateline", "backup", "now", "support.apps.changes_app:app", *self._given()]
        environment = {**self.environment, "STATELINE_CRASH_AT": step}
        assert subprocess.run(line, env=environment, capture_output=True, check=False).returncode == -signal.SIGKILL

    def start(self) -> None:
        line = ["worker", "support.apps.changes_app:app", *self._given()]
        self.worker = Forked(line, cwd=TESTS, env=self.environment, output=os.open(os.devnull, os.O_WRONLY))

    def killed_worker(self, step: str) -> None:
        """Run a worker until it comes to this step, where it kills itself."""
        line = [sys.executable, "-m", "stateline", "worker", "support.apps.changes_app:app", *self._given()]
        environment = {**self.environment, "STATELINE_CRASH_AT": step}
        done = subprocess.run(line, env=environment, capture_output=True, check=False, timeout=HANGING_S)
        assert done.returncode == -signal.SIGKILL, done.stderr

    def kill(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker.wait(HANGING_S)

    def send(self, values: dict[str, Any]) -> None:
        """Write these records, which the worker is to process."""
        rows = [(key.encode(), json.dumps(value).encode(), 1_000_000) for key, value in values.items()]
        with closing(EmbeddedLog(self.state / "log.db")) as log:
            produce(log, f"in-{RUN}", [(*row, []) for row in rows])
        self.expected |= values
        self.counts.update(values.keys())

    def until_processed(self) -> None:
        """Wait until the stores have what was sent: each record once."""
        with served_here(self.state, *self.settings[2:], app=changes_app.build(RUN), until_ready=False) as here:
            wait_until(lambda: rows_of(here.client, "newest") == self.expected)
            wait_until(lambda: rows_of(here.client, "counts") == dict(self.counts))

    def _given(self) -> list[str]:
        return [f"--set={setting}" for setting in self.settings]


def rows_of(client: httpx.Client, store: str) -> dict[str, Any] | None:
    terms: dict[str, str | int] = {"isolation_level": "read_committed", "limit": 10_000}
    answer = client.get(f"/v1/stores/{store}/range", params=terms)
    if answer.status_code != httpx.codes.OK:
        return None
    return {entry["key"]: entry["value"] for entry in answer.json()["entries"]}
