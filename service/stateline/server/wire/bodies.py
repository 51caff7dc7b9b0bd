"""Read request bodies within limits: of bytes, values and time, and of all large bodies together.

Bytes count from their arrival, so an announced body takes no room. They count while they are held. A waiting query
holds only its keys, at most as many bytes as the body. Large bodies are parsed in a thread, one at a time. Parsing one
takes up to some hundred milliseconds, and many times its memory.
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

# The longest pause within a body. A lossy line needs less between two packets, and a sleeping client loses its
# connection.
PATIENCE_S = 30.0
# The longest time for a whole body: 4 MiB at half a megabit per second.
WHOLE_S = 60.0
# Smaller bodies take about a millisecond, and no more memory than a connection has. Large bodies never delay or refuse
# them.
SMALL_BYTES = 8 * 1024
# The limit for all large bodies of a process, as a multiple of the largest body.
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
        """Bytes of all large bodies now."""
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
        """Read the body, and yield the first result of `parse`.

        `parse` returns the result, and the bytes that the result holds. They count until the end of the block. `parse`
        runs in a thread if the body is large, or if it `blocks`.

        Raises `InvalidArgumentError` if the body has more than `most_bytes` (default: `server.body.max.bytes`) or too
        many values, or does not arrive. Raises `TooManyRequestsError` if the caller has no room, `NotReadyError` if the
        server stops, Starlette's `ClientDisconnect` if the client leaves, and the errors of `parse`.
        """
        is_set = most_bytes is None or most_bytes >= self._most_bytes
        most_bytes = self._most_bytes if most_bytes is None else min(most_bytes, self._most_bytes)
        caller = caller_of(request)
        arriving = _Arriving(request, self._limits, most_bytes, is_set, partial(self._take_room, caller))
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
    """A body that is arriving. `is_set`: server.body.max.bytes sets `most_bytes`."""

    def __init__(
        self,
        request: Request,
        limits: TimeLimits,
        most_bytes: int,
        is_set: bool,
        take_room: Callable[[int], None],
    ) -> None:
        self._request, self._limits, self._most_bytes, self._take_room = request, limits, most_bytes, take_room
        self._is_set = is_set
        self._size = 0
        self.taken = 0  # bytes that count as a large body's

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
            f"The body is larger than the {self._most_bytes} bytes that are accepted here"
            f"{' (server.body.max.bytes)' if self._is_set else ''}: ask for less at a time."
        )

    def _too_slow(self, *, is_whole: bool) -> InvalidArgumentError:
        if is_whole:
            return InvalidArgumentError(f"The body did not arrive within {WHOLE_S:g} s: send less at a time.")
        return InvalidArgumentError(
            f"Nothing more of the body arrived for {PATIENCE_S:g} s, after {self._size} bytes: send it again, as long "
            "as its Content-Length says."
        )
