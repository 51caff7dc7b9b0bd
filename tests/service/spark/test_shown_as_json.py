"""Columns of a store with times, and with types that are shown as their JSON, as Spark has them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from stateline.spark.reading.row_types import RowShape, default_schema
from stateline_store import InvalidArgumentError

AT = datetime(2026, 5, 1, tzinfo=UTC)
AMOUNT = StructType([StructField("value", StructType([StructField("amount", LongType())]))])


def store(kind: str, column: str) -> dict[str, Any]:
    return {"store": "s", "value_type": kind, "columns": [{"name": "value", "type": column, "nullable": False}]}


def test_a_datetime_is_a_timestamp() -> None:
    seen = store("datetime", "timestamp")
    schema = default_schema(seen)
    assert schema.fields[0].dataType == TimestampType()
    batch = pa.RecordBatch.from_arrays([pa.array([AT], pa.timestamp("ms", "UTC"))], names=["value"])
    assert RowShape(schema, seen).recast(batch).to_pylist() == [{"value": AT}]


@pytest.mark.parametrize("kind", ["avro(shop.Total)", "protobuf(shop.Total)", "model(Total)", "msgpack", "json"])
def test_a_value_that_is_shown_as_json_is_text_and_parsed_where_a_schema_says_what_is_in_it(kind: str) -> None:
    totals = store(kind, "string")
    assert default_schema(totals).fields[0].dataType == StringType()
    batch = pa.RecordBatch.from_arrays([pa.array(['{"amount":13}'])], names=["value"])
    assert RowShape(AMOUNT, totals).recast(batch).to_pylist() == [{"value": {"amount": 13}}]


@pytest.mark.parametrize(("kind", "column"), [("string", "string"), ("uuid", "string"), ("avro(own)", "binary")])
def test_other_values_are_not_parsed(kind: str, column: str) -> None:
    with pytest.raises(InvalidArgumentError, match="The schema has value"):
        RowShape(AMOUNT, store(kind, column))
