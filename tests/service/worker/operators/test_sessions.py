"""Aggregates over sessions: equal to an oracle that takes record by record, over restarts."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from service.worker.operators.operator_scene import SLICES_OF_5, Scene
from service.worker.operators.test_windows import add_to_list, built, int64, text
from service.worker.operators.windows_oracle import (
    BASE_MS,
    Add,
    Sessions,
    chained,
    check,
    compacted,
    count,
    events,
    larger,
    oracles,
)
from stateline import App, SessionWindows, serdes

GAP, GRACE = timedelta(seconds=4), timedelta(seconds=15)
WINDOWS = SessionWindows(GAP, grace=GRACE)


def both(key: str, one: list[Any], other: list[Any]) -> list[Any]:
    assert key.startswith("k")
    return ([*one, *other])[-6:]


OPERATIONS: dict[str, tuple[Any, Add, Add, Callable[[Any], bytes]]] = {
    "count": (lambda w: w.count("kept"), count, lambda one, other: (one or 0) + other, int64),
    "reduce": (lambda w: w.reduce(larger, "kept"), larger, larger, text),
    "aggregate": (
        lambda w: w.aggregate(list, add_to_list, "kept", value=serdes.json, merger=both),
        chained,
        lambda one, other: ([*(one or []), *other])[-6:],
        lambda value: json.dumps(value, separators=(",", ":")).encode(),
    ),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("guarantee", "slices"), SLICES_OF_5)
def test_each_session_holds_what_its_records_make_of_it_over_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, guarantee: str, slices: int
) -> None:
    monkeypatch.setattr("stateline.worker.loop.pace._MAX_SLICE_RECORDS", slices)
    declare, add, merge, write = OPERATIONS[operation]
    scene = Scene(built(WINDOWS, declare), tmp_path, 2, {"processing.guarantee": guarantee})
    for part in (events(400), events(400, 1, first=400)):
        scene.send("events", part)
        scene.work_off()
    made = oracles(scene, lambda: Sessions(WINDOWS.gap_ms, WINDOWS.grace_ms, add, merge))
    assert all(oracle.dropped > 10 for oracle in made), "the input has records that come too late"
    check(scene, "kept", made, write)


@pytest.mark.parametrize(("keys", "sessions", "size"), [(1, 1, 1_000), (3, 3, 1_000), (20_000, 16, 40)])
def test_sessions_that_are_not_in_memory_are_read_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: int, sessions: int, size: int
) -> None:
    monkeypatch.setattr("stateline.worker.loop.pace._MAX_SLICE_RECORDS", 5)
    for name, limit in (("_KEYS", keys), ("_SESSIONS", sessions), ("_BYTES", size)):
        monkeypatch.setattr(f"stateline.processing.operators.session_cache.{name}", limit)
    kept = timedelta(minutes=5)
    scene = Scene(built(WINDOWS, lambda w: w.count("kept", retention=kept)), tmp_path, 1)
    for part in (events(500, keys=10), events(500, 1, first=500, keys=10)):
        scene.send("events", part)
        scene.work_off()
    _, add, merge, write = OPERATIONS["count"]
    check(scene, "kept", oracles(scene, lambda: Sessions(4_000, 15_000, add, merge, 300_000)), write)


def test_changes_of_sessions_carry_their_ends_and_those_that_were_joined_are_deleted(tmp_path: Path) -> None:
    app = App("app")
    stream = app.stream("events", key=serdes.string, value=serdes.string)
    stream.group_by_key().windowed_by(WINDOWS).count("kept").to_stream().to("changes")
    scene = Scene(app, tmp_path, 1)
    for part in (events(300), events(300, 1, first=300)):
        scene.send("events", part)
        scene.work_off()
    _, add, merge, _ = OPERATIONS["count"]
    (oracle,) = oracles(scene, lambda: Sessions(4_000, 15_000, add, merge))
    wanted = {place: (int64(value), place[2]) for place, (value, _) in oracle.all().items()}
    changes = scene.written("changes")
    assert compacted(changes, sessions=True) == wanted
    assert any(record.value is None for record in changes)


def test_a_session_that_is_joined_within_the_slice_that_began_it_leaves_no_trace(tmp_path: Path) -> None:
    scene = Scene(built(WINDOWS, lambda w: w.count("kept")), tmp_path, 1)
    scene.send("events", [("a", "v", BASE_MS), ("a", "v", BASE_MS + 6_000), ("a", "v", BASE_MS + 3_000)])
    scene.work_off()
    (change,) = scene.written("app-kept-changelog")
    assert (change.value, change.timestamp_ms) == (int64(3), BASE_MS + 3_000)


def test_a_record_whose_function_fails_changes_nothing_and_moves_no_time(tmp_path: Path) -> None:
    def failing(key: str, value: str | None, found: list[str | None]) -> list[str | None]:
        made = add_to_list(key, value, found)
        if value == "v5":
            raise ValueError(value)
        return made

    app = built(WINDOWS, lambda w: w.aggregate(list, failing, "kept", value=serdes.json, merger=both))
    scene = Scene(app, tmp_path, 1, {"processing.exception.handler": "skip"})
    sent = [*events(300), ("k1", "v5", BASE_MS + 3_600_000), *events(300, 1, first=300)]
    scene.send("events", sent)
    scene.work_off()
    _, add, merge, write = OPERATIONS["aggregate"]
    oracle = Sessions(4_000, 15_000, add, merge)
    for key, value, at in sent:
        if value != "v5":
            oracle.process(None if key is None else key.encode(), value, at)
    assert scene.failures.skipped > 10
    check(scene, "kept", [oracle], write)
