"""What is committed before what, who is told, and what a failed record leaves. On the embedded log."""

from __future__ import annotations

import itertools
import math
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from service.worker.faults import EXACTLY_ONCE, IN, NEVER_MS, Place, Watched, counting, entries
from stateline import serdes, stores
from stateline.config.settings import Config
from stateline.dsl.app import App
from stateline.log.embedded_consumer import EmbeddedConsumer
from stateline.log.embedded_producer import EmbeddedProducer
from stateline.processing.store_views import StoreView
from stateline.query.wire import LENGTH, decode_message, frame
from stateline.worker import InputRecord, Output
from stateline.worker.commit import commit_schedule
from stateline.worker.commit.commit_order import Committer
from stateline.worker.files.registration import socket_path
from stateline.worker.loop import worker as worker_module
from stateline.worker.loop.worker import Worker
from stateline.worker.tasks.task import Task, TaskState
from stateline.worker.tasks.write_stall import WriteStall
from stateline_store import (
    IsolationLevel,
    KeyValueStore,
    LogUnavailableError,
    RetryLaterError,
    StateDirectory,
    TopicPartition,
    TransactionalStore,
)
from support.processes.running_worker import create, eventually, read_all, running
from support.run.patience import HANGING_S


def test_at_least_once_the_input_is_not_committed_before_the_changelog_is_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush, committed = EmbeddedProducer.flush, list[Mapping[TopicPartition, int]]()

    def fail_first(producer: EmbeddedProducer) -> dict[TopicPartition, int]:
        committed.append(place.admin.committed("app", [IN]))
        if len(committed) == 1:
            raise LogUnavailableError("the log is busy")
        return flush(producer)

    app = counting()
    place.send(entries("a", 10))
    monkeypatch.setattr(EmbeddedProducer, "flush", fail_first)
    found = place.work_off(app, place.config(app), 9)
    assert committed[0] == committed[1] == {IN: 0}
    assert found.rows("counts", 1) == {b"a": b"10"}


@pytest.mark.parametrize(
    ("guarantee", "steps"),
    [
        ("at_least_once", ["still the owner's", "changelog flushed", "offsets committed", "store committed"]),
        ("exactly_once_v2", ["changelog flushed", "transaction committed", "store committed"]),
    ],
)
def test_a_store_commits_after_the_log_and_the_offsets_after_the_changelog(
    place: Place, monkeypatch: pytest.MonkeyPatch, guarantee: str, steps: list[str]
) -> None:
    taken = list[str]()

    def noted(owner: type, method: str, step: str) -> None:
        original = getattr(owner, method)

        def note(*arguments: Any, **named: Any) -> Any:
            result = original(*arguments, **named)
            is_first = step == "offsets committed" and "changelog flushed" not in taken
            taken.append("still the owner's" if is_first else step)
            return result

        monkeypatch.setattr(owner, method, note)

    app = counting()
    place.send(entries("a", 10))
    noted(EmbeddedProducer, "flush", "changelog flushed")
    noted(EmbeddedProducer, "commit_transaction", "transaction committed")
    noted(EmbeddedConsumer, "commit", "offsets committed")
    noted(TransactionalStore, "commit", "store committed")
    place.commit_once(app, place.config(app, commit__interval__ms=NEVER_MS, processing__guarantee=guarantee), 10)
    assert taken == steps


def test_a_commit_of_several_stores_is_announced_when_all_of_them_have_made_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = counting(also=True)
    config = place.config(app, commit__interval__ms=1, **EXACTLY_ONCE)
    found, looks = place.stores(app, config), list[list[int | None]]()
    announce, worker = TransactionalStore.announce_commit, place.worker(app, config)

    def looked_at(store: TransactionalStore) -> None:
        for task in worker.tasks.all.values():
            made = [
                each.position(IsolationLevel.READ_COMMITTED) for _, each in task.stores.transactional if each.is_open
            ]
            looks.append([position.get("in", 0) for position in made])
        announce(store)

    monkeypatch.setattr(TransactionalStore, "announce_commit", looked_at)
    place.send(entries("abc", 30))
    worker.reach(lambda: found.offset("again", "in", 0) == 89)
    assert [89, 89] in looks
    assert [each for each in looks if len(set(each)) > 1] == []


