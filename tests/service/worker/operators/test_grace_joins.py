"""Rows that wait for older versions of a table: those of plain Python leave, after restarts, lost disks and kills."""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.worker.operators.operator_scene import Scene
from stateline import App, serdes
from stateline.testing import TestDriver
from stateline_store import InvalidArgumentError, TopicPartition, TopologyError
from support.apps import grace_app
from support.apps.grace_app import GRACE_MS, HISTORY_MS, Given, Left, Oracle


def records(count: int, seed: int) -> tuple[list[Given], list[Given]]:
    """Trades and rates of five keys, some of both late."""
    chance, at = random.Random(seed), 10_000 + seed * 50_000
    made: tuple[list[Given], list[Given]] = [], []
    for n in range(count):
        at += chance.randrange(20)
        late_ms = chance.randrange(250) if n % 3 == 0 else 0
        value = None if chance.random() < 0.1 else f"{seed}.{n}"
        made[chance.randrange(2)].append((f"k{chance.randrange(5)}", value, at - late_ms))
    return made


def send(scene: Scene, oracle: Oracle, trades: list[Given], rates: list[Given]) -> None:
    scene.send("trades", trades)
    scene.send("rates", rates)
    oracle.process(trades, rates)


def left(scene: Scene) -> list[Left]:
    return [(each.key, each.value, each.timestamp_ms) for each in scene.written("rated")]


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_rows_meet_versions_that_come_within_the_grace_over_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    monkeypatch.setattr("stateline.processing.operators.leaving_rows._MOST_BYTES", 450)  # it looks often
    scene = Scene(grace_app.build(), tmp_path, 1, {"processing.guarantee": guarantee})
    oracle = Oracle()
    for seed in range(3):
        send(scene, oracle, *records(400, seed))
        scene.work_off()
        assert left(scene) == oracle.left
        assert len(scene.written("app-waiting-Buffer-changelog")) > 100
    assert len(oracle.left) > 400
    assert oracle.waiting


