"""Records with a time of their own: in stores, windows, joins and punctuations, and after restarts."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from service.worker.operators.operator_scene import Given, Scene
from stateline import App, InputRecord, Output, StoreView, TumblingWindows, serdes, stores
from stateline.log import Log, Record
from stateline.log.interface import OffsetNote
from stateline.worker.restore.store_restore import RestoredStore, StoreRestore
from stateline.worker.standbys.standby_store import StandbyStore
from stateline_store import (
    IsolationLevel,
    RecordError,
    StateDirectory,
    StoreContext,
    TimestampedKeyValueStore,
    TopicPartition,
)
from support.processes.running_worker import configured, create, eventually, produce, read_all, running
from support.run.length import on_one_log

GUARANTEES = ["at_least_once", "exactly_once_v2"]
LOG_MS = 1_700_000_000_000  # the log's own timestamps, which nothing may show


def flown(key: str, at: Any, n: int = 0) -> Given:
    """A record whose log time is another one than the one in its value."""
    return key, json.dumps({"at": at, "n": n}), LOG_MS


def folded(policy: str = "partition_time", *, table: bool = False, name: str = "app", topic: str = "in") -> App:
    """Keeps the times of all records of each key, in the order that they came in, and writes each one out."""
    app = App(name)
    source = app.topic(topic, key=serdes.string, value=serdes.json, timestamp="at", on_invalid_timestamp=policy)  # type: ignore[arg-type]
    kept = app.store(stores.timestamped_key_value("kept", key=serdes.string, value=serdes.json))
    out = app.topic(f"{topic}-out", key=serdes.string, value=serdes.int64)
    if table:
        app.table(source, store="newest")

    @app.process(source, stores=[kept], forwards=[out])
    def keep(record: InputRecord, kept: StoreView, out: Output) -> None:
        kept.put(record.key, [*(kept.get(record.key) or []), record.timestamp_ms])
        out.forward(record.key, record.timestamp_ms)

    return app


def some(count: int, seed: int) -> list[Given]:
    """Times out of order; each fourth record has none."""
    chance = random.Random(seed)
    times = [1_000 + 10 * n + chance.randrange(500) for n in range(count)]
    return [
        flown(f"k{chance.randrange(4)}", None if n and not chance.randrange(4) else at) for n, at in enumerate(times)
    ]


def oracle(given: list[Given]) -> dict[str, list[int]]:
    """Kafka Streams' `UsePartitionTimeOnInvalidTimestamp`, of one partition."""
    found: dict[str, list[int]] = {}
    partition_time = -1
    for key, value, _ in given:
        said = json.loads(value)["at"]
        at = partition_time if said is None else said
        partition_time = max(partition_time, at)
        found.setdefault(key, []).append(at)
    return found


def kept(rows: Mapping[bytes, tuple[bytes, int]]) -> dict[str, list[int]]:
    return {key.decode(): json.loads(value) for key, (value, _) in rows.items()}


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("table", [False, True], ids=["", "beside-a-table"])
def test_a_partitions_time_goes_on_after_restarts_also_without_the_local_state(
    tmp_path: Path, guarantee: str, table: bool
) -> None:
    scene = Scene(folded(table=table), tmp_path, partitions=1, settings={"processing.guarantee": guarantee})
    given = some(120, 5)
    given[40] = flown("k0", None)  # the first one of a worker's life has none
    given[80] = flown("k1", None)
    for number, part in enumerate((given[:40], given[40:80], given[80:])):
        scene.send("in", part)
        scene.work_off()
        if number == 1:
            shutil.rmtree(scene.config.state_dir)
    assert kept(scene.rows("kept")) == oracle(given)
    assert all(at == json.loads(value)[-1] for value, at in scene.rows("kept").values())
    for key, times in oracle(given).items():
        assert [r.timestamp_ms for r in scene.written("in-out") if r.key == key.encode()] == times


