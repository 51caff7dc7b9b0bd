"""Schemas, messages and classes of an order, and a registry for each test."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pydantic import BaseModel

from stateline.serde.binding import Role, bound
from stateline.serde.plain import Serde
from stateline.serde.schema_registry import SchemaRegistry

_FIELDS: list[dict[str, Any]] = [
    {"name": "amount", "type": "int"},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "scan", "type": ["null", "bytes"], "default": None},
]
ORDER: dict[str, Any] = {"type": "record", "name": "Order", "namespace": "shop", "fields": _FIELDS}
WITH_NOTE: dict[str, Any] = {**ORDER, "fields": [*_FIELDS, {"name": "note", "type": "string", "default": "none"}]}
WITH_CITY: dict[str, Any] = {**ORDER, "fields": [*_FIELDS, {"name": "city", "type": "string"}]}
ORDER_JSON: dict[str, Any] = {
    "title": "Order",
    "type": "object",
    "properties": {"amount": {"type": "integer"}},
    "required": ["amount"],
}
_numbers = count()


class Order(BaseModel):
    amount: int
    note: str = "none"


@dataclass
class Line:
    sku: str
    pieces: int


def registry() -> SchemaRegistry:
    """An empty one in memory."""
    return SchemaRegistry({"url": f"mock://shop-{next(_numbers)}"})


def of_topic(serde: Serde, at: SchemaRegistry, topic: str = "orders", role: Role = "value") -> Serde:
    """The serde as a declared topic has it."""
    return bound(serde, topic, role, at)


def order_message(*, with_note: bool = False) -> type:
    """The class that protoc makes of a message Order."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    fields = [("amount", 1, "TYPE_INT32"), ("order_number", 2, "TYPE_INT64"), ("scan", 3, "TYPE_BYTES")]
    for name, number, kind in [*fields, *([("note", 4, "TYPE_STRING")] if with_note else [])]:
        message.field.add(name=name, number=number, type=kind, label="LABEL_OPTIONAL")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found: type = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    return found
