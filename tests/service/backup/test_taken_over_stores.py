"""Stores without a changelog of a task whose other stores are here: only a backup brings their rows."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from stateline import App, serdes, stores
from stateline.cli.backup.making import make_now
from stateline.cli.check.run import check
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.log import Log
from stateline_store import KeyValueStore, NotPresentError, RetryLaterError, StoreContext
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import Stores, configured, create, eventually, produce, running

STORES = ("kept", "quiet")
SETTINGS: dict[str, Any] = {
    "num.standby.replicas": 1,
    "session.timeout.ms": 3_000,
    "consumer.heartbeat.interval.ms": 300,
    "node.leave": "true",
}


def _count(record: Any, kept: Any, quiet: Any) -> None:
    for view in (kept, quiet):
        view.put(record.key, (view.get(record.key) or 0) + 1)


class Scene:
    """Two nodes, each with a state directory, that count the records of a key in a store with a changelog and in one
    without."""

    def __init__(self, log: Log, servers: str, path: Path, url: str, stack: ExitStack) -> None:
        self.log, self.servers, self.path, self.url, self.stack = log, servers, path, url, stack
        self.app, self.topic = App(f"app-{uuid4().hex[:8]}"), f"in-{uuid4().hex[:8]}"
        common: dict[str, Any] = {"key": serdes.string, "value": serdes.json}
        made = [self.app.store(stores.key_value(name, logged=name == "kept", **common)) for name in STORES]
        self.app.process(self.app.topic(self.topic, **common), stores=made)(_count)
        create(log, {self.topic: 1})
        self.found: dict[str, Stores] = {}

    def config(self, node: str) -> Config:
        more = {"bootstrap.servers": self.servers, "backup.location": self.url, "group.instance.id": node, **SETTINGS}
        return configured(self.app, self.path / node, **more)

    def send(self) -> None:
        produce(self.log, self.topic, [(b"k", b"1", 1_000)])

    def counts(self, node: str) -> dict[str, int]:
        if node not in self.found:
            made = Stores(self.app, self.config(node), self.path / f"reads-{node}")
            self.found[node] = self.stack.enter_context(closing(made))
        return {name: int(self.found[node].rows(name, 1).get(b"k", b"0")) for name in STORES}

    def is_backed_up(self) -> bool:
        with suppress(NotPresentError, RetryLaterError):
            return make_now(self.app, self.config("one"))["partitions"] == len(STORES)
        return False


@pytest.fixture
def scene(kafka_broker: SharedBroker, tmp_path: Path, url: str) -> Iterator[Scene]:
    servers = kafka_broker.bootstrap_servers
    with ExitStack() as stack:
        log = stack.enter_context(closing(configured_log(configured(App("any"), tmp_path, bootstrap__servers=servers))))
        yield Scene(log, servers, tmp_path, url, stack)


@pytest.mark.parametrize("is_away", [False, True])
def test_a_standby_that_takes_over_waits_for_the_rows_of_a_backup(
    scene: Scene, is_away: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    scene.send()
    location, away = Path(scene.url), Path(f"{scene.url}-away")
    with ExitStack() as second:
        with running(scene.app, scene.config("one"), scene.log):
            eventually(lambda: scene.counts("one") == {"kept": 1, "quiet": 1}, "the first node has counted")
            eventually(scene.is_backed_up, "it is backed up")
            second.enter_context(running(scene.app, scene.config("two"), scene.log))
            eventually(lambda: scene.counts("two")["kept"] == 1, "the second node follows")
            assert scene.counts("two")["quiet"] == 0
            if is_away:
                location.rename(away)
        scene.send()
        if is_away:
            back = threading.Timer(2.0, lambda: away.rename(location))
            second.callback(back.join)
            back.start()
        eventually(lambda: scene.counts("two") == {"kept": 2, "quiet": 2}, "the second node has taken over")
    told = [each for each in caplog.messages if "waits for its backup" in each]
    assert bool(told) is is_away
    assert all("Only a backup has the rows of quiet" in each for each in told)
    assert any("Task 0_0 takes quiet from the backup" in each for each in caplog.messages)


@pytest.mark.parametrize("left", ["nothing", "empty files", "rows"])
def test_a_start_fetches_what_was_never_committed_here_and_nothing_else(
    scene: Scene, left: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    scene.send()
    with running(scene.app, scene.config("one"), scene.log):
        eventually(lambda: scene.counts("one") == {"kept": 1, "quiet": 1}, "the node has counted")
        eventually(scene.is_backed_up, "it is backed up")
    task = scene.path / "one" / scene.app.application_id / "0_0"
    if left == "rows":
        Path(scene.url).rename(f"{scene.url}-away")
    else:
        shutil.rmtree(task / "rocksdb" / "quiet")
    if left == "empty files":
        with closing(KeyValueStore("quiet")) as store:
            store.init(StoreContext("0_0", task))
    noted = [found.message for found in check(scene.app, scene.config("one")).findings]
    takes = "Task 0_0 would take its stores without a changelog from the backup"
    assert any(takes in each for each in noted) is (left != "rows")
    assert not [each for each in noted if "Nothing brings them" in each]
    scene.send()
    with running(scene.app, scene.config("one"), scene.log):
        eventually(lambda: scene.counts("one") == {"kept": 2, "quiet": 2}, "it has counted on")
    assert any("Task 0_0 takes quiet from the backup" in each for each in caplog.messages) is (left != "rows")
    assert not [each for each in caplog.messages if "waits for its backup" in each]
