"""A function with stores in the middle of a stream, against plain dicts: Kafka Streams' `process`, `processValues`."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from service.worker.operators.operator_scene import Scene
from stateline import App, InputRecord, ProcessorContext, StoreView, serdes, stores
from stateline.testing import Record, TestDriver
from stateline_store import RecordError, TopologyError
from support.processes.running_worker import Stores

GUARANTEES = ["at_least_once", "exactly_once_v2"]
TEXTS: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
DEAD: dict[str, Any] = {"errors.dead.letter.queue.topic.name": "dead"}


def running_totals(app: App, *, values_only: bool = True) -> None:
    """Each number as its key's total so far, in a store and in a topic; a negative one fails after it was put."""
    numbers = app.stream("numbers", key=serdes.string, value=serdes.json)
    totals = app.store(stores.key_value("totals", key=serdes.string, value=serdes.int64))

    def total(record: InputRecord, totals: StoreView) -> Iterator[Any]:
        now = (totals.get(record.key) or 0) + record.value
        totals.put(record.key, now)
        if record.value < 0:
            raise ValueError("negative")
        yield now if values_only else (record.key, now)

    def looked_up(record: InputRecord, totals: StoreView) -> list[int]:
        return [totals.get(record.key)]

    out = app.topic("out", key=serdes.string, value=serdes.int64)
    if values_only:
        numbers.process_values(total, stores=[totals], value=serdes.int64).group_by_key().count("counts")
        numbers.process_values(looked_up, stores=[totals], value=serdes.int64).to(out)
    else:
        numbers.process(total, stores=[totals], value=serdes.int64).to(out)


def given(count: int, seed: int = 1) -> list[tuple[str, int]]:
    draw = random.Random(seed)
    return [(draw.choice("abcdef"), draw.randint(-2, 9)) for _ in range(count)]


def oracle(pairs: list[tuple[str, int]]) -> tuple[dict[str, int], list[tuple[str, int]]]:
    """Totals, and what leaves for each row that does not fail."""
    totals: dict[str, int] = {}
    out = []
    for key, number in pairs:
        if number >= 0:
            totals[key] = totals.get(key, 0) + number
            out.append((key, totals[key]))
    return totals, out


@pytest.mark.parametrize("policy", ["skip", "dead-letter"])
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_rows_come_in_order_find_what_earlier_ones_put_and_the_writes_of_one_that_fails_are_undone(
    guarantee: str, policy: str
) -> None:
    app = App("totals")
    running_totals(app, values_only=False)
    config = {"processing.guarantee": guarantee, "processing.exception.handler": policy, **DEAD}
    pairs = given(200)
    wanted, out = oracle(pairs)
    with TestDriver(app, config=config) as driver:
        driver.pipe_all("numbers", [Record(key, number) for key, number in pairs[:120]])
        driver.crash()
        driver.pipe_all("numbers", [Record(key, number) for key, number in pairs[120:]])
        assert {entry.key: entry.value for entry in driver.store("totals").all()} == wanted
        assert [(record.key, record.value) for record in driver.read("out")] == out
        dead = driver.dead_letters()
        assert len(dead) == (sum(number < 0 for _, number in pairs) if policy == "dead-letter" else 0)


def test_two_functions_that_share_a_store_see_it_as_of_each_record_and_not_of_the_slice() -> None:
    app = App("totals")
    running_totals(app)
    pairs = [(key, abs(number)) for key, number in given(150)]
    wanted, out = oracle(pairs)
    with TestDriver(app) as driver:
        driver.pipe_all("numbers", [Record(key, number) for key, number in pairs])
        assert [(record.key, record.value) for record in driver.read("out")] == out
        assert {entry.key: entry.value for entry in driver.store("totals").all()} == wanted
        counts = {key: sum(k == key for k, _ in pairs) for key in wanted}
        assert {entry.key: entry.value for entry in driver.store("counts").all()} == counts


def test_under_fail_nothing_of_the_record_stays_and_the_function_is_named() -> None:
    app = App("totals")
    running_totals(app, values_only=False)
    with TestDriver(app) as driver:
        driver.pipe("numbers", "a", 5)
        with pytest.raises(RecordError, match=r"Processor 'process total' failed on numbers-0 offset 1 .*negative"):
            driver.pipe("numbers", "a", -1)
        assert driver.store("totals").get("a") == 5


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_its_store_is_restored_from_its_changelog(tmp_path: Path, guarantee: str) -> None:
    app = App("totals")
    running_totals(app, values_only=False)
    scene = Scene(app, tmp_path, partitions=2, settings={"processing.guarantee": guarantee})
    pairs = [(key, abs(number)) for key, number in given(100)]
    scene.send("numbers", [(key, number, at) for at, (key, number) in enumerate(pairs[:60])])
    scene.work_off()
    shutil.rmtree(scene.config.state_dir)
    scene.send("numbers", [(key, number, at) for at, (key, number) in enumerate(pairs[60:], 60)])
    scene.work_off()
    wanted, _ = oracle(pairs)
    assert {key.decode(): serdes.int64.deserialize(value) for key, value in plain_rows(scene).items()} == wanted


