"""JSON text as columns of Spark's types, in two ways.

A snapshot's reader uses `parsed` if `.schema(…)` gives `value` another type than STRING. It is strict, by column, in
Python (pyarrow). Absent members are null, extra ones are ignored, and a value of another type fails the read, so that
no row changes silently. `json_value` is Spark's own `from_json`: lenient, in the JVM, and with maps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stateline_store.errors import DamagedDataError, InvalidArgumentError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

_MEMBER = "v"


def json_value(ddl: str, column: str = "value") -> Column:
    """Return this column's JSON as Spark's `from_json` reads it: `frame.select("key", json_value("delay
    INT").alias("v"))`. `ddl` is a struct's fields or any other type in Spark's notation. Text of another type becomes
    null."""
    from pyspark.sql.functions import col, from_json

    return from_json(col(column), ddl)


def check_parsable(name: str, kind: DataType) -> None:
    """Raise `InvalidArgumentError` for a type into which `parsed` does not read JSON."""
    from pyspark.sql.types import ArrayType, BinaryType, DateType, MapType, StructType, UserDefinedType, VariantType

    if isinstance(kind, StructType):
        for each in kind.fields:
            if not each.nullable:
                raise InvalidArgumentError(
                    f"{name}.{each.name} is NOT NULL: JSON may lack any member, so leave that out."
                )
            check_parsable(f"{name}.{each.name}", each.dataType)
    elif isinstance(kind, ArrayType):
        check_parsable(f"{name}[]", kind.elementType)
    elif isinstance(kind, MapType | BinaryType | DateType | UserDefinedType | VariantType):
        raise InvalidArgumentError(
            f"{name}: JSON is not read as {kind.simpleString()} here. Read {name} as STRING, and use "
            "stateline.spark.json_value, which is Spark's from_json."
        )


def parsed(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return JSON texts as an array of this type, null for null. Raises `DamagedDataError` for text of another type."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.json

    if not len(texts):
        return pa.nulls(0, kind)
    texts = pc.fill_null(texts, "null")  # of changes: deletions
    lines = pc.binary_join_element_wise(f'{{"{_MEMBER}":', texts, "}\n", "")
    _, ends, data = lines.buffers()  # the lines follow each other
    text = data.slice(0, memoryview(ends).cast("i")[len(lines)])
    options = pa.json.ParseOptions(
        explicit_schema=pa.schema([(_MEMBER, kind)]),
        newlines_in_values=True,  # text is kept as it was written
        unexpected_field_behavior="ignore",
    )
    whole = pa.json.ReadOptions(use_threads=False, block_size=text.size + 1)
    try:
        found = pa.json.read_json(pa.BufferReader(text), read_options=whole, parse_options=options).column(_MEMBER)
    except pa.ArrowInvalid as error:
        raise DamagedDataError(
            f"A value is not of the type that the schema gives ({str(error)[:200]}), type {kind}. Correct the schema; "
            "or read the column as STRING, and use stateline.spark.json_value, which gives null for what does not fit."
        ) from error
    if len(found) != len(texts):
        raise DamagedDataError(f"{len(texts)} values are {len(found)} JSON documents: read the column as STRING.")
    return found.combine_chunks() if found.num_chunks != 1 else found.chunk(0)
