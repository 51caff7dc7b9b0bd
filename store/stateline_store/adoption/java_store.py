"""JavaStore: a store partition of Kafka Streams (3.6 to 4.4) on disk. Nothing in its directory changes.

| store in Java                 | databases below the task's directory      | rows in the column family           |
|-------------------------------|-------------------------------------------|-------------------------------------|
| key-value, versioned          | ``rocksdb/<store>``                       | ``default``                         |
| timestamped key-value         | ``rocksdb/<store>``                       | ``keyValueWithTimestamp``           |
| window, session               | ``<store>/<store>.<segment start in ms>`` | ``default``                         |
| timestamped window            | ``<store>/<store>.<segment start in ms>`` | ``keyValueWithTimestamp``           |
| with headers (4.4)            | either                                    | a family that ends in `Headers`     |

A timestamped store may still have rows in ``default``, which an old version wrote without timestamps. From 4.3 on, the
column family `offsets` has the changelog offset, the Position and ``status``: i64, 1 while the store is open. Before,
``<task>/.checkpoint`` and ``<task>/<store>.position`` have offset and Position.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import struct
import tempfile
from collections.abc import Generator, Iterator
from itertools import islice
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from rocksdict import AccessType, Rdict

from stateline_store.errors import DamagedDataError
from stateline_store.files.directory import holds_database
from stateline_store.files.offset_checkpoint import (
    OFFSET_CHECKPOINT,
    OFFSET_UNKNOWN,
    read_offset_checkpoint,
    read_position,
)
from stateline_store.position import Position, TopicPartition
from stateline_store.rocksdb.errors import translated
from stateline_store.rocksdb.options import secondary_options
from stateline_store.rocksdb.rows import OFFSETS_FAMILY
from stateline_store.rocksdb.scans import scan_rows
from stateline_store.scan import LARGEST_CHUNK, KeyRange

_TIMESTAMPED = "keyValueWithTimestamp"  # Kafka Streams' name on disk
_WITH_HEADERS = "Headers"  # ends Kafka Streams' names on disk
_POSITION, _STATUS = b"position", b"status"  # Kafka Streams' rows
_UNKNOWN_TIME = struct.pack(">q", -1)  # Kafka Streams reads a row without a timestamp with this one
_I64 = struct.Struct(">q")
_NOT_LINKED = frozenset({"LOCK", "LOG", "rocksdict-config.json"})

Rows = Iterator[list[tuple[bytes, bytes]]]


class JavaFiles(NamedTuple):
    """The databases of a store partition, oldest segment first. `starts_ms` are the starts of its segments, empty for
    a store without segments."""

    task: Path
    name: str
    databases: tuple[Path, ...]
    starts_ms: tuple[int, ...] = ()


def find_java_store(task: Path, name: str) -> JavaFiles | None:
    """Return the files of this store in a task's directory, None if there are none."""
    if holds_database(database := task / "rocksdb" / name):
        return JavaFiles(task, name, (database,))
    starts = {}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for entry in (task / name).iterdir():
            text = entry.name.removeprefix(f"{name}.")
            if text != entry.name and text.isdecimal() and holds_database(entry):
                starts[int(text)] = entry
    ordered = sorted(starts)
    return JavaFiles(task, name, tuple(starts[start] for start in ordered), tuple(ordered)) if starts else None


def java_stores(task: Path) -> list[str]:
    """Return the names of the stores that have a directory in this task."""
    found = [entry.name for entry in (task / "rocksdb").glob("*") if holds_database(entry)]
    return sorted([*found, *(entry.name for entry in task.glob("*/") if find_java_store(task, entry.name))])


