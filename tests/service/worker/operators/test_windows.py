"""Aggregates over tumbling and hopping windows: equal to an oracle that takes record by record, over restarts."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import murmur2

from service.worker.operators.operator_scene import SLICES_OF_5, Scene
from service.worker.operators.windows_oracle import (
    BASE_MS,
    TimeWindows,
    chained,
    check,
    compacted,
    count,
    events,
    held,
    larger,
    oracles,
)
from stateline import App, HoppingWindows, SessionWindows, SlidingWindows, TumblingWindows, serdes, stores
from stateline.dsl.streams import WindowedStream, WindowedTable
from stateline_store import InvalidArgumentError, TopologyError

SIZE, ADVANCE, GRACE = timedelta(seconds=30), timedelta(seconds=12), timedelta(seconds=25)
TUMBLING, HOPPING = TumblingWindows(SIZE, grace=GRACE), HoppingWindows(SIZE, ADVANCE, grace=GRACE)
Windows = TumblingWindows | HoppingWindows


def add_to_list(key: str, value: str | None, found: list[str | None]) -> list[str | None]:
    """Changes what it is given."""
    assert key.startswith("k")
    found.append(value)
    return found[-6:]


def text(value: Any) -> bytes:
    return str(value).encode()


def int64(value: int) -> bytes:
    return value.to_bytes(8, "big")


OPERATIONS: dict[str, tuple[Any, Any, Any]] = {
    "count": (lambda w: w.count("kept"), count, int64),
    "reduce": (lambda w: w.reduce(lambda a, b: larger(a, b), "kept"), larger, text),
    "aggregate": (
        lambda w: w.aggregate(list, add_to_list, "kept", value=serdes.json),
        chained,
        lambda value: json.dumps(value, separators=(",", ":")).encode(),
    ),
}


def built(windows: Any, declare: Callable[[WindowedStream], WindowedTable]) -> App:
    app = App("app")
    declare(app.stream("events", key=serdes.string, value=serdes.string).group_by_key().windowed_by(windows))
    return app


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("windows", [TUMBLING, HOPPING], ids=["tumbling", "hopping"])
@pytest.mark.parametrize(("guarantee", "slices"), SLICES_OF_5)
def test_each_window_holds_what_its_records_make_of_it_over_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, windows: Windows, operation: str, guarantee: str, slices: int
) -> None:
    monkeypatch.setattr("stateline.worker.loop.pace._MAX_SLICE_RECORDS", slices)
    declare, add, write = OPERATIONS[operation]
    scene = Scene(built(windows, declare), tmp_path, 2, {"processing.guarantee": guarantee})
    for part in (events(300), events(300, 1, first=300)):
        scene.send("events", part)
        scene.work_off()
    made = oracles(scene, lambda: TimeWindows(windows.size_ms, windows.advance_ms, windows.grace_ms, add))
    assert all(oracle.dropped > 10 for oracle in made), "the input has records that come too late"
    check(scene, "kept", made, write)


@pytest.mark.parametrize("windows", [TUMBLING, HOPPING], ids=["tumbling", "hopping"])
@pytest.mark.parametrize("remembered", [1, 8, 60])
def test_windows_that_are_not_remembered_are_read_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, windows: Windows, remembered: int
) -> None:
    monkeypatch.setattr("stateline.worker.loop.pace._MAX_SLICE_RECORDS", 5)
    monkeypatch.setattr("stateline.processing.operators.window_aggregate._WINDOWS", remembered)
    scene = Scene(built(windows, lambda w: w.count("kept", retention=timedelta(minutes=5))), tmp_path, 1)
    for part in (events(300, keys=10), events(300, 1, first=300, keys=10)):
        scene.send("events", part)
        scene.work_off()
    made = oracles(scene, lambda: TimeWindows(windows.size_ms, windows.advance_ms, windows.grace_ms, count, 300_000))
    check(scene, "kept", made, int64)


def test_what_was_too_late_before_a_restart_is_too_late_after_it(tmp_path: Path) -> None:
    app = built(TUMBLING, lambda w: w.count("kept"))
    scene = Scene(app, tmp_path, 1)
    scene.send("events", [("a", "v", BASE_MS), ("b", "v", BASE_MS + 50_000)])
    scene.work_off()
    scene.send("events", [("a", "v", BASE_MS)])
    scene.work_off()
    assert scene.failures.dropped == 1
    check(scene, "kept", oracles(scene, lambda: TimeWindows(30_000, 30_000, 25_000, count)), int64)


def test_a_window_takes_records_until_stream_time_is_its_end_and_the_grace(tmp_path: Path) -> None:
    scene = Scene(built(TUMBLING, lambda w: w.count("kept")), tmp_path, 1)
    first = BASE_MS - BASE_MS % 30_000
    late = ("a", "v", first + 29_999)
    scene.send("events", [late, ("b", "v", first + 54_999), late, ("b", "v", first + 55_000), late])
    scene.work_off()
    assert held(scene, "kept", sessions=False)[b"a", first] == (int64(2), first + 29_999)
    assert scene.failures.dropped == 1


def test_records_without_a_key_and_those_that_come_too_late_are_counted(tmp_path: Path) -> None:
    scene = Scene(built(HOPPING, lambda w: w.count("kept")), tmp_path, 1)
    scene.send("events", events(300))
    scene.work_off()
    (oracle,) = oracles(scene, lambda: TimeWindows(30_000, 12_000, 25_000, count))
    assert scene.failures.dropped == oracle.dropped


def test_a_longer_retention_keeps_more_windows_and_takes_no_more_records(tmp_path: Path) -> None:
    kept = timedelta(minutes=10)
    scene = Scene(built(TUMBLING, lambda w: w.count("kept", retention=kept)), tmp_path, 1)
    scene.send("events", events(400))
    scene.work_off()
    check(scene, "kept", oracles(scene, lambda: TimeWindows(30_000, 30_000, 25_000, count, 600_000)), int64)


def test_changes_of_windows_go_to_a_topic_with_the_keys_that_java_reads(tmp_path: Path) -> None:
    app = App("app")
    stream = app.stream("events", key=serdes.string, value=serdes.string)
    counts = stream.group_by_key().windowed_by(TUMBLING).count("kept").to_stream()
    counts.to("changes")
    counts.to(app.topic("for-java", key=serdes.time_windowed(serdes.string), value=serdes.int64))
    scene = Scene(app, tmp_path, 1)
    scene.send("events", events(300))
    scene.work_off()
    (oracle,) = oracles(scene, lambda: TimeWindows(30_000, 30_000, 25_000, count))
    wanted = {window: (int64(value), at) for window, (value, at) in oracle.all().items()}
    assert compacted(scene.written("changes"), sessions=False) == wanted
    for_java = {record.key: (record.value, record.timestamp_ms) for record in scene.written("for-java")}
    assert for_java == {key + int64(start): row for (key, start), row in wanted.items()}


@pytest.mark.parametrize("sessions", [False, True])
def test_rows_of_windows_and_sessions_go_to_the_partition_of_their_inner_key(tmp_path: Path, sessions: bool) -> None:
    """As by Kafka Streams' `WindowedStreamPartitioner`; oracle: murmur2, whose vectors are Kafka's own."""
    app = App("app")
    grouped = app.stream("events", key=serdes.string, value=serdes.string).group_by_key()
    windows = SessionWindows(timedelta(seconds=5), grace=GRACE) if sessions else TUMBLING
    counts = grouped.windowed_by(windows).count("kept").to_stream()
    counts.to("changes")
    topics = ["changes"]
    if not sessions:
        counts.to(app.topic("for-java", key=serdes.time_windowed(serdes.string), value=serdes.int64))
        topics.append("for-java")
    scene = Scene(app, tmp_path, {"events": 2, "changes": 7, "for-java": 5})
    scene.send("events", [(f"key-{n}", "v", BASE_MS + 1_000 * n) for n in range(60)])
    scene.work_off()
    for topic in topics:
        behind = 8 if topic == "for-java" else 16 if sessions else 12
        records = scene.written(topic)
        assert len(records) == 60
        wanted = {record.key: murmur2((record.key or b"")[:-behind], scene.count(topic)) for record in records}
        assert {record.key: record.partition for record in records} == wanted


def test_a_record_whose_function_fails_changes_nothing_and_moves_no_time(tmp_path: Path) -> None:
    def failing(key: str, value: str | None, found: list[str | None]) -> list[str | None]:
        made = add_to_list(key, value, found)
        if value == "v5":
            raise ValueError(value)
        return made

    app = built(HOPPING, lambda w: w.aggregate(list, failing, "kept", value=serdes.json))
    scene = Scene(app, tmp_path, 1, {"processing.exception.handler": "skip"})
    far = ("k1", "v5", BASE_MS + 3_600_000)
    sent = [*events(200), far, *events(200, 1, first=200)]
    scene.send("events", sent)
    scene.work_off()
    (oracle,) = [TimeWindows(30_000, 12_000, 25_000, chained)]
    failed = 0
    for key, value, at in sent:
        if value == "v5" and key is not None:
            failed += 1
        else:
            oracle.process(None if key is None else key.encode(), value, at)
    assert scene.failures.skipped > 10
    assert scene.failures.skipped <= failed, "a record that is too late for all its windows calls no function"
    check(scene, "kept", [oracle], OPERATIONS["aggregate"][2])


def test_a_record_before_1970_is_dropped(tmp_path: Path) -> None:
    scene = Scene(built(TUMBLING, lambda w: w.count("kept")), tmp_path, 1)
    scene.send("events", [("a", "v", 5), ("a", "v", 40_000), ("a", "v", 39_000)])
    scene.work_off()
    check(scene, "kept", oracles(scene, lambda: TimeWindows(30_000, 30_000, 25_000, count)), int64)


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (lambda: TumblingWindows(timedelta(0)), "size=datetime.timedelta(0)"),
        (lambda: TumblingWindows(5), "size=5"),  # type: ignore[arg-type]  # refused
        (lambda: TumblingWindows(timedelta(microseconds=1500)), "microseconds=1500"),
        (lambda: TumblingWindows(SIZE, grace=timedelta(seconds=-1)), "grace="),
        (lambda: HoppingWindows(SIZE, timedelta(seconds=31)), "advance=0:00:31"),
        (lambda: HoppingWindows(SIZE, timedelta(0)), "advance=datetime.timedelta(0)"),
        (lambda: SlidingWindows(timedelta(0)), "difference=datetime.timedelta(0)"),
        (lambda: SessionWindows(timedelta(0)), "gap=datetime.timedelta(0)"),
        (lambda: built("hourly", lambda w: w.count("kept")), "hourly"),
        (lambda: built(TUMBLING, lambda w: w.count("kept", retention=SIZE)), "retention=0:00:30"),
        (lambda: built(SlidingWindows(SIZE), lambda w: w.count("kept", retention=SIZE)), "at least 0:01:00"),
        (
            lambda: built(SessionWindows(SIZE, grace=GRACE), lambda w: w.count("kept", retention=SIZE)),
            "at least 0:00:55",
        ),
        (
            lambda: built(SessionWindows(SIZE), lambda w: w.aggregate(list, add_to_list, "kept", value=serdes.json)),
            "merger=",
        ),
        (
            lambda: built(TUMBLING, lambda w: w.aggregate(list, add_to_list, "kept", value=serdes.json, merger=max)),
            "merger=",
        ),
    ],
)
def test_bad_arguments_are_refused_with_what_was_given(make: Callable[[], object], shown: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        make()
    assert shown in str(raised.value)


def test_the_store_of_a_windowed_table_is_as_kafka_streams_makes_it() -> None:
    app = App("app")
    grouped = app.stream("events", key=serdes.string, value=serdes.string).group_by_key()
    tables = [
        grouped.windowed_by(TUMBLING).count("tumbling"),
        grouped.windowed_by(SlidingWindows(SIZE, grace=GRACE)).count("sliding"),
        grouped.windowed_by(SessionWindows(SIZE, grace=GRACE)).count("sessions"),
    ]
    kept = [(t.store.kind, t.store.window_size_ms, t.store.retention_ms) for t in tables]
    assert kept == [
        ("timestamped_window", 30_000, 55_000),
        ("timestamped_window", 30_000, 85_000),
        ("timestamped_session", 0, 55_000),
    ]


def test_a_store_is_named_once() -> None:
    app = App("app")
    grouped = app.stream("events", key=serdes.string, value=serdes.string).group_by_key()
    app.store(stores.key_value("kept", key=serdes.string, value=serdes.string))
    with pytest.raises(TopologyError):
        grouped.windowed_by(TUMBLING).count("kept")
