"""A TCP proxy before a Kafka broker that sees when a transaction is being committed, and holds that up when told to."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Literal

_END_TXN = 26  # Kafka's api key of the request that commits or aborts a transaction
_SIZE = struct.Struct(">i")
_REQUEST = struct.Struct(">hhi")  # a request begins with its api key, version and correlation id
_CORRELATION = struct.Struct(">i")  # an answer with that id
# Closing sends RST instead of FIN: the other end sees a lost connection.
_RESET = struct.pack("ii", 1, 0)

Held = Literal["request", "answer"]


class CommitProxy:
    """Passes connections on to `target` on this machine.

    After `hold` the next EndTxn request, or the broker's answer to one, is not passed on: then `held` is set. Behind a
    request that is held nothing else is passed on until `mend`: who has given up waiting would settle it. Between `cut`
    and `mend`, and while nobody listens at the target, connections are reset; between `fall_silent` and `mend` nothing
    is passed on, and nobody is told.
    """

    def __init__(self, target: int, listener: socket.socket | None = None) -> None:
        """`listener` is where it takes connections, else at a free port."""
        self.target = target
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.held = threading.Event()
        self._hold: Held | None = None
        self._is_cut = False
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, what: Held) -> None:
        """Of the next transaction that ends."""
        self.held.clear()
        self._hold = what

    def cut(self) -> None:
        """Reset what is open, and what comes."""
        with self._lock:
            self._is_cut, connections, self._open = True, self._open, set()
        for connection in connections:
            _reset(connection)

    def fall_silent(self) -> None:
        """Keep what comes until it is mended."""
        self._goes_on.clear()

    def mend(self) -> None:
        """Take connections again, and pass on what was kept."""
        with self._lock:
            self._is_cut = False
        self._goes_on.set()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._goes_on.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    _reset(client)
                    continue
                with self._lock:
                    refused = self._is_cut
                    if not refused:
                        self._open |= {client, server}
                if refused:
                    _reset(client)
                    _reset(server)
                    continue
                unanswered: set[int] = set()  # correlation ids of answers to be held
                for work in (self._requests, self._answers):
                    threading.Thread(target=work, args=(client, server, unanswered), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, unanswered: set[int]) -> None:
        with contextlib.suppress(OSError):  # an end is gone, or the connection was cut
            while frame := _frame(client):
                api_key, _, correlation = _REQUEST.unpack_from(frame, _SIZE.size)
                if api_key == _END_TXN and self._hold is not None:
                    held, self._hold = self._hold, None
                    if held == "request":
                        self._goes_on.clear()
                        self.held.set()
                        continue
                    unanswered.add(correlation)
                self._goes_on.wait()
                server.sendall(frame)
        self._lose(client, server)

    def _answers(self, client: socket.socket, server: socket.socket, unanswered: set[int]) -> None:
        with contextlib.suppress(OSError):
            while frame := _frame(server):
                if unanswered and _CORRELATION.unpack_from(frame, _SIZE.size)[0] in unanswered:
                    self.held.set()
                    continue
                self._goes_on.wait()
                client.sendall(frame)
        self._lose(client, server)

    def _lose(self, *ends: socket.socket) -> None:
        with self._lock:
            self._open.difference_update(ends)
        for end in ends:
            _reset(end)


def _frame(connection: socket.socket) -> bytes:
    """The next request or answer with its size before it; empty at the end of the connection."""
    size = _exactly(connection, _SIZE.size)
    return size + _exactly(connection, *_SIZE.unpack(size)) if size else b""


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        data = connection.recv(size - len(found))
        if not data:
            return b""
        found += data
    return bytes(found)


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
