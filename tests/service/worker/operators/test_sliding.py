"""Aggregates over sliding windows: equal to an oracle record by record, and to the definition of the windows."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

import pytest

from service.worker.operators.operator_scene import SLICES_OF_5, Given, Scene
from service.worker.operators.test_windows import OPERATIONS, built, int64
from service.worker.operators.windows_oracle import BASE_MS, Sliding, check, count, events, held, oracles
from stateline import SlidingWindows, serdes

DIFFERENCE, GRACE = timedelta(seconds=20), timedelta(seconds=15)
WINDOWS = SlidingWindows(DIFFERENCE, grace=GRACE)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("guarantee", "slices"), SLICES_OF_5)
def test_each_window_holds_what_its_records_make_of_it_over_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, guarantee: str, slices: int
) -> None:
    monkeypatch.setattr("stateline.worker.loop.pace._MAX_SLICE_RECORDS", slices)
    declare, add, write = OPERATIONS[operation]
    scene = Scene(built(WINDOWS, declare), tmp_path, 2, {"processing.guarantee": guarantee})
    for part in (events(300), events(300, 1, first=300)):
        scene.send("events", part)
        scene.work_off()
    made = oracles(scene, lambda: Sliding(WINDOWS.size_ms, WINDOWS.grace_ms, add))
    assert all(oracle.dropped > 10 for oracle in made), "the input has records that come too late"
    check(scene, "kept", made, write)
    scene.send("events", [("k1", "v1", BASE_MS)])
    scene.work_off()
    assert scene.failures.dropped == 1, "what was too late before the restart is so after it"


def by_definition(times: list[int], difference: int) -> dict[int, int]:
    """Start → count of the windows of one key: those that end with a record, or share the first one's before that is
    possible, and those that begin right after one and hold any."""
    starts = {max(at - difference, 0) for at in times} | {at + 1 for at in times}
    counts = {start: sum(start <= at <= start + difference for at in times) for start in starts}
    return {start: n for start, n in counts.items() if n}


@pytest.mark.parametrize("base_ms", [0, BASE_MS])
def test_the_windows_are_those_of_the_definition_in_any_order_of_the_records(tmp_path: Path, base_ms: int) -> None:
    chance = random.Random(base_ms)
    keys = [f"k{n}" for n in range(40)]
    sent: list[Given] = [
        (key, "v", base_ms + chance.randrange(60)) for key in keys for _ in range(chance.randrange(12))
    ]
    chance.shuffle(sent)
    windows = SlidingWindows(timedelta(milliseconds=20), grace=timedelta(minutes=1))
    scene = Scene(built(windows, lambda w: w.count("kept")), tmp_path, 2)
    scene.send("events", sent)
    scene.work_off()
    found = {
        (key, start): int.from_bytes(row, "big")
        for (key, start), (row, _) in held(scene, "kept", sessions=False).items()
    }
    times = {key: [at for k, _, at in sent if k == key] for key in keys}
    assert found == {(key.encode(), start): n for key in keys for start, n in by_definition(times[key], 20).items()}


def test_a_record_whose_function_fails_changes_nothing_and_moves_no_time(tmp_path: Path) -> None:
    def failing(one: str, other: str) -> str:
        if other == "v5":
            raise ValueError(other)
        return max(one, other)

    app = built(WINDOWS, lambda w: w.reduce(failing, "kept"))
    scene = Scene(app, tmp_path, 1, {"processing.exception.handler": "skip"})
    sent = [r for r in [*events(200), *events(200, 1, first=200)] if r[0] and r[1]]
    scene.send("events", sent)
    scene.work_off()
    called: list[str] = []

    def watched(old: str | None, value: str) -> str:
        if old is not None:
            called.append(value)
        return value if old is None else max(old, value)

    oracle = Sliding(WINDOWS.size_ms, WINDOWS.grace_ms, watched)
    for key, value, at in sent:
        state = (dict(oracle.rows), oracle.observed, oracle.newest_start, oracle.dropped)
        called.clear()
        oracle.process(key.encode(), value, at)
        if "v5" in called:  # a reducer is called when the record meets another one in a window
            oracle.rows, oracle.observed, oracle.newest_start, oracle.dropped = state
    assert scene.failures.skipped > 10
    check(scene, "kept", [oracle], str.encode)


def test_a_window_that_the_retention_hides_is_not_gone_on_with(tmp_path: Path) -> None:
    scene = Scene(built(WINDOWS, lambda w: w.count("kept")), tmp_path, 1)
    # The last record is in time for the window that would begin right after the first one, which is hidden by then.
    sent = [("a", 0), ("b", 34_999), ("b", 35_000), ("a", 2_000)]
    scene.send("events", [(key, "v", BASE_MS + at) for key, at in sent])
    scene.work_off()
    assert {key for key, _ in held(scene, "kept", sessions=False)} == {b"b"}
    check(scene, "kept", oracles(scene, lambda: Sliding(20_000, 15_000, count)), int64)


def test_int64_is_what_a_count_holds(tmp_path: Path) -> None:
    scene = Scene(built(WINDOWS, lambda w: w.count("kept")), tmp_path, 1)
    assert scene.app.topology().stores["kept"].value is serdes.int64
    scene.send("events", [("a", "v", BASE_MS), ("a", None, BASE_MS + 1), (None, "v", BASE_MS + 2)])
    scene.work_off()
    check(scene, "kept", oracles(scene, lambda: Sliding(20_000, 15_000, count)), int64)
    assert scene.failures.dropped == 2
