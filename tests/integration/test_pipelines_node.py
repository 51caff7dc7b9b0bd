"""Several nodes have one application with a pipeline: one of them runs it, and all tell how far it is."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import orjson
import pytest

from stateline import serdes
from stateline.config.loading import load_config
from stateline.config.settings import Config
from stateline.deployment.nodes_topic import NodeEntry, follow_nodes
from stateline.deployment.pipelines.reports import PipelineReporter
from stateline.dsl.app import App
from stateline.log import open_log
from stateline.spark.drivers.status import StatusFile
from stateline_store import StateDirectory, TaskLock
from support.kafka.kafka_broker import KafkaBroker
from support.processes.forked import Forked
from support.processes.node_secret import write_secret
from support.processes.pipelines_node import refusal
from support.processes.query_server import wait_until
from support.processes.running_worker import create
from support.processes.served_here import served_here
from support.run.patience import HANGING_S

NODES = ("one", "two", "three")
APPLICATION = """
from stateline import serdes
from stateline.dsl.app import App

app = App({name!r})
departures = app.topic("departures", key=serdes.string, value=serdes.json)

@app.pipeline(reads=departures, writes="delays", key="origin")
def delays(departures): ...
"""
STATUS = {
    "pipeline": "delays", "pid": 4711, "state": "running", "query_id": "8a5c0f1e", "batch_id": 3, "rows_in": 218,
    "skipped": 1, "duration_ms": 412, "updated_at_ms": 1_795_259_814_382, "rows_out": 9, "tombstones": 2,
    "dead_lettered": 0, "lag": 7, "lag_by_topic": {}, "watermark_ms": None, "steps_ms": {}, "batch_at_ms": None,
    "totals": {}, "restarts": 2, "last_error": None, "last_error_at_ms": None, "next_start_at_ms": None,
}  # fmt: skip


@pytest.fixture
def name() -> str:
    """Of an application that no other test has."""
    return f"flights-{uuid4().hex[:8]}"


def settings(broker: KafkaBroker, directory: Path, node: str, *more: str) -> list[str]:
    return [f"bootstrap.servers={broker.bootstrap_servers}", f"state.dir={directory}", f"node.name={node}", *more]


def config(broker: KafkaBroker, name: str, directory: Path, node: str, *more: str) -> Config:
    return load_config(name, environment={}, overrides=settings(broker, directory, node, *more))


def test_of_drivers_that_start_at_once_those_of_one_node_get_beyond_the_others_refusal(
    kafka_broker: KafkaBroker, tmp_path: Path, name: str
) -> None:
    (tmp_path / "flights.py").write_text(APPLICATION.format(name=name))
    (tmp_path / "no-jars").mkdir()
    said = {node: tmp_path / f"{node}.log" for node in NODES}

    def driver(node: str) -> Forked:
        given = settings(kafka_broker, tmp_path / node, node, f"spark.jars={tmp_path / 'no-jars'}")
        line = ["pipeline", "flights:app", *(part for each in given for part in ("--set", each))]
        output = os.open(said[node], os.O_WRONLY | os.O_CREAT)
        return Forked(line, cwd=tmp_path, env=os.environ, output=output)

    for process in [driver(node) for node in NODES]:
        assert process.wait(HANGING_S) == 2
    # What the one says is why Spark is not even started: it has no connector.
    winners = [node for node in NODES if "pipelines of" not in said[node].read_text()]
    assert [("Kafka connector" in said[node].read_text(), node in winners) for node in NODES].count((True, True)) == 1
    (winner,) = winners
    for other in set(NODES) - {winner}:
        assert f"run on node {winner!r}" in said[other].read_text()
        assert f"set pipeline.node={other}" in said[other].read_text()


def test_the_first_node_stays_the_one_until_the_setting_names_another(
    kafka_broker: KafkaBroker, tmp_path: Path, name: str
) -> None:
    nodes = [config(kafka_broker, name, tmp_path / node, node) for node in NODES]
    with ThreadPoolExecutor() as at_once:
        refusals = dict(zip(NODES, at_once.map(refusal, nodes), strict=True))
    (first,) = [node for node, refused in refusals.items() if not refused]
    other = next(node for node in NODES if node != first)
    assert f"run on node {first!r}" in refusals[other]
    assert not refusal(config(kafka_broker, name, tmp_path / first, "renamed"))
    assert "is another directory" in refusal(config(kafka_broker, name, tmp_path / "empty", "renamed"))
    assert not refusal(config(kafka_broker, name, tmp_path / other, other, f"pipeline.node={other}"))
    assert f"run on node {other!r}" in refusal(config(kafka_broker, name, tmp_path / first, first))
    mistaken = config(kafka_broker, name, tmp_path / first, first, f"pipeline.node={other}")
    assert "(pipeline.node)" in refusal(mistaken)
    assert nodes_in_the_registry(kafka_broker, name, tmp_path) == []  # it is no node's record


def nodes_in_the_registry(broker: KafkaBroker, name: str, directory: Path) -> Sequence[str]:
    found: list[str] = []

    def told(heard: Sequence[tuple[str, NodeEntry | None]], is_read: bool) -> bool:
        found.extend(node for node, _ in heard)
        return not is_read

    with closing(open_log(broker.bootstrap_servers, directory)) as log:
        follow_nodes(log, name, told, 0.5)
    return found


def test_one_machine_on_the_embedded_log_runs_its_pipelines_and_leaves_no_record(tmp_path: Path) -> None:
    alone = load_config("flights", environment={}, overrides=[f"state.dir={tmp_path}"])
    assert not refusal(alone)
    assert list(tmp_path.iterdir()) == []


def test_every_node_tells_how_far_a_pipeline_is_and_where_it_runs(
    kafka_broker: KafkaBroker, tmp_path: Path, name: str
) -> None:
    write_secret(tmp_path)
    app = App(name)
    departures = app.topic(f"departures-{name}", key=serdes.string, value=serdes.json)
    app.pipeline(reads=departures, writes=f"delays-{name}", key="origin", name="delays")(lambda departures: departures)
    pipeline = tmp_path / "one" / name / "pipelines" / "delays"
    pipeline.mkdir(parents=True)
    with ExitStack() as stack:
        log = stack.enter_context(closing(open_log(kafka_broker.bootstrap_servers, tmp_path)))
        create(log, {departures.name: 1})
        given = {
            node: settings(kafka_broker, tmp_path / node, node, f"node.peer.secret.file={tmp_path / 'secret'}")
            for node in ("one", "two")
        }
        one, two = (
            stack.enter_context(served_here(tmp_path / node, *each, app=app, until_ready=False)).client
            for node, each in given.items()
        )

        def status(client: httpx.Client) -> dict[str, Any]:
            return client.get("/v1/topology").json()["pipelines"]["delays"]["status"] or {}

        assert status(two) == {}
        lock = TaskLock(pipeline / ".lock")
        (pipeline / "status.json").write_bytes(orjson.dumps(STATUS))
        wait_until(lambda: status(two) != {}, HANGING_S)
        told = status(two)
        assert told == status(one)
        assert (told["state"], told["batch_id"], told["node"]) == ("running", 3, "one")
        assert two.get("/v1/console").json()["pipelines"]["delays"]["status"] == told
        metric = 'stateline_pipeline_state{pipeline="delays"}'
        assert (metric in one.get("/metrics").text, metric in two.get("/metrics").text) == (True, False)
        lock.release()
        wait_until(lambda: status(two)["state"] == "not running", HANGING_S)


def test_a_driver_that_no_node_is_beside_says_in_the_log_how_far_it_is(
    kafka_broker: KafkaBroker, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs, is silent as one that was killed, is started anew on another machine, and is stopped in order."""
    monkeypatch.setattr("stateline.server.state.pipeline_states.SILENT_S", 2.0)
    monkeypatch.setattr("stateline.deployment.pipelines.reports.REPEAT_S", 0.5)
    app = App(name)
    departures = app.topic(f"departures-{name}", key=serdes.string, value=serdes.json)
    app.pipeline(reads=departures, writes=f"delays-{name}", key="origin", name="delays")(lambda departures: departures)
    with ExitStack() as stack:
        log = stack.enter_context(closing(open_log(kafka_broker.bootstrap_servers, tmp_path)))
        create(log, {departures.name: 1})
        given = settings(kafka_broker, tmp_path / "one", "one")
        client = stack.enter_context(served_here(tmp_path / "one", *given, app=app, until_ready=False)).client

        def status() -> dict[str, Any]:
            return client.get("/v1/topology").json()["pipelines"]["delays"]["status"] or {}

        assert status() == {}
        first = PipelineReporter(log, name, "edge", "its directory")
        file = StatusFile("delays", tmp_path, first.say)
        file.change(state="running", batch_id=3, lag=7)
        wait_until(lambda: status().get("batch_id") == 3, HANGING_S)
        assert (status()["lag"], status()["node"]) == (7, "edge")
        assert client.get("/v1/console").json()["pipelines"]["delays"]["status"]["node"] == "edge"
        time.sleep(2.5)  # what it said first counts no longer
        wait_until(lambda: status()["state"] == "running", HANGING_S)
        wait_until(lambda: 'stateline_pipeline_state{pipeline="delays"} 2.0' in client.get("/metrics").text, HANGING_S)
        first.close()  # as when it is killed: nothing more is said
        wait_until(lambda: status()["state"] == "not running", HANGING_S)
        second = PipelineReporter(log, name, "cloud", "another directory")
        stack.callback(second.close)
        again = StatusFile("delays", tmp_path, second.say)
        wait_until(lambda: (status()["state"], status()["node"]) == ("starting", "cloud"), HANGING_S)
        again.change(state="failed", last_error="no")
        wait_until(lambda: status()["state"] == "failed", HANGING_S)
        again.remove()
        wait_until(lambda: status() == {}, HANGING_S)
        beside = PipelineReporter(log, name, "one", str(StateDirectory(tmp_path / "one", name).process_id()))
        stack.callback(beside.close)
        StatusFile("delays", tmp_path, beside.say).change(batch_id=9)
        time.sleep(2.0)
        assert status() == {}, "of a driver beside it a server reads the file"
