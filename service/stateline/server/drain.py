"""Stop the server without lost requests.

1. /readyz answers 503 at once. Everything else continues for `server.drain.ms`, also new connections. A load balancer
   sends requests until its next look at /readyz fails, and counts refused connections as errors.
2. The server accepts the connections in the kernel's queue, and closes the listener. It answers requests that have
   arrived, and finishes started answers. Waiting queries and later requests get `NOT_READY`.
3. The process ends when all answers are finished, after `GRACE_S` at the latest. A second signal ends it at once.

If another process already answers at the same listener (`HAND_OVER`), this one accepts no more connections at once.
Waiting queries then have nearly all of the grace. A kept connection gets one more answer, announced as the last, or
ends by its idle timeout. If it were just closed, a client could not tell whether its request was read.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from stateline.processes.child import HAND_OVER
from stateline.processes.terminal import Terminal, heed_hangups
from stateline.server.certificates import Certificates
from stateline.server.listeners import BACKLOG
from stateline.server.readiness import ServerReadiness
from stateline.server.wire.accepting import ConnectionCounts, FairAcceptor
from stateline.server.wire.bodies import PATIENCE_S
from stateline.server.wire.bounded_protocol import BoundedProtocol

# How long started answers may take after the drain. Waiting queries end at once.
GRACE_S = 10
# For the last accepted connections: how long reading of arrived requests may take, and how long TLS.
_ARRIVES_S, _LAST_OPENED_S = 0.1, 1.0
_WAITS_END_S = GRACE_S - 1.0  # early enough to send the refusals

_log = logging.getLogger(__name__)


class DrainingServer(uvicorn.Server):
    """uvicorn with the stop described above. uvicorn's own stop would wait for waiting queries.

    With `counts`, several processes share the connections of the first socket. `ready` is called when it accepts
    connections. With `hands_over`, the socket belongs to the parent, and HAND_OVER ends this process. SIGHUP loads
    certificates. After the `terminal` is gone, SIGHUP stops the server.
    """

    def __init__(
        self,
        settings: uvicorn.Config,
        certificates: Certificates,
        readiness: ServerReadiness,
        drain_ms: int,
        counts: ConnectionCounts | None = None,
        *,
        ready: Callable[[], object],
        hands_over: bool = False,
        terminal: Terminal | None = None,
    ) -> None:
        super().__init__(settings)
        self._terminal = terminal
        self._ready = ready
        self._hands_over = hands_over
        self._certificates, self._readiness = certificates, readiness
        self._counts = counts
        self._acceptor: FairAcceptor | None = None
        self._drain_s = drain_ms / 1000
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = False
        self._is_replaced = False  # by a process that accepts the queue's connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start. After an earlier signal to stop, the server ends at once."""
        self._loop = asyncio.get_running_loop()
        # Before the first tick, which adds `date`.
        self.server_state.default_headers = list(self.config.encoded_headers)
        if self.config.ssl:
            self._certificates.serve(self.config.ssl)
        if threading.current_thread() is threading.main_thread():
            if self._hands_over:
                self._loop.add_signal_handler(HAND_OVER, self._hand_over)
            self._heed_hangups(self._loop)
        own = list(sockets or ())
        shared = own.pop(0) if own and self._counts is not None else None
        await super().startup([] if self.config.ssl else own)
        if self.config.ssl and self.started:  # uvicorn would leave a silent client twice the time for TLS
            self.servers += [await self._listen(each) for each in own]
        if shared is not None and self._counts is not None:
            self._acceptor = FairAcceptor(shared, self._counts, self._connect, self.server_state.connections.__len__)
        self._ready()

    def _heed_hangups(self, loop: asyncio.AbstractEventLoop) -> None:
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # else as nohup asks
            loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        heed_hangups()

    def _hang_up(self) -> None:
        if self._terminal is not None and self._terminal.is_gone():
            self.handle_exit(signal.SIGHUP, None)
            return
        _log.info("SIGHUP: certificates are loaded from their files. New code takes a restart.")
        self._certificates.reload()

    async def on_tick(self, counter: int) -> bool:
        """Publish closed connections, ten times a second. New ones are published at once."""
        if self._acceptor is not None:
            self._acceptor.publish()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept the connections in the kernel's queue first, and answer their requests. The queue's last owner would
        reset them."""
        if self._acceptor is not None:
            self._acceptor.close()
        if sockets and not self._is_replaced and not self.force_exit:
            taken = self._take_queue(sockets[0])
            for server in self.servers:
                server.close()
            sockets[0].close()
            for connection in self.server_state.connections:
                if isinstance(connection, BoundedProtocol) and connection.cycle is None:
                    connection.hand_over()
            await asyncio.wait([*taken, asyncio.create_task(asyncio.sleep(_ARRIVES_S))], timeout=_LAST_OPENED_S)
            self._readiness.stop()
        await super().shutdown(sockets)

    def _take_queue(self, listener: socket.socket) -> list[asyncio.Task[None]]:
        listener.setblocking(False)
        taken: list[asyncio.Task[None]] = []
        while len(taken) < BACKLOG:
            try:
                connection, _ = listener.accept()
            except (InterruptedError, ConnectionAbortedError):
                continue
            except OSError:  # there are no more, or no descriptors for them
                break
            connection.setblocking(False)
            taken.append(asyncio.create_task(self._open(connection)))
        return taken

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._connect(connection)
        except OSError:  # the client has gone, or speaks no TLS
            connection.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop. uvicorn raises the signal again at the end; here a clean stop exits with 0."""
        if self._is_stopping:
            # Otherwise uvicorn logs each cut answer as a defect.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            self.force_exit = self.should_exit = True
        elif self._loop is None:
            self.should_exit = True
        else:  # we are in a signal handler: let the loop do it between two callbacks
            self._loop.call_soon_threadsafe(self._drain)
        self._is_stopping = True

    async def _listen(self, listener: socket.socket) -> asyncio.Server:
        loop, backlog = asyncio.get_running_loop(), self.config.backlog
        return await loop.create_server(self._new_protocol, sock=listener, backlog=backlog, **self._tls)

    async def _connect(self, connection: socket.socket) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(self._new_protocol, connection, **self._tls)

    @property
    def _tls(self) -> dict[str, Any]:
        return {"ssl": self.config.ssl, "ssl_handshake_timeout": PATIENCE_S} if self.config.ssl else {}

    def _new_protocol(self) -> asyncio.Protocol:
        settings: Any = self.config  # as `uvicorn.Server.startup` does it
        protocol: asyncio.Protocol = settings.http_protocol_class(
            config=settings, server_state=self.server_state, app_state=self.lifespan.state
        )
        if self.should_exit and isinstance(protocol, BoundedProtocol):
            protocol.hand_over()
        return protocol

    def _drain(self) -> None:
        self._readiness.leave()
        if self._drain_s:
            _log.info("Shutting down: /readyz says so, and requests are taken for %g s more.", self._drain_s)
            asyncio.get_running_loop().call_later(self._drain_s, self._end)
        else:
            self._end()

    def _hand_over(self) -> None:
        """Close the listener. Other processes accept the queue's connections, and this one answers its own."""
        if self._is_stopping:
            return
        self._is_stopping = self._is_replaced = True
        _log.info("Another process answers from now on: this one ends what it has begun.")
        if self._acceptor is not None:
            self._acceptor.close()
        for server in self.servers:
            server.close()
        for connection in self.server_state.connections:
            if isinstance(connection, BoundedProtocol):
                connection.hand_over()
        self._readiness.hand_over()
        asyncio.get_running_loop().call_later(_WAITS_END_S, self._readiness.stop)
        self.should_exit = True

    def _end(self) -> None:
        self.should_exit = True
