"""Joins of a stream with a table, against what plain Python makes of the same records."""

from __future__ import annotations

import random
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from service.worker.operators.operator_scene import Given, Scene
from stateline import App, serdes
from stateline.dsl.streams import Stream
from stateline_store import RecordError, TopologyError

GUARANTEES = ["at_least_once", "exactly_once_v2"]
Row = tuple[bytes | None, bytes | None, int]


def pair(value: str, found: str | None) -> str:
    return f"{value}|{found}"


def rows_and_changes(count: int, seed: int) -> tuple[list[Given], list[Given]]:
    """Rows of ten keys, some without a key or a value; changes of the same keys, some deletions. In order of time
    together, never two at one time."""
    chance = random.Random(seed)
    rows: list[Given] = []
    table: list[Given] = []
    for n in range(count):
        key = f"k{chance.randrange(10)}"
        value = None if chance.random() < 0.15 else f"v{n}"
        if chance.random() < 0.4:
            table.append((key, value, seed * 10_000_000 + n * 10))
        else:
            rows.append((None if chance.random() < 0.1 else key, value, seed * 10_000_000 + n * 10))
    return rows, table


def oracle(rows: list[Given], table: list[Given], *, left: bool) -> tuple[list[Row], int]:
    """The rows that come out, by time, and how many are dropped."""
    newest: dict[str, str | None] = {}
    found: list[Row] = []
    dropped = 0
    merged = [(at, 0, key, value) for key, value, at in table] + [(at, 1, key, value) for key, value, at in rows]
    for at, is_row, key, value in sorted(merged, key=lambda each: each[0]):
        if not is_row:
            newest[key] = value
        elif value is None or (key is None and not left):
            dropped += 1
        elif left or newest.get(key) is not None:
            found.append((None if key is None else key.encode(), pair(value, newest.get(key)).encode(), at))
    return found, dropped


def written(scene: Scene, topic: str = "out") -> list[Row]:
    return sorted(((r.key, r.value, r.timestamp_ms) for r in scene.written(topic)), key=lambda row: row[2])


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("left", [False, True], ids=["inner", "left"])
def test_each_row_is_joined_with_the_tables_value_then_over_restarts(
    tmp_path: Path, left: bool, guarantee: str
) -> None:
    app = App("app")
    stream = app.stream("rows", key=serdes.string, value=serdes.string)
    table = app.ktable(app.table("table", key=serdes.string, value=serdes.string))
    (stream.left_join(table, pair) if left else stream.join(table, pair)).to("out")
    scene = Scene(app, tmp_path, settings={"processing.guarantee": guarantee})
    rows: list[Given] = []
    table_rows: list[Given] = []
    dropped = 0
    for seed in (1, 2):
        more = rows_and_changes(300, seed)
        scene.send("rows", more[0])
        scene.send("table", more[1])
        scene.work_off()
        rows, table_rows, dropped = rows + more[0], table_rows + more[1], dropped + scene.failures.dropped
    if left:  # rows without a key may be in another partition than the records that they are older than
        assert sorted(written(scene), key=str) == sorted(oracle(rows, table_rows, left=True)[0], key=str)
    else:
        assert written(scene) == oracle(rows, table_rows, left=False)[0]
    assert dropped == oracle(rows, table_rows, left=left)[1]


def test_a_row_finds_what_its_own_record_has_changed_in_a_table_of_the_same_topic(tmp_path: Path) -> None:
    app = App("app")
    topic = app.topic("rows", key=serdes.string, value=serdes.string)
    stream = app.stream(topic)
    stream.join(app.table(topic, store="newest"), pair).to("out")
    counts = stream.group_by_key().count("counts")
    stream.join(counts, lambda value, count: f"{value}:{count}").to("counted")
    scene = Scene(app, tmp_path)
    rows = [(key, value, at) for key, value, at in rows_and_changes(500, 1)[0] if key is not None]
    scene.send("rows", rows)
    scene.work_off()
    with_value = [(key.encode(), value, at) for key, value, at in rows if value is not None]
    assert written(scene) == [(key, pair(value, value).encode(), at) for key, value, at in with_value]
    seen: dict[bytes, int] = {}
    wanted = []
    for key, value, at in with_value:
        seen[key] = seen.get(key, 0) + 1
        wanted.append((key, f"{value}:{seen[key]}".encode(), at))
    assert written(scene, "counted") == wanted


def test_a_versioned_table_is_asked_for_the_value_at_the_rows_time(tmp_path: Path) -> None:
    app = App("app")
    history = app.table("table", key=serdes.string, value=serdes.string, versioned=timedelta(hours=1))
    stream = app.stream("rows", key=serdes.string, value=serdes.string)
    stream.left_join(history, pair).to_table("joined")
    scene = Scene(app, tmp_path)
    scene.send("table", [("a", "1", 1_000), ("a", "2", 2_000), ("a", None, 3_000), ("b", "4", 4_000)])
    scene.work_off()
    scene.send("rows", [(f"{key}", f"at{at}", at) for key, at in [("a", 2_500), ("b", 3_999), ("c", 5_000)]])
    scene.work_off()
    assert scene.rows("joined") == {
        b"a": (b"at2500|2", 2_500),
        b"b": (b"at3999|None", 3_999),
        b"c": (b"at5000|None", 5_000),
    }


