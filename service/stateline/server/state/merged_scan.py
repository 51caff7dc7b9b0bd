"""`MergedScan`: the entries of several partitions in one order, all of one state, read on as they are wanted."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from stateline.query.execution import sort_key
from stateline.query.open_scan import OpenScan, size_of, up_to_bytes
from stateline.query.values import MAX_RESULT_BYTES, Entry, PartitionAnswer, Rest, Rows, ScanQuery
from stateline_store import CursorExpiredError, Order

# Of one entry, in 64-bit CPython: a tuple of two (56), two bytes headers (33 each), a place in a list (8), and what the
# allocator rounds up.
ENTRY_OVERHEAD = 150


class _Part:
    """One partition's entries that were read and not yet given, and the rest of them."""

    __slots__ = ("_entry_bytes", "entries", "rest")

    def __init__(self, rows: Rows) -> None:
        self.entries = list(rows.entries)
        self.rest: Rest | None = rows.rest
        self._entry_bytes: float | None = None  # on average, of what was read last

    @property
    def held_bytes(self) -> int:
        # What a worker has read ahead is its own.
        ahead = self.rest.held_bytes if isinstance(self.rest, OpenScan) else 0
        if not self.entries:
            return ahead
        if self._entry_bytes is None:  # once per reading: a page must not cost a look at all that is left
            self._entry_bytes = memory_of(self.entries) / len(self.entries)
        return ahead + int(self._entry_bytes * len(self.entries))

    async def fill(self, ahead: int) -> None:
        while not self.entries and self.rest is not None:
            rows = await self.rest.more(ahead)
            self.entries, self.rest, self._entry_bytes = list(rows.entries), rows.rest, None
            if not self.entries:
                await asyncio.sleep(0)  # it has looked at many rows: let others in between


class MergedScan:
    """Begins with what the partitions have answered, and asks them for at least `limit` more at a time. Not for several
    tasks at once; close it, it pins files.

    In the order that each partition has (`sort_key`); partition by partition when there is none that they have in
    common. Every method may raise what `Rest.more` raises; nothing can be read after that.
    """

    def __init__(self, query: ScanQuery, answers: Mapping[int, PartitionAnswer], limit: int) -> None:
        self._parts = [_Part(answer.rows) for _, answer in sorted(answers.items())]
        self._ahead = limit
        self._reverse = query.order is Order.DESCENDING
        self._key = sort_key(query, {answer.rows.interval_ms for answer in answers.values()})
        self._left: list[Entry] = []
        self._closed = False

    async def page(self, limit: int) -> list[Entry]:
        """The next entries: `limit` of them, or fewer at the end or when they have more bytes than an answer may."""
        self._ahead = max(self._ahead, limit)
        page: list[Entry] = []
        size = 0
        while len(page) < limit and size < MAX_RESULT_BYTES:
            entries = self._left or await self.batch()
            if not entries:
                break
            wanted, wanted_bytes = up_to_bytes(entries[: limit - len(page)], MAX_RESULT_BYTES - size)
            self._left = entries[len(wanted) :]
            page += wanted
            size += wanted_bytes
        return page

    async def batch(self) -> list[Entry]:
        """The next entries, as many as can be put in order without reading on; none at the end."""
        for part in self._parts:
            await part.fill(self._ahead)
        if self._closed:  # what is left of it would look like its end
            self.close()
            raise CursorExpiredError("The state that was read is gone: begin anew, without the cursor.")
        live = [part for part in self._parts if part.entries]
        if len(live) <= 1 or self._key is None:
            return _taken(live[0], len(live[0].entries)) if live else []
        open_ = [part for part in live if part.rest is not None]
        if not open_:
            parts = [_taken(part, len(part.entries)) for part in live]
        else:
            # What a partition has yet to give comes after its last entry: up to the first of those all is known.
            ends = [self._key(part.entries[-1]) for part in open_]
            end = max(ends) if self._reverse else min(ends)
            parts = [_taken(part, _count_until(part.entries, self._key, end, self._reverse)) for part in live]
        return sorted(chain.from_iterable(parts), key=self._key, reverse=self._reverse)

    async def has_more(self) -> bool:
        """Whether there are entries that were not given; it may read some."""
        if self._left:
            return True
        self._left = await self.batch()
        return bool(self._left)

    @property
    def held_bytes(self) -> int:
        """About how much memory the entries take that were read and not given."""
        return memory_of(self._left) + sum(part.held_bytes for part in self._parts)

    def close(self) -> None:
        """Let go of the state; a second call does nothing. Whoever reads on meets a `CursorExpiredError`."""
        self._closed, self._left = True, []
        for part in self._parts:
            part.entries = []
            rest, part.rest = part.rest, None
            if rest is not None:
                rest.close()


def memory_of(entries: list[Entry]) -> int:
    """About how much memory these entries take."""
    return size_of(entries) + ENTRY_OVERHEAD * len(entries)


def _taken(part: _Part, count: int) -> list[Entry]:
    taken, part.entries = part.entries[:count], part.entries[count:]
    return taken


def _count_until(entries: list[Entry], key: Callable[[Entry], Any], end: Any, reverse: bool) -> int:
    """How many of these ordered entries come before `end`, or with it."""
    if reverse:
        return bisect_left(entries, True, key=lambda entry: key(entry) < end)
    return bisect_left(entries, True, key=lambda entry: key(entry) > end)