@on_one_log("embedded", "test_missed_input.py reads what is noted beside offsets on Kafka")
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_partitions_time_is_kept_by_either_log(log: Log, guarantee: str, tmp_path: Path) -> None:
    name, topic = f"app-{uuid4().hex[:8]}", f"in-{uuid4().hex[:8]}"
    app = folded(name=name, topic=topic)
    config = configured(app, tmp_path / "state", processing__guarantee=guarantee)
    create(log, {topic: 1, f"{topic}-out": 1})
    for said, wanted in ((500, [500]), (None, [500, 500]), (300, [500, 500, 300]), (None, [500, 500, 300, 500])):
        produce(log, topic, [(b"k", json.dumps({"at": said}).encode(), LOG_MS)])
        with running(app, config, log):
            count = len(wanted)
            eventually(lambda n=count: len(read_all(log, f"{topic}-out", 1)) >= n, "the record is processed")  # type: ignore[misc]
        assert [record.timestamp_ms for record in read_all(log, f"{topic}-out", 1)] == wanted
        shutil.rmtree(config.state_dir)


@pytest.mark.parametrize("kind", ["newest", "versioned"])
def test_a_table_has_the_same_times_after_restarts_and_a_restore(tmp_path: Path, kind: str) -> None:
    app = App("app")
    source = app.topic(
        "in", key=serdes.string, value=serdes.json, timestamp="at", on_invalid_timestamp="partition_time"
    )
    app.table(source, store="kept", versioned=timedelta(days=1) if kind == "versioned" else None)
    given = some(90, 9)
    given[30] = given[60] = flown("k0", None)
    found = {}
    for way in ("at-once", "restarted", "restored"):
        scene = Scene(app, tmp_path / way, partitions=1)
        for first, last in [(0, 90)] if way == "at-once" else [(0, 30), (30, 60), (60, 90)]:
            if way == "restored" and first:
                shutil.rmtree(scene.config.state_dir)
            scene.send("in", given[first:last])
            scene.work_off()
        found[way] = scene.rows("kept")
    assert found["at-once"] == found["restarted"] == found["restored"]
    if kind == "newest":
        newest = {key: times[-1] for key, times in oracle(given).items()}
        assert {key.decode(): at for key, (_, at) in found["restored"].items()} == newest


def test_windows_and_their_results_go_by_the_times_of_the_records(tmp_path: Path) -> None:
    app = App("app")
    source = app.topic("in", key=serdes.string, value=serdes.json, timestamp=lambda record, _: record.value["at"])
    windows = TumblingWindows(timedelta(milliseconds=100), grace=timedelta(milliseconds=50))
    app.stream(source).group_by_key().windowed_by(windows).count("counts")
    scene = Scene(app, tmp_path, partitions=1)
    given = [("a", 10), ("a", 90), ("a", 120), ("a", 40), ("a", 160), ("a", 30), ("a", 170)]
    scene.send("in", [flown(key, at) for key, at in given])
    scene.work_off()
    counted = sorted(
        (int.from_bytes(key[-12:-4]), int.from_bytes(value), at) for key, (value, at) in scene.rows("counts").items()
    )
    # The record at 30 comes when the window up to 100 is closed, by 160.
    assert counted == [(0, 3, 90), (100, 3, 170)]
    assert scene.failures.dropped == 1


def test_a_join_takes_both_sides_in_order_of_the_records_own_times_also_those_without_one(tmp_path: Path) -> None:
    app = App("app")
    told: dict[str, Any] = {"key": serdes.string, "value": serdes.json, "timestamp": "at"}
    prices = app.topic("prices", **told, on_invalid_timestamp="skip")
    sales = app.topic("sales", **told, on_invalid_timestamp="partition_time")
    table = app.table(prices, store="kept")
    app.stream(sales).join(app.ktable(table), lambda sale, price: [sale["n"], price["n"]]).to("out")
    scene = Scene(app, tmp_path, partitions=1)
    scene.send("prices", [flown("a", at, at) for at in (10, 30, 50)] + [flown("a", None, 0), flown("a", 70, 70)])
    scene.send("sales", [flown("a", at, n) for n, at in enumerate((20, 40, None, 60, 80, None))])
    scene.work_off()
    joined = [(json.loads(r.value or b""), r.timestamp_ms) for r in scene.written("out")]
    assert joined == [([0, 10], 20), ([1, 30], 40), ([2, 30], 40), ([3, 50], 60), ([4, 70], 80), ([5, 70], 80)]
    assert scene.failures.dropped == 1


