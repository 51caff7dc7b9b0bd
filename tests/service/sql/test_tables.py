"""A store is a table, and its types come from the serdes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from service.serde.shop import order_message
from service.sql.rows import key_value
from stateline import serdes
from stateline.model.store_definition import StoreDefinition
from stateline.rows.arrow_rows import arrow_schema
from stateline.serde.plain import Serde
from stateline.sql.struct_types import type_of
from stateline.sql.tables import tables_of


@dataclass
class Line:
    article: str
    count: int


class Order(BaseModel):
    id: UUID
    at: datetime
    day: date
    lines: list[Line]
    prices: dict[str, float]
    note: str | None = None
    amount: Annotated[int, Field(ge=0, le=1000)] = 0
    total: Decimal = Decimal(0)
    anything: Any = None
    either: int | str = 0
    parent: Order | None = None


AVRO = """{"type": "record", "name": "Order", "fields": [
  {"name": "id", "type": "long"}, {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
  {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}, {"name": "tags", "type": {"type": "array", "items": "string"}},
  {"name": "next", "type": ["null", "Order"]}, {"name": "counts", "type": {"type": "map", "values": "int"}}]}"""  # fmt: skip  # noqa: E501


def test_a_model_is_a_struct() -> None:
    assert type_of(serdes.model(Order)) == (
        'STRUCT("id" UUID, "at" TIMESTAMPTZ, "day" DATE, "lines" STRUCT("article" VARCHAR, "count" HUGEINT)[], '
        '"prices" MAP(VARCHAR, DOUBLE), "note" VARCHAR, "amount" BIGINT, "total" VARCHAR, "anything" JSON, '
        '"either" JSON, "parent" JSON)'
    )


def test_an_avro_record_is_a_struct() -> None:
    assert type_of(serdes.avro(AVRO)) == (
        'STRUCT("id" BIGINT, "price" DECIMAL(9, 2), "at" TIMESTAMPTZ, "tags" VARCHAR[], "next" JSON, '
        '"counts" MAP(VARCHAR, INTEGER))'
    )


def test_a_protobuf_message_is_a_struct_with_the_names_of_its_json() -> None:
    kind = type_of(serdes.protobuf(order_message()))
    assert kind == 'STRUCT("amount" INTEGER, "orderNumber" BIGINT, "scan" VARCHAR)'


def test_a_json_schema_is_a_struct() -> None:
    schema = {"type": "object", "properties": {"n": {"type": ["integer", "null"]}, "at": {"$ref": "#/$defs/at"}}}
    schema["$defs"] = {"at": {"type": "string", "format": "date-time"}}
    assert type_of(serdes.json_schema(schema)) == 'STRUCT("n" HUGEINT, "at" TIMESTAMPTZ)'


def test_names_that_differ_in_case_alone_are_json() -> None:
    made = dataclasses.make_dataclass("Cased", [("a", int), ("A", int)])
    assert type_of(serdes.model(made)) == "JSON"


@pytest.mark.parametrize(
    "serde",
    [
        serdes.string, serdes.json, serdes.bytes, serdes.int32, serdes.int64, serdes.float64, serdes.uuid,
        serdes.datetime, serdes.msgpack, serdes.model(Order), serdes.avro(AVRO),
    ],
    ids=lambda serde: serde.name,
)  # fmt: skip
@pytest.mark.parametrize("kind", ["timestamped_key_value", "key_value", "timestamped_window", "session"])
def test_a_table_has_the_columns_of_the_servers_arrow_rows(serde: Serde, kind: Any) -> None:
    definition = StoreDefinition("store", kind, serde, serde, retention_ms=1, window_size_ms=1)
    (table,) = tables_of([definition])
    rows = arrow_schema(definition)
    assert [(each.name, each.type) for each in table.schema] == [(each.name, each.type) for each in rows]


def test_headers_are_a_list() -> None:
    definition = StoreDefinition("store", "timestamped_key_value", serdes.string, serdes.json, headers=True)
    (table,) = tables_of([definition])
    assert table.columns["headers"] == 'STRUCT("name" VARCHAR, "value" BLOB)[]'
    assert table.schema.field("headers").type == arrow_schema(definition).field("headers").type


def test_a_versioned_store_has_two_tables() -> None:
    valid, versions = tables_of([StoreDefinition("v", "versioned", serdes.string, serdes.json, retention_ms=1)])
    assert (valid.name, list(valid.columns)) == ("v", ["key", "value", "timestamp"])
    assert (versions.name, list(versions.columns)) == ("v_versions", ["key", "value", "timestamp", "valid_to"])


def test_the_store_of_a_name_comes_before_the_versions_of_another() -> None:
    versioned = StoreDefinition("v", "versioned", serdes.string, serdes.json, retention_ms=1)
    tables = tables_of([versioned, key_value("v_versions", serdes.string)])
    assert [(table.name, table.kind) for table in tables] == [("v", "versioned"), ("v_versions", "key_value")]


def test_stores_whose_names_differ_in_case_alone_have_no_table() -> None:
    assert tables_of([key_value("Orders", serdes.string), key_value("orders", serdes.string)]) == []
