"""Standbys of stores that get timestamps: what they build, and what they are taken over with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.deployment.workers.instance_file import ask_to_drain
from stateline.log import Log, Record
from stateline.worker.loop.worker import Worker
from stateline.worker.restore.restorer import Restorer
from stateline.worker.standbys import standby_assignment
from stateline.worker.standbys.standby_assignment import GroupView, StandbyAssignment
from stateline.worker.standbys.standby_tasks import _Followed
from stateline_store import StateDirectory, StatelineError
from stateline_store.files.directory import holds_database
from stateline_store.rocksdb.offline_store import OfflineStore
from stateline_store.rows.timestamped_rows import split
from stateline_store.scan import EVERY_KEY
from support.apps.steps_app import declared, keeping
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import configured, create, eventually, produce, running
from support.run.length import long_only

ROLL_OVER = {"upgrade__from": "v1", "upgrade__mode": "roll_over"}
IN_PLACE = {"upgrade__from": "v1", "upgrade__mode": "in_place"}
SESSION_MS = 3_000
RECORDS = 50


@dataclass
class Group:
    """Two workers of one task, each on a directory of its own. What they keep is the newest value of each key."""

    name: str
    servers: str
    root: Path
    log: Log
    sent: int = 0

    def config(self, node: str, **more: Any) -> Config:
        return configured(
            self.app(stamped=False),
            self.root / node,
            bootstrap__servers=self.servers,
            session__timeout__ms=SESSION_MS,
            num__standby__replicas=1,
            group__instance__id=node,
            **{"consumer.heartbeat.interval.ms": 300, **more},
        )

    def app(self, *, stamped: bool) -> Any:
        return keeping(declared("key_value", timestamped=stamped), application_id=self.name, topic=f"{self.name}-in")

    @contextmanager
    def worker(self, node: str, *, stamped: bool, **more: Any) -> Iterator[Worker]:
        config = self.config(node, **more)
        with closing(configured_log(config)) as log, running(self.app(stamped=stamped), config, log) as worker:
            yield worker

    def send(self) -> None:
        first, self.sent = self.sent, self.sent + RECORDS
        values = [(b"k%d" % (n % 7), b"%d" % n, 1_000 + n) for n in range(first, self.sent)]
        produce(self.log, f"{self.name}-in", values)

    def wanted(self) -> dict[bytes, bytes]:
        return {b"k%d" % (n % 7): b"%d" % n for n in range(self.sent)}

    def drain(self, node: str) -> None:
        ask_to_drain(StateDirectory(self.root / node, self.name).application, "worker-0")

    def has_files(self, node: str, *, timestamped: bool) -> bool:
        return StateDirectory(self.root / node, self.name).store("0_0", "s", timestamped=timestamped).exists()


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `test_standbys.py`."""
    monkeypatch.setattr(standby_assignment, "_LOOK_INTERVAL_S", 0.2)
    monkeypatch.setattr(standby_assignment, "_JOINING_INTERVAL_S", 0.1)


@pytest.fixture
def group(kafka_broker: SharedBroker, tmp_path: Path) -> Iterator[Group]:
    name = f"rolled-{uuid4().hex[:8]}"
    with ExitStack() as stack:
        servers = kafka_broker.bootstrap_servers
        app = keeping(declared("key_value", timestamped=False), application_id=name, topic=f"{name}-in")
        config = configured(app, tmp_path / "log", bootstrap__servers=servers)
        log = stack.enter_context(closing(configured_log(config)))
        create(log, {f"{name}-in": 1})
        yield Group(name, servers, tmp_path, log)


def holds(group: Group, node: str, *, stamped: bool) -> bool:
    """Whether these files of this node have what was sent."""
    directory = StateDirectory(group.root / node, group.name).store("0_0", "s", timestamped=stamped)
    if not holds_database(directory):
        return False
    try:
        with OfflineStore(directory) as store, store.scan(EVERY_KEY) as rows:
            found = dict(rows)
    except (StatelineError, OSError):  # being deleted just now
        return False
    return {key: split(stored).value if stamped else stored for key, stored in found.items()} == group.wanted()


def runs(worker: Worker) -> bool:
    return [str(task.state) for task in [*worker.tasks.all.values()]] == ["running"]


def both_hold_plain_files(group: Group) -> None:
    """One has the task and two follows it, by their names; then both have stopped."""
    group.send()
    with group.worker("one", stamped=False) as one, group.worker("two", stamped=False):
        for node in ("one", "two"):
            eventually(lambda node=node: holds(group, node, stamped=False), f"{node} has all")  # type: ignore[misc]
        eventually(lambda: runs(one), "one has the task")


