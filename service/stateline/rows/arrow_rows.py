"""Rows as Arrow record batches, in the store's types.

| kind                      | columns                                        | rows that are taken           |
|---------------------------|------------------------------------------------|-------------------------------|
| key-value                 | key, value, timestamp                          | (key, stored bytes)           |
| window, session           | key, start, end, value, timestamp              | (Windowed, stored bytes)      |
| versioned                 | key, value, timestamp, valid_to                | (key, VersionedRecord)        |

`timestamp` is there in stores that keep one, and in versioned stores; `headers` comes last in stores that keep them.
Times are int64, milliseconds since the epoch, as everywhere over HTTP; an unknown timestamp and the `valid_to` of a
latest version are null. A window's `end` is excluded, a session's included.

| serde        | Arrow type                                                              |
|--------------|-------------------------------------------------------------------------|
| string, json | utf8; JSON text as it is stored                                         |
| bytes        | binary                                                                  |
| int32, int64 | int32, int64                                                            |
| float64      | double                                                                  |
| uuid         | utf8                                                                    |
| datetime     | timestamp[ms, UTC]                                                      |
| model        | utf8; JSON text as it is stored                                         |
| avro, protobuf, json_schema, msgpack | utf8: their JSON, as in answers                 |
| one's own    | binary, the stored bytes: what they mean is the application's to say    |

A schema's metadata says `stateline.store`, `stateline.kind`, `stateline.key_type` and `stateline.value_type`.

Arrays are made of whole columns: a Python step per row would take longer than reading the row. And they are made from
buffers, and scalars from arrays, because `pyarrow.array` and `pyarrow.scalar` import pandas where that is installed,
which holds up a server for up to a second. Pure, and thread-safe.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Container, Iterable, Sequence
from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from stateline.model.store_definition import StoreDefinition
from stateline.rows.columns import HEADERS, Column, is_shown_as_json, row_columns, type_name
from stateline.serde.plain import Serde
from stateline_store import DamagedDataError, InvalidArgumentError
from stateline_store.reads.versioned_reads import VersionedRecord
from stateline_store.rows.headers import Headers, split_headers
from stateline_store.rows.segments import PREFIX
from stateline_store.rows.windowed_keys import MAX_TIMESTAMP_MS, SESSION_SUFFIX, WINDOW_SUFFIX, Windowed

Rows: TypeAlias = Sequence[tuple[bytes, bytes]] | Sequence[tuple[Windowed, bytes]]
Versions: TypeAlias = Sequence[tuple[bytes, VersionedRecord]]

_TIMESTAMP_BYTES = 8
_UNKNOWN_TIMESTAMP = -1
_STILL_VALID = 2**63 - 1  # in arrays that are made here; a version never ends then
_INT32, _INT64 = pa.int32(), pa.int64()
_NO_TIME = pa.nulls(1, _INT64)[0]  # not `pa.scalar(None, …)`, which imports pandas
_TYPES = {
    "string": pa.utf8(),
    "binary": pa.binary(),
    "int32": pa.int32(),
    "int64": _INT64,
    "double": pa.float64(),
    "timestamp": pa.timestamp("ms", "UTC"),
    HEADERS: pa.list_(
        pa.field("item", pa.struct([pa.field("name", pa.utf8(), False), pa.field("value", pa.binary())]), False)
    ),
}
# Arrow type of a serde's values → how Python's arrays name it.
_CODES = {pa.int32(): "i", _INT64: "q", pa.float64(): "d"}


def arrow_schema(definition: StoreDefinition, columns: Iterable[str] | None = None) -> pa.Schema:
    """Return the schema of this store's rows: all columns, or those named. Raises like `row_columns`."""
    return schema_of_columns(row_columns(definition, columns), definition)


def schema_of_columns(columns: Iterable[Column], definition: StoreDefinition, **more: str) -> pa.Schema:
    """Return the schema of these columns. Its metadata describes the store, and adds `more` under `stateline.`."""
    said = {
        "store": definition.name,
        "kind": definition.kind,
        "key_type": definition.key.name,
        "value_type": definition.value.name,
        **more,
    }
    fields = [pa.field(column.name, _TYPES[column.type], column.nullable) for column in columns]
    return pa.schema(fields, {f"stateline.{name}": text for name, text in said.items()})


