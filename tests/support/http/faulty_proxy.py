"""A TCP proxy before a server, that fails as networks and gateways do."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

_CHUNK = 65536
# Closing sends RST instead of FIN: the other end sees a lost connection.
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Answered:
    """The connection's request is answered by the proxy itself, as a gateway does, and the connection closed."""

    status: str
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""

    def encode(self) -> bytes:
        body = self.body.encode()
        fields = {**self.headers, "Content-Length": str(len(body)), "Connection": "close"}
        lines = [f"HTTP/1.1 {self.status}", *(f"{name}: {value}" for name, value in fields.items())]
        return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass(frozen=True)
class Cut:
    """The connection is lost after so many bytes of the server's answer. After many it ends in the middle of the answer
    instead: a reset takes from the other end what has come and was not read yet, which may be all."""

    after_bytes: int


Fault = Answered | Cut


class FaultyProxy:
    """Passes connections on to `target`; each takes the next of `faults`, none when they are used up.

    `requests` has the first bytes that each connection sent. Where nobody listens at the target, connections are lost.
    Of what is answered, no more than `most_bytes` pass a connection while that is set: kernels take megabytes that
    nobody has read.
    """

    def __init__(self, target: int) -> None:
        self.faults: deque[Fault] = deque()
        self.requests: list[bytes] = []
        self.target = target
        self.most_bytes: int | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def lose_connections(self) -> None:
        """Reset everything that is open now."""
        with self._lock:
            connections, self._open = self._open, set()
        for connection in connections:
            _reset(connection)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.lose_connections()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            first = client.recv(_CHUNK)
            if not first:
                client.close()
                return
            with self._lock:
                self.requests.append(first)
                fault = self.faults.popleft() if self.faults else None
            if isinstance(fault, Answered):
                client.sendall(fault.encode())
                client.close()
                return
            server = self._connected(client)
            with self._lock:
                self._open |= {client, server}
            server.sendall(first)
            threading.Thread(target=self._pass, args=(client, server, None), daemon=True).start()
            self._pass(server, client, fault)

    def _connected(self, client: socket.socket) -> socket.socket:
        try:
            return socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            _reset(client)
            raise

    def _pass(self, source: socket.socket, sink: socket.socket, fault: Cut | None) -> None:
        left = None if fault is None else fault.after_bytes
        try:
            passed = 0
            while data := source.recv(_CHUNK):
                passed += len(data)
                while self.most_bytes is not None and passed > self.most_bytes and sink.fileno() >= 0:
                    time.sleep(0.01)
                if left is not None:
                    data, left = data[:left], left - len(data)
                sink.sendall(data)
                if left is not None and left <= 0:
                    if passed > _CHUNK:
                        sink.shutdown(socket.SHUT_WR)
                        return  # whoever passes the requests on sees the client hang up
                    break
        except OSError:
            pass  # the other end is gone, or `lose_connections` was called: both ends are closed below
        for end in (source, sink):
            _reset(end)


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


@contextlib.contextmanager
def faulty_proxy(target: int) -> Iterator[FaultyProxy]:
    """A proxy that is closed with the block."""
    proxy = FaultyProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