@pytest.mark.parametrize(
    "settings",
    [pytest.param({}, marks=long_only("in place, the same files are built")), IN_PLACE],
    ids=["offline", "in_place"],
)
def test_a_standby_builds_timestamped_files_at_once_and_its_task_is_taken_over_with_them(
    group: Group, delivered: list[Record], caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> None:
    caplog.set_level("INFO")
    both_hold_plain_files(group)
    group.send()
    with group.worker("one", stamped=False) as one, group.worker("two", stamped=True, **settings) as two:
        eventually(lambda: holds(group, "two", stamped=True), "the standby has all, with timestamps")
        eventually(lambda: not group.has_files("two", timestamped=False), "its plain files are deleted")
        eventually(lambda: "Every task of this worker is ready with timestamps, 1 in all" in caplog.text, "it says so")
        eventually(lambda: runs(one), "one has the task")
        group.send()
        eventually(lambda: holds(group, "two", stamped=True), "it follows")
        delivered.clear()
        group.drain("one")
        eventually(lambda: runs(two), "it has taken over")
        group.send()
        eventually(lambda: holds(group, "two", stamped=True), "it goes on")
        assert delivered == [], "it had all of it"


def test_a_node_that_never_had_plain_files_says_that_the_next_one_may_be_rolled_over(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    group.send()
    with group.worker("one", stamped=False) as one:
        eventually(lambda: runs(one), "one has the task")
        with group.worker("two", stamped=True, **ROLL_OVER):
            eventually(lambda: holds(group, "two", stamped=True), "the standby has all, with timestamps")
            eventually(lambda: "ready with timestamps, 1 in all: the next node's turn" in caplog.text, "it says so")


@long_only("the next test has a node that says so when its task is there")
def test_a_node_that_gets_its_task_while_it_builds_says_so_when_the_restore_has_ended(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    both_hold_plain_files(group)
    note = StandbyAssignment._note_upgraded
    monkeypatch.setattr(StandbyAssignment, "_note_upgraded", lambda *_: None)  # all happens between two looks
    monkeypatch.setattr(_Followed, "is_past_plain_files", lambda _: False)
    with group.worker("two", stamped=True) as two:
        eventually(lambda: runs(two), "it has the task")
        eventually(lambda: not group.has_files("two", timestamped=False), "its plain files are deleted")
        monkeypatch.setattr(StandbyAssignment, "_note_upgraded", note)
        eventually(lambda: "ready with timestamps, 1 in all: the next node's turn" in caplog.text, "it says so")


def test_a_node_says_nothing_while_a_task_that_it_was_given_is_not_there_yet(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    said, looks, note = "the next node's turn", list[object](), StandbyAssignment._note_upgraded

    def noted(assignment: StandbyAssignment, view: GroupView) -> None:
        note(assignment, view)
        looks.extend(view.owners.values())

    monkeypatch.setattr(StandbyAssignment, "_note_upgraded", noted)
    group.send()
    with group.worker("two", stamped=True, **ROLL_OVER) as two:
        with monkeypatch.context() as patch:
            patch.setattr(Restorer, "advance", lambda restorer, timeout_s: [])
            eventually(lambda: bool(looks), "it looks at what the group has given it")
            assert not runs(two)
            assert said not in caplog.text
        eventually(lambda: runs(two), "it has the task")
        eventually(lambda: said in caplog.text, "it says so")
        assert caplog.text.count(said) == 1


def test_a_task_that_is_taken_over_before_its_timestamped_files_are_complete_goes_on_with_the_plain_ones(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    both_hold_plain_files(group)
    with group.worker("two", stamped=True, **ROLL_OVER) as two:
        with monkeypatch.context() as patch, group.worker("one", stamped=False) as one:
            patch.setattr(_Followed, "is_past_plain_files", lambda _: False)
            eventually(lambda: runs(one) and bool(two.standbys.followed.tasks), "it builds")
            group.send()
            eventually(lambda: holds(group, "two", stamped=True), "all but the end")
            group.drain("one")
            eventually(lambda: runs(two), "it has taken over")
            assert "is taken over before its timestamped files are complete" in caplog.text
            group.send()
            eventually(lambda: holds(group, "two", stamped=False), "it goes on with its plain files")
        with group.worker("one", stamped=False) as one:
            eventually(lambda: runs(one), "the first one has it again")
            group.send()
            eventually(lambda: holds(group, "two", stamped=True), "as a standby it goes on with what was built")
            eventually(lambda: not group.has_files("two", timestamped=False), "to the end")