def record_batch(
    definition: StoreDefinition, rows: Rows | Versions, schema: pa.Schema, *, stored: bool = False
) -> pa.RecordBatch:
    """Return a chunk of rows (the first table) as a batch of this schema (`arrow_schema`). `stored`: rows of a window
    or session store as they are stored.

    Raises `DamagedDataError` for bytes that are not of the declared type.
    """
    if definition.kind == "versioned":
        return typed_batch(definition, _version_columns(rows), schema)
    values = value_columns(definition, binary_array(list(map(itemgetter(1), rows))), schema.names)
    if definition.key_value and "key" not in schema.names:
        return typed_batch(definition, values, schema)
    names: list[Any] = list(map(itemgetter(0), rows))
    if definition.key_value:
        return typed_batch(definition, {"key": binary_array(names), **values}, schema)
    if stored:
        stored_names = binary_array(names)
        if definition.plain_kind == "session":
            keys = session_columns(definition, stored_names)
        else:
            keys = window_columns(definition, stored_names, definition.window_size_ms)
        return typed_batch(definition, {**keys, **values}, schema)
    windows = {
        "key": binary_array(list(map(attrgetter("key"), names))),
        "start": int64_array(map(attrgetter("start_ms"), names)),
        "end": int64_array(map(attrgetter("end_ms"), names)),
    }
    return typed_batch(definition, {**windows, **values}, schema)


def window_columns(definition: StoreDefinition, names: pa.Array, size_ms: int) -> dict[str, pa.Array]:
    """Return key, start and end of the stored keys of windows. Raises `DamagedDataError` for one that is too short."""
    check_lengths(definition, names, WINDOW_SUFFIX.size)
    start, latest = big_endian(sliced(names, -12, -4), _INT64), int64_scalar(MAX_TIMESTAMP_MS - size_ms)
    end = pc.add(pc.if_else(pc.greater(start, latest), latest, start), int64_scalar(size_ms))  # `window_end_ms`
    return {"key": sliced(names, PREFIX.size, -12), "start": start, "end": end}


def session_columns(definition: StoreDefinition, names: pa.Array) -> dict[str, pa.Array]:
    """Return key, start and end of the stored keys of sessions. Raises `DamagedDataError` for one that is too short."""
    check_lengths(definition, names, SESSION_SUFFIX.size)
    end, start = (big_endian(sliced(names, at, stop), _INT64) for at, stop in ((-16, -8), (-8, 2**30)))
    return {"key": sliced(names, PREFIX.size, -16), "start": start, "end": end}


def check_lengths(definition: StoreDefinition, names: pa.Array, suffix: int) -> None:
    """Raise `DamagedDataError` for a stored key that is too short for a segment and this suffix."""
    shortest = pc.min(pc.binary_length(names)).as_py()  # None without any
    if shortest is not None and shortest < PREFIX.size + suffix:
        raise DamagedDataError(
            f"A row of {definition.name!r} is too short for a {definition.kind} store: rebuild the store from its "
            "changelog, and make new snapshots."
        )


