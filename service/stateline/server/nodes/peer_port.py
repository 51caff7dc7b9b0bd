"""`PeerPort`: where other nodes reach this process, and whoever else knocks there.

A caller is a stranger until it has shown that it is a node. A stranger has one of `MOST_STRANGERS` places,
`GREETING_TIMEOUT_S` for TLS and as much for the greeting, and learns nothing. A stranger beyond the last place takes
that of the one who came first: a node greets within milliseconds, so a flood does not keep it out for long.
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
# Where the system has no more connections to give, until it is asked again.
_PAUSE_S = 0.5
# How long who is refused may take to hear it.
_FAREWELL_S = 1.0

Welcome = Callable[[Arrivals, asyncio.StreamWriter, Hello, ProvenConnection], Awaitable[None]]

_log = logging.getLogger(__name__)


class PeerPort:
    """For the event loop's thread. `welcome` is called with each connection to a node, and stays until that has ended;
    its last argument is what proofs of tokens are made for there. `place` is where other nodes are told to reach this
    one."""

    def __init__(self, own: Hello, keys: Keys, place: str, welcome: Welcome) -> None:
        self._own, self._keys, self._place = own, keys, place
        self._welcome = welcome
        self._strangers: dict[asyncio.Task[None], None] = {}  # in the order of their coming
        self._nodes: set[asyncio.Task[None]] = set()
        self._seldom = Seldom()  # a node that is set up otherwise knocks each second

    async def accept(self, listener: socket.socket) -> None:
        """Take connections until cancelled; then all are hung up, and the listener is closed."""
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
        except OSError as error:  # who hangs up, or says nothing in time, looked perhaps whether the port is open
            _log.debug("%s has not shown that it is a node: %s", who, error)
        except asyncio.CancelledError:
            if writer is not None:
                writer.transport.abort()
            raise
        finally:
            if writer is None:
                connection.close()
            else:
                writer.close()  # what it was told last still leaves
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
        """In the log, a line a second at most, and the same again once a minute: who floods the port does not fill the
        disk."""
        if line := self._seldom.line(f"{who} is refused as a node: {why}"):
            _log.warning("%s", line)
