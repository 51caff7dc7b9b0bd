"""Reads the `timestamp` of a topic from a field of the JSON value, within the JVM.

It agrees with the worker's `stateline.processing.event_times` from 1970 to the year 9999. Text has a date, a time and a
zone. A record without a time is left out, uncounted, under `skip`, and is unreadable otherwise.
`stateline.model.event_time` refuses declarations that Spark cannot follow.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.types import DataType, DoubleType, StringType, StructType

from stateline.model.event_time import OnInvalid
from stateline.model.topic import Topic

_ZONED = r"\d{2}:\d{2}.*(Z|z|[+-]\d{2}(:?\d{2})?)$"
_LAST_MS = 253_402_300_799_999  # the last that Spark shows: of the year 9999


def with_event_time(topic: Topic, rows: DataFrame) -> DataFrame:
    """Return a source's records with their own time in `timestamp`, or null."""
    event_time = topic.event_time
    if event_time is None or event_time.path is None:
        return rows
    text = F.col("value").cast("string")
    number, said = (_field(text, event_time.path, kind) for kind in (DoubleType(), StringType()))
    of_number = F.when((number >= 0) & (number <= _LAST_MS), F.floor(number).cast("bigint"))
    of_text = F.when(said.rlike(_ZONED), F.unix_millis(F.try_to_timestamp(said)))
    at = F.coalesce(of_number, of_text)
    at = F.when((at >= 0) & (at <= _LAST_MS), at)
    return rows.withColumn("timestamp", F.timestamp_millis(at))


def without_time(topic: Topic, on_invalid: OnInvalid) -> Column:
    """Return whether a record of `with_event_time` has no time, under that policy."""
    concerned = topic.event_time is not None and topic.event_time.on_invalid == on_invalid
    return F.col("timestamp").isNull() if concerned else F.lit(False)


def _field(text: Column, path: tuple[str, ...], kind: DataType) -> Column:
    schema = reduce(lambda inner, name: StructType().add(name, inner), reversed(path), kind)
    assert isinstance(schema, StructType), "a path has at least one name"
    return reduce(lambda column, name: column.getField(name), path, F.from_json(text, schema))
