"""Entries with a time to live of their own, and expiry by the clock, from their input to HTTP."""

from __future__ import annotations

import shutil
import struct
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from service.worker.operators.operator_scene import Scene
from stateline import App, InputRecord, StoreView, stores
from stateline.log import Log
from stateline.testing import Record, TestDriver
from stateline_store import InvalidArgumentError
from stateline_store.clock import now_ms
from stateline_store.errors import RecordError
from stateline_store.rows.headers import without_headers
from support.apps import own_ttl_app
from support.apps.own_ttl_app import TEXTS, alive, given
from support.processes.running_worker import Stores, configured, create, eventually, produce, running

GUARANTEES = ["at_least_once", "exactly_once_v2"]
SECOND = timedelta(seconds=1)
STORES = ("kept", "newest")


def records(rows: list[own_ttl_app.Row]) -> list[Record]:
    return [Record(key, value, at, headers=own_ttl_app.headers_of(value, at)) for key, value, at in rows]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_stores_have_what_is_alive_through_crashes_and_restarts(guarantee: str) -> None:
    rows, out = given(240), dict[str, str]()
    with TestDriver(own_ttl_app.build(), config={"processing.guarantee": guarantee}) as driver:
        for end, interrupt in ((80, driver.crash), (160, driver.restart), (240, driver.abort)):
            driver.pipe_all("in", records(rows[end - 80 : end]))
            wanted = alive(rows[:end])
            assert 0 < len(wanted) < 25
            for again in (False, True):
                if again:
                    interrupt()
                for store in STORES:
                    assert {entry.key: entry.value for entry in driver.store(store).all()} == wanted, store
            for record in driver.read("out"):
                out.pop(record.key, None)
                if record.value is not None:
                    out[record.key] = record.value
            assert out == wanted


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_what_is_alive_is_there_after_kills_at_every_kind_of_step(tmp_path: Path, guarantee: str) -> None:
    settings = {"processing.guarantee": guarantee, "group.instance.id": "the-worker"}
    scene = Scene(own_ttl_app.build(), tmp_path, partitions=1, settings=settings)
    steps = ["commit:changes-flushed#2", "commit:log-committed#2", "commit:batch-written#4", "commit:task-committed"]
    rows = given(120 * (len(steps) + 1))
    for n, kill_at in enumerate(steps):
        scene.send("in", rows[n * 120 : (n + 1) * 120])
        scene.run_until_killed(own_ttl_app, kill_at)
    scene.send("in", rows[len(steps) * 120 :])
    scene.work_off()
    found = {key.decode(): without_headers(value).decode() for key, (value, _) in scene.rows("kept").items()}
    assert found == alive(rows)


def test_on_either_log_a_lost_disk_is_restored_to_what_is_alive(log: Log, tmp_path: Path) -> None:
    prefix = f"{uuid4().hex[:8]}-"
    app, rows = own_ttl_app.build(f"{prefix}alive", prefix), given(200)
    create(log, {f"{prefix}in": 1, f"{prefix}out": 1})
    config = configured(app, tmp_path / "state", **{"processing.guarantee": "exactly_once_v2"})
    for part in (rows[:150], rows[150:]):
        produce(log, f"{prefix}in", [(key.encode(), value and value.encode(), at) for key, value, at in part])
        done = rows[: rows.index(part[-1]) + 1]
        seen = Stores(app, config, tmp_path / f"seen-{len(done)}")
        with running(app, config, log):
            eventually(partial(has, seen, alive(done)), "the store has what is alive")
        seen.close()
        shutil.rmtree(config.state_dir)


def has(seen: Stores, wanted: dict[str, str]) -> bool:
    rows = seen.rows("kept", 1)
    return wanted == {key.decode(): without_headers(value).decode() for key, value in rows.items()}


def test_the_changelog_says_when_an_entry_expires() -> None:
    with TestDriver(own_ttl_app.build()) as driver:
        driver.pipe("in", "k", "5 a", timestamp_ms=1_000)
        found = driver.client.get("/v1/stores/kept/keys/k").json()
        assert found["headers"] == [["stateline-expires-at", "\0\0\0\0\0\0\x17p"]]
        assert struct.pack(">q", 6_000) == b"\0\0\0\0\0\0\x17p"


