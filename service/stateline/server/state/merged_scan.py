"""`MergedScan`: the entries of several partitions in one order, all of one state, read on as they are wanted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from stateline.query.kinds import descends, sort_key
from stateline.query.open_scan import OpenScan, size_of, up_to_bytes
from stateline.query.values import MAX_RESULT_BYTES, Entry, PartitionAnswer, QueryRows, Rest, ScanQuery
from stateline.server.wire.turns import let_others_in
from stateline_store import CursorExpiredError

# Of one entry, in 64-bit CPython: a tuple of two (56), two bytes headers (33 each), a place in a list (8), and what the
# allocator rounds up.
ENTRY_OVERHEAD = 150
# Entries of a partition that are read at a time: about a millisecond for windows, which takes longest.
READ_AT_ONCE = 512
# Entries of all partitions that are put in order at a time: about half a millisecond for windows.
_MERGED_AT_ONCE = 512


class _Part:
    """One partition's entries that were read and not yet given, and the rest of them."""

    __slots__ = ("_entry_bytes", "entries", "rest")

    def __init__(self, rows: QueryRows) -> None:
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

    async def fill(self, ahead: int) -> bool:
        """Read on if there is nothing left that was read; whether it did."""
        has_read = False
        while not self.entries and self.rest is not None:
            has_read, rows = True, await self.rest.more(ahead)
            self.entries, self.rest, self._entry_bytes = list(rows.entries), rows.rest, None
            if not self.entries:
                await let_others_in()  # it has looked at many rows
        return has_read


class MergedScan:
    """Begins with what the partitions have answered, and asks them for at least `limit` more at a time. Not for several
    tasks at once; close it, it pins files.

    In the order that each partition has (`sort_key`); partition by partition when there is none that they have in
    common. Every method may raise what `Rest.more` raises; nothing can be read after that.
    """

    def __init__(self, query: ScanQuery, answers: Mapping[int, PartitionAnswer], limit: int) -> None:
        self.parts = [_Part(answer.rows) for _, answer in sorted(answers.items())]
        self._ahead = limit
        self._reverse = descends(query)
        self._key = sort_key(query, {answer.rows.interval_ms for answer in answers.values()})
        self.left: list[Entry] = []
        self._closed = self._has_merged = False

    async def page(self, limit: int, most_bytes: int | None = None) -> list[Entry]:
        """The next entries: `limit` of them, or fewer at the end or when they have more bytes, `MAX_RESULT_BYTES`
        unless given."""
        most_bytes = MAX_RESULT_BYTES if most_bytes is None else most_bytes
        self._ahead = max(self._ahead, min(limit, READ_AT_ONCE))
        page: list[Entry] = []
        size = 0
        while len(page) < limit and size < most_bytes and await self.has_more():
            taken, taken_bytes = up_to_bytes(self.left[: limit - len(page)], most_bytes - size)
            self.left = self.left[len(taken) :]
            page += taken
            size += taken_bytes
        return page

    async def count(self) -> int:
        """How many entries are left. Reads them all, and puts none in order."""
        found, self.left = len(self.left), []
        for part in self.parts:
            while part.entries or part.rest is not None:
                found += len(part.entries)
                part.entries = []
                await part.fill(self._ahead)
                await let_others_in()
        self._require_open()
        return found

    async def has_more(self) -> bool:
        """Whether there are entries that were not given; it may read some."""
        if self.left:
            return True
        has_read = False
        for part in self.parts:
            if await part.fill(self._ahead):
                has_read = True
                await let_others_in()
        if self._has_merged and not has_read and any(part.entries for part in self.parts):
            await let_others_in()
        self._require_open()
        self.left, self._has_merged = self._merged(), True
        return bool(self.left)

    def _require_open(self) -> None:
        if self._closed:  # what is left of it would look like its end
            self.close()
            raise CursorExpiredError("The state of this scan is gone. Start over, without the cursor.")

    def _merged(self) -> list[Entry]:
        """The next entries that can be put in order without reading on; none at the end."""
        live = [part for part in self.parts if part.entries]
        if len(live) <= 1 or self._key is None:
            return _taken(live[0], _MERGED_AT_ONCE) if live else []
        share = max(1, _MERGED_AT_ONCE // len(live))
        # What a partition has yet to give comes after its last entry: up to the first of those all is known.
        ends = [
            self._key(part.entries[min(share, len(part.entries)) - 1])
            for part in live
            if part.rest is not None or len(part.entries) > share
        ]
        if not ends:
            parts = [_taken(part, share) for part in live]
        else:
            end = max(ends) if self._reverse else min(ends)
            parts = [_taken(part, _count_until(part.entries, self._key, end, self._reverse)) for part in live]
        return sorted(chain.from_iterable(parts), key=self._key, reverse=self._reverse)

    @property
    def held_bytes(self) -> int:
        """About how much memory the entries take that were read and not given."""
        return memory_of(self.left) + sum(part.held_bytes for part in self.parts)

    def close(self) -> None:
        """Release the state. A second call does nothing. A later read raises `CursorExpiredError`."""
        self._closed, self.left = True, []
        for part in self.parts:
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
