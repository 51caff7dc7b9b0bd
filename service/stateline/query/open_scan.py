"""`OpenScan`: what a scan has beyond its first entries, read on as it is wanted, and how many bytes entries have."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from stateline.query.values import MAX_RESULT_BYTES, Entry, QueryRows
from stateline_store import Scan, VersionedRecord, Windowed
from stateline_store.scan import Chunk

# Chunks that are read at a time, of which few or no rows may be asked for. After about a millisecond others have their
# turn; the first chunks of a scan are small, and have a thousand rows together.
MAX_CHUNKS = 5


class OpenScan:
    """A scan that was begun: the `Rest` of itself. For the thread of its reader, whose refreshes do not move it."""

    def __init__(self, scan: Scan[Entry]) -> None:
        self._scan = scan
        self._chunks = scan.chunks()
        self._ahead = Chunk[Entry]()
        self._at = 0  # in what was read ahead

    @property
    def held_bytes(self) -> int:
        """About how many bytes were read ahead."""
        return self._ahead.part(self._at, len(self._ahead)).size

    def rows(self, limit: int) -> QueryRows:
        """The next entries: `limit` of them at most, not many more bytes than `MAX_RESULT_BYTES`, and fewer, or none,
        when many rows were looked at. Without a rest there are none after them, and the scan is closed.
        """
        entries = Chunk[Entry]()
        for _ in range(MAX_CHUNKS):
            if self._at >= len(self._ahead):
                chunk = next(self._chunks, None)
                if chunk is None:
                    self.close()
                    return QueryRows(entries)
                self._ahead = chunk if isinstance(chunk, Chunk) else Chunk(chunk, size_of(chunk))
                self._at = 0
            if self._at < len(self._ahead) and (len(entries) >= limit or entries.size >= MAX_RESULT_BYTES):
                break
            wanted = self._ahead.part(self._at, self._at + limit - len(entries))
            taken, taken_bytes = up_to_bytes(wanted, MAX_RESULT_BYTES - entries.size)
            self._at += len(taken)
            entries += taken
            entries.size += taken_bytes
        return QueryRows(entries, rest=self)

    async def more(self, limit: int) -> QueryRows:
        """Return the next entries, like `rows`."""
        return self.rows(limit)

    def close(self) -> None:
        """Release the state. The scan has no more entries then."""
        self._ahead, self._at = Chunk[Entry](), 0
        self._scan.close()


def size_of(entries: Sequence[Entry]) -> int:
    """About how many bytes entries of one scan have."""
    if isinstance(entries, Chunk):
        return entries.size
    if not entries:
        return 0
    rows: Any = entries  # of one scan, so all of one shape
    if isinstance(entries[0][0], Windowed):
        return sum(map(len, map(itemgetter(0), map(itemgetter(0), rows)))) + sum(map(len, map(itemgetter(1), rows)))
    if isinstance(entries[0][1], VersionedRecord):
        return sum(len(key) + len(version.value) for key, version in rows)  # the times are not counted
    return sum(map(len, chain.from_iterable(rows)))


def up_to_bytes(entries: list[Entry], most: int) -> tuple[list[Entry], int]:
    """The first of these entries, and how many bytes these have: all when they have no more, else until they have
    reached as many."""
    size = size_of(entries)
    if size <= most:
        return entries, size
    size = count = 0
    while size < most:
        size += size_of(entries[count : count + 1])
        count += 1
    return entries[:count], size
