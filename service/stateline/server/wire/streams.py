"""A connection that starts as streams for the greeting, and continues as a protocol, which costs less per message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

Connect = Callable[[Callable[[], asyncio.StreamReaderProtocol]], Awaitable[tuple[asyncio.Transport, asyncio.Protocol]]]


class Arrivals(asyncio.StreamReader):
    """A stream whose unread bytes can be taken out. Create and use it on the event loop's thread."""

    has_ended = False
    """Whether the other end has closed its side."""

    def feed_eof(self) -> None:
        self.has_ended = True
        super().feed_eof()

    async def rest(self) -> tuple[bytes, bool]:
        """Return the unread bytes, and whether the other end has closed, without a turn of the event loop. Later bytes
        must go elsewhere. Raises `OSError` if the connection is broken."""
        has_ended = self.has_ended
        super().feed_eof()  # so that `read` returns now
        return await self.read(), has_ended


async def streams(connect: Connect) -> tuple[Arrivals, asyncio.StreamWriter]:
    """Return the reader and the writer of a new connection. `connect` calls a method such as the event loop's
    ``create_connection``. Raises its errors."""
    loop = asyncio.get_running_loop()
    arrivals = Arrivals(loop=loop)
    protocol = asyncio.StreamReaderProtocol(arrivals, loop=loop)
    transport, _ = await connect(lambda: protocol)
    return arrivals, asyncio.StreamWriter(transport, protocol, arrivals, loop)
