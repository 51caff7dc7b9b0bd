"""Joins of two streams, against the pairs that plain Python makes of the same rows (test_golden_operators.py compares
with Kafka Streams)."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from service.worker.operators.operator_scene import Scene
from stateline import App, JoinWindows, serdes
from stateline.dsl.streams import Stream
from stateline.model.nodes import Root, meet_in_joins_alone
from stateline.testing import TestDriver
from stateline_store import InvalidArgumentError, TopologyError
from support.apps import stream_joins_app
from support.apps.stream_joins_app import Given, pair, results

GUARANTEES = ["at_least_once", "exactly_once_v2"]
STEPS = ["commit:changes-flushed#2", "commit:log-committed#2", "commit:batch-written#4", "commit:task-committed"]
MS = timedelta(milliseconds=1)


def rows(count: int, seed: int) -> dict[str, list[Given]]:
    """Rows of both streams in order of time, some without a value, behind those of a smaller seed."""
    chance = random.Random(seed)
    made: dict[str, list[Given]] = {"left": [], "right": []}
    for n in range(count):
        value = None if chance.random() < 0.1 else f"{seed}-{n}"
        made[chance.choice(["left", "right"])].append((f"k{chance.randrange(6)}", value, seed * 1_000_000 + n * 30))
    return made


def ends() -> list[Given]:
    """Rows of every partition so late that no other waits for a partner any more."""
    return [(f"end-{n}", "end", 100_000_000) for n in range(8)]


def written(scene: Scene) -> list[tuple[bytes | None, bytes | None, int]]:
    return [(r.key, r.value, r.timestamp_ms) for r in scene.written("out")]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_pairs_are_those_of_the_whole_input_after_kills_at_every_kind_of_step(tmp_path: Path, guarantee: str) -> None:
    settings = {"processing.guarantee": guarantee, "group.instance.id": "the-worker"}
    scene = Scene(stream_joins_app.build(), tmp_path, partitions=2, settings=settings)
    sent: dict[str, list[Given]] = {"left": [], "right": []}
    for seed, kill_at in enumerate([*STEPS, None]):
        for topic, given in rows(600, seed).items():
            scene.send(topic, given)
            sent[topic] += given
        if kill_at is not None:
            scene.run_until_killed(stream_joins_app, kill_at)
    scene.send("left", ends())
    scene.work_off()
    found = results(sent["left"], sent["right"])
    if guarantee == "exactly_once_v2":
        assert Counter(written(scene)) == Counter(found)
    else:  # rows that are processed again meet each other again
        assert set(written(scene)) == set(found)


def test_rows_meet_after_a_restart_without_files(tmp_path: Path) -> None:
    scene = Scene(
        stream_joins_app.build(), tmp_path, partitions=1, settings={"processing.guarantee": "exactly_once_v2"}
    )
    scene.send("left", [("a", "l1", 1_000), ("b", "l2", 1_010)])
    scene.send("right", [("c", "r1", 1_020)])
    scene.work_off()
    for path in sorted((tmp_path / "state").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    scene.send("right", [("a", "r2", 1_100)])
    scene.work_off()
    assert written(scene) == [(b"a", b"l1|r2", 1_100)]
    scene.send("left", ends())
    scene.work_off()
    assert written(scene)[1:] == [(b"b", b"l2|None", 1_010), (b"c", b"None|r1", 1_020)]


def test_stream_time_survives_a_restart() -> None:
    """A row that was late before is late afterwards: it leaves at once, and does not wait."""
    app = stream_joins_app.build()
    with TestDriver(app) as driver:
        driver.pipe("left", "a", "now", timestamp_ms=100_000)
        driver.pipe("left", "b", "late", timestamp_ms=99_000)
        driver.restart()
        driver.pipe("left", "c", "later", timestamp_ms=98_000)
        assert [(row.key, row.value) for row in driver.read("out")] == [("b", "late|None"), ("c", "later|None")]


def test_many_keys_and_rows_are_found_although_not_all_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateline.processing.operators.kept_rows._MOST_BYTES", 2_000)
    monkeypatch.setattr("stateline.processing.operators.leaving_rows._MOST_BYTES", 450)
    given = rows(400, 1)
    with TestDriver(stream_joins_app.build()) as driver:
        merged = sorted((row[2], topic, row) for topic, of_topic in given.items() for row in of_topic)
        for at_ms, topic, (key, value, _) in [*merged, (90_000_000, "left", ends()[0])]:
            driver.pipe(topic, key, value, timestamp_ms=at_ms)
        found = [(row.key.encode(), row.value.encode(), row.timestamp_ms) for row in driver.read("out")]
    assert Counter(found) == Counter(results(given["left"], given["right"]))


def test_a_joiner_that_fails_costs_its_pair_alone() -> None:
    app = App("app", config={"processing.exception.handler": "skip"})
    left, right = (app.stream(name, key=serdes.string, value=serdes.string) for name in ("left", "right"))

    def picky(one: str, other: str) -> str:
        if other == "bad":
            raise ValueError(other)
        return pair(one, other)

    left.join(right, picky, within=JoinWindows(10 * MS), store="j").to("out")
    with TestDriver(app) as driver:
        for at_ms, value in enumerate(["bad", "good"]):
            driver.pipe("right", "a", value, timestamp_ms=at_ms)
        driver.pipe("left", "a", "one", timestamp_ms=2)
        driver.pipe("right", "a", "later", timestamp_ms=3)
        assert [row.value for row in driver.read("out")] == ["one|good", "one|later"]


def test_stores_are_named_and_served_like_others() -> None:
    with TestDriver(stream_joins_app.build()) as driver:
        driver.pipe("left", "a", "l", timestamp_ms=1_000)
        driver.pipe("right", "b", "r", timestamp_ms=1_001)
        names = [store["store"] for store in driver.client.get("/v1/stores").json()["stores"]]
        assert names == ["both-outer-this-join-store", "both-outer-other-join-store", "both-outer-shared-join-store"]
        found = driver.client.get("/v1/stores/both-outer-this-join-store/keys/a/windows?from=0").json()
        assert [row["value"] for row in found["entries"]] == ["l"]


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ({"difference": timedelta(seconds=-1)}, "difference=.*0 or more"),
        ({"difference": timedelta(microseconds=1)}, "difference=.*whole milliseconds"),
        ({"difference": MS, "before": -2 * MS}, "ends before it begins"),
        ({"difference": MS, "grace": 5}, "grace=5"),
    ],
)
def test_windows_that_make_no_sense_are_refused(windows: dict[str, timedelta], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        JoinWindows(**windows)


def test_streams_with_other_keys_or_changed_ones_are_refused() -> None:
    app = App("app")
    left = app.stream("left", key=serdes.string, value=serdes.string)
    numbers = app.stream("numbers", key=serdes.int64, value=serdes.string)
    within = JoinWindows(MS)
    with pytest.raises(TopologyError, match="keys of type string and int64"):
        left.join(numbers, pair, within=within)
    with pytest.raises(TopologyError, match="Before join the key was changed"):
        left.join(numbers.select_key(lambda key, value: "a", key=serdes.string), pair, within=within)
    with pytest.raises(TopologyError, match="given a Table"):
        left.join(left.to_table("t"), pair, within=within)


def test_topics_are_taken_together_only_where_their_order_shows_in_joins_alone() -> None:
    def roots_of(app: App) -> list[Root]:
        return [r for part in app.topology().subtopologies for each in part.processors for r in each.roots]

    def streams(app: App) -> list[Stream]:
        return [app.stream(name, key=serdes.string, value=serdes.string) for name in "abc"]

    within = JoinWindows(5 * MS)
    chain = App("chain")
    one, two, three = streams(chain)
    one.join(two, pair, within=within, store="j").left_join(three, pair, within=within, store="k").to("out")
    assert meet_in_joins_alone(roots_of(chain))

    sinks = App("sinks")
    one, two, three = streams(sinks)
    for other, topic in ((two, "x"), (three, "y")):  # two tasks' records of x would come behind those of y
        one.join(other, pair, within=within, store=topic).to(topic)
    assert not meet_in_joins_alone(roots_of(sinks))

    merged = App("merged")
    one, two, three = streams(merged)
    one.join(two, pair, within=within, store="j").merge(three).to("out")
    assert not meet_in_joins_alone(roots_of(merged))


def test_changes_of_a_count_are_joined_one_by_one(tmp_path: Path) -> None:
    app = App("app")
    left, right = (app.stream(name, key=serdes.string, value=serdes.string) for name in ("left", "right"))
    counts = left.group_by_key().count("counts").to_stream()
    counts.join(right, pair, within=JoinWindows(10 * MS), value=serdes.string, store="j").to("out")
    scene = Scene(app, tmp_path, partitions=1)
    scene.send("left", [("k", "-", 1_000), ("k", "-", 50_000)])
    scene.send("right", [("k", "b1", 1_005), ("k", "b2", 50_001)])
    scene.work_off()
    assert [value for _, value, _ in written(scene)] == [b"1|b1", b"2|b2"]


def test_a_table_of_a_topic_that_a_join_of_streams_reads_is_kept() -> None:
    app = App("app")
    app.table("left", key=serdes.string, value=serdes.string, store="newest")
    left, right = (app.stream(name, key=serdes.string, value=serdes.string) for name in ("left", "right"))
    left.join(right, pair, within=JoinWindows(10 * MS), store="j").to("out")
    with TestDriver(app) as driver:
        driver.pipe("left", "a", "one", timestamp_ms=1)
        driver.pipe("right", "a", "two", timestamp_ms=2)
        assert driver.store("newest").get("a") == "one"
        assert [row.value for row in driver.read("out")] == ["one|two"]


@pytest.mark.parametrize("how", ["join", "left_join"])
def test_arguments_that_a_join_would_ignore_are_refused(how: str) -> None:
    app = App("app")
    one, other = (app.stream(topic, key=serdes.string, value=serdes.string) for topic in ("one", "other"))
    table = app.ktable(app.table("table", key=serdes.string, value=serdes.string))
    join, within = getattr(one, how), JoinWindows(timedelta(seconds=1))
    with pytest.raises(TopologyError, match=r"the grace is part of the windows: JoinWindows"):
        join(other, pair, within=within, grace=timedelta(hours=1))
    with pytest.raises(TopologyError, match=r"on=… is for a global table"):
        join(other, pair, within=within, on=lambda key, value: key)
    for given in ({"store": "s"}, {"persistent": False}, {"changelog": {"nope": 1}}):
        with pytest.raises(TopologyError, match=r"are for rows that wait. Give grace=…, too"):
            join(table, pair, **given)


def test_stream_time_may_be_the_largest_of_all() -> None:
    app = App("app")
    one, other = (app.stream(topic, key=serdes.string, value=serdes.string) for topic in ("one", "other"))
    windows = JoinWindows(timedelta(seconds=1), before=timedelta(seconds=-1), after=timedelta(seconds=2))
    one.outer_join(other, lambda left, right: f"{left}{right}", within=windows, store="j").to("out")
    with TestDriver(app) as driver:
        for at_ms in (1, 2**63 - 1):
            for topic in ("one", "other"):
                driver.pipe(topic, "k", "a", timestamp_ms=at_ms)
        assert ("k", "aNone") in [(record.key, record.value) for record in driver.read("out")]
