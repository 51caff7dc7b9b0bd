"""What tests of the snapshot source share: stores of every kind, and rows as plain Python values."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import httpx
import pyarrow as pa
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from stateline.cli.backup.making import make_now
from stateline.config.loading import load_config
from support.apps.kinds_app import SIZE_MS, Event
from support.apps.matrix_app import Deployment, build
from support.processes.query_server import wait_until
from support.run.patience import HANGING_S

Row: TypeAlias = dict[str, Any]
WINDOWS, SESSIONS = ("counts", "newest"), ("visits", "stamped-visits")
VERSIONED, KEY_VALUE = ("history", "table"), ("plain", "stamped", "latest")
STORES = (*KEY_VALUE, *WINDOWS, "each", *SESSIONS, *VERSIONED)
OF_EACH_KIND = ("plain", "newest", "visits", "history")  # of values, windows, sessions and versions
_BASE_MS = (time.time_ns() // 1_000_000 // 3_600_000 - 2) * 3_600_000
_KEYS = ["", "a", "ab", "b", "k|1", "k2", "zürich", "~"]
_STAMPED = ("newest", "stamped-visits", "stamped", "latest")


@dataclass
class Kinds:
    """A deployment that runs, and its server."""

    deployment: Deployment
    client: httpx.Client

    @property
    def url(self) -> str:
        return str(self.client.base_url).rstrip("/")

    def back_up(self, url: str) -> str:
        """Back up the stores on disk to this location; the backup's id."""
        app, deployment = build(self.deployment.run), self.deployment
        given = [
            f"state.dir={deployment.root / 's'}",
            f"bootstrap.servers={deployment.servers}",
            "server.snapshots.max=1000",
        ]
        config = load_config(app.application_id, environment={}, overrides=[*given, f"backup.location={url}"])
        return str(make_now(app, config)["backup"])

    def expected(self, store: str) -> list[Row]:
        """The rows of a store, times in milliseconds, values as JSON has them; from plain dicts alone."""
        history, rows = self.deployment.history, []
        for partition, end in history.ends().items():
            oracle = history.at(partition, end)
            if store in KEY_VALUE:
                for key, (value, at) in oracle.entries[store].rows.items():
                    rows.append({"key": key, "value": value} | ({} if store == "plain" else {"timestamp": at}))
                continue
            for found in oracle.models[store].contents():
                rows += _rows(store, found)
        return rows


@contextlib.contextmanager
def kinds_that_run(root: Path) -> Iterator[Kinds]:
    """Stores of every kind with the same records, committed, over three partitions."""
    deployment = Deployment(root, "", uuid4().hex[:8])
    deployment.send(_events(150))
    with deployment.worker(commit__interval__ms=50), deployment.server(server__snapshots__max=1000) as client:
        deployment.wait_for(client, "committed", deployment.history.ends())
        yield Kinds(deployment, client)


def _events(count: int) -> list[Event]:
    """Two seconds apart: some out of order, some deletes."""
    chance, made = random.Random(5), []
    for n in range(count):
        back = chance.choices([0, chance.randrange(100_000)], [7, 2])[0]
        value = None if chance.random() < 0.12 else {"n": n, "x": [n, None]}
        made.append((chance.choice(_KEYS), value, max(_BASE_MS, _BASE_MS + n * 2_000 - back)))
    return made


def _rows(store: str, found: tuple[Any, ...]) -> list[Row]:
    if store in VERSIONED:
        key, versions = found
        return [{"key": key, "value": v, "timestamp": at, "valid_to": end} for v, at, end in versions]
    key, start, *rest = found
    end = rest.pop(0) if store in SESSIONS else start + SIZE_MS
    row = {"key": key, "start": start, "end": end, "value": rest[0]}
    return [row | ({"timestamp": rest[1]} if store in _STAMPED else {})]


def reader(session: SparkSession, url: str, store: str, **options: Any) -> DataFrameReader:
    """How Spark reads this store: as it is now."""
    given = {"url": url, "store": store, "max_age_s": "0", **{name: str(value) for name, value in options.items()}}
    return session.read.format("stateline").options(**given)


def read(session: SparkSession, url: str, store: str, **options: Any) -> DataFrame:
    return reader(session, url, store, **options).load()


def snapshots(client: httpx.Client) -> dict[str, int]:
    """When the lease of each snapshot of the server ends, in ms, by the snapshot's id."""
    return {each["id"]: each["expires_at"] for each in client.get("/v1/snapshots").json()["snapshots"]}


def rows(frame: DataFrame) -> list[Row]:
    """The rows as `Kinds.expected` has them: times in milliseconds, values parsed."""
    return [{name: _plain(name, value) for name, value in row.asDict().items()} for row in frame.collect()]


def as_counted(found: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Rows that can be compared whatever their order, each as often as it is there."""
    return Counter(json.dumps(row, sort_keys=True) for row in found)


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, datetime):  # PySpark's are naive, in the zone of this process
        return round(value.astimezone(UTC).timestamp() * 1000)
    return json.loads(value) if name == "value" and isinstance(value, str) else value


def _gated(started: Path, go: Path, found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Spark's part of a test: when the first rows are there, say so, and wait."""
    for batch in found:
        started.touch()
        while not go.exists():
            time.sleep(0.01)
        yield batch.select(["key"])


def gated_read(frame: DataFrame, tmp_path: Path, meanwhile: Callable[[], None]) -> list[Any]:
    """The keys of a frame as a Spark job reads them that stands still after its first rows while something happens; or
    what it failed with."""
    started, go = tmp_path / "started", tmp_path / "go"
    keys = frame.mapInArrow(partial(_gated, started, go), frame.select("key").schema)
    found: list[Any] = []

    def run() -> None:
        try:
            found.extend(row.key for row in keys.collect())
        except Exception as error:  # noqa: BLE001 - it is looked at by the test
            found.append(error)

    job = threading.Thread(target=run)
    job.start()
    try:
        wait_until(lambda: started.exists() or not job.is_alive())
        meanwhile()
    finally:
        go.touch()
        job.join(HANGING_S)
    assert not job.is_alive()
    return found
