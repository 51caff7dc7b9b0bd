"""`Follower`: lets the secondaries of a server process follow commits beside its answers, so that no question pays for
what was written while nobody asked.

A catch-up holds the event loop (and, in rocksdict, the GIL) for a microsecond per record. So each commit is followed as
it is announced, one partition after the other, with questions in between. A partition without questions for a while
is followed less often, in larger steps, before a catch-up would take long. A question to a partition that is behind
catches up with this partition (`partitions`).
"""

from __future__ import annotations

import asyncio
import logging

from stateline.server.state.partitions import Partitions

# A secondary that nobody asks is followed when a catch-up would take longer: less than 5 ms with what comes meanwhile.
_MOST_S = 0.003

_log = logging.getLogger(__name__)


class Follower:
    """One per server process, for the event loop's thread. A partition that was asked within the last `asked_within_ms`
    is followed with each commit."""

    def __init__(self, partitions: Partitions, asked_within_ms: int) -> None:
        self._partitions = partitions
        self._asked_within_s = asked_within_ms / 1000
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Workers have committed, or may have."""
        self._woken.set()

    async def follow(self) -> None:
        """Follow commits until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                for _ in self._partitions.follow(self._asked_within_s, _MOST_S):
                    await asyncio.sleep(0)
            except Exception:  # noqa: BLE001 - a defect; who asks catches up then, as without this
                _log.exception("Commits could not be followed")