def test_joins_of_joins_and_of_repartitioned_streams(tmp_path: Path) -> None:
    app = App("app")
    cities = app.ktable(app.table("cities", key=serdes.string, value=serdes.json))
    people = app.stream("people", key=serdes.string, value=serdes.json)
    in_city = people.select_key(lambda key, value: value["city"]).repartition("by-city")
    named = in_city.join(cities, lambda person, city: {**person, "country": city["country"]})
    both = named.join(cities, lambda person, city: {**person, "mayor": city["mayor"]})
    both.select_key(lambda key, value: value["name"]).repartition("by-name").to_table("people-of")
    scene = Scene(app, tmp_path)
    scene.send(
        "cities", [("Bath", '{"country": "UK", "mayor": "May"}', 1), ("Köln", '{"country": "D", "mayor": "Re"}', 2)]
    )
    scene.work_off()
    scene.send("people", [(None, '{"name": "Ada", "city": "Bath"}', 5), (None, '{"name": "Max", "city": "Köln"}', 6)])
    scene.work_off()
    read = {key: serdes.json.deserialize(value) for key, (value, _) in scene.rows("people-of").items()}
    assert read == {
        b"Ada": {"name": "Ada", "city": "Bath", "country": "UK", "mayor": "May"},
        b"Max": {"name": "Max", "city": "Köln", "country": "D", "mayor": "Re"},
    }


def refusing(value: str, found: str | None) -> str:
    if "7" in value:
        raise ValueError(f"not {value}")
    return pair(value, found)


@pytest.mark.parametrize("policy", ["fail", "skip", "dead-letter"])
def test_a_row_that_the_joiner_refuses_is_handled_by_the_policy_alone(tmp_path: Path, policy: str) -> None:
    app = App("app")
    stream = app.stream("rows", key=serdes.string, value=serdes.string)
    stream.left_join(app.table("table", key=serdes.string, value=serdes.string), refusing).to("out")
    settings: dict[str, Any] = {"processing.exception.handler": policy, "errors.dead.letter.queue.topic.name": "dead"}
    scene = Scene(app, tmp_path, partitions=1, settings=settings)
    scene.create("dead")
    rows = [(key, value, at) for key, value, at in rows_and_changes(60, 1)[0] if value is not None]
    scene.send("rows", rows)
    bad = [value for _, value, _ in rows if "7" in value]
    if policy == "fail":
        with pytest.raises(RecordError, match=rf"'left_join table' failed on rows-0 .*ValueError: not {bad[0]} \("):
            scene.work_off()
        return
    scene.work_off()
    assert [row[1] for row in written(scene)] == [pair(v, None).encode() for _, v, _ in rows if v not in bad]
    dead = [record.value.decode() for record in scene.written("dead") if record.value is not None]
    assert (scene.failures.skipped, dead) == ((len(bad), []) if policy == "skip" else (0, bad))


def declared(app: App) -> Stream:
    return app.stream("rows", key=serdes.string, value=serdes.string)


def test_what_cannot_be_joined_is_refused_with_the_way_out() -> None:
    app = App("app")
    stream = declared(app)
    table = app.table("table", key=serdes.int64, value=serdes.string)
    with pytest.raises(TopologyError, match=r"The stream has keys of type string, and 'table' of type int64"):
        stream.join(table, pair)
    with pytest.raises(TopologyError, match=r'Before join the key was changed.*\.repartition\("a-name"\)'):
        stream.select_key(lambda key, value: 1, key=serdes.int64).join(table, pair)
    windows = app.table("windows", key=serdes.string, windowed=timedelta(1), retention=timedelta(2))
    with pytest.raises(TopologyError, match="'windows' is no table of the values of keys"):
        stream.join(windows, pair)


def test_a_repartitioned_stream_gets_as_many_partitions_as_the_table_that_it_is_joined_with(tmp_path: Path) -> None:
    app = App("app")
    stream = declared(app).select_key(lambda key, value: value).repartition("by-value")
    stream.join(app.table("table", key=serdes.string, value=serdes.string), pair).to("out")
    scene = Scene(app, tmp_path, partitions={"rows": 2, "table": 5, "out": 1})
    scene.send("table", [(f"k{n}", f"t{n}", n) for n in range(20)])
    scene.send("rows", [(None, f"k{n}", 100 + n) for n in range(20)])
    scene.work_off()
    assert [row[1] for row in written(scene)] == [pair(f"k{n}", f"t{n}").encode() for n in range(20)]


@pytest.mark.parametrize("loses_disk", [False, True])
def test_a_table_that_is_ahead_of_the_rows_is_so_after_a_restore_as_well(tmp_path: Path, loses_disk: bool) -> None:
    app = App("app")
    table = app.table("table", key=serdes.string, value=serdes.string)
    app.stream("rows", key=serdes.string, value=serdes.string).join(table, pair).to("out")
    scene = Scene(app, tmp_path, 1)
    scene.send("table", [("k", "old", 1), ("k", "new", 10)])
    scene.work_off()
    if loses_disk:
        shutil.rmtree(scene.config.state_dir)
    scene.send("rows", [("k", "row", 5)])
    scene.work_off()
    assert written(scene) == [(b"k", b"row|new", 5)]
