"""`RowShape`: the columns of a store as Spark has them.

| column of the store                        | by default           | `.schema(…)` may also say                      |
|--------------------------------------------|----------------------|------------------------------------------------|
| `key`, `value`: string, uuid               | STRING               |                                                |
| json, model, avro, protobuf, … (as JSON)   | STRING               | `value`: any type (`json_values`)              |
| bytes, and a type of one's own             | BINARY               |                                                |
| int32, int64, float64                      | INT, BIGINT, DOUBLE  |                                                |
| datetime                                   | TIMESTAMP            |                                                |
| `headers`                                  | ARRAY of STRUCT      |                                                |
| `timestamp`, `start`, `end`, `valid_to`    | TIMESTAMP            | BIGINT: milliseconds since the epoch           |

All are nullable by default. A schema names any of them, in any order, and no others: what it leaves out is not sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from stateline.spark.reading.json_values import check_parsable, parsed
from stateline_store.errors import DamagedDataError, InvalidArgumentError

if TYPE_CHECKING:
    import pyarrow as pa

TIMES = ("timestamp", "start", "end", "valid_to")
_TYPES: Mapping[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "double": DoubleType(),
    "timestamp": TimestampType(),
    "headers": ArrayType(
        StructType([StructField("name", StringType(), False), StructField("value", BinaryType())]), False
    ),
}


def default_schema(store: Mapping[str, Any], columns: Sequence[str] | None = None) -> StructType:
    """Return the schema of a store's rows: all columns, or those named. `store` is the answer of `GET
    /v1/stores/{store}`. Raises `InvalidArgumentError` for a column that the store lacks."""
    known = {column["name"]: _spark_type(column) for column in store["columns"]}
    names = list(known) if columns is None else columns
    for name in names:
        if name not in known:
            raise InvalidArgumentError(
                f"columns={name[:60]!r} is no column of {store['store']!r}: it has {', '.join(known)}."
            )
    return StructType([StructField(name, known[name]) for name in names])


def check_columns(columns: Sequence[str] | None, schema: StructType) -> None:
    """Raise `InvalidArgumentError` if the option `columns` is given beside another schema."""
    if columns not in (None, tuple(schema.fieldNames())):
        raise InvalidArgumentError(
            f"columns={','.join(columns or ())} and a schema of {', '.join(schema.fieldNames())} are both given: leave "
            "out columns."
        )


class RowShape:
    """Converts batches of a store's rows into batches of a DataFrame. Picklable, thread-safe."""

    def __init__(self, schema: StructType, store: Mapping[str, Any]) -> None:
        """Raise `InvalidArgumentError` for a column that the store lacks, or has in another type."""
        self.schema = schema
        self.names = tuple(field.name for field in schema.fields)
        if len(set(self.names)) < len(self.names) or not self.names:
            raise InvalidArgumentError("The schema names a column twice, or none: name each once.")
        self._parsed = frozenset(field.name for field in schema.fields if _is_parsed(field, store))

    def recast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the types, order and nullability of the schema. Raises `DamagedDataError` for values
        that do not fit."""
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema  # as Spark's own worker, which compares the two

        target = to_arrow_schema(self.schema, timezone="UTC")
        arrays = [self._array(batch.column(field.name), field) for field in target]
        for field, found in zip(target, arrays, strict=True):
            if found.null_count and not field.nullable:
                raise DamagedDataError(f"{field.name} is NOT NULL in the schema, and here is a null: leave that out.")
        return pa.RecordBatch.from_arrays(arrays, schema=target)

    def _array(self, found: pa.Array, field: pa.Field) -> pa.Array:
        import pyarrow as pa

        if field.name in self._parsed:
            return parsed(found, field.type)
        if pa.types.is_timestamp(found.type):
            return found.cast(field.type)
        if field.name not in TIMES or not pa.types.is_timestamp(field.type):
            return found
        try:
            return found.cast(pa.timestamp("ms", "UTC")).cast(field.type)
        except pa.ArrowInvalid as error:
            raise DamagedDataError(
                f"{field.name} has a time that Spark's TIMESTAMP does not hold ({error}): read it as BIGINT, by "
                f'.schema("… {field.name} BIGINT …").'
            ) from error


def _spark_type(column: Mapping[str, Any]) -> DataType:
    return TimestampType() if column["name"] in TIMES else _TYPES[column["type"]]


def _is_parsed(field: StructField, store: Mapping[str, Any]) -> bool:
    """Return whether it is parsed from JSON. Raises `InvalidArgumentError` for a type that it cannot have."""
    column = next((column for column in store["columns"] if column["name"] == field.name), None)
    expected = None if column is None else _spark_type(column)
    if field.dataType == expected or (field.name in TIMES and column is not None and field.dataType == LongType()):
        return False
    is_json = store["value_type"] not in ("string", "uuid")  # or a type that is shown as JSON
    if column is not None and field.name == "value" and column["type"] == "string" and is_json:
        check_parsable("value", field.dataType)
        return True
    there_are = ", ".join(f"{column['name']} {_spark_type(column).simpleString()}" for column in store["columns"])
    raise InvalidArgumentError(
        f"The schema has {field.name[:60]} {field.dataType.simpleString()[:200]}, and the rows of {store['store']!r} "
        f"have {there_are} (times as bigint, too; a value of type json as what is in it)."
    )
