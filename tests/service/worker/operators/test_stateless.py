"""Steps without state: what each makes of rows, and what becomes of a row whose function raises."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from service.worker.operators.operator_scene import Given, Scene
from stateline import App, serdes
from stateline.dsl.streams import Stream
from stateline.testing import TestDriver
from stateline_store import RecordError, TopologyError

Pair = tuple[Any, Any]
Out = list[tuple[bytes | None, bytes | None, int]]


def rows(count: int, seed: int = 0) -> list[Given]:
    """Some without a key or a value, some twice, out of order."""
    chance = random.Random(seed)
    made: list[Given] = []
    for n in range(count):
        key = None if chance.random() < 0.1 else f"k{chance.randrange(9)}"
        value = None if chance.random() < 0.1 else f"{chance.randrange(100)}"
        made.append((key, value, 1_000 + n * 10 - chance.randrange(200)))
        if chance.random() < 0.1:
            made.append(made[-1])
    return made


def number(value: str | None) -> int:
    return -1 if value is None else int(value)


# Name → the declaration, and what plain Python makes of one row.
STEPS: dict[str, tuple[Callable[[Stream], Stream], Callable[[Any, Any], Iterable[Pair]]]] = {
    "filter": (
        lambda stream: stream.filter(lambda key, value: number(value) % 2 == 0),
        lambda key, value: [(key, value)] if number(value) % 2 == 0 else [],
    ),
    "filter_not": (
        lambda stream: stream.filter_not(lambda key, value: key == "k1"),
        lambda key, value: [(key, value)] if key != "k1" else [],
    ),
    "map_values": (
        lambda stream: stream.map_values(lambda key, value: None if value == "7" else f"{key}={value}"),
        lambda key, value: [(key, None if value == "7" else f"{key}={value}")],
    ),
    "map_values to another type": (
        lambda stream: stream.map_values(lambda key, value: number(value), value=serdes.int64),
        lambda key, value: [(key, serdes.int64.serialize(number(value)))],
    ),
    "flat_map_values": (
        lambda stream: stream.flat_map_values(lambda key, value: [value] * (number(value) % 3)),
        lambda key, value: [(key, value)] * (number(value) % 3),
    ),
    "map": (
        lambda stream: stream.map(lambda key, value: (value, key)),
        lambda key, value: [(value, key)],
    ),
    "flat_map": (
        lambda stream: stream.flat_map(lambda key, value: ((f"{key}{n}", value) for n in range(number(value) % 4))),
        lambda key, value: [(f"{key}{n}", value) for n in range(number(value) % 4)],
    ),
    "select_key": (
        lambda stream: stream.select_key(lambda key, value: number(value), key=serdes.int32),
        lambda key, value: [(serdes.int32.serialize(number(value)), value)],
    ),
    "peek": (lambda stream: stream.peek(lambda key, value: None), lambda key, value: [(key, value)]),
    "merge": (
        lambda stream: stream.filter(lambda key, value: key == "k1").merge(stream),
        lambda key, value: [(key, value)] * (1 + (key == "k1")),
    ),
}


def encoded(data: Any) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def expected(given: list[Given], function: Callable[[Any, Any], Iterable[Pair]]) -> Out:
    return [(encoded(k), encoded(v), at) for key, value, at in given for k, v in function(key, value)]


def written(scene: Scene, topic: str = "out") -> Out:
    return [(record.key, record.value, record.timestamp_ms) for record in scene.written(topic)]


def sort(out: Out) -> Out:
    return sorted(out, key=repr)


def test_each_step_makes_of_rows_what_plain_python_makes_of_them_over_a_restart(tmp_path: Path) -> None:
    app = App("app")
    stream = app.stream("in", key=serdes.string, value=serdes.string)
    topics = {name: f"out-{n}" for n, name in enumerate(STEPS)}
    for name, (declare, _) in STEPS.items():
        declare(stream).to(topics[name])
    scene = Scene(app, tmp_path, partitions=2, settings={"processing.guarantee": "exactly_once_v2"})
    for part in (rows(300), rows(100, seed=1)):
        scene.send("in", part)
        scene.work_off()
    for name, (_, function) in STEPS.items():
        out = written(scene, topics[name])
        assert sort(out) == sort(expected(rows(300) + rows(100, seed=1), function)), name


def test_rows_of_one_partition_stay_in_order_and_steps_follow_on_each_other(tmp_path: Path) -> None:
    app = App("app")
    seen: list[Pair] = []
    stream = app.stream("in", key=serdes.string, value=serdes.string)
    kept = stream.filter(lambda key, value: key is not None and value is not None)
    numbers = kept.map_values(lambda key, value: int(value), value=serdes.int64)
    numbers.peek(lambda key, value: seen.append((key, value))).flat_map_values(
        lambda key, value: [value, value + 1]
    ).to("out")
    scene = Scene(app, tmp_path, partitions=1)
    scene.send("in", rows(200))
    scene.work_off()
    given = [(key, int(value), at) for key, value, at in rows(200) if key is not None and value is not None]
    assert seen == [(key, value) for key, value, _ in given]
    pack = serdes.int64.serialize
    assert written(scene) == [(key.encode(), pack(n), at) for key, value, at in given for n in (value, value + 1)]


def test_a_topic_with_types_of_its_own_gets_them(tmp_path: Path) -> None:
    app = App("app")
    out = app.topic("out", key=serdes.json, value=serdes.json)
    app.stream("in", key=serdes.string, value=serdes.string).to(out)
    scene = Scene(app, tmp_path, partitions=1)
    scene.send("in", [("a", "1", 5), (None, None, 6)])
    scene.work_off()
    assert written(scene) == [(b'"a"', b'"1"', 5), (None, None, 6)]


def test_group_by_brings_the_rows_of_another_key_together(tmp_path: Path) -> None:
    app = App("app")
    stream = app.stream("in", key=serdes.string, value=serdes.string)
    with_value = stream.filter(lambda key, value: value is not None)
    with_value.group_by(lambda key, value: int(value) % 5, key=serdes.int32, name="by-rest").count("counts")
    scene = Scene(app, tmp_path)
    scene.send("in", rows(300))
    scene.work_off()
    wanted: dict[bytes, int] = {}
    for _, value, _ in rows(300):
        if value is not None:
            key = serdes.int32.serialize(int(value) % 5)
            wanted[key] = wanted.get(key, 0) + 1
    assert {key: int.from_bytes(value, "big") for key, (value, _) in scene.rows("counts").items()} == wanted
    assert len(scene.written("app-by-rest-repartition")) == sum(wanted.values())


def boom(key: Any, value: str | None) -> bool:
    if value is not None and "7" in value:
        raise ValueError(f"no {value}")
    return True


def mapping(key: str, value: str) -> Any:
    return {"a": value}


def two(key: str, value: str) -> Any:
    return "ab"


def texts(key: str, value: str) -> Any:
    return ["ab", "cd"]


def nothing(key: str, value: str) -> Any:
    return None


def five(key: str, value: str) -> Any:
    return 5


def numbers(key: str, value: str) -> Any:
    return [5]


@pytest.mark.parametrize(
    ("declare", "function", "told"),
    [
        (Stream.flat_map_values, mapping, r"gave {'a': 'x'}: give a list of rows, or yield each"),
        (Stream.flat_map_values, two, r"gave 'ab': give a list of rows, or yield each"),
        (Stream.flat_map, mapping, r"gave {'a': 'x'}: give a list of rows, or yield each"),
        (Stream.flat_map, texts, r"gave 'ab' as a row: give \(key, value\)"),
        (Stream.map, two, r"gave 'ab' as a row: give \(key, value\)"),
        (Stream.flat_map_values, nothing, "gave None: give a list of rows, or yield each"),
        (Stream.flat_map_values, five, "gave 5: give a list of rows, or yield each"),
        (Stream.flat_map, nothing, "gave None: give a list of rows, or yield each"),
        (Stream.flat_map, numbers, r"gave 5 as a row: give \(key, value\)"),
        (Stream.map, nothing, r"gave None as a row: give \(key, value\)"),
        (Stream.map, numbers, r"gave \[5\] as a row: give \(key, value\)"),
    ],
)
def test_what_is_no_rows_is_refused_and_the_function_is_named(
    declare: Callable[..., Stream], function: Callable[..., Any], told: str
) -> None:
    app = App("app")
    declare(app.stream("in", key=serdes.string, value=serdes.string), function).to("out")
    line = function.__code__.co_firstlineno
    with TestDriver(app) as driver, pytest.raises(RecordError, match=rf"{told} \(.*test_stateless.py, line {line}\)"):
        driver.pipe("in", "k", "x", timestamp_ms=1)


FAILING: dict[str, Callable[[Stream], Stream]] = {
    "filter": lambda stream: stream.filter(boom),
    "filter_not": lambda stream: stream.filter_not(lambda key, value: not boom(key, value)),
    "peek": lambda stream: stream.peek(boom),
    "map_values": lambda stream: stream.map_values(lambda key, value: value if boom(key, value) else None),
    "flat_map_values": lambda stream: stream.flat_map_values(
        lambda key, value: (value for _ in range(boom(key, value)))
    ),
    "map": lambda stream: stream.map(lambda key, value: (key, value if boom(key, value) else None)),
    "flat_map": lambda stream: stream.flat_map(lambda key, value: [(key, value)] if boom(key, value) else []),
    "select_key": lambda stream: stream.select_key(lambda key, value: key if boom(key, value) else None),
}


@pytest.mark.parametrize("policy", ["skip", "dead-letter"])
def test_a_row_whose_function_raises_is_lost_alone_in_every_step(tmp_path: Path, policy: str) -> None:
    app = App("app")
    stream = app.stream("in", key=serdes.string, value=serdes.string)
    for name, declare in FAILING.items():
        declare(stream).to(f"out-{name}")
    settings: dict[str, Any] = {"processing.exception.handler": policy, "errors.dead.letter.queue.topic.name": "dead"}
    scene = Scene(app, tmp_path, partitions=1, settings=settings)
    scene.create("dead")
    scene.send("in", rows(200))
    scene.work_off()
    good = [(encoded(k), encoded(v), at) for k, v, at in rows(200) if v is None or "7" not in v]
    bad = [(encoded(k), encoded(v), at) for k, v, at in rows(200) if v is not None and "7" in v]
    for name in FAILING:
        assert written(scene, f"out-{name}") == good, name
    dead = written(scene, "dead") if policy == "dead-letter" else []
    assert sort(dead) == sort(bad * len(FAILING) if policy == "dead-letter" else [])
    assert (scene.failures.skipped, scene.failures.dead_lettered) == (
        (len(bad) * len(FAILING), 0) if policy == "skip" else (0, len(bad) * len(FAILING))
    )


@pytest.mark.parametrize("step", FAILING)
def test_under_the_policy_fail_the_worker_ends_and_says_which_step_failed_where(tmp_path: Path, step: str) -> None:
    app = App("app")
    FAILING[step](app.stream("in", key=serdes.string, value=serdes.string)).to("out")
    scene = Scene(app, tmp_path, partitions=1, settings={"processing.guarantee": "exactly_once_v2"})
    scene.send("in", [("a", "1", 1), ("b", "70", 2), ("c", "3", 3)])
    with pytest.raises(RecordError, match=rf"Processor '{step}' failed on in-0 offset 1 key .*ValueError: no 70 \("):
        scene.work_off()
    assert written(scene) == []


def test_a_value_that_the_type_cannot_write_or_the_log_not_take_is_the_rows_failure(tmp_path: Path) -> None:
    app = App("app")
    stream = app.stream("in", key=serdes.string, value=serdes.string)
    stream.map_values(lambda key, value: value, value=serdes.int64).to("numbers")
    stream.map_values(lambda key, value: value * 1_000_000).to("large")
    stream.map(lambda key, value: key).to("pairs")
    settings = {"processing.exception.handler": "skip"}
    scene = Scene(app, tmp_path, partitions=1, settings=settings)
    scene.send("in", [("a", "1", 1), ("b", "", 2)])
    scene.work_off()
    assert (written(scene, "numbers"), written(scene, "large"), written(scene, "pairs")) == ([], [(b"b", b"", 2)], [])
    assert scene.failures.skipped == 5


def test_what_needs_the_rows_of_a_key_together_refuses_a_changed_key() -> None:
    app = App("app")
    stream = app.stream("in", key=serdes.string, value=serdes.string)
    changed = [
        stream.select_key(lambda key, value: value),
        stream.map(lambda key, value: (value, key)),
        stream.flat_map(lambda key, value: []),
        stream.select_key(lambda key, value: value).map_values(lambda key, value: value).merge(stream),
        stream.merge(stream.select_key(lambda key, value: value)).filter(lambda key, value: True),
    ]
    for each in changed:
        with pytest.raises(TopologyError, match="Before group_by_key the key was changed"):
            each.group_by_key()
        with pytest.raises(TopologyError, match="Before to_table the key was changed"):
            each.to_table("table")
    changed[0].repartition("again").group_by_key()
    with pytest.raises(TopologyError, match="cannot be merged"):
        stream.merge(app.stream("other", key=serdes.int64, value=serdes.string))
