"""What the server says of pipelines: as their drivers have written it down, and whether these still live."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from stateline import serdes
from stateline.cli import tokens as cli_tokens
from stateline.client import Client
from stateline.config.loading import load_config
from stateline.dsl.app import App
from stateline.server import create_app
from stateline.server.contract.hidden_paths import hide_directory
from stateline.server.state.pipeline_states import PipelineStates
from stateline_store import TaskLock
from support.processes.served_here import Here, served_here

WRITTEN: dict[str, Any] = {
    "pipeline": "delays", "pid": 4711, "state": "running", "query_id": "8a5c0f1e", "batch_id": 3, "rows_in": 218,
    "skipped": 1, "duration_ms": 412, "updated_at_ms": 1_795_259_814_382, "rows_out": 9, "tombstones": 2,
    "dead_lettered": 0, "lag": 7, "lag_by_topic": {"departures": 5, "airports": 2}, "watermark_ms": 1_357_016_400_000,
    "steps_ms": {"addBatch": 300, "produce": 20}, "batch_at_ms": 1_795_259_814_000,
    "totals": {"batches": 4, "rows_in": 900, "rows_out": 40, "tombstones": 3, "skipped": 2, "dead_lettered": 0},
    "restarts": 2, "last_error": "no", "last_error_at_ms": 1_795_259_000_000, "next_start_at_ms": None,
}  # fmt: skip
SHOWN = {name: member for name, member in WRITTEN.items() if name not in ("pipeline", "pid", "query_id")}


def app() -> App:
    """An application with two pipelines, whose results nobody keeps."""
    made = App("flights-app")
    departures = made.topic("departures", key=serdes.string, value=serdes.json, schema="delay double")
    made.pipeline(reads=departures, writes="delays-out", key="k")(delays)
    made.pipeline(reads=departures, writes="other-out", key="k")(other)
    return made


def delays(rows: Any) -> Any: ...


def other(rows: Any) -> Any: ...


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of the pipeline `delays`."""
    made = tmp_path / "flights-app" / "pipelines" / "delays"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def states(tmp_path: Path, directory: Path) -> PipelineStates:
    return PipelineStates(app().topology(), tmp_path)


def write(directory: Path, **changes: Any) -> None:
    (directory / "status.json").write_text(json.dumps(WRITTEN | changes))


@contextmanager
def driver(directory: Path) -> Iterator[None]:
    """A driver that lives."""
    with TaskLock(directory / ".lock"):
        yield


def test_a_pipeline_that_runs_is_shown_as_it_says(states: PipelineStates, directory: Path) -> None:
    write(directory)
    with driver(directory):
        assert states.read() == {"delays": SHOWN, "other": None}


@pytest.mark.parametrize("state", ["starting", "running", "waiting", "restarting"])
def test_a_driver_that_is_gone_without_a_word_does_not_run(states: PipelineStates, directory: Path, state: str) -> None:
    with driver(directory):
        write(directory, state=state, next_start_at_ms=5)
    (found,) = [status for status in states.read().values() if status is not None]
    assert (found["state"], found["next_start_at_ms"], found["lag"]) == ("not running", None, 7)


def test_a_pipeline_that_failed_stays_failed(states: PipelineStates, directory: Path) -> None:
    with driver(directory):
        write(directory, state="failed")
    (found,) = [status for status in states.read().values() if status is not None]
    assert found["state"] == "failed"


def test_looking_does_not_keep_a_driver_from_starting(states: PipelineStates, directory: Path) -> None:
    write(directory)
    states.read()
    TaskLock(directory / ".lock").release()


@pytest.mark.parametrize("text", ["", "{", '{"pipeline":"delays","pid":1,"state":"running"}'])
def test_a_file_that_cannot_be_understood_says_nothing(states: PipelineStates, directory: Path, text: str) -> None:
    (directory / "status.json").write_text(text)
    assert states.read() == {"delays": None, "other": None}


def test_no_error_tells_where_files_lie(states: PipelineStates, directory: Path, tmp_path: Path) -> None:
    hide_directory(tmp_path, "<state.dir>")
    write(directory, last_error=f"{directory}/checkpoint belongs to another query")
    (found,) = [status for status in states.read().values() if status is not None]
    assert found["last_error"] == "<state.dir>/flights-app/pipelines/delays/checkpoint belongs to another query"


# Over HTTP


