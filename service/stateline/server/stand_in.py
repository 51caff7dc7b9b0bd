"""`StandIn`: answers clients with 503 while no server process answers at their socket.

The supervisor of server processes holds the listening socket, so the kernel accepts connections also while a process
starts again. Without an answer, clients would wait. After 503 with ``Retry-After``, they ask elsewhere or again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress

from stateline.config.settings import Config
from stateline.server.contract.problems import problem_response
from stateline.server.listeners import address
from stateline.server.wire.streams import streams
from stateline_store import NotReadyError

# More connections than these at a time are closed at once.
_MOST = 256
_HEAD_S = 5.0
_FAREWELL_S = 1.0
# Where the system has no more connections to give, until it is asked again.
_PAUSE_S = 0.5

_WHY = "No server process answers at the moment. Ask again in a second; if this lasts, the log says why."

_log = logging.getLogger(__name__)


class StandIn:
    """For one thread; it answers on its own thread. The listener stays the caller's. `say` gets a line on that thread
    once server processes alone answer."""

    def __init__(self, listener: socket.socket, config: Config, say: Callable[[str], object] = lambda _: None) -> None:
        self._listener = listener
        self._place, self._say = address(config, listener), say
        self._certificate, self._key = config.server_tls_certificate_file, config.server_tls_key_file
        self._tls: ssl.SSLContext | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_needed = False
        self._watched: int | None = None  # the descriptor, which the server closes in its end
        self._connections: set[asyncio.Task[None]] = set()

    def answer(self, *, is_needed: bool) -> None:
        """Answer from now on, or leave the socket to the server processes. Returns at once."""
        if is_needed == self._is_needed:
            return
        self._is_needed = is_needed
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="stand-in", daemon=True)
            self._thread.start()
        self._loop.call_soon_threadsafe(self._begin if is_needed else self._leave)

    def close(self) -> None:
        """Leave the socket. Waiting connections get their answer within a second."""
        if self._loop is None or self._thread is None:
            return
        self._is_needed = False
        self._loop.call_soon_threadsafe(self._end)
        asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None

    def _begin(self) -> None:
        """Load the certificate again: it may have changed."""
        assert self._loop is not None
        if self._certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            try:
                self._tls.load_cert_chain(self._certificate, self._key)
            except OSError as error:
                _log.warning("Clients wait for a server process: the certificate cannot be loaded: %s", error)
                return
        self._listener.setblocking(False)
        self._watched = self._listener.fileno()
        self._loop.add_reader(self._watched, self._take)

    def _leave(self) -> None:
        self._end()
        self._say(f"Answering at {self._place} (server.host, server.port)")

    def _end(self) -> None:
        if self._loop is not None and self._watched is not None:
            self._loop.remove_reader(self._watched)
        self._watched = None

    async def _finish(self) -> None:
        if self._connections:
            await asyncio.wait(self._connections, timeout=_FAREWELL_S)

    def _take(self) -> None:
        assert self._loop is not None
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            _log.warning("No connection can be taken for the moment: %s", error.strerror)
            self._end()
            self._loop.call_later(_PAUSE_S, lambda: self._begin() if self._is_needed else None)
            return
        connection.setblocking(False)
        if len(self._connections) >= _MOST:
            connection.close()
            return
        task = self._loop.create_task(self._refuse(connection))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _refuse(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_HEAD_S):
                arrivals, writer = await streams(
                    lambda made: loop.connect_accepted_socket(made, connection, ssl=self._tls)
                )
        except OSError:  # no TLS, or gone; `TimeoutError` is one
            connection.close()
            return
        try:
            async with asyncio.timeout(_HEAD_S):
                head = await arrivals.readuntil(b"\r\n\r\n")
            writer.write(_answer(head))
            with suppress(NotImplementedError):  # TLS has no half
                writer.write_eof()
            async with asyncio.timeout(_FAREWELL_S):  # a close with a body unread would reset the connection
                while await arrivals.read(65536):
                    pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()


def _answer(head: bytes) -> bytes:
    """Return the whole response to a request with this head."""
    response = problem_response(NotReadyError(_WHY))
    headers = b"".join(b"%b: %b\r\n" % header for header in response.raw_headers)
    body = b"" if head.startswith(b"HEAD ") else bytes(response.body)
    return b"HTTP/1.1 503 Service Unavailable\r\n%bconnection: close\r\n\r\n%b" % (headers, body)
