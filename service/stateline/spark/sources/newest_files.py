"""Keeps the newest record of each key of a partition in files of an executor, so that only new records are read.

``<folder>/<partition>-<offset>.arrow`` is an Arrow file with `ARROW_SCHEMA`: the partition's newest records before this
offset, without deleted keys and records without a key. It appears whole and never changes. The two newest stay, since a
task may be repeated. Damaged files count as absent.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from stateline.log import Record
from stateline.spark.sources.embedded_source import ARROW_SCHEMA
from stateline_store import ConfigurationError

Changes = Callable[[int], Iterable[list[Record]]]
"""Returns a partition's records from this offset on, in order."""

_KEPT = 2
# A log removes tombstones after `delete.retention.ms` (a day). Older files would miss them.
OLDEST_S = 3600.0
_ROWS_PER_BATCH, _BYTES_PER_BATCH = 50_000, 32 * 1024 * 1024
_CHANGES_AT_ONCE, _BYTES_AT_ONCE = 200_000, 64 * 1024 * 1024  # in memory as Python's objects


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """A partition as of one micro-batch: the first offset that the log keeps, and the end."""

    topic_id: str
    partition: int
    first: int
    end: int


def newest_records(folder: Path, span: BatchSpan, changes: Changes) -> Iterator[pa.RecordBatch]:
    """Return the newest record of each key in `span`, unordered. Asks for `changes` since the newest file, and raises
    their errors. Records read until then stay."""
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder / f"{span.partition}.lock"):
        offset, table = _newest_file(folder, span)
        if offset < span.end:
            for newest, reached in _at_once(changes(max(offset, span.first)), span.end):
                table = _merged(folder, span, reached, table, newest)
        for _, path in sorted(_files(folder, span.partition))[:-_KEPT]:
            path.unlink(missing_ok=True)
    # Without a batch Spark takes the reader for one that yields rows, so yield an empty one.
    return iter(_still_kept(table, span.first) or [_batch([])])


def private_folder(path: Path) -> Path:
    """Return this folder, and make it if needed. Raises `ConfigurationError` if other users could put files into it."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
    found = path.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or mode & 0o077:
        raise ConfigurationError(
            f"{path} belongs to user {found.st_uid} and has mode {mode:04o}: it has to be a directory of user "
            f"{os.geteuid()} with mode 0700, or others could change what is read. Remove it, or set SPARK_LOCAL_DIRS."
        )
    return path


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Lock out other processes of this machine: two tasks would read the same records."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _newest_file(folder: Path, span: BatchSpan) -> tuple[int, list[pa.RecordBatch]]:
    """Return the last file that does not exceed the span, with its offset, or 0 and nothing."""
    for offset, path in sorted(_files(folder, span.partition), reverse=True):
        with suppress(pa.ArrowInvalid, OSError):
            if offset <= span.end and time.time() - path.stat().st_mtime < OLDEST_S:
                batches = _read(path)
                if offset == span.end:
                    os.utime(path)  # it is current
                return offset, batches
        path.unlink(missing_ok=True)  # also if the log has lost its end
    return 0, []


def _files(folder: Path, partition: int) -> list[tuple[int, Path]]:
    return [(int(path.stem.split("-")[1]), path) for path in folder.glob(f"{partition}-*.arrow")]


def _read(path: Path) -> list[pa.RecordBatch]:
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
        if not file.schema.equals(ARROW_SCHEMA):
            raise pa.ArrowInvalid(f"{path} has another schema.")
        batches = [file.get_batch(number) for number in range(file.num_record_batches)]
    for batch in batches:
        batch.validate(full=True)
    return batches


def _at_once(pages: Iterable[list[Record]], end: int) -> Iterator[tuple[dict[bytes, Record], int]]:
    """Yield the newest record of each key, as many as fit into memory, with the offset reached."""
    newest, rows, size = dict[bytes, Record](), 0, 0
    for page in pages:
        for record in page:
            if record.key is not None:
                newest[record.key] = record
                size += len(record.key) + len(record.value or b"")
        rows += len(page)
        if rows >= _CHANGES_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield newest, page[-1].offset + 1
            newest, rows, size = {}, 0, 0
    yield newest, end


def _merged(
    folder: Path, span: BatchSpan, reached: int, table: list[pa.RecordBatch], newest: dict[bytes, Record]
) -> list[pa.RecordBatch]:
    """Write the next file from the last one, `table`, and newer records. Return its batches."""
    changed = pa.array(list(newest), pa.binary())
    others = (
        batch.filter(pc.invert(pc.is_in(batch.column("key"), value_set=changed)))
        for batch in _still_kept(table, span.first)
    )
    rows = [record for record in newest.values() if record.value is not None]
    path = folder / f"{span.partition}-{reached}.arrow"
    unfinished = path.with_suffix(f".{os.getpid()}")
    with pa.OSFile(str(unfinished), "wb") as sink, pa.ipc.new_file(sink, ARROW_SCHEMA) as file:
        for batch in _evened(chain(others, _batches(rows))):
            file.write_batch(batch)
    unfinished.replace(path)
    return _read(path)


def _still_kept(table: list[pa.RecordBatch], first: int) -> list[pa.RecordBatch]:
    """Leave out records before `first`, which the log has deleted."""
    offsets = [(batch, batch.column("offset")) for batch in table if batch.num_rows]
    return [
        batch if pc.min(offset).as_py() >= first else batch.filter(pc.greater_equal(offset, first))
        for batch, offset in offsets
    ]


def _evened(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge small batches, or each micro-batch would add another one."""
    waiting, rows, size = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        if waiting and (rows + batch.num_rows > _ROWS_PER_BATCH or size + batch.nbytes > _BYTES_PER_BATCH):
            yield pa.concat_batches(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    if waiting:
        yield pa.concat_batches(waiting)


def _batches(rows: list[Record]) -> Iterator[pa.RecordBatch]:
    begin, size = 0, 0
    for at, record in enumerate(rows):
        size += len(record.key or b"") + len(record.value or b"")
        if size >= _BYTES_PER_BATCH or at + 1 - begin >= _ROWS_PER_BATCH:
            yield _batch(rows[begin : at + 1])
            begin, size = at + 1, 0
    if begin < len(rows):
        yield _batch(rows[begin:])


def _batch(rows: list[Record]) -> pa.RecordBatch:
    columns = {
        "key": [row.key for row in rows],
        "value": [row.value for row in rows],
        "topic": [row.topic for row in rows],
        "partition": [row.partition for row in rows],
        "offset": [row.offset for row in rows],
        "timestamp": pa.array([row.timestamp_ms * 1000 for row in rows], pa.timestamp("us", tz="UTC")),
    }
    return pa.RecordBatch.from_pydict(columns, schema=ARROW_SCHEMA)
