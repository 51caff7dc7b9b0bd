"""count, with the stateless operators before it and a topic behind it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from service.worker.operators.operator_scene import Given, Scene
from stateline import App, serdes

GUARANTEES = ["at_least_once", "exactly_once_v2"]


def events(count: int, seed: int = 0) -> list[Given]:
    """Of twenty keys, out of order, one in twenty without a key, one in twenty without a value."""
    chance = random.Random(seed)
    return [
        (
            None if chance.random() < 0.05 else f"k{chance.randrange(20)}",
            None if chance.random() < 0.05 else f"v{chance.randrange(7)}",
            1_000_000 + n * 10 - chance.randrange(500),
        )
        for n in range(count)
    ]


def oracle(records: list[Given]) -> dict[bytes, tuple[bytes, int]]:
    found: dict[bytes, tuple[int, int]] = {}
    for key, value, at in records:
        if key is not None and value is not None:
            count, newest = found.get(key.encode(), (0, -1))
            found[key.encode()] = count + 1, max(newest, at)
    return {key: (count.to_bytes(8, "big"), at) for key, (count, at) in found.items()}


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_the_count_of_each_key_is_that_of_its_records_over_restarts(tmp_path: Path, guarantee: str) -> None:
    app = App("app")
    app.stream("events", key=serdes.string, value=serdes.string).group_by_key().count("counts")
    scene = Scene(app, tmp_path, settings={"processing.guarantee": guarantee})
    first, second = events(500), events(300, seed=1)
    for part in (first, second):
        scene.send("events", part)
        scene.work_off()
    assert scene.rows("counts") == oracle(first + second)
    assert scene.failures.dropped == sum(key is None or value is None for key, value, _ in second)


def test_the_count_under_another_key_goes_through_a_repartition_topic(tmp_path: Path) -> None:
    app = App("app")
    stream = app.stream("events", key=serdes.string, value=serdes.string)
    counts = stream.filter(lambda key, value: value is not None).group_by(lambda key, value: value, name="by-value")
    counts.count("counts").to_stream().to("out")
    scene = Scene(app, tmp_path)
    records = events(500)
    scene.send("events", records)
    scene.work_off()
    wanted = oracle([(value, value, at) for _, value, at in records])
    assert scene.rows("counts") == wanted
    newest = {record.key: (record.value, record.timestamp_ms) for record in scene.written("out")}
    assert newest == wanted


def test_records_without_a_key_and_without_a_value_are_counted_apart(tmp_path: Path) -> None:
    app = App("app")
    app.stream("in", key=serdes.string, value=serdes.string).group_by_key().count("counts")
    scene = Scene(app, tmp_path, partitions=1)
    scene.send("in", [(None, "v", 1), (None, None, 2), ("k", None, 3), ("k", "v", 4)])
    scene.work_off()
    assert scene.failures.steps["count counts"].dropped == {"no_key": 2, "no_value": 1}
    assert scene.failures.steps["count counts"].taken == 4