@pytest.mark.parametrize("persistent", [True, False], ids=["disk-lost", "memory"])
def test_waiting_rows_are_restored_and_rows_of_the_same_time_beside_them_are_kept(
    tmp_path: Path, persistent: bool
) -> None:
    scene = Scene(grace_app.build(persistent=persistent), tmp_path, 1, {"processing.guarantee": "exactly_once_v2"})
    oracle = Oracle()
    for start in range(3):
        send(scene, oracle, [("k", f"{start}.{n}", 1_000 + n // 2) for n in range(10)], [])
        scene.work_off()
        shutil.rmtree(scene.config.state_dir)
    send(scene, oracle, [("k", "late", 900), ("k", "last", 5_000)], [("k", "rate", 1_002)])
    scene.work_off()
    assert left(scene) == oracle.left
    assert len(oracle.left) == 31


def test_a_worker_that_is_killed_under_exactly_once_joins_each_row_once(tmp_path: Path) -> None:
    guarantee = {"processing.guarantee": "exactly_once_v2", "group.instance.id": "the-worker"}
    scene, oracle = Scene(grace_app.build(), tmp_path, 1, guarantee), Oracle()
    steps = ["commit:changes-flushed#2", "commit:log-committed", "commit:batch-written#4", "commit:task-committed#2"]
    for seed, kill_at in enumerate([*steps, None]):
        send(scene, oracle, *records(600, seed))
        if kill_at is None:
            scene.work_off()
        else:
            scene.run_until_killed(grace_app, kill_at)
    assert left(scene) == oracle.left
    assert len(oracle.left) > 1_000


KEYS = st.sampled_from(["a", "b"])
VALUES = st.none() | st.sampled_from(["x", "y"])
RECORDS = st.lists(st.tuples(st.booleans(), KEYS, VALUES, st.integers(0, 400)), max_size=25)


@settings(deadline=None, max_examples=15)
@given(RECORDS)
def test_rows_of_any_times_are_joined_as_in_plain_python(
    given_records: list[tuple[bool, str, str | None, int]],
) -> None:
    oracle = Oracle()
    with TestDriver(grace_app.build()) as driver:
        for is_trade, key, value, at in given_records:
            driver.pipe("trades" if is_trade else "rates", key, value, timestamp_ms=at)
            record = [(key, value, at)]
            oracle.process(record if is_trade else [], [] if is_trade else record)
        found = [(each.key, each.value, each.timestamp_ms) for each in driver.read("rated")]
        waiting = [row.key for row in driver.store("waiting-Buffer").all()]
    assert found == [(key.decode(), value.decode(), at) for key, value, at in oracle.left if key and value]
    assert [int.from_bytes(name[1:9]) for name in waiting] == [row[0] for row in oracle.waiting]


def test_a_row_without_a_key_is_joined_at_once_by_a_left_join_and_dropped_by_an_inner_one() -> None:
    with TestDriver(grace_app.build()) as driver:
        driver.pipe("trades", None, "x", timestamp_ms=GRACE_MS * 9)
        driver.pipe("trades", "a", "y", timestamp_ms=GRACE_MS)
        assert [(each.key, each.value) for each in driver.read("rated")] == [(None, "x|None")]
        assert len(list(driver.store("waiting-Buffer").all())) == 1


def test_a_dead_letter_of_a_row_that_waited_is_its_input_record() -> None:
    letters = {"processing.exception.handler": "dead-letter", "errors.dead.letter.queue.topic.name": "dead"}
    app = App("app", config=letters)
    rates = app.table("rates", key=serdes.string, value=serdes.string, versioned=timedelta(milliseconds=HISTORY_MS))
    trades = app.stream("trades", key=serdes.string, value=serdes.string)

    def refused(trade: str, rate: str | None) -> str:
        raise ValueError(trade)

    upper = trades.map_values(lambda key, value: value.upper())
    upper.left_join(rates, refused, grace=timedelta(milliseconds=GRACE_MS), store="waiting").to("rated")
    with TestDriver(app) as driver:
        driver.pipe("trades", "k", "kept", timestamp_ms=0, headers=(("h", b"1"),))
        driver.pipe("trades", "k", "deleted", timestamp_ms=1)
        driver.restart()
        driver.pipe("trades", "k", "last", timestamp_ms=GRACE_MS)
        (kept,) = driver.dead_letters()
        assert (kept.key, kept.value, kept.timestamp_ms, kept.offset, kept.message) == (b"k", b"kept", 0, 0, "KEPT")
        assert kept.headers[0] == ("h", b"1")
        with closing(driver._place.log.admin()) as admin:
            admin.delete_records({TopicPartition("trades", 0): 2})
        driver.pipe("trades", "k", "later", timestamp_ms=GRACE_MS + 1)
        (deleted,) = driver.dead_letters()
        assert (deleted.key, deleted.value, deleted.offset, deleted.message) == (b"k", None, 1, "DELETED")


def declared(**options: Any) -> App:
    app = App("app")
    rates = app.table("rates", key=serdes.string, value=serdes.string, **options)
    grace = timedelta(minutes=5)
    app.stream("trades", key=serdes.string, value=serdes.string).join(rates, grace_app.pair, grace=grace).to("rated")
    return app


def test_a_grace_needs_a_table_that_keeps_its_versions_for_so_long() -> None:
    with pytest.raises(TopologyError, match=r"grace=.*'rates' keeps no versions.*versioned="):
        declared()
    with pytest.raises(TopologyError, match="keeps versions for 60000 ms"):
        declared(versioned=timedelta(minutes=1))
    app = declared(versioned=timedelta(minutes=5))
    assert "KSTREAM-JOIN-0000000000-Buffer" in app.topology().stores
    trades = app.stream("trades")
    table = app.global_table("names", key=serdes.string, value=serdes.string)
    with pytest.raises(TopologyError, match="global table has none"):
        trades.join(table, grace_app.pair, on=lambda key, value: key, grace=timedelta(1))
    late = app.table("late", key=serdes.string, value=serdes.string, versioned=timedelta(1))
    with pytest.raises(InvalidArgumentError, match=r"grace=5: give a timedelta"):
        trades.left_join(late, grace_app.pair, grace=5)  # type: ignore[arg-type]
