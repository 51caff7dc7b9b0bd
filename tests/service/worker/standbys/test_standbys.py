"""Workers that follow the tasks of others, and take them over."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from service.worker.faults import GUARANTEES, counting, entries
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.deployment.json_files import decoded
from stateline.deployment.workers import entries as worker_entries
from stateline.deployment.workers.entries import StandbysEntry, WorkerEntries, WorkerEntry
from stateline.deployment.workers.figures import StandbyLag, WorkerFigures, figures_path
from stateline.deployment.workers.instance_file import ask_to_drain
from stateline.dsl.app import App
from stateline.log import Log, Record
from stateline.log.kafka_admin import KafkaAdmin
from stateline.log.kafka_consumer import KafkaConsumer
from stateline.processing.changelog import position_headers
from stateline.worker.loop.worker import Worker
from stateline.worker.restore.restore_plan import TaskPlan
from stateline.worker.restore.restorer import Restorer
from stateline.worker.restore.store_restore import RestoredStore, StoreRestore
from stateline.worker.standbys import copied_tasks, standby_assignment, standby_tasks
from stateline.worker.standbys.standby_assignment import GroupView, StandbyAssignment
from stateline.worker.standbys.standby_store import StandbyStore
from stateline.worker.standbys.standby_tasks import StandbyTasks
from stateline.worker.tasks.task import Task
from stateline_store import (
    IsolationLevel,
    LogUnavailableError,
    Position,
    RetryLaterError,
    StateDirectory,
    StoreState,
    TopicPartition,
)
from stateline_store.clock import now_ms
from stateline_store.task_id import TaskId
from support.kafka.shared_broker import SharedBroker
from support.kafka.topic_configs import delete_records
from support.processes.running_worker import Stores, configured, create, eventually, produce, running
from support.processes.small_disk import fill, free, new_small_disk
from support.run.length import long_only
from support.run.patience import HANGING_S

PARTITIONS = 4
KEYS = [f"k{n}" for n in range(40)]
RECORDS = entries(KEYS)
SESSION_MS = 3_000
# So long that a slow machine has done what must not wait for it.
LONG_S = 200
LONG_SESSION: dict[str, Any] = {"session.timeout.ms": 1_000 * LONG_S + 40_000}
_DISK_MIB = 32


@dataclass
class Group:
    """Workers of an application that counts, each on a directory of its own unless it shares one."""

    app: App
    topic: str
    servers: str
    root: Path
    settings: dict[str, Any]
    log: Log
    stack: ExitStack
    times: int = 0
    ends: dict[int, int] = field(default_factory=dict)
    found: dict[str, Stores] = field(default_factory=dict)

    def config(self, node: str, **more: Any) -> Config:
        return configured(
            self.app,
            self.root / node,
            bootstrap__servers=self.servers,
            num__standby__replicas=1,
            **{"session.timeout.ms": SESSION_MS, "consumer.heartbeat.interval.ms": 300, **self.settings, **more},
        )

    @contextmanager
    def worker(self, node: str, name: str = "", **more: Any) -> Iterator[Worker]:
        """A worker of this node, which is called as its node unless it has a name."""
        config = self.config(node, group__instance__id=name or node, **more)
        with closing(configured_log(config)) as log, running(self.app, config, log, name or "worker-0") as worker:
            yield worker

    def stores(self, node: str) -> Stores:
        if node not in self.found:
            made = Stores(self.app, self.config(node), self.root / f"scratch-{node}")
            self.found[node] = self.stack.enter_context(closing(made))
        return self.found[node]

    def send(self) -> None:
        """One record of each key more."""
        self.times += 1
        self.ends |= {number: offset for (_, number), offset in produce(self.log, self.topic, RECORDS).items()}

    def is_whole(self, node: str) -> Callable[[], bool]:
        """Whether the copies of this node have everything that was sent, as their Positions say."""
        stores = self.stores(node)
        wanted = [(name, n, at) for n, at in self.ends.items() for name in ("counts", "newest")]
        return lambda: all(stores.offset(name, self.topic, n) == at for name, n, at in wanted)

    def has(self, node: str, number: int) -> bool:
        """Whether this node's copy of a partition has everything that was sent there."""
        return self.stores(node).offset("counts", self.topic, number) == self.ends[number]

    def lags(self, node: str) -> dict[str, StandbyLag]:
        """What the worker of this node has told last of what it is to follow; nothing before it has told anything."""
        application = StateDirectory(self.root / node, self.app.application_id).application
        path = figures_path(application, "worker-0")
        return dict(decoded(WorkerFigures, path.read_bytes()).standbys) if path.exists() else {}

    def check(self, node: str) -> None:
        """Its copies hold what was sent, each record once."""
        assert self.stores(node).rows("counts", PARTITIONS) == {k.encode(): b"%d" % self.times for k in KEYS}
        assert self.stores(node).rows("newest", PARTITIONS) == {k.encode(): b"0" for k in KEYS}


