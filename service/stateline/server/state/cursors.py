"""Cursors: all pages of a query are read from one state.

A cursor pins the state of its first page. The state is released when it was read to its end, when the lease is over, or
when another cursor needs the room. Each page has a cursor for the next page (`cursor_text`). The last page can be asked
for again, because an answer may get lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import stat
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from stateline.query.open_scans import OpenScans, Pinning
from stateline.query.values import Entry, Outcome, PartitionAnswer, QueryRows, Rest, ServedBy, Terms
from stateline.server.contract.formats import WHOLE, Shape
from stateline.server.state.cursor_text import MARK_BYTES, CursorToken, read_cursor, write_cursor
from stateline.server.state.merged_scan import MergedScan, memory_of
from stateline.server.state.served_stores import ServedStore
from stateline_store import CursorExpiredError, InvalidArgumentError
from stateline_store.snapshots.snapshot_directory import SNAPSHOTS

# Memory for the entries of all cursors: the rows read ahead in each partition, and each cursor's last page. Only the
# cursor read last may exceed it, by 4 MiB per partition.
MAX_HELD_BYTES = 128 * 1024 * 1024
# Between two looks at the disk while there are cursors. A look takes a microsecond per file and connection.
_LOOK_INTERVAL_S = 5.0
# The shortest lease of scans for other nodes. These renew it several times a second.
_LEAST_LEASE_S = 5.0

_OPEN_FILES = "/proc/self/fd"
_DELETED_TABLE = ".sst (deleted)"  # Linux's name for a deleted table of RocksDB that is still open


@dataclass(slots=True)
class Page:
    """Entries of one page, and the cursor of the next page. The last page has None."""

    entries: list[Entry]
    cursor: str | None


@dataclass(slots=True)
class Cursor:
    """A state that is read page by page. All pages have the outcomes of the first."""

    store: ServedStore
    terms: Terms
    outcomes: Mapping[int, Outcome]
    scan: MergedScan
    limit: int
    with_key: bool
    caller: str  # who opened it
    shape: Shape = WHOLE  # of every page
    path: str = ""  # of its query below a store
    page: int = 0  # number of pages returned
    last: Page | None = None
    held_bytes: int = 0  # in memory, after its last page
    used_at_s: float = 0.0
    opened_at_s: float = field(default_factory=time.monotonic)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_read(self) -> bool:
        """Whether it was read to its end. It then pins nothing, and only repeats its last page."""
        return self.last is not None and self.last.cursor is None

    def let_go(self, now: Mapping[int, ServedBy]) -> None:
        """Set which copy serves these partitions, because the pinned copies are no longer their owner's."""
        for p, served_by in now.items():
            outcome = self.outcomes[p]
            if isinstance(outcome, PartitionAnswer):
                outcome.copy = replace(outcome.copy, served_by=served_by)


