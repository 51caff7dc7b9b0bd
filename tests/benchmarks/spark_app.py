"""The application of the Spark benchmarks: a pipeline that adds up and one that maps rows, tables of both, and one
that looks rows up in a static table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stateline import serdes
from stateline.dsl.app import App

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

app = App("spark-bench")
made = app.topic("made", key=serdes.string, value=serdes.json, schema="k string, n long")
known = app.topic("known", key=serdes.string, value=serdes.json, schema="name string")
for result in ("sums", "doubles"):
    app.table(result, key=serdes.string, value=serdes.json)


@app.pipeline(reads=made, writes="sums", key="k")
def add(made: DataFrame) -> DataFrame:
    """The sum of each key's numbers, and how many there were."""
    from pyspark.sql import functions as F  # noqa: N812  # PySpark's convention; workers do without Spark

    return made.groupBy("k").agg(F.sum("n").alias("n"), F.count("*").alias("records"))


@app.pipeline(reads=made, writes="doubles", key="k", output_mode="append", result="stream")
def double(made: DataFrame) -> DataFrame:
    """Each row, with twice its number."""
    return made.selectExpr("k", "n * 2 AS n")


@app.pipeline(reads=made, static=[known], writes="found", key="k", output_mode="append", result="stream")
def look_up(made: DataFrame, known: DataFrame) -> DataFrame:
    """Each row, with the name of its key."""
    return made.join(known.selectExpr("_key AS k", "name"), "k")
