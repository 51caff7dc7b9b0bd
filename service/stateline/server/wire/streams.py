"""A connection that begins as streams, which are easy to greet over, and goes on as a protocol, which costs less for
each message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

Connect = Callable[[Callable[[], asyncio.StreamReaderProtocol]], Awaitable[tuple[asyncio.Transport, asyncio.Protocol]]]


class Arrivals(asyncio.StreamReader):
    """A stream whose rest can be taken out of it. For the event loop's thread, and made in it."""

    has_ended = False
    """Whether the other end says no more, or is gone."""

    def feed_eof(self) -> None:
        self.has_ended = True
        super().feed_eof()

    async def rest(self) -> tuple[bytes, bool]:
        """Return the bytes that have come and were not read, and whether no more come, without a turn of the event
        loop. Whatever comes afterwards is to go elsewhere. Raises `OSError` where the connection is broken."""
        has_ended = self.has_ended
        super().feed_eof()  # what `read` stops at
        return await self.read(), has_ended


async def streams(connect: Connect) -> tuple[Arrivals, asyncio.StreamWriter]:
    """The two ends of the connection that `connect` makes for a protocol, one of the event loop's ``create_connection``
    and the like. Raises what that does."""
    loop = asyncio.get_running_loop()
    arrivals = Arrivals(loop=loop)
    protocol = asyncio.StreamReaderProtocol(arrivals, loop=loop)
    transport, _ = await connect(lambda: protocol)
    return arrivals, asyncio.StreamWriter(transport, protocol, arrivals, loop)