def plain_rows(scene: Scene) -> dict[bytes, bytes]:
    """What the totals of both partitions are."""
    found: dict[bytes, bytes] = {}
    seen = Stores(scene.app, scene.config, scene.root / "looked-at")
    try:
        for partition in range(2):
            reader = seen.reader("totals", partition)
            assert reader is not None
            with reader.range(None, None) as rows:
                found |= dict(rows)
    finally:
        seen.close()
    return found


def test_rows_may_have_other_keys_and_timestamps_and_keep_the_place_of_their_record() -> None:
    app = App("rows")

    def turned(record: InputRecord) -> list[Any]:
        place = f"{record.topic}-{record.partition}@{record.offset}"
        return [(record.value, place), record._replace(key="later", timestamp_ms=record.timestamp_ms + 1)]

    app.stream("in", **TEXTS).process(turned).to("out")
    with TestDriver(app) as driver:
        driver.pipe("in", "k", "v", timestamp_ms=7)
        assert driver.read("out") == [Record("v", "in-0@0", timestamp_ms=7), Record("later", "v", timestamp_ms=8)]


def test_values_keep_key_and_timestamp_and_none_is_no_row() -> None:
    app = App("rows")
    out = app.topic("out", **TEXTS)

    def doubled(record: InputRecord) -> list[str] | None:
        return None if record.value == "none" else [record.value, record.value.upper()]

    app.stream("in", **TEXTS).process_values(doubled).to(out)
    with TestDriver(app) as driver:
        driver.pipe_all("in", [Record("k", "v", 7), Record("k", "none", 8)])
        assert driver.read("out") == [Record("k", "v", timestamp_ms=7), Record("k", "V", timestamp_ms=7)]


def test_a_table_of_the_same_topic_is_read_as_it_is_at_each_record() -> None:
    app = App("changes")
    newest = app.table("in", **TEXTS)
    rows = app.stream("in")
    counted = rows.group_by_key().count("counts")

    def seen(record: InputRecord, newest: StoreView, counts: StoreView) -> list[str]:
        return [f"{newest.get(record.key)}{counts.get(record.key)}"]

    rows.process_values(seen, stores=[newest, counted.store]).to("out")
    with TestDriver(app) as driver:
        driver.pipe_all("in", [Record("k", value) for value in "abc"] + [Record("j", "d")])
        assert [record.value for record in driver.read("out")] == ["a1", "b2", "c3", "d1"]


def test_a_table_of_another_topic_is_met_in_the_order_of_time() -> None:
    app = App("prices")
    prices = app.table("prices", **TEXTS)
    app.stream("orders", **TEXTS).process_values(
        lambda record, prices: [f"{record.value} at {prices.get(record.key)}"], stores=[prices]
    ).to("out")
    assert app.topology().subtopologies[0].needs_order()


def test_keys_may_have_changed_behind_process_and_have_not_behind_process_values() -> None:
    rows = App("keys").stream("in", **TEXTS)
    with pytest.raises(TopologyError, match="the key was changed"):
        rows.process(lambda record: []).group_by_key()
    rows.process_values(lambda record: []).group_by_key().count("counts")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            lambda record: [],
            r"process calls its function with 2 arguments: record, kept\. .*\(.*test_process\.py, line \d+\)",
        ),
        (lambda record, kept, *, other: [], r"calls its function with 2 arguments: record, kept"),
        ("no function", r"was given 'no function' as its function"),
    ],
)
def test_a_function_of_other_arguments_is_refused_where_it_is_declared(function: Any, said: str) -> None:
    app = App("wrong")
    kept = app.store(stores.key_value("kept", **TEXTS))
    with pytest.raises(TopologyError, match=said):
        app.stream("in", **TEXTS).process(function, stores=[kept])


@pytest.mark.parametrize("made", [3, [3], [("a", 1)], [("a", "b", "c")], "ab", ["ab"], {"a": "b"}, [{"a": 1, "b": 2}]])
def test_what_is_no_row_fails_its_record(made: Any) -> None:
    app = App("wrong")
    app.stream("in", **TEXTS).process(lambda record: made).to("out")
    with TestDriver(app) as driver, pytest.raises(RecordError, match="Processor 'process <lambda>' failed"):
        driver.pipe("in", "k", "v")


def test_one_row_may_be_returned_as_it_is() -> None:
    app = App("one")
    app.stream("in", **TEXTS).process(lambda record: (record.key, "made")).to("made")
    app.stream("in", **TEXTS).process(lambda record: record._replace(timestamp_ms=7)).to("later")
    with TestDriver(app) as driver:
        driver.pipe("in", "ab", "cd", timestamp_ms=1)
        assert driver.read("made") == [Record("ab", "made", timestamp_ms=1)]
        assert driver.read("later") == [Record("ab", "cd", timestamp_ms=7)]


@pytest.mark.parametrize("made", ["ab", b"ab", {"a": "b"}, 5])
def test_one_value_is_not_taken_for_many(made: Any) -> None:
    app = App("wrong")
    app.stream("in", **TEXTS).process_values(lambda record: made).to("out")
    with (
        TestDriver(app) as driver,
        pytest.raises(RecordError, match=r"give a list of rows, or yield each \(.*test_process.py, line \d+\)"),
    ):
        driver.pipe("in", "k", "v")


