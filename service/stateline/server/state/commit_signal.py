"""`CommitSignal` wakes those who wait for the next commit; a stop of the server does not wait for them."""

from __future__ import annotations

import asyncio

from stateline.server.wire.time_limits import shutting_down

# Commits are announced; this is only how soon a waiter looks again when an announcement got lost, because its
# worker was replaced at that moment or the server was not yet connected to it.
SAFETY_RECHECK_S = 0.5


class CommitSignal:
    """One per server; every method is for the event loop's thread.

    Take `next_commit` before looking at the state, and wait for it after: no commit in between is missed.
    """

    def __init__(self) -> None:
        self._next = asyncio.Event()
        self.closed = False
        """Whether nobody waits any more, because the server shuts down."""
        self.waiting = 0
        """How many wait at the moment."""

    def announce(self) -> None:
        """Wake everyone who waits."""
        passed, self._next = self._next, asyncio.Event()
        passed.set()

    def close(self) -> None:
        """Wake everyone; whoever waits from now on, or is waiting, gets `NotReadyError`."""
        self.closed = True
        self.announce()

    def next_commit(self) -> asyncio.Event:
        """Return the event that the next announcement sets."""
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
        if self.closed:
            raise shutting_down()
        return True
