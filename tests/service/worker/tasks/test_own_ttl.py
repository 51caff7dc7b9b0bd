"""Entries with a time to live of their own, and expiry by the clock, from their input to HTTP."""

from __future__ import annotations

import shutil
import struct
from contextlib import ExitStack, closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from service.worker.operators.operator_scene import Scene
from stateline import App, InputRecord, StoreView, serdes, stores
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.log import Log
from stateline.testing import Record, TestDriver
from stateline.worker.loop.worker import Worker
from stateline.worker.standbys import standby_assignment
from stateline_store import InvalidArgumentError
from stateline_store.clock import now_ms
from stateline_store.errors import RecordError
from stateline_store.rows.headers import without_headers
from support.apps import own_ttl_app
from support.apps.own_ttl_app import TEXTS, alive, given
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import Stores, configured, create, eventually, produce, running
from support.run.length import long_only, long_or_short, on_one_log

GUARANTEES = ["at_least_once", "exactly_once_v2"]
KILLED_UNDER = ["exactly_once_v2", pytest.param("at_least_once", marks=long_only("test_stream_joins.py has it"))]
SECOND = timedelta(seconds=1)
STORES = ("kept", "newest", "shown")


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


@pytest.mark.parametrize("guarantee", KILLED_UNDER)
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


@on_one_log("embedded", "the standby here follows and restores changelogs of Kafka")
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


@pytest.mark.parametrize("guarantee", KILLED_UNDER)
def test_what_the_clock_expires_is_gone_through_kills_and_from_the_changelog(tmp_path: Path, guarantee: str) -> None:
    settings = {"processing.guarantee": guarantee, "group.instance.id": "the-worker", "ttl.clock": "wall"}
    scene = Scene(own_ttl_app.build(), tmp_path, partitions=1, settings=settings)
    steps = ("changes-flushed#2", "log-committed#2", *long_or_short(("batch-written#5", "task-committed#2"), ()))
    lasting = dict[str, str]()
    for n in range(len(steps) + 1):
        kept = {f"{n}-{k}": f"{10**10} lasts" for k in range(5)}
        scene.send("in", [(f"{n}-gone-{k}", "1 goes", 1_000) for k in range(50)])
        scene.send("in", [(key, value, 1_000) for key, value in kept.items()])
        lasting |= kept
        if n < len(steps):
            scene.run_until_killed(own_ttl_app, f"commit:{steps[n]}")
    seen = Stores(scene.app, scene.config, tmp_path / "seen")
    with running(scene.app, scene.config, scene.log):
        eventually(partial(has, seen, lasting), "the clock has removed the others")
    seen.close()
    by_stream_time = configured(scene.app, tmp_path / "other", **{"processing.guarantee": guarantee})
    seen = Stores(scene.app, by_stream_time, tmp_path / "seen-again")
    with running(scene.app, by_stream_time, scene.log):
        eventually(partial(has, seen, lasting), "the changelog has these deletes")
    seen.close()


def test_a_sum_of_a_table_is_right_after_the_table_is_rebuilt_under_the_clock(tmp_path: Path) -> None:
    """The clock's deletes of a table are in no topic. Twice told, they would be subtracted twice."""
    app, whole = App("summed"), dict[str, Any](key=serdes.string, value=serdes.int64)
    table = app.table("in", **whole, store="newest", ttl=SECOND)
    grouped = app.ktable(table).group_by(lambda _, value: ("all", value), name="all", **whole)
    grouped.reduce(lambda a, b: a + b, lambda a, b: a - b, store="sums")
    scene = Scene(app, tmp_path, partitions=1, settings={"ttl.clock": "wall", "group.instance.id": "the-worker"})
    for sent in (1, 2):
        scene.send("in", [(f"{sent}", serdes.int64.serialize(100), 1_000)])
        scene.work_off()
        assert {serdes.int64.deserialize(value) for value, _ in scene.rows("sums").values()} == {100 * sent}
        shutil.rmtree(scene.config.state_dir)


