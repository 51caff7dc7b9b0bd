"""The file of the embedded log: its tables, and every access to it through one class.

Layout, version 1 (on disk: never change):

    record id   := partition id (23 bits) ‖ offset (40 bits), the rowid of table `records`
    headers     := NULL when there are none, else header*
    header      := nameLength:i32 name:utf8 valueLength:i32 value     (big-endian; valueLength -1: the value is None)

A rowid table measures 15 % faster writes than a `WITHOUT ROWID` table, and keeps large values out of inner pages.
`open_ranges` has the offsets of open transactions. A consumer reads up to the first one, Kafka's last stable offset.
`partitions.first_offset` follows deletions, because gaps between offsets do not show them.

With `journal_mode=WAL, synchronous=NORMAL`, readers never wait for the writer, and a `kill -9` loses nothing. A power
cut may lose the newest transactions, but never damages the file. `sync` means `synchronous=FULL`: this connection's
commits, and all earlier ones, survive a power cut. A `page_size` of 16 KiB measures a quarter faster than 4 KiB.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from stateline.log.interface import Headers
from stateline_store import ConfigurationError, DamagedDataError, InDoubtError, LogUnavailableError, NewerFormatError

APPLICATION_ID = 0x53744C67  # "StLg"; on disk: never change
SCHEMA_VERSION = 1  # on disk: never change
OFFSET_BITS = 40  # on disk: never change
OFFSET_MASK = (1 << OFFSET_BITS) - 1

_CHUNK_ROWS = 100  # between two checks of the bytes read

_SCHEMA = """
CREATE TABLE topics (name TEXT PRIMARY KEY, partitions INTEGER NOT NULL, topic_id TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE topic_settings (
    topic TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (topic, name)) WITHOUT ROWID;
CREATE TABLE partitions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, partition INTEGER NOT NULL,
    first_offset INTEGER NOT NULL DEFAULT 0, end_offset INTEGER NOT NULL DEFAULT 0, UNIQUE (topic, partition));
