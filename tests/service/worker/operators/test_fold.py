"""reduce and aggregate, with functions that change what they are given, delete, and fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from service.worker.operators.operator_scene import SLICES_OF_1, Given, Scene
from service.worker.operators.windows_oracle import Add, chained, events, larger
from stateline import App, serdes
from stateline.dsl.streams import GroupedStream
from stateline_store import InvalidArgumentError, RecordError

GUARANTEES = ["at_least_once", "exactly_once_v2"]


def grouped(app: App) -> GroupedStream:
    return app.stream("events", key=serdes.string, value=serdes.string).group_by_key()


def add_to_list(key: str, value: str, found: list[str]) -> list[str]:
    """Changes what it is given."""
    assert key.startswith("k")
    found.append(value)
    return found[-6:]


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def oracle(records: list[Given], add: Add) -> dict[bytes, tuple[Any, int]]:
    found: dict[bytes, tuple[Any, int]] = {}
    for key, value, at in records:
        if key is None or value is None:
            continue
        old, stamp = found.get(key.encode(), (None, at))
        new = add(old, value)
        if new is None:
            found.pop(key.encode(), None)
        else:
            found[key.encode()] = new, max(stamp, at)
    return found


@pytest.mark.parametrize(("guarantee", "slices"), SLICES_OF_1)
def test_a_reduced_value_is_that_of_its_records_one_by_one_over_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarantee: str, slices: int
) -> None:
    monkeypatch.setattr("stateline.worker.loop.pace._MAX_SLICE_RECORDS", slices)
    app = App("app")
    grouped(app).reduce(larger, "largest").to_stream().to("out")
    scene = Scene(app, tmp_path, settings={"processing.guarantee": guarantee})
    sent = [events(300), events(300, 1, first=300)]
    for part in sent:
        scene.send("events", part)
        scene.work_off()
    wanted = {key: (value.encode(), at) for key, (value, at) in oracle(sent[0] + sent[1], larger).items()}
    assert scene.rows("largest") == wanted
    newest = {record.key: (record.value, record.timestamp_ms) for record in scene.written("out")}
    assert {key: row for key, row in newest.items() if row[0] is not None} == wanted


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_an_aggregate_is_what_its_function_makes_of_the_records_over_restarts(tmp_path: Path, guarantee: str) -> None:
    app = App("app")
    grouped(app).aggregate(list, add_to_list, "lists", value=serdes.json)
    scene = Scene(app, tmp_path, settings={"processing.guarantee": guarantee})
    sent = [events(300), events(300, 1, first=300)]
    for part in sent:
        scene.send("events", part)
        scene.work_off()
    wanted = {key: (compact(value), at) for key, (value, at) in oracle(sent[0] + sent[1], chained).items()}
    assert scene.rows("lists") == wanted


def failing(key: str, value: str, found: list[str]) -> list[str]:
    """Fails after it has changed the aggregate."""
    made = add_to_list(key, value, found)
    if value == "v5":
        raise SystemExit(value)
    return made


@pytest.mark.parametrize("policy", ["skip", "dead-letter"])
def test_a_record_whose_function_fails_is_lost_alone(tmp_path: Path, policy: str) -> None:
    app = App("app")
    grouped(app).aggregate(list, failing, "lists", value=serdes.json)
    settings = {"processing.exception.handler": policy, "errors.dead.letter.queue.topic.name": "letters"}
    scene = Scene(app, tmp_path, settings=settings)
    scene.create("letters")
    sent = events(400)
    scene.send("events", sent)
    scene.work_off()
    failed = [key for key, value, _ in sent if value == "v5" and key is not None]
    wanted = oracle([record for record in sent if record[1] != "v5"], chained)
    assert scene.rows("lists") == {key: (compact(value), at) for key, (value, at) in wanted.items()}
    assert scene.failures.skipped + scene.failures.dead_lettered == len(failed) > 10
    assert len(scene.written("letters")) == (len(failed) if policy == "dead-letter" else 0)


def test_an_aggregate_that_its_serde_cannot_write_is_a_failure_of_its_record(tmp_path: Path) -> None:
    app = App("app")
    grouped(app).aggregate(dict, lambda key, value, found: {"x": {1, 2}}, "kept", value=serdes.json)
    scene = Scene(app, tmp_path)
    scene.send("events", [("k1", "v1", 1)])
    with pytest.raises(RecordError, match=r"'aggregate kept' failed on events-. offset 0"):
        scene.work_off()


def test_an_aggregate_that_grows_beyond_what_the_log_takes_is_a_failure_of_its_record(tmp_path: Path) -> None:
    app = App("app")
    grouped(app).reduce(lambda one, other: one + other * 400_000, "kept")
    scene = Scene(app, tmp_path, settings={"processing.exception.handler": "skip"})
    scene.send("events", [("k1", "a", 1), ("k1", "b", 2), ("k1", "cde", 3)])
    scene.work_off()
    assert scene.rows("kept")[b"k1"] == (b"a" + b"b" * 400_000, 2)
    assert scene.failures.skipped == 1


def test_a_store_name_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no/name"):
        grouped(App("app")).reduce(larger, "no/name")
