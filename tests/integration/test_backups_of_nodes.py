"""Backups of two nodes whose clocks differ by minutes, and what a new node reads of the changelogs afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest

from stateline.backup.location import BackupLocation
from stateline.config.loading import load_config
from stateline.config.settings import Config
from stateline.deployment.workers.instance_file import read_instances
from stateline.log import Consumer, Log, Record, open_log
from stateline_store import StateDirectory, TopicPartition
from stateline_store.clock import now_ms
from stateline_store.rocksdb.offline_store import OfflineStore
from support import TESTS
from support.apps import changes_app
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import Stores, create, eventually, produce, running
from support.run.length import long_only
from support.run.patience import HANGING_S

PARTITIONS = 4
AHEAD_S = 300
KEYS = [f"k{n}" for n in range(40)]
ON_DISK = ("newest", "dated", "counts", "windows", "stamped", "visits", "history", "quiet")
# Of each process that has this on its path: its clock is ahead.
SHIFT = f"""
import time
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + {AHEAD_S}
time.time_ns = lambda: _time_ns() + {AHEAD_S} * 1_000_000_000
"""


class Node:
    """A machine: its directory, its worker as a process, and the commands of its owner."""

    def __init__(self, scene: Scene, name: str, *, is_ahead: bool = False) -> None:
        self._scene, self.name, self.disk = scene, name, scene.root / name
        path = [str(TESTS), os.environ.get("PYTHONPATH", "")]
        if is_ahead:
            shifted = scene.root / "ahead"
            shifted.mkdir()
            (shifted / "sitecustomize.py").write_text(SHIFT, encoding="utf-8")
            path.insert(0, str(shifted))
        self._environment = {**os.environ, "CHANGES_RUN": scene.run, "PYTHONPATH": ":".join(path)}
        self.worker: subprocess.Popen[bytes] | None = None

    @property
    def settings(self) -> list[str]:
        return [*self._scene.settings, f"state.dir={self.disk}", f"node.name={self.name}"]

    @property
    def config(self) -> Config:
        return load_config(self._scene.app.application_id, environment={}, overrides=self.settings)

    def start(self) -> None:
        self.worker = subprocess.Popen(
            self._line("worker"), env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.worker is not None:
            self.worker.send_signal(number)
            self.worker.wait(HANGING_S)
            self.worker = None

    def runs(self, tasks: int) -> None:
        """Wait until this node runs so many tasks."""
        application = StateDirectory(self.disk, self._scene.app.application_id).application

        def running_tasks() -> list[str]:
            states = [state for each in read_instances(application).values() for state in each.tasks.values()]
            return [state for state in states if state == "running"]

        eventually(lambda: len(running_tasks()) == tasks, f"{self.name} runs {tasks} tasks")

    def backup(self, *words: str) -> list[dict[str, Any]]:
        """Run `stateline backup`, which must succeed."""
        line = [*self._line("backup", *words), "--json"]
        done = subprocess.run(
            line, env=self._environment, capture_output=True, text=True, check=False, timeout=HANGING_S
        )
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    def backs_up(self, tasks: int) -> None:
        """Make a backup that has so many tasks: those of this node are running."""

        def is_made() -> bool:
            with suppress(AssertionError):
                return bool(self.backup("now")[0]["partitions"] == tasks * len(ON_DISK))
            return False

        eventually(is_made, f"{self.name} backs up {tasks} tasks")

    def _line(self, *words: str) -> list[str]:
        given = [f"--set={setting}" for setting in self.settings]
        return [sys.executable, "-m", "stateline", *words, "support.apps.changes_app:app", *given]


class Scene:
    """An application on two nodes, and what was written for it."""

    def __init__(self, bootstrap: str, root: Path) -> None:
        self.root, self.run = root, uuid4().hex[:8]
        self.app, self.topic = changes_app.build(self.run), f"in-{self.run}"
        self.log = open_log(bootstrap, root)
        self.url = str(root / "backups")
        Path(self.url).mkdir()
        self.settings = [
            f"bootstrap.servers={bootstrap}", f"backup.location={self.url}", "commit.interval.ms=50",
            "session.timeout.ms=6000", "consumer.heartbeat.interval.ms=300",
        ]  # fmt: skip
        self.sent: Counter[str] = Counter()
        self._readers = 0
        create(self.log, {self.topic: PARTITIONS})
        self.one, self.two = Node(self, "one"), Node(self, "two", is_ahead=True)

    def send(self, times: int = 1) -> None:
        """Write records of each key."""
        for _ in range(times):  # of now: a broker deletes old records of windows
            produce(self.log, self.topic, [(key.encode(), b"1", now_ms()) for key in KEYS])
            self.sent.update(KEYS)

    def until_processed(self, *nodes: Node) -> None:
        """Wait until the stores of these nodes have counted each record once. A node's older stores count less."""
        self._readers += 1
        scratch = self.root / f"readers-{self._readers}"
        readers = [Stores(self.app, node.config, scratch / node.name) for node in nodes]

        def counted() -> Counter[str]:
            found = Counter[str]()
            for stored in readers:
                for key, value in stored.rows("counts", PARTITIONS).items():
                    found[key.decode()] = max(found[key.decode()], int(value))
            return found

        eventually(lambda: counted() == self.sent, f"{self.sent} are counted")
        for stored in readers:
            stored.close()

    def close(self) -> None:
        for node in (self.one, self.two):
            node.stop(signal.SIGKILL)
        self.log.close()


