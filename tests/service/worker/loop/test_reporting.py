"""What a worker tells of itself once a second, and that it goes on where it cannot."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest

from service.worker.faults import NEVER_MS, Place, counting, entries
from stateline import TumblingWindows, serdes, stores
from stateline.deployment.json_files import publish
from stateline.dsl.app import App
from stateline.log import Log
from stateline.processing.store_views import WindowView
from stateline.worker import InputRecord
from stateline.worker.files.registration import Registration
from stateline.worker.loop import reporting
from stateline_store import RetryLaterError
from support.apps import global_app
from support.processes.running_worker import configured, create, eventually, produce, running

KEYS = [f"k{n}" for n in range(50)]


@pytest.fixture(autouse=True)
def always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is a report: a test waits for what happened, not for the clock."""
    monkeypatch.setattr(reporting, "_INTERVAL_S", 0.0)


def told(state_dir: Path, application: str = "app", instance: str = "worker-0") -> dict[str, Any]:
    path = state_dir / application / "instances" / f"{instance}.figures"
    try:
        found: dict[str, Any] = orjson.loads(path.read_bytes())
    except FileNotFoundError:  # not yet, or not any more
        return {}
    return found


def told_when(holds: Callable[[dict[str, Any]], bool], place: Place, config: Any, app: App) -> dict[str, Any]:
    """The first report of a worker for which this holds."""
    seen: list[dict[str, Any]] = []

    def look() -> bool:
        found = told(config.state_dir, instance="watched")
        if found and holds(found):
            seen.append(found)
        return bool(seen)

    place.worker(app, config).reach(look)
    return seen[0]


def test_commits_and_records_are_told_as_they_were(place: Place) -> None:
    app = counting()
    config = place.config(app)
    place.send(entries(KEYS, 4))
    found = told_when(lambda f: f["totals"]["processed"] == 200 and f["totals"]["commits"] > 0, place, config, app)
    assert found["instance"] == "watched"
    assert found["totals"]["forced_commits"] == found["totals"]["restored"] == 0
    assert 0 < found["commit_latency"]["avg_s"] <= found["commit_latency"]["max_s"]
    assert found["rates"]["processed"] > 0
    assert found["dropped"] == {"0_0": 0}
    assert found["rocksdb"]["0_0"]["counts"]["num-live-versions"] > 0
    assert not told(config.state_dir, instance="watched"), "a worker that leaves takes its figures along"


def test_of_each_store_its_commits_are_told_and_what_it_has_staged(place: Place) -> None:
    app = counting()
    config = place.config(app)
    place.send(entries(KEYS, 4))
    found = told_when(lambda f: f["totals"]["processed"] == 200 and f["totals"]["commits"] > 0, place, config, app)
    store = found["stores"]["0_0"]["counts"]
    assert 0 < found["rates"]["commits"] <= store["commit_rate"], "as many in less time: the worker began before it"
    assert 0 < store["commit_latency_avg_s"] <= store["commit_latency_max_s"] <= found["commit_latency"]["max_s"]
    config = place.config(app, commit__interval__ms=NEVER_MS)
    place.send(entries(KEYS))
    found = told_when(lambda f: f["uncommitted_bytes"] > 0, place, config, app)
    assert found["stores"]["0_0"]["counts"]["uncommitted_bytes"] == found["uncommitted_bytes"]


def test_global_tables_are_told_as_stores_of_the_task_global(tmp_path: Path) -> None:
    with closing(Place(tmp_path)) as place:
        create(place.log, {"codes": 2, "rows": 1, "out": 1})
        app = global_app.build()
        config = place.config(app)
        place.send(entries(KEYS), "codes")
        seen: list[dict[str, Any]] = []

        def look() -> bool:
            found = told(config.state_dir, "codes-app", "watched")
            seen.extend([found] if "global" in found.get("stores", {}) else [])
            return bool(seen)

        place.worker(app, config).reach(look)
    store = seen[0]["stores"]["global"]["codes"]
    assert store["commit_rate"] > 0
    assert 0 < store["commit_latency_avg_s"] <= store["commit_latency_max_s"]
    assert store["uncommitted_bytes"] == 0
    assert seen[0]["rocksdb"]["global"]["codes"]["num-live-versions"] > 0
    assert seen[0]["lag"]["global"] == {"codes": 0}


def test_a_forced_commit_is_told_as_one(place: Place) -> None:
    app = counting()
    config = place.config(app, commit__interval__ms=NEVER_MS, statestore__uncommitted__max__bytes=2_000)
    place.send(entries(KEYS))
    found = told_when(lambda f: f["totals"]["forced_commits"] > 0, place, config, app)
    assert found["totals"]["forced_commits"] == found["totals"]["commits"]
    assert found["uncommitted_max_bytes"] == 2_000


def test_what_is_staged_is_told_in_bytes(place: Place) -> None:
    app = counting()
    config = place.config(app, commit__interval__ms=NEVER_MS)
    place.send(entries(KEYS))
    found = told_when(lambda f: f["totals"]["processed"] == 50, place, config, app)
    assert 50 * 8 < found["uncommitted_bytes"] < 50 * 1_000


