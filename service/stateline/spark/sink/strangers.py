"""Connections to a driver that have not shown their token yet. One thread reads all of them. Their number and time are
bounded, because anyone who reaches the port can connect."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from stateline.processes.seldom import seldom

MOST_STRANGERS = 256
"""Beyond it the oldest is closed. A task sends its head with its first packet."""
HEAD_TIMEOUT_S = 30.0
_PAUSE_S = 0.1  # after a failed accept, for example with too many open files
_LOOK_INTERVAL_S = 1.0  # between two checks for late strangers and the end

_logger = seldom(__name__)


@dataclass(eq=False)
class _Stranger:
    connection: socket.socket
    until_s: float
    head: bytearray = field(default_factory=bytearray)


class Strangers:
    """The strangers of one listener, on one thread.

    `introduced` gets each connection, blocking again, with its first `head_bytes` bytes. It must return at once and
    raise nothing. The thread ends when `is_over` returns True."""

    def __init__(
        self,
        listener: socket.socket,
        head_bytes: int,
        introduced: Callable[[socket.socket, bytes], None],
        is_over: Callable[[], bool],
    ) -> None:
        listener.setblocking(False)
        self._listener, self._head_bytes = listener, head_bytes
        self._introduced, self._is_over = introduced, is_over
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._waiting: dict[_Stranger, None] = {}  # oldest first

    def listen(self) -> None:
        """Accept connections until it is over. Then close those that have not introduced themselves."""
        with self._selector:
            while not self._is_over():
                for key, _ in self._selector.select(_LOOK_INTERVAL_S):
                    if key.data is None:
                        self._accept()
                    elif key.data in self._waiting:
                        self._hear(key.data)
                self._hang_up_on_late()
            for stranger in list(self._waiting):
                self._hang_up(stranger)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no descriptor is left, or the listener was closed
            if not self._is_over():
                _logger.warning("Executors cannot be listened to just now: %s", error)
                time.sleep(_PAUSE_S)
            return
        connection.setblocking(False)
        if len(self._waiting) >= MOST_STRANGERS:
            self._hang_up(next(iter(self._waiting)))
        stranger = _Stranger(connection, time.monotonic() + HEAD_TIMEOUT_S)
        self._waiting[stranger] = None
        self._selector.register(connection, selectors.EVENT_READ, stranger)

    def _hear(self, stranger: _Stranger) -> None:
        try:
            more = stranger.connection.recv(self._head_bytes - len(stranger.head))
        except BlockingIOError:
            return
        except OSError:
            more = b""
        stranger.head += more
        if not more:
            self._hang_up(stranger)
        elif len(stranger.head) == self._head_bytes:
            self._forget(stranger)
            stranger.connection.setblocking(True)
            self._introduced(stranger.connection, bytes(stranger.head))

    def _hang_up_on_late(self) -> None:
        now_s = time.monotonic()
        while self._waiting and (first := next(iter(self._waiting))).until_s < now_s:
            self._hang_up(first)

    def _hang_up(self, stranger: _Stranger) -> None:
        self._forget(stranger)
        stranger.connection.close()

    def _forget(self, stranger: _Stranger) -> None:
        del self._waiting[stranger]
        self._selector.unregister(stranger.connection)
