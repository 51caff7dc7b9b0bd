"""Order of time between the topics of a task: which records' turn it is, and a worker that keeps to it."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from service.worker.faults import Place
from service.worker.operators.operator_scene import Given, Scene
from stateline import App, serdes
from stateline.log import Record, open_log
from stateline.worker.loop.pace import POLL_BYTES
from stateline.worker.loop.partition_queues import Lag, in_order_of_time, rising
from stateline.worker.loop.record_order import RecordOrder
from stateline_store import TopicPartition, TopologyError
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import configured, create, eventually, produce, read_all, running

ROWS, OTHER, TABLE = TopicPartition("rows", 0), TopicPartition("rows", 1), TopicPartition("table", 0)


def read(source: TopicPartition, *times: int, first: int = 0) -> list[Record]:
    return [Record(*source, first + n, at, b"k", b"v") for n, at in enumerate(times)]


def shown(records: Sequence[Record]) -> str:
    """One letter and the timestamp of each."""
    return " ".join(f"{record.topic[0]}{record.timestamp_ms}" for record in records)


def at_end(source: TopicPartition) -> int:
    return 0


def taken(order: RecordOrder, lag: Lag) -> str:
    """All that is due, shown."""
    found: list[str] = []
    while batch := order.take(lag, 100):
        found += map(shown, batch)
    return " ".join(found)


def pass_time(order: RecordOrder, begin_s: float, end_s: float) -> None:
    """In rounds of 50 ms, from a while after the order was made."""
    for n in range(round((end_s - begin_s) / 0.05) + 1):
        order.tick(1.0 + begin_s + 0.05 * n)


def declared() -> App:
    app = App("app")
    rows = app.stream("rows", key=serdes.string, value=serdes.string)
    rows.join(app.table("table", key=serdes.string, value=serdes.string), lambda one, other: f"{one}|{other}").to("out")
    return app


def joined(**settings: Any) -> RecordOrder:
    """Of the two partitions of a join's task."""
    order = RecordOrder(declared().topology(), **settings)
    order.follow([ROWS, TABLE])
    return order


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
        ([1, 2], [2], False, True, "r1 t2"),  # of this time another of the table may come
        ([2], [1, 2], True, True, "t1 t2"),
        ([], [], True, True, ""),
    ],
)
@pytest.mark.parametrize("skew_ms", [-1, 0, 10])
def test_the_smallest_timestamp_is_next_unless_an_older_one_may_come(
    rows: list[int], table: list[int], more_rows: bool, more_table: bool, wanted: str, skew_ms: int
) -> None:
    order = joined(skew_ms=skew_ms)
    for source, times in ((ROWS, rows), (TABLE, table)):
        if times:
            order.add(source, read(source, *times))
    assert taken(order, {ROWS: int(more_rows), TABLE: int(more_table)}.get) == wanted


def test_a_record_too_far_ahead_holds_nobody_back() -> None:
    now_ms = time.time_ns() // 1_000_000
    order = joined(max_timestamp_ahead_ms=60_000)
    order.add(TABLE, read(TABLE, now_ms + 3_600_000, now_ms))
    order.add(ROWS, read(ROWS, now_ms + 1))
    assert [(record.topic, record.offset) for record in order.take(at_end, 100)[0]] == [
        ("table", 0),
        ("table", 1),
        ("rows", 0),
    ]
    held = joined()
    held.add(TABLE, read(TABLE, now_ms + 3_600_000, now_ms))
    held.add(ROWS, read(ROWS, now_ms + 1))
    assert [(record.topic, record.offset) for record in held.take(at_end, 100)[0]] == [
        ("rows", 0),
        ("table", 0),
        ("table", 1),
    ]


def test_each_task_waits_for_its_own_partitions_and_what_is_given_back_comes_first_again() -> None:
    order, other = RecordOrder(declared().topology()), TopicPartition("rows", 1)
    order.follow([ROWS, TABLE, other, TopicPartition("table", 1)])
    order.add(ROWS, read(ROWS, 1, 3))
    order.add(other, read(other, 7))
    assert taken(order, {ROWS: 0, TABLE: 4, other: 0, TopicPartition("table", 1): 0}.get) == "r7"
    order.add(TABLE, read(TABLE, 2, 4))
    (first,) = order.take(at_end, 100)
    assert shown(first) == "r1 t2 r3 t4"
    order.give_back(first[1:])
    order.add(ROWS, read(ROWS, 5, first=2))
    assert taken(order, at_end) == "t2 r3 t4 r5"


