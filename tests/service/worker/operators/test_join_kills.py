"""A worker that is killed in the middle of joins: afterwards everything is as if it had not been."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from service.worker.operators.operator_scene import Scene
from support.apps import joins_app
from support.apps.joins_app import Given, Oracle
from support.run.length import long_only


def records(count: int, seed: int) -> list[tuple[str, Given]]:
    """Orders and names of six customers, each at a time of its own, behind those of a smaller seed."""
    chance = random.Random(seed)
    made: list[tuple[str, Given]] = []
    for n in range(count):
        topic = chance.choice(["orders", "orders", "names"])
        value = None if topic == "names" and chance.random() < 0.2 else f"{topic[0]}{seed}-{n}"
        made.append((topic, (f"k{chance.randrange(6)}", value, seed * 1_000_000 + n)))
    return made


def send(scene: Scene, given: list[tuple[str, Given]]) -> None:
    for wanted in ("orders", "names"):
        scene.send(wanted, [record for topic, record in given if topic == wanted])


STEPS = ["commit:changes-flushed#2", "commit:log-committed#2", "commit:batch-written#4", "commit:task-committed"]


@pytest.mark.parametrize(
    "guarantee",
    ["exactly_once_v2", pytest.param("at_least_once", marks=long_only("test_stream_joins.py kills under it"))],
)
def test_joins_are_those_of_the_whole_input_after_kills_at_every_kind_of_step(tmp_path: Path, guarantee: str) -> None:
    settings = {"processing.guarantee": guarantee, "group.instance.id": "the-worker"}
    scene = Scene(joins_app.build(), tmp_path, partitions=2, settings=settings)
    oracle = Oracle()
    for seed, kill_at in enumerate(STEPS):
        given = records(1_500, seed)
        send(scene, given)
        oracle.process(given)
        scene.run_until_killed(joins_app, kill_at)
    given = records(1_500, len(STEPS))
    send(scene, given)
    oracle.process(given)
    scene.work_off()
    names = {key: value.rpartition(b"|")[2] for key, value in oracle.joined.items()}
    found = {key: value for key, (value, _) in scene.rows("joined").items()}
    assert {key: value.rpartition(b"|")[2] for key, value in found.items()} == names
    written = [(r.key, r.value, r.timestamp_ms) for r in scene.written("named")]
    if guarantee == "exactly_once_v2":
        assert found == oracle.joined
        assert scene.rows("newest") == oracle.newest
        assert sorted(written, key=lambda row: row[2]) == oracle.named
    else:  # what is processed again may count again, and meet a newer name
        assert {(key, at) for key, _, at in written} == {(key, at) for key, _, at in oracle.named}