class Cursors:
    """The cursors of one server process, for the event loop's thread."""

    def __init__(
        self,
        key: bytes,
        *,
        ttl_s: float,
        most: int,
        most_bytes: int,
        node: bytes = bytes(MARK_BYTES),
        on_disk: Callable[[], int] = lambda: 0,
        catch_up: Callable[[], None] = lambda: None,
    ) -> None:
        """Keep at most `most` cursors. Each lives for `ttl_s` after its last page.

        Cursors end earlier if they take more than `MAX_HELD_BYTES` of memory, or keep more than `most_bytes` on disk.
        The caller with the most loses one first. `node` is the node's mark. `on_disk` returns the bytes kept on disk.
        `catch_up` moves readers on that keep files without need.
        """
        self._key = key
        self.node = node
        self._ttl_s = ttl_s
        self._most = most
        self._most_bytes = most_bytes
        self._on_disk, self._catch_up = on_disk, catch_up
        self.looked_at_s = -math.inf
        self._was_over = False  # whether the last look found too much on disk
        self.process = secrets.token_bytes(8)
        self.open: dict[bytes, Cursor] = {}
        self.of_nodes: OpenScans[Rest] = OpenScans()
        """Open scans of other nodes' cursors and streams."""

    def __len__(self) -> int:
        return len(self.open)

    @property
    def oldest_age_s(self) -> float:
        """Seconds since the oldest state was pinned; 0 without cursors."""
        now_s = time.monotonic()
        return max((now_s - cursor.opened_at_s for cursor in self.open.values()), default=0.0)

    @property
    def held_bytes(self) -> int:
        """Estimated bytes of memory of the entries of all cursors."""
        return sum(cursor.held_bytes for cursor in self.open.values())

    async def begin(self, cursor: Cursor) -> Page:
        """Return the first page. Keep the cursor if there are more pages; else close it."""
        name = secrets.token_bytes(8)
        try:
            page = await self._next(name, cursor)
        except BaseException:
            cursor.scan.close()
            raise
        if page.cursor is not None:
            self.open[name] = cursor
            self._make_room(name)
        return page

    def token(self, text: str) -> CursorToken:
        """Read a client's cursor. Raises `DoesNotExistError` if no server of this node made it."""
        return read_cursor(self._key, text)

    def check(self, token: CursorToken, store: ServedStore) -> Cursor:
        """Return the token's cursor without reading on.

        Raises `CursorExpiredError` if the cursor or the page is gone, and `InvalidArgumentError` if the cursor belongs
        to another store."""
        cursor = self.open.get(token.cursor)
        if cursor is None or token.process != self.process:
            raise CursorExpiredError("This cursor has expired, or was read to its end. Start over without it.")
        if cursor.store.name != store.name:
            raise InvalidArgumentError(f"The cursor is of another store than {store.name!r}: send it to its own.")
        if token.page not in (cursor.page - 1, cursor.page):
            raise CursorExpiredError("The page of this cursor is too old. Start over without it.")
        return cursor

    async def follow(self, token: CursorToken, store: ServedStore, limit: int | None) -> tuple[Cursor, Page]:
        """Return the token's cursor and its page. Raises like `check`."""
        cursor = self.check(token, store)
        async with cursor.lock:
            self.check(token, store)  # again: while waiting, another page was read or the cursor was closed
            cursor.used_at_s = time.monotonic()
            if token.page == cursor.page - 1 and cursor.last is not None:
                return cursor, cursor.last
            cursor.limit = limit or cursor.limit
            try:
                page = await self._next(token.cursor, cursor)
            except BaseException:  # rows of this page are lost, and the next page would skip them
                self.end(token.cursor)
                raise
        if page.cursor is None:
            cursor.scan.close()  # the cursor stays, to repeat its last page
        self._make_room(token.cursor)
        return cursor, page

    def expire(self) -> None:
        """Close cursors whose lease is over. Call it twice a second.

        If two successive looks at the disk find too much, also close one cursor. One look is not enough, because other
        readers keep files for an instant while they are replaced. The closed cursor is the oldest of the caller with
        the most cursors; another node counts as one caller. The oldest keeps the most deleted files.
        """
        self.of_nodes.expire(max(self._ttl_s, _LEAST_LEASE_S))
        since_s = time.monotonic() - self._ttl_s
        for name in [name for name, each in self.open.items() if each.used_at_s < since_s and not each.lock.locked()]:
            self.end(name)
        pinning = self._pinning() + self.of_nodes.pinning()
        if not pinning:
            self._was_over = False
        elif time.monotonic() - self.looked_at_s >= _LOOK_INTERVAL_S:
            was_over, self._was_over = self._was_over, not self._is_within_disk()
            if not self._was_over:
                self.looked_at_s = time.monotonic()
            elif was_over:
                self._was_over = False
                min(pinning, key=lambda each: (-each.of_owner, each.since_s)).close()

    def _pinning(self) -> list[Pinning]:
        pinning = {name: each for name, each in self.open.items() if not each.is_read}
        counts = Counter(each.caller for each in pinning.values())
        return [
            Pinning(counts[each.caller], each.opened_at_s, partial(self.end, name)) for name, each in pinning.items()
        ]

    def close(self) -> None:
        """Close all cursors."""
        for name in list(self.open):
            self.end(name)

    async def _next(self, name: bytes, cursor: Cursor) -> Page:
        entries = await cursor.scan.page(cursor.limit)
        more = await cursor.scan.has_more()
        cursor.page += 1
        cursor.used_at_s = time.monotonic()
        cursor.last = Page(entries, self.text(CursorToken(self.process, name, cursor.page)) if more else None)
        cursor.held_bytes = memory_of(entries) + cursor.scan.held_bytes
        return cursor.last

    def text(self, token: CursorToken) -> str:
        """Return the token as a cursor for clients. `token` reads it."""
        return write_cursor(self._key, self.node, token)

    def _make_room(self, newest: bytes) -> None:
        """Close cursors until the rest is within the limits. Always keep the newest."""
        while len(self.open) > max(1, self._most):
            self.end(self._dispensable(newest, lambda cursor: 1))
        while self.held_bytes > MAX_HELD_BYTES and len(self.open) > 1:
            self.end(self._dispensable(newest, lambda cursor: cursor.held_bytes))

    def _dispensable(self, newest: bytes, size_of: Callable[[Cursor], int]) -> bytes:
        """Return the cursor to close: the least recently used one of the caller with the most, never the newest. So no
        caller loses a cursor to a caller that has more."""
        sizes: Counter[str] = Counter()
        for cursor in self.open.values():
            sizes[cursor.caller] += size_of(cursor)
        others = {name: cursor for name, cursor in self.open.items() if name != newest}
        return min(others, key=lambda name: (-sizes[others[name].caller], others[name].used_at_s))

    def _is_within_disk(self) -> bool:
        if self._on_disk() <= self._most_bytes:
            return True
        self._catch_up()
        return self._on_disk() <= self._most_bytes

    def end(self, name: bytes) -> None:
        """Close the cursor of this name, if it is open."""
        cursor = self.open.pop(name, None)
        if cursor is not None:
            cursor.scan.close()


def held_on_disk(application: Path) -> int:
    """Return the bytes of deleted tables of the application's stores that this process keeps open.

    Tables of snapshots and logs do not count. Returns 0 on a system without /proc."""
    stores, snapshots = f"{application.resolve()}/", f"{application.resolve()}/{SNAPSHOTS}/"
    # By device and inode, so that each file counts once. Every secondary has a descriptor of its own.
    sizes: dict[tuple[int, int], int] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(_OPEN_FILES):
            with contextlib.suppress(OSError):  # closed meanwhile
                status = os.fstat(int(name))
                if status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
                    path = os.readlink(f"{_OPEN_FILES}/{name}")
                    if path.startswith(stores) and not path.startswith(snapshots) and path.endswith(_DELETED_TABLE):
                        sizes[status.st_dev, status.st_ino] = status.st_size
    return sum(sizes.values())


def pinned(outcomes: Mapping[int, Outcome]) -> dict[int, Outcome]:
    """Return the outcomes without their rows, for all pages."""
    return {
        p: replace(outcome, rows=QueryRows()) if isinstance(outcome, PartitionAnswer) else outcome
        for p, outcome in outcomes.items()
    }
