"""Avro, by confluent-kafka's `AvroSerializer` and `AvroDeserializer`, which use fastavro.

fastavro's values are dicts for records, `datetime` in UTC for timestamps, `Decimal` for decimals. The declared schema
is the reader's. The writer's comes from the registry by its id. Fields that only one schema has are dropped or get
their default (Avro's schema resolution; `stateline.serde.avro_defaults`). In JSON, bytes are base64, decimals text, and
times ISO 8601 or Avro's number."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any

import orjson

from stateline.serde.avro_defaults import Defaults
from stateline.serde.iso_times import iso_time
from stateline.serde.plain import shown
from stateline.serde.registered import RegisteredSerde
from stateline.serde.schema_registry import import_extra
from stateline_store import InvalidArgumentError

_CONFLUENT = "confluent_kafka.schema_registry.avro"
_COMPLEX = ("record", "error", "enum", "fixed", "array", "map")
_LOGICAL: Mapping[str, Callable[[str], Any]] = {
    "decimal": Decimal,
    "timestamp-millis": iso_time,
    "timestamp-micros": iso_time,
    "local-timestamp-millis": datetime.fromisoformat,
    "local-timestamp-micros": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time-millis": time.fromisoformat,
    "time-micros": time.fromisoformat,
}


@dataclass(frozen=True)
class AvroSerde(RegisteredSerde):
    """`schema` is the text of an Avro schema. Raises `InvalidArgumentError` for one that Avro does not know,
    `ConfigurationError` where the packages of the extra are missing."""

    schema: str

    _defaults: Defaults = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        import_extra(_CONFLUENT, "avro")
        import_extra("fastavro", "avro")
        try:
            object.__setattr__(self, "_defaults", Defaults(self.schema))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"schema={shown(self.schema)} has a wrong default: {error}.") from error
        except Exception as error:  # fastavro raises whatever it stumbles over
            raise InvalidArgumentError(
                f"schema={shown(self.schema)} is no Avro schema ({type(error).__name__}: {error}): give its JSON, as "
                '\'{"type": "record", "name": "Order", "fields": […]}\' or \'"long"\'.'
            ) from error

    @property
    def name(self) -> str:
        return f"avro({type_of(orjson.loads(self.schema))})"

    def parse_text(self, text: str) -> bytes:
        return self.serialize(text) if self.name == "avro(string)" else super().parse_text(text)

    def _writer(self, client: Any) -> Any:
        kind, defaults = import_extra(_CONFLUENT, "avro").AvroSerializer, self._defaults
        complete = (lambda value, context: defaults.completed(value)) if defaults else None
        return kind(client, self.schema, to_dict=complete, conf=self._settings(kind))

    def _reader(self, client: Any) -> Any:
        kind, defaults = import_extra(_CONFLUENT, "avro").AvroDeserializer, self._defaults
        settings = self._reader_settings(kind)
        if not defaults:
            return kind(client, self.schema, conf=settings)
        return kind(client, defaults.marked_schema, lambda value, context: defaults.filled(value), conf=settings)

    def _plain(self, value: Any) -> Any:
        return value

    def _of_plain(self, value: Any) -> Any:
        return of_json(orjson.loads(self.schema), value)


def schema_text(schema: object) -> str:
    """The text of a schema that is given as text, or as what its JSON is in Python."""
    return schema if isinstance(schema, str) else orjson.dumps(schema).decode()


def type_of(schema: Any) -> str:
    """Return the schema's type by name. Schema evolution does not change it."""
    if isinstance(schema, list):
        return "union"
    if not isinstance(schema, Mapping):
        return str(schema)
    kind = schema["type"]
    if kind in ("record", "error", "enum", "fixed"):
        name, space = str(schema["name"]), schema.get("namespace")
        return f"{space}.{name}" if space and "." not in name else name
    if kind in ("array", "map"):
        return f"{kind} of {type_of(schema['items' if kind == 'array' else 'values'])}"
    return type_of(kind)


def of_json(schema: Any, value: Any, named: dict[str, Any] | None = None) -> Any:
    """Return the value of this schema that JSON means. `named` are the types named before. Raises
    `InvalidArgumentError` for an unknown field, and for text that is not of its field's type. Other values that do not
    fit are returned unchanged, for the writer to refuse."""
    named = {} if named is None else named
    if isinstance(schema, str):
        return of_json(named[schema], value, named) if schema in named else _of_primitive(schema, value)
    if isinstance(schema, list):
        return _of_union(schema, value, named)
    kind = schema["type"]
    if kind in ("record", "enum", "fixed"):
        named[type_of(schema)] = named[str(schema["name"])] = schema
    if kind == "record" and isinstance(value, Mapping):
        return _of_record(schema, value, named)
    if kind == "array" and isinstance(value, list):
        return [of_json(schema["items"], each, named) for each in value]
    if kind == "map" and isinstance(value, Mapping):
        return {name: of_json(schema["values"], each, named) for name, each in value.items()}
    read = _LOGICAL.get(schema.get("logicalType", ""))
    if read is not None and isinstance(value, str):
        return _read(read, value, schema["logicalType"])
    return of_json(kind, value, named) if kind not in _COMPLEX else _of_primitive(kind, value)


def _of_record(schema: Mapping[str, Any], value: Mapping[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    fields = {each["name"]: each["type"] for each in schema["fields"]}
    if unknown := sorted(value.keys() - fields.keys()):
        raise InvalidArgumentError(f"{shown(unknown[0])} is no field of {type_of(schema)}: it has {', '.join(fields)}.")
    return {name: of_json(of, value[name], named) for name, of in fields.items() if name in value}


def _of_union(branches: list[Any], value: Any, named: dict[str, Any]) -> Any:
    fastavro = import_extra("fastavro", "avro")
    for branch in branches:
        try:
            made = of_json(branch, value, named)
            parsed = fastavro.parse_schema(branch, named_schemas={})
        except InvalidArgumentError:
            continue
        except fastavro.schema.UnknownType:  # a type that is defined elsewhere
            return made
        if fastavro.validate(made, parsed, raise_errors=False):
            return made
    raise InvalidArgumentError(f"{shown(value)} is of none of the types {', '.join(map(type_of, branches))}.")


def _of_primitive(kind: str, value: Any) -> Any:
    if kind in ("bytes", "fixed") and isinstance(value, str):
        return _read(lambda text: base64.b64decode(text, validate=True), value, "bytes in base64")
    return value


def _read(read: Callable[[str], Any], text: str, what: str) -> Any:
    try:
        return read(text)
    except (ValueError, InvalidOperation, binascii.Error) as error:
        raise InvalidArgumentError(f"{shown(text)} is no {what}: {error}.") from error
