"""A worker that takes over in the middle of each operator, or restores it, leaves what one worker leaves alone."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import pytest

from conformance import live_app
from conformance.live_app import BY_VERSION, JOINED, MOVED
from conformance.live_input import Sent, begin_ms, input_of
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.dsl.app import App
from stateline.log import Log, Record
from stateline.model.internal_topics import required_topics
from stateline.worker.loop.worker import Worker
from stateline.worker.standbys import standby_assignment
from stateline_store import TopicPartition
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import configured, create, eventually, read_all, running
from support.run.length import long_only

PARTITIONS, RECORDS = 2, 3_000
SESSION_MS = 3_000
GRACED = "versioned"  # the topic of the table for which rows wait
INPUT = {"events": "events", "others": "versioned", GRACED: GRACED, "left": "left", "right": "right", "trades": "table"}
WRITTEN = (*JOINED, "limited", "graced")
KEPT = ("groupcount", "groupsum", "cogroup", "cowindows", "foreignkey", "foreignleft")
STORES = (*MOVED, *BY_VERSION, "groupcount", "cogroup", "cowindows")
SETTINGS: dict[str, Any] = {
    "processing.guarantee": "exactly_once_v2",
    "num.standby.replicas": 1,
    "session.timeout.ms": SESSION_MS,
    "consumer.heartbeat.interval.ms": 300,
    "transaction.timeout.ms": SESSION_MS,
    # Records without a key of a table's topic are passed over, and each change of a key is one of its own.
    "deserialization.exception.handler": "skip",
    "processing.exception.handler": "skip",
}

Half: TypeAlias = Mapping[str, list[Sent]]
Rows: TypeAlias = dict[Any, Any]


def halves() -> tuple[Half, Half]:
    """The input of the live conformance, in two parts one after the other."""
    began_ms = begin_ms()
    rows = {topic: list(input_of(kind, RECORDS, began_ms)) for topic, kind in INPUT.items()}
    return (
        {topic: given[: len(given) // 2] for topic, given in rows.items()},
        {topic: given[len(given) // 2 :] for topic, given in rows.items()},
    )


@dataclass
class Scene:
    """The application with input of its own, and its workers, each with a directory."""

    servers: str
    root: Path
    prefix: str = field(default_factory=lambda: f"taken-{uuid4().hex[:8]}-")
    app: App = field(init=False)
    log: Log = field(init=False)
    _read: dict[str, list[Record]] = field(default_factory=dict)  # topics to which nothing is written any more

    def __post_init__(self) -> None:
        self.app = live_app.build(f"{self.prefix}app", self.prefix, STORES)
        self.log = configured_log(self._config("log"))
        create(self.log, dict.fromkeys(required_topics(self.app.topology()), PARTITIONS))

    def _config(self, node: str) -> Config:
        given = {"bootstrap.servers": self.servers, "group.instance.id": node, **SETTINGS}
        return configured(self.app, self.root / node, **given)

    @contextmanager
    def worker(self, node: str) -> Iterator[Worker]:
        config = self._config(node)
        with closing(configured_log(config)) as log, running(self.app, config, log, node) as worker:
            yield worker

    def send(self, half: Half) -> None:
        """Write the versions of the table with grace first. A worker that has read all of a topic does not wait for it,
        and may take rows before versions of their time. Returns when all of it was taken."""
        for part in ({GRACED: half[GRACED]}, {topic: rows for topic, rows in half.items() if topic != GRACED}):
            self._write(part)
            eventually(self.is_worked_off, "it has worked off its input")

    def _write(self, half: Half) -> None:
        """Write all of it at once, in a transaction: joined topics are then taken in order of time."""
        with closing(self.log.producer(f"{self.prefix}input")) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for topic, rows in half.items():
                for key, value, at_ms, headers in rows:
                    producer.produce(f"{self.prefix}{topic}", key, value, timestamp_ms=at_ms, headers=headers)
            producer.commit_transaction()

    def is_worked_off(self) -> bool:
        """Whether all that there is was committed, records between subtopologies included."""
        with closing(self.log.admin()) as admin:
            names = {topic.name for part in self.app.topology().subtopologies for topic in part.sources}
            if not names <= admin.topics().keys():
                return False
            places = [TopicPartition(name, number) for name in names for number in range(PARTITIONS)]
            committed = admin.committed(self.app.application_id, places)
            # The end of a topic may be a transaction's marker.
            return all(committed.get(place, 0) + 2 >= admin.log_end(place) for place in places)

    def rows(self, store: str) -> Counter[Any]:
        found = self._all(f"{self.prefix}ours-{store}")
        return Counter((record.key, record.value, record.timestamp_ms) for record in found)

    def kept(self, store: str, *, versions: bool = False) -> Rows:
        """The last value of each key in a store's changelog, or all of its versions, deletes included."""
        found: Rows = {}
        for record in self._all(f"{self.app.application_id}-{store}-changelog"):
            found.pop(name := (record.partition, record.key, record.timestamp_ms if versions else 0), None)
            if record.value is not None or versions:
                found[name] = record.value
        return found

    def _all(self, topic: str) -> list[Record]:
        if topic not in self._read:
            self._read[topic] = read_all(self.log, topic, PARTITIONS)
        return self._read[topic]


