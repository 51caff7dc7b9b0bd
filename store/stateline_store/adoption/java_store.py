"""JavaStore: a store partition of Kafka Streams (3.6 to 4.4) on disk. Nothing in its directory changes.

| store in Java                 | databases below the task's directory      | rows in the column family           |
|-------------------------------|-------------------------------------------|-------------------------------------|
| key-value, versioned          | ``rocksdb/<store>``                       | ``default``                         |
| timestamped key-value         | ``rocksdb/<store>``                       | ``keyValueWithTimestamp``           |
| window, session               | ``<store>/<store>.<segment start in ms>`` | ``default``                         |
| timestamped window            | ``<store>/<store>.<segment start in ms>`` | ``keyValueWithTimestamp``           |
| with headers (4.4)            | either                                    | a family that ends in `Headers`     |

A newer family may stand beside older ones, whose rows Java has not moved yet. From 4.3 on, the column family `offsets`
has the changelog offset, the Position and ``status``: i64, 1 while the store is open. A transactional store has no
status. Before, ``<task>/.checkpoint`` and ``<task>/<store>.position`` have offset and Position.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import struct
import tempfile
from collections.abc import Callable, Generator, Iterator
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
from stateline_store.rows.headers import NO_HEADERS, timestamp_first
from stateline_store.scan import LARGEST_CHUNK, KeyRange

_TIMESTAMPED = "keyValueWithTimestamp"  # Kafka Streams' names on disk
_SESSIONS_WITH_HEADERS = "sessionKeyValueWithHeaders"
_WITH_HEADERS = frozenset({"keyValueWithTimestampAndHeaders", "windowKeyValueWithHeaders", _SESSIONS_WITH_HEADERS})
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
    the task's `.checkpoint`, which has those of all its stores. `is_closed` is False if files show that the store was
    open when its process ended. `families` are the column families of all databases.
    """

    def __init__(self, files: JavaFiles) -> None:
        """Open the databases. Raises `DamagedDataError` if one cannot be trusted, `StorageError` if one cannot be
        read."""
        self.files = files
        self.is_closed = True
        self.families: set[str] = set()
        self._opened = contextlib.ExitStack()
        self._databases: list[tuple[Rdict, frozenset[str]]] = []  # with their families
        self.position, offsets = Position(), list[dict[TopicPartition, int]]()
        try:
            for directory in files.databases:
                of_database, position = self._open(directory)
                offsets.append(of_database)
                self.position = self.position.merge(position)
        except BaseException:
            self.close()
            raise
        self.has_own_offsets = any(offsets)
        self.is_closed = self.is_closed and all(each == offsets[0] for each in offsets)  # a commit goes to all segments
        self.offsets = offsets[0] if self.has_own_offsets else _noted(files.task)
        self.position = self.position or read_position(files.task / f"{files.name}.position")

    @property
    def timestamped(self) -> bool:
        """Whether values have timestamps."""
        return _TIMESTAMPED in self.families or self.has_headers

    @property
    def has_headers(self) -> bool:
        """Whether values have headers."""
        return not self.families.isdisjoint(_WITH_HEADERS)

    def rows(self) -> Iterator[tuple[int, Rows]]:
        """Yield the start of each segment, and its rows in key order, in chunks. The start is 0 without segments.
        Values have Stateline's form: timestamp (-1: unknown), headers, value."""
        starts = self.files.starts_ms or (0,)
        for start, directory, (database, families) in zip(starts, self.files.databases, self._databases, strict=True):
            yield start, self._rows(database, families, directory)

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

    def _rows(self, database: Rdict, families: frozenset[str], directory: Path) -> Rows:
        """Yield the rows of all families. If a key is in several, the newest family has its row. A segment may lack a
        family that others have: Java makes families after the database, and may be killed in between."""
        newest_first = [*sorted(families & _WITH_HEADERS), *({_TIMESTAMPED} & families), ""]
        scans = [_scan(self._family(database, name) if name else database, directory) for name in newest_first]
        filled = [
            (_form(name, headers=self.has_headers), itertools.chain([first], scan))
            for name, scan in zip(newest_first, scans, strict=True)
            if (first := next(scan, None))
        ]
        if not self.timestamped or (len(filled) == 1 and filled[0][0] is None):
            yield from (chunk for _, scan in filled for chunk in scan)
            return
        merged = _newest(heapq.merge(*itertools.starmap(_converted, filled), key=itemgetter(0)))
        while chunk := list(itertools.islice(merged, LARGEST_CHUNK)):
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
        self._databases.append((database, frozenset(found)))
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


def _form(family: str, *, headers: bool) -> Callable[[bytes], bytes] | None:
    """Return the conversion of this family's values, None if there is none."""
    if family == _SESSIONS_WITH_HEADERS:
        return _UNKNOWN_TIME.__add__
    if family in _WITH_HEADERS:
        return timestamp_first
    if family == _TIMESTAMPED:
        return (lambda value: value[:8] + NO_HEADERS + value[8:]) if headers else None
    return (_UNKNOWN_TIME + (NO_HEADERS if headers else b"")).__add__


def _converted(form: Callable[[bytes], bytes] | None, scan: Rows) -> Iterator[tuple[bytes, bytes]]:
    rows = itertools.chain.from_iterable(scan)
    return rows if form is None else ((key, form(value)) for key, value in rows)


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
