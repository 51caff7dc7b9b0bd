"""Several streams in one aggregate, against what plain Python makes of their records by time."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.worker.operators.operator_scene import Scene
from stateline import App, SessionWindows, TumblingWindows, serdes, until_window_closes
from stateline.dsl.streams import GroupedStream
from stateline.testing import TestDriver
from stateline_store import InvalidArgumentError, TopologyError
from support.apps import cogroup_app
from support.apps.cogroup_app import Given, newest, ordered, visited
from support.run.length import long_only, long_or_short

GUARANTEES = ["at_least_once", "exactly_once_v2"]
STEPS = ["commit:changes-flushed#2", "commit:log-committed#2", "commit:batch-written#4", "commit:task-committed"]


def seconds(count: int) -> timedelta:
    return timedelta(seconds=count)


def records(count: int, seed: int) -> list[tuple[str, Given]]:
    """Orders and visits of six customers, each at a time of its own, behind those of a smaller seed."""
    chance = random.Random(seed)
    return [
        (
            chance.choice(["orders", "visits"]),
            (f"k{chance.randrange(6)}", None if chance.random() < 0.1 else str(n), 1_000_000 * (seed + 1) + n),
        )
        for n in range(count)
    ]


def send(scene: Scene, given: list[tuple[str, Given]]) -> None:
    for wanted in ("orders", "visits"):
        scene.send(wanted, [record for topic, record in given if topic == wanted])


def rows(scene: Scene) -> dict[bytes, tuple[list[str], int]]:
    return {key: (orjson.loads(value), at) for key, (value, at) in scene.rows("newest").items()}


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_streams_meet_in_one_aggregate_in_the_order_of_time_over_restarts(tmp_path: Path, guarantee: str) -> None:
    scene = Scene(cogroup_app.build(), tmp_path, partitions=2, settings={"processing.guarantee": guarantee})
    sent: list[tuple[str, Given]] = []
    for seed in range(2):
        part = records(300, seed)
        send(scene, part)
        sent += part
        scene.work_off()
    assert rows(scene) == newest(sent)
    written = {record.key: orjson.loads(record.value or b"") for record in scene.written("out")}
    assert written == {key: found for key, (found, _) in newest(sent).items()}


@pytest.mark.parametrize(
    "guarantee",
    ["exactly_once_v2", pytest.param("at_least_once", marks=long_only("test_stream_joins.py kills under it"))],
)
def test_a_cogroup_is_that_of_the_whole_input_after_kills_at_every_kind_of_step(tmp_path: Path, guarantee: str) -> None:
    settings = {"processing.guarantee": guarantee, "group.instance.id": "the-worker"}
    scene = Scene(cogroup_app.build(), tmp_path, partitions=2, settings=settings)
    sent: list[tuple[str, Given]] = []
    for seed, kill_at in enumerate(STEPS):
        part = records(800, seed)
        send(scene, part)
        sent += part
        scene.run_until_killed(cogroup_app, kill_at)
    scene.work_off()
    wanted, found = newest(sent), rows(scene)
    if guarantee == "exactly_once_v2":
        assert found == wanted
    else:  # at least once, a record may count again
        assert {key: at for key, (_, at) in found.items()} == {key: at for key, (_, at) in wanted.items()}
        assert {key: each[-1] for key, (each, _) in found.items()} == {
            key: each[-1] for key, (each, _) in wanted.items()
        }


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["orders", "visits"]),
        st.sampled_from(["k1", "k2", None]),
        st.sampled_from(["1", "2", None]),
        st.integers(0, 6_000),
    ),
    min_size=5,
    max_size=30,
)


class Windows:
    """Tumbling windows of a second with half a second of grace. Each stream has a time of its own, and the retention
    hides what is too old for the store."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, int], tuple[list[str], int]] = {}
        self._times = {"orders": -1, "visits": -1}
        self._newest_start = -1

    def process(self, topic: str, key: str | None, value: str | None, at: int) -> None:
        if key is None:
            return
        start = at - at % 1_000
        self._times[topic] = max(self._times[topic], at)
        if start + 1_500 <= self._times[topic]:
            return
        hidden = start <= self._newest_start - 1_500
        before, stamp = ([], at) if hidden else self.found.get((key, start), ([], at))
        add = ordered if topic == "orders" else visited
        self.found[key, start] = add(key, value, before), max(at, stamp)  # type: ignore[arg-type]  # also None
        self._newest_start = max(self._newest_start, start)

    def live(self) -> dict[tuple[str, int], tuple[list[str], int]]:
        return {w: row for w, row in self.found.items() if w[1] > self._newest_start - 1_500}


@settings(max_examples=long_or_short(60, 8), deadline=None)
@given(CHANGES)
def test_each_stream_closes_windows_by_its_own_time_also_over_restarts(
    changes: list[tuple[str, str | None, str | None, int]],
) -> None:
    app = App("app")
    orders, visits = two(app)
    both = orders.cogroup(ordered).cogroup(visits, visited)
    both.windowed_by(TumblingWindows(seconds(1), grace=seconds(1) / 2)).aggregate(list, "kept", value=serdes.json)
    oracle = Windows()
    with TestDriver(app) as driver:
        for number, change in enumerate(changes):
            oracle.process(*change)
            driver.pipe(*change[:3], timestamp_ms=change[3])
            if number == len(changes) // 2:
                driver.restart()
        found = {(w.key, w.start): (w.value, w.timestamp) for w in driver.store("kept").fetch_all()}
        assert found == oracle.live()


