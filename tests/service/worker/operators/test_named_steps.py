"""Steps that an application names: what tells of them says the name."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.worker.operators.operator_scene import Scene
from stateline import App, serdes
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


def test_drawings_have_the_names_and_stores_keep_theirs() -> None:
    topology = named().topology()
    (part,) = graph_of(topology)
    drawn = {end.name for edge in part.edges for end in (edge.start, edge.end) if end.kind == "operator"}
    assert {"without-none", "numbers", "counted", "changes"} <= drawn
    assert set(topology.stores) == {"counts", "many"}
