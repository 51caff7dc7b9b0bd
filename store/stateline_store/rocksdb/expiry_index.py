"""The column family ``expiry`` of a store whose entries expire: the rows of `rows.expiry`, and what they were made for.

On disk: never change. The key of no bytes has ``time to live:i64 BE ‖ newest timestamp:i64 BE ‖ own:u8``: the store's
declaration when its rows were indexed, and their newest timestamp then.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol

from rocksdict import Options, Rdict, WriteBatch

from stateline_store.rocksdb.errors import damaged, translated
from stateline_store.rocksdb.scans import scan_rows
from stateline_store.rows.expiry import NEVER, IndexChanges, IndexRow, Lifetime, index_rows
from stateline_store.rows.timestamped_rows import TIMESTAMP
from stateline_store.scan import KeyRange, StoreIterator
from stateline_store.steps import reached

EXPIRY_FAMILY = "expiry"  # on disk: never change
_DECLARED = struct.Struct(">qqB")  # on disk: never change
_DECLARED_KEY = b""  # on disk: never change; before every row
_BUILT = 2**63  # larger than numbers of commits
_log = logging.getLogger(__name__)


class WriteIndex(Protocol):
    """Writes a batch of the index, and waits while RocksDB takes no writes."""

    def __call__(self, batch: Callable[[], WriteBatch], *, sync: bool) -> None: ...


class ExpiryIndex:
    """For the database's owner. It keeps the database open until `close`."""

    def __init__(self, database: Rdict, directory: Path) -> None:
        self._db, self._directory = database, directory
        self._family = database.get_column_family(EXPIRY_FAMILY)
        self._handle = database.get_column_family_handle(EXPIRY_FAMILY)

    def due(self, start: bytes, most: int) -> list[IndexRow]:
        """Return the first `most` rows from `start` on."""
        with scan_rows(self._family, KeyRange(start), self._directory, reverse=False) as rows:
            return [*islice(rows, most)]

    def stage(self, batch: WriteBatch, changes: IndexChanges) -> None:
        """Add these changes to the batch of a commit."""
        for row in changes.removed:
            batch.delete(row, self._handle)
        for row, content in changes.added:
            batch.put(row, content, self._handle)

    def made_for(self, lifetime: Lifetime, rows: StoreIterator, write: WriteIndex) -> int:
        """Index these rows, all of the store, for this declaration, unless they are. Returns their newest timestamp at
        that moment, -1 without one. Raises Stateline's errors. An interrupted pass begins again at the next opening,
        also for an earlier declaration: the first batch deletes that."""
        with rows:
            try:
                stored: bytes | None = self._family.get(_DECLARED_KEY)
                if stored is not None and len(stored) != _DECLARED.size:
                    raise damaged(self._directory, f"its index of expiries says {stored!r:.60}")
                ttl_ms, newest_ms, own = (-1, -1, 0) if stored is None else _DECLARED.unpack(stored)
                return int(newest_ms) if (ttl_ms, own) == lifetime else self._build(rows, lifetime, write)
            except Exception as error:
                raise translated(error, self._directory) from error

    def _build(self, rows: StoreIterator, lifetime: Lifetime, write: WriteIndex) -> int:
        newest_ms, count = -1, 0
        for chunk in filter(None, rows.chunks()):
            times = lifetime.times(row for _, row in chunk)
            entries = [(at, key) for (key, _), at in zip(chunk, times, strict=True) if at < NEVER]
            added = index_rows(entries, lifetime.span_ms, _BUILT + count)
            write(partial(self._batch, IndexChanges(added, [] if count else [_DECLARED_KEY])), sync=False)
            newest_ms = max([newest_ms, *(TIMESTAMP.unpack_from(row)[0] for _, row in chunk)])
            count += len(chunk)
            reached("expiry:batch-written")
        if count:
            _log.info("%s has an index of expiries now: %d rows were read", self._directory, count)
        declared = (_DECLARED_KEY, _DECLARED.pack(lifetime.ttl_ms, newest_ms, lifetime.own))
        write(partial(self._batch, IndexChanges([declared], [])), sync=True)
        return newest_ms

    def _batch(self, changes: IndexChanges) -> WriteBatch:
        batch = WriteBatch(raw_mode=True)
        self.stage(batch, changes)
        return batch

    @property
    def memtable_bytes(self) -> int:
        """The bytes in its memtables that are not being flushed yet."""
        return self._family.property_int_value("rocksdb.cur-size-active-mem-table") or 0

    def close(self) -> None:
        """Release the database."""
        try:
            self._family.close()
        finally:
            del self._db, self._family, self._handle


def open_database(directory: Path, options: Options, families: Mapping[str, Options], *, expires: bool) -> Rdict:
    """Open the database with these column families, and with an index of expiries or without one."""
    indexed = {**families, EXPIRY_FAMILY: options}
    if expires:
        return Rdict(str(directory), options, column_families=indexed)
    try:
        return Rdict(str(directory), options, column_families={**families})
    except Exception as error:
        if not str(error).endswith(f"not opened: {EXPIRY_FAMILY}"):
            raise
    database = Rdict(str(directory), options, column_families=indexed)
    database.drop_column_family(EXPIRY_FAMILY)
    return database