class JavaStore:
    """One opening of a store partition, for reading. A context manager. Not thread-safe.

    `offsets` are those last applied, by changelog partition. `has_own_offsets`: they are the store's own, and not from
    the task's `.checkpoint`, which has those of all its stores. `is_closed` is False if the store was open when its
    process ended. `families` are the column families of all databases.
    """

    def __init__(self, files: JavaFiles) -> None:
        """Open the databases. Raises `DamagedDataError` if one cannot be trusted, `StorageError` if one cannot be
        read."""
        self.files = files
        self.is_closed = True
        self.families: set[str] = set()
        self._opened = contextlib.ExitStack()
        self._databases: list[Rdict] = []
        offsets: dict[TopicPartition, int] = {}
        self.position = Position()
        try:
            for directory in files.databases:
                of_database, position = self._open(directory)
                for partition, offset in of_database.items():
                    offsets[partition] = max(offset, offsets.get(partition, offset))
                self.position = self.position.merge(position)
        except BaseException:
            self.close()
            raise
        self.has_own_offsets = bool(offsets)
        self.offsets = offsets or _noted(files.task)
        self.position = self.position or read_position(files.task / f"{files.name}.position")

    @property
    def timestamped(self) -> bool:
        """Whether values have timestamps."""
        return _TIMESTAMPED in self.families

    @property
    def has_headers(self) -> bool:
        """Whether values have headers."""
        return any(name.endswith(_WITH_HEADERS) for name in self.families)

    def rows(self) -> Iterator[tuple[int, Rows]]:
        """Yield the start of each segment, and its rows in key order, in chunks. The start is 0 without segments."""
        starts = self.files.starts_ms or (0,)
        for start, directory, database in zip(starts, self.files.databases, self._databases, strict=True):
            yield start, self._rows(database, directory)

    def close(self) -> None:
        """Close the databases."""
        self._databases.clear()
        self._opened.close()

    def __enter__(self) -> JavaStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _rows(self, database: Rdict, directory: Path) -> Rows:
        plain = _scan(database, directory)
        if not self.timestamped:
            yield from plain
            return
        timestamped = _scan(self._family(database, _TIMESTAMPED), directory)
        if not (first := next(plain, None)):
            yield from timestamped
            return
        older = ((key, _UNKNOWN_TIME + value) for chunk in _chained(first, plain) for key, value in chunk)
        newer = (row for chunk in timestamped for row in chunk)
        merged = _newest(heapq.merge(newer, older, key=itemgetter(0)))  # of equal keys, `newer` comes first
        while chunk := list(islice(merged, LARGEST_CHUNK)):
            yield chunk

    def _family(self, database: Rdict, name: str) -> Rdict:
        family = database.get_column_family(name)
        self._opened.callback(family.close)
        return family

    def _open(self, directory: Path) -> tuple[dict[TopicPartition, int], Position]:
        """Open a database through links to its files, because rocksdict writes into the directory that it opens."""
        links = Path(self._opened.enter_context(tempfile.TemporaryDirectory(prefix="stateline-adopt-")))
        for name in os.listdir(directory):
            if name not in _NOT_LINKED:
                (links / name).symlink_to((directory / name).absolute())
        try:
            found = Rdict.list_cf(str(links))
            families = {name: secondary_options() for name in found or ["default"]}
            access = AccessType.read_only(error_if_log_file_exist=False)
            database = Rdict(str(links), secondary_options(), column_families=families, access_type=access)
        except Exception as error:
            raise translated(error, directory) from error
        self._opened.callback(database.close)
        self._databases.append(database)
        self.families.update(found)
        if OFFSETS_FAMILY not in found:
            return {}, Position()
        rows = dict(row for chunk in _scan(self._family(database, OFFSETS_FAMILY), directory) for row in chunk)
        self.is_closed = self.is_closed and rows.pop(_STATUS, _I64.pack(0)) == _I64.pack(0)
        position = rows.pop(_POSITION, None)
        try:
            offsets = {_partition(key): int(_I64.unpack(value)[0]) for key, value in rows.items()}
        except (struct.error, ValueError) as error:
            raise DamagedDataError(f"{directory} has an offset that cannot be read: {error}.") from error
        return offsets, Position() if position is None else Position.decode(position, directory)


def _scan(family: Rdict, directory: Path) -> Rows:
    return scan_rows(family, KeyRange(), directory, reverse=False, cached=False).chunks()


def _chained(first: list[tuple[bytes, bytes]], rest: Rows) -> Rows:
    yield first
    yield from rest


def _newest(rows: Iterator[tuple[bytes, bytes]]) -> Generator[tuple[bytes, bytes], None, None]:
    """Yield the first row of each key."""
    last: bytes | None = None
    for row in rows:
        if row[0] != last:
            yield row
        last = row[0]


def _noted(task: Path) -> dict[TopicPartition, int]:
    noted = read_offset_checkpoint(task / OFFSET_CHECKPOINT)
    return {partition: offset for partition, offset in noted.items() if offset != OFFSET_UNKNOWN}


def _partition(key: bytes) -> TopicPartition:
    topic, _, number = key.decode().rpartition("-")
    return TopicPartition(topic, int(number))
