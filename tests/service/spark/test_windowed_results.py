"""Windows and sessions that a pipeline writes, as a table of them answers over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

from service.spark import departures as d
from stateline import serdes
from stateline.config.loading import load_config
from stateline.config.settings import Config
from stateline.dsl.app import App
from stateline.log.embedded import EmbeddedLog
from stateline.model.pipeline import Windowing
from stateline.serde.partitioner import home_partition
from stateline.spark.drivers.several_pipelines import run_pipelines
from support.processes.running_worker import configured, create, eventually, read_all, running
from support.processes.served_here import served_here

HOUR_MS, GAP_MS, PARTITIONS = 3_600_000, 600_000, 3
LONG = timedelta(days=400)

app = App("flights")
departures = app.topic(
    "departures", key=serdes.string, value=serdes.json, schema="origin string, at timestamp, delay double"
)
windows = app.table(
    "hours", windowed=timedelta(milliseconds=HOUR_MS), retention=LONG, key=serdes.string, value=serdes.json
)


@app.pipeline(
    reads=departures,
    writes="hours",
    key="origin",
    windowing=Windowing("window", "window", HOUR_MS),
    timestamp="_newest",
)
def hourly(departures: DataFrame) -> DataFrame:
    """Departures per airport and hour, every half an hour."""
    grouped = departures.groupBy(F.window("at", "1 hour", "30 minutes"), "origin")
    return grouped.agg(F.count("*").alias("flights"), F.max("at").alias("_newest")).select("*")


@app.pipeline(
    reads=departures,
    writes="bursts",
    key="origin",
    windowing=Windowing("session", "session_window", GAP_MS),
    output_mode="complete",
)
def bursts(departures: DataFrame) -> DataFrame:
    """Departures per airport with less than ten minutes between them. Sessions that grow together leave one."""
    grouped = departures.groupBy(F.session_window("at", "10 minutes"), "origin")
    return grouped.agg(F.count("*").alias("flights"))


sessions = app.table("bursts", sessions=True, retention=LONG, persistent=False)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> EmbeddedLog:
    log = EmbeddedLog(tmp_path_factory.mktemp("log") / "log.db")
    create(log, {"departures": PARTITIONS})
    return log


MADE = d.random_departures(600, seed=3)


@pytest.fixture(scope="module")
def served(session: SparkSession, log: EmbeddedLog, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Both pipelines over the departures, in micro-batches that come out of order; worker and server."""
    state = tmp_path_factory.mktemp("state")
    settings = [*d.settings(str(state)), f"pipeline.max.offsets.per.trigger={len(MADE) // 2}"]
    config: Config = load_config("flights", overrides=settings)
    d.load(log, [*MADE[::2], *MADE[1::2]])  # what comes in the second half joins sessions of the first
    run_pipelines(app, ["hourly", "bursts"], config, log, available_now=True, session=session)
    with running(app, configured(app, state), log), served_here(state, app=app) as here:
        eventually(lambda: _flights(here.client) == len(MADE), "all sessions are served")
        yield here.client


def _flights(client: httpx.Client) -> int:
    entries = [entry for origin in d.AIRPORTS for entry in _entries(client, f"bursts/keys/{origin}/sessions")]
    return sum(entry["value"]["flights"] for entry in entries)


def _entries(client: httpx.Client, path: str) -> list[dict[str, Any]]:
    answer = client.get(f"/v1/stores/{path}", params={"from": 0, "to": 2**62, "order": "asc", "limit": 1000})
    answer.raise_for_status()
    assert answer.json().get("cursor") is None
    return list(answer.json()["entries"])


def _windows() -> dict[tuple[str, int], tuple[int, int]]:
    """(origin, start) → (flights, newest departure)."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for origin, at, _ in MADE:
        half = at - at % (HOUR_MS // 2)
        for start in (half, half - HOUR_MS // 2):
            flights, newest = found.get((origin, start), (0, 0))
            found[origin, start] = (flights + 1, max(newest, at))
    return found


def _sessions() -> set[tuple[str, int, int, int]]:
    """(origin, first departure, last departure, flights)."""
    found = []
    for origin in d.AIRPORTS:
        first = last = flights = 0
        for at in [*(at for name, at, _ in MADE if name == origin), 2**62]:
            if flights and at - last >= GAP_MS:
                found.append((origin, first, last, flights))
                flights = 0
            first, last, flights = first if flights else at, at, flights + 1
    return set(found)


def test_windows_of_a_key_and_of_all_keys_are_what_plain_python_counts(served: httpx.Client) -> None:
    expected = _windows()
    for origin in d.AIRPORTS:
        for entry in _entries(served, f"hours/keys/{origin}/windows"):
            flights, newest = expected.pop((origin, entry["start"]))
            assert entry["end"] == entry["start"] + HOUR_MS
            assert (entry["value"]["flights"], entry["timestamp"]) == (flights, newest)
            assert datetime.fromisoformat(entry["value"]["window"]["start"]).timestamp() * 1000 == entry["start"]
    assert expected == {}
    assert len(_entries(served, "hours/windows")) == len(_windows())


def test_sessions_end_with_their_last_record_and_merged_ones_are_gone(served: httpx.Client) -> None:
    found = [
        (origin, entry["start"], entry["end"], entry["value"]["flights"])
        for origin in d.AIRPORTS
        for entry in _entries(served, f"bursts/keys/{origin}/sessions")
    ]
    assert set(found) == _sessions()
    assert len(found) == len(_sessions())


@pytest.mark.usefixtures("served")
def test_records_lie_in_the_partition_of_the_key_inside_and_tombstones_too(log: EmbeddedLog) -> None:
    for topic, serde in (("hours", serdes.windowed(serdes.string)), ("bursts", serdes.session_windowed(serdes.string))):
        records = read_all(log, topic, PARTITIONS)
        for record in records:
            assert record.key is not None
            key = serde.deserialize(record.key).key
            assert record.partition == home_partition(key.encode(), PARTITIONS)
        assert any(record.value is None for record in records) == (topic == "bursts")
    assert len({record.partition for record in records}) > 1
