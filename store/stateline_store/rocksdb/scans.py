"""Scan rows of one column family in key order, in chunks, all of the moment of the call.

RocksDB's iterator steps over every deleted row until the next existing one, also beyond the wanted end. A scan of one
row beside 300,000 deleted ones took 0.2 s. So every scan has an end. A scan forwards has RocksDB's upper bound. A scan
backwards first finds its last row, because rocksdict 0.3.29 cannot set a lower bound (`set_iterate_lower_bound` sets
the upper one).

Danger: RocksDB does not copy an upper bound. At each step its iterator reads the `bytes` object given to
`set_iterate_upper_bound`. In raw mode, rocksdict passes a pointer into it and keeps no reference. So the bound must
outlive the iterator. `_translated` holds both, and a generator's frame drops its arguments in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from rocksdict import Rdict, RdictIter, ReadOptions

from stateline_store.rocksdb.errors import damaged, translated
from stateline_store.rows.segments import SegmentRange, segment_of
from stateline_store.rows.suffixed_rows import SuffixedRange, by_key, by_key_down
from stateline_store.scan import (
    FIRST_CHUNK,
    LARGEST_CHUNK,
    LARGEST_CHUNK_BYTES,
    Chunk,
    KeyRange,
    Scan,
    StoreIterator,
)

# The readahead for scans of a whole store. They take an eighth less time than with RocksDB's first 8 KiB per table.
_READAHEAD_BYTES = 256 * 1024
_Chunks = Generator[list[tuple[bytes, bytes]], None, None]


def scan_rows(
    db: Rdict, keys: KeyRange | SegmentRange, directory: Path, *, reverse: bool, cached: bool = True
) -> StoreIterator:
    """Scan the rows of this range as of now. The call or the scan raises RocksDB's errors as Stateline's. `cached`
    keeps the blocks in the cache. A reader of a whole store should leave this room to others."""
    if keys.is_empty:
        return Scan.of_chunks(_no_rows())
    try:
        options, bound = ReadOptions(), keys.end
        options.fill_cache(cached)  # type: ignore[call-arg]  # its stub forgets the argument
        # Not for one key, and not for one of many scans side by side, which would fill the memory.
        if not cached and type(keys) is KeyRange and keys.end != keys.start + b"\0":
            options.set_readahead_size(_READAHEAD_BYTES)
        if bound is not None:
            options.set_iterate_upper_bound(bound)
        iterator = db.iter(options)
        if isinstance(keys, SegmentRange):
            chunks = _segments(iterator, keys, reverse)
        elif reverse:
            chunks = _backwards(iterator, keys, directory)
            if isinstance(keys, SuffixedRange):
                chunks = by_key_down(chunks, keys)
        else:
            # `items` is of the same moment as `iterator`, because nothing is written in between.
            chunks = _forwards(db.items(from_key=keys.start or None, read_opt=options), iterator, keys, directory)
            if isinstance(keys, SuffixedRange):
                chunks = by_key(chunks, partial(_looked_up, iterator), keys)
    except Exception as error:
        raise translated(error, directory) from error
    return Scan.of_chunks(_translated(chunks, bound, directory))


def _translated(chunks: _Chunks, bound: bytes | None, directory: Path) -> _Chunks:
    """Yield these chunks. Hold `bound` until the chunks' iterators are gone."""
    try:
        yield from chunks
    except Exception as error:
        raise translated(error, directory) from error


def _forwards(rows: Iterator[tuple[Any, Any]], witness: RdictIter, keys: KeyRange, directory: Path) -> _Chunks:
    """Yield rows of `items`, which is cheaper than steps in Python. It also ends at an error. `witness` shows which."""
    size, behind = FIRST_CHUNK, keys.start
    while chunk := _taken(rows, size):
        behind = chunk[-1][0] + b"\0"  # before the chunk is given away: it is the taker's to change
        yield chunk
        del chunk  # it may be large
        size = min(size * 4, LARGEST_CHUNK)
    witness.seek(behind)
    if witness.valid():
        raise damaged(directory, f"a scan ended before the key {behind!r:.100}, which is not the last one")
    witness.status()


def _taken(rows: Iterator[tuple[Any, Any]], count: int) -> Chunk[tuple[bytes, bytes]]:
    chunk, size = Chunk[tuple[bytes, bytes]](), 0  # each row is counted while the processor has it at hand
    take = chunk.append
    for row in islice(rows, count):
        take(row)
        size += len(row[0]) + len(row[1])
        if size >= LARGEST_CHUNK_BYTES:
            break
    chunk.size = size
    return chunk


def _backwards(iterator: RdictIter, keys: KeyRange, directory: Path) -> _Chunks:
    iterator.seek(keys.start)
    least = iterator.key()
    if least is None:
        iterator.status()
        return
    if keys.end is None:
        iterator.seek_to_last()
    else:
        iterator.seek_for_prev(keys.end)
    yield from _stepped(iterator, iterator.prev, keys, least)
    if iterator.key() != least:
        iterator.status()
        raise damaged(directory, f"a scan backwards ended above the key {least!r:.100}, which is not the first one")


def _looked_up(iterator: RdictIter, keys: KeyRange) -> _Chunks:
    iterator.seek(keys.start)
    yield from _stepped(iterator, iterator.next, keys)
    iterator.status()


def _segments(iterator: RdictIter, keys: SegmentRange, reverse: bool) -> _Chunks:
    """Yield rows from each existing segment to the next one: two seeks for each, however many do not exist."""
    segments = keys.segments
    while segments:
        start, end = keys.within(segments[-1] if reverse else segments[0])
        if reverse:
            iterator.seek_for_prev(end)
            if iterator.key() == end:  # not inside
                iterator.prev()
        else:
            iterator.seek(start)
        yield from _stepped(iterator, iterator.prev if reverse else iterator.next, KeyRange(start, end))
        if not iterator.valid():
            iterator.status()
            return
        found = segment_of(iterator.key())
        if reverse:
            segments = range(segments.start, min(found + 1, segments.stop - 1))
        else:
            segments = range(max(found, segments.start + 1), segments.stop)


def _stepped(iterator: RdictIter, step: Callable[[], None], keys: KeyRange, last: bytes | None = None) -> _Chunks:
    """Yield the rows from the iterator's place, while they are in this range, without a step beyond the key `last`."""
    size = FIRST_CHUNK
    chunk, room = list[tuple[bytes, bytes]](), LARGEST_CHUNK_BYTES
    while (key := iterator.key()) is not None and key >= keys.start and (keys.end is None or key < keys.end):
        value = iterator.value()
        chunk.append((key, value))
        if key == last:
            break
        step()
        room -= len(key) + len(value)
        if room <= 0 or len(chunk) == size:
            yield chunk
            size, chunk, room = min(size * 4, LARGEST_CHUNK), [], LARGEST_CHUNK_BYTES
    if chunk:
        yield chunk


def _no_rows() -> _Chunks:
    yield from ()
