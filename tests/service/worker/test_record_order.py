"""Order of time between the topics of a task: which records' turn it is, and a worker that keeps to it."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from service.worker.operators.operator_scene import Given, Scene
from stateline import App, serdes
from stateline.log import Record, open_log
from stateline.worker.pace import POLL_BYTES
from stateline.worker.record_order import RecordOrder, in_order
from stateline_store import TopicPartition, TopologyError
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import configured, create, eventually, produce, read_all, running

ROWS, TABLE = TopicPartition("rows", 0), TopicPartition("table", 0)


def read(source: TopicPartition, *times: int, first: int = 0) -> list[Record]:
    return [Record(*source, first + n, at, b"k", b"v") for n, at in enumerate(times)]


def shown(records: Sequence[Record]) -> str:
    """One letter and the timestamp of each."""
    return " ".join(f"{record.topic[0]}{record.timestamp_ms}" for record in records)


@pytest.mark.parametrize(
    ("rows", "table", "more_rows", "more_table", "wanted"),
    [
        ([1, 3, 5], [2, 4], False, False, "r1 t2 r3 t4 r5"),
        ([1, 3, 5], [2, 4], False, True, "r1 t2 r3 t4"),  # the table's next record may be older than 5
        ([1, 3, 5], [2, 4], True, False, "r1 t2 r3 t4 r5"),
        ([1, 2], [], False, False, "r1 r2"),  # nothing is known to come
        ([1, 2], [], False, True, ""),
        ([], [1, 2], True, False, ""),
        ([1, 2], [9], True, True, "r1 r2"),
        ([5, 1, 6], [2, 3], False, False, "t2 t3 r5 r1 r6"),  # offsets order a partition, whatever its timestamps are
        ([2], [2], False, False, "t2 r2"),  # at one time the table first
        ([], [], True, True, ""),
    ],
)
def test_the_smallest_timestamp_is_next_unless_an_older_one_may_come(
    rows: list[int], table: list[int], more_rows: bool, more_table: bool, wanted: str
) -> None:
    taken, counts = in_order([read(TABLE, *table), read(ROWS, *rows)], [more_table, more_rows])
    assert shown(taken) == wanted
    assert counts == [wanted.count("t"), wanted.count("r")]


def declared() -> App:
    app = App("app")
    rows = app.stream("rows", key=serdes.string, value=serdes.string)
    rows.join(app.table("table", key=serdes.string, value=serdes.string), lambda one, other: f"{one}|{other}").to("out")
    return app


def test_a_record_too_far_ahead_holds_nobody_back() -> None:
    now_ms = time.time_ns() // 1_000_000
    order = RecordOrder(declared().topology(), 60_000)
    order.add(TABLE, read(TABLE, now_ms + 3_600_000, now_ms))
    order.add(ROWS, read(ROWS, now_ms + 1))
    (taken,) = order.take(lambda _: 0)
    assert [(record.topic, record.offset) for record in taken] == [("table", 0), ("table", 1), ("rows", 0)]
    held = RecordOrder(declared().topology())
    held.add(TABLE, read(TABLE, now_ms + 3_600_000, now_ms))
    held.add(ROWS, read(ROWS, now_ms + 1))
    (taken,) = held.take(lambda _: 0)
    assert [(record.topic, record.offset) for record in taken] == [("rows", 0), ("table", 0), ("table", 1)]


def test_each_task_waits_for_its_own_partitions_and_what_is_given_back_comes_first_again() -> None:
    order = RecordOrder(declared().topology())
    other = TopicPartition("rows", 1)
    order.add(ROWS, read(ROWS, 1, 3))
    order.add(other, read(other, 7))
    assert [shown(each) for each in order.take({ROWS: 0, TABLE: 4, other: 0, TopicPartition("table", 1): 0}.get)] == [
        "r7"
    ]
    order.add(TABLE, read(TABLE, 2, 4))
    (taken,) = order.take(lambda _: 0)
    assert shown(taken) == "r1 t2 r3 t4"
    order.give_back(taken[1:])
    order.add(ROWS, read(ROWS, 5, first=2))
    assert [shown(each) for each in order.take(lambda _: 0)] == ["t2 r3 t4 r5"]
    assert order.take(lambda _: 0) == []


def test_a_partition_is_paused_while_much_of_it_waits_and_what_is_forgotten_does_not_come_back() -> None:
    order = RecordOrder(declared().topology())
    order.add(ROWS, read(ROWS, *range(2_000)))
    assert order.take({ROWS: 5, TABLE: None}.get) == []  # nobody knows yet whether the table has records
    assert (order.to_pause(), order.to_pause(), order.to_resume()) == ([ROWS], [], [])
    order.add(TABLE, read(TABLE, 1_500))
    (taken,) = order.take({ROWS: 5, TABLE: 1}.get)
    assert len(taken) == 1_501
    assert (order.to_pause(), order.to_resume(), order.to_resume()) == ([], [ROWS], [])
    order.forget(ROWS)
    assert order.take(lambda _: 0) == []


def test_large_records_pause_a_partition_sooner() -> None:
    order = RecordOrder(declared().topology())
    large = bytes(POLL_BYTES // 4)
    order.add(ROWS, [record._replace(value=large) for record in read(ROWS, *range(5))])
    assert order.to_pause() == [ROWS]


def test_tasks_whose_operators_need_no_order_are_left_alone() -> None:
    app = App("app")
    one, other = (app.ktable(app.table(topic, key=serdes.string, value=serdes.string)) for topic in ("a", "b"))
    one.join(other, lambda left, right: left, "joined")
    app.stream("c").join(app.table("c", store="newest"), lambda left, right: left).to("out")
    assert not RecordOrder(app.topology()).is_needed


def test_a_join_in_order_of_time_with_a_pipeline_of_whole_epochs_is_refused() -> None:
    app = App("app")
    app.pipeline(reads="in", writes="table", key="k", whole_epochs=True, name="pipe")(lambda frame: frame)
    result = app.table("table", key=serdes.string, value=serdes.json)
    app.stream("rows", key=serdes.string, value=serdes.json).join(result, lambda one, other: one).to("out")
    with pytest.raises(
        TopologyError, match=r"'table' is the result of a pipeline with whole_epochs=True.* takes it and rows"
    ):
        RecordOrder(app.topology())


def by_time(count: int, seed: int, odd: int) -> list[Given]:
    """In order of time; those of two topics never at one time."""
    chance = random.Random(seed)
    times = sorted(chance.sample(range(100_000), count))
    return [(f"k{chance.randrange(5)}", f"{'rt'[odd]}{n}", 2 * at + odd) for n, at in enumerate(times)]


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_a_row_is_joined_with_what_the_table_had_at_its_time_whichever_topic_is_read_first(
    tmp_path: Path, guarantee: str
) -> None:
    scene = Scene(declared(), tmp_path, partitions=2, settings={"processing.guarantee": guarantee})
    rows, table = by_time(3_000, 1, 0), by_time(800, 2, 1)
    halves = [slice(1_500), slice(400)], [slice(1_500, None), slice(400, None)]
    border = max(rows[1_499][2], table[399][2])
    later = ([(k, v, at + border) for k, v, at in each] for each in (rows[1_500:], table[400:]))
    rows, table = ([*each[:half], *rest] for each, half, rest in zip((rows, table), (1_500, 400), later, strict=True))
    for of_rows, of_table in halves:
        scene.send("rows", rows[of_rows])
        scene.send("table", table[of_table])
        scene.work_off()
    wanted, newest = [], dict[str, str]()
    for key, value, at in sorted([*rows, *table], key=lambda record: record[2]):
        if value.startswith("t"):
            newest[key] = value
        elif key in newest:
            wanted.append((key.encode(), f"{value}|{newest[key]}".encode(), at))
    written = sorted(((r.key, r.value, r.timestamp_ms) for r in scene.written("out")), key=lambda row: row[2])
    assert written == wanted


def test_on_a_broker_rows_meet_the_table_of_their_time_and_do_not_wait_for_a_table_without_records(
    kafka_broker: SharedBroker, tmp_path: Path
) -> None:
    name = f"order-{uuid4().hex[:8]}"
    app = App(name)
    stream = app.stream(f"{name}-rows", key=serdes.string, value=serdes.string)
    table = app.table(f"{name}-table", key=serdes.string, value=serdes.string)
    stream.left_join(table, lambda one, other: f"{one}|{other}").to(f"{name}-out")
    config = configured(app, tmp_path / "state", processing__guarantee="exactly_once_v2")
    rows, changes = by_time(3_000, 3, 0), by_time(800, 4, 1)
    with closing(open_log(kafka_broker.bootstrap_servers, tmp_path)) as log:
        create(log, {f"{name}-rows": 2, f"{name}-table": 2, f"{name}-out": 1})

        def send(topic: str, given: list[Given]) -> None:
            produce(log, f"{name}-{topic}", [(key.encode(), value.encode(), at) for key, value, at in given])

        send("rows", rows[:1_000])
        with running(app, config, log):
            eventually(lambda: len(read_all(log, f"{name}-out", 1)) == 1_000, "nothing is waited for")
        later = rows[999][2] + 1
        changes = [(key, value, at + later) for key, value, at in changes]
        rows = [*rows[:1_000], *((key, value, at + later) for key, value, at in rows[1_000:])]
        send("rows", rows[1_000:])
        send("table", changes)
        with running(app, config, log):
            eventually(lambda: len(read_all(log, f"{name}-out", 1)) == 3_000, "all rows are joined")
        written = {(r.key, r.value, r.timestamp_ms) for r in read_all(log, f"{name}-out", 1)}
    newest: dict[str, str] = {}
    wanted = set()
    for key, value, at in sorted([*rows, *changes], key=lambda record: record[2]):
        if value.startswith("t"):
            newest[key] = value
        else:
            wanted.add((key.encode(), f"{value}|{newest.get(key)}".encode(), at))
    assert written == wanted