# ---- What a function may ask of its task


def asking(app: App, seen: list[Mapping[str, Any]]) -> None:
    kept = app.store(stores.key_value("kept", **TEXTS))

    def ask(record: InputRecord, kept: StoreView, *, context: ProcessorContext) -> None:
        kept.put(record.key, record.value)
        if record.value == "commit":
            context.commit()
        seen.append(
            {
                "application": context.application_id,
                "task": context.task_id,
                "partition": context.partition,
                "stream": context.current_stream_time_ms(),
                "system": context.current_system_time_ms(),
            }
        )

    app.process("in", **TEXTS, stores=[kept])(ask)


def test_a_function_that_names_a_context_learns_its_task_and_the_times() -> None:
    app, seen = App("asks"), list[Mapping[str, Any]]()
    asking(app, seen)
    with TestDriver(app, partitions=2, wall_clock_ms=1_000) as driver:
        driver.pipe("in", "k", "v", timestamp_ms=50, partition=1)
        driver.advance_wall_clock(5)
        driver.pipe("in", "k", "v", timestamp_ms=40, partition=1)
        driver.pipe("in", "k", "v", timestamp_ms=7, partition=0)
    assert seen == [
        {"application": "asks", "task": "0_1", "partition": 1, "stream": 50, "system": 1_000},
        {"application": "asks", "task": "0_1", "partition": 1, "stream": 50, "system": 1_005},
        {"application": "asks", "task": "0_0", "partition": 0, "stream": 7, "system": 1_005},
    ]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_commit_comes_when_a_function_asks_for_it_and_not_before(guarantee: str) -> None:
    app = App("asks")
    asking(app, [])
    with TestDriver(app, autocommit=False, config={"processing.guarantee": guarantee}) as driver:
        kept = driver.store("kept")
        driver.pipe("in", "a", "v")
        assert kept.get("a", isolation_level="read_committed") is None
        driver.pipe("in", "b", "commit")
        assert kept.get("a", isolation_level="read_committed") == "v"
        assert kept.get("b", isolation_level="read_committed") == "commit"
        driver.pipe("in", "c", "v")
        assert kept.get("c", isolation_level="read_committed") is None


def test_a_punctuation_and_a_function_in_a_stream_have_a_context_too() -> None:
    app, seen = App("asks"), list[tuple[str, int]]()
    kept = app.store(stores.key_value("kept", **TEXTS))

    def look(record: InputRecord, kept: StoreView, *, context: ProcessorContext) -> list[str]:
        seen.append(("record", context.current_stream_time_ms()))
        return [record.value]

    app.stream("in", **TEXTS).process_values(look, stores=[kept])

    @app.punctuate(every=timedelta(seconds=1), on="wall_clock_time", stores=[kept])
    def tick(timestamp_ms: int, kept: StoreView, *, context: ProcessorContext) -> None:
        kept.put("ticked", "yes")
        seen.append(("tick", context.current_stream_time_ms()))
        context.commit()

    with TestDriver(app, autocommit=False, wall_clock_ms=9_000) as driver:
        driver.pipe_all("in", [Record("k", "v", 5), Record("k", "v", 9), Record("k", "v", 6)])
        driver.advance_wall_clock(1_000)
        assert seen == [("record", 5), ("record", 9), ("record", 9), ("tick", 9)]
        driver.process()
        assert driver.store("kept").get("ticked", isolation_level="read_committed") == "yes"


def test_a_store_that_is_named_context_is_none() -> None:
    app = App("named")
    context = app.store(stores.key_value("context", **TEXTS))
    app.process("in", **TEXTS, stores=[context], name="keep")(
        lambda record, context: context.put(record.key, record.value)
    )
    with TestDriver(app) as driver:
        driver.pipe("in", "k", "v")
        assert driver.store("context").get("k") == "v"


def test_a_negative_timestamp_fails_its_record() -> None:
    app = App("wrong")
    app.stream("in", **TEXTS).process(lambda record: [record._replace(timestamp_ms=-1)]).to("out")
    with TestDriver(app) as driver, pytest.raises(RecordError, match="-1 is no timestamp"):
        driver.pipe("in", "k", "v")


def test_a_row_that_no_record_of_the_log_can_hold_fails_the_function_that_gave_it_and_its_writes_are_undone() -> None:
    app = App("large")
    seen = app.store(stores.key_value("seen", **TEXTS))

    def grown(record: InputRecord, seen: StoreView) -> list[tuple[str, str]]:
        seen.put(record.key, record.value)
        return [(record.key, record.value * 1_000_000)]

    app.stream("in", **TEXTS).process(grown, stores=[seen]).to("out")
    with TestDriver(app, config={"processing.exception.handler": "dead-letter", **DEAD}) as driver:
        driver.pipe("in", "a", "x")
        (dead,) = driver.dead_letters()
        assert "its value have 1000001 bytes" in dead.message
        assert driver.store("seen").all() == []
