"""Tables in pipelines: the newest value of each key, as a stream of changes with tombstones.

`app.pipeline(…, tables=[topic])` gives a `KTable` to the pipeline's function, and `table_of` makes one from a streaming
DataFrame. Its rows are **changes**: a key's new value, or its deletion. `filter`, `map_values` and `to_stream` keep no
state. `join` and `group_by` run on `transformWithState` and keep state for every key. They give at most one change of a
key per micro-batch, its last, and need the output mode ``update``. Each result is a `KTable` again.

Names of columns follow Spark. A topic's key is the column `_key`. No other column whose name begins with "_" is part of
the value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.types import (
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
)

from stateline import serdes
from stateline.model.declared_at import says_where
from stateline.model.function_checks import check_function
from stateline.spark.columns import DELETED, KEY, OFFSET, ORDER, TIMESTAMP
from stateline.spark.operators.declared import STATE, declare
from stateline.spark.operators.groups import GroupTotals, PreviousGroups, Sum, rounded
from stateline.spark.operators.joins import LEFT, RIGHT, JoinTables
from stateline.spark.operators.packing import order_column, packed, spark_schema, struct_type, unpacked_frame
from stateline.spark.operators.processors import Aggregator, Value, by_bucket
from stateline_store import InvalidArgumentError, TopologyError

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)


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

    def join(self, other: KTable, how: Literal["inner", "left", "outer"] = "inner") -> KTable:
        """Return one row per key of both tables (``left``: of this one, ``outer``: of either), with the columns of
        both. Columns of a side without the key are null. The key's columns have this table's names. A key that loses
        its row gets a tombstone. `_timestamp` is the later of the two rows'. Raises `TopologyError` for keys of
        different types, a column that both have, or another `how`."""
        if not isinstance(other, KTable):
            raise TopologyError(
                f"A table is joined with a table, and this is a {type(other).__name__}: make one of it with "
                "table_of(…), or join it as a stream with join_stream_table(…)."
            )
        if how not in ("inner", "left", "outer"):
            raise TopologyError(f"Tables cannot be joined as {how!r}: use 'inner', 'left' or 'outer'.")
        self._check_join(other)
        sides = {"key": self.key_schema, "left": self.value_schema, "right": other.value_schema}
        declare("join", state=STATE, how=how, **sides)
        both = changes(self, LEFT, self.key).unionAll(changes(other, RIGHT, self.key))
        joined = by_bucket(both, "key", JoinTables(how))
        return KTable(unpacked_frame(joined, sides, F.col("deleted")), self.key)

    def group_by(self, *columns: str | Column) -> GroupedKTable:
        """Group the rows by these columns. A row with a null in one of them belongs to no group. When a row changes,
        its old value leaves its group."""
        if not columns:
            raise TopologyError("A table is grouped by one column at least: name it.")
        names = tuple(self.frame.select(*columns).columns)
        return GroupedKTable(self, tuple(c if isinstance(c, Column) else F.col(f"`{c}`") for c in columns), names)

    @property
    def _meta(self) -> tuple[str, ...]:
        return (DELETED, TIMESTAMP, order_column(self.frame) or ORDER)

    def _kept(self, keep: Column) -> KTable:
        return KTable(self.frame.withColumn(DELETED, F.col(DELETED) | ~keep), self.key)

    def _check_join(self, other: KTable) -> None:
        types = [[field.dataType.simpleString() for field in table.key_schema] for table in (self, other)]
        if types[0] != types[1]:
            shown = " and ".join(", ".join(side) for side in types)
            raise TopologyError(
                f"Tables are joined by their keys, and these are {shown}. Group one of the tables again."
            )
        taken = {name.lower() for name in (*self.columns, *self.key)}  # as Spark compares names
        if name := next((name for name in other.columns if name.lower() in taken), None):
            raise TopologyError(f"Both tables have a column {name!r}: rename one with map_values.")


@says_where
@dataclass(frozen=True)
class GroupedKTable:
    """A table's rows in groups. Each aggregation returns a table of the groups that have rows. Each micro-batch gives
    at most one change of a group. `_timestamp` is the latest of all rows that the group had."""

    table: KTable
    by: tuple[Column, ...]
    names: tuple[str, ...]

    def count(self, name: str = "count") -> KTable:
        """Return the number of rows of each group, as BIGINT."""
        schema = StructType([StructField(name, LongType())])
        return self._totals([F.lit(1).alias(name)], {name: 0}, Sum((name,)), Sum((name,), -1), schema)

    def sum(self, *columns: str) -> KTable:
        """Return the sums of these columns, under their names, as BIGINT or DOUBLE. Null, NaN and infinities count as
        0. Sums are exact. Sums of doubles are rounded once. Raises `TopologyError` for a column that is no integer,
        float or double. A sum too large for its type at the end of a micro-batch fails the pipeline."""
        types = [(name, _sum_type(spark_schema(self.table.frame, [name])[0])) for name in columns]
        finite = [_finite(F.col(f"`{name}`").cast(kind), kind).alias(name) for name, kind in types]
        schema = StructType([StructField(name, kind) for name, kind in types])
        initial: Value = {name: 0 if isinstance(kind, LongType) else 0.0 for name, kind in types}
        return self._totals(finite, initial, Sum(columns), Sum(columns, -1), schema, rounded)

    def aggregate(self, initial: Value, add: Aggregator, subtract: Aggregator, schema: str) -> KTable:
        """Return your own aggregate: `add(aggregate, value)` and `subtract(aggregate, value)` return the new aggregate.
        Both are dicts of JSON values (times are ISO texts). Do not change them in place. `schema` is the aggregate's,
        in Spark's DDL. If a function returns None, the group is deleted, and the next value is added to `initial`, as
        in Kafka Streams. The functions run in Spark's Python workers, once or more per row."""
        _check_aggregators("aggregate", add, subtract)
        check_initial("aggregate", initial)
        return self._totals(self.table.columns, initial, add, subtract, struct_type(schema))

    def reduce(self, add: Aggregator, subtract: Aggregator) -> KTable:
        """Aggregate to the value's own columns. The first value is the first aggregate. See `aggregate`."""
        _check_aggregators("reduce", add, subtract)
        return self._totals(self.table.columns, None, add, subtract, self.table.value_schema)

    def _totals(
        self,
        values: Sequence[str | Column],
        initial: Value | None,
        add: Aggregator,
        subtract: Aggregator,
        schema: StructType,
        result: Callable[[str, Value], Value] | None = None,
    ) -> KTable:
        members = F.lit(True)
        for column in self.by:
            members = members & column.isNotNull()
        group = F.when(
            ~F.col(DELETED) & members, packed([c.alias(n) for c, n in zip(self.by, self.names, strict=True)])
        )
        rows = self.table.frame.select(
            packed(self.table.key).alias("key"),
            group.alias("group"),
            packed(values).alias("value"),
            *_at_and_order(self.table),
        )
        key = spark_schema(self.table.frame.select(*self.by), self.names)
        added = self.table.frame.select([F.col(f"`{c}`") if isinstance(c, str) else c for c in values]).schema
        functions = {"initial": initial, "add": add, "subtract": subtract}
        declare("group_by", state=STATE, of=self.table.key_schema, by=key, value=added, **functions, schema=schema)
        moves = by_bucket(rows, "key", PreviousGroups())
        totals = by_bucket(moves, "group", GroupTotals(initial, add, subtract, result))
        return KTable(unpacked_frame(totals, {"group": key, "value": schema}, F.col("value").isNull()), self.names)


