"""The options of RocksDB: the memory that one process may use, and durability.

Memory: one block cache and one write-buffer budget are shared by every store that the process opens, so that native
memory does not grow with stores × partitions. Index and filter blocks are in the cache too.

Fork: RocksDB's background threads do not survive `fork()`: a child that was forked after a database was opened hangs at
its first flush. Start processes with spawn.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBPath,
    DBRecoveryMode,
    Env,
    Options,
    WriteBufferManager,
)

_MIB = 1024 * 1024
BLOCK_CACHE_BYTES = 64 * _MIB
# Flushes start when all memtables of the process together reach 7/8 of this: of the store that holds most
# (`memtable_budget.py`).
WRITE_BUFFERS_BYTES = 96 * _MIB
# By how much a memtable grows. The whole block counts against the budget from its first row, and a store has two
# memtables: with RocksDB's 1 MiB, 42 stores fill the budget with nothing, and from then on every commit is flushed.
_ARENA_BLOCK_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class Tuning:
    """Sizes in bytes that tests make small, to cause flushes and compactions.

    The default memtable holds about two seconds of full load. Larger ones mean fewer, larger files, but also a longer
    replay after a crash and more memory in every reader, which keeps a copy.
    """

    write_buffer_bytes: int = 16 * _MIB
    level_base_bytes: int = 128 * _MIB


DEFAULT_TUNING = Tuning()


@functools.cache
def _shared() -> tuple[Cache, WriteBufferManager]:
    cache = Cache(BLOCK_CACHE_BYTES)
    # allow_stall False: over budget it flushes earlier, it never blocks the writer.
    return cache, WriteBufferManager(WRITE_BUFFERS_BYTES, False)


def block_cache() -> Cache:
    """Return the block cache that every store of this process shares."""
    return _shared()[0]


def write_buffers() -> WriteBufferManager:
    """Return the budget of the memtables of every store of this process."""
    return _shared()[1]


@contextlib.contextmanager
def flushing_at_once(stores: int) -> Iterator[None]:
    """Flush so many databases of this process side by side within the block, at least one. Otherwise RocksDB flushes
    one after the other, however many are closed at once."""
    env = Env()
    env.set_high_priority_background_threads(max(stores, 1))
    try:
        yield
    finally:
        env.set_high_priority_background_threads(1)


def primary_options(tuning: Tuning, few_tables: bool = False) -> Options:
    """Return the options of the owner's column families. `few_tables`: one thread opens all tables at once."""
    options = _common()
    if few_tables:
        _open_with_one_thread(options)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    # Both column families reach the disk at one cut, so that a reader that finds the WAL purged between its
    # reading the manifest and the WAL still sees data and offsets of the same commit.
    options.set_atomic_flush(True)
    # After a power cut the log is replayed up to its first hole: commits in order, none by halves.
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_write_buffer_size(tuning.write_buffer_bytes)
    options.set_write_buffer_manager(write_buffers())
    options.set_max_bytes_for_level_base(tuning.level_base_bytes)
    options.set_max_background_jobs(2)
    return options


def secondary_options(files: Path | None = None) -> Options:
    """Return options of a reader's database, and of each of its column families. `files` is the directory of its logs
    and tables, if they are not in the opened folder.

    Files must stay open (`max_open_files` is -1), or a compaction of the primary deletes them under the reader.
    """
    options = _common()
    if files is not None:
        options.set_wal_dir(str(files))
        options.set_db_paths([DBPath(str(files), 0)])
    _open_with_one_thread(options)
    return options


def _open_with_one_thread(options: Options) -> None:
    """Let the calling thread open the files. By default each opening and catch-up starts 16 threads per column family,
    with or without files to open: two milliseconds each time."""
    options.set_max_file_opening_threads(1)


def _common() -> Options:
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(_tables())
    options.set_compression_type(DBCompressionType.lz4())
    options.set_max_open_files(-1)
    options.set_paranoid_checks(True)
    options.set_is_fd_close_on_exec(True)
    options.set_keep_log_file_num(2)  # the info LOG, not data: RocksDB keeps 1000 of any size by default
    options.set_max_log_file_size(_MIB)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_manifest_preallocation_size(64 * 1024)
    options.set_arena_block_size(_ARENA_BLOCK_BYTES)
    return options


def _tables() -> BlockBasedOptions:
    tables = BlockBasedOptions()
    tables.set_block_cache(block_cache())
    tables.set_cache_index_and_filter_blocks(True)
    tables.set_pin_l0_filter_and_index_blocks_in_cache(True)
    tables.set_bloom_filter(10, False)  # 10 bits per key: 1 % false positives
    tables.set_block_size(8 * 1024)
    tables.set_format_version(5)
    return tables
