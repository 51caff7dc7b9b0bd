"""RocksDBEngine: one RocksDB per store partition, opened by its owner.

On disk: never change.

    column family `default`   the store's rows, raw bytes
    column family `offsets`   utf8 ``topic-partition`` → i64 BE   changelog offset last applied (Kafka
    Streams' row)
                              ``position``       → Position, version 0 (`position.py`; Kafka Streams' row)
                              ``format_version`` → u32 BE         1
                              ``commit_number``  → u64 BE         commits of this database, from 1
                              ``committed_at``   → u64 BE         when the newest was made, ms since the epoch

Names of Stateline's own rows hold no ``-``, so no ``topic-partition`` can be equal to one.

A commit is one WriteBatch with the WAL on: rows, offsets, Position and commit number become visible, and
survive a crash, together.
"""

from __future__ import annotations

import logging
import struct
import weakref
from collections import deque
from collections.abc import Generator, Mapping
from pathlib import Path

from rocksdict import Rdict, RdictIter, WriteBatch, WriteOptions

from stateline_store.directory import make_directory
from stateline_store.engine import Commit
from stateline_store.errors import (
    CallerError,
    DamagedDataError,
    PoisonedError,
    StatelineError,
    StoreClosedError,
)
from stateline_store.position import Position, TopicPartition
from stateline_store.rocksdb_errors import damaged, translated
from stateline_store.rocksdb_options import DEFAULT_TUNING, Tuning, primary_options
from stateline_store.scan import KeyRange, Scan, StoreIterator

_log = logging.getLogger(__name__)

FORMAT_VERSION = 1  # on disk: never change what 1 means
OFFSETS_FAMILY = "offsets"  # on disk: never change
_POSITION = b"position"  # on disk: never change
_FORMAT_VERSION = b"format_version"  # on disk: never change
_COMMIT_NUMBER = b"commit_number"  # on disk: never change
_COMMITTED_AT = b"committed_at"  # on disk: never change
_OWN_ROWS = frozenset({_POSITION, _FORMAT_VERSION, _COMMIT_NUMBER, _COMMITTED_AT})
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_I64 = struct.Struct(">q")


class RocksDBEngine:
    """An `Engine` over a RocksDB that this process owns."""

    def __init__(self, directory: Path, tuning: Tuning = DEFAULT_TUNING) -> None:
        """Open the database, creating it when there is none.

        Raises `LockedError` when it is open elsewhere, `DamagedDataError` when it cannot be trusted,
        `CallerError` when a newer version wrote it, `RetryLaterError` when the file system refuses. Never
        deletes anything.
        """
        self.directory = directory
        self._scans: weakref.WeakSet[StoreIterator] = weakref.WeakSet()
        self._closed = False
        self._failure: str | None = None
        make_directory(directory)
        families = {"default": primary_options(tuning), OFFSETS_FAMILY: primary_options(tuning)}
        try:
            self._db = Rdict(str(directory), primary_options(tuning), column_families=families)
        except Exception as error:
            raise translated(error, directory) from error
        try:
            self._offsets = self._db.get_column_family(OFFSETS_FAMILY)
            self._offsets_handle = self._db.get_column_family_handle(OFFSETS_FAMILY)
            self._check_format()
        except BaseException:
            self.close()
            raise

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:
            raise self._refusal() or translated(error, self.directory) from error
        return value

    def scan(self, keys: KeyRange, *, reverse: bool = False) -> StoreIterator:
        refusal = self._refusal()
        if refusal:
            raise refusal
        scan = scan_rows(self._db, keys, self.directory, reverse=reverse)
        self._scans.add(scan)
        return scan

    def write(self, rows: Mapping[bytes, bytes | None], commit: Commit, *, sync: bool = False) -> None:
        refusal = self._refusal()
        if refusal:
            raise refusal
        batch = self._batch(rows, commit)
        options = WriteOptions()
        options.sync = sync
        try:
            self._db.write(batch, options)
        except Exception as error:  # noqa: BLE001  # rocksdict raises nothing narrower
            # Whether the log holds the batch is open: refuse everything until a reopen has read it.
            self._failure = str(error)
            self.close()
            raise self._refusal() or translated(error, self.directory) from translated(error, self.directory)

    def last_commit(self) -> Commit:
        return read_commit(self._offsets, self.directory)

    def approximate_num_entries(self) -> int:
        refusal = self._refusal()
        if refusal:
            raise refusal
        return estimated_rows(self._db, self.directory)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for scan in list(self._scans):
            scan.cut_off()  # a live iterator would keep the database, and its LOCK, open
        # Handles keep the database open as well, so they go too.
        handles = [self._offsets, self._db] if hasattr(self, "_offsets") else [self._db]
        self.__dict__.pop("_offsets", None)
        self.__dict__.pop("_offsets_handle", None)
        del self._db
        for handle in handles:
            try:
                handle.close()
            except Exception as error:  # noqa: BLE001  # rocksdict raises nothing narrower
                # Closing flushes memtables, which the log holds as well: the next opening replays it.
                _log.warning("%s: RocksDB failed while closing; nothing is lost by it: %s", self.directory, error)

    def _refusal(self) -> StatelineError | None:
        """Why nothing can be read or written; None when all is well."""
        if self._failure is not None:
            return PoisonedError(
                f"A commit to {self.directory} failed: {self._failure}. Whether it was "
                "kept is known after `close` and `init`; until then this store refuses everything."
            )
        return StoreClosedError(f"{self.directory} is closed: call init first.") if self._closed else None

    def _batch(self, rows: Mapping[bytes, bytes | None], commit: Commit) -> WriteBatch:
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        keys = sorted(rows)  # sorted batches go in 1.3 to 2 times faster: memtable inserts find their place near
        if None in rows.values():
            for key in keys:
                value = rows[key]
                if value is None:
                    delete(key)
                else:
                    put(key, value)
        else:
            deque(map(put, keys, map(rows.__getitem__, keys)), maxlen=0)  # the loop above, without an interpreter
        family = self._offsets_handle
        for partition, offset in commit.offsets.items():
            put(str(partition).encode(), _I64.pack(offset), family)
        put(_POSITION, commit.position.encode(), family)
        put(_COMMIT_NUMBER, _U64.pack(commit.number), family)
        put(_COMMITTED_AT, _U64.pack(commit.committed_at_ms), family)
        return batch

    def _check_format(self) -> None:
        """Refuse a newer format; mark a new database."""
        try:
            stored: bytes | None = self._offsets.get(_FORMAT_VERSION)
            if stored is None:
                self._offsets[_FORMAT_VERSION] = _U32.pack(FORMAT_VERSION)
                return
            (version,) = _U32.unpack(stored)
        except struct.error as error:
            raise damaged(self.directory, f"its format version is {stored!r}") from error
        except Exception as error:
            raise translated(error, self.directory) from error
        if version > FORMAT_VERSION:
            raise CallerError(
                f"The store in {self.directory} has format version {version}; this version of Stateline reads "
                f"up to {FORMAT_VERSION}: run the newer one, or delete the directory to rebuild it from its "
                "changelog."
            )


