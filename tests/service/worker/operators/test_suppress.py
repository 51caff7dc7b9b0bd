"""Final results of windows: each once, after restarts, lost disks and kills."""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from service.worker.operators.operator_scene import SLICES_OF_5, Given, Scene
from service.worker.operators.test_sessions import OPERATIONS as SESSION_OPERATIONS
from service.worker.operators.test_windows import int64
from service.worker.operators.windows_oracle import (
    BASE_MS,
    Oracle,
    Row,
    Sessions,
    Sliding,
    TimeWindows,
    check,
    count,
    events,
    oracles,
    parts,
)
from stateline import App, HoppingWindows, SessionWindows, SlidingWindows, TumblingWindows, serdes, until_window_closes
from stateline_store import InvalidArgumentError
from support.apps import windows_app

SIZE, GRACE = timedelta(seconds=30), timedelta(seconds=20)


def sessions_oracle(retention: int | None = None) -> Sessions:
    _, add, merge, _ = SESSION_OPERATIONS["count"]
    return Sessions(4_000, 20_000, add, merge, retention)


WINDOWS: dict[str, tuple[Any, Any]] = {
    "tumbling": (TumblingWindows(SIZE, grace=GRACE), lambda: TimeWindows(30_000, 30_000, 20_000, count)),
    "hopping": (HoppingWindows(SIZE, SIZE / 3, grace=GRACE), lambda: TimeWindows(30_000, 10_000, 20_000, count)),
    "sliding": (SlidingWindows(SIZE, grace=GRACE), lambda: Sliding(30_000, 20_000, count)),
    "sessions": (SessionWindows(timedelta(seconds=4), grace=GRACE), sessions_oracle),
}


def built(windows: Any, *, persistent: bool = True) -> App:
    app = App("app")
    grouped = app.stream("events", key=serdes.string, value=serdes.string).group_by_key()
    table = grouped.windowed_by(windows).count("kept", persistent=persistent)
    table.suppress(until_window_closes()).to_stream().to("final")
    return app


def emitted(scene: Scene, topic: str = "final", *, sessions: bool) -> list[tuple[tuple[Any, ...], Row]]:
    found = []
    for record in scene.written(topic):
        assert record.key is not None
        assert record.value is not None
        found.append((parts(record.key, sessions=sessions), (record.value, record.timestamp_ms)))
    return found


def final(made: list[Oracle]) -> dict[tuple[Any, ...], Row]:
    return {place: (int64(value), at) for oracle in made for place, (value, at) in oracle.final().items()}


def each_once(found: list[tuple[tuple[Any, ...], Row]], wanted: dict[tuple[Any, ...], Row]) -> None:
    assert wanted, "the test closes windows"
    assert Counter(place for place, _ in found) == Counter(wanted.keys())
    assert dict(found) == wanted


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize(("guarantee", "slices"), SLICES_OF_5)
def test_each_window_that_closes_is_given_on_once_with_its_final_value_over_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, guarantee: str, slices: int
) -> None:
    monkeypatch.setattr("stateline.worker.loop.pace._MAX_SLICE_RECORDS", slices)
    if slices == 5:
        monkeypatch.setattr("stateline.processing.operators.leaving_rows._MOST_BYTES", 450)  # it looks often
    windows, make = WINDOWS[kind]
    scene = Scene(built(windows), tmp_path, 2, {"processing.guarantee": guarantee})
    for part in (events(300), events(300, 1, first=300)):
        scene.send("events", part)
        scene.work_off()
        each_once(emitted(scene, sessions=kind == "sessions"), final(oracles(scene, make)))


def test_windows_that_close_unknown_while_many_late_ones_open_are_given_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = iter([6, 4])
    monkeypatch.setattr(
        "stateline.worker.loop.pace.SlicePace.cut", lambda _, records, at: (records[at : at + next(sizes)], 1)
    )
    monkeypatch.setattr("stateline.processing.operators.leaving_rows._MOST_BYTES", 450)
    windows = TumblingWindows(timedelta(seconds=10), grace=timedelta(seconds=60))
    scene = Scene(built(windows), tmp_path, 1)
    # Only the first two of these windows fit into memory. Then late ones fill it in the slice that closes four of them.
    opened = [("a", "v", BASE_MS + n * 10_000) for n in range(6)]
    scene.send("events", [*opened, *((key, "v", BASE_MS) for key in "bcd"), ("a", "v", BASE_MS + 100_000)])
    scene.work_off()
    each_once(emitted(scene, sessions=False), final(oracles(scene, lambda: TimeWindows(10_000, 10_000, 60_000, count))))