def test_stream_time_of_punctuations_is_that_of_the_records_own_times(tmp_path: Path) -> None:
    app = App("app")
    source = app.topic("in", key=serdes.string, value=serdes.json, timestamp="at")
    counts = app.store(stores.timestamped_key_value("counts", key=serdes.string, value=serdes.int64))
    out = app.topic("out", key=serdes.string, value=serdes.int64)

    @app.process(source, stores=[counts])
    def count(record: InputRecord, counts: StoreView) -> None:
        counts.put(record.key, (counts.get(record.key) or 0) + 1)

    @app.punctuate(every=timedelta(milliseconds=100), on="stream_time", stores=[counts], forwards=[out])
    def tell(timestamp_ms: int, counts: StoreView, out: Output) -> None:
        out.forward("a", counts.get("a"))

    scene = Scene(app, tmp_path, partitions=1)
    scene.send("in", [flown("a", at) for at in (20, 90, 150, 110, 310)])
    scene.work_off()
    assert [(r.timestamp_ms, int.from_bytes(r.value or b"")) for r in scene.written("out")] == [
        (20, 1),
        (150, 3),
        (310, 5),
    ]


@pytest.mark.parametrize("policy", ["skip", "dead-letter", "fail"])
def test_under_fail_a_record_without_a_time_goes_the_way_of_those_that_cannot_be_read(
    tmp_path: Path, policy: str
) -> None:
    settings = {"deserialization.exception.handler": policy, "errors.dead.letter.queue.topic.name": "dead"}
    scene = Scene(folded("fail"), tmp_path, partitions=1, settings=settings)
    scene.create("dead")
    scene.send("in", [flown("a", 7), flown("b", "soon"), flown("c", 9)])
    if policy == "fail":
        with pytest.raises(RecordError, match=r"in-0 offset 1 key b'b': .*'soon' is neither a number nor a time"):
            scene.work_off()
        return
    scene.work_off()
    assert kept(scene.rows("kept")) == {"a": [7], "c": [9]}
    letters = scene.written("dead")
    assert [(letter.key, letter.timestamp_ms) for letter in letters] == [(b"b", LOG_MS)] * (policy == "dead-letter")


@pytest.mark.parametrize("follows", [StandbyStore, StoreRestore])
def test_a_copy_that_is_read_on_by_another_process_goes_on_with_its_partitions_time(
    tmp_path: Path, follows: type[StoreRestore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateline.worker.restore.store_restore._BATCH_BYTES", 1)
    topic = App("app").topic(
        "in", key=serdes.string, value=serdes.json, timestamp="at", on_invalid_timestamp="partition_time"
    )
    given = some(80, 3)
    given[40] = flown("k0", None)
    records = [Record("in", 0, n, at, key.encode(), value.encode()) for n, (key, value, at) in enumerate(given)]
    place = TopicPartition("in", 0)
    for part in (records[:40], records[40:]):
        store = TimestampedKeyValueStore("kept")
        store.init(StoreContext("0_0", StateDirectory(tmp_path, "app").task("0_0"), place))
        of = RestoredStore(store, store.commit, place, topic)
        restore = follows(of, part[0].offset, part[-1].offset + 1)
        if isinstance(restore, StandbyStore):
            restore.read(part, part[-1].offset + 1, part[-1].offset + 1)
            restore.commit_whole()
        else:
            restore.apply(part)
            restore.finish(0)
        with store.reader(IsolationLevel.READ_COMMITTED).range(None, None) as rows:
            found = {key.decode(): int.from_bytes(value[:8]) for key, value in rows}
        store.close()
    assert found == {key: times[-1] for key, times in oracle(given).items()}


def test_what_is_read_again_from_its_beginning_has_no_partition_time_of_later(tmp_path: Path) -> None:
    scene = Scene(folded(), tmp_path, partitions=1, settings={"deserialization.exception.handler": "skip"})
    scene.send("in", [flown("a", None), flown("a", 7)])
    with closing(scene.log.consumer("app")) as consumer:
        consumer.commit(
            {TopicPartition("in", 0): 5}, {TopicPartition("in", 0): OffsetNote(900)}
        )  # the log has lost its tail since
    with running(scene.app, scene.config, scene.log) as worker:
        eventually(lambda: len(scene.written("in-out")) == 1, "the second one is processed")
    assert (worker.failures.skipped, [r.timestamp_ms for r in scene.written("in-out")]) == (1, [7])
