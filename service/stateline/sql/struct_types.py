"""SQL types of values with a schema: models, Avro, Protobuf, JSON Schema.

The engine reads them from the JSON of answers. So bytes inside are base64 text, and enums are text. A part that SQL
has no type for is JSON: unions, recursive types, names that differ in case alone. A Python integer without bounds is
HUGEINT. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from stateline.serde.avro import AvroSerde
from stateline.serde.json_schema import JsonSchemaSerde
from stateline.serde.model import ModelSerde
from stateline.serde.plain import Serde
from stateline.serde.protobuf import ProtobufSerde

JSON = "JSON"
TIME = pa.timestamp("ms", "UTC")
"""TIMESTAMPTZ, as DuckDB scans it."""
_LATEST_MS = (2**63 - 1) // 1000  # DuckDB has microseconds, and unlimited windows end behind that
_TEXTS = ("VARCHAR", JSON)
_INT64_LEAST, _INT64_MOST = -(2**63), 2**63 - 1
_FORMATS = {"date-time": "TIMESTAMPTZ", "date": "DATE", "uuid": "UUID"}
_AVRO = {"boolean": "BOOLEAN", "int": "INTEGER", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE"}
_AVRO_TEXTS = ("string", "bytes", "fixed", "enum")
_AVRO_LOGICAL = {
    "timestamp-millis": "TIMESTAMPTZ",
    "timestamp-micros": "TIMESTAMPTZ",
    "local-timestamp-millis": "TIMESTAMP",
    "local-timestamp-micros": "TIMESTAMP",
    "date": "DATE",
    "time-millis": "TIME",
    "time-micros": "TIME",
    "uuid": "UUID",
}
_PROTOBUF = {  # FieldDescriptor.cpp_type; JSON has integers of 64 bits as text, and bytes as base64
    1: "INTEGER",
    2: "BIGINT",
    3: "UINTEGER",
    4: "UBIGINT",
    5: "DOUBLE",
    6: "FLOAT",
    7: "BOOLEAN",
    8: "VARCHAR",
    9: "VARCHAR",
}


def type_of(serde: Serde) -> str:
    """Return the SQL type of this serde's JSON."""
    if type(serde) is ModelSerde:
        try:
            schema = TypeAdapter(serde.model).json_schema(mode="serialization", by_alias=True)
        except PydanticUserError:  # a field that has no JSON Schema
            return JSON
        return _of_json_schema(schema, schema.get("$defs", {}), ())
    if type(serde) is JsonSchemaSerde:
        schema = orjson.loads(serde.schema)
        return _of_json_schema(schema, schema.get("$defs", {}) if isinstance(schema, dict) else {}, ())
    if type(serde) is AvroSerde:
        return _of_avro(orjson.loads(serde.schema), {})
    if type(serde) is ProtobufSerde:
        return _of_message(serde.message.DESCRIPTOR, ())
    return JSON


def quoted(name: str) -> str:
    """Return the name as SQL has it in quotes."""
    return '"' + name.replace('"', '""') + '"'


def converted(column: str, kind: str, given: pa.DataType) -> str:
    """Return the expression that gives a column of rows, of this Arrow type, its SQL type `kind`."""
    if kind in _TEXTS or not pa.types.is_string(given):
        return column
    if not has_parts(kind):
        return f"CAST({column} AS {kind})"
    spec = json.dumps(kind).replace("'", "''")
    return f"json_transform({column}, '{spec}')"


def has_parts(kind: str) -> bool:
    """Return whether this SQL type is a struct, a map or a list."""
    return kind.startswith(("STRUCT", "MAP")) or kind.endswith("[]")


def times_of(milliseconds: pa.Array) -> pa.Array:
    """Return these int64 milliseconds as `TIME`. A time behind DuckDB's last one is the last one, and null stays."""
    return pc.min_element_wise(milliseconds, _LATEST_MS, skip_nulls=False).view(TIME)


def _struct(members: Iterable[tuple[str, str]]) -> str:
    pairs = list(members)
    if not pairs or "" in dict(pairs) or len({name.lower() for name, _ in pairs}) < len(pairs):
        return JSON
    return f"STRUCT({', '.join(f'{quoted(name)} {kind}' for name, kind in pairs)})"


