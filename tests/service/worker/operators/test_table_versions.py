"""Versioned tables in joins, filters and groups: results are those of the newest values by timestamp."""

from __future__ import annotations

import random
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.worker.operators.operator_scene import Scene
from stateline import App, serdes, until_time_limit
from stateline.testing import TestDriver
from stateline_store import TopologyError
from support.apps import versions_app
from support.apps.versions_app import Given, Values, final
from support.processes.running_worker import eventually, running

EOS = {"processing.guarantee": "exactly_once_v2", "group.instance.id": "the-worker"}


def records(count: int, seed: int) -> tuple[list[Given], list[Given]]:
    """Prices and names of fifty keys, out of order."""
    chance = random.Random(seed)
    made: tuple[list[Given], list[Given]] = [], []
    for n in range(count):
        value = None if chance.random() < 0.2 else f"{chance.choice('abc')}{seed}.{n}"
        made[chance.randrange(2)].append((f"k{chance.randrange(50)}", value, 1_000_000 + chance.randrange(1_000_000)))
    return made


def work_off_to(scene: Scene, wanted: dict[str, Values]) -> None:
    """Run a worker until its stores have these values. A group that lost its last row has a count of 0."""
    zero = serdes.int64.serialize(0)

    def found() -> dict[str, Values]:
        rows = {store: scene.rows(store) for store in wanted}
        return {store: {key: row[0] for key, row in its.items() if row[0] != zero} for store, its in rows.items()}

    with running(scene.app, scene.config, scene.log):
        eventually(lambda: found() == wanted, "the stores have the results of the newest values")


def test_slices_of_records_out_of_order_give_the_results_of_the_newest_values_over_a_lost_disk(tmp_path: Path) -> None:
    scene = Scene(versions_app.build(), tmp_path, 2, EOS)
    sent: tuple[list[Given], list[Given]] = [], []
    for seed in range(2):
        part = records(1_000, seed)
        for topic, all_sent, given_records in zip(("prices", "names"), sent, part, strict=True):
            scene.send(topic, given_records)
            all_sent.extend(given_records)
        work_off_to(scene, final(*sent))
        shutil.rmtree(scene.config.state_dir)


def test_a_worker_that_is_killed_gives_the_results_of_the_newest_values(tmp_path: Path) -> None:
    scene = Scene(versions_app.build(), tmp_path, 2, EOS)
    sent: tuple[list[Given], list[Given]] = [], []
    steps = ["commit:changes-flushed#2", "commit:log-committed#2", "commit:batch-written#4", "commit:task-committed"]
    for seed, kill_at in enumerate(steps):
        part = records(400, seed)
        for topic, all_sent, given_records in zip(("prices", "names"), sent, part, strict=True):
            scene.send(topic, given_records)
            all_sent.extend(given_records)
        scene.run_until_killed(versions_app, kill_at)
    work_off_to(scene, final(*sent))


KEYS, TEXTS = st.sampled_from(["k", "l"]), st.none() | st.sampled_from(["a", "b", "c"])
RECORDS = st.lists(st.tuples(st.sampled_from(["prices", "names"]), KEYS, TEXTS, st.integers(0, 30)), max_size=25)


@settings(deadline=None, max_examples=25)
@given(RECORDS)
def test_records_of_any_order_give_the_results_of_the_newest_values(
    given_records: list[tuple[str, str, str | None, int]],
) -> None:
    sent: dict[str, list[Given]] = {"prices": [], "names": []}
    with TestDriver(versions_app.build()) as driver:
        for topic, key, value, at in given_records:
            driver.pipe(topic, key, value, timestamp_ms=at)
            sent[topic].append((key, value, at))
        found = {s: {row.key: row.value for row in driver.store(s).all()} for s in ("inner", "outer", "left", "counts")}
    wanted = final(sent["prices"], sent["names"])
    counts = {key.decode(): serdes.int64.deserialize(value) for key, value in wanted.pop("counts").items()}
    assert {letter: count for letter, count in found.pop("counts").items() if count} == counts
    assert found == {s: {key.decode(): row.decode() for key, row in rows.items()} for s, rows in wanted.items()}


def test_suppress_of_a_versioned_table_is_refused() -> None:
    app = App("app")
    table = app.ktable(app.table("prices", key=serdes.string, value=serdes.string, versioned=timedelta(1)))
    with pytest.raises(TopologyError, match="versioned store"):
        table.filter(lambda key, value: True).suppress(until_time_limit(timedelta(1)))