def typed_batch(definition: StoreDefinition, stored: dict[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of this schema from stored `key` and `value`, and times. Raises like `record_batch`."""
    serdes = {"key": definition.key, "value": definition.value}
    arrays = [
        _typed(definition, name, serdes[name], stored[name]) if name in serdes else stored[name]
        for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def value_columns(
    definition: StoreDefinition, stored: pa.Array, names: Container[str] = ("value", "timestamp", "headers")
) -> dict[str, pa.Array]:
    """Return `value`, still as bytes, `timestamp` and `headers` of stored values; or the named ones of these."""
    if not definition.timestamped:
        return {"value": stored}
    shortest = pc.min(pc.binary_length(stored)).as_py()  # None without values
    if shortest is not None and shortest < _TIMESTAMP_BYTES:
        raise DamagedDataError(
            f"A stored value of {definition.name!r} is too short for its timestamp: rebuild the store from its "
            "changelog."
        )
    columns = {"value": sliced(stored, _TIMESTAMP_BYTES)} if "value" in names else {}
    if definition.headers and ("value" in names or "headers" in names):
        pairs = [split_headers(item) for item in sliced(stored, _TIMESTAMP_BYTES).to_pylist()]
        columns = {"value": binary_array([value for value, _ in pairs])} if "value" in names else {}
        if "headers" in names:
            columns["headers"] = headers_array([headers for _, headers in pairs])
    if "timestamp" in names:
        timestamps = big_endian(sliced(stored, 0, _TIMESTAMP_BYTES), _INT64)
        columns["timestamp"] = pc.if_else(pc.equal(timestamps, int64_scalar(_UNKNOWN_TIMESTAMP)), _NO_TIME, timestamps)
    return columns


def binary_array(items: Sequence[bytes], lengths: Sequence[int] | None = None) -> pa.Array:
    """Return byte strings of less than 2 GiB together as one binary array. `lengths` are theirs, if known."""
    known = list(map(len, items)) if lengths is None else lengths
    # `struct` and Arrow's sum: a third of what `accumulate` and an `array` of its numbers take.
    zero_first = pa.py_buffer(struct.pack(f"{len(items) + 1}i", 0, *known))
    offsets = pc.cumulative_sum_checked(pa.Array.from_buffers(_INT32, len(items) + 1, [None, zero_first])).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), len(items), [None, offsets, pa.py_buffer(b"".join(items))])


def headers_array(of_rows: Sequence[Headers | None]) -> pa.Array:
    """Return the headers of each row as a list of names and values. None is null."""
    every = [header for headers in of_rows for header in headers or ()]
    values = binary_array([value or b"" for _, value in every])
    present = _bits([value is not None for _, value in every])
    values = pa.Array.from_buffers(values.type, len(every), [present, *values.buffers()[1:]])
    kind = _TYPES[HEADERS]
    pairs = pa.StructArray.from_arrays(
        [binary_array([name.encode() for name, _ in every]).cast(pa.utf8()), values], fields=list(kind.value_type)
    )
    ends = struct.pack(f"{len(of_rows) + 1}i", 0, *accumulate(len(headers or ()) for headers in of_rows))
    there = _bits([headers is not None for headers in of_rows])
    return pa.Array.from_buffers(kind, len(of_rows), [there, pa.py_buffer(ends)], children=[pairs])


def _bits(flags: Sequence[bool]) -> pa.Buffer:
    """Return a bitmap, as Arrow has it for values that are not null."""
    number = sum(1 << place for place, flag in enumerate(flags) if flag)
    return pa.py_buffer(number.to_bytes(len(flags) // 8 + 1, "little"))


def int64_array(numbers: Iterable[int]) -> pa.Array:
    packed = array("q", numbers)
    return pa.Array.from_buffers(_INT64, len(packed), [None, pa.py_buffer(packed)])


def int64_scalar(number: int) -> pa.Scalar:
    """Return an int64. `pa.scalar` would import pandas."""
    return int64_array([number])[0]


def binary_scalar(data: bytes) -> pa.Scalar:
    return binary_array([data])[0]


def sliced(items: pa.Array, start: int, stop: int = 2**30) -> pa.Array:
    """Return the bytes from `start` to `stop` of each byte string. `stop` may count from the end. Without one,
    pyarrow's function fails."""
    return pc.binary_slice(items, start, stop)


def big_endian(items: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return big-endian numbers, one byte string each, as an array of int32, int64 or double.

    Raises `InvalidArgumentError` if one has another length.
    """
    packed = array(_CODES[kind])
    lengths = pc.min_max(pc.binary_length(items))
    for length in (lengths["min"].as_py(), lengths["max"].as_py()):
        if length not in (None, packed.itemsize):
            raise InvalidArgumentError(f"it has {length} bytes")
    packed.frombytes(_joined(items))
    if sys.byteorder == "little":
        packed.byteswap()
    return pa.Array.from_buffers(kind, len(packed), [None, pa.py_buffer(packed)])


def stream_start(schema: pa.Schema) -> bytes:
    """Return the start of a stream of this schema (Arrow's IPC streaming format)."""
    return bytes(schema.serialize())


def stream_batch(batch: pa.RecordBatch) -> bytes:
    """Return one batch of the stream. `columns.STREAM_END` follows the last."""
    return bytes(batch.serialize())


def arrow_type(serde: Serde) -> pa.DataType:
    """Return the Arrow type of this serde's values (the second table)."""
    return _TYPES[type_name(serde)]


def _version_columns(rows: Sequence[Any]) -> dict[str, pa.Array]:
    versions: list[VersionedRecord] = list(map(itemgetter(1), rows))
    ends = int64_array(_STILL_VALID if version.valid_to is None else version.valid_to for version in versions)
    return {
        "key": binary_array(list(map(itemgetter(0), rows))),
        "value": binary_array([version.value for version in versions]),
        "timestamp": int64_array([version.timestamp for version in versions]),
        "valid_to": pc.if_else(pc.equal(ends, int64_scalar(_STILL_VALID)), _NO_TIME, ends),
    }


def _typed(definition: StoreDefinition, what: str, serde: Serde, stored: pa.Array) -> pa.Array:
    kind = arrow_type(serde)
    try:
        if is_shown_as_json(serde):  # a deletion has no bytes
            texts = [orjson.dumps(serde.to_json(item)) if item else b"null" for item in stored.to_pylist()]
            return binary_array(texts).cast(kind)
        if kind == _TYPES["timestamp"]:
            return big_endian(stored, _INT64).cast(kind)
        return big_endian(stored, kind) if kind in _CODES else stored.cast(kind)  # the cast checks UTF-8
    except (InvalidArgumentError, pa.ArrowInvalid) as error:
        raise DamagedDataError(
            f"A stored {what} of {definition.name!r} is no {serde.name} ({error}): declare the type that was written, "
            "or correct the topic it comes from."
        ) from error


def _joined(items: pa.Array) -> memoryview | bytes:
    """Return the bytes of all items, without a copy."""
    if not len(items):
        return b""
    _, offsets, data = items.buffers()
    ends = memoryview(offsets).cast("i")
    return memoryview(data)[ends[items.offset] : ends[items.offset + len(items)]]
