"""Workers that are killed with `kill -9` between two given steps, and what the next start makes of it.

Steps of commits (held to the oracle of `crash_watch` all the time), of a format upgrade, and of the migration of the
offsets and Positions that another program kept in files.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from rocksdict import Rdict

from stateline.config.loading import load_config
from stateline.config.settings import Config
from stateline.dsl.app import App
from stateline.log import Log, open_log
from stateline_store import IsolationLevel, KeyValueStore, Position, StateDirectory, StoreContext, TopicPartition
from stateline_store.files.offset_checkpoint import read_offset_checkpoint, write_offset_checkpoint
from stateline_store.rocksdb.offline_store import OfflineStore
from stateline_store.rocksdb.options import DEFAULT_TUNING, primary_options
from stateline_store.rows.headers import split_headers
from stateline_store.rows.timestamped_rows import split
from stateline_store.scan import EVERY_KEY
from support import TESTS
from support.apps import steps_app
from support.apps.own_stores import OwnStore
from support.oracles.crash_watch import WatchedRun, runs
from support.processes.forked import Forked
from support.processes.ports import free_port
from support.processes.running_worker import Stores, create, eventually, produce, read_all
from support.run.length import long_or_short
from support.run.patience import HANGING_S

KILLED = -signal.SIGKILL
CALLERS_MISTAKE = 2

# The worker has two tasks of two stores: the numbers say which batch or which task of a commit.
COMMIT_STEPS = {
    "at_least_once": [
        "commit:begun", "commit:still-owner", "commit:changes-produced", "commit:changes-flushed",
        "commit:unlogged-committed", "commit:log-committed",
    ],
    "exactly_once_v2": [
        "commit:begun", "commit:changes-produced", "commit:changes-flushed", "commit:offsets-sent",
        "commit:log-committed",
    ],
}  # fmt: skip
STORE_STEPS = [
    "commit:batch-ready#5", "commit:batch-written#5", "commit:batch-written#6", "commit:store-committed#3",
    "commit:task-committed#3", "commit:task-committed#4", "commit:store-announced#9", "commit:task-announced#3",
]  # fmt: skip
ON_A_BROKER = ["commit:changes-flushed#2", "commit:log-committed#2", "commit:batch-written#5"]


def ends_killed(worker: Forked, output: Path, what: str) -> None:
    eventually(lambda: worker.poll() is not None, f"the worker comes to {what}: {output.read_text()[-2_000:]}")
    assert worker.returncode == KILLED, f"{what}: {output.read_text()[-2_000:]}"


@pytest.mark.parametrize("guarantee", list(COMMIT_STEPS))
def test_a_worker_killed_after_each_step_of_a_commit_keeps_every_promise(
    bootstrap: str, log: Log, guarantee: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [f"{step}#2" for step in COMMIT_STEPS[guarantee]] + STORE_STEPS
    steps = steps if bootstrap.startswith("embedded") else ON_A_BROKER
    with WatchedRun(bootstrap, log, guarantee, tmp_path) as run:
        for step in steps:
            monkeypatch.setenv("STATELINE_CRASH_AT", step)
            ends_killed(run.start_worker(), run.output, step)
        monkeypatch.delenv("STATELINE_CRASH_AT")
        run.work_off()
    assert run.watcher.moves >= len(steps), "the watcher saw too little to mean anything"
    run.check_forwarded()


@pytest.mark.parametrize("guarantee", list(COMMIT_STEPS))
def test_a_store_with_headers_has_those_of_its_records_after_a_kill_at_each_step_of_a_commit(
    embedded: Steps, guarantee: str
) -> None:
    steps, setting = embedded, f"processing.guarantee={guarantee}"
    steps.settings.append(setting)
    steps.send(3, keys=1, first=100)  # before there were headers, and not written again
    steps.work_off(timestamped=True)
    newest: dict[bytes, bytes] = {}
    producer = steps.log.producer()
    for number, step in enumerate([*COMMIT_STEPS[guarantee], "commit:batch-ready", "commit:batch-written"]):
        for key in (b"k%d" % n for n in range(number, number + 20)):
            newest[key] = b"%d" % steps.sent
            own = [("sent", newest[key]), ("e", bytes(8)), ("t", None)]  # of the names that a commit's own have
            value, at_ms = bytes(7) + b"\1", 1_600_000_000_000 + steps.sent
            producer.produce(steps.source.topic, key, value, timestamp_ms=at_ms, headers=own)
            steps.sent += 1
        producer.flush()
        steps.killed_at(step, headers=True)
    producer.close()
    steps.work_off(headers=True)
    found = {key: split_headers(split(stored).value)[1] for key, stored in steps.rows("sums-v2").items()}
    assert found.pop(b"k100") == ()
    assert found == {key: (("sent", sent), ("e", bytes(8)), ("t", None)) for key, sent in newest.items()}
    shutil.rmtree(steps.task())
    steps.work_off(headers=True)
    assert steps.restored() > len(newest)
    restored = {key: split_headers(split(stored).value)[1] for key, stored in steps.rows("sums-v2").items()}
    assert restored == {b"k100": (), **found}


class Steps:
    """One run of `steps_app`: its input, what it must come to, and workers as processes on one state directory."""

    def __init__(self, bootstrap: str, log: Log, root: Path) -> None:
        self.run, self.log, self.root, self.output = uuid4().hex[:8], log, root, root / "worker.log"
        self.source = TopicPartition(f"numbers-{self.run}", 0)
        self.changelog = TopicPartition(f"steps-{self.run}-sums-changelog", 0)
        self.settings = [
            f"bootstrap.servers={bootstrap}",
            "processing.guarantee=exactly_once_v2",
            f"state.dir={root / 'state'}",
            "commit.interval.ms=20",
            "group.instance.id=the-worker",
        ]
        self.sums: dict[bytes, int] = {}
        self.stamps: dict[bytes, int] = {}
        self.sent = 0
        self._random = random.Random(4)
        self._scratch = root / "scratch"
        create(log, {self.source.topic: 1, f"before-{self.run}": 1})

    def config(self, *settings: str) -> Config:
        overrides = [*self.settings, *settings]
        return load_config(f"steps-{self.run}", environment={}, overrides=overrides)

    def task(self, name: str = "0_0") -> Path:
        return StateDirectory(self.config().state_dir, f"steps-{self.run}").task(name)

    def send(self, count: int, keys: int = 40, first: int = 0) -> None:
        """Numbers for these keys, a millisecond apart."""
        records = list[tuple[bytes, bytes, int]]()
        for _ in range(count):
            key, value = b"k%d" % self._random.randrange(first, first + keys), self._random.randrange(1_000)
            self.sums[key] = self.sums.get(key, 0) + value
            self.stamps[key] = 1_600_000_000_000 + self.sent
            records.append((key, value.to_bytes(8, "big"), self.stamps[key]))
            self.sent += 1
        produce(self.log, self.source.topic, records)

    def start(self, *settings: str, crash_at: str = "", command: str = "worker", **declared: Any) -> Forked:
        """A worker, or another command, with the application as it is declared."""
        environment = {**os.environ, "STEPS_RUN": self.run, "STEPS_SLICE": "5", "STATELINE_CRASH_AT": crash_at}
        environment |= {f"STEPS_{name.upper()}": "1" for name, wanted in declared.items() if wanted}
        if not crash_at:
            del environment["STATELINE_CRASH_AT"]
        arguments = [f"--set={setting}" for setting in (*self.settings, *settings)]
        with self.output.open("ab") as file:
            command_line = [command, "support.apps.steps_app:app", *arguments]
            return Forked(command_line, cwd=TESTS, env=environment, output=file.fileno())

    def killed_at(self, step: str, *settings: str, **declared: Any) -> None:
        ends_killed(self.start(*settings, crash_at=step, **declared), self.output, step)

    def until(self, condition: Callable[[], bool], what: str, *settings: str, **declared: Any) -> None:
        """Run a worker until the condition holds, then stop it."""
        worker = self.start(*settings, **declared)
        try:
            application = self.task().parent
            eventually(lambda: worker.poll() is not None or (runs(worker, application) and condition()), what)
            assert worker.poll() is None, self.output.read_text()[-2_000:]
            worker.terminate()
            assert worker.wait(HANGING_S) == 0, self.output.read_text()[-2_000:]
        finally:
            worker.kill()

    def work_off(self, **declared: Any) -> None:
        """Run a worker until all that was sent is committed."""
        app = steps_app.build(self.run, **declared)
        with closing(self.stores(app)) as found:
            self.until(lambda: found.offset("sums", *self.source) == self.sent - 1, "all is committed", **declared)

    def stores(self, app: App, *settings: str) -> Stores:
        return Stores(app, self.config(*settings), self._scratch / uuid4().hex)

    def rows(self, name: str) -> dict[bytes, bytes]:
        with OfflineStore(self.task() / "rocksdb" / name) as store, store.scan(EVERY_KEY) as scan:
            return dict(scan)

    def restored(self) -> int:
        """How many changelog records the workers say that they have restored. Markers of transactions are none."""
        return sum(map(int, re.findall(r"Restored \S+ from \S+: (\d+) records", self.output.read_text())))

    def totals(self) -> dict[bytes, bytes]:
        """What the store's rows must be in the end."""
        return {key: struct.pack(">q", total) for key, total in self.sums.items()}


