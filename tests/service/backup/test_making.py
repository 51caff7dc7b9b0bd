"""The backups of a node whose workers answer or not, and their figures."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from stateline import serdes
from stateline.config.loading import load_config
from stateline.deployment.backup_figures import BackupFigures
from stateline.deployment.stores.topology_file import PublishedTopology, publish_topology
from stateline.deployment.workers.instance_file import Instance, lock_path
from stateline.dsl.app import App
from stateline.query.values import HostedPartition
from stateline.server.backups import keeping
from stateline.server.backups.keeping import BackupKeeper
from stateline.server.backups.making import BackupMaker
from stateline.server.state.worker_connection import LinkedForCopy
from stateline.server.state.workers import Workers
from stateline.server.telemetry.metrics import BackupCollector
from stateline.worker.files import topic_ids
from stateline.worker.queries.snapshots import SnapshotMaker
from stateline_store import (
    IsolationLevel,
    NotPresentError,
    StateDirectory,
    StoreContext,
    StoreState,
    TopicPartition,
    TransactionalStore,
)
from stateline_store.snapshots.backup import backup_id
from stateline_store.snapshots.snapshot_directory import SnapshotDirectory
from support.processes.linked_nodes import until

APP = App("app")
APP.table(APP.topic("in", key=serdes.string, value=serdes.string), store="table")
TASKS = ("0_0", "0_1", "0_2")


class Node:
    """Two live workers, of a task each, and one that has ended. A third task runs elsewhere."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root, self.hanging, self.restoring = root, {"two"}, set[int]()
        self.directory, self.topology = StateDirectory(root / "state", "app"), APP.topology()
        self.application = self.directory.application
        given = [f"state.dir={root / 'state'}", f"backup.location={root / 'backups'}", "server.snapshots.max=2"]
        self.config = load_config("app", environment={}, overrides=given)
        publish_topology(
            self.application, PublishedTopology.of(self.topology, {0: len(TASKS)}, IsolationLevel.READ_COMMITTED)
        )
        (self.application / "instances").mkdir()
        self.stores = {}
        for number, name in enumerate(("one", "two")):
            lock = stack.enter_context(lock_path(self.application, name).open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.stores[number] = stack.enter_context(closing(self._opened(number)))
        self.instances = {
            name: Instance(instance=name, pid=1, socket=root, tasks={task: "running"})
            for name, task in (("one", "0_0"), ("two", "0_1"), ("ended", "0_2"))
        }

    def _opened(self, number: int) -> TransactionalStore:
        task, place = f"0_{number}", TopicPartition("in", number)
        store = self.topology.stores["table"].build()
        assert isinstance(store, TransactionalStore)
        store.init(StoreContext(task, self.directory.task(task), place, types=self.topology.stores["table"].types))
        topic_ids.remember(self.directory.task(task), {"in": "id of in"})
        store.restore([(b"k", b"v", 7)])
        store.commit({place: 0})
        return store

    async def link_for_backup(self, name: str, snapshot: str, places: Sequence[tuple[str, int]]) -> LinkedForCopy:
        """Do what a worker does."""
        if name in self.hanging:
            raise NotPresentError(f"Worker {name!r} does not answer.")
        committed = {task: {"in": (1, None, None)} for task in self.instances[name].tasks}
        maker = SnapshotMaker(
            self.directory,
            self.topology,
            self._hosted,
            lambda: committed,
        )
        return LinkedForCopy(*maker.make_for_backup(snapshot, places))

    def _hosted(self, _: str, number: int) -> HostedPartition:
        state = StoreState.RESTORING if number in self.restoring else StoreState.ACTIVE
        return HostedPartition(self.stores[number], state)

    @property
    def maker(self) -> BackupMaker:
        workers = SimpleNamespace(instances=self.instances, link_for_backup=self.link_for_backup)
        return BackupMaker(self.config, self.topology, cast(Workers, workers))

    def kept(self, until_failed: int = 0, until_made: int = 0) -> BackupFigures:
        """Make backups until so many have failed, and so many were made. Return the figures."""

        async def keep() -> None:
            keeping = asyncio.create_task(BackupKeeper(self.maker, self.application, 50).keep())
            try:
                await until(lambda: self.figures.failed >= until_failed and self.figures.made >= until_made)
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)

        asyncio.run(keep())
        return self.figures

    @property
    def figures(self) -> BackupFigures:
        return BackupFigures.read(self.application)

    def metrics(self) -> dict[str, float]:
        registry = CollectorRegistry()
        registry.register(BackupCollector(self.application))
        lines = generate_latest(registry).decode().splitlines()
        return {name: float(value) for name, value in (line.split() for line in lines if not line.startswith("#"))}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with ExitStack() as stack:
        yield Node(tmp_path, stack)


