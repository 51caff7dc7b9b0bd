"""Tables and stores with a time to live, from their input to HTTP, against a dict."""

from __future__ import annotations

import shutil
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from service.worker.operators.operator_scene import Scene
from stateline import App
from stateline.log import Log
from stateline.testing import Record, TestDriver
from stateline_store import InvalidArgumentError
from support.apps import ttl_app
from support.apps.ttl_app import TEXTS, TTL, TTL_MS, Row, alive, given
from support.processes.running_worker import Stores, configured, create, eventually, produce, running
from support.run.length import long_only, on_one_log

GUARANTEES = ["at_least_once", "exactly_once_v2"]


def records(rows: list[Row]) -> list[Record]:
    return [Record(key, value, at) for key, value, at in rows]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_table_and_what_is_made_of_it_have_what_is_alive_through_crashes_and_restarts(guarantee: str) -> None:
    rows, out = given(240), dict[str, str]()
    with TestDriver(ttl_app.build(), config={"processing.guarantee": guarantee}) as driver:
        for end, interrupt in ((80, driver.crash), (160, driver.restart), (240, driver.abort)):
            driver.pipe_all("in", records(rows[end - 80 : end]))
            wanted = alive(rows[:end])
            assert 0 < len(wanted) < 25
            for again in (False, True):
                if again:
                    interrupt()
                for store in ("newest", "kept"):
                    for level in ("read_committed", "read_uncommitted"):
                        found = driver.store(store).all(isolation_level=level)
                        assert {entry.key: entry.value for entry in found} == wanted, (store, level)
                upper = {entry.key: entry.value for entry in driver.store("upper").all()}
                assert upper == {key: value.upper() for key, value in wanted.items()}
            for record in driver.read("out"):
                out.pop(record.key, None)
                if record.value is not None:
                    out[record.key] = record.value
            assert out == upper


def test_over_http_what_has_expired_is_absent() -> None:
    with TestDriver(ttl_app.build()) as driver:
        driver.pipe("in", "old", "v", timestamp_ms=1_000)
        driver.pipe("in", "new", "v", timestamp_ms=1_001 + TTL_MS)
        for store in ("newest", "kept"):
            for level in ("read_committed", "read_uncommitted"):
                asked = f"?isolation_level={level}"
                assert driver.client.get(f"/v1/stores/{store}/keys/old{asked}").status_code == 404
                assert driver.client.get(f"/v1/stores/{store}/keys/new{asked}").json()["value"] == "v"
                entries = driver.client.get(f"/v1/stores/{store}/range{asked}").json()["entries"]
                assert [entry["key"] for entry in entries] == ["new"]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_copy_that_is_restored_from_the_log_has_the_same(tmp_path: Path, guarantee: str) -> None:
    rows = given(200)
    scene = Scene(ttl_app.build(), tmp_path, partitions=1, settings={"processing.guarantee": guarantee})
    for part in (rows[:150], rows[150:151], rows[151:]):  # one record shows what was restored before it
        scene.send("in", part)
        scene.work_off()
        done = rows[: rows.index(part[-1]) + 1]
        for store in ("newest", "kept"):
            assert {key.decode(): value.decode() for key, (value, _) in scene.rows(store).items()} == alive(done)
        assert {key.decode(): value.decode().lower() for key, (value, _) in scene.rows("upper").items()} == alive(done)
        shutil.rmtree(scene.config.state_dir)


@pytest.mark.parametrize(
    "guarantee",
    ["exactly_once_v2", pytest.param("at_least_once", marks=long_only("test_stream_joins.py kills under it"))],
)
def test_what_is_alive_is_there_after_kills_at_every_kind_of_step(tmp_path: Path, guarantee: str) -> None:
    settings = {"processing.guarantee": guarantee, "group.instance.id": "the-worker"}
    scene = Scene(ttl_app.build(), tmp_path, partitions=1, settings=settings)
    steps = ["commit:changes-flushed#2", "commit:log-committed#2", "commit:batch-written#4", "commit:task-committed"]
    rows = given(120 * (len(steps) + 1))
    for n, kill_at in enumerate(steps):
        scene.send("in", rows[n * 120 : (n + 1) * 120])
        scene.run_until_killed(ttl_app, kill_at)
    scene.send("in", rows[len(steps) * 120 :])
    scene.work_off()
    for store in ("newest", "kept", "upper"):
        assert {key.decode(): value.decode().lower() for key, (value, _) in scene.rows(store).items()} == alive(rows)


@on_one_log("embedded", "test_own_ttl.py has a standby that follows such a changelog of Kafka")
def test_on_either_log_a_lost_disk_is_restored_to_what_is_alive(log: Log, tmp_path: Path) -> None:
    prefix = f"{uuid4().hex[:8]}-"
    app, rows = ttl_app.build(f"{prefix}alive", prefix), given(200)
    create(log, {f"{prefix}in": 1, f"{prefix}out": 1})
    config = configured(app, tmp_path / "state", **{"processing.guarantee": "exactly_once_v2"})
    for part in (rows[:150], rows[150:]):
        produce(log, f"{prefix}in", [(key.encode(), value and value.encode(), at) for key, value, at in part])
        done = rows[: rows.index(part[-1]) + 1]
        seen = Stores(app, config, tmp_path / f"seen-{len(done)}")
        with running(app, config, log):
            wanted = dict.fromkeys(("newest", "kept", "upper"), alive(done))
            eventually(partial(has, seen, wanted), "the stores have what is alive")
        seen.close()
        shutil.rmtree(config.state_dir)


def has(seen: Stores, wanted: dict[str, dict[str, str]]) -> bool:
    """Whether these are the stores' rows, but for the case of letters."""
    rows = {store: seen.rows(store, 1) for store in wanted}
    return wanted == {store: {k.decode(): v.decode().lower() for k, v in rows[store].items()} for store in rows}


def test_each_partition_goes_by_its_own_time() -> None:
    with TestDriver(ttl_app.build(), partitions=2) as driver:
        driver.pipe("in", "a", "v", timestamp_ms=1_000, partition=0)
        driver.pipe("in", "b", "v", timestamp_ms=50_000, partition=1)
        assert sorted(entry.key for entry in driver.store("newest").all()) == ["a", "b"]


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"ttl": TTL, "versioned": TTL}, "only a table of the newest values takes it"),
        ({"ttl": TTL, "windowed": TTL, "retention": TTL}, "only a table of the newest values takes it"),
        ({"ttl": timedelta(0)}, "a timedelta of a millisecond or more"),
        ({"ttl": timedelta(seconds=-1)}, "a timedelta of a millisecond or more"),
        ({"ttl": "1h"}, r"ttl='1h': give a timedelta, as timedelta\(hours=1\)"),
    ],
)
def test_a_time_to_live_that_cannot_be_is_refused(terms: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        App("x").table("in", **TEXTS, **terms)


@pytest.mark.parametrize("together", [True, False])
def test_what_expires_is_deleted_at_stream_time_whatever_comes_with_it(together: bool) -> None:
    app = App("alone")  # without a processor, for which records are taken one by one
    app.ktable(app.table("in", **TEXTS, store="newest", ttl=TTL)).to_stream().to(app.topic("out", **TEXTS))
    rows = records([("old", "v", 1_000), ("new", "v", 1_001 + TTL_MS), ("late", "v", 1_500)])
    with TestDriver(app) as driver:
        for part in [rows] if together else [rows[:1], rows[1:]]:
            driver.pipe_all("in", part)
        deleted = [record for record in driver.read("out") if record.value is None]
        assert [(record.key, record.timestamp_ms) for record in deleted] == [("old", 1_001 + TTL_MS)]
