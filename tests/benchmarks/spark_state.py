"""What state of pipelines costs, in processor seconds of the driver, its JVM and the Python workers.

In each round one key gets more sessions, or more rows that wait. A row costs as much in the last round as in the
second.

Rows come from Parquet files, one per round and micro-batch, and results go nowhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from cores import cpu_s, family
from figures import at_most
from pyspark.sql import DataFrame, SparkSession

from stateline.spark import join_stream_table, session_aggregate, table_of

SESSIONS, WAITING, OPEN_ROUNDS = 3_000, 20_000, 6
_MINUTE = timedelta(minutes=1)
_NEVER = timedelta(days=365)


def open_costs(spark: SparkSession, place: Path) -> None:
    """Measure and print what a row costs beside few and many open sessions, and beside few and many waiting rows."""
    visits, clicks, prices = place / "visits", place / "clicks", place / "prices"
    for number in range(OPEN_ROUNDS):
        at = f"timestamp_seconds((id + {number * SESSIONS}) * 600) AS at"
        write(spark, visits, SESSIONS, "'k' AS k", "1 AS n", at)
        write(spark, clicks, WAITING, "'k' AS k", "id AS n", f"timestamp_seconds(id + {number * WAITING}) AS at")
        write(spark, prices, 1, "'k' AS k", "1 AS price", "timestamp_seconds(id) AS _timestamp", f"{number} AS _order")
    visited = session_aggregate(
        rows(spark, visits, "k string, n int, at timestamp"),
        "k", gap=_MINUTE, delay=_NEVER, initial={"n": 0}, add=added, merge=added, schema="n int", time="at",
    )  # fmt: skip
    priced = join_stream_table(
        rows(spark, clicks, "k string, n bigint, at timestamp"),
        table_of(rows(spark, prices, "k string, price int, _timestamp timestamp, _order int"), "k"),
        "k", delay=_NEVER, time="at",
    )  # fmt: skip
    for name, frame, count in (("sessions", visited, SESSIONS), ("waiting rows", priced, WAITING)):
        costs = seconds_per_batch(frame, place / name.replace(" ", "-"))[:OPEN_ROUNDS]
        shown = ", ".join(f"{cost / count * 1e6:,.0f}" for cost in costs)
        print(f"  {count:,} further {name} each: {shown} µs per row", flush=True)
        at_most(f"a row's cost beside many {name} ÷ beside few", costs[-1] / costs[1], 1.5)


def added(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The sum."""
    return {"n": one["n"] + other["n"]}


def write(spark: SparkSession, place: Path, count: int, *columns: str) -> None:
    """One more file of so many rows."""
    spark.range(count).coalesce(1).selectExpr(*columns).write.mode("append").parquet(str(place))


def rows(spark: SparkSession, place: Path, schema: str) -> DataFrame:
    """Its rows as a stream, a file in each micro-batch."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(place))


def seconds_per_batch(frame: DataFrame, checkpoint: Path) -> list[float]:
    """Processor seconds of each micro-batch, from the end of the one before."""
    taken = [processor_seconds()]

    def take(batch: DataFrame, number: int) -> None:
        batch.write.format("noop").mode("append").save()
        taken.append(processor_seconds())

    writer = frame.writeStream.outputMode("update").option("checkpointLocation", str(checkpoint))
    writer.foreachBatch(take).trigger(availableNow=True).start().awaitTermination()
    return [sum(spent - before.get(pid, 0) for pid, spent in after.items()) for before, after in pairwise(taken)]


def processor_seconds() -> dict[int, float]:
    """Of this process and all that it has started, by process."""
    found: dict[int, float] = {}
    for pid in family(os.getpid()):
        with suppress(FileNotFoundError):  # it has ended
            found[pid] = cpu_s(pid)
    return found


PARTS: dict[str, Callable[[SparkSession, Path], None]] = {"open": open_costs}