def test_a_partition_is_paused_while_much_of_it_waits_and_what_is_forgotten_does_not_come_back() -> None:
    order, large = joined(), bytes(POLL_BYTES // 1_500)
    order.add(ROWS, [record._replace(value=large) for record in read(ROWS, *range(2_000))])
    assert order.take({ROWS: 5, TABLE: None}.get, 100) == []  # nobody knows yet whether the table has records
    assert (order.to_pause(), order.to_pause(), order.to_resume()) == ([ROWS], [], [])
    assert order.waiting(ROWS) == 2_000
    order.add(TABLE, read(TABLE, 1_500))
    assert taken(order, {ROWS: 5, TABLE: 1}.get).count("r") == 1_500
    assert order.waiting(ROWS) == 500
    assert (order.to_pause(), order.to_resume(), order.to_resume()) == ([], [ROWS], [])
    order.forget(ROWS)
    assert (order.waiting(ROWS), order.take(at_end, 100)) == (0, [])


def test_what_waits_of_many_partitions_stays_within_the_memory_for_all_of_them() -> None:
    order, size = side_by_side(400), 0
    for n in range(400):
        source = TopicPartition("rows", n)
        while source not in order.to_pause():
            order.add(source, [record._replace(value=bytes(900)) for record in read(source, *range(50))])
            size += 50 * 900
    assert size < 40_000_000


def test_large_records_pause_a_partition_sooner() -> None:
    order, large = joined(), bytes(POLL_BYTES // 4)
    order.add(ROWS, [record._replace(value=large) for record in read(ROWS, *range(5))])
    assert order.to_pause() == [ROWS]


def writes() -> App:
    app = App("app")
    app.stream("rows", key=serdes.string, value=serdes.string).to("out")
    return app


def side_by_side(partitions: int = 2, **settings: Any) -> RecordOrder:
    """Of the tasks of one subtopology, on a log that is asked for its ends now and then."""
    order = RecordOrder(writes().topology(), **{"skew_ms": 10, "idle_ms": 1_000, "knows_ends": False, **settings})
    order.follow([TopicPartition("rows", n) for n in range(partitions)])
    return order


def test_partitions_of_one_subtopology_are_taken_in_order_of_time() -> None:
    order = side_by_side(3)
    for n, times in enumerate(([1, 4, 7], [2, 5, 8], [30, 3, 40])):
        order.add(TopicPartition("rows", n), read(TopicPartition("rows", n), *times))
    assert [[shown(each) for each in order.take(lambda _: None, 100)] for _ in range(2)] == [
        ["r1 r4 r7", "r2 r5 r8"],
        [],
    ]
    order.add(OTHER, read(OTHER, 35, first=3))
    order.add(ROWS, read(ROWS, 31, first=3))
    assert [shown(each) for each in order.take(lambda _: None, 100)] == ["r31", "r35", "r30 r3 r40"]


def test_a_task_gets_the_records_of_its_topics_in_one_list() -> None:
    """What it writes for a key keeps its order that way, when it is merged by time with what other tasks write."""
    app = App("app")
    one, other = (app.ktable(app.table(topic, key=serdes.string, value=serdes.string)) for topic in ("rows", "table"))
    one.join(other, lambda one, other: one, "joined", value=serdes.string).to_stream().to("out")
    order = RecordOrder(app.topology(), skew_ms=10)
    order.follow([ROWS, OTHER, TABLE, TopicPartition("table", 1)])
    for source, times in ((ROWS, (1, 9, 2)), (TABLE, (3, 4)), (OTHER, (5,))):
        order.add(source, read(source, *times))
    assert [shown(each) for each in order.take(at_end, 100)] == ["r1 t3 t4 r9 r2", "r5"]


def test_topics_that_are_merged_before_a_repartition_topic_are_read_in_order_with_each_other() -> None:
    app = App("app")
    rows, others = (app.stream(topic, key=serdes.string, value=serdes.string) for topic in ("rows", "table"))
    merged = rows.merge(others)
    merged.group_by(lambda key, value: value, key=serdes.string, name="by-value").count("counts").to_stream().to("out")
    order = RecordOrder(app.topology(), skew_ms=10)
    order.follow([ROWS, TABLE, TopicPartition("app-by-value-repartition", 0)])
    order.add(ROWS, read(ROWS, 1, 100, 200))
    order.add(TABLE, read(TABLE, 2, 150))
    assert [[shown(each) for each in order.take(at_end, 100)] for _ in range(2)] == [["r1 r100", "t2 t150"], ["r200"]]


def test_a_partition_with_more_on_the_log_holds_back_what_is_further_ahead_than_the_skew() -> None:
    order = side_by_side()
    order.add(ROWS, read(ROWS, 100, 105, 200))
    order.add(OTHER, read(OTHER, 101))
    more = {ROWS: 0, OTHER: 7}.get
    assert taken(order, more) == "r100 r105 r101"
    for at_s in (0.05 * n for n in range(1, 95)):  # 4.7 s
        order.tick(at_s)
        assert taken(order, more) == ""
    for at_s in (5 + 0.05 * n for n in range(20)):
        order.tick(at_s)
    assert taken(order, more) == "r200", "nothing comes of it: it holds nobody back for ever"


def test_a_busy_round_of_the_worker_does_not_count_as_silence() -> None:
    order = side_by_side()
    order.tick(1.0)
    order.add(ROWS, read(ROWS, 100, 200))
    order.add(OTHER, read(OTHER, 101))
    assert taken(order, {ROWS: 0, OTHER: 7}.get) == "r100 r101"
    order.tick(100.0)
    assert taken(order, {ROWS: 0, OTHER: 7}.get) == ""


def test_a_partition_at_its_end_holds_others_back_once_for_the_idle_time_and_again_when_it_has_caught_up() -> None:
    order = side_by_side()
    order.add(ROWS, read(ROWS, 100, *range(200, 300)))
    order.add(OTHER, read(OTHER, 100))
    assert taken(order, at_end) == "r100 r100"
    pass_time(order, 0.0, 0.9)
    assert taken(order, at_end) == ""
    pass_time(order, 0.9, 1.1)
    assert taken(order, at_end).count("r") == 100
    order.add(OTHER, read(OTHER, 150, first=1))  # still behind
    order.add(ROWS, read(ROWS, 400, first=101))
    assert taken(order, at_end) == "r150 r400"
    order.add(OTHER, read(OTHER, 401, first=2))
    order.add(ROWS, read(ROWS, 402, 500, first=102))
    assert taken(order, at_end) == "r402 r401"


def test_one_that_gives_old_records_again_and_again_does_not_hold_others_back_for_ever() -> None:
    order, at_s, offset = side_by_side(), 0.0, 0
    order.add(ROWS, read(ROWS, 0, 50_000))
    order.add(OTHER, read(OTHER, 0))
    while not taken(order, at_end).endswith("r50000"):
        assert at_s < 1.5
        at_s, offset = at_s + 0.05, offset + 1
        order.tick(at_s)
        order.add(OTHER, read(OTHER, offset, first=offset))
    for n in range(1, 50):
        order.add(OTHER, read(OTHER, offset + n, first=offset + n))
        order.add(ROWS, read(ROWS, 50_000 + 100 * n, first=n))
        assert taken(order, at_end).count("r") == 2


def test_a_record_that_comes_after_a_silence_waits_for_nobody_and_those_far_behind_it_do() -> None:
    order = side_by_side()
    order.add(ROWS, read(ROWS, 100))
    order.add(OTHER, read(OTHER, 100))
    assert taken(order, at_end) == "r100 r100"
    pass_time(order, 0.0, 60.0)
    order.add(ROWS, read(ROWS, 60_000, 60_009, 70_000, first=1))
    assert taken(order, at_end) == "r60000 r60009"
    order.add(OTHER, read(OTHER, 60_001, 70_001, first=1))
    assert taken(order, at_end) == "r70000 r60001 r70001", "one list for each task, of one span of time"


def test_a_partition_that_never_had_a_record_holds_nobody_back() -> None:
    order = side_by_side()
    order.add(ROWS, read(ROWS, 100))
    assert taken(order, at_end) == "r100"


def test_one_of_which_nothing_was_heard_holds_others_back_for_the_idle_time() -> None:
    """Its task restores, or its first fetch has not come back."""
    order = side_by_side()
    order.add(ROWS, read(ROWS, 100, 900))
    assert taken(order, {ROWS: 0}.get) == ""
    pass_time(order, 0.0, 1.1)
    assert taken(order, {ROWS: 0}.get) == "r100 r900"


def test_where_ends_are_known_nothing_is_waited_for_that_is_not_there() -> None:
    order = side_by_side(knows_ends=True)
    order.add(ROWS, read(ROWS, 100, 900))
    order.add(OTHER, read(OTHER, 100))
    assert taken(order, at_end) == "r100 r100 r900"


@pytest.mark.parametrize("bad", [-1, 2**62])
def test_a_record_without_a_valid_timestamp_holds_nobody_back(bad: int) -> None:
    order = side_by_side(max_timestamp_ahead_ms=60_000)
    order.add(ROWS, read(ROWS, bad, 100))
    order.add(OTHER, read(OTHER, 99))
    assert taken(order, at_end) == f"r{bad} r100 r99"


def test_of_many_records_a_part_is_taken_at_a_time_and_all_partitions_come_equally_far() -> None:
    order = side_by_side()
    order.add(ROWS, read(ROWS, *range(50_000)))
    order.add(OTHER, read(OTHER, *range(0, 50_000, 10)))
    while batch := order.take({ROWS: 1, OTHER: 1}.get, 500):
        lasts = [each[-1].timestamp_ms for each in batch if each]
        assert max(lasts) - min(lasts) <= 10
        assert sum(map(len, batch)) <= 8 * 500
    assert (order.waiting(ROWS), order.waiting(OTHER)) == (0, 0)


def test_a_partition_that_is_alone_or_whose_subtopology_writes_to_no_topic_is_not_held() -> None:
    assert not side_by_side(1).holds(ROWS)
    assert side_by_side(2).holds(ROWS)
    assert not side_by_side(2, skew_ms=-1).holds(ROWS)
    app = App("app")
    app.stream("rows", key=serdes.string, value=serdes.string).group_by_key().count("count")
    assert not RecordOrder(app.topology(), skew_ms=10).is_needed


def test_what_waits_of_a_partition_ends_where_its_last_record_does() -> None:
    order = side_by_side()
    assert order.end(ROWS) == 0
    order.add(ROWS, read(ROWS, 1, 2, first=7))
    assert order.end(ROWS) == 9
    order.forget(ROWS)
    assert (order.end(ROWS), order.waiting(ROWS), order.holds(ROWS)) == (0, 0, True)


def test_tasks_of_a_join_that_writes_to_no_topic_do_not_wait_for_each_other() -> None:
    app = App("app")
    rows = app.stream("rows", key=serdes.string, value=serdes.string)
    joined_rows = rows.join(app.table("table", key=serdes.string, value=serdes.string), lambda one, other: one)
    joined_rows.group_by_key().count("count")
    order = RecordOrder(app.topology(), skew_ms=10, idle_ms=1_000, knows_ends=False)
    others = [TopicPartition(topic, 1) for topic in ("rows", "table")]
    order.follow([ROWS, TABLE, *others])
    order.add(OTHER, read(OTHER, 1))
    order.add(ROWS, read(ROWS, 100, 900))
    assert taken(order, {ROWS: 0, TABLE: 0, OTHER: 5, others[1]: 0}.get).split() == ["r1", "r100", "r900"]


def test_lists_are_merged_by_time_and_keep_their_own_order() -> None:
    lists = [[(3, "a"), (1, "a"), (9, "a")], [(2, "b"), (3, "b"), (4, "b")], []]
    times = (rising(at for at, _ in each) for each in lists)
    assert [f"{at}{name}" for at, name in in_order_of_time(lists, times)] == ["2b", "3a", "1a", "3b", "4b", "9a"]
    assert in_order_of_time([], []) == []


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


def test_a_join_keeps_the_order_of_time_after_a_rebalance_that_took_nothing_from_its_task(place: Place) -> None:
    create(place.log, {"rows": 1, "table": 1, "out": 1})
    app = declared()
    worker = place.worker(app, place.config(app))

    def rebalanced() -> bool:
        if not worker.tasks.running:
            return False
        worker.group.suspended([ROWS, TABLE])
        worker.group.assigned([ROWS, TABLE])
        place.send([(b"k", b"t%d" % n, 2 * n) for n in range(50)], "table")
        place.send([(b"k", b"r%d" % n, 2 * n + 1) for n in range(50)], "rows")
        worker.until = lambda: len(read_all(place.log, "out", 1)) == 50
        return False

    worker.reach(rebalanced)
    assert [record.value for record in read_all(place.log, "out", 1)] == [b"r%d|t%d" % (n, n) for n in range(50)]


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
