"""Functions that are called as time goes by."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from service.worker.operators.operator_scene import Given, Scene
from stateline import App, serdes, stores
from stateline.log import open_log
from stateline.model.processor import Punctuation
from stateline.processing.failures import FailureHandler
from stateline.processing.operators.stream_times import StreamTimes
from stateline.processing.processor_context import TaskContext
from stateline.processing.punctuation import Punctuator
from stateline.processing.records import Output
from stateline.processing.store_views import StoreView
from stateline.processing.user_function import UserFunction
from stateline.worker import InputRecord
from stateline_store import InvalidArgumentError, RecordError, TopologyError
from stateline_store.task_id import TaskId
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import Stores, configured, create, eventually, produce, read_all, running

GUARANTEES = ["at_least_once", "exactly_once_v2"]
EVERY = timedelta(milliseconds=100)


def records(count: int, seed: int, first_ms: int) -> list[Given]:
    """A little out of order, with gaps of several intervals."""
    chance = random.Random(seed)
    times = [first_ms]
    for _ in range(count - 1):
        times.append(times[-1] + chance.choices([chance.randrange(30), chance.randrange(900)], [20, 1])[0])
    return [(f"k{chance.randrange(3)}", f"v{n}", at - chance.randrange(60)) for n, at in enumerate(times)]


def summing(*, on: Any = "stream_time", fail: Callable[[int], bool] = lambda _: False) -> App:
    """Counts records; a punctuation writes the sum so far into a store and a topic, and then counts from 0 again."""
    app = App("app")
    counts = app.store(stores.timestamped_key_value("counts", key=serdes.string, value=serdes.int64))
    sums = app.store(stores.timestamped_key_value("sums", key=serdes.int64, value=serdes.int64))
    out = app.topic("out", key=serdes.int64, value=serdes.int64)

    @app.process("in", key=serdes.string, value=serdes.string, stores=[counts])
    def count(record: InputRecord, counts: StoreView) -> None:
        counts.put("n", (counts.get("n") or 0) + 1)

    @app.punctuate(every=EVERY, on=on, stores=[counts, sums], forwards=[out])
    def sum_up(timestamp_ms: int, counts: StoreView, sums: StoreView, out: Output) -> None:
        sums.put(timestamp_ms, counts.get("n") or 0)
        out.forward(timestamp_ms, counts.get("n") or 0)
        counts.put("n", 0)
        if fail(timestamp_ms):
            raise ValueError(f"not at {timestamp_ms}")

    return app


def oracle(given: list[Given]) -> list[tuple[int, int]]:
    """Time and sum of each call: the first at the first record, then at the next multiple of the interval."""
    called: list[tuple[int, int]] = []
    count, now, due = 0, -1, 0
    for _, _, at in given:
        count, now = count + 1, max(now, at)
        if now >= due:
            called.append((now, count))
            count, due = 0, (now // 100 + 1) * 100
    return called


def written(scene: Scene) -> list[tuple[int, int, int]]:
    """Key and value of each record that was written, and its timestamp."""
    read = serdes.int64.deserialize
    return [(read(r.key or b""), read(r.value or b""), r.timestamp_ms) for r in scene.written("out")]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_by_stream_time_it_is_called_when_records_have_come_to_the_next_interval_also_after_restarts(
    tmp_path: Path, guarantee: str
) -> None:
    scene = Scene(summing(), tmp_path, partitions=1, settings={"processing.guarantee": guarantee})
    given = records(400, 1, 1_000_000)
    for part in (given[:150], given[150:151], given[151:]):
        scene.send("in", part)
        scene.work_off()
    wanted = oracle(given)
    assert len(wanted) > 20
    assert written(scene) == [(at, count, at) for at, count in wanted]
    read = serdes.int64.deserialize
    kept = {read(key): (read(value), at) for key, (value, at) in scene.rows("sums").items()}
    assert kept == {at: (count, at) for at, count in wanted}


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_by_the_clock_it_is_called_without_input_and_what_it_wrote_is_committed(tmp_path: Path, guarantee: str) -> None:
    app = summing(on="wall_clock_time")
    scene = Scene(app, tmp_path, partitions=1, settings={"processing.guarantee": guarantee})
    seen = Stores(app, scene.config, tmp_path / "looked-at")
    try:
        with running(app, scene.config, scene.log):
            eventually(lambda: len(seen.rows("sums", 1)) >= 3, "it is called three times, without any input")
    finally:
        seen.close()
    times = sorted(serdes.int64.deserialize(key) for key in scene.rows("sums"))
    assert [at for at, _, _ in written(scene)] == times


def test_by_the_clock_calls_that_were_missed_are_one_and_the_next_is_a_multiple_again() -> None:
    called: list[int] = []
    task = TaskContext("app", TaskId(0, 0))
    function = UserFunction("tick", called.append, [], (), FailureHandler("fail", "fail", None), 1_000, task)
    punctuator = Punctuator(Punctuation(100, "wall_clock_time"), function, "none", StreamTimes({}), 1_000)
    made = {now: punctuator.look_at_clock(now, 7_000 + now) for now in (1_000, 1_099, 1_100, 1_450, 1_499, 1_500)}
    assert made == {1_000: None, 1_099: None, 1_100: [], 1_450: [], 1_499: None, 1_500: []}
    assert called == [8_100, 8_450, 8_500]


@pytest.mark.parametrize("policy", ["fail", "skip", "dead-letter"])
def test_one_that_raises_leaves_nothing_and_is_handled_by_the_policy(tmp_path: Path, policy: str) -> None:
    settings: dict[str, Any] = {"processing.exception.handler": policy, "errors.dead.letter.queue.topic.name": "dead"}
    scene = Scene(summing(fail=lambda at: at == 1_150), tmp_path, partitions=1, settings=settings)
    scene.create("dead")
    scene.send("in", [("k", "v", at) for at in (1_000, 1_060, 1_150, 1_170, 1_200)])
    if policy == "fail":
        with pytest.raises(RecordError, match=r"Punctuation 'sum_up' failed at 1150: ValueError: not at 1150 \("):
            scene.work_off()
        return
    scene.work_off()
    assert written(scene) == [(1_000, 1, 1_000), (1_200, 4, 1_200)]
    assert scene.rows("sums").keys() == {serdes.int64.serialize(1_000), serdes.int64.serialize(1_200)}
    assert (scene.failures.skipped, scene.failures.dead_lettered, scene.written("dead")) == (1, 0, [])


def test_it_reads_what_operators_keep_in_every_task_and_by_several_intervals(tmp_path: Path) -> None:
    app = App("app")
    counts = app.stream("in", key=serdes.string, value=serdes.string).group_by_key().count("counts")
    seen = app.store(stores.key_value("seen", key=serdes.string, value=serdes.int64))

    def look(timestamp_ms: int, counts: StoreView, seen: StoreView) -> None:
        for key, count in counts.range():
            seen.put(f"{key} {timestamp_ms}", count)

    for every in (1_000, 700):
        app.punctuate(
            every=timedelta(milliseconds=every), on="stream_time", stores=[counts.store, seen], name=f"by-{every}"
        )(look)
    scene = Scene(app, tmp_path, partitions=2)
    scene.send("in", [(key, "v", at) for key in "abcdef" for at in (100, 650, 710, 999, 1_400, 1_500)])
    scene.work_off()
    stored = Stores(app, scene.config, tmp_path / "looked-at")
    try:
        found = {key.decode(): serdes.int64.deserialize(value) for key, value in stored.rows("seen", 2).items()}
    finally:
        stored.close()
    first = {key[0] for key in found if key.endswith(" 100")}
    assert len(first) == 2, "each task has begun with one of the keys"
    for key in first:
        mine = {int(name[2:]): count for name, count in found.items() if name[0] == key}
        assert mine == {100: 1, 710: 3, 1_400: 5}


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_on_a_broker(kafka_broker: SharedBroker, tmp_path: Path, guarantee: str) -> None:
    name = f"ticks-{uuid4().hex[:8]}"
    app = App(name)
    source = app.topic(f"{name}-in", key=serdes.string, value=serdes.string)
    out = app.topic(f"{name}-out", key=serdes.int64, value=serdes.string)
    table = app.table(source, store="newest")

    @app.punctuate(every=timedelta(milliseconds=10), on="wall_clock_time", stores=[table], forwards=[out])
    def tick(timestamp_ms: int, table: StoreView, out: Output) -> None:
        out.forward(timestamp_ms, table.get("k"))

    with closing(open_log(kafka_broker.bootstrap_servers, tmp_path)) as log:
        create(log, {f"{name}-in": 1, f"{name}-out": 1})
        with running(app, configured(app, tmp_path / "state", processing__guarantee=guarantee), log):
            eventually(lambda: len(read_all(log, f"{name}-out", 1)) > 2, "ticks arrive without input")
            produce(log, f"{name}-in", [(b"k", b"v", 1)])
            eventually(lambda: read_all(log, f"{name}-out", 1)[-1].value == b"v", "it sees what the table has")


def test_what_cannot_be_called_is_refused() -> None:
    app = App("app")
    lonely = app.store(stores.key_value("lonely", key=serdes.string, value=serdes.int64))
    with pytest.raises(TopologyError, match="'none' has no stores"):
        app.punctuate(every=EVERY, on="stream_time", stores=[], name="none")(lambda at: None)
    with pytest.raises(TopologyError, match=r"with 2 arguments: timestamp_ms, lonely\. <lambda> takes \(at\)"):
        app.punctuate(every=EVERY, on="stream_time", stores=[lonely], name="few")(lambda at: None)
    with pytest.raises(InvalidArgumentError, match="1 millisecond or more"):
        app.punctuate(every=timedelta(0), on="stream_time", stores=[lonely])
    app.punctuate(every=EVERY, on="stream_time", stores=[lonely], name="ticks")(lambda at, lonely: None)
    with pytest.raises(TopologyError, match="'ticks' uses the store 'lonely', which no topic feeds"):
        app.topology()
    with pytest.raises(TopologyError, match=r"Punctuation 'ticks' is declared in .*, already"):
        app.process("in", name="ticks")(lambda record: None)