@pytest.fixture(params=["kafka"])
def bootstrap(kafka_broker: SharedBroker) -> str:
    """Standbys are of a group, which the embedded log has none of."""
    return kafka_broker.bootstrap_servers


@pytest.fixture(params=GUARANTEES)
def guarantee(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers look every two seconds which standbys are wanted: most of what these tests would wait for."""
    monkeypatch.setattr(standby_assignment, "_LOOK_INTERVAL_S", 0.2)
    monkeypatch.setattr(standby_assignment, "_JOINING_INTERVAL_S", 0.1)


@pytest.fixture
def group(bootstrap: str, guarantee: str, tmp_path: Path) -> Iterator[Group]:
    name = f"standbys-{uuid4().hex[:8]}"
    app, topic = counting(table=True, name=name, topic=f"{name}-in"), f"{name}-in"
    settings = {"processing.guarantee": guarantee, "transaction.timeout.ms": SESSION_MS}
    with ExitStack() as stack:
        config = configured(app, tmp_path / "log", bootstrap__servers=bootstrap)
        log = stack.enter_context(closing(configured_log(config)))
        create(log, {topic: PARTITIONS})
        yield Group(app, topic, bootstrap, tmp_path, settings, log, stack)


def has(worker: Worker, running: int, standby: int) -> Callable[[], bool]:
    """Whether it runs so many tasks, and follows so many that have all."""

    def looks() -> bool:
        states = [str(task.state) for task in [*worker.tasks.all.values()]]
        caught_up = len(worker.standbys.followed.caught_up())
        return states == ["running"] * running and caught_up == standby == len(worker.standbys.followed.tasks)

    return looks


def until_shared(one: Worker, two: Worker) -> None:
    eventually(lambda: has(one, 2, 2)() and has(two, 2, 2)(), "each runs two tasks and follows the others")


def test_a_node_follows_what_others_have_and_takes_it_over_without_reading_it_again(
    group: Group, delivered: list[Record]
) -> None:
    group.send()
    with group.worker("two") as two:
        with group.worker("one") as one:
            until_shared(one, two)
            for _ in range(3):
                group.send()
                for node in ("one", "two"):
                    eventually(group.is_whole(node), f"{node} has all of it")
                    group.check(node)
            delivered.clear()
        group.send()
        eventually(has(two, 4, 0), "it has taken over what the other one had")
        eventually(group.is_whole("two"), "and goes on with it")
        group.check("two")
        assert delivered == [], "it had all of it"


def test_what_is_taken_over_in_memory_answers_as_a_standby_unless_its_rows_are_ahead_of_their_position(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateline.worker.restore.store_restore._BATCH_BYTES", 1)
    group.app = counting(persistent=False, table=True, name=group.app.application_id, topic=group.topic)
    advance, is_left = Restorer.advance, threading.Event()
    seen: dict[int, list[tuple[StoreState, bool, int]]] = {}

    def look(restorer: Restorer, timeout_s: float) -> list[tuple[Task, TaskPlan]]:
        if not is_left.is_set():
            return advance(restorer, timeout_s)
        for task, _ in restorer._tasks.values():
            if task.id.partition not in seen:
                seen[task.id.partition] = restored(task)
        return []

    def restored(task: Task) -> list[tuple[StoreState, bool, int]]:
        """What is told of a store before, amid and after the rest of its restore."""
        number, store = task.id.partition, task.stores.by_name["counts"]
        changelog, at = task.topology.changelogs["counts"], task.stores.offsets.committed("counts")
        assert at is not None
        found = list[tuple[StoreState, bool, int]]()

        def note() -> None:
            hosted = two.tasks.hosted("counts", number)
            assert hosted is not None
            offset = -1 if hosted.offset is None else hosted.offset - at
            reached = hosted.store.position(IsolationLevel.READ_COMMITTED).get(group.topic, number)
            found.append((hosted.state, reached == group.ends[number], offset))

        note()
        rest = StoreRestore(RestoredStore(store, partial(task.commit_restored, "counts"), changelog), at + 1, at + 5)
        ended = position_headers(Position.of({TopicPartition(group.topic, number): group.ends[number] + 1}))
        rest.apply([Record(*changelog, at + 2, 1, b"k", b"2", ended)])
        note()
        rest.apply([Record(*changelog, at + 4, 1, b"k", b"3", ended)])
        rest.finish(logging.INFO)
        note()
        return found

    monkeypatch.setattr(Restorer, "advance", look)
    group.send()
    with group.worker("two") as two:
        with group.worker("one") as one:
            until_shared(one, two)
            is_left.set()
            # A look between the end of a rebalance and what the worker hears of it would let go of the rows.
            monkeypatch.setattr(standby_assignment, "_LOOK_INTERVAL_S", HANGING_S)
        eventually(lambda: len(seen) >= 2, "it has taken over what the other one had")
    for told in seen.values():
        (before, has_all, behind), amid, after = told
        assert (before, has_all) == (StoreState.STANDBY, True)
        assert behind >= 0, "a marker may follow the last record"
        assert amid == (StoreState.RESTORING, True, -1)
        assert after == (StoreState.STANDBY, False, 4)


def test_a_node_that_comes_has_all_that_it_will_be_given_before_it_joins(
    group: Group, delivered: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    behind: list[int] = []
    add = StandbyTasks.add

    def note(followed: StandbyTasks, task_id: TaskId) -> bool:
        behind.append(len(followed.begun) - len(followed.caught_up()))
        return add(followed, task_id)

    group.send()
    with group.worker("one") as one:
        eventually(group.is_whole("one"), "one has read all")
        monkeypatch.setattr(StandbyTasks, "add", note)
        with group.worker("two", max__warmup__replicas=1) as two:
            assert has(one, 4, 0)(), "nothing is taken from it while the other one catches up"
            until_shared(one, two)
            assert delivered == []
            assert behind[:2] == [0, 0], "it begins with one when the one before has caught up"
            group.send()
            for node in ("one", "two"):
                eventually(group.is_whole(node), f"{node} has all of it")
                group.check(node)


@long_only("test_standby_assignment.py has what a node that is about to join moves")
def test_one_that_was_about_to_join_and_is_gone_is_given_no_share_of_those_that_come_later(
    group: Group, delivered: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    group.send()
    with group.worker("one") as one:
        eventually(group.is_whole("one"), "one has read all")
        topology = group.app.topology()
        worker = WorkerEntry(topology.digest(), "gone", {}, topology.tasks_digest())
        with (
            monkeypatch.context() as long_ago,
            closing(WorkerEntries(group.log, group.app.application_id, "gone", worker)) as gone,
        ):
            long_ago.setattr(worker_entries, "now_ms", lambda: now_ms() - 60_000)
            gone.say()
            gone.say_standbys(StandbysEntry(frozenset({"0_0", "0_1"}), joining=True))
        with group.worker("two") as two:
            until_shared(one, two)
            assert delivered == [], "two had both of them before it joined"


def test_a_worker_says_what_its_standbys_lack_before_it_joins_too_and_that_it_has_none_when_it_is_drained(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_join, is_held = StandbyAssignment._may_join, threading.Event()
    is_held.set()

    def held(assignment: StandbyAssignment, view: GroupView) -> bool:
        return may_join(assignment, view) and not (is_held.is_set() and assignment._own.name == "two")

    monkeypatch.setattr(StandbyAssignment, "_may_join", held)
    group.send()
    with group.worker("one") as one:
        eventually(group.is_whole("one"), "one has read all")
        with group.worker("two") as two:
            eventually(lambda: [lag.records for lag in group.lags("two").values()] == [0, 0], "it says what it lacks")
            assert has(one, 4, 0)(), "it has not joined"
            is_held.clear()
            until_shared(one, two)
            ask_to_drain(StateDirectory(group.root / "two", group.app.application_id).application, "worker-0")
            eventually(lambda: group.lags("two") == {}, "it follows none any more")


def test_who_waits_for_files_that_nobody_fetches_reads_the_changelogs(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(copied_tasks, "_TAKEN_UP_S", 0.5)
    group.send()
    with group.worker("one") as one, caplog.at_level(logging.INFO):
        eventually(group.is_whole("one"), "one has read all")
        with group.worker("two", acceptable__recovery__lag=0) as two:
            until_shared(one, two)
            eventually(group.is_whole("two"), "it has all of it")
            group.check("two")
            said = [line for line in caplog.messages if "no server of this node fetches it" in line]
            assert len(said) == len({*said}) >= 2, "each is asked for once"


def test_what_another_worker_of_the_same_directory_is_given_is_followed_no_more(group: Group) -> None:
    group.send()
    with group.worker("one", "one-a") as a, group.worker("two") as two:
        eventually(lambda: has(a, 2, 2)() and has(two, 2, 2)(), "each runs two tasks and follows the others")
        with group.worker("one", "one-b") as b:
            eventually(lambda: len(a.tasks.running) + len(b.tasks.running) + len(two.tasks.running) == 4, "all run")
            eventually(lambda: bool(b.tasks.running), "the third one has some")
            own = {task.id for task in (*a.tasks.running, *b.tasks.running)}
            eventually(
                lambda: own.isdisjoint(t.id for t in (*a.standbys.followed.tasks, *b.standbys.followed.tasks)),
                "no directory has a task twice",
            )
            group.send()
            eventually(group.is_whole("one"), "it has all of it")
            group.check("one")


@long_only("test_standby_placement.py has who follows what, by their racks")
@pytest.mark.parametrize("guarantee", ["exactly_once_v2"], indirect=True)
def test_the_second_standby_of_a_task_stands_in_another_rack_as_the_settings_of_the_nodes_name_it(group: Group) -> None:
    group.settings |= {"num.standby.replicas": 2, "rack.aware.assignment.tags": "zone"}
    zones = {"a": "east", "b": "east", "c": "east", "d": "east", "e": "west"}
    group.send()
    with ExitStack() as workers:
        there = {
            name: workers.enter_context(group.worker(name, **{"client.tag.zone": zone, "client.tag.host": name}))
            for name, zone in zones.items()
        }

        def is_settled() -> bool:
            every = [(each.standbys.wanted, each.standbys.followed.caught_up()) for each in there.values()]
            running = [len(each.tasks.running) for each in there.values()]
            copies = sum(len(wanted) for wanted, _ in every)
            return running == [1, 1, 1, 1, 0] and copies == 2 * PARTITIONS and all(w == had for w, had in every)

        eventually(is_settled, "each task runs, has two copies, and no former one is kept")
        # Range gives the four tasks to the first four, and would give e one more only if d were lost.
        assert {task.partition for task in there["e"].standbys.wanted} == {*range(PARTITIONS)}


def test_a_drained_worker_has_given_everything_away_at_once_and_takes_nothing_until_it_is_started_anew(
    group: Group,
) -> None:
    group.send()
    with group.worker("two", **LONG_SESSION) as two:
        for _ in range(2):
            with group.worker("one", **LONG_SESSION) as one:
                until_shared(one, two)
                ask_to_drain(StateDirectory(group.root / "one", group.app.application_id).application, "worker-0")
                eventually(has(two, 4, 0), "the other one has all", LONG_S)
                eventually(has(one, 0, 0), "it has nothing")
                group.send()
                eventually(group.is_whole("two"), "and goes on")
                group.check("two")
                assert has(one, 0, 0)()


def test_a_node_that_is_to_leave_when_it_stops_does_so_at_once(group: Group) -> None:
    group.send()
    with group.worker("two", **LONG_SESSION) as two:
        with group.worker("one", node__leave="true", **LONG_SESSION) as one:
            until_shared(one, two)
        eventually(has(two, 4, 0), "the other one has all", LONG_S)
        group.send()
        eventually(group.is_whole("two"), "and goes on")
        group.check("two")


@long_only("where the test may mount one, the next standby is on a disk that is full")
def test_a_standby_whose_disk_takes_nothing_is_opened_anew_later_and_costs_its_node_nothing_else(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(standby_tasks, "_RETRY_S", 0.5)
    is_full = threading.Event()
    commit = StandbyStore.commit

    def refuse(store: StandbyStore) -> None:
        if is_full.is_set():
            raise RetryLaterError("The disk is full: make room.")
        commit(store)

    monkeypatch.setattr(StandbyStore, "commit", refuse)
    group.send()
    with group.worker("one") as one, group.worker("two") as two:
        until_shared(one, two)
        is_full.set()
        group.send()
        eventually(lambda: "The disk is full" in caplog.text, "it meets the full disk")
        for worker in (one, two):
            node, own = "one" if worker is one else "two", [task.id.partition for task in worker.tasks.running]
            eventually(lambda node=node, own=own: all(group.has(node, n) for n in own), "what it owns goes on")  # type: ignore[misc]
            eventually(lambda node=node: lack_s(group, node, 2.5), "it says for how long what it follows lacks some")  # type: ignore[misc]
        is_full.clear()
        for node in ("one", "two"):
            eventually(group.is_whole(node), f"{node} has all of it")
            group.check(node)
            eventually(lambda node=node: not lack_s(group, node, 2.5), "it lacks nothing")  # type: ignore[misc]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The state directory of the node `two`, on a file system of its own."""
    with new_small_disk(tmp_path / "two", _DISK_MIB) as disk:
        yield disk


@pytest.mark.parametrize("guarantee", ["exactly_once_v2"], indirect=True)
def test_a_standby_on_a_full_disk_waits_until_there_is_room_and_the_owner_elsewhere_goes_on(
    group: Group, small_disk: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(standby_tasks, "_RETRY_S", 0.5)
    monkeypatch.setattr(standby_tasks, "_PAUSE_S", 0.5)
    monkeypatch.setattr(standby_assignment, "_STANDSTILL_S", 600.0)
    group.send()
    with group.worker("one") as one:
        eventually(has(one, PARTITIONS, 0), "it has all tasks")
        monkeypatch.setattr(StandbyAssignment, "_may_join", lambda *_: False)  # the other one follows, and owns nothing
        with group.worker("two"):
            eventually(lambda: [lag.records for lag in group.lags("two").values()] == [0, 0], "it has all of two tasks")
            followed = [int(task.partition("_")[2]) for task in group.lags("two")]
            fill(small_disk)
            while not any("is not followed for" in said and "No space left" in said for said in caplog.messages):
                group.send()
                eventually(group.is_whole("one"), "the owner goes on")
            free(small_disk)
            group.send()
            eventually(lambda: all(group.has("two", n) for n in followed), "it goes on as well")
            group.check("one")
            assert has(one, PARTITIONS, 0)()


def lack_s(group: Group, node: str, seconds: float) -> bool:
    """Whether both that this node follows have lacked something for so long."""
    return [lag.ms is not None and lag.ms > seconds * 1000 for lag in group.lags(node).values()] == [True, True]


@long_only("standbys stay as they are in the next test, in which the changelogs are away")
def test_standbys_stay_as_they_are_while_kafka_does_not_say_how_far_the_group_has_come(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_away, refused = threading.Event(), threading.Semaphore(0)
    committed = KafkaAdmin.committed

    def ask(admin: KafkaAdmin, name: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        if is_away.is_set():
            refused.release()
            raise LogUnavailableError("The broker that keeps the group's offsets is being replaced.")
        return committed(admin, name, partitions)

    monkeypatch.setattr(KafkaAdmin, "committed", ask)
    group.send()
    with group.worker("one") as one, group.worker("two") as two:
        until_shared(one, two)
        followed = [*one.standbys.followed.tasks, *two.standbys.followed.tasks]
        is_away.set()
        for _ in range(6):
            assert refused.acquire(timeout=HANGING_S)
        is_away.clear()
        group.send()
        for node in ("one", "two"):
            eventually(group.is_whole(node), f"{node} has all of it")
            group.check(node)
        assert [*one.standbys.followed.tasks, *two.standbys.followed.tasks] == followed, "none was opened anew"


def test_standbys_stay_as_they_are_when_their_consumer_fails_and_a_new_one_reads_on(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby_tasks, "_RETRY_S", 0.5)
    poll = KafkaConsumer.poll
    readers, failed = list[StandbyTasks](), list[KafkaConsumer]()

    def fail(consumer: KafkaConsumer, max_records: int, timeout_s: float) -> list[Record]:
        records = poll(consumer, max_records, timeout_s)
        if records and len(failed) < 4 and any(each._follower._consumer is consumer for each in readers):
            failed.append(consumer)  # with what it had read
            raise LogUnavailableError("The broker that has the changelogs does not answer in time.")
        return records

    monkeypatch.setattr(KafkaConsumer, "poll", fail)
    group.send()
    with group.worker("one") as one, group.worker("two") as two:
        until_shared(one, two)
        followed = [*one.standbys.followed.tasks, *two.standbys.followed.tasks]
        readers += [one.standbys.followed, two.standbys.followed]
        group.send()
        eventually(lambda: len(failed) == 4, "four have failed")
        for node in ("one", "two"):
            eventually(group.is_whole(node), f"{node} has all of it")
            group.check(node)
        eventually(lambda: has(one, 2, 2)() and has(two, 2, 2)(), "they say that they have caught up")
        assert [*one.standbys.followed.tasks, *two.standbys.followed.tasks] == followed, "none was opened anew"
        assert len({*failed}) == 4, "each but once"


@long_only("it shares a worker's time, and no row depends on that")
def test_a_worker_reads_for_its_standbys_all_the_time_and_half_of_it_beside_work_of_its_own(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance, read = StandbyTasks.advance, StandbyTasks._read
    reads, turns = list[StandbyTasks](), list[tuple[bool, bool]]()

    def read_long(followed: StandbyTasks) -> int:
        records = read(followed)
        reads.append(followed)
        time.sleep(0.02)
        return records

    def note(followed: StandbyTasks, *, beside_work: bool) -> None:
        before = reads.count(followed)
        advance(followed, beside_work=beside_work)
        if followed.ids:
            turns.append((beside_work, reads.count(followed) > before))

    monkeypatch.setattr(StandbyTasks, "_read", read_long)
    monkeypatch.setattr(StandbyTasks, "advance", note)
    group.send()
    with group.worker("one") as one, group.worker("two") as two:
        until_shared(one, two)
        for node in ("one", "two"):
            eventually(group.is_whole(node), f"{node} has all of it")
        turns.clear()
        eventually(lambda: len(turns) > 20, "they look for more")
        assert {*turns} == {(False, True)}, "nothing else is to be done"
        group.send()
        eventually(lambda: (True, False) in turns, "what they own comes first")
        for node in ("one", "two"):
            eventually(group.is_whole(node), f"{node} has all of it")
            group.check(node)


@long_only("the last test here has a changelog that was cut, while its standby runs")
def test_a_standby_that_is_behind_what_its_changelog_still_has_begins_anew(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    changelog = f"{group.app.application_id}-counts-changelog"
    group.send()
    with group.worker("one") as one:
        with group.worker("two") as two:
            until_shared(one, two)
            eventually(group.is_whole("two"), "it has rows that it lacks later")
            followed = {task.id.partition for task in two.standbys.followed.tasks}
        places = [TopicPartition(changelog, n) for n in followed]
        with closing(group.log.admin()) as admin:
            for _ in range(2):
                ends = {place: admin.log_end(place) for place in places}
                group.send()
                eventually(lambda: all(group.has("one", n) for n in followed), "what it owns goes on")
            delete_records(group.servers, admin, ends)  # what is left has every key
        with group.worker("two") as two:
            until_shared(one, two)
            group.send()
            for node in ("one", "two"):
                eventually(group.is_whole(node), f"{node} has all of it")
                group.check(node)
    assert "it is deleted and rebuilt from there" in caplog.text


@long_only("test_emptied_changelogs.py has it of owners, and test_standby_stores.py what a standby lacks")
def test_a_standby_that_has_everything_keeps_its_rows_when_its_changelog_is_emptied(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    changelog = f"{group.app.application_id}-counts-changelog"
    group.send()
    with group.worker("one") as one:
        with group.worker("two") as two:
            until_shared(one, two)
            for node in ("one", "two"):
                eventually(group.is_whole(node), f"{node} has all of it")
        with closing(group.log.admin()) as admin:
            places = [TopicPartition(changelog, n) for n in range(PARTITIONS)]
            delete_records(group.servers, admin, {place: admin.log_end(place) for place in places})
        with group.worker("two") as two:
            until_shared(one, two)
            for node in ("one", "two"):
                eventually(group.is_whole(node), f"{node} has all of it")
                group.check(node)
    assert "rebuilt from there" not in caplog.text


@long_only("test_missed_input.py has such a store, and test_standby_stores.py what a standby lacks")
def test_a_standby_follows_a_store_that_gets_what_it_missed_while_it_was_not_declared(group: Group) -> None:
    declared = group.app
    group.send()
    with group.worker("one") as one, group.worker("two") as two:
        until_shared(one, two)
        for node in ("one", "two"):
            eventually(group.is_whole(node), f"{node} has all of it")
    group.app = counting(name=declared.application_id, topic=group.topic, store="others", table=True)
    group.send()
    with group.worker("one"):
        others = Stores(group.app, group.config("one"), group.root / "scratch-others")
        with closing(others):
            wanted = group.ends
            eventually(
                lambda: all(others.offset("others", group.topic, n) == at for n, at in wanted.items()), "it is read"
            )
    group.app = declared
    group.send()
    with group.worker("one") as one:
        with group.worker("two") as two:
            until_shared(one, two)
            for node in ("one", "two"):
                eventually(group.is_whole(node), f"{node} has all of it")
                group.check(node)
        group.send()
        eventually(group.is_whole("one"), "it has taken over what the other one had")
        group.check("one")


def test_a_standby_under_which_its_changelog_is_cut_begins_anew_while_it_runs(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    changelog, read, is_held = f"{group.app.application_id}-counts-changelog", StandbyTasks._read, threading.Event()

    def read_later(followed: StandbyTasks) -> int:
        if not is_held.is_set():
            return read(followed)
        followed._follower.close()  # it would have fetched what is to come
        return 0

    monkeypatch.setattr(StandbyTasks, "_read", read_later)
    group.send()
    with group.worker("one") as one, group.worker("two") as two:
        until_shared(one, two)
        is_held.set()
        places = [TopicPartition(changelog, n) for n in range(PARTITIONS)]
        with closing(group.log.admin()) as admin:
            for _ in range(2):
                ends = {place: admin.log_end(place) for place in places}
                group.send()
                for worker in (one, two):
                    node = "one" if worker is one else "two"
                    own = [task.id.partition for task in worker.tasks.running]
                    eventually(lambda node=node, own=own: all(group.has(node, n) for n in own), "what it owns goes on")  # type: ignore[misc]
            delete_records(group.servers, admin, ends)  # what is left has every key
        is_held.clear()
        for node in ("one", "two"):
            eventually(group.is_whole(node), f"{node} has all of it")
            group.check(node)
        eventually(lambda: has(one, 2, 2)() and has(two, 2, 2)(), "each has what it had")
    assert "Standbys are planned again" in caplog.text
    assert "it is deleted and rebuilt from there" in caplog.text
