"""The records of a micro-batch that does not fit into memory. Pure, except for the files that keep rows.

Order matters only among rows of one key. Rows are therefore dealt into parts by key, each small enough to sort.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from stateline.model.pipeline import Pipeline
from stateline.spark.sink.receiving import EncodedRows, RowFile
from stateline.spark.sink.result_records import (
    ENCODED,
    RecordParts,
    arranged,
    as_records,
    is_table,
    refuse_bad,
    result_records,
)

PART_BYTES = 64 * 1024 * 1024
"""The most that is in memory at once, as Arrow. Python's objects take about three times as much."""

_AT_ONCE_ROWS, _AT_ONCE_BYTES = 10_000, 8 * 1024 * 1024
_MOST_PARTS = 256  # each is a file. Beyond 16 GB parts grow.


class LargeResult(Collection[RecordParts]):
    """The records, read from their files at each iteration."""

    def __init__(
        self,
        count: int,
        parts: Sequence[EncodedRows | RowFile],
        pipeline: Pipeline,
        batch_time_ms: int,
        partitions: Mapping[str, int],
    ) -> None:
        self._count = count
        self._parts = parts
        self._terms = pipeline, batch_time_ms, partitions

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[RecordParts]:
        for part in self._parts:
            for batch in part.batches():
                yield from as_records(pa.Table.from_batches([batch], ENCODED), *self._terms)

    def __contains__(self, record: object) -> bool:
        return any(parts == record for parts in self)


def records_of(
    rows: EncodedRows, pipeline: Pipeline, batch_time_ms: int, partitions: Mapping[str, int]
) -> Collection[RecordParts]:
    """Return the records of any number of rows, as `result_records` does. Valid until the rows are closed."""
    terms = pipeline, batch_time_ms, partitions
    if rows.size_bytes <= PART_BYTES:
        return result_records(pa.Table.from_batches(rows.batches(), ENCODED), *terms)
    refuse_bad(rows.bad, pipeline)
    if not (is_table(pipeline) or rows.is_ordered):
        return LargeResult(rows.count, [rows], *terms)
    parts = []
    for dealt in _dealt(rows, min(_MOST_PARTS, -(-rows.size_bytes // PART_BYTES))):
        parts.append(rows.new_file())
        table = arranged(pa.Table.from_batches(dealt.batches(), ENCODED), pipeline, batch_time_ms)
        dealt.close()
        with parts[-1].writer() as writer:
            writer.write_table(table, max(1, min(_AT_ONCE_ROWS, len(table) * _AT_ONCE_BYTES // max(1, table.nbytes))))
    return LargeResult(rows.count, parts, *terms)


def _dealt(rows: EncodedRows, number: int) -> list[RowFile]:
    """Deal the rows into this many files. Rows of one key stay in order, in one file."""
    files = [rows.new_file() for _ in range(number)]
    with ExitStack() as stack:
        writers = [stack.enter_context(file.writer()) for file in files]
        for batch in rows.batches():
            at = pa.array([crc32(key) % number for key in batch.column("key").to_pylist()], pa.int32())
            by_file, first = batch.take(pc.sort_indices(at)), 0  # stable
            for index, count in sorted(Counter(at.to_pylist()).items()):
                writers[index].write_batch(by_file.slice(first, count))
                first += count
    return files
