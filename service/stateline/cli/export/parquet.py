"""Write rows as Parquet files into a directory or an object store.

An export is one file, so that it is there whole or not at all, also at a location that cannot rename:

    LOCATION/<store>/<moment>-<digest of the Position>.parquet

A row group has rows of one partition, in the order of the store. The file's metadata has the Position.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import obstore
import pyarrow as pa
import pyarrow.parquet as pq

from stateline.backup.refusals import is_closed, refusal
from stateline.cli.export.rows import Exported, StoreRows
from stateline_store.errors import ConfigurationError, RetryLaterError
from stateline_store.steps import reached

if TYPE_CHECKING:
    from obstore.store import ObjectStore

ROW_GROUP_ROWS = 1_000_000
_ROW_GROUP_BYTES = 256 * 1024 * 1024  # in memory, for large values
_UPLOAD_BYTES = 32 * 1024 * 1024  # an upload to S3 has at most 10,000 pieces of it


class _Upload:
    """A new file at a location, as pyarrow writes files. It is there only after `finish`."""

    closed = False

    def __init__(self, place: ObjectStore, path: str) -> None:
        self._file = obstore.open_writer(place, path, buffer_size=_UPLOAD_BYTES)
        self.finish, self.size = self._file.close, 0

    def write(self, data: bytes) -> int:
        self.size += memoryview(data).nbytes
        return self._file.write(data)

    def flush(self) -> None:
        """Does nothing: pieces of an upload are not short."""

    def close(self) -> None:
        """Does nothing: pyarrow closes a file that failed, too."""


def export(rows: StoreRows, folder: str, place: ObjectStore) -> Exported:
    """Write a store to `folder`, which is also `place`. A file of the same moment and Position stays as it is. Raises
    `RetryLaterError` if the location refuses."""
    name = f"{rows.name}.parquet"
    with refusals(f"{folder}/{name}"):
        try:
            obstore.head(place, name)
            return Exported("there already", 0, 0, f"/{name}")
        except FileNotFoundError:
            groups = itertools.chain.from_iterable(row_groups(part) for part in rows.read())
            _, metadata = write(place, name, rows.schema.with_metadata(rows.about), groups)
    reached("export:written")
    return Exported("written", metadata.num_rows, 0, f"/{name}")


def row_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows in tables that become row groups: about a million rows, or fewer large ones."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROW_GROUP_ROWS or size >= _ROW_GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(held)


def write(place: ObjectStore, path: str, schema: pa.Schema, groups: Iterable[pa.Table]) -> tuple[int, pq.FileMetaData]:
    """Write a file of these row groups. It appears whole or not at all. Returns its size in bytes, and its metadata."""
    upload, collected = _Upload(place, path), list[pq.FileMetaData]()
    with pq.ParquetWriter(upload, schema, compression="zstd", metadata_collector=collected) as writer:
        for group in groups:
            writer.write_table(group.replace_schema_metadata(schema.metadata), row_group_size=group.num_rows)
            reached("export:row-group")
    reached("export:footer")
    upload.finish()
    return upload.size, collected[0]


@contextmanager
def refusals(url: str, more: type[Exception] = OSError) -> Iterator[None]:
    """Raise what the location refuses during the block, and `more` errors, as `RetryLaterError`; as
    `ConfigurationError` if it is closed to this user."""
    try:
        yield
    except (obstore.exceptions.BaseError, OSError, more) as error:
        kind = ConfigurationError if is_closed(error) else RetryLaterError
        raise kind(f"--to: {url} cannot be read or written: {refusal(url, error)}") from error
