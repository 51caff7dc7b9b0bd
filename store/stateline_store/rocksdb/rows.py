"""The rows of a store's database, and how to read them, for its owner, for readers and for inspections.

On disk: never change.

    column family `default`   the store's rows, raw bytes
    column family `offsets`   utf8 ``topic-partition`` → i64 BE   changelog offset last applied (Kafka Streams' row)
                              ``position``       → Position, version 0 (`position.py`; Kafka Streams' row)
                              ``format_version`` → u32 BE         1
                              ``commit_number``  → u64 BE         commits of this database, from 1
                              ``committed_at``   → u64 BE         time of the newest commit, ms since the epoch
                              ``layout``         → JSON           the form of rows (`layout.py`)
                              ``types``          → JSON           the meaning of their bytes (`layout.py`)
                              ``stream_time``    → i64 BE         ms; only with a retention or time to live
                              ``sequence``       → i64 BE         only in stores that retain duplicates

Names of Stateline's own rows hold no ``-``, so no ``topic-partition`` can be equal to one.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rocksdict import Rdict

from stateline_store.engines.engine import Commit
from stateline_store.errors import DamagedDataError, NewerFormatError
from stateline_store.layout import Layout, StoreTypes
from stateline_store.position import Position, TopicPartition
from stateline_store.rocksdb.errors import damaged, translated

FORMAT_VERSION = 1  # on disk: never change what 1 means
OFFSETS_FAMILY = "offsets"  # on disk: never change
_POSITION = b"position"  # on disk: never change
_FORMAT_VERSION_ROW = b"format_version"  # on disk: never change
_COMMIT_NUMBER = b"commit_number"  # on disk: never change
_COMMITTED_AT = b"committed_at"  # on disk: never change
_LAYOUT = b"layout"  # on disk: never change
_TYPES = b"types"  # on disk: never change
_STREAM_TIME = b"stream_time"  # on disk: never change
_SEQUENCE = b"sequence"  # on disk: never change
_OWN_ROWS = frozenset(
    {_POSITION, _FORMAT_VERSION_ROW, _COMMIT_NUMBER, _COMMITTED_AT, _LAYOUT, _TYPES, _STREAM_TIME, _SEQUENCE}
)
_KNOWN_ROWS = ", ".join(sorted(name.decode() for name in _OWN_ROWS))
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_I64 = struct.Struct(">q")


class Format(NamedTuple):
    """The format of a database. `types` is None if its owner was opened without types."""

    version: int
    layout: Layout
    types: StoreTypes | None


def written_format(offsets: Rdict, directory: Path) -> Format:
    """Read the format of a database that its owner has opened. Raises as `read_format`, and `DamagedDataError` if the
    database does not say its format."""
    if (found := read_format(offsets, directory)) is None:
        raise damaged(directory, "it has no format version")
    return found


def read_format(offsets: Rdict, directory: Path) -> Format | None:
    """Read the format of a database from its `offsets` column family. Returns None for a new database, and for one of
    Kafka Streams.

    Raises `NewerFormatError` for a newer version than this code knows, `DamagedDataError` for rows that make no sense.
    """
    try:
        stored: bytes | None = offsets.get(_FORMAT_VERSION_ROW)
        layout: bytes | None = offsets.get(_LAYOUT)
        types: bytes | None = offsets.get(_TYPES)
        if stored is None:
            return None
        (version,) = _U32.unpack(stored)
    except struct.error as error:
        raise damaged(directory, f"its format version is {stored!r}") from error
    except Exception as error:
        raise translated(error, directory) from error
    if version > FORMAT_VERSION:
        raise NewerFormatError.of(f"The store in {directory}", f"format version {version}", f"up to {FORMAT_VERSION}")
    if layout is None:
        raise damaged(directory, "it has a format version and no layout")
    where = f"The store in {directory}"
    return Format(version, Layout.decode(layout, where), None if types is None else StoreTypes.decode(types, where))


def check_format(stored: Format, layout: Layout, types: StoreTypes | None, commit: Commit, directory: Path) -> Layout:
    """Return the layout of a database's rows. Raises `TopologyError` if the declaration has another layout or other
    types."""
    layout.check(stored.layout, directory)
    if types is not None and stored.types is not None and commit.number:  # before the first, no bytes have these types
        types.check(stored.types, directory)
    return stored.layout


def format_rows(layout: Layout) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of `offsets` that mark a new database."""
    yield _FORMAT_VERSION_ROW, _U32.pack(FORMAT_VERSION)
    yield _LAYOUT, layout.encode()


