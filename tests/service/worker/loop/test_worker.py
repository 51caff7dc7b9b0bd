"""A worker over a log: what it keeps, commits, restores, and does with records that fail. On both logs."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from service.worker.faults import NEVER_MS
from stateline import serdes, stores
from stateline.config.settings import Config
from stateline.deployment.unix_sockets import address
from stateline.deployment.workers.instance_file import read_instances
from stateline.dsl.app import App
from stateline.log import Log, open_log
from stateline.log.embedded import EmbeddedLog
from stateline.processing.store_views import StoreView
from stateline.query.values import Terms
from stateline.query.wire import WireRequest, encode_request, frame
from stateline.worker import InputRecord, Output
from stateline.worker.commit import commit_order
from stateline.worker.commit.commit_order import Committer
from stateline.worker.files.registration import socket_path
from stateline.worker.loop.pace import SlicePace
from stateline.worker.loop.worker import Worker
from stateline.worker.tasks.task import Task
from stateline_store import (
    CountQuery,
    IsolationLevel,
    LockedError,
    LogUnavailableError,
    PoisonedError,
    RecordError,
    StateDirectory,
    TopicPartition,
    TopologyError,
)
from support.processes.running_worker import Stores, configured, create, eventually, produce, read_all, running
from support.run.length import long_only, on_one_log
from support.run.patience import HANGING_S

PARTITIONS = 2


@pytest.fixture(params=["at_least_once", "exactly_once_v2"])
def guarantee(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def counting_app(name: str) -> App:
    """Counts records per key in a logged store, keeps the newest value as a table, forwards every tenth."""
    app = App(name)
    numbers = app.topic(f"{name}-in", key=serdes.string, value=serdes.int64)
    tenths = app.topic(f"{name}-out", key=serdes.string, value=serdes.int64)
    app.table(numbers, store="newest")
    counts = app.store(stores.timestamped_key_value("counts", key=serdes.string, value=serdes.json))

    @app.process(numbers, stores=[counts], forwards=[tenths])
    def count(record: InputRecord, counts: StoreView, tenths: Output) -> None:
        before = counts.get(record.key) or {"n": 0, "sum": 0}
        after = {"n": before["n"] + 1, "sum": before["sum"] + record.value}
        counts.put(record.key, after)
        if after["n"] % 10 == 0:
            tenths.forward(record.key, after["sum"])

    return app


def numbers(count: int, first: int = 0) -> list[tuple[bytes, bytes, int]]:
    return [(b"k%d" % (n % 7), serdes.int64.serialize(n), 1_000 + n) for n in range(first, first + count)]


def expected(records: list[tuple[bytes, bytes, int]]) -> dict[bytes, dict[str, int]]:
    totals: dict[bytes, dict[str, int]] = {}
    for key, value, _ in records:
        total = totals.setdefault(key, {"n": 0, "sum": 0})
        total["n"] += 1
        total["sum"] += serdes.int64.deserialize(value)
    return totals


def decoded(rows: dict[bytes, bytes]) -> dict[bytes, Any]:
    return {key: json.loads(value) for key, value in rows.items()}


class Scene:
    """One application with its topics, and readers of its stores."""

    def __init__(self, log: Log, tmp_path: Path, guarantee: str, **settings: Any) -> None:
        self.log = log
        self.app = counting_app(f"app-{uuid4().hex[:8]}")
        self.config: Config = configured(self.app, tmp_path / "state", processing__guarantee=guarantee, **settings)
        self.topic = f"{self.app.application_id}-in"
        create(log, {self.topic: PARTITIONS, f"{self.app.application_id}-out": PARTITIONS})
        self.stores = Stores(self.app, self.config, tmp_path / "scratch")

    def wait_for(self, offsets: dict[TopicPartition, int]) -> None:
        for (topic, partition), offset in offsets.items():
            for store in ("counts", "newest"):
                eventually(
                    partial(self._reached, store, topic, partition, offset),
                    f"{store} reaches {topic}-{partition} {offset}",
                )

    def _reached(self, store: str, topic: str, partition: int, offset: int) -> bool:
        return self.stores.offset(store, topic, partition) >= offset

    def counts(self) -> dict[bytes, Any]:
        return decoded(self.stores.rows("counts", PARTITIONS))


def test_what_was_read_is_kept_counted_forwarded_and_visible_with_its_position(
    log: Log, guarantee: str, tmp_path: Path
) -> None:
    scene = Scene(log, tmp_path, guarantee)
    records = numbers(500)
    with running(scene.app, scene.config, log):
        scene.wait_for(produce(log, scene.topic, records))
        assert scene.counts() == expected(records)
        newest = {key: value for key, value, _ in records}
        assert scene.stores.rows("newest", PARTITIONS) == newest
    wanted, out = sum(total["n"] // 10 for total in expected(records).values()), f"{scene.app.application_id}-out"
    # A broker answers that a transaction is committed before readers see all of it.
    eventually(lambda: len(read_all(log, out, PARTITIONS)) >= wanted, "all that was forwarded is there")
    assert len(read_all(log, out, PARTITIONS)) == wanted
    scene.stores.close()


def test_a_stopped_worker_has_committed_everything_and_its_successor_goes_on_without_a_restore(
    log: Log, guarantee: str, tmp_path: Path
) -> None:
    scene = Scene(log, tmp_path, guarantee)
    first, second = numbers(300), numbers(200, first=300)
    with running(scene.app, scene.config, log):
        scene.wait_for(produce(log, scene.topic, first))
    with running(scene.app, scene.config, log):
        scene.wait_for(produce(log, scene.topic, second))
    assert scene.counts() == expected(first + second)
    scene.stores.close()


@on_one_log("embedded", "test_kinds.py loses a disk on Kafka")
def test_a_lost_disk_is_rebuilt_from_the_changelog_with_its_position(log: Log, guarantee: str, tmp_path: Path) -> None:
    scene = Scene(log, tmp_path, guarantee)
    records = numbers(400)
    with running(scene.app, scene.config, log):
        offsets = produce(log, scene.topic, records)
        scene.wait_for(offsets)
    scene.stores.close()
    shutil.rmtree(scene.config.state_dir)
    rebuilt = Stores(scene.app, scene.config, tmp_path / "scratch-2")
    scene.stores = rebuilt
    with running(scene.app, scene.config, log):
        scene.wait_for(offsets)
        assert scene.counts() == expected(records)
    # The changelog has the newest state of each key, with the input's timestamp.
    changelog = read_all(log, f"{scene.app.application_id}-counts-changelog", PARTITIONS)
    newest = {record.key: record for record in changelog}
    last_seen = {key: timestamp for key, _, timestamp in records}
    assert {key: record.timestamp_ms for key, record in newest.items()} == last_seen
    rebuilt.close()


@pytest.mark.parametrize(
    "error",
    [
        PoisonedError("disk"),
        pytest.param(LogUnavailableError("broker"), marks=long_only("a store that fails ends in the same restore")),
    ],
)
def test_a_local_commit_that_fails_after_the_log_was_committed_is_made_good_from_the_changelog(
    log: Log, guarantee: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    scene = Scene(log, tmp_path, guarantee)
    commit_stores, failures = Task.commit_stores, [error]

    def fail_sometimes(task: Task, *others: Any) -> None:
        if failures and others[0]:
            raise failures.pop()
        commit_stores(task, *others)

    monkeypatch.setattr(Task, "commit_stores", fail_sometimes)
    records = numbers(600)
    with running(scene.app, scene.config, log):
        offsets = produce(log, scene.topic, records)
        scene.wait_for(offsets)
        assert scene.counts() == expected(records)
    assert not failures
    scene.stores.close()


def test_uncommitted_queries_are_answered_between_the_commits_of_two_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_order, "_BETWEEN_S", HANGING_S)  # it answers what has come, and waits for nothing
    log = open_log(f"embedded:{tmp_path / 'log.db'}", tmp_path)
    scene = Scene(log, tmp_path, "exactly_once_v2", commit__interval__ms=NEVER_MS)
    worker = Worker(scene.app, scene.config, log, instance="worker-0")
    terms = Terms("newest", IsolationLevel.READ_UNCOMMITTED)
    query = frame(encode_request(WireRequest(1, terms, 0, CountQuery(), 0)))
    commit, commit_stores = Committer.commit, Task.commit_stores
    found = list[list[bool]]()  # per commit: before the stores of each task, whether an answer had come

    with closing(socket.socket(socket.AF_UNIX)) as client:

        def has_answer() -> bool:
            with contextlib.suppress(BlockingIOError):
                return bool(client.recv(1 << 16))
            return False

        def commit_asked(committer: Committer, tasks: Sequence[Task], *others: Any) -> None:
            has_answer()  # of the commit before
            client.send(query)
            found.append([])
            commit(committer, tasks, *others)

        def commit_looked(task: Task, *others: Any) -> None:
            found[-1].append(has_answer())
            client.send(query)
            commit_stores(task, *others)

        worker.begin()
        worker.open_tasks()
        directory = StateDirectory(scene.config.state_dir, scene.app.application_id)
        with address(socket_path(directory.application, "worker-0")) as near:
            client.connect(near)
        client.setblocking(False)
        with monkeypatch.context() as patches:
            patches.setattr(Committer, "commit", commit_asked)
            patches.setattr(Task, "commit_stores", commit_looked)
            for _ in range(5):
                produce(log, scene.topic, numbers(100))
                while worker.step():
                    pass
                worker.commit()
        worker.leave()
    assert found == [[True, True]] * 5
    scene.stores.close()
    log.close()


@on_one_log("embedded", "bytes are counted before anything is written to a log")
def test_the_byte_limit_forces_commits_long_before_the_interval(
    log: Log, guarantee: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(
        log,
        tmp_path,
        guarantee,
        commit__interval__ms=60_000,
        statestore__uncommitted__max__bytes=20_000,
    )
    wide = [(b"key-%d" % n, serdes.int64.serialize(n), n) for n in range(6_000)]
    slices = list[tuple[int, int]]()  # how many records, and how many bytes had been staged before
    learn = SlicePace.learn

    def learned(pace: SlicePace, records: int, size_bytes: int, seconds: float, growth_bytes: int) -> None:
        slices.append((records, worker.tasks.staged_bytes() - growth_bytes))
        learn(pace, records, size_bytes, seconds, growth_bytes)

    monkeypatch.setattr(SlicePace, "learn", learned)
    with running(scene.app, scene.config, log) as worker:
        produce(log, scene.topic, wide)
        eventually(lambda: sum(records for records, _ in slices) >= 6_000, "all is processed")
        assert max(staged for _, staged in slices) <= 20_000
        assert len(scene.stores.rows("newest", PARTITIONS)) > 3_000
    scene.stores.close()


class TestRecordsThatFail:
    """`bad` cannot be read; `boom` is written to the store and then raises."""

    @pytest.fixture(params=["fail", "skip", "dead-letter"])
    def policy(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    def app(self, name: str) -> App:
        app = App(name)
        source = app.topic(f"{name}-in", key=serdes.string, value=serdes.json)
        seen = app.store(stores.key_value("seen", key=serdes.string, value=serdes.json))

        @app.process(source, stores=[seen])
        def see(record: InputRecord, seen: StoreView) -> None:
            seen.put("count", (seen.get("count") or 0) + 1)
            seen.put(record.key, record.value)
            if record.value == "boom":
                raise RuntimeError("no such luck")

        return app

    @on_one_log("embedded", "test_negative_timestamps.py sets records aside on Kafka")
    @pytest.mark.parametrize("bad", [b'{"half":', b'"boom"'], ids=["unreadable", "raising"])
    def test_each_policy_does_what_it_says(
        self, log: Log, guarantee: str, tmp_path: Path, policy: str, bad: bytes
    ) -> None:
        name = f"app-{uuid4().hex[:8]}"
        app = self.app(name)
        settings: dict[str, Any] = {
            "deserialization__exception__handler": policy,
            "processing__exception__handler": policy,
        }
        if policy == "dead-letter":
            settings["errors__dead__letter__queue__topic__name"] = f"{name}-dead"
        config = configured(app, tmp_path / "state", processing__guarantee=guarantee, **settings)
        create(log, {f"{name}-in": 1, f"{name}-dead": PARTITIONS})
        found = Stores(app, config, tmp_path / "scratch")
        records = [(b"a", b"1", 1), (b"a", bad, 2), (b"b", b"2", 3)]
        offsets = produce(log, f"{name}-in", records)
        assert list(offsets.values()) == [2]
        if policy == "fail":
            worker = Worker(app, config, log, instance="worker-0")
            with pytest.raises(RecordError, match=rf"{name}-in-0 offset 1 key b'a'"):
                worker.run()
            assert found.rows("seen", 1) == {}
            found.close()
            return
        with running(app, config, log) as worker:
            eventually(lambda: found.offset("seen", f"{name}-in", 0) >= 2, "the rest is processed")
            assert found.rows("seen", 1) == {b"count": b"2", b"a": b"1", b"b": b"2"}
            assert worker.failures.skipped + worker.failures.dead_lettered == 1
        if policy == "dead-letter":
            (dead,) = read_all(log, f"{name}-dead", PARTITIONS)
            headers = dict(dead.headers)
            assert (dead.key, dead.value, dead.timestamp_ms) == (b"a", bad, 2)
            assert headers["__streams.errors.offset"] == b"1"
            assert headers["__streams.errors.topic"] == f"{name}-in".encode()
        found.close()


def test_missing_topics_are_named_with_what_they_are_for(log: Log, tmp_path: Path) -> None:
    app = counting_app(f"app-{uuid4().hex[:8]}")
    config = configured(app, tmp_path / "state")
    wanted = f"source topic: {app.application_id}-in; output topic: {app.application_id}-out"
    with pytest.raises(TopologyError, match=wanted), running(app, config, log):
        pass


def test_a_second_worker_of_the_same_name_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log.db")
    scene = Scene(log, tmp_path, "at_least_once")
    records = numbers(100)
    with running(scene.app, scene.config, log):
        with pytest.raises(LockedError, match="worker-0"), running(scene.app, scene.config, log):
            pass
        scene.wait_for(produce(log, scene.topic, records))
    assert scene.counts() == expected(records)
    scene.stores.close()
    log.close()


@on_one_log("embedded", "test_rebalances.py has workers that share tasks and take over on Kafka")
def test_two_workers_share_the_tasks_and_one_takes_over_from_the_other(
    log: Log, guarantee: str, tmp_path: Path
) -> None:
    scene = Scene(log, tmp_path, guarantee)
    directory = StateDirectory(scene.config.state_dir, scene.app.application_id)

    def tasks(instance: str) -> dict[str, str]:
        found = read_instances(directory.application).get(instance)
        return {} if found is None else {task: state for task, state in found.tasks.items() if state == "running"}

    first, second, third = numbers(200), numbers(200, 200), numbers(200, 400)
    with running(scene.app, scene.config, log, "one"):
        scene.wait_for(produce(log, scene.topic, first))
        with running(scene.app, scene.config, log, "two"):
            eventually(lambda: len(tasks("one")) == len(tasks("two")) == 1, "each has one task")
            scene.wait_for(produce(log, scene.topic, second))
        eventually(lambda: len(tasks("one")) == 2, "the first takes over")
        scene.wait_for(produce(log, scene.topic, third))
    assert scene.counts() == expected(first + second + third)
    scene.stores.close()
