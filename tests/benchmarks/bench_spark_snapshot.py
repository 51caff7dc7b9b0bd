"""Snapshots as Spark DataFrames: rows per second ÷ `spark.read.parquet` of the same rows.

A million rows in four partitions, two server processes. Whole rows: at least half as fast. Keys and timestamps alone:
at least as fast as Parquet that reads whole rows; against Parquet that reads the same two columns, for the record. In
turns, into Spark's `noop` sink.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from figures import at_least
from processes import ingested, server, until_ready
from pyspark.sql import DataFrame, SparkSession
from topic import TOPIC

import stateline.spark
from stateline.config.loading import load_config
from stateline.spark.session import close_session, spark_session

KEYS = 1_000_000
ROUNDS = 5


def rows_per_second(frame: DataFrame) -> float:
    """How fast Spark reads all of it."""
    begin = time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    return KEYS / (time.monotonic() - begin)


def compare(spark: SparkSession, port: int, place: Path) -> None:
    """Measure and print."""
    with stateline.spark.cut(spark, f"http://127.0.0.1:{port}", [TOPIC]) as cut:
        stored = cut.frame(TOPIC)
        stored.write.parquet(str(place / "rows"))
        files = spark.read.parquet(str(place / "rows"))
        assert files.count() == stored.count() == KEYS
        narrow = ("key", "timestamp")
        pruned_frame = cut.frame(TOPIC, columns=narrow)
        whole, pruned, against = list[float](), list[float](), list[float]()
        for number in range(ROUNDS + 1):
            ours, theirs = rows_per_second(stored), rows_per_second(files)
            keys, their_keys = rows_per_second(pruned_frame), rows_per_second(files.select(*narrow))
            if number:  # the first is not compiled yet
                whole.append(ours / theirs)
                pruned.append(keys / theirs)
                against.append(keys / their_keys)
                print(f"  whole rows {ours:,.0f}/s, Parquet {theirs:,.0f}/s; two columns {keys:,.0f}/s, "
                      f"Parquet {their_keys:,.0f}/s", flush=True)  # fmt: skip
    at_least("a snapshot's rows ÷ Parquet's", statistics.median(whole), 0.5)
    at_least("keys and timestamps ÷ whole rows of Parquet", statistics.median(pruned), 1)
    print(f"keys and timestamps ÷ those of Parquet: {statistics.median(against):.2f}")


def main() -> None:
    with ExitStack() as stack:
        servers, state_dir = stack.enter_context(ingested(KEYS))
        port = stack.enter_context(server(servers, state_dir, {"server.processes": 2}))
        until_ready(port)
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        spark = spark_session(load_config("bench", environment={}, overrides=[f"state.dir={place}"]))
        stack.callback(close_session, spark)
        spark.sparkContext.setLogLevel("ERROR")
        compare(spark, port, place)


if __name__ == "__main__":
    main()