def two(app: App) -> tuple[GroupedStream, GroupedStream]:
    orders, visits = (app.stream(t, key=serdes.string, value=serdes.string) for t in ("orders", "visits"))
    return orders.group_by_key(), visits.group_by_key()


def test_sessions_of_several_streams_are_merged() -> None:
    app = App("app")
    orders, visits = two(app)
    windows = SessionWindows(seconds(1), grace=seconds(5))
    sessions = orders.cogroup(ordered).cogroup(visits, visited).windowed_by(windows)
    sessions.aggregate(list, "kept", value=serdes.json, merger=lambda key, one, other: one + other)
    with TestDriver(app) as driver:
        driver.pipe("orders", "k", "1", timestamp_ms=1_000)
        driver.pipe("visits", "k", "2", timestamp_ms=2_500)
        driver.pipe("visits", "k", "3", timestamp_ms=1_800)
        assert [(s.key, s.start, s.end, s.value) for s in driver.store("kept").fetch_all()] == [
            ("k", 1_000, 2_500, ["o1", "v2", "v3"])
        ]


def test_a_window_of_several_streams_has_a_final_result_when_the_latest_of_them_has_passed_it() -> None:
    app = App("app")
    orders, visits = two(app)
    windows = orders.cogroup(ordered).cogroup(visits, visited).windowed_by(TumblingWindows(seconds(1)))
    kept = windows.aggregate(list, "kept", value=serdes.json)
    kept.suppress(until_window_closes()).to_stream().to("final")
    with TestDriver(app) as driver:
        driver.pipe("orders", "k", "1", timestamp_ms=500)
        driver.pipe("visits", "k", "2", timestamp_ms=700)
        assert driver.read("final") == []
        driver.pipe("visits", "k", "3", timestamp_ms=1_000)
        assert [record.value for record in driver.read("final")] == [["o1", "v2"]]


def test_streams_of_one_topic_and_of_another_key_may_be_cogrouped() -> None:
    app = App("app")
    orders = app.stream("orders", key=serdes.string, value=serdes.string)
    small = orders.filter(lambda key, order: len(order) == 1).group_by_key()
    rekeyed = orders.group_by(lambda key, order: order[0], name="by-digit")
    both = small.cogroup(ordered).cogroup(orders.group_by_key(), visited)
    both.cogroup(rekeyed, lambda key, order, found: [*found, f"r{order}"]).aggregate(list, "kept", value=serdes.json)
    with TestDriver(app) as driver:
        for order in ("1", "22", "2"):
            driver.pipe("orders", "1", order)
        assert {entry.key: entry.value for entry in driver.store("kept").all()} == {
            "1": ["o1", "v1", "r1", "v22", "o2", "v2"], "2": ["r22", "r2"]
        }  # fmt: skip


def test_a_record_that_its_aggregator_refuses_is_left_out_alone() -> None:
    def refusing(key: str, value: str, found: list[str]) -> list[str]:
        if value == "bad":
            raise ValueError(value)
        return [*found, value]

    app = App("app")
    orders, visits = two(app)
    orders.cogroup(ordered).cogroup(visits, refusing).aggregate(list, "kept", value=serdes.json)
    with TestDriver(app, config={"processing.exception.handler": "skip"}) as driver:
        for topic, value in (("orders", "1"), ("visits", "bad"), ("visits", "2"), ("orders", "bad")):
            driver.pipe(topic, "k", value)
        assert driver.store("kept").get("k") == ["o1", "2", "obad"]


def test_stores_without_names_get_those_of_kafka_streams() -> None:
    app = App("app")
    orders, visits = two(app)
    both = orders.cogroup(ordered).cogroup(visits, visited)
    both.aggregate(list, value=serdes.json)
    both.windowed_by(TumblingWindows(seconds(1))).aggregate(list, value=serdes.json)
    names = [f"COGROUPKSTREAM-AGGREGATE-STATE-STORE-000000000{n}" for n in range(2)]
    assert list(app.topology().stores) == names


def test_what_cannot_be_cogrouped_is_refused_where_it_is_declared() -> None:
    app = App("app")
    orders, _ = two(app)
    numbers = app.stream("numbers", key=serdes.int64, value=serdes.string).group_by_key()
    with pytest.raises(TopologyError, match="aggregator with 3 arguments: key, value, aggregate"):
        orders.cogroup(lambda key, value: value)  # type: ignore[arg-type,misc]
    both = orders.cogroup(ordered)
    with pytest.raises(TopologyError, match="keys of type string and int64"):
        both.cogroup(numbers, visited)
    with pytest.raises(TopologyError, match=r"what .group_by_key\(\)"):
        both.cogroup(app.stream("visits", key=serdes.string, value=serdes.string), visited)
    with pytest.raises(InvalidArgumentError, match=r"Sessions need `merger=f\(key, one, other\)`"):
        both.windowed_by(SessionWindows(seconds(1))).aggregate(list, "kept", value=serdes.json)