def test_a_backup_without_the_stores_of_a_worker_counts_as_failed_and_keeps_the_others(node: Node) -> None:
    before_ms = time.time() * 1000
    figures = node.kept(until_failed=2)
    assert (figures.made, figures.last_ms) == (0, 0)
    assert figures.tasks["0_0"] > before_ms, "it is in the backups"
    assert {task: figures.tasks[task] for task in ("0_1", "0_2")} == {"0_1": 0, "0_2": 0}
    assert figures.written_files > 0
    told = node.metrics()
    assert told["stateline_backup_failures_total"] >= 2
    ages = {task: told[f'stateline_backup_task_last_timestamp_seconds{{task="{task}"}}'] for task in TASKS}
    assert [task for task, at_s in ages.items() if at_s == 0] == ["0_1", "0_2"]
    location = node.maker.location
    assert {part.directory for name in location.manifests() for part in location.read(*name).copy.parts} == {
        "0_0/table-v2"
    }


def test_a_backup_of_all_live_workers_is_whole(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.hanging.clear()
    with caplog.at_level(logging.INFO):
        figures = node.kept(until_made=2)
    assert re.fullmatch(r"Backup \S+ made: [\d,]+ bytes, of which 0 were new\.", caplog.messages[-1])
    assert figures.failed == 0
    assert figures.last_ms == figures.tasks["0_0"] == figures.tasks["0_1"] > figures.tasks["0_2"] == 0


def test_no_backup_is_written_to_a_location_that_has_lost_all_of_them(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.hanging.clear()
    node.kept(until_made=1)
    backups = node.root / "backups"
    backups.rename(node.root / "unmounted")
    backups.mkdir()
    assert node.kept(until_failed=2).failed >= 2
    assert not [*backups.iterdir()]
    (told, *_) = (each.getMessage() for each in caplog.records if each.levelno == logging.ERROR)
    assert told.endswith(
        f"failed: {backups} has no backup any more, and this node has written some there. If it is a mount, mount it. "
        "To write backups there all the same, run stateline backup now."
    )
    backups.rmdir()
    (node.root / "unmounted").rename(backups)
    before = node.figures.made
    assert node.kept(until_made=before + 1).made > before
    shutil.rmtree(backups / "app")
    writes_there = node.maker
    asyncio.run(writes_there.make(backup_id(1)))
    writes_there.close()
    before = node.figures.made
    assert node.kept(until_made=before + 1).made > before


def test_a_task_that_is_no_more_has_no_age(node: Node) -> None:
    node.hanging.clear()
    node.kept(until_made=1)
    publish_topology(node.application, PublishedTopology.of(node.topology, {0: 1}, IsolationLevel.READ_COMMITTED))
    assert node.kept(until_made=node.figures.made + 1).tasks.keys() == {"0_0"}


def test_snapshots_of_users_stop_no_backup(node: Node) -> None:
    node.hanging.clear()
    snapshots, now_ms = SnapshotDirectory(node.application), int(time.time() * 1000)
    for _ in range(node.config.server_snapshots_max):
        snapshots.finish(snapshots.begin(now_ms, 2, -1), [], now_ms, now_ms + 3_600_000)
    assert node.kept(until_made=1).failed == 0


def test_a_task_that_is_being_restored_is_named_and_the_others_of_its_worker_are_backed_up(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.instances["one"] = replace(node.instances["one"], tasks={"0_0": "running", "0_1": "running"})
    del node.instances["two"]
    node.restoring.add(1)
    figures = node.kept(until_failed=1)
    assert figures.tasks["0_0"] > figures.tasks["0_1"] == 0
    assert any("lacks task 0_1: Partition 1 of 'table' is being restored" in each for each in caplog.messages)
    (made,) = (node.maker.location.read(*name) for name in node.maker.location.manifests()[:1])
    assert ([*made.committed], [part.partition for part in made.copy.parts]) == (["0_0"], [0])
    node.restoring.add(0)
    before = node.maker.location.manifests()
    node.kept(until_failed=node.figures.failed + 1)
    assert "failed: Partition 0 of 'table' is being restored" in caplog.text
    assert [name for name in node.maker.location.manifests() if name not in before] == []


def test_a_server_sweeps_an_hour_after_its_start(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.hanging.clear()
    node.kept(until_made=1)
    location = node.maker.location
    made = location.read(*location.manifests()[0])
    old = [replace(made, id=backup_id(number), created_at_ms=number) for number in range(4)]
    for each in old:
        location.write(each)
    node.kept(until_made=node.figures.made + 2)
    assert location.manifests()[:4] == [(each.id, each.node) for each in old]
    monkeypatch.setattr(keeping, "_SWEEP_INTERVAL_MS", 0)
    node.kept(until_made=node.figures.made + 2)
    assert location.manifests()[0][0] > old[-1].id