BUILD_STEPS = [
    "upgrade:build-opened", "upgrade:build-advanced", "upgrade:build-advanced#3", "upgrade:build-ready",
]  # fmt: skip
REMOVAL_STEPS = [
    "upgrade:plain-withdrawn", "upgrade:plain-moved", "upgrade:notice-removed", "upgrade:plain-deleted",
]  # fmt: skip
IN_PLACE = ("upgrade.from=v1", "upgrade.mode=in_place")


@pytest.mark.parametrize("bootstrap", long_or_short(["embedded", "kafka"], ["embedded"]), indirect=True)
def test_an_upgrade_in_place_killed_at_every_step_ends_as_if_it_had_not_been(
    bootstrap: str, log: Log, tmp_path: Path
) -> None:
    steps = Steps(bootstrap, log, tmp_path)
    steps.send(5, keys=1, first=100)  # a key that is not written again
    steps.send(200)
    steps.work_off()
    unchanged = steps.totals()[b"k100"]
    with_new_input: dict[bytes, int] = {}
    for step in BUILD_STEPS:
        steps.send(20)
        with_new_input = dict(steps.stamps)
        steps.killed_at(step, *IN_PLACE, timestamped=True)
        assert (steps.task() / "rocksdb" / "sums").exists()
    _serves_both(steps, unchanged)
    for step in REMOVAL_STEPS:
        steps.send(20)
        steps.killed_at(step, timestamped=True)
    steps.send(20)
    steps.work_off(timestamped=True)
    found = {key: split(stored) for key, stored in steps.rows("sums-v2").items()}
    assert {key: value for key, (value, _) in found.items()} == steps.totals()
    newest = {r.key: r.timestamp_ms for r in read_all(log, steps.changelog.topic, 1)}
    assert {key: at for key, (_, at) in found.items()} == newest
    late = [key for key, at in steps.stamps.items() if at >= max(with_new_input.values())]
    assert {key: found[key].timestamp for key in late} == {key: steps.stamps[key] for key in late}
    assert sorted(path.name for path in (steps.task() / "rocksdb").iterdir()) == ["sums-v2"]
    assert not [path.name for path in steps.task().iterdir() if path.name.startswith((".wiped", "sums.notice"))]


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Steps]:
    bootstrap = f"embedded:{tmp_path / 'log.db'}"
    with closing(open_log(bootstrap, tmp_path)) as log:
        yield Steps(bootstrap, log, tmp_path)


