"""How several processes share the connections of one listening socket: whoever has fewest takes the next.

Left to themselves, the process that wakes first takes a burst of connections alone (measured: 62 of 64), keeps them,
and the others stay idle. So each publishes how many it has, and one that has more than another lets it go first. It
waits for `_POLITENESS_S` only: a process that is busy, hangs or is dead keeps nobody waiting.
"""

from __future__ import annotations

import asyncio
import errno
import mmap
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from stateline.processes.seldom import seldom

_POLITENESS_S = 0.002
# No descriptors are left: some are given back when connections end.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_EXHAUSTED_S = 0.5
_BYTES = 8  # of a count

_log = seldom(__name__)


class ConnectionCounts:
    """How many connections each process has: a file of native 64-bit numbers, one per process, mapped by all.

    A process writes its own only. Numbers of others may be a moment old.
    """

    def __init__(self, path: Path, number: int) -> None:
        self._number = number
        with path.open("r+b") as file:
            self._counts = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        self.publish(0)  # a dead predecessor's are closed

    @staticmethod
    def create(path: Path, processes: int) -> None:
        """Make the file, of zeros."""
        path.write_bytes(bytes(processes * _BYTES))

    def publish(self, count: int) -> None:
        """Publish this process's number of connections."""
        self._counts[self._number] = count

    def least_of_others(self) -> int:
        """The smallest count of another process. There is another one."""
        return min(count for number, count in enumerate(self._counts) if number != self._number)


class FairAcceptor:
    """Takes connections from a listening socket, and hands them to `connect`. For the event loop's thread.

    `connections` says how many connections this process has. The socket stays the caller's.
    """

    def __init__(
        self,
        listener: socket.socket,
        counts: ConnectionCounts,
        connect: Callable[[socket.socket], Awaitable[object]],
        connections: Callable[[], int],
    ) -> None:
        self._listener, self._counts, self._connect, self._connections = listener, counts, connect, connections
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._has_waited = False
        self._later: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._watch()

    def publish(self) -> None:
        """Tell the others how many connections there are here."""
        self._counts.publish(self._connections() + len(self._opening))

    def close(self) -> None:
        """Take no more."""
        if self._later is None:
            self._loop.remove_reader(self._listener.fileno())
        else:
            self._later.cancel()

    def _watch(self) -> None:
        self._later = None
        self._loop.add_reader(self._listener.fileno(), self._take)

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._later = self._loop.call_later(seconds, self._watch)

    def _take(self) -> None:
        """One connection per turn of the loop, so that requests are answered in between."""
        here = self._connections() + len(self._opening)
        if here > self._counts.least_of_others() and not self._has_waited:
            self._has_waited = True
            self._pause(_POLITENESS_S)
            return
        self._has_waited = False
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another process was quicker, or the client has gone
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            _log.warning("No connection can be taken for the moment: %s", error.strerror)
            self._pause(_EXHAUSTED_S)
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._open(connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        self._counts.publish(here + 1)

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._connect(connection)
        except OSError as error:  # the client has gone, or speaks no TLS
            connection.close()
            _log.debug("A connection was not made: %s", error)
