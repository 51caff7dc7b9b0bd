"""The query processes of a server. Asyncio, one event loop.

A process answers one statement at a time. It starts before it is needed, and is killed at the deadline, when its caller
leaves early, and when a statement took all its memory. Another one starts in its place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stateline.sql.known_lookups import KnownLookups
from stateline.sql.places import Places
from stateline.sql.session import QuerySession, ServedProcess
from stateline_store import NotReadyError

_START_S = 15.0
"""The longest wait for a process that starts, beside a statement's own time."""
_MOST_STATEMENTS = 1_000

logger = logging.getLogger(__name__)


class QueryProcesses:
    """A process for each of these places, of `memory_bytes` beyond its memory at rest.

    `killed` are the processes that were killed so far. `held` is what the
    platform takes from a process (`sandbox.confine`).
    """

    def __init__(self, places: Places, memory_bytes: int) -> None:
        self._places = places
        self._memory_bytes = memory_bytes
        self._lookups = KnownLookups()
        self._idle: list[ServedProcess] = []
        self._spares: set[asyncio.Task[bool]] = set()
        self._is_stopped = False
        self.killed = 0
        self.held: tuple[str, ...] = ()

    @property
    def running(self) -> int:
        """The statements that run now."""
        return self._places.running

    async def start(self) -> None:
        """Start a process before it is needed. Raises `NotReadyError`."""
        process = await ServedProcess.start(self._memory_bytes)
        self.held = process.held
        self._idle.append(process)

    async def stop(self) -> None:
        """Kill all idle processes, and those in use when their sessions end."""
        self._is_stopped = True
        for spare in self._spares:
            spare.cancel()
        if self._spares:
            await asyncio.wait(self._spares)
        while self._idle:
            await self._idle.pop().end()

    @asynccontextmanager
    async def session(self, deadline_s: float, caller: str = "") -> AsyncIterator[QuerySession]:
        """Give a process to one statement of a caller, for `deadline_s` seconds at most. Waiting for a free one counts.

        Raises `TooManyRequestsError` if none is free by then, `NotReadyError` if none starts.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline_s
        try:
            async with self._places.place(caller, end):
                process = await self._take(end + _START_S)
                end = loop.time() + deadline_s  # its start is not the statement's time
                session = QuerySession(process, deadline_s, end, self._lookups)
                try:
                    yield session
                finally:
                    await session.close()
                    await self._give_back(process, session)
        finally:
            self._start_spare()

    async def _take(self, end: float) -> ServedProcess:
        """Return a process that waits for a statement. One that starts goes on if it is not there by then."""
        while not self._is_stopped:
            while self._idle:
                if (process := self._idle.pop()).is_alive:
                    self._start_spare()
                    return process
                await process.end()
            if not self._spares:
                self._add_spare()
            left_s = end - asyncio.get_running_loop().time()
            done, _ = await asyncio.wait(self._spares, timeout=max(0, left_s), return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise NotReadyError("A query process starts, and was not there in time. Ask again.")
            if not any(task.result() for task in done):
                raise NotReadyError("A query process did not start. Its error is in the server's log.")
        raise NotReadyError("The server stops. Try again later.")

    async def _give_back(self, process: ServedProcess, session: QuerySession) -> None:
        process.statements += 1
        if session.is_clean and not session.is_expired and not self._is_stopped and process.is_alive:
            if process.statements < _MOST_STATEMENTS:
                self._idle.append(process)
                return
        else:
            self.killed += 1
        await process.end()

    def _start_spare(self) -> None:
        """Start a process in the background unless one is idle, or as many run as may."""
        if self._idle or self._spares or self._is_stopped or self.running >= self._places.most:
            return
        self._add_spare()

    def _add_spare(self) -> None:
        spare = asyncio.create_task(self._spare())
        self._spares.add(spare)
        spare.add_done_callback(self._spares.discard)

    async def _spare(self) -> bool:
        """Return whether a process has started."""
        try:
            process = await ServedProcess.start(self._memory_bytes)
        except NotReadyError as error:
            logger.warning("%s", error)
            return False
        if self._is_stopped:
            await process.end()
        else:
            self._idle.append(process)
        return True