def table_of(frame: DataFrame, key: str | Sequence[str]) -> KTable:
    """Return the table whose changes are these streaming rows.

    A row is a key's new value, or a tombstone if `_deleted` is true. Rows with a null in a key column are left out.
    `_timestamp` is optional. `_order` orders a key's rows in a micro-batch. Without it `_offset` does if `_key` is part
    of the key, since one partition has all records of a key. If a key's two newest rows differ, `join` and `group_by`
    fail the pipeline. Raises `TopologyError` if there is no value, and for `_offset` without `_order` if `_key` is not
    part of the key, since offsets of different partitions cannot be compared.
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


def changes(table: KTable, side: int, key: Sequence[str]) -> DataFrame:
    """Return the input of the join processors: `key` (under these names), `side`, `value` (null: deleted), `at`,
    `order`."""
    keys = [F.col(f"`{name}`").alias(alias) for name, alias in zip(table.key, key, strict=True)]
    value = F.when(~F.col(DELETED), packed(table.columns))
    return table.frame.select(
        packed(keys).alias("key"), F.lit(side).alias("side"), value.alias("value"), *_at_and_order(table)
    )


def _at_and_order(table: KTable) -> tuple[Column, Column]:
    return F.unix_micros(TIMESTAMP).alias("at"), F.col(order_column(table.frame) or ORDER).alias("order")


def _check_aggregators(operator: str, add: Aggregator, subtract: Aggregator) -> None:
    for role, function in (("add", add), ("subtract", subtract)):
        check_function(operator, function, "aggregate", "value", role=role)


def check_initial(operator: str, initial: Value) -> None:
    """Raise `TopologyError` for an initial aggregate that has no JSON."""
    try:
        serdes.json.serialize(initial)
    except InvalidArgumentError as error:
        raise TopologyError(f"The initial of {operator} is kept as JSON, as each aggregate: {error}") from error


def _sum_type(field: StructField) -> DataType:
    if isinstance(field.dataType, _INTEGERS):
        return LongType()
    if isinstance(field.dataType, FloatType | DoubleType):
        return DoubleType()
    raise TopologyError(
        f"The column {field.name!r} is {field.dataType.simpleString()} and cannot be summed: cast it to bigint or "
        "double, or use aggregate."
    )


def _finite(number: Column, kind: DataType) -> Column:
    return F.when(F.abs(number) < float("inf"), number) if isinstance(kind, DoubleType) else number


def _true(condition: str | Column) -> Column:
    column = F.expr(condition) if isinstance(condition, str) else condition
    return F.coalesce(column, F.lit(False))
