"""Workers and servers killed with `kill -9` while snapshots are made, read and deleted.

Afterwards nothing is left over, stores are whole, and every snapshot that there is shows exactly what the input up to
its Position makes of both stores: the oracle of `crash_watch`, folded anew for each.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pyarrow as pa
import pytest

from stateline.log import open_log
from stateline_store.snapshots.snapshot_directory import SnapshotDirectory
from support import TESTS
from support.oracles.crash_watch import COMMIT_MS, PARTITIONS, Feeder, Oracle
from support.processes.forked import Forked
from support.processes.ports import free_port
from support.processes.running_worker import create, eventually
from support.run.length import long_only
from support.run.patience import HANGING_S

KILLED = -signal.SIGKILL


class Scene:
    """Input that keeps coming, and processes over one state directory that may be told where to die."""

    def __init__(self, root: Path) -> None:
        self.run = uuid4().hex[:8]
        self.source = f"numbers-{self.run}"
        self._log = open_log(f"embedded:{root / 'log.db'}", root)
        create(self._log, {self.source: PARTITIONS, f"tenths-{self.run}": PARTITIONS})
        self._oracle = Oracle()
        self._feeder = Feeder(self._log, self.source, self._oracle)
        self._output = root / "output.log"
        self._settings = [
            f"bootstrap.servers=embedded:{root / 'log.db'}",
            "processing.guarantee=exactly_once_v2",
            f"state.dir={root / 'state'}",
            f"commit.interval.ms={COMMIT_MS}",
            "group.instance.id=the-worker",
            f"server.port={(port := free_port())}",
        ]
        self.directory = SnapshotDirectory(root / "state" / f"crashes-{self.run}")
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANGING_S)
        self._processes: list[Forked] = []
        self._feeder.start()

    def start(self, command: str, crash_at: str = "") -> Forked:
        """`stateline worker` or `serve`; a server that answers, a worker whose stores are all active."""
        words = [command, "support.apps.crash_app:app", *(f"--set={setting}" for setting in self._settings)]
        environment = {**os.environ, "CRASH_RUN": self.run, "STATELINE_CRASH_AT": crash_at}
        with self._output.open("ab") as file:
            process = Forked(words, cwd=TESTS, env=environment, output=file.fileno())
        self._processes.append(process)
        return process

    def ready(self) -> None:
        """Worker and server are there, and something is committed everywhere."""
        eventually(self._has_committed, "both stores are served and have committed")

    def make(self) -> dict[str, Any]:
        response = self.client.post("/v1/snapshots", json={"stores": ["counts", "newest"], "ttl_s": 600})
        assert response.status_code == 201, response.text
        made: dict[str, Any] = response.json()
        return made

    def check(self, snapshot: dict[str, Any]) -> None:
        """Each part is exactly what the input up to its Position makes."""
        for store, parts in snapshot["stores"].items():
            for partition, part in parts.items():
                offset = part["position"][self.source][partition]
                counts, newest = self._folded(int(partition), offset)
                with pa.ipc.open_stream(self.client.get(part["path"]).raise_for_status().content) as reader:
                    rows = reader.read_all()
                keys, values = rows["key"].to_pylist(), rows["value"].to_pylist()
                if store == "counts":
                    assert dict(zip(keys, map(json.loads, values), strict=True)) == counts
                else:
                    assert dict(zip(keys, values, strict=True)) == newest
            same = {partition: part["position"] for partition, part in parts.items()}
            assert same == {p: part["position"] for p, part in snapshot["stores"]["counts"].items()}

    def ids(self) -> list[str]:
        """What lies in the snapshots' directory beside the lock and the marks of those that are gone."""
        names = os.listdir(self.directory.path) if self.directory.path.exists() else []
        return [name for name in names if name != ".lock" and not name.startswith(".gone-")]

    def nothing_left(self) -> None:
        eventually(lambda: not self.ids(), f"nothing is left over of {self.ids()}")

    def close(self) -> None:
        self._feeder.done.set()
        self._feeder.join()
        self.client.close()
        for process in self._processes:
            process.kill()
            process.wait()
        self._log.close()
        assert self._feeder.error is None

    def _folded(self, partition: int, offset: int) -> tuple[dict[str, list[int]], dict[str, int]]:
        counts: dict[str, list[int]] = {}
        newest: dict[str, int] = {}
        for name, value in self._oracle.inputs[partition][: offset + 1]:
            n, total = counts.get(key := name.decode(), [0, 0])
            counts[key], newest[key] = [n + 1, total + value], value
        return counts, newest

    def _has_committed(self) -> bool:
        assert self._processes[-1].poll() is None, self._output.read_text()[-2_000:]
        try:
            if self.client.get("/readyz").status_code != 200:
                return False
            answers = [self.client.get(f"/v1/stores/{name}/position").json() for name in ("counts", "newest")]
        except httpx.TransportError:
            return False
        return all(len(answer.get("position", {}).get(self.source, {})) == PARTITIONS for answer in answers)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with closing(Scene(tmp_path)) as scene:
        yield scene