@pytest.fixture
def served(tmp_path: Path, directory: Path) -> Iterator[Here]:
    """A server beside a driver that runs `delays`."""
    write(directory)
    with driver(directory), served_here(tmp_path, app=app()) as here:
        yield here


def test_the_topology_tells_how_far_pipelines_are(served: Here) -> None:
    pipelines = served.client.get("/v1/topology").json()["pipelines"]
    assert pipelines["delays"]["status"] == SHOWN
    assert pipelines["other"]["status"] is None
    assert pipelines["delays"]["reads"] == ["departures"]


def test_the_client_has_it_typed(served: Here) -> None:
    with Client(str(served.client.base_url)) as client:
        pipelines = client.topology().pipelines
    assert pipelines["other"].status is None
    status = pipelines["delays"].status
    assert status is not None
    assert (status.state, status.lag_by_topic, status.totals["rows_out"]) == (
        "running", {"departures": 5, "airports": 2}, 40,
    )  # fmt: skip


def samples(client: httpx.Client) -> dict[tuple[str, ...], float]:
    """Metric and the values of its labels → its value, of the metrics of pipelines."""
    found = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            if sample.name.startswith("stateline_pipeline_"):
                found[sample.name.removeprefix("stateline_pipeline_"), *sample.labels.values()] = sample.value
    return found


def test_the_metrics_have_progress_and_lag(served: Here, directory: Path) -> None:
    found = samples(served.client)
    assert found.pop(("last_batch_age_seconds", "delays")) > 0
    assert found == {
        ("state", "delays"): 2, ("state", "other"): 0, ("batch_id", "delays"): 3, ("batch_seconds", "delays"): 0.412,
        ("watermark_seconds", "delays"): 1_357_016_400, ("restarts", "delays"): 2,
        ("lag_records", "delays", "departures"): 5, ("lag_records", "delays", "airports"): 2,
        ("step_seconds", "delays", "addBatch"): 0.3, ("step_seconds", "delays", "produce"): 0.02,
        ("batches_total", "delays"): 4, ("rows_in_total", "delays"): 900, ("rows_out_total", "delays"): 40,
        ("tombstones_total", "delays"): 3, ("skipped_total", "delays"): 2, ("dead_lettered_total", "delays"): 0,
    }  # fmt: skip
    write(directory, state="waiting", lag=0, lag_by_topic={"departures": 0, "airports": 0})
    found = samples(served.client)
    assert found["state", "delays"] == 3
    assert found["lag_records", "delays", "departures"] == 0


def test_before_the_first_micro_batch_there_is_a_state_and_nothing_made_up(served: Here, directory: Path) -> None:
    nothing: dict[str, Any] = {
        "batch_id": -1,
        "batch_at_ms": None,
        "watermark_ms": None,
        "lag": None,
        "lag_by_topic": {},
    }
    write(directory, state="starting", totals={}, steps_ms={}, **nothing)
    assert {name for name, *labels in samples(served.client) if "delays" in labels} == {
        "state", "batch_id", "batch_seconds", "restarts",
    }  # fmt: skip


async def topology(api: FastAPI, headers: dict[str, str]) -> Any:
    """What it answers to who has these headers."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://127.0.0.1:8000") as client:
        return (await client.get("/v1/topology", headers=headers)).json()


def test_an_error_is_told_only_to_who_may_read_everything(tmp_path: Path, directory: Path) -> None:
    write(directory, last_error="The value of departures-0 offset 1 is not JSON: secret")
    kept = app()
    kept.table("delays-out", store="kept")
    tokens = tmp_path / "tokens"

    def token(*options: str) -> dict[str, str]:
        added = CliRunner().invoke(
            cli_tokens.commands, ["add", *options, "--file", str(tokens)], catch_exceptions=False
        )
        return {"Authorization": f"Bearer {added.stdout.strip()}"}

    one, everything = token("one", "--stores", "kept"), token("all")
    settings = [f"state.dir={tmp_path}", f"server.tokens.file={tokens}"]
    api = create_app(kept, load_config("flights-app", environment={}, overrides=settings))
    told = [asyncio.run(topology(api, headers))["pipelines"] for headers in (one, everything)]
    assert [sorted(pipelines) for pipelines in told] == [["delays"], ["delays", "other"]]
    assert told[0]["delays"]["status"] == SHOWN | {"state": "not running", "last_error": None}
    assert "secret" in told[1]["delays"]["status"]["last_error"]
