"""Operators on streams that Spark lacks: a join with a table as of each row's time, and sessions updated as they grow.

Both run on `transformWithState`, by event time. docs/operators.md has all operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.types import StructType

from stateline import serdes
from stateline.model.declared_at import says_where
from stateline.model.function_checks import check_function
from stateline.spark.columns import DELETED, TIMESTAMP
from stateline.spark.operators.declared import STATE, declare
from stateline.spark.operators.joins import LEFT, RIGHT, JoinStreamWithTable
from stateline.spark.operators.ktable import KTable, changes
from stateline.spark.operators.packing import order_column, packed, spark_schema, struct_type, unpacked
from stateline.spark.operators.processors import Aggregator, Value, by_event_time
from stateline.spark.operators.sessions import Sessions
from stateline_store import InvalidArgumentError, TopologyError

_WATERMARKED = "_stateline_at"


def join_stream_table(
    stream: DataFrame,
    table: KTable,
    on: str | Sequence[str],
    *,
    delay: timedelta,
    how: Literal["inner", "left"] = "inner",
    time: str = TIMESTAMP,
    table_delay: timedelta | None = None,
) -> DataFrame:
    """Join each row of the stream with the table's value for its columns `on` at the row's `time`.

    A row leaves when the watermark has passed it. The watermark is the latest `time` seen minus `delay`. Changes of the
    table up to that time must have been read by then. A row behind the watermark leaves at once. With `table_delay` the
    table has a watermark too, and rows wait for both. The result then does not depend on which topic is read first, but
    rows wait while nobody writes to the table's topic. ``left`` keeps rows without a value.

    Exact for a table of a topic, also with `filter` or `map_values`.

    The result has the columns of the stream, with `_order` and `_offset`, and of the table. The output mode is
    ``update``. State: waiting rows, and the table's changes of a key that the watermark has not passed, plus one.
    Raises `TopologyError` for a column that both have, other key types than the table's, or another `how`.
    """
    if how not in ("inner", "left"):
        raise TopologyError(f"A stream cannot be joined with a table as {how!r}: use 'inner' or 'left'.")
    names = (on,) if isinstance(on, str) else tuple(on)
    _check_join(stream, table, names)
    sides = {"left": spark_schema(stream, stream.columns), "right": table.value_schema}
    declare("join_stream_table", state=STATE, how=how, on=list(names), time=time, key=table.key_schema, **sides)
    rows = _on_time(stream, time, delay, names)
    keys = packed([F.col(f"`{name}`").alias(alias) for name, alias in zip(names, table.key, strict=True)])
    left = rows.select(keys.alias("key"), F.lit(LEFT).alias("side"), *_value_and_time(rows, stream.columns))
    if table_delay is not None:
        table = KTable(table.frame.withWatermark(TIMESTAMP, _text(table_delay)), table.key)
    both = left.unionAll(changes(table, RIGHT))
    joined = by_event_time(both, "key", JoinStreamWithTable(how))
    return _flat(joined, stream, table)


@says_where
def session_aggregate(
    frame: DataFrame,
    key: str | Sequence[str],
    *,
    gap: timedelta,
    delay: timedelta,
    initial: Value,
    add: Aggregator,
    merge: Aggregator,
    schema: str,
    time: str = TIMESTAMP,
) -> DataFrame:
    """Aggregate each session in update mode. Spark's `session_window` has only ``append`` and ``complete``.

    Rows of a key at most `gap` apart are one session, as in Spark and Kafka Streams. `add(aggregate, value)` adds a
    row. `merge(aggregate, aggregate)` joins two sessions that a late row connects. Both get dicts of JSON values (times
    are ISO texts), return a new one, and must not change the old. `schema` is the aggregate's, in Spark's DDL. If `add`
    returns None, the session is deleted, and the next row starts another. Spark drops rows older than the latest `time`
    minus `delay`.

    The result has the columns `key`, `session` (``start``, and ``end``: the last row's time plus `gap`), the
    aggregate's, `_deleted` (the session was deleted or merged into another) and `_timestamp`, the last row's time.
    """
    check_function("session_aggregate", add, "aggregate", "value", role="add")
    check_function("session_aggregate", merge, "one", "other", role="merge")
    _check_initial(initial)
    names = (key,) if isinstance(key, str) else tuple(key)
    values = [name for name in frame.columns if name not in names]
    rows = _on_time(frame, time, delay, names)  # with the watermark's column, by which Spark drops late rows
    rows = rows.select(_WATERMARKED, packed(names).alias("key"), *_value_and_time(rows, values))
    gap_us, kept_schema = gap // timedelta(microseconds=1), struct_type(schema)
    functions = {"initial": initial, "add": add, "merge": merge}
    key_schema = spark_schema(frame, names)
    declare("session_aggregate", state=STATE, key=key_schema, gap=str(gap), time=time, **functions, schema=kept_schema)
    found = by_event_time(rows, "key", Sessions(gap_us, initial, add, merge))
    return _sessions_frame(found, key_schema, kept_schema, gap_us)


def _sessions_frame(found: DataFrame, key: StructType, value: StructType, gap_us: int) -> DataFrame:
    start, end = F.timestamp_micros("start"), F.timestamp_micros(F.col("last") + gap_us)
    kept = found.select(
        unpacked("key", key).alias("_k"),
        F.struct(start.alias("start"), end.alias("end")).alias("session"),
        unpacked("value", value).alias("_v"),
        F.col("value").isNull().alias(DELETED),
        F.timestamp_micros("last").alias(TIMESTAMP),
    )
    return kept.select("_k.*", "session", "_v.*", DELETED, TIMESTAMP)


def _on_time(frame: DataFrame, time: str, delay: timedelta, key: Sequence[str]) -> DataFrame:
    rows = frame.where(F.col(time).isNotNull()).withColumn(_WATERMARKED, F.col(time))
    rows = rows.withWatermark(_WATERMARKED, _text(delay))
    return rows.where(" AND ".join(f"`{name}` IS NOT NULL" for name in key))


def _value_and_time(rows: DataFrame, values: Sequence[str]) -> tuple[Column, ...]:
    order = order_column(rows)
    return (
        packed(values).alias("value"),
        F.unix_micros(_WATERMARKED).alias("at"),
        (F.lit(0) if order is None else F.col(order)).cast("bigint").alias("order"),
    )


def _check_initial(initial: Value) -> None:
    try:
        serdes.json.serialize(initial)
    except InvalidArgumentError as error:
        raise TopologyError(f"The initial of session_aggregate is kept as JSON, as each aggregate: {error}") from error


def _text(delay: timedelta) -> str:
    return f"{delay // timedelta(milliseconds=1)} milliseconds"


def _check_join(stream: DataFrame, table: KTable, on: tuple[str, ...]) -> None:
    types = [[field.dataType.simpleString() for field in each] for each in (spark_schema(stream, on), table.key_schema)]
    if types[0] != types[1]:
        shown = f"{', '.join(types[0])}, and the table's key is {', '.join(types[1])}"
        raise TopologyError(f"The columns {', '.join(on)} are {shown}: cast them.")
    taken = {name.lower() for name in stream.columns}
    if name := next((name for name in table.columns if name.lower() in taken), None):
        raise TopologyError(f"The stream and the table have a column {name!r}: rename it with map_values.")


def _flat(joined: DataFrame, stream: DataFrame, table: KTable) -> DataFrame:
    left = spark_schema(stream, stream.columns)
    kept = joined.select(unpacked("left", left).alias("_l"), unpacked("right", table.value_schema).alias("_r"))
    fields = [F.col("_l").getField(name).alias(name) for name in stream.columns]
    fields += [F.col("_r").getField(name).alias(name) for name in table.columns]
    return kept.select(*fields)
