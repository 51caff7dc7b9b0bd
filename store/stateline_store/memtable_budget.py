"""Which store's memtables are flushed when those of the process together have reached their budget.

RocksDB flushes the database that is written to next, however little it holds: while others that nobody writes to any
more hold the budget, after a restore say, each commit of a small store would be a flush. So before a write the one that
holds most is told to go first.

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
        """What its memtables hold that are not being flushed yet."""

    def flush_soon(self) -> None:
        """Have RocksDB flush it in the background, at a moment when the budget is reached."""


class _Opened(threading.local):
    def __init__(self) -> None:
        self.holders: weakref.WeakSet[Holder] = weakref.WeakSet()


_opened = _Opened()


def take_part(holder: Holder) -> None:
    """Count this database, of the thread that calls, until it is gone."""
    _opened.holders.add(holder)


def make_room(writer: Holder, budget: WriteBufferManager) -> None:
    """Before `writer` is written to: if that would flush it, and another one of this thread's holds more, flush that
    one instead. Costs a look at the budget, and only when that is reached one at each database."""
    limit = budget.get_buffer_size() * _EIGHTHS // 8
    if budget.get_usage() < limit:
        return
    sizes = {holder: holder.memtable_bytes for holder in _opened.holders}
    if sum(sizes.values()) < limit:  # the rest is being flushed already
        return
    fullest = max(sizes, key=lambda holder: sizes[holder])
    if sizes[fullest] > sizes.get(writer, 0):
        fullest.flush_soon()
