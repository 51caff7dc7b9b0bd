"""A Spark job beside the service: at which airport, and with which airline, does one wait longest?

    python -m flights.ranking http://127.0.0.1:8000

It reads two stores of the running server as they were at one moment, and knows nothing else of the application. With
``--json`` each line is a JSON object; without, text.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

from flights.screen import ranking_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_FLIGHTS, PLACES = 100, 20

# As any job has them; small, since the pipelines' Spark runs on the same machine.
_SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "512m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
_HOUR = (
    "value STRUCT<origin: STRING, carrier: STRING, airline: STRING, "
    "departures: BIGINT, cancelled: BIGINT, delay_minutes: BIGINT>"
)


def ranking(spark: SparkSession, url: str) -> list[dict[str, Any]]:
    """The `PLACES` pairs of airport and airline with the longest mean delay, of those with `LEAST_FLIGHTS` or more.

    Of each `airport`, `airport_name`, `carrier`, `airline`, `flights` that left, the `minutes` of their delays and the
    `mean`. Pairs of the same mean come by airport and carrier. Raises what `stateline.spark.cut` raises.
    """
    from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

    import stateline.spark

    with stateline.spark.cut(spark, url, ["delays", "airports"]) as cut:
        hours = cut.frame("delays", schema=_HOUR).select("value.*")
        names = cut.frame("airports", schema="key STRING, value STRUCT<name: STRING>")
        names = names.select(F.col("key").alias("airport"), F.col("value.name").alias("airport_name"))
        pairs = hours.groupBy(F.col("origin").alias("airport"), "carrier", "airline").agg(
            F.sum(F.col("departures") - F.col("cancelled")).alias("flights"),
            F.sum("delay_minutes").alias("minutes"),
        )
        means = pairs.where(F.col("flights") >= LEAST_FLIGHTS).withColumn("mean", F.col("minutes") / F.col("flights"))
        worst = means.orderBy(F.desc("mean"), "airport", "carrier").limit(PLACES)
        rows = worst.join(F.broadcast(names), "airport", "left").orderBy(F.desc("mean"), "airport", "carrier")
        return [row.asDict() for row in rows.collect()]


def main(arguments: Sequence[str]) -> int:
    """Print the ranking of the server at the URL that is the first argument."""
    from pyspark.sql import SparkSession

    from stateline.spark.session import local_python

    url, *options = arguments
    # Executors run this interpreter, whatever `python3` is on the PATH: it is the one that knows the format.
    os.environ.setdefault("PYSPARK_PYTHON", local_python())
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName("ranking")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        rows = ranking(spark, url)
    finally:
        spark.stop()
    for place, row in enumerate(rows, 1):
        line = orjson.dumps(row).decode() if "--json" in options else ranking_line(place, row)
        sys.stdout.write(f"{line}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["http://127.0.0.1:8000"]))
