"""The port where other nodes reach this process.

A caller is a stranger until it has proven that it is a node. Strangers learn nothing. They have `GREETING_TIMEOUT_S`
for TLS, and as long for the greeting. Beyond `MOST_STRANGERS`, a new stranger replaces the oldest. A node greets within
milliseconds, so a flood of strangers does not keep it out for long.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from stateline.processes.seldom import Seldom
from stateline.server.guard.proofs import ProvenConnection
from stateline.server.nodes.greeting import (
    GREETING_TIMEOUT_S,
    Hello,
    NotANodeError,
    OtherWireError,
    greet,
    proven_link,
)
from stateline.server.nodes.keys import Keys, tls_failure
from stateline.server.wire.streams import Arrivals, streams

MOST_STRANGERS = 64
# The pause after the system refused a new connection.
_PAUSE_S = 0.5
# How long a refused caller may take to read the refusal.
_FAREWELL_S = 1.0

Welcome = Callable[[Arrivals, asyncio.StreamWriter, Hello, ProvenConnection], Awaitable[None]]

_log = logging.getLogger(__name__)


class PeerPort:
    """Accepts connections of nodes. For the event loop's thread.

    `welcome` runs each connection to a proven node until it ends. Its last argument identifies the connection in proofs
    of tokens. `place` is this port's address as other nodes get it."""

    def __init__(self, own: Hello, keys: Keys, place: str, welcome: Welcome) -> None:
        self._own, self._keys, self._place = own, keys, place
        self._welcome = welcome
        self._strangers: dict[asyncio.Task[None], None] = {}  # oldest first
        self._nodes: set[asyncio.Task[None]] = set()
        self._seldom = Seldom()  # a refused node tries again each second

    async def accept(self, listener: socket.socket) -> None:
        """Accept connections until cancelled. Then close all connections and the listener."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        try:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError as error:
                    _log.warning("Other nodes cannot reach this one: %s", error.strerror)
                    await asyncio.sleep(_PAUSE_S)
                    continue
                if len(self._strangers) >= MOST_STRANGERS:
                    first = next(iter(self._strangers))
                    del self._strangers[first]
                    first.cancel()
                task = asyncio.create_task(self._receive(connection))
                self._strangers[task] = None
                task.add_done_callback(self._forget)
        finally:
            left = [*self._strangers, *self._nodes]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            listener.close()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._strangers.pop(task, None)
        self._nodes.discard(task)

    async def _receive(self, connection: socket.socket) -> None:
        who, writer = "somebody", None
        try:
            who = str(connection.getpeername()[0])
            reader, writer = await self._opened(connection)
            secret, place = self._keys.secret, self._place
            hello = await greet(reader, writer, self._own, dialing=False, secret=secret, place=place)
            self._is_known()
            await self._welcome(reader, writer, hello, proven_link(self._own, hello.challenge, place))
        except (NotANodeError, OtherWireError) as error:
            self._say(who, str(error))
        except ssl.SSLError as error:
            self._say(who, tls_failure(error))
        except OSError as error:  # a caller that hangs up or is silent may be a port check
            _log.debug("%s has not shown that it is a node: %s", who, error)
        except asyncio.CancelledError:
            if writer is not None:
                writer.transport.abort()
            raise
        finally:
            if writer is None:
                connection.close()
            else:
                writer.close()  # written bytes are still sent
                asyncio.get_running_loop().call_later(_FAREWELL_S, writer.transport.abort)

    def _is_known(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._strangers.pop(task, None)
        self._nodes.add(task)

    async def _opened(self, connection: socket.socket) -> tuple[Arrivals, asyncio.StreamWriter]:
        loop, listening = asyncio.get_running_loop(), self._keys.listening
        limits: dict[str, Any] = {} if listening is None else {"ssl_handshake_timeout": GREETING_TIMEOUT_S}
        return await streams(lambda made: loop.connect_accepted_socket(made, connection, ssl=listening, **limits))

    def _say(self, who: str, why: str) -> None:
        """Log a refusal: at most a line per second, and the same line once a minute. So a flood does not fill the
        disk."""
        if line := self._seldom.line(f"{who} is refused as a node: {why}"):
            _log.warning("%s", line)
