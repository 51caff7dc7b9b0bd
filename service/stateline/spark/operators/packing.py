"""Packs columns into one JSON text and back, so that state does not depend on their types.

Exact for numbers (with NaN and infinities), texts, binary, dates, timestamps to the microsecond, decimals, arrays,
structs, and maps with text keys. Spark refuses other maps with an AnalysisException when the frame is made.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.types import StructField, StructType

from stateline.spark.columns import OFFSET, ORDER
from stateline_store import TopologyError

# In checkpoints: never change.
_FORMATS = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"}
_WRITING = {**_FORMATS, "ignoreNullFields": "false"}  # functions in Python find every member
_READING = {**_FORMATS, "mode": "FAILFAST"}


def packed(columns: Sequence[str | Column]) -> Column:
    """Return one JSON object with a member per column. Equal columns give equal text."""
    named = [F.col(f"`{column}`") if isinstance(column, str) else column for column in columns]
    return F.to_json(F.struct(*named), _WRITING)


def unpacked(column: str, schema: StructType) -> Column:
    """Return the packed struct, null for null. Other text fails the query."""
    return F.from_json(F.col(column), schema, _READING)


def struct_type(ddl: str) -> StructType:
    """Return the columns of a DDL text. Raises `TopologyError` for refused DDL and for a single type."""
    try:
        schema = StructType.fromDDL(ddl)
    except (ParseException, AnalysisException) as error:
        reason = str(error).strip().splitlines()[0]
        raise TopologyError(f"Spark refuses the schema {ddl!r}: {reason}") from error
    if not isinstance(schema, StructType):
        raise TopologyError(f"The schema {ddl!r} is one type: name its fields, as in 'a string, b double'.")
    return schema


def order_column(frame: DataFrame) -> str | None:
    """Return the column that orders a key's rows in a micro-batch."""
    return next((name for name in (ORDER, OFFSET) if name in frame.columns), None)


def spark_schema(frame: DataFrame, names: Sequence[str]) -> StructType:
    """Return the types of these columns, all nullable."""
    fields = frame.select(*[f"`{name}`" for name in names]).schema
    return StructType([StructField(field.name, field.dataType) for field in fields])