def test_an_offline_upgrade_killed_at_every_step_ends_as_if_it_had_not_been(embedded: Steps) -> None:
    steps = embedded
    steps.send(200)
    steps.work_off()
    plain = steps.task() / "rocksdb" / "sums"
    for step in (".checkpoint:removed", "commit:batch-ready", "commit:batch-written"):
        steps.killed_at(step, timestamped=True)
        assert steps.rows("sums") == steps.totals(), "the plain files stay until the others are complete"
    for step in REMOVAL_STEPS:
        steps.killed_at(step, timestamped=True)
    assert not plain.exists()
    assert steps.restored() == 0, "what was restored before a kill is not restored again"
    steps.send(20)
    steps.work_off(timestamped=True)
    newest = {r.key: r.timestamp_ms for r in read_all(steps.log, steps.changelog.topic, 1)}
    found = {key: split(stored) for key, stored in steps.rows("sums-v2").items()}
    assert {key: value for key, (value, _) in found.items()} == steps.totals()
    assert {key: at for key, (_, at) in found.items()} == newest


def _serves_both(steps: Steps, unchanged: bytes) -> None:
    """While the files are built, a server with the workers' settings answers from the plain ones."""
    value = int.from_bytes(unchanged, "big")
    port, worker = free_port(), steps.start(*IN_PLACE, timestamped=True)
    server = steps.start(*IN_PLACE, f"server.port={port}", command="serve", timestamped=True)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANGING_S) as client:

            def answers() -> bool:
                try:
                    found = client.get("/v1/stores/sums/keys/k100")
                except httpx.TransportError:
                    return False
                body = found.json()
                return (found.status_code, body.get("value"), body.get("timestamp")) == (200, value, None)

            eventually(
                lambda: runs(worker, steps.task().parent) and answers(), "the server answers without a timestamp"
            )
        for process in (worker, server):
            process.terminate()
            assert process.wait(HANGING_S) == 0, steps.output.read_text()[-2_000:]
    finally:
        worker.kill()
        server.kill()


