"""The keys of a pipeline's result rows, by column, and errors for rows without a key. Pure.

The key of several columns (in topics and stores: never change) is their texts joined by "|". Each "|" and each "\\"
of a text gets a "\\" before it. Rows with different parts therefore have different keys, empty parts are kept, and
other texts stay unchanged. The key of one column is its text.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stateline.model.pipeline import Pipeline, Windowing
from stateline.serde.plain import JsonSerde, Serde
from stateline.serde.windowed import WindowedSerde
from stateline.spark.sink.json_texts import is_utf8, iso_texts, key_text, plain, times_as_text, without_json
from stateline_store import InvalidArgumentError

_INTEGERS = {"int32": pa.int32(), "int64": pa.int64()}
_SEPARATOR, _ESCAPE = "|", "\\"
_EXACT_SCALE = 6  # as in `json_texts`
_MILLISECONDS = pa.timestamp("ms", tz="UTC")
_NO_SEQUENCE = pa.scalar(bytes(4), pa.binary())
_NO_TEXT = pa.scalar(None, pa.string())


def inner_key_serde(pipeline: Pipeline) -> Serde:
    """Return the serde of the key columns: the inner one for windows and sessions."""
    serde = pipeline.writes.key
    return serde.inner if isinstance(serde, WindowedSerde) else serde


def inner_keys(batch: pa.RecordBatch, pipeline: Pipeline) -> list[pa.Array]:
    """Return the keys as binary, then one array of errors per reason, with null for good rows."""
    columns = [batch.column(name) for name in pipeline.key]
    bad = [reason for name, column in zip(pipeline.key, columns, strict=True) for reason in _nulls(name, column)]
    serde = inner_key_serde(pipeline)
    if len(columns) > 1 or serde.name == "string":
        named = list(zip(pipeline.key, columns, strict=True))
        bad += [said for name, column in named if (said := _not_utf8(name, column)) is not None]
        bad += [said for name, column in named if (said := _within_json(name, column)) is not None]
        texts = [_texts(column) for column in columns]
        key = texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*map(_escaped, texts), _SEPARATOR)
        return [key.cast(pa.binary()), *bad]
    if serde.name in _INTEGERS and pa.types.is_integer(columns[0].type):
        keys, refused = _integers(columns[0], serde, pipeline)
    else:
        keys, refused = _by_serde(columns[0], serde, pipeline)
    return [keys, *bad, refused]


def window_suffixes(batch: pa.RecordBatch, windowing: Windowing) -> list[pa.Array]:
    """Return what follows the key of a window or session in stores (`stateline_store.rows.windowed_keys`), then errors.
    A session of a store ends with its last record, Spark's a gap later."""
    column = batch.column(windowing.column)
    start, end = (_milliseconds(pc.struct_field(column, name)) for name in ("start", "end"))
    length = pc.subtract(end, start)
    fits = pc.equal if windowing.kind == "window" else pc.greater_equal
    called = f"the {windowing.kind}"
    bad = [
        _said(pc.or_kleene(pc.is_null(start), pc.is_null(end)), f"{called} column {windowing.column!r} is null"),
        _said(pc.less(start, 0), f"{called} in {windowing.column!r} starts before 1970"),
        _said(pc.invert(fits(length, windowing.size_ms)), *_wrong_length(windowing, length)),
    ]
    if windowing.kind == "window":
        return [pc.binary_join_element_wise(_big_endian(start), _NO_SEQUENCE, b""), *bad]
    last = pc.subtract(end, windowing.size_ms)
    return [pc.binary_join_element_wise(_big_endian(last), _big_endian(start), b""), *bad]


def _nulls(name: str, column: pa.Array) -> list[pa.Array]:
    return [_said(pc.is_null(column), f"the key column {name!r} is null")] if column.null_count else []


def _not_utf8(name: str, column: pa.Array) -> pa.Array | None:
    if not pa.types.is_string(column.type) or is_utf8(column):
        return None
    said = f"the key column {name!r} is not UTF-8 text"
    return pa.array([said if _is_broken(data) else None for data in column.cast(pa.binary()).to_pylist()], pa.string())