@pytest.fixture(scope="module")
def alone(kafka_broker: SharedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One worker, from the beginning to the end."""
    scene = Scene(kafka_broker.bootstrap_servers, tmp_path_factory.mktemp("alone"))
    with closing(scene.log):
        with scene.worker("one"):
            for half in halves():
                scene.send(half)
        yield scene


@pytest.fixture(
    scope="module",
    params=["standby", pytest.param("lost-disk", marks=long_only("a standby reads the same changelogs"))],
)
def changed(
    request: pytest.FixtureRequest, kafka_broker: SharedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """Half of the input by another worker that goes, or by one that loses its disk."""
    scene = Scene(kafka_broker.bootstrap_servers, tmp_path_factory.mktemp(request.param))
    with closing(scene.log), pytest.MonkeyPatch.context() as patched:
        patched.setattr(standby_assignment, "_LOOK_INTERVAL_S", 0.2)
        patched.setattr(standby_assignment, "_JOINING_INTERVAL_S", 0.1)
        (take_over if request.param == "standby" else lose_disk)(scene, *halves())
        yield scene


def lose_disk(scene: Scene, first: Half, second: Half) -> None:
    for half in (first, second):
        shutil.rmtree(scene.root / "one", ignore_errors=True)
        with scene.worker("one"):
            scene.send(half)


def take_over(scene: Scene, first: Half, second: Half) -> None:
    with scene.worker("two") as two:
        with scene.worker("one") as one:
            scene.send(first)
            each = (one, two)
            eventually(lambda: all(is_shared(worker) for worker in each), "each has all that the other has")
        scene.send(second)


def is_shared(worker: Worker) -> bool:
    states = [str(task.state) for task in [*worker.tasks.all.values()]]
    followed = worker.standbys.followed
    return bool(states) and set(states) == {"running"} and 0 < len(followed.tasks) == len(followed.caught_up())


@pytest.mark.parametrize("store", WRITTEN)
def test_rows_that_meet_or_wait_leave_as_from_one_worker(store: str, alone: Scene, changed: Scene) -> None:
    assert changed.rows(store) == alone.rows(store)
    assert alone.rows(store).total() > 50


@pytest.mark.parametrize("store", KEPT)
def test_a_store_has_the_rows_that_one_worker_leaves(store: str, alone: Scene, changed: Scene) -> None:
    assert changed.kept(store) == alone.kept(store)
    assert len(alone.kept(store)) > 10


@pytest.mark.parametrize("store", ["foreignkey", "foreignleft"])
def test_subscriptions_are_those_of_one_worker(store: str, alone: Scene, changed: Scene) -> None:
    name = f"{store}-subscription-store"
    assert changed.kept(name).keys() == alone.kept(name).keys()
    assert len(alone.kept(name)) > 10


def test_a_versioned_table_has_the_versions_that_one_worker_leaves(alone: Scene, changed: Scene) -> None:
    assert changed.kept("versions", versions=True) == alone.kept("versions", versions=True)
    assert len(alone.kept("versions", versions=True)) > 100