def _of_json_schema(schema: Any, named: Mapping[str, Any], inside: tuple[str, ...]) -> str:
    if not isinstance(schema, Mapping):
        return JSON
    if (reference := schema.get("$ref")) is not None:
        name = str(reference).rpartition("/")[2]
        known = name in named and name not in inside
        return _of_json_schema(named[name], named, (*inside, name)) if known else JSON
    if options := schema.get("anyOf") or schema.get("oneOf"):
        given = [option for option in options if option != {"type": "null"}]
        return _of_json_schema(given[0], named, inside) if len(given) == 1 else JSON
    return _of_json_type(schema, named, inside)


def _of_json_type(schema: Mapping[str, Any], named: Mapping[str, Any], inside: tuple[str, ...]) -> str:
    kinds = schema.get("type")
    given = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind != "null"]
    match given[0] if len(given) == 1 else None:
        case "string":
            return _FORMATS.get(schema.get("format", ""), "VARCHAR")
        case "boolean":
            return "BOOLEAN"
        case "number":
            return "DOUBLE"
        case "integer":
            least, most = schema.get("minimum", -(2**127)), schema.get("maximum", 2**127)
            return "BIGINT" if least >= _INT64_LEAST and most <= _INT64_MOST else "HUGEINT"
        case "array" if "prefixItems" not in schema:
            return f"{_of_json_schema(schema.get('items'), named, inside)}[]"
        case "object" if schema.get("properties"):
            return _struct((n, _of_json_schema(each, named, inside)) for n, each in schema["properties"].items())
        case "object" if isinstance(schema.get("additionalProperties"), Mapping):
            return f"MAP(VARCHAR, {_of_json_schema(schema['additionalProperties'], named, inside)})"
    return JSON


def _of_avro(schema: Any, named: dict[str, Any]) -> str:
    """`named` has the types defined before. A type inside itself is None there."""
    if isinstance(schema, str):
        if schema in named:
            return JSON if named[schema] is None else _of_avro(named[schema], named)
        return "VARCHAR" if schema in _AVRO_TEXTS else _AVRO.get(schema, JSON)
    if isinstance(schema, list):
        given = [branch for branch in schema if branch != "null"]
        return _of_avro(given[0], named) if len(given) == 1 else JSON
    if schema.get("logicalType") == "decimal":
        precision, scale = schema["precision"], schema.get("scale", 0)
        return f"DECIMAL({precision}, {scale})" if precision <= 38 else "VARCHAR"
    if (logical := _AVRO_LOGICAL.get(schema.get("logicalType", ""))) is not None:
        return logical
    kind = schema["type"]
    if kind in ("enum", "fixed"):
        named[schema["name"]] = "string"
        return "VARCHAR"
    if kind == "record":
        named[schema["name"]] = None
        made = _struct((each["name"], _of_avro(each["type"], named)) for each in schema["fields"])
        named[schema["name"]] = schema
        return made
    if kind == "array":
        return f"{_of_avro(schema['items'], named)}[]"
    if kind == "map":
        return f"MAP(VARCHAR, {_of_avro(schema['values'], named)})"
    return _of_avro(kind, named)


def _of_message(message: Any, inside: tuple[str, ...]) -> str:
    if message.full_name == "google.protobuf.Timestamp":
        return "TIMESTAMPTZ"
    if message.full_name in inside or message.full_name.startswith("google.protobuf."):
        return JSON
    inside = (*inside, message.full_name)
    return _struct((each.json_name, _of_field(each, inside)) for each in message.fields)


def _of_field(field: Any, inside: tuple[str, ...]) -> str:
    if field.message_type is None:
        kind = _PROTOBUF[field.cpp_type]
    elif field.message_type.GetOptions().map_entry:
        return f"MAP(VARCHAR, {_of_field(field.message_type.fields_by_name['value'], inside)})"
    else:
        kind = _of_message(field.message_type, inside)
    return f"{kind}[]" if field.is_repeated else kind