@pytest.mark.parametrize("kind", WINDOWS)
def test_a_silence_that_is_longer_than_the_retention_loses_no_final_result(tmp_path: Path, kind: str) -> None:
    windows, make = WINDOWS[kind]
    scene = Scene(built(windows), tmp_path, 1)
    sent: list[Given] = [("a", "v", BASE_MS + n * 86_400_000 + k * 900) for n in range(4) for k in range(3)]
    for part in (sent[:5], sent[5:]):  # the silence is within a slice, and between two
        scene.send("events", part)
        scene.work_off()
    each_once(emitted(scene, sessions=kind == "sessions"), final(oracles(scene, make)))


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("persistent", [True, False], ids=["disk-lost", "memory"])
def test_exactly_once_a_store_that_is_restored_gives_nothing_on_twice(
    tmp_path: Path, kind: str, persistent: bool
) -> None:
    windows, make = WINDOWS[kind]
    scene = Scene(built(windows, persistent=persistent), tmp_path, 2, {"processing.guarantee": "exactly_once_v2"})
    for part in (events(300), events(300, 1, first=300)):
        scene.send("events", part)
        scene.work_off()
        each_once(emitted(scene, sessions=kind == "sessions"), final(oracles(scene, make)))
        shutil.rmtree(scene.config.state_dir)


def test_at_least_once_a_store_whose_disk_was_lost_gives_final_results_again_and_no_others(tmp_path: Path) -> None:
    windows, make = WINDOWS["tumbling"]
    scene = Scene(built(windows), tmp_path, 2)
    for part in (events(300), events(300, 1, first=300)):
        scene.send("events", part)
        scene.work_off()
        shutil.rmtree(scene.config.state_dir)
    assert dict(emitted(scene, sessions=False)) == final(oracles(scene, make))


def test_a_store_that_keeps_windows_for_longer_gives_each_on_once_as_well(tmp_path: Path) -> None:
    app = App("app")
    grouped = app.stream("events", key=serdes.string, value=serdes.string).group_by_key()
    table = grouped.windowed_by(WINDOWS["tumbling"][0]).count("kept", retention=timedelta(hours=1))
    table.suppress(until_window_closes()).to_stream().to("final")
    scene = Scene(app, tmp_path, 1)
    for part in (events(300), events(300, 1, first=300)):
        scene.send("events", part)
        scene.work_off()
    each_once(emitted(scene, sessions=False), final(oracles(scene, WINDOWS["tumbling"][1])))


def run_and_kill(root: Path, guarantee: str, *, lose: bool) -> Scene:
    """What is left, all worked off, of a worker that was killed at several steps of its commits."""
    scene = Scene(
        windows_app.build("app"), root, 1, {"processing.guarantee": guarantee, "group.instance.id": "the-worker"}
    )
    for n, kill_at in enumerate(["commit:changes-flushed#2", "commit:log-committed", "commit:task-committed#2"]):
        scene.send("events", events(150, n, first=n * 150))
        scene.run_until_killed(windows_app, kill_at)
        if lose:
            shutil.rmtree(scene.config.state_dir)
    scene.send("events", events(150, 3, first=450))
    scene.work_off()
    return scene


@pytest.mark.parametrize("lose", [False, True], ids=["same-disk", "lost-disks"])
def test_a_worker_that_is_killed_under_exactly_once_counts_nothing_twice_and_gives_each_final_result_once(
    tmp_path: Path, lose: bool
) -> None:
    scene = run_and_kill(tmp_path, "exactly_once_v2", lose=lose)
    windows = oracles(scene, lambda: TimeWindows(30_000, 30_000, 20_000, count))
    sessions = oracles(scene, sessions_oracle)
    check(scene, "windows", windows, int64)
    check(scene, "sessions", sessions, int64)
    each_once(emitted(scene, "final-windows", sessions=False), final(windows))
    each_once(emitted(scene, "final-sessions", sessions=True), final(sessions))


def test_a_worker_that_is_killed_under_at_least_once_loses_no_record_and_no_final_result(tmp_path: Path) -> None:
    scene = run_and_kill(tmp_path, "at_least_once", lose=True)
    wanted = final(oracles(scene, lambda: TimeWindows(30_000, 30_000, 20_000, count)))
    found: dict[tuple[Any, ...], Row] = {}
    for place, row in emitted(scene, "final-windows", sessions=False):
        found[place] = max(row, found.get(place, row))
    assert found.keys() >= wanted.keys()
    assert all(found[place] >= row for place, row in wanted.items())


def test_only_windows_that_close_can_be_waited_for() -> None:
    app = App("app")
    grouped = app.stream("events", key=serdes.string, value=serdes.string).group_by_key()
    with pytest.raises(InvalidArgumentError, match="until_window_closes"):
        grouped.windowed_by(WINDOWS["tumbling"][0]).count("kept").suppress(timedelta(1))  # type: ignore[arg-type]