class Subscriber:
    """A client of a worker's query socket that reads its events."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(HANGING_S)
        self._socket.connect(str(path))
        self._socket.sendall(frame({"id": 1, "type": "subscribe"}))
        assert self.read()["id"] == 1

    def ask_status(self) -> dict[str, Any]:
        self._socket.sendall(frame({"id": 2, "type": "status"}))
        return self.read()

    def read(self) -> dict[str, Any]:
        (size,) = LENGTH.unpack(self._exactly(LENGTH.size))
        return decode_message(bytearray(self._exactly(size)))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self._socket.recv(size - len(data)) or pytest.fail("hung up")
        return data

    def close(self) -> None:
        self._socket.close()


def query_socket(config: Config) -> Path:
    return socket_path(StateDirectory(config.state_dir, "app").application, "worker-0")


def test_a_commit_wakes_those_who_subscribed(place: Place) -> None:
    app = counting()
    config = place.config(app)
    found = place.stores(app, config)
    place.send(entries("a", 10))
    with running(app, config, place.log):
        eventually(lambda: found.offset("counts", "in", 0) == 9, "the first commit")
        with closing(Subscriber(query_socket(config))) as subscriber:
            place.send(entries("a"))
            assert subscriber.read() == {"event": "commit"}


def test_the_end_of_a_restore_wakes_those_who_subscribed(place: Place) -> None:
    app = counting()
    config = place.config(app, commit__interval__ms=NEVER_MS)
    place.send(entries("a", 10))
    place.commit_once(app, config, 10)
    held = StateDirectory(config.state_dir, "app").lock_task("0_0")
    with running(app, config, place.log):
        eventually(query_socket(config).exists, "the worker listens")
        with closing(Subscriber(query_socket(config))) as subscriber:
            held.release()
            assert subscriber.read() == {"event": "commit"}


def failing_after_forwarding() -> App:
    """Forwards and keeps each record, and then refuses those of key `bad`."""
    app = App("app")
    source = app.topic("in", key=serdes.string, value=serdes.string)
    out = app.topic("out", key=serdes.string, value=serdes.string)
    kept = app.store(stores.key_value("kept", key=serdes.string, value=serdes.string))

    @app.process(source, stores=[kept], forwards=[out])
    def forward(record: InputRecord, kept: StoreView, out: Output) -> None:
        kept.put(record.key, record.value)
        out.forward(record.key, record.value)
        if record.key == "bad":
            raise RuntimeError("no such luck")

    return app


@pytest.mark.parametrize("policy", ["skip", "dead-letter"])
def test_what_a_record_forwarded_before_it_failed_is_not_written(place: Place, policy: str) -> None:
    create(place.log, {"out": 1, "dead": 1})
    settings: dict[str, Any] = {"processing__exception__handler": policy}
    if policy == "dead-letter":
        settings["errors__dead__letter__queue__topic__name"] = "dead"
    app = failing_after_forwarding()
    place.send(entries(["a", "bad", "b"]))
    found = place.work_off(app, place.config(app, **settings), 2, "kept")
    assert [record.key for record in read_all(place.log, "out", 1)] == [b"a", b"b"]
    assert found.rows("kept", 1).keys() == {b"a", b"b"}


@pytest.mark.parametrize("policy", ["skip", "fail"])
def test_a_store_that_cannot_read_for_a_moment_is_not_the_records_fault(
    place: Place, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    get, failed = KeyValueStore.get, list[bytes]()

    def fail_once(store: KeyValueStore, key: bytes) -> bytes | None:
        if key == b"b" and not failed:
            failed.append(key)
            raise RetryLaterError("the disk reports an error")
        return get(store, key)

    monkeypatch.setattr(KeyValueStore, "get", fail_once)
    app = counting()
    place.send(entries("abc"))
    found = place.work_off(app, place.config(app, processing__exception__handler=policy, **EXACTLY_ONCE), 2)
    assert failed == [b"b"]
    assert found.rows("counts", 1) == {b"a": b"1", b"b": b"1", b"c": b"1"}


def test_a_table_ahead_of_lost_group_offsets_shows_its_processors_nothing_older(place: Place) -> None:
    workers, seen = list[Watched](), list[bytes]()
    app = counting(lambda record: seen.extend(worker.staged("newest", b"a") for worker in workers), table=True)
    config = place.config(app)
    place.send(entries("a", 40))
    place.work_off(app, config, 39)
    place.forget_group_offsets()
    worker = place.worker(app, config)
    workers.append(worker)
    worker.reach(lambda: len(seen) == 40)
    assert set(seen) == {b"39"}


def test_starting_over_now_and_then_for_as_long_as_it_lives_does_not_end_a_worker_that_has_nothing_to_commit(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, failures = Worker._turn, itertools.count()

    def fail_often(worker: Worker) -> None:
        if next(failures) < 8:
            raise LogUnavailableError("the log is busy")
        turn(worker)

    monkeypatch.setattr(Worker, "_turn", fail_often)
    monkeypatch.setattr(worker_module, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: None))
    app = counting()
    with monkeypatch.context() as patch:
        patch.setattr("stateline.worker.loop.worker._PEACE_S", 0.0)
        place.worker(app, place.config(app)).reach(lambda: True)
    failures = itertools.count()
    with pytest.raises(LogUnavailableError):
        place.worker(app, place.config(app)).reach(lambda: True)
    assert next(failures) == 6


@contextmanager
def failing_close(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    close = EmbeddedConsumer.close

    def closed(consumer: EmbeddedConsumer) -> None:
        close(consumer)
        raise LogUnavailableError("the group does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedConsumer, "close", closed)
        yield


def test_a_worker_whose_consumer_cannot_be_closed_releases_all_the_rest(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = counting()
    config = place.config(app)
    place.send(entries("a"))
    worker = place.worker(app, config)
    with failing_close(monkeypatch), pytest.raises(LogUnavailableError):
        worker.reach(lambda: worker.read_up_to(IN) == 1)
    directory = StateDirectory(config.state_dir, "app")
    directory.lock_task("0_0").release()
    assert not socket_path(directory.application, "watched").exists()
    assert not (directory.application / "instances" / "watched.json").exists()


def test_what_restores_is_not_counted_as_what_a_commit_would_free(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = counting()
    config = place.config(app, commit__interval__ms=NEVER_MS)
    for run in range(3):
        place.send(entries([f"{run}-{n}" for n in range(20)]))
        place.commit_once(app, config, 20 * (run + 1))
    place.lose_disk(config)
    monkeypatch.setattr("stateline.worker.restore.changelog_follower.SLICE_RECORDS", 10)
    worker, looks = place.worker(app, config), list[tuple[TaskState, int, int]]()

    def restored() -> bool:
        looks.extend((t.state, t.staged_bytes, worker.tasks.staged_bytes()) for t in worker.tasks.all.values())
        return worker.read_up_to(IN) == 60

    worker.reach(restored)
    restoring = [(staged, counted) for state, staged, counted in looks if state is TaskState.RESTORING]
    assert max(staged for staged, _ in restoring) > 0
    assert {counted for _, counted in restoring} == {0}


def test_a_worker_that_has_read_nothing_for_a_while_waits_for_queries_and_answers_them_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = counting()
    config = place.config(app)
    found = place.stores(app, config)
    place.send(entries("a", 10))
    with running(app, config, place.log), closing(Subscriber(query_socket(config))) as subscriber:
        eventually(lambda: found.offset("counts", "in", 0) == 9, "the first commit")
        rest_s = 2.0
        monkeypatch.setattr(worker_module, "_QUIET_SHARE", math.inf)
        monkeypatch.setattr(worker_module, "_QUIET_S", rest_s)
        began_s = time.monotonic()
        for _ in range(20):
            while "status" not in subscriber.ask_status():
                pass  # a commit that was announced before
        assert time.monotonic() - began_s < 10 * rest_s, "none waits until a rest is over"
        place.send(entries("a"))
        eventually(lambda: found.offset("counts", "in", 0) == 10, "records are read as well")


def test_while_somebody_may_ask_a_commit_comes_before_its_write_holds_them_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, committed = Committer.commit, list[int]()

    def noted(committer: Committer, tasks: Sequence[Task], *others: Any) -> None:
        commit(committer, tasks, *others)
        committed.extend(task.processing.next_offsets[IN] for task in tasks)

    monkeypatch.setattr(Committer, "commit", noted)
    app = counting()
    config = place.config(app, commit__interval__ms=NEVER_MS)
    keys, found = [f"key-{n:05}" for n in range(30_000)], place.stores(app, config)
    with running(app, config, place.log):
        place.send(entries(keys[:15_000]))
        with closing(Subscriber(query_socket(config))) as subscriber:
            place.send(entries(keys[15_000:]))
            assert subscriber.read()["event"] == "commit"
            eventually(lambda: bool(committed), "it commits")
            assert 0 < committed[0] < len(keys)
            assert len(found.rows("counts", 1)) >= committed[0]


@pytest.mark.parametrize("waits", [True, False])
def test_commits_that_spare_readers_a_longer_one_rest_for_three_times_what_they_wait_and_not_for_what_they_work(
    place: Place, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """However much every write is said to hold readers up, as all do where disks are synced."""
    took_s, commit = 0.06 if waits else 0.3, Committer.commit
    times = list[tuple[float, float]]()

    def slowly(*arguments: Any) -> None:
        began_s = time.monotonic()
        time.sleep(took_s)
        commit(*arguments)
        times.append((began_s, time.monotonic()))

    if not waits:  # the thread has worked all the while
        clocks = SimpleNamespace(
            monotonic=time.monotonic, perf_counter=time.perf_counter, thread_time=time.perf_counter
        )
        monkeypatch.setattr(commit_schedule, "time", clocks)
    monkeypatch.setattr(Committer, "commit", slowly)
    monkeypatch.setattr(WriteStall, "is_long", lambda *_: True)
    app = counting()
    config = place.config(app, commit__interval__ms=NEVER_MS)
    with running(app, config, place.log):
        eventually(lambda: query_socket(config).exists(), "the worker is there")
        with closing(Subscriber(query_socket(config))):
            while len(times) < 12:
                place.send(entries("a"))
    rests_s = [begin - end for (_, end), (begin, _) in itertools.pairwise(times[1:12])]
    assert (min(rests_s) >= 3 * took_s) == waits
