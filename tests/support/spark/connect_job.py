"""A Spark job over Spark Connect: what it found of a Stateline server, as JSON.

python connect_job.py REMOTE URL FILE DIRECTORY
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyspark.sql.connect.session
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

import stateline.spark
from stateline.config.loading import load_config
from stateline.spark.drivers.process import Stopping, driver_session
from stateline.spark.session import spark_session
from stateline_store import ConfigurationError


def main(remote: str, url: str, file: str, directory: str) -> None:
    spark = SparkSession.builder.remote(remote).getOrCreate()
    found: dict[str, Any] = {"is_connect": isinstance(spark, pyspark.sql.connect.session.SparkSession)}
    found |= _snapshots(spark, url) | _changes(spark, url, directory) | _refusals(spark, url)
    Path(file).write_text(json.dumps(found), encoding="utf-8")
    spark.stop()


def _reader(spark: SparkSession, url: str, store: str) -> DataFrameReader:
    return spark.read.format("stateline").options(url=url, store=store, max_age_s="0")


def _rows(frame: DataFrame) -> list[list[Any]]:
    return [list(row) for row in frame.collect()]


def _snapshots(spark: SparkSession, url: str) -> dict[str, Any]:
    plain = _reader(spark, url, "plain").load()
    typed = _reader(spark, url, "plain").schema("value STRUCT<n: BIGINT>, key STRING").load()
    lenient = plain.select("key", stateline.spark.json_value("n BIGINT").alias("value"))
    pinned = _reader(spark, url, "plain").option("pin", "connect").load()
    found: dict[str, Any] = {
        "plain": _rows(plain),
        "typed": _rows(typed.select("key", "value.n")),
        "lenient": _rows(lenient.select("key", "value.n")),
        "filtered": _rows(plain.where("key = 'a'")),
    }
    with stateline.spark.cut(spark, url, ["plain", "stamped"]) as cut:
        both = cut.frame("plain").join(cut.frame("stamped", columns=["key"]), "key")
        found |= {"cut": _rows(both.select("key")), "stores": list(cut.stores)}
    spark.conf.set("spark.connect.session.planCache.enabled", "false")  # as after many other plans
    before = _ids(url)
    found["pinned"] = pinned.join(pinned.select("key", F.col("value").alias("again")), "key").count()
    found["snapshots of one pin"] = len(_ids(url) - before)
    before = _ids(url)
    plain.join(plain.select("key", F.col("value").alias("again")), "key").count()
    plain.count()
    found["snapshots of a plain frame"] = len(_ids(url) - before)
    spark.conf.set("spark.connect.session.planCache.enabled", "true")
    return found


def _ids(url: str) -> set[str]:
    """The snapshots that there are."""
    with urlopen(f"{url}/v1/snapshots") as response:
        return {each["id"] for each in json.load(response)["snapshots"]}


def _changes(spark: SparkSession, url: str, directory: str) -> dict[str, Any]:
    stream = spark.readStream.format("stateline").options(url=url, store="stamped", changes="true").load()
    writer = stream.writeStream.format("memory").queryName("changes").option("checkpointLocation", directory)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return {"changes": _rows(spark.table("changes").select("partition", "offset", "key", "value"))}


def _refusals(spark: SparkSession, url: str) -> dict[str, str]:
    """What each of them says."""
    said = {}
    try:
        _reader(spark, url, "nix").load().count()
    except PySparkException as error:
        said["unknown"] = str(error)
    try:
        spark_session(load_config("connect"))
    except ConfigurationError as error:
        said["own session"] = str(error)
    try:
        with driver_session(load_config("connect"), Stopping(), spark):
            pass
    except ConfigurationError as error:
        said["session of the caller's"] = str(error)
    return said


if __name__ == "__main__":
    main(*sys.argv[1:])
