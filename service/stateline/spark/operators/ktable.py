"""Tables in pipelines: the newest value of each key, as a stream of changes with tombstones.

`app.pipeline(…, tables=[topic])` gives a `KTable` to the pipeline's function, and `table_of` makes one from a streaming
DataFrame. Its rows are **changes**: a key's new value, or its deletion. No method keeps state. Tables are grouped and
joined on workers (docs/decisions/0040-do-tables-on-workers.md), and streams are joined with them by
`join_stream_table`.

Names of columns follow Spark. A topic's key is the column `_key`. No other column whose name begins with "_" is part of
the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.types import StructType

from stateline.spark.columns import DELETED, KEY, OFFSET, ORDER, TIMESTAMP
from stateline.spark.operators.packing import order_column, packed, spark_schema
from stateline_store import TopologyError


@dataclass(frozen=True)
class KTable:
    """A table as its changes. Make one with `table_of`, or by `tables=[…]` of a pipeline. `frame` has the columns
    `key`, those of the value, `_deleted`, `_timestamp`, and `_order` (among the changes of one key in a micro-batch),
    or `_offset` if the key is the record's."""

    frame: DataFrame
    key: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the value's columns."""
        return tuple(n for n in self.frame.columns if n not in self.key and not n.startswith("_"))

    @property
    def key_schema(self) -> StructType:
        """Return the key's columns and their types."""
        return spark_schema(self.frame, self.key)

    @property
    def value_schema(self) -> StructType:
        """Return the value's columns and their types."""
        return spark_schema(self.frame, self.columns)

    def filter(self, condition: str | Column) -> KTable:
        """Keep only rows for which the condition is true. Others become tombstones, since the key may have existed."""
        return self._kept(_true(condition))

    def filter_not(self, condition: str | Column) -> KTable:
        """Keep only rows for which the condition is not true."""
        return self._kept(~_true(condition))

    def map_values(self, *columns: str | Column) -> KTable:
        """Return the same keys with these columns as value. They may use the key's columns."""
        return KTable(self.frame.select(*self.key, *columns, *self._meta), self.key)

    def to_stream(self) -> DataFrame:
        """Return the changes: key, value (null in a tombstone), `_deleted`, `_timestamp`, and `_order` or `_offset`."""
        values = [F.when(~F.col(DELETED), F.col(f"`{name}`")).alias(name) for name in self.columns]
        return self.frame.select(*self.key, *values, *self._meta)

    @property
    def _meta(self) -> tuple[str, ...]:
        return (DELETED, TIMESTAMP, order_column(self.frame) or ORDER)

    def _kept(self, keep: Column) -> KTable:
        return KTable(self.frame.withColumn(DELETED, F.col(DELETED) | ~keep), self.key)


def table_of(frame: DataFrame, key: str | Sequence[str]) -> KTable:
    """Return the table whose changes are these streaming rows.

    A row is a key's new value, or a tombstone if `_deleted` is true. Rows with a null in a key column are left out.
    `_timestamp` is optional. `_order` orders a key's rows in a micro-batch. Without it `_offset` does if `_key` is part
    of the key, since one partition has all records of a key. Raises `TopologyError` if there is no value, and for
    `_offset` without `_order` if `_key` is not part of the key: offsets of different partitions cannot be compared.
    """
    names = (key,) if isinstance(key, str) else tuple(key)
    present = set(frame.columns)
    deleted = F.coalesce(F.col(DELETED), F.lit(False)) if DELETED in present else F.lit(False)
    at = F.col(TIMESTAMP) if TIMESTAMP in present else F.lit(None).cast("timestamp")
    ordering = order_column(frame)
    if ordering == OFFSET and KEY not in names:
        raise TopologyError(
            f"A table of the key {', '.join(names)}: {OFFSET} orders rows of one {KEY} only, since others are in other "
            f"partitions. Name {KEY} in the key, or add a column {ORDER} that says which of a key's rows is the newest "
            f"({OFFSET} itself, where all rows of a key are in one partition)."
        )
    order = F.lit(0) if ordering is None else F.col(ordering)
    values = [f"`{name}`" for name in frame.columns if name not in names and not name.startswith("_")]
    if not values:
        raise TopologyError(f"A table of {', '.join(frame.columns)} has no value: add a column beside its key.")
    rows = frame.where(" AND ".join(f"`{name}` IS NOT NULL" for name in names)).select(
        *names, *values, deleted.alias(DELETED), at.alias(TIMESTAMP), order.cast("bigint").alias(ordering or ORDER)
    )
    return KTable(rows, names)


def changes(table: KTable, side: int) -> DataFrame:
    """Return the input of a join: `key`, `side`, `value` (null: deleted), `at`, `order`."""
    value = F.when(~F.col(DELETED), packed(table.columns)).alias("value")
    at, order = F.unix_micros(TIMESTAMP).alias("at"), F.col(order_column(table.frame) or ORDER).alias("order")
    return table.frame.select(packed(table.key).alias("key"), F.lit(side).alias("side"), value, at, order)


def _true(condition: str | Column) -> Column:
    column = F.expr(condition) if isinstance(condition, str) else condition
    return F.coalesce(column, F.lit(False))
