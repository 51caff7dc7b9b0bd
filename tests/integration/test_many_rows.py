"""Ten million rows through sessions that grow, and a join of streams within a time: what leaves is what pandas makes of
the same rows.

`make test` leaves it out, `make test-all` takes fewer. The long run:

    MANY_ROWS=10_000_000 .venv/bin/pytest -n 0 --long tests/integration/test_many_rows.py -o log_cli_level=INFO
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]  # it has no types
import pytest
from confluent_kafka import murmur2
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

from service.spark.departures import read_all, settings
from stateline import serdes
from stateline.config.loading import load_config
from stateline.dsl.app import App
from stateline.log import NewTopic
from stateline.log.embedded import EmbeddedLog
from stateline.model.pipeline import Windowing
from stateline.spark import session_aggregate
from stateline.spark.drivers.several_pipelines import run_pipelines
from support.run.length import long_only
from support.spark.spark_archive import put_class_archive

ROWS = int(os.environ.get("MANY_ROWS", "200_000"))
PARTITIONS = 2
BASE_MS, STEP_MS = 1_700_000_000_000, 50  # of the first row, and from one row of a topic to the next
GAP_MS, WITHIN_MS = 30_000, 60_000
_DELAY = timedelta(minutes=5)  # partitions are not read at one pace
_AT_ONCE = 50_000
_log = logging.getLogger(__name__)

pytestmark = [
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17 or newer: there is no java."),
    long_only("tests/service/spark/operators has the same of fewer rows"),
]

app = App("many")
clicks = app.topic("clicks", key=serdes.string, value=serdes.json, schema="user string, n long, at timestamp")
views = app.topic("views", key=serdes.string, value=serdes.json, schema="item string, view long, at timestamp")
buys = app.topic("buys", key=serdes.string, value=serdes.json, schema="item string, buy long, at timestamp")


@app.pipeline(reads=clicks, writes="visits", key="user", windowing=Windowing("session", "session", GAP_MS))
def visits(clicks: DataFrame) -> DataFrame:
    return session_aggregate(
        clicks.select("user", "n", "at", "_offset"), "user", time="at", gap=timedelta(milliseconds=GAP_MS),
        delay=_DELAY, initial={"count": 0, "total": 0}, schema="count bigint, total bigint",
        add=lambda sums, click: {"count": sums["count"] + 1, "total": sums["total"] + click["n"]},
        merge=lambda one, other: {name: one[name] + other[name] for name in one},
    )  # fmt: skip


@app.pipeline(reads=[views, buys], writes="pairs", key="item", output_mode="append", result="stream")
def pairs(views: DataFrame, buys: DataFrame) -> DataFrame:
    seen = views.select("item", "view", F.col("at").alias("seen")).withWatermark("seen", "5 minutes")
    bought = buys.select(F.col("item").alias("bought_item"), "buy", "at").withWatermark("at", "5 minutes")
    within = F.expr(f"item = bought_item AND at BETWEEN seen AND seen + INTERVAL {WITHIN_MS // 1000} SECONDS")
    return seen.join(bought, within).select("item", "view", "buy")


def numbered(count: int, keys: int, seed: int) -> pd.DataFrame:
    """`key` at random, a `number`, and `at` in order."""
    chance = np.random.default_rng(seed)
    at = BASE_MS + np.arange(count) * STEP_MS + chance.integers(0, STEP_MS, count)
    return pd.DataFrame({"key": chance.integers(0, keys, count), "number": np.arange(count), "at": at})


def iso(at_ms: int) -> str:
    return f"{np.datetime64(at_ms, 'ms')}Z"


def fill(log: EmbeddedLog, topic: str, values: Iterator[tuple[str, dict[str, Any] | None, int]]) -> None:
    """Each record under its key, in order."""
    with closing(log.admin()) as admin:
        admin.create_topics([NewTopic(topic, PARTITIONS)])
    waiting: list[list[tuple[bytes, bytes | None, int]]] = [[] for _ in range(PARTITIONS)]
    with closing(log.producer()) as producer:
        for number, (key, value, at) in enumerate(values, 1):
            data = None if value is None else json.dumps(value).encode()
            waiting[murmur2(key.encode(), PARTITIONS)].append((key.encode(), data, at))
            if number % _AT_ONCE == 0:
                _write(producer, topic, waiting)
        _write(producer, topic, waiting)


def _write(producer: Any, topic: str, waiting: list[list[tuple[bytes, bytes | None, int]]]) -> None:
    for partition, rows in enumerate(waiting):
        if rows:
            producer.produce_all(topic, partition, rows)
            rows.clear()
    producer.flush()


def live(log: EmbeddedLog, topic: str) -> dict[bytes, dict[str, Any]]:
    """The table in a result topic."""
    newest = {record.key or b"": record.value for record in read_all(log, topic)}
    return {key: json.loads(value) for key, value in newest.items() if value is not None}


def test_what_leaves_pipelines_of_many_rows_is_what_pandas_makes_of_them(tmp_path: Path, python_of_spark: None) -> None:
    log = EmbeddedLog(tmp_path / "log.db")
    clicked = numbered(ROWS * 3 // 10, max(ROWS * 3 // 10 // 2000, 5), 3)
    each = clicked.itertuples(index=False)
    fill(log, "clicks", ((f"u{r.key}", {"user": f"u{r.key}", "n": r.number, "at": iso(r.at)}, r.at) for r in each))
    seen, bought = (numbered(ROWS * 3 // 20, max(ROWS // 2000, 20), seed) for seed in (4, 5))
    for topic, name, rows in (("views", "view", seen), ("buys", "buy", bought)):
        each = rows.itertuples(index=False)
        fill(log, topic, ((f"i{r.key}", {"item": f"i{r.key}", name: r.number, "at": iso(r.at)}, r.at) for r in each))
    _log.info("%d rows are in the log", ROWS)
    put_class_archive(tmp_path)
    given = [*settings(str(tmp_path)), f"pipeline.max.offsets.per.trigger={max(ROWS // 40, 5_000)}"]
    config = load_config("many", overrides=given)
    for name in ("visits", "pairs"):
        began_s = time.monotonic()
        run_pipelines(app, [name], config, log, available_now=True, progress=lambda status: _log.info("%s", status))
        _log.info("%s took %.0f s", name, time.monotonic() - began_s)

    assert sorted(_visits(log)) == sorted(sessions_of(clicked))

    near = seen.sort_values("at").merge(bought, on="key", suffixes=("_view", "_buy")) if len(seen) < 100_000 else None
    found = sorted((row["item"], row["view"], row["buy"]) for row in _values(log, "pairs"))
    assert found == sorted(pairs_of(seen, bought))
    if near is not None:  # the same by a merge of all with all, where memory has room for it
        inside = near[(near["at_buy"] >= near["at_view"]) & (near["at_buy"] <= near["at_view"] + WITHIN_MS)]
        assert len(inside) == len(found)


def _values(log: EmbeddedLog, topic: str) -> Iterator[dict[str, Any]]:
    return (json.loads(record.value) for record in read_all(log, topic) if record.value is not None)


def _visits(log: EmbeddedLog) -> Iterator[tuple[str, int, int, int, int]]:
    for row in live(log, "visits").values():
        start, end = (
            round(datetime.fromisoformat(row["session"][name]).timestamp() * 1000) for name in ("start", "end")
        )
        yield row["user"], start, end, row["count"], row["total"]


def sessions_of(rows: pd.DataFrame) -> Iterator[tuple[str, int, int, int, int]]:
    """User, start, end, clicks and their sum."""
    ordered = rows.sort_values(["key", "at"])
    is_new = (ordered["key"] != ordered["key"].shift()) | (ordered["at"].diff() > GAP_MS)
    found = ordered.groupby(is_new.cumsum()).agg(
        key=("key", "first"), start=("at", "first"), last=("at", "last"), count=("at", "size"), total=("number", "sum")
    )
    for r in found.itertuples(index=False):
        yield f"u{r.key}", int(r.start), int(r.last) + GAP_MS, int(r.count), int(r.total)


def pairs_of(seen: pd.DataFrame, bought: pd.DataFrame) -> Iterator[tuple[str, int, int]]:
    """Item, view and each buy that comes within the time after it."""
    of_item = {key: (each["at"].to_numpy(), each["number"].to_numpy()) for key, each in bought.groupby("key")}
    for r in seen.itertuples(index=False):
        if r.key in of_item:
            at, numbers = of_item[r.key]
            first, end = np.searchsorted(at, r.at), np.searchsorted(at, r.at + WITHIN_MS, side="right")
            for number in numbers[first:end]:
                yield f"i{r.key}", int(r.number), int(number)
