"""A Spark job of somebody who has no code of the application: it reads a store, and writes what it found as JSON.

spark-submit snapshot_job.py URL STORE FILE
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession


def whereabouts(found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For each batch its rows, and whether the application could be imported where they were read."""
    for batch in found:
        yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows], "has_app": [find_spec("support") is not None]})


def main(url: str, store: str, file: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    frame = spark.read.format("stateline").option("url", url).option("store", store).load()
    rows = {row.key: row.value for row in frame.collect()}
    places = frame.mapInArrow(whereabouts, "rows BIGINT, has_app BOOLEAN").collect()
    said = {"rows": rows, "read": sum(each.rows for each in places), "has_app": any(each.has_app for each in places)}
    Path(file).write_text(json.dumps(said), encoding="utf-8")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
