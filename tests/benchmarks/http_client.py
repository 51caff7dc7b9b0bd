"""The least HTTP client: one connection that is kept, one request at a time, so that figures are the server's."""

from __future__ import annotations

import re
import socket
from types import TracebackType

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


class Connection:
    """A connection to a server of this machine."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body."""
        self._socket.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        received = b""
        while (end := received.find(b"\r\n\r\n")) < 0:
            received += self._more()
        found = _LENGTH.search(received, 0, end + 4)
        assert found, f"an answer without a length: {received[:200]!r}"
        whole = end + 4 + int(found[1])
        while len(received) < whole:
            received += self._more()
        return int(received[9:12]), received[end + 4 : whole]

    def _more(self) -> bytes:
        data = self._socket.recv(65536)
        assert data, "the server hung up"
        return data

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
