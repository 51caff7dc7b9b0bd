"""A store as tables of SQL. Pure.

| store           | tables                | columns                                              |
|-----------------|-----------------------|------------------------------------------------------|
| key-value       | its name              | key, value, timestamp, headers                       |
| window, session | its name              | key, start, end, value, timestamp, headers           |
| versioned       | its name              | key, value, timestamp: the valid version             |
|                 | its name + `_versions`| key, value, timestamp, valid_to: every version       |

`timestamp` is there in stores that keep one, `headers` in stores that keep them.

| serde                | rows that a reader gives  | type in SQL                            |
|----------------------|---------------------------|----------------------------------------|
| string               | utf8                      | VARCHAR                                |
| json, msgpack        | utf8, JSON text           | JSON                                   |
| rows of operators     | utf8, JSON text           | JSON                                   |
| bytes, one's own     | binary                    | BLOB                                   |
| int32, int64, float64| int32, int64, double      | INTEGER, BIGINT, DOUBLE                |
| uuid                 | utf8                      | UUID                                   |
| datetime             | timestamp[ms, UTC]        | TIMESTAMPTZ                            |
| model, avro, protobuf, json_schema | utf8, JSON text | STRUCT, MAP or list (`struct_types`); a single value: JSON |
| start, end, timestamp, valid_to | int64, milliseconds | TIMESTAMPTZ                       |

Rows are the server's Arrow rows (`rows.arrow_rows`), unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import pyarrow as pa

from stateline.model.store_definition import StoreDefinition
from stateline.serde.binding import PartsSerde
from stateline.serde.model import ModelSerde
from stateline.serde.packed import MsgpackSerde
from stateline.serde.plain import FloatSerde, IntegerSerde, JsonSerde, Serde, StringSerde
from stateline.serde.scalars import DatetimeSerde, UuidSerde
from stateline.serde.shown_as_json import SHOWN_AS_JSON
from stateline.sql.struct_types import JSON, has_parts, type_of

TableKind = Literal["key_value", "window", "session", "versioned", "versions"]

VERSIONS = "_versions"
_SQL_TYPE = b"stateline.sql"
_TIME = (pa.int64(), "TIMESTAMPTZ")
_PLAIN = {
    StringSerde: (pa.utf8(), "VARCHAR"),
    JsonSerde: (pa.utf8(), "JSON"),
    MsgpackSerde: (pa.utf8(), "JSON"),
    UuidSerde: (pa.utf8(), "UUID"),
    DatetimeSerde: (pa.timestamp("ms", "UTC"), "TIMESTAMPTZ"),
    FloatSerde: (pa.float64(), "DOUBLE"),
}
_HEADERS = (
    pa.list_(pa.field("item", pa.struct([pa.field("name", pa.utf8(), False), pa.field("value", pa.binary())]), False)),
    'STRUCT("name" VARCHAR, "value" BLOB)[]',
)


@dataclass(frozen=True)
class SqlTable:
    """A table of SQL. `schema` is that of the rows that a reader gives; the SQL types are in its fields' metadata."""

    name: str
    schema: pa.Schema
    kind: TableKind

    @cached_property
    def columns(self) -> Mapping[str, str]:
        """The SQL type of each column."""
        return {field.name: field.metadata[_SQL_TYPE].decode() for field in self.schema}

    @property
    def has_windows(self) -> bool:
        return self.kind in ("window", "session")


def tables_of(definitions: Iterable[StoreDefinition]) -> list[SqlTable]:
    """Return the tables of these stores, in order of their names.

    A store has the table of its name. So `orders_versions` is the store of that name where there is one. SQL knows no
    case: of stores whose names differ in case alone, neither has a table.
    """
    stores = [definition for definition in definitions if definition.kind != "custom"]
    count = Counter(definition.name.lower() for definition in stores)
    made = [table for definition in stores for table in _tables(definition)]
    chosen = [table for table in made if count[table.name.lower()] == (0 if table.kind == "versions" else 1)]
    return sorted(chosen, key=lambda table: table.name)


def _tables(definition: StoreDefinition) -> Iterator[SqlTable]:
    columns = {"key": _types(definition.key)}
    if definition.plain_kind in ("window", "session"):
        columns |= {"start": _TIME, "end": _TIME}
    columns["value"] = _types(definition.value)
    if definition.timestamped or definition.kind == "versioned":
        columns["timestamp"] = _TIME
    if definition.headers:
        columns["headers"] = _HEADERS
    match definition.plain_kind:
        case "window" | "session" as kind:
            yield SqlTable(definition.name, _schema(columns), "window" if kind == "window" else "session")
        case "versioned":
            yield SqlTable(definition.name, _schema(columns), "versioned")
            yield SqlTable(definition.name + VERSIONS, _schema({**columns, "valid_to": _TIME}), "versions")
        case _:
            yield SqlTable(definition.name, _schema(columns), "key_value")


def _types(serde: Serde) -> tuple[pa.DataType, str]:
    kind = type(serde)  # not isinstance: a subclass gives the bytes another meaning
    if kind is IntegerSerde:
        return (pa.int32(), "INTEGER") if serde.name == "int32" else (pa.int64(), "BIGINT")
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind is ModelSerde or kind in SHOWN_AS_JSON or isinstance(serde, PartsSerde):
        made = type_of(serde)
        return pa.utf8(), made if has_parts(made) else JSON
    return pa.binary(), "BLOB"


def _schema(columns: Mapping[str, tuple[pa.DataType, str]]) -> pa.Schema:
    nullable = ("timestamp", "headers", "valid_to")
    fields = [
        pa.field(name, kind, name in nullable, {_SQL_TYPE: sql.encode()}) for name, (kind, sql) in columns.items()
    ]
    return pa.schema(fields)
