"""Entries as lines of JSON, with the members of `answers.entry_members`.

Written piece by piece: a call of orjson for each whole entry takes four times as long. A `json` value is sent as it is
stored, but its line breaks, which are between its tokens, become spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from stateline.model.store_definition import StoreDefinition
from stateline.query.values import Entry
from stateline.serde.key_text import may_have_text
from stateline.serde.plain import JsonSerde, Serde, one_line
from stateline.serde.record_members import headers_of
from stateline.server.contract.answers import entry_members, key_members
from stateline.server.contract.formats import Shape
from stateline_store import InvalidArgumentError
from stateline_store.rows.headers import split_headers

_TIMESTAMP_BYTES = 8


def lines(definition: StoreDefinition, entries: Sequence[Entry], *, with_key: bool) -> bytes:
    """Return one line per entry. Raises `DamagedDataError` for what cannot be shown."""
    rows: Any = entries  # of one store, so all of one shape
    try:
        return b"".join(_lines(definition, rows, with_key))
    except InvalidArgumentError:
        for entry in entries:
            entry_members(definition, entry)  # says which one
        raise


def chosen_lines(definition: StoreDefinition, entries: Sequence[Entry], columns: Sequence[str]) -> bytes:
    """Return one line per entry with these members alone. Raises like `lines`."""
    shape = Shape(columns=tuple(columns))
    members = (shape.only(entry_members(definition, entry)) for entry in entries)
    return b"".join(json_line(each) for each in members)


def json_line(members: Mapping[str, Any]) -> bytes:
    return one_line(orjson.dumps(members)) + b"\n"


def _lines(definition: StoreDefinition, rows: Any, with_key: bool) -> Iterator[bytes]:
    key_json = _key_json(definition.key)
    value_json = _as_json(definition.value, definition.value.to_json)
    if definition.kind == "versioned":
        for key, version in rows:
            begin = b"{%b," % key_json(key) if with_key else b"{"
            value, valid_to = value_json(version.value), version.valid_to
            end = b"null" if valid_to is None else b"%d" % valid_to
            yield b'%b"value":%b,"timestamp":%d,"valid_to":%b}\n' % (begin, value, version.timestamp, end)
        return
    timestamped = definition.timestamped
    for name, stored in rows:
        timestamp, end = b"null", b"}\n"
        if timestamped:
            number = int.from_bytes(stored[:_TIMESTAMP_BYTES], "big", signed=True)
            timestamp = b"null" if number == -1 else b"%d" % number
            stored = stored[_TIMESTAMP_BYTES:]
        if definition.headers:
            stored, headers = split_headers(stored)
            end = b',"headers":%b}\n' % orjson.dumps(headers_of(headers))
        if definition.key_value:
            yield b'{%b,"value":%b,"timestamp":%b%b' % (key_json(name), value_json(stored), timestamp, end)
            continue
        key, start_ms, end_ms = name
        begin = b"{%b," % key_json(key) if with_key else b"{"
        line = b'%b"start":%d,"end":%d,"value":%b,"timestamp":%b%b'
        yield line % (begin, start_ms, end_ms, value_json(stored), timestamp, end)


def _key_json(serde: Serde) -> Callable[[bytes], bytes]:
    """Return what makes the members of a key, without the braces around them."""
    if may_have_text(serde):
        return lambda data: one_line(orjson.dumps(key_members(serde, data))[1:-1])
    return lambda data: b'"key":' + orjson.dumps(serde.key_to_json(data))


def _as_json(serde: Serde, to_json: Callable[[bytes], Any]) -> Callable[[bytes], bytes]:
    if type(serde) is JsonSerde:
        return one_line
    return lambda data: orjson.dumps(to_json(data))
