"""A worker that reads all topics that a pattern matches: those of its start, and later ones from its next start on."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import orjson
import pytest

from stateline import App, serdes
from stateline.cli.main import main
from stateline.log import Log
from stateline.worker.tasks import topic_watch
from support.processes.running_worker import Stores, configured, create, eventually, produce, running
from support.run.length import on_one_log

PARTITIONS = 2
CODE = """
import re

from stateline import App, serdes

app = App("shop")
app.stream(re.compile("orders-.*"), key=serdes.string, value=serdes.string).group_by_key().count("counts")
"""


def counting(name: str) -> App:
    app = App(name)
    pattern = re.compile(rf"{name}-orders-.*")
    app.stream(pattern, key=serdes.string, value=serdes.string).group_by_key().count("counts")
    return app


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
@on_one_log("embedded", "test_pattern_nodes.py has a topic that comes later on Kafka")
def test_a_topic_that_comes_later_is_told_of_once_and_read_from_its_beginning_after_a_restart(
    bootstrap: str,
    guarantee: str,
    log: Log,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(topic_watch, "_LOOK_INTERVAL_S", 0.1)
    name = f"patterns-{uuid4().hex[:8]}"
    first, second, later = (f"{name}-orders-{country}" for country in ("de", "fr", "it"))
    create(log, {first: PARTITIONS, second: PARTITIONS, f"{name}-invoices": 3})
    config = configured(counting(name), tmp_path, bootstrap__servers=bootstrap, processing__guarantee=guarantee)

    def counted(app: App) -> dict[bytes, bytes]:
        with closing(Stores(app, config, tmp_path / uuid4().hex)) as stores:
            return stores.rows("counts", PARTITIONS)

    def becomes(app: App, count: int) -> None:
        eventually(lambda: counted(app) == {b"ada": serdes.int64.serialize(count)}, f"Ada has {count} orders")

    order = [(b"ada", b"1", 1)]
    app = counting(name)
    with running(app, config, log):
        produce(log, first, order)
        produce(log, second, order)
        becomes(app, 2)
        create(log, {later: PARTITIONS})
        produce(log, later, order)
        for count in range(3, 8):
            produce(log, first, order)
            becomes(app, count)
        eventually(lambda: f"matches topic {later}, which is not read yet" in caplog.text, "the worker tells of it")
    assert caplog.text.count("is not read yet") == 1
    app = counting(name)
    with running(app, config, log):
        becomes(app, 8)
        produce(log, later, order)
        becomes(app, 9)
    assert caplog.text.count("is not read yet") == 1


def test_a_run_gives_its_processes_the_topics_of_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = f"module_{uuid4().hex}"
    (tmp_path / f"{module}.py").write_text(CODE)

    def commands() -> list[str]:
        assert main(["run", f"{module}:app", "--plan", "plan"]) == 0
        return [" ".join(child["command"]) for child in orjson.loads(Path("plan").read_bytes())["children"]]

    pinned = "--set topology.pattern.topics=orders-de,orders-fr"
    assert main(["run", f"{module}:app", "--plan", "plan"]) == 2
    assert main(["topics", f"{module}:app", "--create", *pinned.split()]) == 0
    assert {command.count(pinned) for command in commands()} == {1}
    monkeypatch.setenv("STATELINE_TOPOLOGY_PATTERN_TOPICS", "orders-fr")
    assert {command.count("topology.pattern.topics") for command in commands()} == {0}