def _within_json(name: str, column: pa.Array) -> pa.Array | None:
    """Return errors for keys whose JSON text has NaN or an infinity, which would look like null."""
    found = None if pa.types.is_floating(column.type) else without_json(column)
    said = f"the key column {name!r} holds NaN or an infinity, which JSON does not have"
    return None if found is None else _said(found, said)


def _is_broken(data: bytes | None) -> bool:
    try:
        (data or b"").decode()
    except UnicodeDecodeError:
        return True
    return False


def _texts(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_string(kind):
        return column
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date(kind):
        return column.cast(pa.string())
    if pa.types.is_timestamp(kind):
        return iso_texts(column)
    if pa.types.is_decimal(kind) and kind.scale <= _EXACT_SCALE:
        return column.cast(pa.string())
    return pa.array([None if value is None else key_text(value) for value in plain(column)], pa.string())


def _escaped(texts: pa.Array) -> pa.Array:
    for special in (_ESCAPE, _SEPARATOR):
        texts = pc.replace_substring(texts, special, _ESCAPE + special)
    return texts


def _integers(column: pa.Array, serde: Serde, pipeline: Pipeline) -> tuple[pa.Array, pa.Array]:
    numbers, kind = column.cast(pa.int64()), _INTEGERS[serde.name]
    least, most = -(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1
    beyond = pc.or_(pc.less(numbers, least), pc.greater(numbers, most))
    said = _of_serde(pipeline), numbers.cast(pa.string()), f" is not an {serde.name}: an integer from {least} to {most}"
    return _big_endian(numbers.cast(kind, safe=False)), _said(beyond, *said)


def _by_serde(column: pa.Array, serde: Serde, pipeline: Pipeline) -> tuple[pa.Array, pa.Array]:
    keys: list[bytes | None] = []
    refused: list[str | None] = []
    for value in map(times_as_text, plain(column)) if isinstance(serde, JsonSerde) else plain(column):
        key, why = _serialized(serde.serialize, value)
        keys.append(key)
        refused.append(None if why is None else f"{_of_serde(pipeline)}{why}")
    return pa.array(keys, pa.binary()), pa.array(refused, pa.string())


def _serialized(serialize: Callable[[Any], bytes], value: Any) -> tuple[bytes | None, str | None]:
    if value is None:
        return None, None  # has an error already
    try:
        return serialize(value), None
    except InvalidArgumentError as error:
        return None, str(error).rstrip(".")


def _of_serde(pipeline: Pipeline) -> str:
    return f"the key of {pipeline.writes.name!r} is {inner_key_serde(pipeline).name}, and "


def _wrong_length(windowing: Windowing, length: pa.Array) -> tuple[str, pa.Array, str]:
    declared = "windows of" if windowing.kind == "window" else "sessions with a gap of"
    before = f"the {windowing.kind} in {windowing.column!r} is "
    return before, length.cast(pa.string()), f" ms long, and the pipeline declares {declared} {windowing.size_ms} ms"


def _said(when: pa.Array, *what: str | pa.Array) -> pa.Array:
    """Return this text for rows where `when` is true, else null."""
    if not pc.any(when, min_count=0).as_py():
        return pa.nulls(len(when), pa.string())
    text = pc.binary_join_element_wise(*what, "") if len(what) > 1 else pa.scalar(what[0])
    return pc.if_else(when, text, _NO_TEXT)


def _milliseconds(array: pa.Array) -> pa.Array:
    return array.cast(_MILLISECONDS, safe=False).cast(pa.int64())


def _big_endian(numbers: pa.Array) -> pa.Array:
    """Return signed numbers as bytes of their width. Null gives arbitrary bytes."""
    filled = pc.fill_null(numbers, 0)
    width = filled.type.bit_width // 8
    packed = array("q" if width == 8 else "i")
    packed.frombytes(memoryview(filled.buffers()[1])[width * filled.offset : width * (filled.offset + len(filled))])
    if sys.byteorder == "little":
        packed.byteswap()
    data = pa.py_buffer(packed.tobytes())
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(filled), [None, data]).cast(pa.binary())
