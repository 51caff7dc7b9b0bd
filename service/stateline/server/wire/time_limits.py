"""How long is waited for a client or a worker: `TimeLimits` ends all of that when the server stops, `while_there` ends
what is done for a client that has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from stateline_store import NotReadyError


class TimeLimits:
    """Time limits of what waits for a client or a worker; one per server, for the event loop's thread."""

    def __init__(self) -> None:
        self._open: set[asyncio.Timeout] = set()
        self._stopped = False

    @property
    def waiting(self) -> int:
        """How many blocks run at the moment."""
        return len(self._open)

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[None]:
        """Run the block for so long at most: `TimeoutError` then, `NotReadyError` once the server is shutting down."""
        if self._stopped:
            raise shutting_down()
        try:
            async with asyncio.timeout(seconds) as timeout:
                self._open.add(timeout)
                try:
                    yield
                finally:
                    self._open.discard(timeout)
        except TimeoutError as error:
            if self._stopped:
                raise shutting_down() from error
            raise

    def stop(self) -> None:
        """End every block at once, and refuse those to come."""
        self._stopped = True
        for timeout in self._open:
            timeout.reschedule(asyncio.get_running_loop().time())


@asynccontextmanager
async def while_there(request: Request) -> AsyncIterator[None]:
    """Run the block, once the whole body was read, as long as the client is there: Starlette's `ClientDisconnect` when
    it has left."""
    has_left = False

    async def watch() -> None:
        nonlocal has_left
        while (await request.receive())["type"] != "http.disconnect":
            pass
        has_left = True
        timeout.reschedule(asyncio.get_running_loop().time())

    try:
        async with asyncio.timeout(None) as timeout:
            watching = asyncio.create_task(watch())
            try:
                yield
            finally:
                watching.cancel()
    except TimeoutError as error:
        if has_left and timeout.expired():
            raise ClientDisconnect from error
        raise


def shutting_down() -> NotReadyError:
    """Return the error for requests that waited, or come too late."""
    return NotReadyError("The server is shutting down: ask another one, or again in a moment.")
