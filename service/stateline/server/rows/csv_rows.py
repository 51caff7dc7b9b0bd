"""Entries as CSV (RFC 4180), the columns of each as in JSON, in UTF-8 and with a header.

| what                                   | in a cell                                        |
|----------------------------------------|--------------------------------------------------|
| a key                                  | as a URL has it                                  |
| a text, a number, bytes                | as in JSON, without quotes; NaN, Infinity        |
| any other value                        | its JSON, byte for byte as it is stored in `json`|
| headers                                | their JSON                                       |
| a time or a row that is not there      | nothing                                          |

Nothing is changed for spreadsheets, which run a cell that begins with `=` as a formula.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import orjson

from stateline.model.store_definition import StoreDefinition
from stateline.serde.key_text import key_text, may_have_text
from stateline.serde.model import ModelSerde
from stateline.serde.plain import BytesSerde, FloatSerde, IntegerSerde, JsonSerde, Serde, StringSerde
from stateline.serde.record_members import headers_of
from stateline.serde.scalars import DatetimeSerde, UuidSerde
from stateline.server.contract.answers import entry_members
from stateline_store import InvalidArgumentError
from stateline_store.rows.headers import split_headers, without_headers
from stateline_store.rows.windowed_keys import Windowed

_TIMESTAMP_BYTES = 8
_TEXTS_AND_INTEGERS = (StringSerde, BytesSerde, IntegerSerde, UuidSerde, DatetimeSerde)  # in JSON
Row = tuple[Any, Any]


def header(columns: Sequence[str]) -> bytes:
    return ",".join(columns).encode() + b"\r\n"


def lines(definition: StoreDefinition, entries: Sequence[Row], columns: Sequence[str]) -> bytes:
    """Return one line per entry. The value of a key that was not found is None. Raises `DamagedDataError` for what
    cannot be shown."""
    text = io.StringIO(newline="")
    try:
        cells = [list(_cells(definition, name, entries)) for name in columns]
    except InvalidArgumentError:
        for key, value in entries:
            if value is not None:
                entry_members(definition, (key, value))  # says which one
        raise
    csv.writer(text).writerows(zip(*cells, strict=True))
    return text.getvalue().encode()


def _cells(definition: StoreDefinition, name: str, entries: Sequence[Row]) -> Iterable[Any]:
    versioned, skipped = definition.kind == "versioned", _TIMESTAMP_BYTES if definition.timestamped else 0
    match name:
        case "key":
            text = _key_text(definition.key)
            return (text(key.key if isinstance(key, Windowed) else key) for key, _ in entries)
        case "found":
            return ("false" if value is None else "true" for _, value in entries)
        case "start":
            return (key.start_ms for key, _ in entries)
        case "end":
            return (key.end_ms for key, _ in entries)
        case "value":
            text = _value_text(definition.value)
            if versioned:
                return (None if version is None else text(version.value) for _, version in entries)
            if definition.headers:
                return (None if value is None else text(without_headers(value[skipped:])) for _, value in entries)
            return (None if value is None else text(value[skipped:]) for _, value in entries)
        case "headers":
            return (None if value is None else _headers(value) for _, value in entries)
        case "timestamp" if not versioned:
            return (_timestamp(value) if skipped and value is not None else None for _, value in entries)
    return (None if version is None else getattr(version, name) for _, version in entries)


def _timestamp(stored: Any) -> int | None:
    number = int.from_bytes(stored[:_TIMESTAMP_BYTES], "big", signed=True)
    return None if number == -1 else number


def _headers(stored: bytes) -> str:
    return orjson.dumps(headers_of(split_headers(stored[_TIMESTAMP_BYTES:])[1])).decode()


def _key_text(serde: Serde) -> Callable[[bytes], Any]:
    shown = _shown(serde, serde.key_to_json)
    if not may_have_text(serde):
        return shown
    return lambda data: shown(data) if (text := key_text(serde, data)) is None else text


def _value_text(serde: Serde) -> Callable[[bytes], Any]:
    if type(serde) in (JsonSerde, ModelSerde):
        return StringSerde().deserialize
    return _shown(serde, serde.to_json)


def _shown(serde: Serde, to_json: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    if type(serde) in _TEXTS_AND_INTEGERS:
        return to_json

    def text(data: bytes) -> Any:
        value = to_json(data)
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return value
        if value is None and isinstance(serde, FloatSerde):
            return serde.special_text(data)
        shown = orjson.dumps(value)
        return orjson.loads(shown) if shown.startswith(b'"') else shown.decode()

    return text