@pytest.mark.parametrize("clock", ["stream", "wall"])
def test_the_clock_expires_entries_without_input(clock: str) -> None:
    with TestDriver(own_ttl_app.build(), config={"ttl.clock": clock}, wall_clock_ms=1_000_000) as driver:
        driver.pipe_all("in", records([("short", "5 a", 1_000_000), ("long", "90 b", 1_000_000)]))
        driver.advance_wall_clock(5_000)
        assert {entry.key for entry in driver.store("kept").all()} == {"short", "long"}
        driver.read("out")
        driver.advance_wall_clock(1)
        left = {"long"} if clock == "wall" else {"short", "long"}
        for store in STORES:
            assert {entry.key for entry in driver.store(store).all()} == left
        deleted = [(record.key, record.value, record.timestamp_ms) for record in driver.read("out")]
        assert deleted == ([("short", None, 1_000_000)] if clock == "wall" else [])
        driver.restart()
        assert {entry.key for entry in driver.store("kept").all()} == left


def test_by_the_clock_a_record_ahead_of_it_expires_what_it_did_before(tmp_path: Path) -> None:
    """Stream time counts beside the clock: a restore, which knows no clock, comes to the same rows."""
    with TestDriver(own_ttl_app.build(), config={"ttl.clock": "wall"}, wall_clock_ms=1_000_000) as driver:
        driver.pipe_all("in", records([("short", "5 a", 1_000_000), ("ahead", "90 b", 1_005_001)]))
        assert {entry.key for entry in driver.store("kept").all()} == {"ahead"}


def test_a_store_whose_entries_have_none_refuses_one() -> None:
    app = App("without")
    kept = app.store(stores.timestamped_key_value("kept", **TEXTS, ttl=SECOND))

    @app.process(app.topic("in", **TEXTS), stores=[kept])
    def keep(record: InputRecord, kept: StoreView) -> None:
        kept.put(record.key, record.value, ttl=SECOND)

    with TestDriver(app) as driver, pytest.raises(RecordError, match="declared with own_ttl=True"):
        driver.pipe("in", "k", "v")


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"own_ttl": True, "versioned": SECOND}, "only a table of the newest values takes it"),
        ({"own_ttl": "yes"}, "own_ttl='yes': give True or False"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(terms: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        App("x").table("in", **TEXTS, **terms)


@pytest.mark.parametrize("clock", ["stream", "wall"])
def test_queries_hide_windows_and_sessions_of_silent_sources_by_the_clock(clock: str) -> None:
    minute, app = timedelta(minutes=1), App("silent")
    windows = app.store(stores.window("windows", **TEXTS, size=minute, retention=10 * minute))
    sessions = app.store(stores.session("sessions", **TEXTS, retention=10 * minute))
    shown = list[int]()

    @app.process(app.topic("in", **TEXTS), stores=[windows, sessions])
    def keep(record: InputRecord, windows: Any, sessions: Any) -> None:
        windows.put(record.key, record.value, record.timestamp_ms)
        sessions.put(record.key, record.timestamp_ms, record.timestamp_ms, record.value)
        shown.append(len([*windows.all()]))

    now, hour_ms = now_ms(), 3_600_000
    with TestDriver(app, config={"retention.clock": clock}) as driver:
        for at_ms, is_shown in ((now - hour_ms, clock == "stream"), (now, True)):
            driver.pipe("in", "k", "v", timestamp_ms=at_ms)
            for level in ("read_committed", "read_uncommitted"):
                for kind in ("windows", "sessions"):
                    asked = f"/v1/stores/{kind}/keys/k/{kind}?isolation_level={level}"
                    assert len(driver.client.get(asked).json()["entries"]) == is_shown, (asked, at_ms)
        assert shown == [1, 1]  # a processor goes by stream time