def types_row(types: StoreTypes) -> tuple[bytes, bytes]:
    """Return the row of `offsets` with the types."""
    return _TYPES, types.encode()


def commit_rows(commit: Commit) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of `offsets` that a commit writes."""
    for partition, offset in commit.offsets.items():
        yield str(partition).encode(), _I64.pack(offset)
    yield _POSITION, commit.position.encode()
    yield _COMMIT_NUMBER, _U64.pack(commit.number)
    yield _COMMITTED_AT, _U64.pack(commit.committed_at_ms)
    if commit.stream_time_ms >= 0:
        yield _STREAM_TIME, _I64.pack(commit.stream_time_ms)
    if commit.sequence:
        yield _SEQUENCE, _I64.pack(commit.sequence)


def read_commit(offsets: Rdict, directory: Path) -> Commit:
    """Read the newest commit from the `offsets` column family. Raises `DamagedDataError` for rows that make no sense,
    `NewerFormatError` for those of a newer version."""
    rows = _all_rows(offsets, directory)
    where = f"The store in {directory}"
    others = rows.keys() - _OWN_ROWS
    for name in others:
        if b"-" not in name:  # a newer version's own, as all of this one's
            raise NewerFormatError.of(where, f"a row {name!r:.200} in its offsets", _KNOWN_ROWS)
    try:
        return Commit(
            number=_U64.unpack(rows[_COMMIT_NUMBER])[0] if _COMMIT_NUMBER in rows else 0,
            committed_at_ms=_U64.unpack(rows[_COMMITTED_AT])[0] if _COMMITTED_AT in rows else 0,
            position=Position.decode(rows[_POSITION], where) if _POSITION in rows else Position(),
            offsets={_partition(key): _I64.unpack(rows[key])[0] for key in others},
            stream_time_ms=_I64.unpack(rows[_STREAM_TIME])[0] if _STREAM_TIME in rows else -1,
            sequence=_I64.unpack(rows[_SEQUENCE])[0] if _SEQUENCE in rows else 0,
        )
    except (struct.error, ValueError, DamagedDataError) as error:
        raise damaged(directory, f"a row of its offsets cannot be read: {error}") from error


def _all_rows(offsets: Rdict, directory: Path) -> dict[bytes, bytes]:
    """Return the few rows of the column family. Each catch-up of a reader does this, and `scan_rows` takes longer."""
    rows = {}
    try:
        iterator = offsets.iter()
        iterator.seek_to_first()
        while iterator.valid():
            rows[iterator.key()] = iterator.value()
            iterator.next()
        iterator.status()
    except Exception as error:
        raise translated(error, directory) from error
    return rows


def estimated_rows(db: Rdict, directory: Path) -> int:
    """Return RocksDB's estimate of the rows of the `default` column family. Overwrites may count twice until
    compacted."""
    try:
        return int(db.property_int_value("rocksdb.estimate-num-keys") or 0)
    except Exception as error:
        raise translated(error, directory) from error


def rows_at_least(db: Rdict, directory: Path) -> int:
    """Return how many rows the `default` column family has for certain, as far as files tell: a level has a key once.
    The few rows of `offsets` count, too. Rows in memory do not, and every delete counts as one row less."""
    runs: Counter[int | str] = Counter()
    try:
        memory = ("rocksdb.num-deletes-active-mem-table", "rocksdb.num-deletes-imm-mem-tables")
        deleted = sum(int(db.property_int_value(name) or 0) for name in memory)
        for file in db.live_files():
            runs[file["level"] or file["name"]] += file["num_entries"] - file["num_deletions"]  # of level 0 overlap
            deleted += file["num_deletions"]
    except Exception as error:
        raise translated(error, directory) from error
    return max(0, max(runs.values(), default=0) - deleted)


def _partition(key: bytes) -> TopicPartition:
    topic, _, number = key.decode().rpartition("-")
    return TopicPartition(topic, int(number))
