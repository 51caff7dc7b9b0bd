"""Steps that an application names: what tells of them says the name."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from service.worker.operators.operator_scene import Scene
from stateline import (
    App,
    JoinWindows,
    TumblingWindows,
    on_window_close,
    serdes,
    until_time_limit,
    until_window_closes,
)
from stateline.model.graph import graph_of


def named() -> App:
    app = App("app")
    words = app.stream("in", key=serdes.string, value=serdes.string)
    numbers = words.filter(lambda key, value: value != "none").named("without-none")
    numbers = numbers.map_values(lambda key, value: int(value), value=serdes.int64).named("numbers")
    counts = numbers.group_by_key().count("counts").named("counted")
    counts.filter(lambda key, value: value > 1, "many").to_stream().named("changes").to("out")
    return app


def test_figures_and_logs_have_the_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(named(), tmp_path, partitions=1, settings={"processing.exception.handler": "skip"})
    scene.send("in", [("k", "1", 1), ("k", "none", 2), ("k", "two", 3), ("k", "3", 4)])
    scene.work_off()
    steps = scene.failures.steps
    taken = {name: steps[name].taken for name in ("without-none", "numbers", "counted", "changes")}
    assert taken == {"without-none": 4, "numbers": 3, "counted": 2, "changes": 1}
    assert steps["numbers"].dropped == {"skipped": 1}
    assert "Processor 'numbers' failed" in caplog.text
    assert not {"filter", "map_values", "count counts", "to_stream"} & steps.keys()


def every_kind(app: App) -> None:
    """Name all that Kafka Streams lets be named, beside steps from rows to rows."""
    rows = app.stream("in", key=serdes.string, value=serdes.string)
    other = app.ktable(app.table("other", key=serdes.string, value=serdes.string))
    table = rows.to_table("table").named("to-table")
    kept = table.filter(failing, "filtered").named("filter").map_values(failing, "mapped").named("map-values")
    kept.transform_values(lambda record: record.value, "transformed").named("transform-values")
    table.join(other, failing, "joined").named("join")
    table.left_join(other, failing, "by-key", on=lambda key, value: value, name="fk").named("foreign-key-join")
    table.group_by(lambda key, value: (value, key), name="group").count("grouped").named("count-of-table")
    held = table.suppress(until_time_limit(timedelta(seconds=1)), name="held").named("suppress")
    held.to_stream().named("held-rows").to("out", name="sink")
    windows = TumblingWindows(timedelta(seconds=1))
    counted = rows.group_by_key().windowed_by(windows).count("windows").named("count-of-windows")
    counted.suppress(until_window_closes()).named("suppress-windows").to_stream()
    final = rows.group_by_key().windowed_by(windows).emit_strategy(on_window_close())
    final.reduce(max, "final").named("reduce-windows").to_stream()
    cogrouped = rows.group_by_key().cogroup(lambda key, value, total: total + 1)
    cogrouped.windowed_by(windows).aggregate(int, "together", value=serdes.int64).named("cogroup-windows")
    rows.join(rows, failing, within=JoinWindows(timedelta(seconds=1)), store="twice").named("join-of-streams")


NAMES = {
    "to-table", "filter", "map-values", "transform-values", "join", "foreign-key-join", "count-of-table", "suppress",
    "held-rows", "sink", "count-of-windows", "suppress-windows", "reduce-windows", "cogroup-windows", "join-of-streams",
}  # fmt: skip


def failing(*row: str) -> str:
    return row[5]


def test_every_step_that_kafka_streams_names_has_its_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = App("app")
    every_kind(app)
    scene = Scene(app, tmp_path, partitions=1, settings={"processing.exception.handler": "skip"})
    scene.send("other", [("k", "o", 1), ("v", "o", 1)])
    scene.send("in", [("k", "v", 1), ("k", "v", 9_000)])
    scene.work_off()
    steps = scene.failures.steps
    assert NAMES - {"map-values", "transform-values"} <= steps.keys()  # those get no rows
    assert not any(name.startswith(("filter ", "join ", "to ", "count ", "reduce ")) for name in steps)
    for step in ("filter", "join", "foreign-key-join", "join-of-streams"):
        assert f"Processor '{step}' failed" in caplog.text
    drawn = {end.name for part in graph_of(app.topology()) for edge in part.edges for end in (edge.start, edge.end)}
    assert drawn >= NAMES


def test_drawings_have_the_names_and_stores_keep_theirs() -> None:
    topology = named().topology()
    (part,) = graph_of(topology)
    drawn = {end.name for edge in part.edges for end in (edge.start, edge.end) if end.kind == "operator"}
    assert {"without-none", "numbers", "counted", "changes"} <= drawn
    assert set(topology.stores) == {"counts", "many"}
