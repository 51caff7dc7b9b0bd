"""Changes as Arrow record batches, from records of a store's changelog or of a table's topic.

`columns.change_columns` lists the columns. `value` is null in a deletion. `timestamp` is null if the change feed shows
none. `partition` and `offset` say where in the topic the change is. `rows.arrow_rows` defines the types and the
metadata; `stateline.topic` and `stateline.topic_id` are added.

Made by the column, and without `pyarrow.array`, as there. Pure, and thread-safe.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

import pyarrow as pa
import pyarrow.compute as pc

from stateline.log import Record
from stateline.model.store_definition import StoreDefinition
from stateline.rows.arrow_rows import (
    arrow_type,
    big_endian,
    binary_array,
    headers_array,
    int64_array,
    schema_of_columns,
    sliced,
    typed_batch,
)
from stateline.rows.columns import change_columns
from stateline.server.changes.feed import shown_headers, timestamp_of
from stateline.server.wire.turns import STEP_BYTES
from stateline_store import DamagedDataError
from stateline_store.rows.windowed_keys import MAX_TIMESTAMP_MS, SESSION_SUFFIX, WINDOW_SUFFIX

# A batch has not many more bytes: that much memory has each reader.
BATCH_BYTES = STEP_BYTES

_INT64 = pa.int64()
_SUFFIXES = {"window": WINDOW_SUFFIX.size, "session": SESSION_SUFFIX.size}


def change_schema(
    definition: StoreDefinition, columns: Iterable[str] | None = None, topic: str = "", topic_id: str = ""
) -> pa.Schema:
    """Return the schema of this store's changes: all columns, or those named. Raises like `change_columns`."""
    return schema_of_columns(change_columns(definition, columns), definition, topic=topic, topic_id=topic_id)


def change_batch(definition: StoreDefinition, records: Sequence[Record], schema: pa.Schema) -> pa.RecordBatch:
    """Return these changes, which all have keys, as a batch of this schema.

    Raises `DamagedDataError` for bytes that are not of the store's types.
    """
    wanted = [name for name in schema.names if name not in ("key", "start", "end")]
    columns = {name: _MAKERS[name](definition, records) for name in wanted}
    if len(wanted) < len(schema.names):
        columns |= _key_columns(definition, records)
    batch = typed_batch(definition, columns, schema)
    at = schema.get_field_index("value")
    if at < 0 or all(record.value is not None for record in records):
        return batch
    deleted = _is_true(record.value is None for record in records)
    nothing = pa.nulls(1, schema.field(at).type)[0]
    return batch.set_column(at, schema.field(at), pc.if_else(deleted, nothing, batch.column(at)))


def pieces(records: Sequence[Record], most: Callable[[], int]) -> Iterator[list[Record]]:
    """Cut the records into lists of up to `most()` and about `BATCH_BYTES`. A larger record is a list of its own."""
    piece: list[Record] = []
    piece_bytes = 0
    for record in records:
        size = len(record.key or b"") + len(record.value or b"")
        if piece and (piece_bytes + size > BATCH_BYTES or len(piece) >= most()):
            yield piece
            piece, piece_bytes = [], 0
        piece.append(record)
        piece_bytes += size
    if piece:
        yield piece


def _key_columns(definition: StoreDefinition, records: Sequence[Record]) -> dict[str, pa.Array]:
    names = binary_array([record.key or b"" for record in records])
    suffix = _SUFFIXES.get(definition.plain_kind, 0)
    if not suffix:
        return {"key": names}
    if len(names) and pc.min(pc.binary_length(names)).as_py() < suffix:
        raise DamagedDataError(
            f"A change of {definition.name!r} between the offsets {records[0].offset} and {records[-1].offset} of "
            f"{records[0].topic}-{records[0].partition} has a key that is too short for a {definition.plain_kind}: "
            "another program may have written to this topic."
        )
    key = sliced(names, 0, -suffix)
    if definition.plain_kind == "session":
        end, start = (big_endian(sliced(names, at, to), _INT64) for at, to in ((-16, -8), (-8, 2**30)))
        return {"key": key, "start": start, "end": end}
    start = big_endian(sliced(names, -12, -4), _INT64)
    size, latest = int64_array([definition.window_size_ms, MAX_TIMESTAMP_MS - definition.window_size_ms])
    end = pc.add(pc.if_else(pc.greater(start, latest), latest, start), size)  # not behind the largest time
    return {"key": key, "start": start, "end": end}


def _values(definition: StoreDefinition, records: Sequence[Record]) -> pa.Array:
    """Return the stored values. A deletion gets a value of the type, which is replaced later."""
    kind = arrow_type(definition.value)
    filling = bytes(kind.bit_width // 8) if pa.types.is_primitive(kind) else b""
    return binary_array([filling if record.value is None else record.value for record in records])


def _timestamps(definition: StoreDefinition, records: Sequence[Record]) -> pa.Array:
    times = [timestamp_of(definition, record) for record in records]
    known = int64_array(0 if time is None else time for time in times)
    if None not in times:
        return known
    return pc.if_else(_is_true(time is None for time in times), pa.nulls(1, _INT64)[0], known)


def _partitions(_: StoreDefinition, records: Sequence[Record]) -> pa.Array:
    numbers = array("i", map(attrgetter("partition"), records))
    return pa.Array.from_buffers(pa.int32(), len(numbers), [None, pa.py_buffer(numbers)])


def _offsets(_: StoreDefinition, records: Sequence[Record]) -> pa.Array:
    return int64_array(map(attrgetter("offset"), records))


def _is_true(flags: Iterable[bool]) -> pa.Array:
    bits = array("b", flags)
    numbers = pa.Array.from_buffers(pa.int8(), len(bits), [None, pa.py_buffer(bits)])
    return pc.not_equal(numbers, pa.Array.from_buffers(pa.int8(), 1, [None, pa.py_buffer(b"\0")])[0])


def _headers(definition: StoreDefinition, records: Sequence[Record]) -> pa.Array:
    return headers_array([shown_headers(definition, record) for record in records])


_MAKERS: dict[str, Callable[[StoreDefinition, Sequence[Record]], pa.Array]] = {
    "value": _values,
    "timestamp": _timestamps,
    "partition": _partitions,
    "offset": _offsets,
    "headers": _headers,
}
