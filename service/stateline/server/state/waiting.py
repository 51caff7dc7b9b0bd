"""Whom a stop of the server must not keep waiting: `CommitSignal` wakes those who wait for the next commit,
`TimeLimits` ends those who wait for somebody else. And for whom nobody need wait: `while_there`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from stateline_store import NotReadyError

# Commits are announced; this is only how soon a waiter looks again when an announcement got lost, because its
# worker was replaced at that moment or the server was not yet connected to it.
SAFETY_RECHECK_S = 0.5


class CommitSignal:
    """One per server; every method is for the event loop's thread.

    Take `next_commit` before looking at the state, and wait for it after: no commit in between is missed.
    """

    def __init__(self) -> None:
        self._next = asyncio.Event()
        self._closed = False
        self.waiting = 0
        """How many wait at the moment."""

    def announce(self) -> None:
        """Wake everyone who waits."""
        passed, self._next = self._next, asyncio.Event()
        passed.set()

    def close(self) -> None:
        """Wake everyone; whoever waits from now on, or is waiting, gets `NotReadyError`."""
        self._closed = True
        self.announce()

    def next_commit(self) -> asyncio.Event:
        """What is set by the next announcement."""
        return self._next

    async def wait(self, commit: asyncio.Event, deadline_s: float) -> bool:
        """Wait for `commit`, the safety interval or the deadline (of the loop's clock), whatever comes first.

        False when the deadline has passed. Raises `NotReadyError` when the server is shutting down.
        """
        left_s = deadline_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            return False
        self.waiting += 1
        try:
            async with asyncio.timeout(min(left_s, SAFETY_RECHECK_S)):
                await commit.wait()
        except TimeoutError:
            pass  # the caller looks again, and comes back unless its time is up
        finally:
            self.waiting -= 1
        if self._closed:
            raise shutting_down()
        return True


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
    """What those are told who waited, or come too late."""
    return NotReadyError("The server is shutting down: ask another one, or again in a moment.")
