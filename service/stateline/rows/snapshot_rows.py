"""The rows of one store partition in a snapshot, as Arrow record batches of bounded size, filtered.

| kind      | order of rows                                           | `from` and `to` (inclusive)           |
|-----------|---------------------------------------------------------|---------------------------------------|
| key-value | by serialized key                                       | timestamps, in stores that keep them  |
| window    | segment by segment of time, by key and start within one | starts                                |
| session   | segment by segment of ends, by key and end within one   | ends from `from`, starts up to `to`   |
| versioned | what was, segment by segment, by key; then the latest   | versions valid at some time in between |

The rows are those of a read at the snapshot's commit, without rows that the retention hides. `as_of` (versioned stores)
selects each key's version at this time. Only requested and filtered columns are decoded, a whole column at a time. Only
earlier versions take a Python step per row.

The order is always the same, so a new stream can continue a broken one: `skip` leaves out the first rows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import reduce

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from stateline.model.store_definition import StoreDefinition
from stateline.rows.arrow_rows import (
    arrow_schema,
    big_endian,
    binary_array,
    binary_scalar,
    int64_scalar,
    record_batch,
    session_columns,
    sliced,
    typed_batch,
    value_columns,
    window_columns,
)
from stateline.rows.ranges import history_ranges, latest_ranges, readable_times, store_schema, stored_ranges
from stateline.rows.selection import RowSelection
from stateline.rows.stored_rows import Row, StoredRows, bounded
from stateline_store import DamagedDataError, StoreSchema
from stateline_store.reads.versioned_reads import VersionedRecord
from stateline_store.rows.segments import PREFIX
from stateline_store.rows.versioned_rows import versions
from stateline_store.scan import KeyRange
from stateline_store.snapshots.checkpoints import Checkpoint

# Limits of a batch, and so of a reader's memory. The bytes may be slightly exceeded.
BATCH_ROWS = 4096
BATCH_BYTES = 512 * 1024

_WIDTH = PREFIX.size
_INT64 = pa.int64()
_FALSE = pa.Array.from_buffers(pa.bool_(), 1, [None, pa.py_buffer(b"\0")])[0]  # not `pa.scalar`, which imports pandas

Columns = dict[str, pa.Array]


def batch_schema(checkpoint: Checkpoint, definition: StoreDefinition, wanted: RowSelection) -> pa.Schema:
    """Return the schema of the batches.

    Its metadata has `stateline.partition`, `stateline.commit`, `stateline.position` (JSON), and
    `stateline.retention_ms` of stores with a retention, because another retention hides other rows.
    """
    schema, part = arrow_schema(definition, wanted.columns), checkpoint.part
    more = {
        b"stateline.partition": str(part.partition).encode(),
        b"stateline.commit": str(part.commit).encode(),
        b"stateline.position": orjson.dumps(part.position.to_json()),
    }
    if definition.retention_ms:
        more[b"stateline.retention_ms"] = str(definition.retention_ms).encode()
    return schema.with_metadata({**schema.metadata, **more})


@dataclass(frozen=True, slots=True)
class _Selected:
    """The wanted rows of one checkpoint, and the schema of their batches. A batch has at most `most_rows()` stored
    rows."""

    checkpoint: Checkpoint
    definition: StoreDefinition
    wanted: RowSelection
    store: StoreSchema
    schema: pa.Schema
    most_rows: Callable[[], int]

    def scanned(self, keys: Iterable[KeyRange]) -> Generator[StoredRows, None, None]:
        return bounded(_chunks(self.checkpoint, keys), lambda: min(self.most_rows(), BATCH_ROWS), BATCH_BYTES)


def batches(
    checkpoint: Checkpoint,
    definition: StoreDefinition,
    wanted: RowSelection,
    most_rows: Callable[[], int] = lambda: BATCH_ROWS,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows, in batches of `batch_schema`, each made of at most `most_rows()` stored rows.

    A batch is empty if the filter took all of its rows: the caller may do something else then. Raises
    `DamagedDataError` for malformed rows.
    """
    schema = batch_schema(checkpoint, definition, wanted)
    store = store_schema(definition, checkpoint.layout)
    if wanted.is_nothing(store.kind):
        return
    decoders = {"key_value": _entries, "window": _windows, "session": _sessions, "versioned": _versions}
    with closing(decoders[store.kind](_Selected(checkpoint, definition, wanted, store, schema, most_rows))) as found:
        yield from _without_first(found, wanted.skip)


def _without_first(found: Iterable[pa.RecordBatch], skip: int) -> Iterator[pa.RecordBatch]:
    for batch in found:
        rest = batch.slice(skip) if skip else batch
        skip -= batch.num_rows - rest.num_rows
        yield rest


def _entries(of: _Selected) -> Generator[pa.RecordBatch, None, None]:
    has_times = of.wanted.from_ms is not None or of.wanted.to_ms is not None
    needed = frozenset({*of.schema.names, *(("timestamp",) if has_times else ())})
    for rows in of.scanned(stored_ranges(of.checkpoint, of.store, of.wanted)):
        columns = {"key": binary_array(rows.names, rows.name_lengths)} if "key" in needed else {}
        columns |= _values(of.definition, rows, needed)
        masks = _between(columns["timestamp"], of.wanted.from_ms, of.wanted.to_ms) if has_times else []
        yield typed_batch(of.definition, _kept(columns, masks), of.schema)


