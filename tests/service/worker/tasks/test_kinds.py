"""Every kind of store in a running worker: equal to an oracle after restarts, a lost disk, failed records and kills."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from service.worker.faults import Watched
from stateline.log import Log, open_log
from stateline.worker.tasks.task import TaskState
from stateline_store import (
    IsolationLevel,
    SessionStore,
    TransactionalStore,
    VersionedReads,
    VersionedStore,
    WindowStore,
)
from support import TESTS
from support.apps import kinds_app
from support.apps.kinds_app import BOOM, RETENTION_MS, Event, Oracle
from support.processes.forked import Forked
from support.processes.running_worker import configured, create, produce
from support.run.length import long_only, long_or_short
from support.run.patience import HANGING_S

COMMITTED = IsolationLevel.READ_COMMITTED
GUARANTEES = ("at_least_once", "exactly_once_v2")
# A whole number of segments of every store, and not long ago: a broker deletes windows that are older than it keeps.
BASE_MS = (time.time_ns() // 1_000_000 // 3_600_000 - 2) * 3_600_000


@dataclass(frozen=True)
class Setting:
    """Where and how the application runs."""

    log: str
    guarantee: str
    persistent: bool

    def __str__(self) -> str:
        return f"{self.log}-{self.guarantee}-{'rocksdb' if self.persistent else 'memory'}"


SETTINGS = long_or_short(
    [
        *(Setting("embedded", guarantee, disk) for guarantee in GUARANTEES for disk in (True, False)),
        *(Setting("kafka", guarantee, True) for guarantee in GUARANTEES),
        Setting("kafka", "exactly_once_v2", False),
    ],
    [
        *(Setting("embedded", "at_least_once", disk) for disk in (True, False)),
        Setting("kafka", "exactly_once_v2", True),
    ],
)


def events(count: int, first: int = 0) -> list[Event]:
    """Of five keys, two seconds apart: one in five out of order, one in ten (at most) far too late, some deletes."""
    chance = random.Random(first)
    made: list[Event] = []
    for n in range(first, first + count):
        back = chance.choices([0, chance.randrange(100_000), chance.randrange(900_000)], [7, 2, 1])[0]
        value = None if chance.random() < 0.1 else n
        made.append((f"k{chance.randrange(5)}", value, max(BASE_MS, BASE_MS + n * 2_000 - back)))
    return made


class Scene:
    """One run of the application: its log, its directory, and what its input should have made of its stores."""

    def __init__(self, setting: Setting, request: pytest.FixtureRequest, root: Path, **settings: Any) -> None:
        self.run = uuid4().hex[:8]
        self.servers = f"embedded:{root / 'log.db'}"
        if setting.log == "kafka":
            self.servers = request.getfixturevalue("kafka_broker").bootstrap_servers
        # Who comes back without its disk waits for its own name until the session has ended.
        self.log: Log = open_log(self.servers, root, session_timeout_ms=3_000)
        self.app = kinds_app.build(self.run, persistent=setting.persistent)
        self.config = configured(
            self.app,
            root / "state",
            processing__guarantee=setting.guarantee,
            group__instance__id="the-worker",
            session__timeout__ms=3_000,
            statestore__uncommitted__max__bytes=60_000,  # about six commits of each batch of records
            **settings,
        )
        self.oracle = Oracle()
        self.topic = f"events-{self.run}"
        self.end = 0
        create(self.log, {self.topic: 1})

    def send(self, records: list[Event]) -> None:
        """Write input, and tell the oracle."""
        written = [(key.encode(), None if v is None else json.dumps(v).encode(), at) for key, v, at in records]
        produce(self.log, self.topic, written)
        self.oracle.process(records)
        self.end += len(records)

    def work(self, *steps: Callable[[Watched], None]) -> None:
        """Run a worker; each time that it has committed all there is, take the next step; then stop it."""
        worker, left = Watched(self.app, self.config, self.log, instance="watched"), list(steps)

        def done() -> bool:
            if self._is_at_end(worker):
                left.pop(0)(worker)
            return not left

        worker.reach(done)

    def check(self, worker: Watched) -> None:
        """The stores hold what the oracle holds."""
        wanted = self.oracle.contents()
        assert wanted.keys() == hosted(worker).keys()
        for name, store in hosted(worker).items():
            assert contents(store) == wanted[name], name

    def lose_disk(self) -> None:
        shutil.rmtree(self.config.state_dir)

    def _is_at_end(self, worker: Watched) -> bool:
        if not any(task.state is TaskState.RUNNING for task in worker.tasks.all.values()):
            return False
        positions = [store.position(COMMITTED).get(self.topic, 0) for store in hosted(worker).values()]
        return all((-1 if offset is None else offset) + 1 >= self.end for offset in positions)


Make = Callable[..., Scene]


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(
        "stateline.worker.restore.changelog_follower.SLICE_RECORDS", 50
    )  # a restore has many slices and commits, too
    monkeypatch.setattr("stateline.worker.restore.store_restore._BATCH_BYTES", 10_000)
    made: list[Scene] = []

    def scene(setting: Setting, **settings: Any) -> Scene:
        made.append(Scene(setting, request, tmp_path, **settings))
        return made[-1]

    yield scene
    for each in made:
        each.log.close()


def hosted(worker: Watched) -> dict[str, TransactionalStore]:
    (task,) = worker.tasks.all.values()
    return dict(task.stores.transactional)


def contents(store: TransactionalStore) -> tuple[int, list[Any]]:
    """Stream time and committed rows, as the oracle gives them."""
    reader = store.reader(COMMITTED)
    match store:
        case WindowStore():
            windows = sorted(store.reads(COMMITTED).all(), key=lambda row: (row[0].key, row[0].start_ms))
            rows: list[Any] = [(w.key.decode(), w.start_ms, *typed(store, data)) for w, data in windows]
        case SessionStore():
            found = sorted(store.reads(COMMITTED).all(), key=lambda row: (row[0].key, row[0].end_ms, row[0].start_ms))
            rows = [(s.key.decode(), s.start_ms, s.end_ms, *typed(store, data)) for s, data in found]
        case VersionedStore():
            reads = VersionedReads(reader, store.segments)
            keys = [f"k{n}" for n in range(5)]
            histories = [
                (key, [(json.loads(v), at, to) for v, at, to in reads.get_versions(key.encode())]) for key in keys
            ]
            rows = [(key, history) for key, history in histories if history]
        case _:
            raise AssertionError(store)
    return reader.stream_time_ms, rows


def typed(store: TransactionalStore, data: bytes) -> tuple[Any, ...]:
    if not store.timestamped:
        return (json.loads(data),)
    return json.loads(data[8:]), int.from_bytes(data[:8], "big", signed=True)


def dropped(worker: Watched) -> dict[str, int]:
    counted = {n: s for n, s in hosted(worker).items() if isinstance(s, WindowStore | SessionStore | VersionedStore)}
    return {name: store.dropped_records for name, store in counted.items() if name != "table"}


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_stores_of_every_kind_hold_what_their_input_makes_of_them_over_restarts_and_a_lost_disk(
    make: Make, setting: Setting
) -> None:
    scene = make(setting)
    first, second, third = events(250), events(250, 250), events(250, 500)

    def counts_what_it_dropped(worker: Watched) -> None:
        assert all(store.commit_number > 3 for store in hosted(worker).values()), "segments expire between commits"
        assert dropped(worker) == scene.oracle.dropped()
        assert all(scene.oracle.dropped().values()), "the input has records that are too late for each kind"

    scene.send(first)
    scene.work(scene.check, counts_what_it_dropped)
    # Opened again: what was committed is there, and so is stream time, by which what comes is too late or not.
    scene.work(scene.check, lambda _: scene.send(second), scene.check)
    scene.lose_disk()
    scene.work(scene.check, lambda _: scene.send(third), scene.check)


def raising(records: list[Event]) -> list[Event]:
    """Every seventh record fails, and every fourteenth would have moved stream time past all windows."""
    far = 10 * RETENTION_MS
    return [(k, BOOM, at + far * (n % 14 == 0)) if n % 7 == 0 else (k, v, at) for n, (k, v, at) in enumerate(records)]


@pytest.mark.parametrize("persistent", [True, False], ids=["rocksdb", "memory"])
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_a_record_that_is_skipped_leaves_nothing_in_a_store_of_any_kind_nor_in_its_changelog(
    make: Make, guarantee: str, persistent: bool
) -> None:
    scene = make(Setting("embedded", guarantee, persistent), processing__exception__handler="skip")
    scene.send(raising(events(100)))
    scene.work(scene.check)
    scene.lose_disk()
    scene.work(scene.check, lambda _: scene.send(raising(events(100, 100))), scene.check)


def killed(scene: Scene, kill_at: str, root: Path) -> None:
    """Run the application in a process of its own, which kills itself there."""
    settings = {
        "bootstrap.servers": scene.servers,
        "processing.guarantee": "exactly_once_v2",
        "state.dir": str(scene.config.state_dir),
        "commit.interval.ms": "1",
        "group.instance.id": "the-worker",
        "session.timeout.ms": "6000",
    }
    command = ["worker", "support.apps.kinds_app:app"]
    command += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    environment = {**os.environ, "KINDS_RUN": scene.run, "STATELINE_CRASH_AT": kill_at}
    with (root / "worker.log").open("ab") as output:
        process = Forked(command, cwd=TESTS, env=environment, output=output.fileno())
        try:
            ended = process.wait(HANGING_S)
        finally:
            process.kill()
            process.wait()
    assert ended == -signal.SIGKILL, (root / "worker.log").read_text()[-2_000:]


@pytest.mark.parametrize(
    "log", ["embedded", pytest.param("kafka", marks=long_only("test_worker_crashes.py kills workers on a broker"))]
)
def test_a_worker_that_is_killed_at_any_step_under_exactly_once_counts_nothing_twice_in_any_kind(
    make: Make, log: str, tmp_path: Path
) -> None:
    scene = make(Setting(log, "exactly_once_v2", True))
    for n, kill_at in enumerate(["kinds:record#50", "commit:changes-flushed", "commit:log-committed"]):
        scene.send(events(100, n * 100))
        killed(scene, kill_at, tmp_path)
    scene.work(scene.check, lambda _: scene.send(events(100, 300)), scene.check)
    scene.lose_disk()
    scene.work(scene.check)
