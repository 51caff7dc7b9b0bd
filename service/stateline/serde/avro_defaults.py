"""Defaults of an Avro schema as values.

fastavro fills a missing field with the default's unchanged JSON. For a record whose fields have defaults (``{}``),
bytes (text) or a time (a number), that JSON is not the value. So the reader's schema gets a mark instead of each such
default. After a read, fresh copies of the defaults replace the marks."""

from __future__ import annotations

import copy
import io
import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from stateline.serde.plain import shown
from stateline.serde.schema_registry import import_extra
from stateline_store import InvalidArgumentError

_RECORDS = ("record", "error")
_NESTED = (*_RECORDS, "array", "map")
_TEXTS = ("string", "bytes", "fixed", "enum")
_NUMBERS = ("float", "double")
_TYPES = {**dict.fromkeys(_TEXTS, str), "int": int, "long": int, "boolean": bool, "null": type(None)}
_NOT_FINITE = {"NaN": "nan", "INF": "inf", "Infinity": "inf", "-INF": "-inf", "-Infinity": "-inf"}
_BEYOND_LONG = 1 << 100  # no number that Avro has
_Named = Mapping[str, Any]


class Defaults:
    """The defaults of one schema. Raises `InvalidArgumentError` for a default that is no value of its field's type."""

    def __init__(self, schema: str) -> None:
        self._named: dict[str, Any] = {}
        self._parsed = import_extra("fastavro", "avro").parse_schema(orjson.loads(schema), self._named)
        self._token = secrets.token_hex(16)  # no value has it by chance
        self._values: list[Any] = []
        self._of_fields: dict[tuple[str, str], Any] = {}
        marked = orjson.loads(schema)
        self._mark(marked, self._parsed)
        self.marked_schema = json.dumps(marked)  # orjson writes no integer as large as a mark
        """The text of the schema with marks."""

    def __bool__(self) -> bool:
        """Whether there is a default that fastavro does not fill in as it should."""
        return bool(self._values)

    def filled(self, value: Any) -> Any:
        """The value that was read by `marked_schema`, with the defaults for the marks. Changes the value."""
        kind = type(value)
        if kind is dict:
            if self._token in value:
                return self._copy(value[self._token])
            for name, member in value.items():
                value[name] = self.filled(member)
        elif kind is list:
            if len(value) == 2 and value[0] == self._token:
                return self._copy(value[1])
            value[:] = map(self.filled, value)
        elif kind is str and value.startswith(self._token):
            return self._copy(int(value[len(self._token) :]))
        elif kind is int and value >= _BEYOND_LONG:
            return self._copy(value - _BEYOND_LONG)
        return value

    def completed(self, value: Any, schema: Any = None) -> Any:
        """Return the value to write, with the defaults of its missing fields. In a union of several records fastavro
        chooses, so nothing is filled in there."""
        schema = self._resolved(self._parsed if schema is None else schema)
        if isinstance(schema, list):
            inner = [each for each in map(self._resolved, schema) if _kind(each) in _NESTED]
            return self.completed(value, inner[0]) if len(inner) == 1 else value
        kind = _kind(schema)
        if kind in _RECORDS and isinstance(value, Mapping):
            return {**value, **dict(self._members(schema, value))}
        if kind == "array" and isinstance(value, list | tuple):
            return [self.completed(item, schema["items"]) for item in value]
        if kind == "map" and isinstance(value, Mapping):
            return {name: self.completed(member, schema["values"]) for name, member in value.items()}
        return value

    def _members(self, schema: Mapping[str, Any], value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for each in schema["fields"]:
            name = each["name"]
            if name in value:
                yield name, self.completed(value[name], each["type"])
            elif (schema["name"], name) in self._of_fields:
                yield name, copy.deepcopy(self._of_fields[schema["name"], name])

    def _copy(self, number: int) -> Any:
        return copy.deepcopy(self._values[number])

    def _resolved(self, schema: Any) -> Any:
        return self._named.get(schema, schema) if isinstance(schema, str) else schema

    def _mark(self, schema: Any, parsed: Any) -> None:
        """Puts marks into `schema`; `parsed` is the same as fastavro has it, with whole names."""
        if isinstance(schema, list):
            for pair in zip(schema, parsed, strict=True):
                self._mark(*pair)
        if not isinstance(schema, dict):
            return
        for part in {"array": ("items",), "map": ("values",)}.get(schema["type"], ()):
            self._mark(schema[part], parsed[part])
        for field, whole in zip(schema.get("fields", ()), parsed.get("fields", ()), strict=True):
            self._mark(field["type"], whole["type"])
            if "default" in field:
                self._mark_default(field, whole, parsed["name"])

    def _mark_default(self, field: dict[str, Any], parsed: Mapping[str, Any], record: str) -> None:
        try:
            value = self._value(parsed["type"], field["default"])
        except RecursionError:
            raise InvalidArgumentError(
                f"the default of the field {field['name']} of {record} has no end: it holds a record of that type"
            ) from None
        if not isinstance(value, dict | list) and type(value) is type(field["default"]) and value == field["default"]:
            return
        number = len(self._values)
        self._values.append(value)
        self._of_fields[record, field["name"]] = value
        match field["default"]:
            case dict():
                field["default"] = {self._token: number}
            case list():
                field["default"] = [self._token, number]
            case str() if not isinstance(value, float):
                field["default"] = f"{self._token}{number}"
            case _:
                field["default"] = _BEYOND_LONG + number
                if _kind(field["type"]) in _NUMBERS:
                    field["type"] = _kind(field["type"])  # as a dict fastavro takes no integer for its default

    def _value(self, schema: Any, default: Any) -> Any:
        """The value that this JSON means as a default. Raises `InvalidArgumentError`."""
        schema = self._resolved(schema)
        if isinstance(schema, list):
            return self._of_union(schema, default)
        kind = _kind(schema)
        if kind in _RECORDS and isinstance(default, dict):
            return {each["name"]: self._of_field(schema, each, default) for each in schema["fields"]}
        if kind == "array" and isinstance(default, list):
            return [self._value(schema["items"], item) for item in default]
        if kind == "map" and isinstance(default, dict):
            return {name: self._value(schema["values"], member) for name, member in default.items()}
        return _leaf(schema, kind, default)

    def _of_field(self, record: Mapping[str, Any], field: Mapping[str, Any], default: Mapping[str, Any]) -> Any:
        if field["name"] not in default and "default" not in field:
            raise InvalidArgumentError(f"No default value for field {field['name']} in {record['name']}")
        return self._value(field["type"], default.get(field["name"], field.get("default")))

    def _of_union(self, branches: list[Any], default: Any) -> Any:
        """The default is of the first type that it fits, as Avro has it since 1.12; before, of the first type."""
        why = InvalidArgumentError("a union without types has no default")
        for branch in branches:
            try:
                return self._value(branch, default)
            except InvalidArgumentError as error:
                why = error
        raise why


def _kind(schema: Any) -> Any:
    return schema["type"] if isinstance(schema, Mapping) else schema


def _leaf(schema: Any, kind: str, default: Any) -> Any:
    """The value that fastavro reads, after it wrote what this JSON means. If it is no value of the logical type, as ""
    of a `uuid`, the default is a value of the type below, as for fastavro."""
    fastavro, written = import_extra("fastavro", "avro"), io.BytesIO()
    try:
        fastavro.schemaless_writer(written, schema, _datum(kind, default))
        written.seek(0)
        return fastavro.schemaless_reader(written, schema, None)
    except Exception as error:  # fastavro raises whatever it stumbles over
        if isinstance(schema, Mapping) and "logicalType" in schema:
            return _leaf({name: part for name, part in schema.items() if name != "logicalType"}, kind, default)
        raise InvalidArgumentError(f"{shown(default)} is no default of type {kind}: {error}") from error


def _datum(kind: str, default: Any) -> Any:
    """Return the value that fastavro needs for this JSON. Raises `ValueError` for JSON of another type."""
    if kind in _NUMBERS and type(default) in (int, float):
        return default
    if kind in _NUMBERS and isinstance(default, str):
        return float(_NOT_FINITE.get(default, "no number"))
    if type(default) is not _TYPES.get(kind):
        raise ValueError(f"JSON of another type is given, {type(default).__name__}")
    return default.encode("latin-1") if kind in ("bytes", "fixed") else default
