"""`Cursors`: pages of one state. A cursor pins what its first page was read from until it was read to the end, its
lease is over, or it makes room for another.

A cursor as clients see it (opaque to them), base64url without padding:

    process:8 random bytes ‖ cursor:8 random bytes ‖ page:u32 BE ‖ HMAC-SHA256 of all that, its first 16 bytes

Each page has a cursor of its own for the next one. The page that was given last can be asked for again: an answer may
get lost. Every server process of an application signs with the same key (`signing_key`).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import os
import secrets
import stat
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from stateline.query import Answer, Entry, Outcome, Rows, Terms
from stateline.server.merged_scan import MergedScan
from stateline.server.partitions import ServedStore
from stateline_store import CursorExpiredError, DoesNotExistError, InvalidArgumentError
from stateline_store.durable_files import refused

_BODY = struct.Struct(">8s8sI")
_MAC_BYTES = 16
_KEY_BYTES = 32


class Token(NamedTuple):
    """What a cursor says: which process has it, which one it is, and which page comes next (from 1)."""

    process: bytes
    cursor: bytes
    page: int


@dataclass(slots=True)
class Page:
    """Entries of one page, and the cursor of the next one; None after the last."""

    entries: list[Entry]
    cursor: str | None


@dataclass(slots=True)
class Cursor:
    """One state that is read page by page: what its first answer said of it stays true for all of them."""

    store: ServedStore
    terms: Terms
    outcomes: Mapping[int, Outcome]
    scan: MergedScan
    limit: int
    with_key: bool
    page: int = 0  # how many were given
    last: Page | None = None
    used_at_s: float = 0.0
    opened_at_s: float = field(default_factory=time.monotonic)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


def signing_key(application: Path) -> bytes:
    """The key of this application, made when there is none: the file ``cursor.key``, which its user alone can read.

    Raises `RetryLaterError` when the directory cannot be written.
    """
    path = application / "cursor.key"
    try:
        application.mkdir(mode=0o750, parents=True, exist_ok=True)
        draft = path.with_name(f".cursor.key.{secrets.token_hex(8)}")
        if path.exists() and path.stat().st_size != _KEY_BYTES:
            path.unlink()  # a power cut left a part: a short key could be guessed
        if not path.exists():
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(draft, path)  # of two processes that come at once one is first, whole
            except FileExistsError:
                pass
            finally:
                draft.unlink()
        return path.read_bytes()
    except OSError as error:
        raise refused(path, "written", error) from error


class Cursors:
    """Those of one server process; every method is for the event loop's thread."""

    def __init__(self, key: bytes, *, ttl_s: float, most: int, most_bytes: int) -> None:
        """At most so many at a time; each lives for `ttl_s` after its last page, and less when they keep more than
        `most_bytes` on disk."""
        self._key = key
        self._ttl_s = ttl_s
        self._most = most
        self._most_bytes = most_bytes
        self.process = secrets.token_bytes(8)
        self._open: dict[bytes, Cursor] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def oldest_age_s(self) -> float:
        """How long the oldest state has been pinned; 0 without one."""
        now_s = time.monotonic()
        return max((now_s - cursor.opened_at_s for cursor in self._open.values()), default=0.0)

    async def begin(self, cursor: Cursor) -> Page:
        """The first page. The cursor is kept when there is more, and closed otherwise."""
        name = secrets.token_bytes(8)
        try:
            page = await self._next(name, cursor)
        except BaseException:
            cursor.scan.close()
            raise
        if page.cursor is not None:
            self._open[name] = cursor
            if len(self._open) > self._most:
                self._close_oldest()
        return page

    def token(self, text: str) -> Token:
        """What a client's cursor says. Raises `DoesNotExistError` for one that no server has given."""
        try:
            data = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        except (binascii.Error, ValueError):
            data = b""
        body, mac = data[: _BODY.size], data[_BODY.size :]
        genuine = len(data) == _BODY.size + _MAC_BYTES and hmac.compare_digest(mac, self._mac(body))
        # Base64 has several spellings of the same bytes: only ours is taken.
        if not genuine or _encoded(data) != text:
            raise DoesNotExistError(f"cursor={text[:60]!r} is none that was given: begin anew without it.")
        return Token(*_BODY.unpack(body))

    async def follow(self, token: Token, store: ServedStore, limit: int | None) -> tuple[Cursor, Page]:
        """The page that this token stands for, and the state that it is of. Raises `CursorExpiredError` when that is
        gone, `InvalidArgumentError` when it is of another store."""
        cursor = self._open.get(token.cursor)
        if cursor is None or token.process != self.process:
            raise CursorExpiredError("This cursor is gone, or was read to its end: begin anew without it.")
        if cursor.store.name != store.name:
            raise InvalidArgumentError(f"The cursor is of another store than {store.name!r}: send it to its own.")
        async with cursor.lock:
            cursor.used_at_s = time.monotonic()
            if token.page == cursor.page - 1 and cursor.last is not None:
                return cursor, cursor.last
            if token.page != cursor.page:
                raise CursorExpiredError("The page of this cursor was given long ago: begin anew without it.")
            cursor.limit = limit or cursor.limit
            try:
                page = await self._next(token.cursor, cursor)
            except BaseException:  # what was read of the page is lost: the next would go on behind it
                self._close(token.cursor)
                raise
        if page.cursor is None:
            cursor.scan.close()  # its last page may be asked for again, until the lease is over
        return cursor, page

    def expire(self) -> None:
        """Close those whose lease is over, and one when they keep too much on disk; call it twice a second."""
        since_s = time.monotonic() - self._ttl_s
        for name in [name for name, each in self._open.items() if each.used_at_s < since_s and not each.lock.locked()]:
            self._close(name)
        if self._open and held_on_disk() > self._most_bytes:
            self._close_oldest()

    def close(self) -> None:
        """Close them all."""
        for name in list(self._open):
            self._close(name)

    async def _next(self, name: bytes, cursor: Cursor) -> Page:
        entries = await cursor.scan.page(cursor.limit)
        more = await cursor.scan.has_more()
        cursor.page += 1
        cursor.used_at_s = time.monotonic()
        cursor.last = Page(entries, self.text(Token(self.process, name, cursor.page)) if more else None)
        return cursor.last

    def text(self, token: Token) -> str:
        """The cursor that says this, as `token` reads it."""
        body = _BODY.pack(*token)
        return _encoded(body + self._mac(body))

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, hashlib.sha256)[:_MAC_BYTES]

    def _close_oldest(self) -> None:
        """The one that was used longest ago makes room."""
        self._close(min(self._open, key=lambda each: self._open[each].used_at_s))

    def _close(self, name: bytes) -> None:
        cursor = self._open.pop(name, None)
        if cursor is not None:
            cursor.scan.close()


def held_on_disk() -> int:
    """Bytes of the files that are deleted and that this process still has open. 0 where the system does not tell."""
    held = 0
    for folder in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                with contextlib.suppress(OSError):  # closed meanwhile
                    status = os.fstat(int(name))
                    if status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
                        held += status.st_size
            return held
    return held


def pinned(outcomes: Mapping[int, Outcome]) -> dict[int, Outcome]:
    """The outcomes without their rows: what every page says of the partitions."""
    return {
        p: Answer(Rows(), outcome.position, outcome.copy) if isinstance(outcome, Answer) else outcome
        for p, outcome in outcomes.items()
    }


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
