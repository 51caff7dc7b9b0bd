"""What becomes of a worker's tasks while its group decides anew who has which, and afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from service.worker.faults import CHANGELOG, GUARANTEES, IN, NEVER_MS, Place, Watched, counting, entries, rename
from stateline.deployment.configured_log import configured_log
from stateline.dsl.app import App
from stateline.processing.changelog import owner_headers, position_headers
from stateline.processing.records import InputRecord
from stateline.worker.group import task_manager
from stateline.worker.loop.worker import Worker
from stateline.worker.tasks.task import Task, TaskState
from stateline_store import IsolationLevel, LogUnavailableError, Position, StoreState, TopicPartition, TopologyError
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import Stores, configured, create, eventually, produce, read_all, running
from support.run.length import long_only

PARTITIONS = 4
RECORDS = entries([f"k{n}" for n in range(40)])


def runs(worker: Worker, count: int) -> Callable[[], bool]:
    return lambda: [str(task.state) for task in [*worker.tasks.all.values()]] == ["running"] * count


UNDER_EITHER = [
    "exactly_once_v2",
    pytest.param("at_least_once", marks=long_only("exactly once has a transaction to settle as well")),
]


@pytest.mark.parametrize("guarantee", UNDER_EITHER)
def test_what_stays_with_a_worker_is_not_closed_when_others_come_and_go(
    kafka_broker: SharedBroker, tmp_path: Path, guarantee: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"stays-{uuid4().hex[:8]}"
    topic = f"{name}-in"
    app = counting(table=True, name=name, topic=topic)
    servers = kafka_broker.bootstrap_servers
    config = configured(app, tmp_path / "state", bootstrap__servers=servers, processing__guarantee=guarantee)
    closed, suspended = list[str](), list[str]()
    for move, seen in (("close", closed), ("suspend", suspended)):
        monkeypatch.setattr(Task, move, noting(getattr(Task, move), seen))

    def counted(times: int) -> None:
        offsets = produce(log, topic, RECORDS)
        for (_, number), offset in offsets.items():
            reached = partial(lambda n, at: found.offset("counts", topic, n) >= at, number, offset)
            eventually(reached, f"partition {number} is counted {times} times")
        assert found.rows("counts", PARTITIONS) == {key: b"%d" % times for key, _, _ in RECORDS}

    with closing(configured_log(config)) as log, closing(Stores(app, config, tmp_path / "scratch")) as found:
        create(log, {topic: PARTITIONS})
        with running(app, config, log, "one") as one:
            counted(1)
            with running(app, config, log, "two") as two:
                eventually(lambda: runs(one, 2)() and runs(two, 2)(), "each has two tasks")
                assert sorted(closed) == sorted(map(str, two.tasks.all))
                assert sorted(suspended) == ["0_0", "0_1", "0_2", "0_3"]
                counted(2)
                closed.clear()
                left = sorted(map(str, two.tasks.all))
            eventually(runs(one, PARTITIONS), "one has all tasks again")
            assert sorted(closed) == left, "those of the worker that has left, and no other"
            counted(3)


@pytest.mark.parametrize("guarantee", UNDER_EITHER)
def test_what_is_staged_is_committed_before_partitions_go_and_is_not_read_again(
    kafka_broker: SharedBroker, tmp_path: Path, guarantee: str
) -> None:
    name = f"goes-{uuid4().hex[:8]}"
    topic = f"{name}-in"
    calls = Counter[tuple[int, int]]()

    def called(record: InputRecord) -> None:
        calls[record.partition, record.offset] += 1

    app = counting(called, name=name, topic=topic)
    settings = {"bootstrap__servers": kafka_broker.bootstrap_servers, "processing__guarantee": guarantee}
    config = configured(app, tmp_path / "state", commit__interval__ms=NEVER_MS, **settings)
    with closing(configured_log(config)) as log, closing(Stores(app, config, tmp_path / "scratch")) as found:
        create(log, {topic: PARTITIONS})
        with running(app, config, log, "one") as one:
            eventually(runs(one, PARTITIONS), "it has all tasks")
            produce(log, topic, RECORDS)
            eventually(lambda: len(calls) == len(RECORDS), "all is staged")
            with running(app, config, log, "two") as two:
                eventually(lambda: runs(one, 2)() and runs(two, 2)(), "each has two tasks")
                assert found.rows("counts", PARTITIONS) == {key: b"1" for key, _, _ in RECORDS}
    assert {*calls.values()} == {1}


def noting(work: Callable[[Task], None], seen: list[str]) -> Callable[[Task], None]:
    def noted(task: Task) -> None:
        if task.state is not TaskState.CLOSED:
            seen.append(str(task.id))
        work(task)

    return noted


def while_running(
    place: Place, count: int, act: Callable[[Watched], object], app: App | None = None, **settings: Any
) -> None:
    """Run a worker that counts; once it has committed so many records of `in`, act, and let it leave."""
    app = app or counting()
    worker = place.worker(app, place.config(app, **settings))

    def acted() -> bool:
        if not worker.tasks.running or worker.read_up_to(IN) < count:
            return False
        worker._commits.commit(worker.group.consumer)
        act(worker)
        return True

    worker.reach(acted)


def the_task(worker: Worker) -> Task:
    (task,) = worker.tasks.all.values()
    return task


def test_a_suspended_task_answers_as_a_standby_and_goes_on_as_it_was_when_nobody_else_had_it(place: Place) -> None:
    def act(worker: Watched) -> None:
        before = the_task(worker)
        kept_elsewhere = list[TopicPartition]()
        worker._manager._forget = kept_elsewhere.append
        worker.group.suspended([IN])
        assert kept_elsewhere == [IN]
        worker.group.consumer.seek(IN, 0)  # as a log that forgets where it was read up to
        hosted = worker.tasks.hosted("counts", 0)
        assert hosted is not None
        assert hosted.state is StoreState.STANDBY, "the group may give it to somebody else"
        assert str(before.state) == "suspended"
        assert worker.tasks.running == []
        worker.group.assigned([IN])
        assert the_task(worker) is before
        assert str(before.state) == "running"
        assert before.processing.next_offsets == {IN: 3}
        assert worker.group.consumer.next_offset(IN) in (None, 3)
        worker.turn()
        assert before.processing.next_offsets == {IN: 3}

    place.send(entries("abc"))
    while_running(place, 3, act)
    place.send(entries("abc"))
    app = counting()
    assert place.work_off(app, place.config(app), 5).rows("counts", 1) == {b"a": b"2", b"b": b"2", b"c": b"2"}


def test_a_suspended_task_whose_changelog_has_grown_since_is_opened_anew(place: Place) -> None:
    def act(worker: Watched) -> None:
        before = the_task(worker)
        worker.group.suspended([IN])
        with closing(place.log.producer()) as producer:
            epoch = place.admin.log_end(TopicPartition(CHANGELOG, 0))
            producer.produce(CHANGELOG, b"a", b"77", timestamp_ms=1, headers=owner_headers(epoch))
            producer.flush()
        worker.group.assigned([IN])
        assert the_task(worker) is not before
        while not worker.tasks.running:
            worker.turn()
        assert (
            dict(the_task(worker).stores.transactional)["counts"].reader(IsolationLevel.READ_COMMITTED).get(b"a")
            == b"77"
        )

    place.send(entries("abc"))
    while_running(place, 3, act)


def test_a_suspended_task_whose_input_was_processed_by_others_is_opened_anew(place: Place) -> None:
    def act(worker: Watched) -> None:
        before = the_task(worker)
        place.send(entries("abc"))
        worker.group.suspended([IN])
        place.write("UPDATE group_offsets SET next_offset = 5, fed = NULL")
        worker.group.assigned([IN])
        assert the_task(worker) is not before

    place.send(entries("abc"))
    while_running(place, 3, act)


def test_a_task_in_memory_is_kept_too(place: Place) -> None:
    app = counting(persistent=False)
    place.send(entries("abc"))
    worker = place.worker(app, place.config(app, commit__interval__ms=1))

    def acted() -> bool:
        if worker.read_up_to(IN) < 3 or the_task(worker).processing.dirty:
            return False
        before = the_task(worker)
        worker.group.suspended([IN])
        worker.group.assigned([IN])
        assert the_task(worker) is before
        return True

    worker.reach(acted)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_suspended_task_in_memory_says_how_much_of_its_changelog_it_has(place: Place, guarantee: str) -> None:
    def act(worker: Watched) -> None:
        (newest,) = [record.offset for record in read_all(place.log, CHANGELOG, 1)][-1:]
        active = worker.tasks.hosted("counts", 0)
        assert active is not None
        assert (active.state, active.offset) == (StoreState.ACTIVE, None)
        worker.group.suspended([IN])
        for store, offset in (("counts", newest), ("newest", 2)):
            hosted = worker.tasks.hosted(store, 0)
            assert hosted is not None
            assert (hosted.state, hosted.offset) == (StoreState.STANDBY, offset)
        worker.group.assigned([IN])

    place.send(entries("abc"))
    while_running(place, 3, act, counting(persistent=False, table=True), processing__guarantee=guarantee)


def test_a_suspended_task_that_has_nothing_says_so(place: Place) -> None:
    def act(worker: Watched) -> None:
        worker.group.suspended([IN])
        hosted = worker.tasks.hosted("counts", 0)
        assert hosted is not None
        assert (hosted.state, hosted.offset) == (StoreState.STANDBY, -1)
        worker.group.assigned([IN])

    while_running(place, 0, act, counting(persistent=False))


def test_a_suspended_task_whose_commit_failed_is_closed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise LogUnavailableError("in the commit before partitions are given back")

    def act(worker: Watched) -> None:
        before = the_task(worker)
        place.send(entries("abc"))
        while not before.processing.dirty:
            worker.turn()
        with monkeypatch.context() as patch:
            patch.setattr(worker._committer, "commit", fail)
            worker.group.suspended([IN])
        assert worker.group.failed is not None
        assert before.state is TaskState.CLOSED
        worker.group.failed = None
        worker.group.assigned([])

    place.send(entries("abc"))
    while_running(place, 3, act, commit__interval__ms=NEVER_MS)


def test_who_had_a_task_while_it_was_suspended_and_writes_late_is_a_former_owner(place: Place) -> None:
    """It took over where the changelog ended, and had not written yet when the task came back."""

    def act(worker: Watched) -> None:
        worker.group.suspended([IN])
        other = place.admin.log_end(TopicPartition(CHANGELOG, 0))
        worker.group.assigned([IN])
        count(worker, 6)
        with closing(place.log.producer()) as producer:
            headers = (*position_headers(Position.of({IN: 3})), *owner_headers(other))
            producer.produce(CHANGELOG, b"a", b"77", timestamp_ms=1, headers=headers)
            producer.flush()
        count(worker, 9)

    def count(worker: Watched, next_offset: int) -> None:
        place.send(entries("abc"))
        while worker.read_up_to(IN) < next_offset:
            worker.turn()
        worker._commits.commit(worker.group.consumer)

    place.send(entries("abc"))
    while_running(place, 3, act)
    app = counting()
    config = place.config(app)
    place.lose_disk(config)
    place.send(entries("x"))
    assert place.work_off(app, config, 9).rows("counts", 1) == {b"a": b"3", b"b": b"3", b"c": b"3", b"x": b"1"}


@pytest.mark.parametrize("topic", ["in", CHANGELOG])
def test_a_suspended_task_of_a_topic_that_was_made_anew_is_opened_anew(place: Place, topic: str) -> None:
    def act(worker: Watched) -> None:
        before = the_task(worker)
        worker.group.suspended([IN])
        rename(place, topic)
        if topic == CHANGELOG:  # it has not what the store has
            with pytest.raises(TopologyError, match=CHANGELOG):
                worker.group.assigned([IN])
            assert before.state is TaskState.CLOSED
            worker._manager.drop_all()
            return
        worker.group.assigned([IN])
        assert the_task(worker) is not before

    place.send(entries("abc"))
    while_running(place, 3, act)


def test_a_suspended_task_that_went_to_another_worker_is_closed(place: Place) -> None:
    def act(worker: Watched) -> None:
        before = the_task(worker)
        worker.group.suspended([IN])
        worker.group.assigned([])
        assert before.state is TaskState.CLOSED
        assert worker.tasks.all == {}

    place.send(entries("abc"))
    while_running(place, 3, act)


def test_a_task_that_stays_suspended_is_closed_for_who_may_wait_for_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(worker: Watched) -> None:
        before = the_task(worker)
        worker.group.suspended([IN])
        worker._manager.open_waiting()
        assert worker.tasks.hosted("counts", 0) is not None
        monkeypatch.setattr(task_manager, "_SUSPENDED_PATIENCE_S", -1.0)
        worker._manager.open_waiting()
        assert before.state is TaskState.CLOSED
        worker.group.assigned([IN])
        assert the_task(worker) is not before

    place.send(entries("abc"))
    while_running(place, 3, act)
