"""Joins of two tables, against what plain Python makes of the same records."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.worker.operators.operator_scene import Given, Scene
from stateline import App, serdes
from stateline.dsl.streams import Table
from stateline.processing.operators.joins import JoinKind, outcome
from stateline_store import RecordError, TopologyError

GUARANTEES = ["at_least_once", "exactly_once_v2"]
KINDS: list[JoinKind] = ["inner", "left", "outer"]


def changes(count: int, seed: int, *, odd: int = 0) -> list[Given]:
    """Of forty keys, out of order, one in four a deletion; timestamps of two topics never meet."""
    chance = random.Random(seed)
    return [
        (
            f"k{chance.randrange(40)}",
            None if chance.random() < 0.25 else f"{'lr'[odd]}{n}",
            1_000_000 + 2 * (n * 10 - chance.randrange(300)) + odd,
        )
        for n in range(count)
    ]


def newest(records: list[Given]) -> dict[str, tuple[str | None, int]]:
    return {key: (value, at) for key, value, at in records}


def oracle(kind: JoinKind, left: list[Given], right: list[Given]) -> dict[bytes, tuple[bytes, int]]:
    """What stays when all is done: where both sides have a value the newer timestamp is the result's. That of a row
    whose other side was deleted depends on which came last, and is left out (-1)."""
    lefts, rights = newest(left), newest(right)
    found: dict[bytes, tuple[bytes, int]] = {}
    for key in lefts.keys() | rights.keys():
        (one, one_ms), (other, other_ms) = lefts.get(key, (None, -1)), rights.get(key, (None, -1))
        there = {"inner": one and other, "left": one, "outer": one or other}[kind]
        if there:
            sure = one_ms == -1 or other_ms == -1 or (one and other)
            found[key.encode()] = f"{one}|{other}".encode(), max(one_ms, other_ms) if sure else -1
    return found


def joined(app: App, kind: JoinKind, one: Table, other: Table, joiner: Callable[[Any, Any], Any]) -> Table:
    join = {"inner": one.join, "left": one.left_join, "outer": one.outer_join}[kind]
    return join(other, joiner, "joined", value=serdes.string)


def two_tables(app: App) -> tuple[Table, Table]:
    left = app.ktable(app.table("left", key=serdes.string, value=serdes.string))
    return left, app.ktable(app.table("right", key=serdes.string, value=serdes.string))


def pair(left: str | None, right: str | None) -> str:
    return f"{left}|{right}"


def assert_rows(actual: dict[bytes, tuple[bytes, int]], wanted: dict[bytes, tuple[bytes, int]]) -> None:
    assert {
        key: (value, at if wanted.get(key, (b"", 0))[1] >= 0 else -1) for key, (value, at) in actual.items()
    } == wanted


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_join_of_tables_is_that_of_their_newest_values_over_restarts(
    tmp_path: Path, kind: JoinKind, guarantee: str
) -> None:
    app = App("app")
    joined(app, kind, *two_tables(app), pair).to_stream().to("out")
    scene = Scene(app, tmp_path, partitions=2, settings={"processing.guarantee": guarantee})
    left, right = changes(200, 1), changes(200, 2, odd=1)
    for half in (slice(100), slice(100, None)):
        scene.send("left", left[half])
        scene.send("right", right[half])
        scene.work_off()
    wanted = oracle(kind, left, right)
    assert wanted
    assert_rows(scene.rows("joined"), wanted)
    written = {record.key: (record.value, record.timestamp_ms) for record in scene.written("out")}
    there = {key: (value, at) for key, (value, at) in written.items() if key is not None and value is not None}
    assert_rows(there, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_aggregates_can_be_joined_and_joins_joined_again(tmp_path: Path, kind: JoinKind) -> None:
    app = App("app")
    counts = [app.stream(topic, key=serdes.string, value=serdes.string).group_by_key() for topic in ("left", "right")]
    one, other = (each.count(f"count-{n}") for n, each in enumerate(counts))
    both = joined(app, kind, one, other, pair)
    both.join(one, lambda text, count: f"{text}|{count}", "again")
    scene = Scene(app, tmp_path)
    left, right = changes(150, 3), changes(100, 4, odd=1)[:60]
    scene.send("left", left)
    scene.send("right", right)
    scene.work_off()
    numbers = [{k: sum(1 for key, v, _ in part if key == k and v) for k, v, _ in part} for part in (left, right)]
    lefts, rights = ({key: n for key, n in part.items() if n} for part in numbers)
    keys = {"inner": lefts.keys() & rights.keys(), "left": lefts.keys(), "outer": lefts.keys() | rights.keys()}[kind]
    wanted = {key.encode(): f"{lefts.get(key)}|{rights.get(key)}" for key in keys}
    assert {key: value.decode() for key, (value, _) in scene.rows("joined").items()} == wanted
    again = {key: f"{text}|{lefts[key.decode()]}" for key, text in wanted.items() if key.decode() in lefts}
    assert {key: value.decode() for key, (value, _) in scene.rows("again").items()} == again


@pytest.mark.parametrize("kind", KINDS)
def test_two_tables_of_one_topic_are_joined_and_a_deleted_key_leaves_the_join(tmp_path: Path, kind: JoinKind) -> None:
    app = App("app")
    topic = app.topic("people", key=serdes.string, value=serdes.string)
    people = app.ktable(app.table(topic))
    shouted = people.map_values(lambda key, value: value.upper(), "shouted")
    joined(app, kind, people, shouted, pair)
    people.join(people, pair, "self")
    scene = Scene(app, tmp_path, partitions=2)
    records = [*changes(200, 5), *((f"k{n}", value, 9_000_000) for n, value in enumerate("abcd"))]
    gone: list[Given] = [("k0", None, 9_000_001), ("k3", None, 9_000_002)]
    records += gone
    for part in (records[:100], records[100:-2], gone):
        scene.send("people", part)
        scene.work_off()
    there = {key.encode(): (value, at) for key, (value, at) in newest(records).items() if value is not None}
    assert scene.rows("joined") == {key: (f"{v}|{v.upper()}".encode(), at) for key, (v, at) in there.items()}
    assert scene.rows("self") == {key: (f"{v}|{v}".encode(), at) for key, (v, at) in there.items()}


def test_a_joiner_that_returns_none_takes_the_row_out(tmp_path: Path) -> None:
    app = App("app")
    joined(app, "inner", *two_tables(app), lambda one, other: None if other == "no" else one)
    scene = Scene(app, tmp_path)
    scene.send("left", [("a", "1", 1), ("b", "2", 2)])
    scene.send("right", [("a", "yes", 3), ("b", "yes", 4)])
    scene.work_off()
    assert scene.rows("joined") == {b"a": (b"1", 3), b"b": (b"2", 4)}
    scene.send("right", [("a", "no", 5)])
    scene.work_off()
    assert scene.rows("joined") == {b"b": (b"2", 4)}


def refusing(left: str | None, right: str | None) -> str:
    if "9" in f"{left}{right}":
        raise ValueError(f"{left} and {right} do not fit")
    return pair(left, right)


@pytest.mark.parametrize("policy", ["skip", "dead-letter"])
def test_a_change_that_the_joiner_refuses_leaves_the_row_as_it_was(tmp_path: Path, policy: str) -> None:
    app = App("app")
    joined(app, "outer", *two_tables(app), refusing)
    settings: dict[str, Any] = {"processing.exception.handler": policy, "errors.dead.letter.queue.topic.name": "dead"}
    scene = Scene(app, tmp_path, settings=settings)
    scene.create("dead")
    left = changes(300, 6)
    scene.send("left", left)
    scene.work_off()
    wanted: dict[bytes, bytes] = {}
    failed = 0
    for key, value, _ in left:  # each record of its own, however many of a key there are in a slice
        if value is None:
            wanted.pop(key.encode(), None)
        elif "9" in value:
            failed += 1
        else:
            wanted[key.encode()] = f"{value}|None".encode()
    assert {key: value for key, (value, _) in scene.rows("joined").items()} == wanted
    assert (scene.failures.skipped, scene.failures.dead_lettered) == ((failed, 0) if policy == "skip" else (0, failed))
    assert len(scene.written("dead")) == (0 if policy == "skip" else failed)


def test_a_joiner_that_raises_ends_the_worker_under_the_policy_fail(tmp_path: Path) -> None:
    app = App("app")
    joined(app, "left", *two_tables(app), refusing)
    scene = Scene(app, tmp_path)
    scene.send("left", [("a", "9", 1)])
    with pytest.raises(RecordError, match=r"'join joined' failed on left-. offset 0 .*: 9 and None do not fit"):
        scene.work_off()


def test_tables_of_unequal_partition_counts_are_refused_with_the_way_out(tmp_path: Path) -> None:
    app = App("app")
    joined(app, "inner", *two_tables(app), pair)
    scene = Scene(app, tmp_path, partitions={"left": 2, "right": 3})
    with pytest.raises(TopologyError, match=r"left has 2, right has 3: .*\.repartition\("):
        scene.work_off()


def test_tables_of_other_keys_are_refused() -> None:
    app = App("app")
    left, _ = two_tables(app)
    numbers = app.ktable(app.table("numbers", key=serdes.int64, value=serdes.string))
    with pytest.raises(TopologyError, match="'left' has keys of type string, and 'numbers' of type int64"):
        left.join(numbers, pair, "joined")


@pytest.mark.parametrize(
    ("kind", "is_left", "old", "new", "other", "wanted"),
    [
        ("inner", True, None, b"new", None, "nothing"),
        ("inner", False, b"old", None, None, "nothing"),
        ("inner", True, None, b"new", b"other", "joined"),
        ("inner", True, None, None, b"other", "deleted"),
        ("left", True, None, b"new", None, "joined"),
        ("left", True, b"old", None, None, "deleted"),
        ("left", True, None, None, None, "nothing"),
        ("left", True, b"old", None, b"other", "deleted"),
        ("left", False, b"old", None, b"other", "joined"),
        ("left", False, None, b"new", None, "nothing"),
        ("outer", True, b"old", None, b"other", "joined"),
        ("outer", False, None, b"new", None, "joined"),
        ("outer", False, b"old", None, None, "deleted"),
        ("outer", True, None, None, None, "nothing"),
    ],
)
def test_what_a_change_of_one_side_does_is_as_in_kafka_streams(
    kind: JoinKind, is_left: bool, old: bytes | None, new: bytes | None, other: bytes | None, wanted: str
) -> None:
    assert outcome(kind, is_left, old, new, other).value == wanted
