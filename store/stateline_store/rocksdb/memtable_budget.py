"""Chooses the store to flush when the memtables of the process have reached their budget.

RocksDB flushes the database that is written to next, however little it holds. If stores without writes hold the budget,
as after a restore, each commit of a small store would be a flush. So before a write, the store with most bytes is
flushed first.

Not thread-safe: a thread looks at the databases that it has opened itself.
"""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

from rocksdict import WriteBufferManager

# RocksDB's own limit (`WriteBufferManager::ShouldFlush`, include/rocksdb/write_buffer_manager.h): beyond it a write
# flushes its database.
_EIGHTHS = 7


class Holder(Protocol):
    """A database with memtables."""

    @property
    def memtable_bytes(self) -> int:
        """The bytes in its memtables that are not being flushed yet."""

    def flush_soon(self) -> None:
        """Have RocksDB flush it in the background while the budget is reached."""


class _Opened(threading.local):
    def __init__(self) -> None:
        self.holders: weakref.WeakSet[Holder] = weakref.WeakSet()


_opened = _Opened()


def take_part(holder: Holder) -> None:
    """Count this database of the calling thread until it is gone."""
    _opened.holders.add(holder)


def make_room(writer: Holder, budget: WriteBufferManager) -> None:
    """Call before `writer` is written to. If that would flush it, and another database of this thread holds more, flush
    that one instead. It costs a look at the budget, and at each database if the budget is reached."""
    limit = budget.get_buffer_size() * _EIGHTHS // 8
    if budget.get_usage() < limit:
        return
    sizes = {holder: holder.memtable_bytes for holder in _opened.holders}
    if sum(sizes.values()) < limit:  # the rest is being flushed already
        return
    fullest = max(sizes, key=lambda holder: sizes[holder])
    if sizes[fullest] > sizes.get(writer, 0):
        fullest.flush_soon()