def test_a_standby_takes_over_what_the_clock_has_left_of_a_store_and_of_a_table(
    kafka_broker: SharedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby_assignment, "_LOOK_INTERVAL_S", 0.2)
    monkeypatch.setattr(standby_assignment, "_JOINING_INTERVAL_S", 0.1)
    name = f"ttl-{uuid4().hex[:8]}"
    app = own_ttl_app.build(name, f"{name}-")

    def config(node: str) -> Config:
        given: dict[str, Any] = {"bootstrap.servers": kafka_broker.bootstrap_servers, "group.instance.id": node}
        given |= {"num.standby.replicas": 1, "session.timeout.ms": 3_000, "ttl.clock": "wall"}
        return configured(app, tmp_path / node, **given)

    def started(node: str, stack: ExitStack) -> Worker:
        log = stack.enter_context(closing(configured_log(config(node))))
        return stack.enter_context(running(app, config(node), log, node))

    def wait_for(node: str, wanted: dict[str, str]) -> None:
        seen = Stores(app, config(node), tmp_path / f"seen-{uuid4().hex}")
        for store in ("kept", "shown"):
            eventually(partial(has, seen, wanted, store), f"{node} has what is left in {store}")
        seen.close()

    lasting = {f"{k}": f"{10**10} lasts" for k in range(3)}
    with ExitStack() as lasts:
        log = lasts.enter_context(closing(configured_log(config("log"))))
        create(log, {f"{name}-in": 1, f"{name}-out": 1})
        rows = [("gone", "1 goes", 1_000), *((key, value, 1_000) for key, value in lasting.items())]
        produce(log, f"{name}-in", [(k.encode(), v.encode(), at, own_ttl_app.headers_of(v, at)) for k, v, at in rows])
        with ExitStack() as first:
            started("one", first)
            wait_for("one", lasting)
            two = started("two", lasts)
            followed = two.standbys.followed
            eventually(lambda: bool(followed.tasks) and len(followed.caught_up()) == 1, "a standby has caught up")
            seen = Stores(app, config("two"), tmp_path / "standby")
            eventually(partial(has, seen, lasting), "it follows the deletes of a changelog")
            seen.close()
        eventually(lambda: [str(task.state) for task in two.tasks.all.values()] == ["running"], "it has the task")
        wait_for("two", lasting)


def has(seen: Stores, wanted: dict[str, str], store: str = "kept") -> bool:
    rows = seen.rows(store, 1)
    return wanted == {key.decode(): without_headers(value).decode() for key, value in rows.items()}


def test_the_changelog_says_when_an_entry_expires() -> None:
    with TestDriver(own_ttl_app.build()) as driver:
        driver.pipe("in", "k", "5 a", timestamp_ms=1_000)
        found = driver.client.get("/v1/stores/kept/keys/k").json()
        assert found["headers"] == [["stateline-expires-at", "\0\0\0\0\0\0\x17p"]]
        assert struct.pack(">q", 6_000) == b"\0\0\0\0\0\0\x17p"


@pytest.mark.parametrize("clock", ["stream", "wall"])
def test_the_clock_expires_entries_without_input(clock: str) -> None:
    """All but those of a table whose changes are read: such a table goes by its records."""
    with TestDriver(own_ttl_app.build(), config={"ttl.clock": clock}, wall_clock_ms=1_000_000) as driver:
        driver.pipe_all("in", records([("short", "5 a", 1_000_000), ("long", "90 b", 1_000_000)]))
        driver.advance_wall_clock(5_000)
        assert {entry.key for entry in driver.store("kept").all()} == {"short", "long"}
        driver.advance_wall_clock(1)
        left = {"long"} if clock == "wall" else {"short", "long"}
        for again in (False, True):
            for store in ("kept", "shown"):
                assert {entry.key for entry in driver.store(store).all()} == left
            assert {entry.key for entry in driver.store("newest").all()} == {"short", "long"}
            if not again:
                driver.restart()
        driver.read("out")
        driver.pipe_all("in", records([("later", "90 c", 1_005_001)]))
        assert [(each.key, each.value, each.timestamp_ms) for each in driver.read("out")] == [
            ("later", "90 c", 1_005_001),
            ("short", None, 1_005_001),
        ]


def test_the_clock_expires_nothing_while_the_limit_of_uncommitted_bytes_is_exceeded() -> None:
    config = {"ttl.clock": "wall", "statestore.uncommitted.max.bytes": 1}
    with TestDriver(own_ttl_app.build(), config=config, wall_clock_ms=1_000_000) as driver:
        driver.pipe_all("in", records([("short", "5 a", 1_000_000)]))
        driver.autocommit = False
        driver.advance_wall_clock(5_001)
        left = [store for store in ("kept", "shown") if driver.store(store).get("short") is not None]
        assert len(left) == 1
        driver.commit()
        driver.advance_wall_clock(0)
        assert driver.store(left[0]).get("short") is None


def test_a_clock_that_steps_back_brings_nothing_back_and_expires_nothing() -> None:
    with TestDriver(own_ttl_app.build(), config={"ttl.clock": "wall"}, wall_clock_ms=1_000_000) as driver:
        driver.pipe_all("in", records([("short", "5 a", 1_000_000), ("long", "90 b", 1_000_000)]))
        driver.advance_wall_clock(6_000)
        driver.restart()
        driver.advance_wall_clock(0)
        assert {entry.key for entry in driver.store("kept").all()} == {"long"}


def test_a_delete_takes_no_time_to_live_and_an_end_of_all_time_is_kept() -> None:
    app = App("bounds")
    kept = app.store(stores.timestamped_key_value("kept", **TEXTS, own_ttl=True))

    @app.process(app.topic("in", **TEXTS), stores=[kept])
    def keep(record: InputRecord, kept: StoreView) -> None:
        at = 2**63 - 2 if record.value == "latest" else None
        kept.put(record.key, record.value, ttl=timedelta.max, timestamp_ms=at)

    with TestDriver(app) as driver:
        for key, value, left in (("a", "v", {"a"}), ("a", None, set[str]()), ("b", "latest", {"b"})):
            driver.pipe("in", key, value, timestamp_ms=1_000)
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
