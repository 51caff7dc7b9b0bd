"""Snapshots as Spark DataFrames: rows per second ÷ what else a Spark user could read the same rows from.

A million rows in four partitions, two server processes. Whole rows: at least half as fast as Parquet, and faster than
`format("statestore")` reads a query's state of as many rows of this size, and than `format("kafka")` reads the topic
that is the store's changelog. Keys and timestamps alone: at least as fast as Parquet that reads whole rows; against
Parquet that reads the same two columns, for the record. In turns, into Spark's `noop` sink.
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
from pyspark.sql import functions as sf
from topic import PARTITIONS, TOPIC  # and the tests' `support`

import stateline.spark
from stateline.config.loading import load_config
from stateline.spark.session import close_session, spark_session
from support.kafka.maven import jars

KEYS = 1_000_000
ROUNDS = 5


def rows_per_second(frame: DataFrame) -> float:
    """How fast Spark reads all of it."""
    begin = time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    return KEYS / (time.monotonic() - begin)


def with_state(spark: SparkSession, rows: Path, place: Path) -> DataFrame:
    """The state of a query that keeps the newest value of each key."""
    spark.conf.set("spark.sql.shuffle.partitions", PARTITIONS)
    frame = spark.readStream.schema(spark.read.parquet(str(rows)).schema).parquet(str(rows))
    newest = frame.groupBy("key").agg(sf.max("value").alias("value"), sf.max("timestamp").alias("timestamp"))
    query = newest.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
    query.option("checkpointLocation", str(place)).start().awaitTermination()
    return spark.read.format("statestore").load(str(place)).select("key.key", "value.*")


def compare(spark: SparkSession, servers: str, port: int, place: Path) -> None:
    """Measure and print."""
    with stateline.spark.cut(spark, f"http://127.0.0.1:{port}", [TOPIC]) as cut:
        stored = cut.frame(TOPIC)
        stored.write.parquet(str(place / "rows"))
        narrow = ("key", "timestamp")
        files = spark.read.parquet(str(place / "rows"))
        changelog = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", TOPIC)
        frames = {
            "whole rows": stored,
            "two columns": cut.frame(TOPIC, columns=narrow),
            "Parquet": files,
            "its two columns": files.select(*narrow),
            "statestore": with_state(spark, place / "rows", place / "state"),
            "kafka": changelog.load().selectExpr("string(key)", "string(value)", "timestamp"),
        }
        assert {frame.count() for frame in frames.values()} == {KEYS}
        rounds = list[dict[str, float]]()
        for _ in range(ROUNDS + 1):
            rounds.append({name: rows_per_second(frame) for name, frame in frames.items()})
            print("  " + ", ".join(f"{name} {rate:,.0f}/s" for name, rate in rounds[-1].items()), flush=True)

    def ratio(ours: str, theirs: str) -> float:
        return statistics.median(rates[ours] / rates[theirs] for rates in rounds[1:])  # the first is not compiled yet

    at_least("a snapshot's rows ÷ Parquet's", ratio("whole rows", "Parquet"), 0.5)
    at_least("a snapshot's rows ÷ those of Spark's statestore", ratio("whole rows", "statestore"), 1)
    at_least("a snapshot's rows ÷ those of the changelog by Spark's kafka", ratio("whole rows", "kafka"), 1)
    at_least("keys and timestamps ÷ whole rows of Parquet", ratio("two columns", "Parquet"), 1)
    print(f"keys and timestamps ÷ those of Parquet: {ratio('two columns', 'its two columns'):.2f}")
    at_least("a snapshot's rows", statistics.median(rates["whole rows"] for rates in rounds[1:]) / 1e6, 2.5, " M/s")


def main() -> None:
    with ExitStack() as stack:
        servers, state_dir = stack.enter_context(ingested(KEYS))
        port = stack.enter_context(server(servers, state_dir, {"server.processes": 2}))
        until_ready(port)
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        connector = jars(Path(stateline.spark.__file__).with_name("pom.xml"), "spark-kafka-4.2.0")
        spark = spark_session(
            load_config("bench", environment={}, overrides=[f"state.dir={place}", f"spark.jars={connector}"])
        )
        stack.callback(close_session, spark)
        spark.sparkContext.setLogLevel("ERROR")
        compare(spark, servers, port, place)


if __name__ == "__main__":
    main()