OPENING_STEPS = long_or_short(
    ["commit:batch-ready", "commit:batch-written", "position:taken", "position:removed", "commit:batch-ready#2",
     "commit:batch-written#2", "checkpoint:offset-taken", ".checkpoint:draft-created", ".checkpoint:draft-written",
     ".checkpoint:renamed"],
    ["commit:batch-written", "position:taken", "commit:batch-written#2", "checkpoint:offset-taken",
     ".checkpoint:draft-written"],
)  # fmt: skip
LATER_STEPS = [
    "commit:store-committed#1",
    "commit:store-committed#2",
    ".checkpoint:draft-written#2",
    ".checkpoint:renamed#2",
]


@pytest.fixture
def migrating(embedded: Steps) -> Steps:
    """A state directory as a program leaves it that keeps offsets and Positions in files."""
    steps = embedded
    steps.send(200)
    steps.work_off(notes=True)
    rows = steps.rows("sums")
    with OfflineStore(steps.task() / "rocksdb" / "sums") as store:
        commit = store.commit
    assert rows == steps.totals()
    shutil.rmtree(steps.task() / "rocksdb" / "sums")
    (steps.task() / "sums.notice").unlink()
    bare = Rdict(str(steps.task() / "rocksdb" / "sums"), primary_options(DEFAULT_TUNING))
    for key, value in rows.items():
        bare.put(key, value)
    bare.close()
    assert read_offset_checkpoint(steps.task() / ".checkpoint")[steps.changelog] == commit.offsets[steps.changelog]
    write_offset_checkpoint(steps.task() / "sums.position", dict(commit.position))
    shutil.copytree(steps.root / "state", steps.root / "prepared")
    return steps


def test_offsets_and_positions_are_taken_over_from_files_whatever_step_the_worker_is_killed_at(
    migrating: Steps,
) -> None:
    steps, state = migrating, migrating.config().state_dir
    wanted = read_offset_checkpoint(steps.task() / ".checkpoint")
    for step in OPENING_STEPS:
        shutil.rmtree(state)
        shutil.copytree(state.with_name("prepared"), state)
        steps.output.write_text("")
        steps.killed_at(step, notes=True)
        assert _after_an_opening(steps) == Position.of({steps.source: steps.sent - 1}), step
        steps.work_off(notes=True)
        assert steps.restored() == 0, step
        assert "emptied" not in steps.output.read_text(), step
        _check_migrated(steps, wanted, Position.of({steps.source: steps.sent - 1}))


def test_a_store_that_leaves_its_offset_to_the_task_survives_a_kill_at_each_step_of_a_commit(migrating: Steps) -> None:
    steps = migrating
    for step in LATER_STEPS:
        steps.send(20)
        steps.killed_at(step, notes=True)
    steps.work_off(notes=True)
    _check_migrated(steps, None, Position.of({steps.source: steps.sent - 1}))


def _after_an_opening(steps: Steps) -> Position:
    """The Position of the store as the next opening finds it; looked at in a copy."""
    copy = steps.root / uuid4().hex
    shutil.copytree(steps.task(), copy)
    with closing(KeyValueStore("sums")) as store:
        store.init(StoreContext("0_0", copy))
        return store.position(IsolationLevel.READ_COMMITTED)


def _check_migrated(steps: Steps, offsets: Mapping[TopicPartition, int] | None, position: Position) -> None:
    with OfflineStore(steps.task() / "rocksdb" / "sums") as store:
        assert store.commit.position == position
        found = read_offset_checkpoint(steps.task() / ".checkpoint")
        assert found[steps.changelog] == store.commit.offsets[steps.changelog]
    assert offsets is None or found == offsets
    assert steps.rows("sums") == steps.totals()
    notes = OwnStore("notes", transactional=True, manages_offsets=False)
    notes.init(StoreContext("0_0", steps.task()))
    assert notes.rows() == {key.decode(): str(total) for key, total in steps.sums.items()}
    assert not (steps.task() / "sums.position").exists()
    assert not (steps.task() / ".checkpoint.tmp").exists()


def test_a_worker_that_may_not_move_stores_ends_as_one_that_its_user_must_mend(embedded: Steps) -> None:
    steps = embedded
    steps.send(20)
    steps.work_off()
    refused = steps.start("automatic.state.relocation=false", first=True)
    assert refused.wait(HANGING_S) == CALLERS_MISTAKE
    assert f"store 'sums' is in {steps.task('0_0')} and should be in {steps.task('1_0')}" in steps.output.read_text()
    assert steps.rows("sums") == steps.totals()
    steps.send(20)
    steps.output.write_text("")
    steps.work_off(first=True)
    assert f"Store 'sums' moved from {steps.task('0_0')} to {steps.task('1_0')}" in steps.output.read_text()
    assert steps.restored() == 0
