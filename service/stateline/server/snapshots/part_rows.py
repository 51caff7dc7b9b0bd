"""Rows of one store in a snapshot: all the parts that a node keeps, one after the other."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, closing

import pyarrow as pa

from stateline.model.store_definition import StoreDefinition
from stateline.rows.arrow_rows import arrow_schema, stream_batch, stream_start
from stateline.rows.columns import STREAM_END
from stateline.rows.selection import RowSelection
from stateline.rows.snapshot_rows import batches
from stateline.server.snapshots.open_checkpoints import OpenCheckpoints
from stateline.server.wire.turns import ScanPace, let_others_in
from stateline_store.snapshots.checkpoints import CheckpointPart


async def rows_of_parts(
    checkpoints: OpenCheckpoints,
    snapshot_id: str,
    parts: Iterable[CheckpointPart],
    definition: StoreDefinition,
    wanted: RowSelection,
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the batches of these parts of the store. A batch may be empty.

    Each part is opened when its rows are due, and released after them: few parts may be open at a time. So close a
    generator that is not read to its end. Raises like `OpenCheckpoints.acquire`.
    """
    for part in parts:
        checkpoint = await checkpoints.acquire(snapshot_id, part)
        try:
            pace = ScanPace()
            with closing(batches(checkpoint, definition, wanted, lambda: pace.rows)) as rows:  # noqa: B023
                while True:
                    with pace.step(pace.rows):
                        batch = next(rows, None)
                    if batch is None:
                        break
                    yield batch
                    await let_others_in()
        finally:
            checkpoints.release(snapshot_id, part)


async def stream_of(
    definition: StoreDefinition,
    wanted: RowSelection,
    first: pa.RecordBatch | None,
    rest: AsyncGenerator[pa.RecordBatch, None],
) -> AsyncGenerator[bytes, None]:
    """Yield the rows as an Arrow stream. Each piece is one message of it. `first` is None if there is no batch."""
    yield stream_start(arrow_schema(definition, wanted.columns))
    if first is not None and first.num_rows:
        yield stream_batch(first)
    async with aclosing(rest) as rows:
        async for batch in rows:
            if batch.num_rows:
                yield stream_batch(batch)
    yield STREAM_END


async def batches_of(pieces: AsyncGenerator[bytes, None], schema: pa.Schema) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the batches of such a stream. Raises `ValueError` if it is of another schema."""
    if not pa.ipc.read_schema(pa.py_buffer(await anext(pieces))).equals(schema):
        raise ValueError("the rows have other columns")
    async for piece in pieces:
        if piece != STREAM_END:
            yield pa.ipc.read_record_batch(pa.ipc.read_message(piece), schema)
