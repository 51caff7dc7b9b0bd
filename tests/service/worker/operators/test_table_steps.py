"""Tables of tables and of streams, against what plain Python makes of the same records."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from service.worker.operators.operator_scene import Given, Scene
from stateline import App, serdes
from stateline_store import RecordError, TopologyError

GUARANTEES = ["at_least_once", "exactly_once_v2"]
Rows = dict[bytes, tuple[bytes, int]]


def changes(count: int, seed: int = 0) -> list[Given]:
    """Of ten keys, out of order, one in five a deletion."""
    chance = random.Random(seed)
    return [
        (
            f"k{chance.randrange(10)}",
            None if chance.random() < 0.2 else f"{chance.randrange(50)}",
            1_000_000 + n * 10 - chance.randrange(300),
        )
        for n in range(count)
    ]


def newest(records: list[Given]) -> dict[str, tuple[str, int]]:
    found: dict[str, tuple[str, int]] = {}
    for key, value, at in records:
        found.pop(key, None)
        if value is not None:
            found[key] = value, at
    return found


def is_even(key: str, value: str) -> bool:
    return int(value) % 2 == 0


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_tables_that_are_filtered_and_mapped_follow_their_table_over_restarts(tmp_path: Path, guarantee: str) -> None:
    app = App("app")
    table = app.ktable(app.table("in", key=serdes.string, value=serdes.string))
    table.filter(is_even, "even").to_stream().to("out")
    table.filter_not(is_even, "odd")
    numbers = table.map_values(lambda key, value: None if value == "7" else int(value), "numbers", value=serdes.int64)
    numbers.filter(lambda key, value: value > 25, "large")
    scene = Scene(app, tmp_path, partitions=2, settings={"processing.guarantee": guarantee})
    records = changes(400)
    for part in (records[:250], records[250:]):
        scene.send("in", part)
        scene.work_off()
    there = newest(records)
    even = {key.encode(): (value.encode(), at) for key, (value, at) in there.items() if is_even(key, value)}
    assert even
    assert scene.rows("even") == even
    assert scene.rows("odd") == {
        key.encode(): (value.encode(), at) for key, (value, at) in there.items() if not is_even(key, value)
    }
    mapped = {key.encode(): (int(value), at) for key, (value, at) in there.items() if value != "7"}
    pack = serdes.int64.serialize
    assert scene.rows("numbers") == {key: (pack(n), at) for key, (n, at) in mapped.items()}
    assert scene.rows("large") == {key: (pack(n), at) for key, (n, at) in mapped.items() if n > 25}
    last = {record.key: (record.value, record.timestamp_ms) for record in scene.written("out")}
    assert {key: (value, at) for key, (value, at) in last.items() if value is not None} == even


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_stream_becomes_a_table_of_its_newest_rows_over_restarts(tmp_path: Path, guarantee: str) -> None:
    app = App("app")
    stream = app.stream("in", key=serdes.string, value=serdes.string)
    table = stream.filter(lambda key, value: value is None or value != "7").to_table("newest")
    table.filter(is_even, "even")
    scene = Scene(app, tmp_path, partitions=2, settings={"processing.guarantee": guarantee})
    records = [*changes(200), (None, "1", 5), *changes(200, seed=1), (None, None, 6)]
    dropped = 0
    for part in (records[:150], records[150:]):
        scene.send("in", part)
        scene.work_off()
        dropped += scene.failures.dropped
    there = newest([record for record in records if record[0] is not None and record[1] != "7"])
    assert scene.rows("newest") == {key.encode(): (value.encode(), at) for key, (value, at) in there.items()}
    assert scene.rows("even") == {
        key.encode(): (value.encode(), at) for key, (value, at) in there.items() if is_even(key, value)
    }
    assert dropped == 2


def refusing(key: str, value: str) -> str:
    if "9" in value:
        raise ValueError(f"not {value}")
    return value


@pytest.mark.parametrize("policy", ["fail", "skip", "dead-letter"])
def test_a_change_whose_function_raises_leaves_the_row_as_it_was(tmp_path: Path, policy: str) -> None:
    app = App("app")
    app.ktable(app.table("in", key=serdes.string, value=serdes.string)).map_values(refusing, "mapped")
    settings: dict[str, Any] = {"processing.exception.handler": policy, "errors.dead.letter.queue.topic.name": "dead"}
    scene = Scene(app, tmp_path, partitions=1, settings=settings)
    scene.create("dead")
    records = changes(200)
    scene.send("in", records)
    bad = [value for _, value, _ in records if value is not None and "9" in value]
    if policy == "fail":
        with pytest.raises(RecordError, match=r"Processor 'map_values mapped' failed on in-0 .*ValueError: not \d*9"):
            scene.work_off()
        return
    scene.work_off()
    good = newest([record for record in records if record[1] not in bad])
    assert scene.rows("mapped") == {key.encode(): (value.encode(), at) for key, (value, at) in good.items()}
    dead = [record.value.decode() for record in scene.written("dead") if record.value is not None]
    assert (scene.failures.skipped, dead) == ((len(bad), []) if policy == "skip" else (0, bad))


def test_a_value_that_the_changelog_does_not_take_is_its_records_failure(tmp_path: Path) -> None:
    app = App("app")
    stream = app.stream("in", key=serdes.string, value=serdes.string)
    stream.map_values(lambda key, value: value * 1_000_000).to_table("table")
    app.ktable(app.table("in", store="in")).map_values(lambda key, value: value * 1_000_000, "mapped")
    scene = Scene(app, tmp_path, partitions=1, settings={"processing.exception.handler": "skip"})
    scene.send("in", [("a", "", 1), ("b", "1", 2), ("a", "1", 3), ("c", "", 4)])
    scene.work_off()
    assert scene.rows("table") == scene.rows("mapped") == {b"a": (b"", 1), b"c": (b"", 4)}
    assert scene.failures.skipped == 4


def test_tables_that_are_no_tables_of_newest_values_are_refused() -> None:
    app = App("app")
    windows = app.table("windows", key=serdes.string, windowed=timedelta(1), retention=timedelta(2))
    with pytest.raises(TopologyError, match="'windows' is no table of the values of keys"):
        app.ktable(windows)
    table = app.ktable(app.table("in"))
    table.filter(is_even, "again")
    with pytest.raises(TopologyError, match=r"Store 'again' is declared in .*, already"):
        table.filter(is_even, "again")
