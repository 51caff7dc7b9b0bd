"""End waits for clients and workers: after a time, when the server stops, or when the client has left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from stateline_store import NotReadyError


class TimeLimits:
    """Time limits of all waits of a server. For the event loop's thread."""

    def __init__(self) -> None:
        self._open: set[asyncio.Timeout] = set()
        self._stopped = False

    @property
    def waiting(self) -> int:
        """The number of running blocks."""
        return len(self._open)

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[None]:
        """Limit the block's time. Raises `TimeoutError` after it, and `NotReadyError` once the server stops."""
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
        """End all running blocks, and refuse new ones."""
        self._stopped = True
        for timeout in self._open:
            timeout.reschedule(asyncio.get_running_loop().time())


@asynccontextmanager
async def while_there(request: Request) -> AsyncIterator[None]:
    """End the block when the client leaves, with Starlette's `ClientDisconnect`. Read the whole body before."""
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
    """Return the error for requests that wait or arrive during a stop."""
    return NotReadyError("The server is shutting down: ask another one, or again in a moment.")
