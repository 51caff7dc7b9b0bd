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
from stateline_store.reads.session_reads import in_stored_order, stored_order

# Of one entry, in 64-bit CPython: a tuple of two (56), two bytes headers (33 each), a place in a list (8), and what the
# allocator rounds up.
ENTRY_OVERHEAD = 150
# Entries of a partition that are read at a time: about a millisecond for windows, which takes longest.
READ_AT_ONCE = 512
# Entries of all partitions that are put in order at a time, unless more are wanted: about half a millisecond for
# windows.
_MERGED_AT_ONCE = 512


class _Part:
    """One partition's entries that were read and not yet given, and the rest of them."""

    __slots__ = ("_read", "entries", "entry_bytes", "rest")

    def __init__(self, rows: QueryRows) -> None:
        self.entries: list[Entry] = []
        self.entry_bytes = 0.0  # on average, of what was read last
        self._add(rows)

    def _add(self, rows: QueryRows) -> None:
        self.rest: Rest | None = rows.rest
        self._read = len(rows.entries)
        if self._read:
            self.entry_bytes = size_of(rows.entries) / self._read
            self.entries = [*self.entries, *rows.entries]

    @property
    def held_bytes(self) -> int:
        # What a worker has read ahead is its own.
        ahead = self.rest.held_bytes if isinstance(self.rest, OpenScan) else 0
        return ahead + int((self.entry_bytes + ENTRY_OVERHEAD) * len(self.entries))

    async def fill(self, ahead: int, wanted: int = 0) -> int:
        """Read on if nothing is left of what was read, or less than `wanted` and than half of the last reading. Returns
        the number of entries read."""
        found = 0
        while self.rest is not None and len(self.entries) <= min(wanted, self._read // 2):
            self._add(await self.rest.more(ahead))
            found += self._read
            if not self._read:
                await let_others_in()  # it has looked at many rows
        return found


class MergedScan:
    """Begins with what the partitions have answered, and asks them for at least `limit` more at a time. Not for several
    tasks at once; close it, it pins files.

    In the order that each partition has (`sort_key`); partition by partition when there is none that they have in
    common. Every method may raise what `Rest.more` raises; nothing can be read after that.
    """

    def __init__(
        self, query: ScanQuery, answers: Mapping[int, PartitionAnswer], limit: int, *, stored: bool = False
    ) -> None:
        """`stored`: the entries are stored rows (`Terms.stored_rows`)."""
        self.parts = [_Part(answer.rows) for _, answer in sorted(answers.items())]
        self._ahead = limit
        self._reverse = descends(query)
        self._key = sort_key(query, {answer.rows.interval_ms for answer in answers.values()}, stored=stored)
        self.left: list[Entry] = []
        self._left_entry_bytes = 0.0
        self._closed = self._has_merged = False

    async def page(self, limit: int, most_bytes: int | None = None) -> list[Entry]:
        """The next entries: `limit` of them, or fewer at the end or when they have more bytes than `MAX_RESULT_BYTES`,
        or by an estimate more than `most_bytes`."""
        is_exact, most_bytes = most_bytes is None, MAX_RESULT_BYTES if most_bytes is None else most_bytes
        self._ahead = max(self._ahead, min(limit, READ_AT_ONCE))
        page: list[Entry] = []
        size = 0
        while len(page) < limit and size < most_bytes and await self.has_more(0 if is_exact else limit - len(page)):
            wanted = self.left if len(self.left) <= limit - len(page) else self.left[: limit - len(page)]
            taken, taken_bytes = wanted, int(len(wanted) * self._left_entry_bytes)
            if is_exact or taken_bytes > most_bytes - size:
                taken, taken_bytes = up_to_bytes(wanted, most_bytes - size)
            self.left = self.left[len(taken) :]
            page = page + taken if page else taken
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

    async def has_more(self, wanted: int = 0) -> bool:
        """Whether there are entries that were not given. It may read some. If some are `wanted`, it reads on earlier,
        so that it puts about as many in order at once."""
        if self.left:
            return True
        share, read, has_read = wanted // max(1, len(self.parts)), 0, False
        for part in self.parts:
            found = await part.fill(self._ahead, share)
            read, has_read = read + found, has_read or found > 0
            if read > _MERGED_AT_ONCE:
                read = 0
                await let_others_in()
        if self._has_merged and not has_read and any(part.entries for part in self.parts):
            await let_others_in()
        self._require_open()
        self.left, self._has_merged = self._merged(max(wanted, _MERGED_AT_ONCE)), True
        return bool(self.left)

    def _require_open(self) -> None:
        if self._closed:  # what is left of it would look like its end
            self.close()
            raise CursorExpiredError("The state of this scan is gone. Start over, without the cursor.")

    def _merged(self, count: int) -> list[Entry]:
        """The next entries that can be put in order without reading on; none at the end."""
        live = [part for part in self.parts if part.entries]
        self._left_entry_bytes = max((part.entry_bytes for part in live), default=0)
        if len(live) <= 1 or self._key is None:
            return _taken(live[0], count) if live else []
        share = max(1, count // len(live))
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
        rows: list[Any] = list(chain.from_iterable(parts))
        if self._key is stored_order:
            return in_stored_order(rows, reverse=self._reverse)
        return sorted(rows, key=self._key, reverse=self._reverse)

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
