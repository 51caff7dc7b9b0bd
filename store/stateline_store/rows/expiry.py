"""When entries expire, and the index that finds them in time.

on disk: never change

    index row   least time:i64 BE ‖ number of the commit:u64 ‖ part:u32 → count:u32 ‖ count × length:u32 ‖
                count × time:i64 ‖ keys
    header      ``stateline-expires-at``, i64 BE: ms. In the entry's row and its changelog record

A time of the index is the timestamp of the entry, or when it expires if entries have a time to live of their own. An
entry of the index is a hint to look at a key when its time has come: the key's row decides.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

from stateline_store.errors import DamagedDataError
from stateline_store.rows.headers import Headers, split_headers
from stateline_store.rows.timestamped_rows import TIMESTAMP

EXPIRES_HEADER = "stateline-expires-at"  # on disk and in topics: never change
NEVER = b"\x80"  # eight bytes below are a time
FIRST_ROW = bytes(8)  # no index row is before it
IndexRow: TypeAlias = tuple[bytes, bytes]
Entry: TypeAlias = tuple[bytes, bytes]  # time and key
_KEYS_OF_A_ROW = 256
_ROWS_AHEAD = 16
_LEAST_SPAN_MS = 1_000
_MARK = EXPIRES_HEADER.encode()
_FIRST = b"\x28" + _MARK + b"\x10"  # a header of this name and eight bytes, but these
_I64 = struct.Struct(">q")  # on disk: never change
_NUMBER = struct.Struct(">QI")  # on disk: never change
_COUNT = struct.Struct(">I")  # on disk: never change


@dataclass(frozen=True, slots=True)
class IndexChanges:
    """Changes of the index in a commit."""

    added: list[IndexRow]
    removed: list[bytes]


def index_rows(entries: Iterable[Entry], span_ms: int, number: int) -> list[IndexRow]:
    """Return index rows with these entries, each of entries within `span_ms`. No other rows of the index have this
    number."""
    made, rest = list[IndexRow](), sorted(entries)
    times = [time for time, _ in rest]
    at = 0
    while at < len(rest):
        last = (int.from_bytes(times[at]) + span_ms).to_bytes(8)
        end = min(bisect_right(times, last, at), at + _KEYS_OF_A_ROW)
        keys = [key for _, key in rest[at:end]]
        lengths = struct.pack(f">{len(keys) + 1}I", len(keys), *map(len, keys))
        made.append((times[at] + _NUMBER.pack(number, len(made)), b"".join((lengths, *times[at:end], *keys))))
        at = end
    return made


def entries_of(content: bytes) -> list[Entry]:
    """Return the entries of an index row, which are in the order of their times. Raises `DamagedDataError`."""
    count = int.from_bytes(content[: _COUNT.size])
    times_at = _COUNT.size * (count + 1)
    lengths = struct.unpack_from(f">{count}I", content, _COUNT.size) if times_at <= len(content) else ()
    ends = [*accumulate(lengths, initial=times_at + 8 * count)]
    if not count or ends[-1] != len(content):
        raise DamagedDataError(f"The index of expiries is damaged: {content!r:.60} is no row of it.")
    times = (content[at : at + 8] for at in range(times_at, ends[0], 8))
    return [(time, content[start:end]) for time, (start, end) in zip(times, pairwise(ends), strict=True)]


def with_expiry(headers: Headers, expiry_ms: int) -> Headers:
    """Return headers that say when the entry expires, in place of an earlier expiry. They say it first, where it is
    found soon."""
    others = (header for header in headers if header[0] != EXPIRES_HEADER)
    return ((EXPIRES_HEADER, _I64.pack(min(max(expiry_ms, 0), 2**63 - 1))), *others)


class Lifetime(NamedTuple):
    """How long entries live. A store's time to live is `ttl_ms`, 0 for none. `own`: rows have headers, and those may
    say when they expire.

    A time is eight bytes, as in the index. It is the row's timestamp, or with `own` when it expires. `NEVER` is larger.
    """

    ttl_ms: int
    own: bool = False

    def times(self, rows: Iterable[bytes | None]) -> list[bytes]:
        """Return the times of these rows. An absent row, and one that never expires, has `NEVER` or a later time."""
        if self.own:
            return [NEVER if row is None else self._own_time(row) for row in rows]
        return [NEVER if row is None else row[:8] for row in rows]

    @property
    def span_ms(self) -> int:
        """The time between entries of one row of the index. It bounds how many entries are read before they are due."""
        return max(_LEAST_SPAN_MS, self.ttl_ms // 1_000)

    def live_from(self, now_ms: int) -> bytes:
        """Return the time before which entries have expired now."""
        return _I64.pack(max(now_ms if self.own else now_ms - self.ttl_ms, 0))

    def _own_time(self, row: bytes) -> bytes:
        # Nearly always it is the first of fewer than 64 headers, which have fewer than 8 KiB. 0 of both is no header.
        at = 10 if row[8:9] < b"\x80" else 11
        if row.startswith(_FIRST, at) and row[8] and row[at - 2] < 0x80 and 0 < row[at - 1] < 0x80:
            first = row[at + len(_FIRST) : at + len(_FIRST) + _I64.size]
            if len(first) == _I64.size and first < NEVER:
                return first
        if _MARK in row:  # a value may have it, too
            for name, content in split_headers(row[8:])[1]:
                if name == EXPIRES_HEADER and content is not None and len(content) == _I64.size and content < NEVER:
                    return content
        timestamp: int = TIMESTAMP.unpack_from(row)[0]
        is_given = timestamp >= 0 and self.ttl_ms and timestamp + self.ttl_ms < 2**63
        return _I64.pack(timestamp + self.ttl_ms) if is_given else NEVER


class DueEntries:
    """The entries of an index in the order of their times, a few rows of them in memory. Not thread-safe."""

    def __init__(self, read: Callable[[bytes, int], list[IndexRow]]) -> None:
        """`read(start, most)` returns the next rows of the index from `start` on."""
        self._read = read
        self.restart()

    def restart(self) -> None:
        """Forget what was taken since the last commit, and read again."""
        self._entries = list[Entry]()
        self._loaded = list[tuple[bytes, bytes]]()  # the last time of each row whose entries these are, and its key
        self._unread, self._next, self._is_end = list[IndexRow](), FIRST_ROW, False
        self.first = b""  # no entry is before; unknown

    def take(self, before: bytes, most: int) -> list[bytes]:
        """Take out up to `most` entries with times before this one. Returns their keys."""
        due = bisect_left(self._entries, (before,))
        while due < most and self._load(before, most):
            due = bisect_left(self._entries, (before,))
        taken = [key for _, key in self._entries[: min(due, most)]]
        del self._entries[: len(taken)]
        self._look()
        return taken

    def _load(self, before: bytes, most: int) -> bool:
        """Read about so many entries of rows that begin before this time. Returns whether there are any."""
        known = len(self._entries)
        while len(self._entries) < known + most:
            if not self._unread and not self._is_end:
                self._unread = self._read(self._next, _ROWS_AHEAD)
                self._is_end = len(self._unread) < _ROWS_AHEAD
                self._next = _behind(self._unread[-1]) if self._unread else self._next
            if not self._unread or self._unread[0][0] >= before:
                break
            row, content = self._unread.pop(0)
            entries = entries_of(content)
            self._loaded.append((entries[-1][0], row))
            self._entries += entries
        if is_more := len(self._entries) > known:
            self._entries.sort()
        return is_more

    def changes(self, entries: Iterable[Entry], span_ms: int, number: int) -> IndexChanges:
        """Return the changes of the commit of this number, which adds these entries in rows of this span."""
        first = self._entries[0][0] if self._entries else NEVER
        removed = [row for last, row in self._loaded if last < first]
        return IndexChanges(index_rows(entries, span_ms, number), removed)

    def committed(self, changes: IndexChanges) -> None:
        """The changes are written."""
        gone = set(changes.removed)
        self._loaded = [each for each in self._loaded if each[1] not in gone]
        near = [row for row in changes.added if row[0] < self._next]
        self._unread = sorted([*self._unread, *near])
        if len(self._unread) > 2 * _ROWS_AHEAD:
            del self._unread[_ROWS_AHEAD:]
            self._next, self._is_end = _behind(self._unread[-1]), False
        if len(near) < len(changes.added):
            self._is_end = False
        self._look()

    def _look(self) -> None:
        ahead = [self._unread[0][0][:8]] if self._unread else [] if self._is_end else [b""]
        self.first = min([*ahead, *(time for time, _ in self._entries[:1])], default=NEVER)


def _behind(row: IndexRow) -> bytes:
    return row[0] + b"\0"