def _windows(of: _Selected) -> Generator[pa.RecordBatch, None, None]:
    first, last = readable_times(of.checkpoint, of.store, of.wanted)
    needed = frozenset(of.schema.names)
    for rows in of.scanned(stored_ranges(of.checkpoint, of.store, of.wanted)):
        names = binary_array(rows.names, rows.name_lengths)
        columns = window_columns(of.definition, names, of.store.window_size_ms)
        columns |= _values(of.definition, rows, needed)
        masks = [*_between(columns["start"], first, last), *_inside(columns["key"], of.wanted)]
        yield typed_batch(of.definition, _kept(columns, masks), of.schema)


def _sessions(of: _Selected) -> Generator[pa.RecordBatch, None, None]:
    first, last = readable_times(of.checkpoint, of.store, of.wanted)
    needed = frozenset(of.schema.names)
    for rows in of.scanned(stored_ranges(of.checkpoint, of.store, of.wanted)):
        columns = session_columns(of.definition, binary_array(rows.names, rows.name_lengths))
        columns |= _values(of.definition, rows, needed)
        masks = [*_between(columns["end"], first, last), *_between(columns["start"], None, of.wanted.to_ms)]
        yield typed_batch(of.definition, _kept(columns, [*masks, *_inside(columns["key"], of.wanted)]), of.schema)


def _versions(of: _Selected) -> Generator[pa.RecordBatch, None, None]:
    since_ms, until_ms = readable_times(of.checkpoint, of.store, of.wanted)
    for rows in of.scanned(history_ranges(of.checkpoint, of.store, of.wanted)):
        yield from _history(of.definition, rows, since_ms, until_ms, of.schema)
    for rows in of.scanned(latest_ranges(of.wanted)):
        stored = binary_array(rows.values, rows.value_lengths)
        columns = _latest(of.definition, _names(of.definition, rows, 0), stored)
        yield typed_batch(of.definition, _kept(columns, _between(columns["timestamp"], None, until_ms)), of.schema)


def _latest(definition: StoreDefinition, names: pa.Array, stored: pa.Array) -> Columns:
    if len(stored) and pc.min(pc.binary_length(stored)).as_py() < _WIDTH:
        raise _damaged(definition)
    count = len(stored)
    never = pa.Array.from_buffers(_INT64, count, [pa.py_buffer(bytes(count // 8 + 1)), pa.py_buffer(bytes(8 * count))])
    return {
        "key": sliced(names, _WIDTH),
        "value": sliced(stored, _WIDTH),
        "timestamp": big_endian(sliced(stored, 0, _WIDTH), _INT64),
        "valid_to": never,
    }


def _history(
    definition: StoreDefinition, rows: StoredRows, since_ms: int, until_ms: int, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    found = [
        (name[_WIDTH:], VersionedRecord(value, timestamp, valid_to))
        for name, row in zip(rows.names, rows.values, strict=True)
        for timestamp, value, valid_to in reversed(versions(row))
        if value is not None and timestamp <= until_ms and valid_to > since_ms
    ]
    for at in range(0, max(len(found), 1), BATCH_ROWS):
        yield record_batch(definition, found[at : at + BATCH_ROWS], schema)


def _chunks(checkpoint: Checkpoint, keys: Iterable[KeyRange]) -> Generator[list[Row], None, None]:
    """Yield the stored rows of these ranges, one after the other. A checkpoint never changes."""
    for each in keys:
        with checkpoint.scan(each) as scan:
            yield from scan.chunks()


def _inside(key: pa.Array, wanted: RowSelection) -> list[pa.Array]:
    keys = wanted.keys
    if wanted.only is not None:  # all of them are in `keys`
        return [pc.is_in(key, value_set=binary_array(wanted.only))]
    masks = [pc.greater_equal(key, binary_scalar(keys.start))] if keys.start else []
    return masks if keys.end is None else [*masks, pc.less(key, binary_scalar(keys.end))]


def _between(times: pa.Array, first: int | None, last: int | None) -> list[pa.Array]:
    masks = [] if first is None else [pc.greater_equal(times, int64_scalar(first))]
    return masks if last is None else [*masks, pc.less_equal(times, int64_scalar(last))]


def _kept(columns: Columns, masks: Sequence[pa.Array]) -> Columns:
    """Return the rows that every mask keeps. An unknown time is in no span."""
    if not masks:
        return columns
    mask = pc.fill_null(reduce(pc.and_kleene, masks), _FALSE)
    if pc.all(mask, min_count=0).as_py():
        return columns
    return {name: column.filter(mask) for name, column in columns.items()}


def _names(definition: StoreDefinition, rows: StoredRows, suffix: int) -> pa.Array:
    if min(rows.name_lengths) < _WIDTH + suffix:
        raise _damaged(definition)
    return binary_array(rows.names, rows.name_lengths)


def _damaged(definition: StoreDefinition) -> DamagedDataError:
    return DamagedDataError(
        f"A row of {definition.name!r} in the snapshot is too short for a {definition.kind} store: make a new one, "
        "and if it has the same, rebuild the store from its changelog."
    )


def _values(definition: StoreDefinition, rows: StoredRows, needed: frozenset[str]) -> Columns:
    if needed.isdisjoint(("value", "timestamp", "headers")):
        return {}
    return value_columns(definition, binary_array(rows.values, rows.value_lengths), needed)
