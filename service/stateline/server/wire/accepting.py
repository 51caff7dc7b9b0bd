"""Share the connections of one listening socket among processes: the one with the fewest accepts the next.

Otherwise the process that wakes first accepts most of a burst (62 of 64 measured), and the others stay idle. So each
process publishes its number of connections. A process with more than another waits for `_POLITENESS_S` once. It waits
no longer, because the other may be busy, hang or be dead.
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
# No descriptors are left. Some become free when connections end.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_EXHAUSTED_S = 0.5
_BYTES = 8  # of a count

_log = seldom(__name__)


class ConnectionCounts:
    """The number of connections of each process, in a mapped file of native 64-bit numbers.

    A process writes only its own number. Numbers of others may be a moment old.
    """

    def __init__(self, path: Path, number: int) -> None:
        self._number = number
        with path.open("r+b") as file:
            self._counts = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        self.publish(0)  # the connections of a dead predecessor are closed

    @staticmethod
    def create(path: Path, processes: int) -> None:
        """Write the file with zeros."""
        path.write_bytes(bytes(processes * _BYTES))

    def publish(self, count: int) -> None:
        """Publish this process's number of connections."""
        self._counts[self._number] = count

    def least_of_others(self) -> int:
        """Return the smallest count of the other processes. There is at least one other."""
        return min(count for number, count in enumerate(self._counts) if number != self._number)


class FairAcceptor:
    """Accepts connections of a listening socket, and passes them to `connect`. For the event loop's thread.

    `connections` returns this process's number of connections. The caller closes the socket.
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
        """Publish the number of connections here."""
        self._counts.publish(self._connections() + len(self._opening))

    def close(self) -> None:
        """Accept no more connections."""
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
        """Accept one connection per turn of the loop, so that requests are answered in between."""
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
