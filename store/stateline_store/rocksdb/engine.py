"""RocksDBEngine: one RocksDB per store partition, opened by its owner.

`rocksdb_rows` describes the rows of the database, `rocksdb_writes` writes them.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from rocksdict import WriteBatch

from stateline_store.engines.engine import Commit, no_key
from stateline_store.engines.row_cache import UNKNOWN, RowCache
from stateline_store.errors import (
    DamagedDataError,
    PoisonedError,
    StatelineError,
    StoreClosedError,
)
from stateline_store.files.directory import holds_few_tables, make_directory
from stateline_store.files.durable_files import has_room
from stateline_store.layout import KEY_VALUE, Layout, StoreTypes
from stateline_store.position import TopicPartition
from stateline_store.rocksdb.errors import translated
from stateline_store.rocksdb.expiry_index import ExpiryIndex, open_database
from stateline_store.rocksdb.memtable_budget import make_room, take_part
from stateline_store.rocksdb.offline_store import OfflineStore
from stateline_store.rocksdb.options import DEFAULT_TUNING, Tuning, primary_options, write_buffers
from stateline_store.rocksdb.rows import (
    OFFSETS_FAMILY,
    check_format,
    estimated_rows,
    format_rows,
    read_commit,
    read_format,
    types_row,
)
from stateline_store.rocksdb.scans import scan_rows
from stateline_store.rocksdb.write_ahead_logs import Damage, find_damage, put_aside
from stateline_store.rocksdb.writes import RocksDBWrites
from stateline_store.rows.expiry import IndexChanges, IndexRow
from stateline_store.rows.segments import SegmentRange
from stateline_store.scan import ChunkSource, KeyRange, StoreIterator

_log = logging.getLogger(__name__)

# Of the data's column family. RocksDB has these numbers at hand: all of them take 6 microseconds. Its ticker statistics
# are not among them: counting those costs every read and write.
PROPERTIES = (
    "num-entries-active-mem-table",
    "num-deletes-active-mem-table",
    "num-entries-imm-mem-tables",
    "num-deletes-imm-mem-tables",
    "num-immutable-mem-table",
    "cur-size-active-mem-table",
    "cur-size-all-mem-tables",
    "size-all-mem-tables",
    "mem-table-flush-pending",
    "num-running-flushes",
    "compaction-pending",
    "num-running-compactions",
    "estimate-pending-compaction-bytes",
    "total-sst-files-size",
    "live-sst-files-size",
    "num-live-versions",
    "estimate-num-keys",
    "estimate-table-readers-mem",
    "background-errors",
    "is-write-stopped",
)


class RocksDBEngine:
    """An `Engine` over a RocksDB that this process owns."""

    def __init__(
        self,
        directory: Path,
        tuning: Tuning = DEFAULT_TUNING,
        layout: Layout = KEY_VALUE,
        types: StoreTypes | None = None,
        restored_from: TopicPartition | None = None,
        *,
        expires: bool = False,
    ) -> None:
        """Open the database, or create it. The caller holds the task's lock. `types` of None compares nothing.
        `restored_from` is the changelog that brings commits again after a power cut, None for no changelog. `expires`:
        there is an index of expiries. Otherwise, that of an earlier declaration is dropped.

        If its logs have lost a part, the database is opened at the newest commit before that, and later commits are put
        aside (`write_ahead_logs.py`), unless the database is refused. Raises `LockedError` if it is open elsewhere,
        `DamagedDataError` if it cannot be trusted, `CallerError` if a newer version wrote it or it holds another kind
        of store (`Layout.check`) or other types (`StoreTypes.check`), `RetryLaterError` when the file system refuses.
        """
        self.directory = directory
        self.cache = RowCache()
        self._sources: weakref.WeakSet[ChunkSource] = weakref.WeakSet()
        self._closed = False
        self._failure: str | None = None
        make_directory(directory)
        try:
            options = primary_options(tuning, holds_few_tables(directory))
            families = {"default": options, OFFSETS_FAMILY: options}
            if (damage := find_damage(directory)) is not None:
                self._check_behind(damage, layout, types)
                put_aside(damage, restored_from)
            self._db = open_database(directory, options, families, expires=expires)
        except Exception as error:
            raise translated(error, directory) from error
        try:
            self._offsets = self._db.get_column_family(OFFSETS_FAMILY)
            self.index = ExpiryIndex(self._db, directory) if expires else None
            self._writes = RocksDBWrites(self._db, self._db.get_column_family_handle(OFFSETS_FAMILY), self.index)
            self.layout = self._check_format(layout, types)
            take_part(self)
        except BaseException:
            self.close()
            raise

    def get(self, key: bytes) -> bytes | None:
        try:
            known = self.cache.get(key)
            if known is not UNKNOWN:
                return known
            value: bytes | None = self._db.get(key)
        except Exception as error:
            if not isinstance(key, bytes):
                raise no_key(key) from error
            raise self._refusal() or translated(error, self.directory) from error
        self.cache.read(key, value)
        return value

    def get_many(self, keys: Sequence[bytes], *, again: bool = True) -> list[bytes | None]:
        try:
            known = self.cache.get_many(keys, again=again)
            unknown = [key for key, value in zip(keys, known, strict=True) if value is UNKNOWN]
            values: list[bytes | None] = self._db.get([*unknown]) if unknown else []  # type: ignore[assignment]  # a list gives a list
        except Exception as error:
            if wrong := [key for key in keys if not isinstance(key, bytes)]:
                raise no_key(wrong[0]) from error
            raise self._refusal() or translated(error, self.directory) from error
        if unknown and again:
            self.cache.keep(dict(zip(unknown, values, strict=True)))
        read = iter(values)
        return [next(read) if value is UNKNOWN else value for value in known]

    def scan(self, keys: KeyRange | SegmentRange, *, reverse: bool = False) -> StoreIterator:
        self._check_usable()
        scan = scan_rows(self._db, keys, self.directory, reverse=reverse)
        self._sources.add(scan.source)
        return scan

    def write(
        self,
        rows: Mapping[bytes, bytes | None],
        commit: Commit,
        expired: KeyRange | None = None,
        index: IndexChanges | None = None,
        *,
        sync: bool = False,
    ) -> None:
        self._check_usable()
        make_room(self, write_buffers())
        known = False
        try:
            self._writes.commit(rows, commit, expired, index, sync=sync)
            if expired is None:
                self.cache.committed(rows)
                known = True
        except Exception as error:  # noqa: BLE001  # rocksdict raises nothing narrower
            self._poison(error)
            raise self._refusal() or translated(error, self.directory) from translated(error, self.directory)
        finally:
            if not known:  # an interruption, too, may come between
                self.cache.clear()

    def due(self, start: bytes, most: int) -> list[IndexRow]:
        self._check_usable()
        return [] if self.index is None else self.index.due(start, most)

    def write_index(self, batch: Callable[[], WriteBatch], *, sync: bool) -> None:
        """Write a batch of the index as a commit is written. Raises RocksDB's errors."""
        make_room(self, write_buffers())
        self._writes.write(batch, sync=sync)

    def rewrite(self, rows: Mapping[bytes, bytes], layout: Layout, *, every_segment: bool = False) -> None:
        """Put these rows, or replace those of all segments by them, and the layout by this one, in one synced batch.
        Raises RocksDB's errors as Stateline's. All is written or nothing."""
        make_room(self, write_buffers())
        try:
            self._writes.rewrite(rows, layout, every_segment=every_segment)
        except Exception as error:
            raise translated(error, self.directory) from error
        finally:
            self.cache.clear()
        self.layout = layout

    @property
    def memtable_bytes(self) -> int:
        """The bytes in memtables that are not being flushed yet, 0 once closed."""
        if self._refusal() is not None:
            return 0
        name = "rocksdb.cur-size-active-mem-table"
        own = (self._db.property_int_value(name) or 0) + (self._offsets.property_int_value(name) or 0)
        return own + (0 if self.index is None else self.index.memtable_bytes)

    def flush_soon(self) -> None:
        """Flush both column families in the background. After a failure the store refuses everything, as after a failed
        commit."""
        try:
            self._writes.flush_soon(self.layout)
        except Exception as error:  # noqa: BLE001  # rocksdict raises nothing narrower
            self._poison(error)

    def last_commit(self) -> Commit:
        return read_commit(self._offsets, self.directory)

    def approximate_num_entries(self) -> int:
        self._check_usable()
        return estimated_rows(self._db, self.directory)

    def properties(self) -> Mapping[str, int]:
        self._check_usable()
        read = self._db.property_int_value
        try:
            return {name: read(f"rocksdb.{name}") or 0 for name in PROPERTIES}
        except Exception as error:
            raise translated(error, self.directory) from error

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.cache.clear()
        for source in list(self._sources):
            source.cut_off()  # a live iterator would keep the database, and its LOCK, open
        # Handles keep the database open as well, so they go too.
        held = map(self.__dict__.get, ("index", "_offsets", "_db"))
        handles = [each for each in held if each is not None]
        self.__dict__.pop("_offsets", None)
        if hasattr(self, "_writes"):
            self._writes.close()
        flushes = has_room(self.directory)
        if not flushes:  # a flush that fails is tried again for a second, of each store
            with contextlib.suppress(Exception):
                self._db.cancel_all_background(False)
        del self._db
        for handle in handles:
            try:
                handle.close()
            except Exception as error:  # noqa: BLE001  # rocksdict raises nothing narrower
                # Closing flushes memtables, which the log holds as well: the next opening replays it.
                if flushes:
                    _log.warning("%s: RocksDB failed while closing; nothing is lost by it: %s", self.directory, error)

    def _poison(self, error: Exception) -> None:
        """Refuse everything until a reopen has read whether the log holds the batch."""
        self._failure = str(error)
        self.close()

    def _check_usable(self) -> None:
        if (refusal := self._refusal()) is not None:
            raise refusal

    def _refusal(self) -> StatelineError | None:
        """Return the error of every read and write, None if the database can be used."""
        if self._failure is not None:
            return PoisonedError(
                f"A commit to {self.directory} failed: {self._failure}. Whether it was "
                "kept is known after `close` and `init`; until then this store refuses everything."
            )
        return StoreClosedError(f"{self.directory} is closed: call init first.") if self._closed else None

    def _check_behind(self, damage: Damage, layout: Layout, types: StoreTypes | None) -> None:
        """Refuse the cases of `_check_format` before a log is touched. RocksDB reports damage later."""
        with contextlib.suppress(DamagedDataError), OfflineStore(self.directory, damage) as store:
            if store.format is not None:
                check_format(store.format, layout, types, store.commit, self.directory)

    def _check_format(self, layout: Layout, types: StoreTypes | None) -> Layout:
        """Return the layout of the rows. Refuses a newer format, another layout or other types. Marks a new database,
        and one without these types."""
        stored = read_format(self._offsets, self.directory)
        if stored is None:
            self._mark([*format_rows(layout), *([] if types is None else [types_row(types)])])
            return layout
        found = check_format(stored, layout, types, self.last_commit(), self.directory)
        if types is not None and types != stored.types:
            self._mark([types_row(types)])
        return found

    def _mark(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        try:
            self._writes.mark(rows)
        except Exception as error:
            raise translated(error, self.directory) from error