def test_a_restore_is_told_in_records(place: Place) -> None:
    app = counting()
    config = place.config(app)
    place.send(entries(KEYS))
    place.work_off(app, config, 49)
    place.lose_disk(config)
    found = told_when(lambda f: f["totals"]["restored"] > 0, place, config, app)
    assert found["totals"]["restored"] == 50


def test_records_that_were_left_out_and_puts_that_came_too_late_are_told(place: Place) -> None:
    app = App("app")
    source = app.topic("in", key=serdes.string, value=serdes.json)
    visits = app.store(
        stores.window(
            "visits", key=serdes.string, value=serdes.json, size=timedelta(seconds=1), retention=timedelta(minutes=1)
        )
    )

    @app.process(source, stores=[visits])
    def visit(record: InputRecord, visits: WindowView) -> None:
        visits.put(record.key, record.value, record.timestamp_ms)

    place.send([(b"a", b"1", 10_000_000), (b"a", b"2", 1_000), (b"a", b"{half", 10_000_000), (b"a", b"3", 2_000)])
    config = place.config(app, deserialization__exception__handler="skip")
    found = told_when(lambda f: f["totals"]["processed"] == 4, place, config, app)
    assert (found["skipped"], found["dead_lettered"], found["dropped"]) == (1, 0, {"0_0": 2})
    assert found["steps"]["visit"] == {"taken": 4, "dropped": {"late": 2}}
    assert found["dropped_by_operators"] == 0, "the store has counted them"


def test_records_that_operators_drop_are_told(place: Place) -> None:
    app = App("app")
    app.stream("in", key=serdes.string, value=serdes.string).group_by_key().count("counts")
    place.send([(None, b"1", 1), (None, b"2", 2), (b"k", b"1", 3)])
    found = told_when(lambda f: f["totals"]["processed"] == 3, place, place.config(app), app)
    assert (found["dropped_by_operators"], found["skipped"]) == (2, 0)
    assert found["steps"]["count counts"] == {"taken": 3, "dropped": {"no_key": 2}}


def test_a_step_says_how_many_records_it_dropped_for_each_reason(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("app")
    rows = app.stream("in", key=serdes.string, value=serdes.json)

    def inverse(_: Any, value: Any) -> Any:
        return 6 // (value - 1)

    rows.map_values(inverse).group_by_key().windowed_by(TumblingWindows(timedelta(seconds=1))).count("per_second")
    far = time.time_ns() // 1_000_000 + 3_600_000
    place.send([(b"k", b"2", 5_000), (b"k", b"2", 1), (None, b"2", 1), (b"k", b"1", 1)])
    place.send([(b"k", b"{", 1), (b"k", b"2", far), (b"k", b"2", 2)])
    skipping = {"deserialization__exception__handler": "skip", "processing__exception__handler": "skip"}
    config = place.config(app, max__timestamp__ahead__ms=60_000, **skipping)
    with caplog.at_level(logging.WARNING, "stateline.processing.failures"):
        found = told_when(lambda f: f["totals"]["processed"] == 7, place, config, app)
    assert {name: step["dropped"] for name, step in found["steps"].items() if step["dropped"]} == {
        "read in": {"skipped": 1, "too_far_ahead": 1},
        "map_values": {"skipped": 1},
        "count per_second": {"late": 2, "no_key": 1},
    }
    assert found["steps"]["read in"]["taken"] == 7
    late = [text for text in caplog.messages if "came after their windows had closed" in text]
    assert late
    assert all(text.startswith("Step 'count per_second' drops records that came after") for text in late)
    assert not any("for all reasons" in text for text in caplog.messages)


def test_the_lag_is_what_the_input_has_and_the_task_has_not_read(log: Log, tmp_path: Path) -> None:
    name = f"app-{uuid4().hex[:8]}"
    app = App(name)
    app.table(app.topic(f"{name}-in", key=serdes.string, value=serdes.string), store="newest")
    config = configured(app, tmp_path)
    create(log, {f"{name}-in": 2})
    produce(log, f"{name}-in", [(key.encode(), b"v", 1) for key in KEYS])
    with running(app, config, log):

        def all_read() -> bool:
            found = told(tmp_path, name)
            lag = {"0_0": {f"{name}-in": 0}, "0_1": {f"{name}-in": 0}}
            return bool(found) and found["totals"]["processed"] == 50 and found["lag"] == lag

        eventually(all_read, "all is read")


def test_a_worker_goes_on_where_its_figures_cannot_be_written_and_says_so_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise RetryLaterError("the disk is full")

    monkeypatch.setattr(Registration, "publish_figures", full)
    app = counting()
    config = place.config(app)
    place.send(entries(KEYS))
    with caplog.at_level(logging.WARNING):
        assert len(place.work_off(app, config, 49).rows("counts", 1)) == 50
    assert len([r for r in caplog.records if "the disk is full" in r.getMessage()]) == 1


def test_a_file_that_could_not_be_replaced_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "rename", full)
    for _ in range(3):
        with pytest.raises(RetryLaterError, match="No space left"):
            publish(tmp_path / "figures", b"{}")
    assert list(tmp_path.iterdir()) == []
