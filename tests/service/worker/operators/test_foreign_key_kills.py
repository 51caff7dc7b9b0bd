"""A worker that is killed in the middle of joins by foreign key: the results are those of both tables."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from service.worker.operators.operator_scene import Scene
from support.apps import foreign_keys_app
from support.apps.foreign_keys_app import Given
from support.processes.running_worker import eventually, running
from support.run.length import long_only


def records(count: int, seed: int) -> list[Given]:
    """Of forty orders and ten customers, in groups that change together."""
    chance = random.Random(seed)
    made: list[Given] = []
    for n in range(count):
        value = None if chance.random() < 0.2 else f"{seed}.{n}"
        if chance.random() < 0.6:
            order = value and f"{'x' if chance.random() < 0.1 else 'c'}{chance.randrange(12)}-{value}"
            made.append(("orders", (f"o{chance.randrange(40)}", order, seed * 1_000_000 + n)))
        else:
            made.append(("names", (f"c{chance.randrange(10)}", value, seed * 1_000_000 + n)))
    return made


def send(scene: Scene, given: list[Given]) -> None:
    for wanted in ("orders", "names"):
        scene.send(wanted, [record for topic, record in given if topic == wanted])


def work_off_to(scene: Scene, given: list[Given]) -> None:
    """Run a worker until its stores have the results of these records."""
    wanted = foreign_keys_app.rows_of(given)

    def found() -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
        inner, left = ({key: row[0] for key, row in scene.rows(store).items()} for store in ("inner", "left"))
        return inner, left

    with running(scene.app, scene.config, scene.log):
        eventually(lambda: found() == wanted, "both joins have the results of both tables")


STEPS = ["commit:changes-flushed#2", "commit:log-committed#2", "commit:batch-written#4", "commit:task-committed"]


@pytest.mark.parametrize(
    "guarantee",
    ["exactly_once_v2", pytest.param("at_least_once", marks=long_only("test_stream_joins.py kills under it"))],
)
def test_results_are_those_of_both_tables_after_kills_at_every_kind_of_step(tmp_path: Path, guarantee: str) -> None:
    settings = {"processing.guarantee": guarantee, "group.instance.id": "the-worker"}
    scene = Scene(foreign_keys_app.build(), tmp_path, partitions=2, settings=settings)
    sent: list[Given] = []
    for seed, kill_at in enumerate(STEPS):
        part = records(200, seed)
        send(scene, part)
        sent += part
        scene.run_until_killed(foreign_keys_app, kill_at)
    work_off_to(scene, sent)
    assert len(foreign_keys_app.rows_of(sent)[0]) > 10
