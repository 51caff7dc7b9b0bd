"""Tables and branches from topic to topic: what a result topic holds, read as a table, equals plain Python."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

from service.spark.departures import read_all, settings
from service.spark.operators.bench import OperatorBench, Record
from stateline import serdes
from stateline.config.loading import load_config
from stateline.dsl.app import App
from stateline.spark import KTable
from stateline.spark.columns import TOPIC
from stateline.spark.drivers.several_pipelines import run_pipelines
from stateline_store import TopologyError

app = App("operators")
people = app.topic("people", key=serdes.string, value=serdes.json, schema="city string, age int")
scores = app.topic("scores", key=serdes.string, value=serdes.json, schema="score int")
scored = app.topic("scored", key=serdes.string, value=serdes.json, schema="score int")


@app.pipeline(reads=[], tables=[scores], writes=scored, key="_key", timestamp="_timestamp")
def with_score(scores: KTable) -> KTable:
    """to: a table as a topic of its own."""
    return scores.filter("score > 10")


@app.pipeline(reads=[], tables=[scored], writes="doubled", key="_key", timestamp="_timestamp")
def doubled(scored: KTable) -> KTable:
    """through: the other pipeline's result, read as a table."""
    return scored.map_values((F.col("score") * 2).alias("twice"))


@app.pipeline(reads=scored, writes="others", branches=["best"], key="_key", output_mode="append", result="stream")
def sorted_out(scored: DataFrame) -> DataFrame:
    """branch."""
    return scored.select("_key", "score", F.when(F.col("score") > 50, "best").alias(TOPIC))


@app.pipeline(reads=[], tables=[people], writes="adults", key="_key")
def adults(people: KTable) -> KTable:
    """A table of the same keys."""
    return people.filter("age >= 18")


@app.pipeline(reads=[], tables=[people], writes="by-city", key="city")
def by_city(people: KTable) -> KTable:
    """A table under another key, of which there are several rows."""
    return people


def random_scores(chance: random.Random, run: int) -> list[Record]:
    """Some changes of few keys, deletions among them."""
    made: list[Record] = []
    for number in range(40):
        value = {"score": chance.randrange(99)} if chance.random() < 0.6 else None
        made.append((f"p{chance.randrange(9)}", value, 1_000 * run + number))
    return made


def test_tables_branches_and_what_goes_through_a_topic_equal_plain_python(
    session: SparkSession, bench: OperatorBench, tmp_path: Path
) -> None:
    chance = random.Random(1)
    config = load_config("operators", overrides=settings(str(tmp_path)))
    newest: dict[str, Any] = {}
    for run in range(2):
        records = random_scores(chance, run)
        bench.write("scores", records)
        newest.update({str(key): value for key, value, _ in records})
        run_pipelines(app, ["with_score"], config, bench.log, available_now=True, session=session)
    by_twenty = config.model_copy(update={"pipeline_max_offsets_per_trigger": 20})
    run_pipelines(app, ["doubled", "sorted_out"], by_twenty, bench.log, available_now=True, session=session)

    high = {key: value for key, value in newest.items() if value is not None and value["score"] > 10}
    assert table(bench, "scored") == high
    assert table(bench, "doubled") == {key: {"twice": value["score"] * 2} for key, value in high.items()}
    values = [json.loads(r.value) for r in read_all(bench.log, "scored") if r.value is not None]
    for topic, wanted in (
        ("best", [v["score"] for v in values if v["score"] > 50]),
        ("others", [v["score"] for v in values if v["score"] <= 50]),
    ):
        found = [json.loads(record.value or b"") for record in read_all(bench.log, topic)]
        assert sorted(row["score"] for row in found) == sorted(wanted)
        assert all(set(row) == {"score"} for row in found)


def test_offsets_tell_which_row_is_the_newest_of_a_records_key_and_of_no_other(
    session: SparkSession, bench: OperatorBench, tmp_path: Path
) -> None:
    config = load_config("operators", overrides=settings(str(tmp_path)))
    ages = {"K0": (20, 30, 10, 40), "K1": (50, 60), "K2": (70, 15)}
    bench.write("people", [(key, {"city": "NY", "age": age}, 1) for key, each in ages.items() for age in each])
    bench.write("scores", [])
    run_pipelines(app, ["adults"], config, bench.log, available_now=True, session=session)
    assert table(bench, "adults") == {"K0": {"city": "NY", "age": 40}, "K1": {"city": "NY", "age": 60}}
    with pytest.raises(TopologyError, match=r"two rows of one micro-batch have the key b'NY' of 'by-city'"):
        run_pipelines(app, ["by_city"], config, bench.log, available_now=True, session=session)
    assert table(bench, "by-city") == {}


def table(bench: OperatorBench, topic: str) -> dict[str, Any]:
    """The newest value of each key; those whose newest record is a tombstone are left out."""
    newest = {(r.key or b"").decode(): r.value for r in read_all(bench.log, topic)}
    return {key: json.loads(value) for key, value in newest.items() if value is not None}