@pytest.fixture
def scene(kafka_broker: SharedBroker, tmp_path: Path) -> Iterator[Scene]:
    """Both nodes have made backups; then the second one ended, and the first one made one of all tasks."""
    made = Scene(kafka_broker.bootstrap_servers, tmp_path)
    with closing(made):
        made.one.start()
        made.two.start()
        for node in (made.one, made.two):  # no task moves later: its store without a changelog would begin empty
            node.runs(2)
        made.send(3)
        made.until_processed(made.one, made.two)
        made.one.backs_up(2)
        made.two.backs_up(2)
        made.two.stop()
        made.send(3)
        made.until_processed(made.one, made.two)
        made.one.backs_up(4)
        made.send(3)
        made.until_processed(made.one, made.two)
        made.one.stop(signal.SIGKILL)
        yield made


@long_only("test_backups.py has `stateline backup restore`, and a new node counts each record once")
def test_restored_stores_are_of_one_commit_of_their_task_and_nothing_counts_twice(scene: Scene) -> None:
    three = Node(scene, "three")
    rows = three.backup("restore")
    assert [(row["task"], row["outcome"]) for row in rows] == [(f"0_{n}", "restored") for n in range(PARTITIONS)]
    directory, topology = StateDirectory(three.disk, scene.app.application_id), scene.app.topology()
    for number in range(PARTITIONS):
        seen = set()
        for name in ON_DISK:
            timestamped = topology.stores[name].timestamped
            with OfflineStore(directory.store(f"0_{number}", name, timestamped=timestamped)) as store:
                seen.add(store.commit.position.get(scene.topic, number))
        assert len(seen) == 1, f"stores of task 0_{number} are of {seen}"
    three.start()
    try:
        scene.send()
        scene.until_processed(three)
    finally:
        three.stop(signal.SIGKILL)


class Counting:
    """The log, and the offsets of what its consumers have read."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.read: dict[TopicPartition, list[int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def consumer(self, *arguments: Any, **named: Any) -> Consumer:
        made = self._log.consumer(*arguments, **named)
        poll = made.poll

        def counted(*given: Any, **more: Any) -> list[Record]:
            found = poll(*given, **more)
            for record in found:
                self.read.setdefault(TopicPartition(record.topic, record.partition), []).append(record.offset)
            return found

        made.poll = counted  # type: ignore[method-assign]
        return made


def test_a_new_node_reads_each_changelog_from_the_backup_on_and_no_record_twice(scene: Scene) -> None:
    location = BackupLocation(scene.url, scene.app.application_id)
    (newest,) = (found for each in location.manifests() if len((found := location.read(*each)).committed) == PARTITIONS)
    for name in location.manifests():
        if name[0] != newest.id:
            location.delete_manifest(*name)
    parts = [part for part in newest.copy.parts if part.store not in ("newest", "dated", "quiet")]
    offsets = {(part.store, part.partition): newest.offsets[part.directory] for part in parts}
    changelogs = {TopicPartition(f"{newest.application_id}-{s}-changelog", n): at for (s, n), at in offsets.items()}
    with closing(scene.log.admin()) as admin:
        ends = {place: end for place, (_, end) in admin.bounds(changelogs).items()}
    counting, three = Counting(scene.log), Node(scene, "three")
    scene.send()  # tasks process it when all their stores are restored
    with running(scene.app, three.config, cast(Log, counting)):
        scene.until_processed(three)
    read = {place: counting.read.get(place, []) for place in changelogs}
    assert {place: sorted(offsets) for place, offsets in read.items()} == {
        place: list(range(at + 1, ends[place])) for place, at in changelogs.items()
    }
    assert all(read.values()), "each has a rest"
