"""`deploy/kubernetes-backup.yaml` as processes: its commands with its settings, and an empty disk at each start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]  # PyYAML brings no types of its own

from stateline.backup.location import BackupLocation
from stateline.log.embedded import EmbeddedLog
from support import TESTS
from support.processes.ports import free_port
from support.processes.query_server import wait_until
from support.processes.running_worker import produce
from support.run.patience import HANGING_S

ROOT = TESTS.parent
MANIFESTS = list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes-backup.yaml").read_text(encoding="utf-8")))
INTERVAL_MS = 1_000
# The module that the image has.
APPLICATION = """
from stateline import App, serdes, stores

app = App("flights")
airlines = app.topic("airlines", key=serdes.string, value=serdes.json)
app.table(airlines, store="airlines")
kept = app.store(stores.key_value("changes", key=serdes.string, value=serdes.json))


@app.process(airlines, stores=[kept])
def count(record, changes):
    changes.put(record.key, (changes.get(record.key) or 0) + 1)
"""


class Cluster:
    """The secrets, the ConfigMap, a log in place of Kafka, and the pod that runs."""

    def __init__(self, root: Path, url: str) -> None:
        self.root, self.log, self.image = root, root / "log.db", root / "image"
        self.image.mkdir()
        (self.image / "flights.py").write_text(APPLICATION, encoding="utf-8")
        self.port = free_port()
        self.token = self._token()
        given = next(each for each in MANIFESTS if each["kind"] == "ConfigMap")["data"]["stateline.toml"]
        self.settings = root / "stateline.toml"
        self.settings.write_text(
            _replaced(
                given,
                {
                    "kafka:9092": f"embedded:{self.log}",
                    "/etc/stateline-tokens/tokens.json": str(root / "tokens.json"),
                    "s3://flights-states/stateline": url,
                    "interval.ms = 300000": f"interval.ms = {INTERVAL_MS}",
                },
            ),
            encoding="utf-8",
        )
        self.location = BackupLocation(url, "flights")
        self.pods = 0

    def _token(self) -> str:
        """Add a token, as the file's head says. Returns it."""
        line = [
            sys.executable,
            "-m",
            "stateline",
            "token",
            "add",
            "dashboard",
            "--file",
            str(self.root / "tokens.json"),
        ]
        done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=HANGING_S)
        return done.stdout.strip()

    def pod(self, stack: ExitStack) -> Pod:
        self.pods += 1
        return Pod(self, self.root / f"pod-{self.pods}", stack)

    def write(self, names: dict[str, str]) -> None:
        rows = [
            (code.encode(), json.dumps({"carrier": code, "name": name}).encode(), 1) for code, name in names.items()
        ]
        with closing(EmbeddedLog(self.log)) as log:
            produce(log, "airlines", rows)

    def has_backed_up(self, records: int) -> None:
        """Wait until a backup has so many records of the topic."""
        wait_until(lambda: self._backed_up() == records, HANGING_S)

    def _backed_up(self) -> int:
        manifests = self.location.manifests()
        parts = self.location.read(*manifests[-1]).copy.parts if manifests else ()
        offsets = [at for part in parts if part.store == "changes" for _, at in part.position]
        return sum(at + 1 for at in offsets)


class Pod:
    """Its containers as processes, with an empty directory for each emptyDir."""

    def __init__(self, cluster: Cluster, root: Path, stack: ExitStack) -> None:
        self._cluster, self._root = cluster, root
        for name in ("state", "scratch"):
            (root / name).mkdir(parents=True)
        self._environment = {
            **os.environ,
            "STATELINE_STATE_DIR": str(root / "state"),  # as in the image
            "STATELINE_SERVER_HOST": "127.0.0.1",
            "STATELINE_SERVER_PORT": str(cluster.port),
            "TMPDIR": str(root / "scratch"),
        }
        spec = next(each for each in MANIFESTS if each["kind"] == "Deployment")["spec"]["template"]["spec"]
        for container in spec["initContainers"]:
            given: dict[str, Any] = {"cwd": cluster.image, "env": self._environment}
            done = subprocess.run(self._line(container), **given, capture_output=True, check=False, timeout=HANGING_S)
            assert done.returncode == 0, done.stderr
        self._running = {each["name"]: self._started(each, stack) for each in spec["containers"]}

    def _line(self, container: dict[str, Any]) -> list[str]:
        mounted = {"/etc/stateline/stateline.toml": str(self._cluster.settings)}
        return [sys.executable, "-m", "stateline", *(mounted.get(each, each) for each in container["args"])]

    def _started(self, container: dict[str, Any], stack: ExitStack) -> subprocess.Popen[bytes]:
        output = stack.enter_context(self.log_of(container["name"]).open("wb"))
        given: dict[str, Any] = {"cwd": self._cluster.image, "env": self._environment}
        started = subprocess.Popen(self._line(container), **given, stdout=output, stderr=output)
        stack.callback(started.wait, HANGING_S)
        stack.callback(started.kill)
        return started

    def log_of(self, container: str) -> Path:
        return self._root / f"{container}.log"

    def answers(self, names: dict[str, str], changes: dict[str, int]) -> None:
        """Wait until a client of the service gets these names, and how often each was written."""
        wait_until(lambda: {k: each["name"] for k, each in self._rows("airlines").items()} == names, HANGING_S)
        wait_until(lambda: self._rows("changes") == changes, HANGING_S)

    def _rows(self, store: str) -> dict[str, Any]:
        head = {"Authorization": f"Bearer {self._cluster.token}"}
        try:
            at = f"http://127.0.0.1:{self._cluster.port}/v1/stores/{store}/range"
            told = httpx.get(at, headers=head, params={"limit": 1_000}, timeout=HANGING_S)
        except httpx.TransportError:  # it does not listen yet
            return {}
        return {each["key"]: each["value"] for each in told.json().get("entries", ())}

    def is_deleted(self) -> None:
        """The pod goes with its node: nothing of its directories is left."""
        for process in self._running.values():
            process.send_signal(signal.SIGKILL)
            process.wait(HANGING_S)
        for name in ("state", "scratch"):
            shutil.rmtree(self._root / name)


@pytest.mark.parametrize("url", ["s3"], indirect=True)
def test_each_pod_starts_from_the_backups_of_the_pod_before(tmp_path: Path, url: str) -> None:
    cluster, names = Cluster(tmp_path, url), {f"A{n}": f"airline {n}" for n in range(300)}
    changes = dict.fromkeys(names, 1)
    with ExitStack() as stack:
        pod = cluster.pod(stack)
        cluster.write(names)
        pod.answers(names, changes)
        for written in (300, 301):
            cluster.has_backed_up(written)
            pod.is_deleted()
            names["A1"] = f"renamed after {written}"
            changes["A1"] += 1
            cluster.write({"A1": names["A1"]})
            pod = cluster.pod(stack)
            pod.answers(names, changes)
            told = pod.log_of("worker").read_text(encoding="utf-8")
            assert "begins with the backup" in told, told


def _replaced(text: str, by: dict[str, str]) -> str:
    for old, new in by.items():
        assert text.count(old) == 1, f"{old!r} is not there once"
        text = text.replace(old, new)
    return text
