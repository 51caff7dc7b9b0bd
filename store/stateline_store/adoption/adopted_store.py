"""Write the rows of a store of Kafka Streams as a database of Stateline.

Rows of key-value and versioned stores are equal in both. Rows of windows and sessions get their segment before the
key. All are written in key order to RocksDB's table files, and added to the new database without a write-ahead log.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from rocksdict import IngestExternalFileOptions, Rdict, SstFileWriter, WriteBatch, WriteOptions

from stateline_store.adoption.java_store import JavaStore
from stateline_store.clock import now_ms
from stateline_store.engines.engine import Commit
from stateline_store.errors import TopologyError
from stateline_store.files.directory import make_directory
from stateline_store.files.durable_files import refused, sync_directory
from stateline_store.layout import Layout, StoreTypes
from stateline_store.position import Position, TopicPartition
from stateline_store.rocksdb.errors import translated
from stateline_store.rocksdb.options import DEFAULT_TUNING, primary_options
from stateline_store.rocksdb.rows import OFFSETS_FAMILY, commit_rows, format_rows, types_row
from stateline_store.rows.headers import without_headers
from stateline_store.rows.segments import PREFIX
from stateline_store.rows.timestamped_rows import TIMESTAMP
from stateline_store.rows.windowed_keys import SESSION_SUFFIX, WINDOW_SUFFIX, split_keys
from stateline_store.steps import reached

_TABLE_BYTES = 64 * 1024 * 1024
_DRAFT = ".deleted-adopted-"  # the next owner of the task deletes a draft that a crash has left
_I64 = struct.Struct(">q")
_LATEST = -1  # the segment of a versioned store's latest values

Chunk = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Target:
    """The database to make: its path in a task's directory, and its content beside the rows."""

    task: Path
    database: Path
    layout: Layout
    types: StoreTypes
    offsets: dict[TopicPartition, int]
    position: Position


def adopt_store(java: JavaStore, target: Target) -> int:
    """Copy all rows, and return their number. The database appears complete or not at all. The caller holds the task's
    lock.

    Raises `TopologyError` if the rows do not fit the declared kind or retention, `StorageError` if the disk refuses.
    """
    draft = target.task / f"{_DRAFT}{target.database.name}"
    shutil.rmtree(draft, ignore_errors=True)
    make_directory(draft)
    try:
        rows = _Rows(target.layout)
        tables = _Tables(draft)
        loses_headers = java.has_headers and not target.layout.timestamped
        for start_ms, chunks in java.rows():
            for chunk in chunks:
                tables.add(rows.converted(_plain(chunk) if loses_headers else chunk, start_ms))
        tables.finish()
        reached("adopt:rows-written")
        commit = Commit(1, now_ms(), target.position, target.offsets, rows.stream_time_ms, rows.sequence)
        _make_database(draft / "database", tables.paths, target, commit)
        reached("adopt:database-made")
        make_directory(target.database.parent)
        os.rename(draft / "database", target.database)
        reached("adopt:database-moved")
        sync_directory(target.database.parent)
    except OSError as error:
        raise refused(target.database, "written", error) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return tables.rows


def _plain(chunk: Chunk) -> Chunk:
    """Return rows with headers without their timestamps and headers."""
    return [(key, without_headers(value[TIMESTAMP.size :])) for key, value in chunk]


class _Rows:
    """Converts rows. `stream_time_ms` and `sequence` are the largest of the converted rows."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._interval_ms = layout.segment_interval_ms or 1
        self.stream_time_ms = -1
        self.sequence = 0

    def converted(self, chunk: Chunk, start_ms: int) -> Chunk:
        match self._layout.kind:
            case "window":
                _, times, sequences = split_keys(chunk, WINDOW_SUFFIX)
                if self._layout.retain_duplicates:
                    self.sequence = max(self.sequence, *sequences)
                return self._in_segment(chunk, start_ms, times)
            case "session":
                return self._in_segment(chunk, start_ms, split_keys(chunk, SESSION_SUFFIX)[1])
            case "versioned":
                self._check_versions(chunk)
        return chunk

    def _in_segment(self, chunk: Chunk, start_ms: int, times: Iterable[int]) -> Chunk:
        segment = start_ms // self._interval_ms
        first, last = min(times), max(times)
        if start_ms % self._interval_ms or not first // self._interval_ms == last // self._interval_ms == segment:
            raise TopologyError(
                f"A segment of Java's begins at {start_ms} ms and has rows of {first} to {last} ms. Segments of "
                f"{self._interval_ms} ms are declared here. Declare the kind and the retention that Java has."
            )
        self.stream_time_ms = max(self.stream_time_ms, last)
        prefix = PREFIX.pack(segment)
        return [(prefix + key, value) for key, value in chunk]

    def _check_versions(self, chunk: Chunk) -> None:
        """A latest value begins with its timestamp, a segment's row with the end of its newest version."""
        try:
            for key, value in chunk:
                (segment,), (time_ms,) = _I64.unpack_from(key), _I64.unpack_from(value)
                if segment not in (_LATEST, time_ms // self._interval_ms):
                    raise TopologyError(
                        f"Java has a row of {time_ms} ms in segment {segment}. Segments of {self._interval_ms} ms are "
                        "declared here. Declare the history that Java has."
                    )
                self.stream_time_ms = max(self.stream_time_ms, time_ms)
        except struct.error as error:
            raise TopologyError("Java's rows are not those of a versioned store. Declare Java's kind.") from error


class _Tables:
    """Writes ascending rows to table files in a directory. `rows` counts them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: SstFileWriter | None = None
        self.paths: list[Path] = []
        self.rows = 0

    def add(self, chunk: Chunk) -> None:
        try:
            if self._writer is None:
                self.paths.append(self._directory / f"{len(self.paths)}.sst")
                self._writer = SstFileWriter(primary_options(DEFAULT_TUNING))
                self._writer.open(str(self.paths[-1]))
            put = self._writer.__setitem__
            deque(map(put, map(itemgetter(0), chunk), map(itemgetter(1), chunk)), maxlen=0)
            if self._writer.file_size() > _TABLE_BYTES:
                self.finish()
        except Exception as error:
            raise translated(error, self._directory) from error
        self.rows += len(chunk)

    def finish(self) -> None:
        """Complete the table that is being written."""
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.finish()
        except Exception as error:
            raise translated(error, self._directory) from error


def _make_database(directory: Path, tables: list[Path], target: Target, commit: Commit) -> None:
    make_directory(directory)
    options, moving, synced = primary_options(DEFAULT_TUNING), IngestExternalFileOptions(), WriteOptions()
    moving.set_move_files(True)
    synced.sync = True
    try:
        db = Rdict(str(directory), options, column_families={"default": options, OFFSETS_FAMILY: options})
        try:
            if tables:
                db.ingest_external_file([str(path) for path in tables], moving)
                reached("adopt:rows-moved")
            offsets = db.get_column_family_handle(OFFSETS_FAMILY)
            batch = WriteBatch(raw_mode=True)
            for key, value in (*format_rows(target.layout), types_row(target.types), *commit_rows(commit)):
                batch.put(key, value, offsets)
            db.write(batch, synced)
            del offsets, batch
        finally:
            db.close()
    except Exception as error:
        raise translated(error, directory) from error
