"""Tables grouped by another key, against what plain Python makes of the same changes by Kafka Streams' rules."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.worker.operators.operator_scene import SLICES_OF_1, Given, Scene
from stateline import App, serdes
from stateline.dsl.grouped_tables import GroupedTable
from stateline.dsl.streams import Table
from stateline.testing import Record, TestDriver
from stateline_store import InvalidArgumentError, RecordError, TopologyError
from support.apps import groups_app
from support.processes.running_worker import eventually, running
from support.run.length import long_or_short

TEXTS: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
Row = tuple[str, str]


def group_of(key: str, value: str) -> tuple[str | None, str | None] | None:
    """`x…` is in no group, for each reason; others are in that of their first letter."""
    if value.startswith("x"):
        return {"x": None, "xk": (None, value)}.get(value, ("a", None))
    return value[0], key + value


def one_more(reduced: str, value: str) -> str | None:
    return None if value.endswith("9") else f"{reduced}+{value}"


def one_less(reduced: str, value: str) -> str | None:
    return None if value.endswith("8") else f"{reduced}-{value}"


def add(key: str, value: str, found: list[str]) -> list[str] | None:
    assert key == value[2]
    found.append(value)
    return None if value.endswith("7") else found


def subtract(key: str, value: str, found: list[str]) -> list[str] | None:
    assert key == value[2]
    if value in found:
        found.remove(value)
    return None if value.endswith("6") else found


def grouped(app: App, mapper: Any = group_of) -> GroupedTable[Table]:
    people = app.ktable(app.table("people", **TEXTS))
    return people.group_by(mapper, name="by-letter")


def declared() -> App:
    app = App("app")
    groups = grouped(app)
    groups.count("count").to_stream().to("counts")
    groups.reduce(one_more, one_less, "reduce")
    groups.aggregate(list, add, subtract, "aggregate", value=serdes.json).to_stream().to("aggregates")
    return app


class Oracle:
    """Each change of its own, as `KTableRepartitionMap`, `KTableAggregate` and `KTableReduce` take it."""

    def __init__(self) -> None:
        self.table: dict[str, str] = {}
        self.sent: list[tuple[str, Any, int]] = []
        self.stores: dict[str, dict[str, tuple[Any, int]]] = {"count": {}, "reduce": {}, "aggregate": {}}
        self.counts: list[tuple[str, int, int]] = []
        self.aggregates: list[tuple[str, Any, int]] = []

    def process(self, key: str | None, value: str | None, at: int) -> None:
        if key is None:
            return
        old, new = (self._mapped(key, each) for each in (self.table.get(key), value))
        self.table = {k: v for k, v in {**self.table, key: value}.items() if v is not None}
        if old and new and old[0] == new[0]:
            self._take(new[0], old[1], new[1], at)
        else:
            if old:
                self._take(old[0], old[1], None, at)
            if new:
                self._take(new[0], None, new[1], at)

    @staticmethod
    def _mapped(key: str, value: str | None) -> Row | None:
        pair = None if value is None else group_of(key, value)
        return None if pair is None or pair[0] is None or pair[1] is None else (pair[0], pair[1])

    def _take(self, group: str, old: str | None, new: str | None, at: int) -> None:
        self.sent.append((group, (old, new), at))
        counts = self.stores["count"]
        counted, stamp = counts.get(group, (None, at))
        if counted is not None or new is not None:
            total = (counted or 0) - (old is not None and counted is not None) + (new is not None)
            counts[group] = total, max(at, stamp)
            self.counts.append((group, *counts[group]))
        self._fold("reduce", group, old, new, at)
        self.aggregates.append((group, *self._fold("aggregate", group, old, new, at)))

    def _fold(self, store: str, group: str, old: str | None, new: str | None, at: int) -> tuple[Any, int]:
        held, stamp = self.stores[store].pop(group, (None, at))
        reduces = store == "reduce"
        if old is not None and held is not None:
            held = one_less(held, old) if reduces else subtract(group, old, [*held])
        if new is not None:
            if reduces:
                held = new if held is None else one_more(held, new)
            else:
                held = add(group, new, [] if held is None else [*held])
        stamp = max(at, stamp)
        if held is not None:
            self.stores[store][group] = held, stamp
        return held, stamp


KEYS = st.sampled_from(["k1", "k2", "k3"])
VALUES = st.none() | st.sampled_from(["x", "xk", "xv", "a1", "a2", "b1", "b9", "a8", "b7", "a6"])


@settings(max_examples=long_or_short(60, 8), deadline=None)
@given(st.lists(st.tuples(KEYS, VALUES, st.integers(0, 30)), min_size=5, max_size=25))
def test_each_change_leaves_and_enters_groups_as_in_kafka_streams(changes: list[tuple[str, str | None, int]]) -> None:
    oracle = Oracle()
    with TestDriver(declared()) as driver:
        for change in changes:
            oracle.process(*change)
            driver.pipe("people", change[0], change[1], timestamp_ms=change[2])
        sent = [(r.key, r.value, r.timestamp_ms) for r in driver.read("app-by-letter-repartition")]
        assert sent == oracle.sent
        for store, rows in oracle.stores.items():
            assert {e.key: (e.value, e.timestamp) for e in driver.store(store).all()} == rows, store
        assert [(r.key, r.value, r.timestamp_ms) for r in driver.read("counts")] == oracle.counts
        assert [(r.key, r.value, r.timestamp_ms) for r in driver.read("aggregates")] == oracle.aggregates


def changes(count: int, seed: int) -> list[Given]:
    """Of forty keys in five groups, out of order, one in five a deletion."""
    chance = random.Random(seed)
    return [
        (
            f"k{chance.randrange(40)}",
            None if chance.random() < 0.2 else f"{chance.choice('abcdex')}{chance.randrange(9)}",
            1_000_000 + n * 10 - chance.randrange(300),
        )
        for n in range(count)
    ]


def as_stored(rows: dict[str, list[str]]) -> tuple[dict[bytes, int], dict[bytes, Any]]:
    """Counts and rows of groups, as `work_off_to` finds them."""
    counts = {group.encode(): len(found) for group, found in rows.items()}
    return counts, {group.encode(): found for group, found in rows.items()}


def work_off_to(scene: Scene, wanted: dict[str, list[str]], *, counted: bool = True) -> None:
    """Run a worker until its stores have these rows of groups, and their numbers if they are `counted`."""

    def is_there() -> bool:
        numbers, rows = as_stored(wanted)
        found = {key: orjson.loads(value) for key, (value, _) in scene.rows("rows").items()}
        counts = {key: int.from_bytes(value, "big") for key, (value, _) in scene.rows("counts").items()}
        return found == rows and (counts == numbers or not counted)

    with running(scene.app, scene.config, scene.log):
        eventually(is_there, f"groups have {wanted}")


@pytest.mark.parametrize(("guarantee", "slices"), SLICES_OF_1)
def test_groups_have_the_newest_rows_over_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarantee: str, slices: int
) -> None:
    monkeypatch.setattr("stateline.worker.loop.pace._MAX_SLICE_RECORDS", slices)
    scene = Scene(groups_app.build(), tmp_path, partitions=2, settings={"processing.guarantee": guarantee})
    sent = [*((f"k{n}", f"{letter}0", 1) for n, letter in enumerate("abcde")), *changes(400, 1)]
    for first in (0, 5, 200):
        part = sent[first : {0: 5, 5: 200, 200: None}[first]]
        scene.send("people", part)
        work_off_to(scene, groups_app.rows_of(sent[: first + len(part)]))


STEPS = ["commit:changes-flushed#2", "commit:log-committed#2", "commit:batch-written#4", "commit:task-committed"]


def killed(folder: Path, settings: dict[str, Any]) -> tuple[Scene, list[Given]]:
    """A worker has begun, and was killed at every kind of step. Returns what was sent."""
    common = {"group.instance.id": "the-worker", **settings}
    scene = Scene(groups_app.build(), folder, partitions=2, settings=common)
    sent: list[Given] = [(f"k{n}", f"{letter}0", 1) for n, letter in enumerate("abcde")]
    scene.send("people", sent)
    work_off_to(scene, groups_app.rows_of(sent))
    for seed, kill_at in enumerate(STEPS):
        part = changes(600, seed)
        scene.send("people", part)
        sent += part
        scene.run_until_killed(groups_app, kill_at)
    return scene, sent


def test_groups_have_the_newest_rows_after_kills_at_every_kind_of_step(tmp_path: Path) -> None:
    """Exactly once. At least once, changes of rows may come again, and others than the first time."""
    scene, sent = killed(tmp_path, {"processing.guarantee": "exactly_once_v2"})
    work_off_to(scene, groups_app.rows_of(sent))


def test_at_least_once_sets_of_rows_are_right_if_each_change_goes_on(tmp_path: Path) -> None:
    """The same changes come again then, in the same order: sets do not change by that. Counts do."""
    settings = {"processing.guarantee": "at_least_once", "processing.exception.handler": "skip"}
    scene, sent = killed(tmp_path, settings)
    work_off_to(scene, groups_app.rows_of(sent), counted=False)


def test_a_group_that_loses_its_last_row_stays_with_a_count_of_0() -> None:
    with TestDriver(declared()) as driver:
        driver.pipe("people", "k1", "a1", timestamp_ms=5)
        driver.pipe("people", "k1", None, timestamp_ms=7)
        assert [(e.key, e.value, e.timestamp) for e in driver.store("count").all()] == [("a", 0, 7)]


def test_a_deleted_aggregate_has_the_larger_timestamp_downstream() -> None:
    with TestDriver(declared()) as driver:
        driver.pipe("people", "k1", "a6", timestamp_ms=50)
        driver.pipe("people", "k1", None, timestamp_ms=20)
        assert [(r.value, r.timestamp_ms) for r in driver.read("aggregates")] == [(["k1a6"], 50), (None, 50)]


def test_headers_of_a_change_travel_through_the_repartition_topic() -> None:
    with TestDriver(declared()) as driver:
        headers = (("trace", b"7"), ("empty", None))
        driver.pipe("people", "k1", "a1", timestamp_ms=1)
        driver.read("counts")
        driver.pipe("people", "k1", "b1", timestamp_ms=2, headers=headers)
        assert [record.headers for record in driver.read("app-by-letter-repartition")] == [(), headers, headers]
        assert driver.read("counts") == [
            Record("a", 0, timestamp_ms=2, headers=headers), Record("b", 1, timestamp_ms=2, headers=headers)
        ]  # fmt: skip


def test_groups_may_have_keys_and_values_of_other_types() -> None:
    app = App("app")
    people = app.ktable(app.table("people", key=serdes.string, value=serdes.json))
    by_age = people.group_by(
        lambda name, person: (person["age"], person["height"]), name="by-age", key=serdes.int64, value=serdes.float64
    )
    by_age.reduce(lambda one, other: one + other, lambda one, other: one - other, "heights")
    with TestDriver(app, partitions=3) as driver:
        for name, age in (("ada", 36), ("bob", 36), ("eve", 20), ("bob", 20)):
            driver.pipe("people", name, {"age": age, "height": 1.5})
        assert {entry.key: entry.value for entry in driver.store("heights").all()} == {36: 1.5, 20: 3.0}


def mapping(key: str, value: str) -> tuple[str, str]:
    if value.startswith("x"):
        raise ValueError(f"{value} has no letter")
    return value[0], value


@pytest.mark.parametrize("policy", ["skip", "dead-letter"])
def test_a_row_that_the_mapper_refuses_is_in_no_group(tmp_path: Path, policy: str) -> None:
    app = App("app")
    grouped(app, mapping).count("count")
    settings: dict[str, Any] = {"processing.exception.handler": policy, "errors.dead.letter.queue.topic.name": "dead"}
    scene = Scene(app, tmp_path, partitions=1, settings=settings)
    scene.create("dead")
    values = [
        ("k1", "a1"),
        ("k3", "b1"),
        ("k2", "x1"),
        ("k2", "b2"),
        ("k2", "b3"),
        ("k1", "a2"),
        ("k3", "x2"),
        ("k2", "c1"),
    ]
    scene.send("people", [(key, value, at_ms) for at_ms, (key, value) in enumerate(values)])
    scene.work_off()
    counts = {key: int.from_bytes(value, "big") for key, (value, _) in scene.rows("count").items()}
    assert counts == {b"a": 1, b"b": 0, b"c": 1}
    assert scene.failures.skipped + scene.failures.dead_lettered == 2
    assert len(scene.written("dead")) == (2 if policy == "dead-letter" else 0)


@pytest.mark.parametrize("given", [1, "ab", (1, 2, 3), ("a", 2)], ids=repr)
def test_a_mapper_that_returns_no_pair_of_the_types_ends_the_worker(tmp_path: Path, given: Any) -> None:
    app = App("app")
    grouped(app, lambda key, value: given).count("count")
    scene = Scene(app, tmp_path)
    scene.send("people", [("k1", "a1", 1)])
    with pytest.raises(RecordError, match=r"'group_by' failed on people-. offset 0 .*"):
        scene.work_off()


def test_what_cannot_be_grouped_is_refused_where_it_is_declared() -> None:
    app = App("app")
    people = app.ktable(app.table("people", **TEXTS))
    with pytest.raises(
        TopologyError, match=r"group_by calls its mapper with 2 arguments: key, value\..*test_table_gro"
    ):
        people.group_by(lambda value: value, name="one")  # type: ignore[arg-type,misc]
    with pytest.raises(InvalidArgumentError, match="topic name"):
        people.group_by(group_of, name="not a name")
    groups = people.group_by(group_of, name="two")
    with pytest.raises(TopologyError, match=r"already repartitioned through 'app-two-repartition'"):
        people.group_by(group_of, name="two")
    with pytest.raises(TopologyError, match=r"subtractor with 3 arguments: key, value, aggregate"):
        groups.aggregate(list, add, one_less, "kept", value=serdes.json)  # type: ignore[arg-type]
