"""What JSON means as a value of an Avro schema: bytes are base64, decimals text, times ISO 8601 or the number that Avro
has. Pure, but for fastavro, which tells the types of a union apart."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any

from stateline.serde.iso_times import iso_time
from stateline.serde.plain import shown
from stateline.serde.schema_registry import import_extra
from stateline_store import InvalidArgumentError


def type_of(schema: Any) -> str:
    """The schema's type by name, which evolution leaves as it is."""
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
    """The value of this schema that JSON means. `named` are types that were named before.

    Raises `InvalidArgumentError` for a field that the schema does not have, and for text that is none of what it should
    be. What does not fit otherwise comes back as it is, for the writer to refuse.
    """
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
        except fastavro.schema.UnknownType:  # it names a type that stands elsewhere
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