def test_workers_killed_while_they_make_one_leave_nothing_and_their_stores_are_whole(scene: Scene) -> None:
    """Killed behind the first link of four, and behind the third: the second task is begun by then."""
    scene.start("serve")
    for step in ("checkpoint:linked", "checkpoint:linked#3"):
        worker = scene.start("worker", crash_at=step)
        scene.ready()
        response = scene.client.post("/v1/snapshots", json={"stores": ["counts", "newest"]})
        assert (response.status_code, response.json()["reason"]) == (421, "NOT_PRESENT"), response.text
        assert worker.wait(HANGING_S) == KILLED
        scene.nothing_left()
    scene.start("worker")
    scene.ready()
    scene.check(scene.make())


@long_only("test_snapshots.py has one that fails half way, and one that has lost its end")
def test_servers_killed_at_each_step_leave_a_whole_snapshot_or_what_the_next_one_removes(scene: Scene) -> None:
    scene.start("worker")

    server = scene.start("serve", crash_at="snapshot:parts-made")
    scene.ready()
    with pytest.raises(httpx.TransportError):
        scene.make()
    assert server.wait(HANGING_S) == KILLED
    assert len(scene.ids()) == 1, "the links are there, the manifest is not"

    server = scene.start("serve", crash_at="snapshot:manifest-written")
    scene.ready()
    scene.nothing_left()
    with pytest.raises(httpx.TransportError):
        scene.make()
    assert server.wait(HANGING_S) == KILLED

    server = scene.start("serve", crash_at="snapshot:withdrawn")
    scene.ready()
    (snapshot,) = scene.client.get("/v1/snapshots").json()["snapshots"]
    scene.check(snapshot)
    with pytest.raises(httpx.TransportError):
        scene.client.delete(f"/v1/snapshots/{snapshot['id']}")
    assert server.wait(HANGING_S) == KILLED
    assert scene.ids() == [f".deleted-{snapshot['id']}"]

    scene.start("serve")
    scene.ready()
    scene.nothing_left()
    assert scene.client.get(f"/v1/snapshots/{snapshot['id']}").status_code == 410


def test_a_snapshot_outlives_the_server_that_was_killed_while_it_was_read_and_the_worker_too(scene: Scene) -> None:
    worker, server = scene.start("worker"), scene.start("serve")
    scene.ready()
    snapshot = scene.make()
    path = snapshot["stores"]["counts"]["0"]["path"]
    with scene.client.stream("GET", path) as response:
        pieces = response.iter_raw(16)
        next(pieces)  # it is kept: one that is collected closes the connection
        server.kill()
        server.wait()
    worker.kill()
    worker.wait()
    scene.start("serve")
    scene.start("worker")
    scene.ready()
    assert scene.client.get(f"/v1/snapshots/{snapshot['id']}").json() == snapshot
    scene.check(snapshot)
    assert scene.client.delete(f"/v1/snapshots/{snapshot['id']}").status_code == 204
    scene.nothing_left()