CREATE TABLE records (id INTEGER PRIMARY KEY, timestamp_ms INTEGER NOT NULL, key BLOB, value BLOB, headers BLOB);
CREATE TABLE producers (transactional_id TEXT PRIMARY KEY, epoch INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE open_ranges (
    partition_id INTEGER NOT NULL, first_offset INTEGER NOT NULL, last_offset INTEGER NOT NULL,
    transactional_id TEXT NOT NULL, expires_ms INTEGER NOT NULL,
    PRIMARY KEY (partition_id, first_offset)) WITHOUT ROWID;
CREATE TABLE groups (name TEXT PRIMARY KEY, generation INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE members (
    group_name TEXT NOT NULL, member TEXT NOT NULL, incarnation TEXT NOT NULL, topics TEXT NOT NULL,
    heartbeat_ms INTEGER NOT NULL, session_timeout_ms INTEGER NOT NULL,
    PRIMARY KEY (group_name, member)) WITHOUT ROWID;
CREATE TABLE assignments (
    group_name TEXT NOT NULL, partition_id INTEGER NOT NULL, target TEXT, owner TEXT,
    PRIMARY KEY (group_name, partition_id)) WITHOUT ROWID;
CREATE TABLE group_offsets (
    group_name TEXT NOT NULL, partition_id INTEGER NOT NULL, next_offset INTEGER NOT NULL,
    time_ms INTEGER, fed TEXT, PRIMARY KEY (group_name, partition_id)) WITHOUT ROWID;
"""

_LENGTH = struct.Struct(">i")
_NOT_ALLOWED = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
_DAMAGE = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}


def encode_headers(headers: Headers) -> bytes | None:
    """Return the bytes described above, or None without headers."""
    if not headers:
        return None
    parts: list[bytes] = []
    for name, value in headers:
        encoded = name.encode()
        parts += [_LENGTH.pack(len(encoded)), encoded]
        parts += [_LENGTH.pack(-1)] if value is None else [_LENGTH.pack(len(value)), value]
    return b"".join(parts)


def decode_headers(data: bytes) -> tuple[tuple[str, bytes | None], ...]:
    """Return the headers in these bytes. The file is trusted: truncated bytes raise `struct.error`."""
    headers: list[tuple[str, bytes | None]] = []
    at = 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        name = data[at + 4 : at + 4 + length].decode()
        at += 4 + length
        (length,) = _LENGTH.unpack_from(data, at)
        at += 4
        headers.append((name, None if length < 0 else data[at : at + length]))
        at += max(length, 0)
    return tuple(headers)


def monotonic_ms() -> int:
    """Return milliseconds of the machine's monotonic clock. All processes share it until the machine restarts."""
    return time.monotonic_ns() // 1_000_000


class LogFile:
    """One connection to the embedded log's file. One thread at a time uses it. With `read_only` it creates and writes
    nothing. Every method raises `LogUnavailableError` if the file stays locked for longer than `busy_timeout_ms` or
    fails, `ConfigurationError` if this user may not write it, `NewerFormatError` if a newer version wrote it, and
    `DamagedDataError` if it is damaged. All name the path."""

    def __init__(self, path: Path, busy_timeout_ms: int, *, sync: bool = False, read_only: bool = False) -> None:
        self.path = path
        self._read_only = read_only
        self._sync = sync
        self._busy_timeout_ms = busy_timeout_ms
        with self._translated():
            # The owner may pass the whole object to another thread, so SQLite must not check threads.
            self._connection = sqlite3.connect(
                self._uri(), uri=True, timeout=busy_timeout_ms / 1000, isolation_level=None, check_same_thread=False
            )
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _uri(self) -> str:
        uri = self.path.absolute().as_uri()
        if not self._read_only:
            return uri
        # Without a WAL no process has the file open. SQLite would create one, unless the URI says that it is immutable.
        has_wal = self.path.with_name(f"{self.path.name}-wal").exists()
        return f"{uri}?mode=ro" if has_wal else f"{uri}?mode=ro&immutable=1"

    def _prepare(self) -> None:
        if self._read_only:
            if not self._is_sound():
                raise LogUnavailableError(f"The embedded log {self.path} is only being made: ask again in a moment.")
            return
        deadline = time.monotonic() + self._busy_timeout_ms / 1000
        while True:
            try:
                with self._translated():
                    self._connection.execute("PRAGMA page_size = 16384")
                    # Switching to WAL does not wait for a lock, so processes that create the file together retry.
                    self._connection.execute("PRAGMA journal_mode = WAL")
                break
            except LogUnavailableError as error:
                if not _is_busy(error.__cause__) or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
        with self._translated():
            for pragma in (
                f"synchronous = {'FULL' if self._sync else 'NORMAL'}",
                "wal_autocheckpoint = 1000",
                "journal_size_limit = 67108864",
                "cache_size = -16384",
            ):
                self._connection.execute(f"PRAGMA {pragma}")
        self._create_tables()

    def _create_tables(self) -> None:
        if self._is_sound():
            return
        with self.write() as sql:
            if self._is_sound():
                return
            for statement in _SCHEMA.split(";\n"):
                sql.execute(statement)
            sql.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            sql.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _is_sound(self) -> bool:
        """Return whether the tables exist. False for a new file."""
        # One statement sees one state. Between two, another process could create the tables.
        [(application, version, tables)] = self.rows(
            "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master) "
            "FROM pragma_application_id, pragma_user_version"
        )
        if application == APPLICATION_ID and version == SCHEMA_VERSION:
            return True
        if (application, version, tables) == (0, 0, 0):
            return False
        if application == APPLICATION_ID and version > SCHEMA_VERSION:
            raise NewerFormatError.of(f"The embedded log {self.path}", f"version {version}", f"up to {SCHEMA_VERSION}")
        raise DamagedDataError(
            f"{self.path} is not an embedded log of version {SCHEMA_VERSION} (application {application:#x}, version "
            f"{version}). Give another path, or delete the file to start with an empty log."
        )

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Return all rows of this query. Nothing stays open, so SQLite can checkpoint the WAL."""
        with self._translated():
            return self._connection.execute(query, parameters).fetchall()

    def records_within(self, query: str, parameters: Sequence[Any], max_bytes: int) -> tuple[list[Any], bool]:
        """Return rows of ``(id, timestamp_ms, key, value, headers)``, and whether these are all. It stops after about
        `max_bytes` of keys and values, with at least one row."""
        rows: list[Any] = []
        size = 0
        with self._translated(), closing(self._connection.execute(query, parameters)) as cursor:
            while chunk := cursor.fetchmany(_CHUNK_ROWS if size else 1):
                rows += chunk
                size += sum(len(key or b"") + len(value or b"") + 1 for _, _, key, value, _ in chunk)
                if size >= max_bytes:
                    return rows, False
        return rows, True

    def data_version(self) -> int:
        """Return a number that changes with each commit of another connection. Costs 1 µs."""
        with self._translated():
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Run one write transaction: commit when the block ends, roll back when it raises. Raises `InDoubtError` if the
        commit itself fails for another reason than a lock."""
        with self._translated():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._roll_back()
                raise
            self._commit()

    def _commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            if _is_busy(error):
                raise
            space = "Free some space, then restart" if "disk is full" in str(error) else "Restart"
            raise InDoubtError(
                f"Whether the last transaction reached {self.path} is unknown ({error}). {space} and read the file."
            ) from error

    def _roll_back(self) -> None:
        if self._connection.in_transaction:  # SQLite itself rolls back after some errors, such as a full disk
            self._connection.execute("ROLLBACK")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError:
            raise  # a bug in this package, or a use after close
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in _DAMAGE:
                raise DamagedDataError(
                    f"{self.path} is not a sound embedded log ({error}): restore it from a copy, or delete it "
                    "to start with an empty log."
                ) from error
            if code in _NOT_ALLOWED or (code == sqlite3.SQLITE_CANTOPEN and self._is_closed_to_us()):
                raise ConfigurationError(
                    f"The embedded log {self.path} cannot be written ({error}): make the file and its folder writable "
                    "for this user, or name another log, as in bootstrap.servers=embedded:PATH."
                ) from error
            raise LogUnavailableError(f"The embedded log {self.path} does not answer: {error}.") from error

    def _is_closed_to_us(self) -> bool:
        """Return whether the path is at fault, and not a lack of file descriptors."""
        path = self.path if self.path.exists() else self.path.parent
        return self.path.is_dir() or not os.access(path, os.R_OK | os.W_OK, effective_ids=True)

    def close(self) -> None:
        """Release the file, and roll back an open write. A second call does nothing."""
        self._connection.close()


def _is_busy(error: BaseException | None) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
