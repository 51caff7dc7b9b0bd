"""How a request's body is read: bounded in bytes and values, in how long it may take, and together with all others.

Bytes count as they arrive, so that who announces much and sends nothing takes room from nobody, and no longer than they
are held: of a query that waits only its keys count, of which it may have as many bytes as the body. A large body is
taken apart in a thread, one at a time: that takes up to some hundred milliseconds, and many times its memory.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from starlette.requests import Request

from stateline.config.settings import Config
from stateline.server.guard.caller import caller_of
from stateline.server.wire.json_bounds import JsonBounds
from stateline.server.wire.time_limits import TimeLimits
from stateline_store import InvalidArgumentError, TooManyRequestsError

# How long a request may wait for more of its body: what no lossy line needs between two packets, and short enough
# that clients which went to sleep do not keep their connections.
PATIENCE_S = 30.0
# How long all of it may take: 4 MiB in that time are half a megabit per second.
WHOLE_S = 60.0
# Bodies of this size cost a millisecond or so at most, and what the connection holds anyway: queries of every day never
# wait for large ones, and are never refused because of them.
SMALL_BYTES = 8 * 1024
# All large bodies of a process together, in bodies of the largest size.
LARGEST_AT_ONCE = 16

T = TypeVar("T")


class Bodies:
    """The bodies of one server process; for the event loop's thread."""

    def __init__(self, limits: TimeLimits, config: Config) -> None:
        self._limits, self._most_bytes = limits, config.server_body_max_bytes
        self._most_of_all = LARGEST_AT_ONCE * self._most_bytes
        self._most_of_one = config.caller_share(LARGEST_AT_ONCE) * self._most_bytes
        self._taken: Counter[str] = Counter()  # by caller
        self._parsing = asyncio.Lock()

    @property
    def taken(self) -> int:
        """How many bytes of large bodies there are."""
        return self._taken.total()

    @asynccontextmanager
    async def read(
        self,
        request: Request,
        parse: Callable[[bytes], tuple[T, int]],
        most_bytes: int | None = None,
        *,
        blocks: bool = False,
    ) -> AsyncIterator[T]:
        """Yield the result of `parse`. It runs in another thread if the body is large, or if it `blocks`. It also
        returns how many bytes of the body are still held then. The block is what that is needed for: until its end
        these take room from other bodies.

        Raises `InvalidArgumentError` when the body has more than `most_bytes` (the largest, unless given), too many
        values, or does not arrive, `TooManyRequestsError` when there is no room for this caller, `NotReadyError` when
        the server stops meanwhile, Starlette's `ClientDisconnect` when the client does not wait for an answer, and what
        `parse` raises.
        """
        most_bytes = self._most_bytes if most_bytes is None else min(most_bytes, self._most_bytes)
        caller = caller_of(request)
        arriving = _Arriving(request, self._limits, most_bytes, partial(self._take_room, caller))
        taken_until_end = 0
        try:
            try:
                parsed, kept = await self._parsed(await arriving.body(), parse, blocks=blocks)
                taken_until_end = min(arriving.taken, kept if kept > SMALL_BYTES else 0)
            finally:
                self._give_back(caller, arriving.taken - taken_until_end)
            yield parsed
        finally:
            self._give_back(caller, taken_until_end)

    async def _parsed(self, body: bytes, parse: Callable[[bytes], tuple[T, int]], *, blocks: bool) -> tuple[T, int]:
        if len(body) <= SMALL_BYTES:
            return await asyncio.to_thread(parse, body) if blocks else parse(body)
        async with self._parsing:
            return await asyncio.to_thread(parse, body)

    def _take_room(self, caller: str, size: int) -> None:
        if self._taken[caller] + size > self._most_of_one:
            raise TooManyRequestsError(
                f"Large bodies of your requests take all of the {self._most_of_one} bytes that one caller may have "
                "(server.caller.share.percent): wait for their answers, or ask for less."
            )
        if self.taken + size > self._most_of_all:
            raise TooManyRequestsError(
                f"The bodies of other requests take all of the {self._most_of_all} bytes that there are for large "
                "ones: ask again in a moment, or for less."
            )
        self._taken[caller] += size

    def _give_back(self, caller: str, size: int) -> None:
        self._taken[caller] -= size
        if not self._taken[caller]:
            del self._taken[caller]


class _Arriving:
    """One body on its way."""

    def __init__(self, request: Request, limits: TimeLimits, most_bytes: int, take_room: Callable[[int], None]) -> None:
        self._request, self._limits, self._most_bytes, self._take_room = request, limits, most_bytes, take_room
        self._size = 0
        self.taken = 0
        """Of the room for large bodies."""

    async def body(self) -> bytes:
        announced = self._request.headers.get("content-length", "")
        if announced.isdecimal() and (len(announced) > 18 or int(announced) > self._most_bytes):
            raise self._too_large()
        pieces: list[bytes] = []
        bounds = JsonBounds()
        chunks = self._request.stream()
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + WHOLE_S
        try:
            while True:
                async with self._limits.within(min(PATIENCE_S, deadline_s - now_s())):
                    piece = await anext(chunks)
                self._add(len(piece))
                bounds.take(piece)
                pieces.append(piece)
        except StopAsyncIteration:
            return b"".join(pieces)
        except TimeoutError as error:
            raise self._too_slow(is_whole=now_s() >= deadline_s) from error

    def _add(self, size: int) -> None:
        self._size += size
        if self._size > self._most_bytes:
            raise self._too_large()
        if self._size > SMALL_BYTES:
            more = self._size - self.taken
            self._take_room(more)
            self.taken += more

    def _too_large(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"The body is larger than the {self._most_bytes} bytes that are accepted here (server.body.max.bytes): "
            "ask for less at a time."
        )

    def _too_slow(self, *, is_whole: bool) -> InvalidArgumentError:
        if is_whole:
            return InvalidArgumentError(f"The body did not arrive within {WHOLE_S:g} s: send less at a time.")
        return InvalidArgumentError(
            f"Nothing more of the body arrived for {PATIENCE_S:g} s, after {self._size} bytes: send it again, as long "
            "as its Content-Length says."
        )