def scan_rows(db: Rdict, keys: KeyRange, directory: Path, *, reverse: bool) -> StoreIterator:
    """The rows of one column family, pinned now.

    The ends are checked here, not by RocksDB: in rocksdict 0.3.29 `set_iterate_lower_bound` sets the upper
    bound, and either bound is read after the ReadOptions that own its bytes are gone.
    """
    try:
        rows = None if keys.is_empty else db.iter()
        if rows is None:
            return Scan(_no_rows())
        if not reverse:
            rows.seek(keys.start)
        elif keys.end is None:
            rows.seek_to_last()
        else:
            rows.seek_for_prev(keys.end)
    except Exception as error:
        raise translated(error, directory) from error
    return Scan((_backward if reverse else _forward)(rows, keys, directory))


def _forward(rows: RdictIter, keys: KeyRange, directory: Path) -> Generator[tuple[bytes, bytes], None, None]:
    try:
        valid, key, value, step, end = rows.valid, rows.key, rows.value, rows.next, keys.end
        while valid():
            at = key()
            if end is not None and at >= end:
                break
            yield at, value()
            step()
        rows.status()  # raises what ended the scan early: an I/O error must not look like the end of data
    except Exception as error:
        raise translated(error, directory) from error


def _backward(rows: RdictIter, keys: KeyRange, directory: Path) -> Generator[tuple[bytes, bytes], None, None]:
    try:
        valid, key, value, step, start = rows.valid, rows.key, rows.value, rows.prev, keys.start
        if valid() and key() == keys.end:
            step()
        while valid():
            at = key()
            if at < start:
                break
            yield at, value()
            step()
        rows.status()  # as above
    except Exception as error:
        raise translated(error, directory) from error


def _no_rows() -> Generator[tuple[bytes, bytes], None, None]:
    yield from ()


def read_commit(offsets: Rdict, directory: Path) -> Commit:
    """The newest commit, from the `offsets` column family. Raises `DamagedDataError` for rows that make no
    sense.
    """
    with scan_rows(offsets, KeyRange(), directory, reverse=False) as scan:
        rows = dict(scan)
    try:
        return Commit(
            number=_U64.unpack(rows[_COMMIT_NUMBER])[0] if _COMMIT_NUMBER in rows else 0,
            committed_at_ms=_U64.unpack(rows[_COMMITTED_AT])[0] if _COMMITTED_AT in rows else 0,
            position=Position.decode(rows[_POSITION]) if _POSITION in rows else Position(),
            offsets={_partition(key): _I64.unpack(rows[key])[0] for key in rows.keys() - _OWN_ROWS},
        )
    except (struct.error, ValueError, DamagedDataError) as error:
        raise damaged(directory, f"a row of its offsets cannot be read: {error}") from error


def estimated_rows(db: Rdict, directory: Path) -> int:
    """RocksDB's estimate of the rows of the `default` column family: overwrites may count twice until
    compacted.
    """
    try:
        return int(db.property_int_value("rocksdb.estimate-num-keys") or 0)
    except Exception as error:
        raise translated(error, directory) from error


def _partition(key: bytes) -> TopicPartition:
    topic, separator, number = key.decode().rpartition("-")
    if not separator:
        raise ValueError(f"{key!r} is not topic-partition")
    return TopicPartition(topic, int(number))
