"""KTable operators: the newest changes that leave a pipeline equal what plain Python makes of the whole topics."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

from service.spark.operators.bench import OperatorBench, Record, declare, newest
from stateline import serdes
from stateline.dsl.app import App
from stateline.spark import KTable, table_of
from stateline_store import TopologyError

app = App("operators")
people = app.topic("people", key=serdes.string, value=serdes.json, schema="city string, age int")
per_person = partial(declare, app, reads=[], tables=[people], key="_key")


@per_person()
def adults(people: KTable) -> KTable:
    """filter, mapValues."""
    return people.filter("age >= 18").map_values("city", (F.col("age") + 1).alias("next"))


@per_person()
def others(people: KTable) -> DataFrame:
    """filterNot, toStream."""
    return people.filter_not(F.col("age") >= 18).to_stream()


def random_people(count: int, seed: int) -> list[Record]:
    """Changes of a few keys: they move, change and vanish, and come back."""
    chance = random.Random(seed)
    made: list[Record] = []
    for number in range(count):
        value = {"city": chance.choice("abc"), "age": chance.randrange(60)} if chance.random() < 0.75 else None
        made.append((f"p{chance.randrange(12)}", value, 1_000 * number))
    return made


Table = dict[str, dict[str, Any]]


def table(records: Iterable[Record]) -> Table:
    """The newest value of each key."""
    found = {str(key): value for key, value, _ in records}
    return {key: value for key, value in found.items() if value is not None}


def named(name: str) -> Any:
    return app.topology().pipelines[name]


def test_filters_and_map_values_keep_the_table_of_what_passes(bench: OperatorBench, rows_per_batch: int) -> None:
    records = random_people(90, seed=1)
    bench.write("people", records)
    found = bench.run(named("adults"), named("others"), rows_per_batch=rows_per_batch)
    whole = table(records)
    assert newest(found["adults"], "_key") == {
        key: {"city": value["city"], "next": value["age"] + 1} for key, value in whole.items() if value["age"] >= 18
    }
    assert newest(found["others"], "_key") == {key: value for key, value in whole.items() if value["age"] < 18}
    assert all(row["city"] is None and row["next"] is None for row in found["adults"] if row["_deleted"])
    assert len(found["adults"]) == len(records)  # a change for each: nothing is kept of what was there before
    assert (bench.batches > 2) == (rows_per_batch < len(records))


def test_rows_that_are_no_table_are_refused(bench: OperatorBench) -> None:
    frame = bench.session.range(1).selectExpr("id", "'x' AS text", "id AS other")
    with pytest.raises(TopologyError, match=r"key city: _offset orders rows of one _key.*add a column _order"):
        table_of(frame.selectExpr("text AS city", "other", "'k' AS _key", "id AS _offset"), "city")
    with pytest.raises(TopologyError, match="has no value"):
        table_of(frame.select("id"), "id")
