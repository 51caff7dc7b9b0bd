"""Asks servers for keys at a rate, whatever the answers take (open loop): argv is the rate, the seconds, the output
file, the path with a %s for the key, and pairs of a port and a file with keys, one in a line, of which each is asked in
turn.

Writes the seconds of each answer as doubles, in the machine's byte order, counted from when the question was due: what
waits for a connection has waited. There are 64 of them. Raises when an answer has another status than 200.
"""

from __future__ import annotations

import itertools
import re
import select
import socket
import sys
import time
from array import array
from collections import deque
from pathlib import Path

_CONNECTIONS = 64
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


class Asker:
    """The questions to one server, over connections that are kept."""

    def __init__(self, port: int, path: str, keys: list[str], connections: int) -> None:
        lines = (f"GET {path % key} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode() for key in keys)
        self._questions = itertools.cycle(list(lines))
        self._idle = deque(self._connected(port) for _ in range(connections))
        self._asked: dict[int, tuple[socket.socket, float, bytes]] = {}  # by descriptor: when it was due, what came
        self._poll = select.epoll()
        for each in self._idle:
            self._poll.register(each.fileno(), select.EPOLLIN)

    @staticmethod
    def _connected(port: int) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", port), timeout=60)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def ask(self, due_s: float) -> bool:
        """Whether there was a connection for it."""
        if not self._idle:
            return False
        connection = self._idle.popleft()
        connection.sendall(next(self._questions))
        self._asked[connection.fileno()] = connection, due_s, b""
        return True

    def take(self, taken: array[float], wait_s: float) -> None:
        """The answers that have come, or come soon."""
        for descriptor, _ in self._poll.poll(wait_s):
            connection, due_s, received = self._asked[descriptor]
            received += connection.recv(65536)
            end = received.find(b"\r\n\r\n")
            found = _LENGTH.search(received, 0, end + 4) if end >= 0 else None
            if found is None or len(received) < end + 4 + int(found[1]):
                self._asked[descriptor] = connection, due_s, received
                continue
            assert received.startswith(b"HTTP/1.1 200"), received[:500]
            taken.append(time.monotonic() - due_s)
            del self._asked[descriptor]
            self._idle.append(connection)

    @property
    def waits(self) -> bool:
        """Whether an answer is to come."""
        return bool(self._asked)


def ask_at(rate: float, seconds: float, askers: list[Asker]) -> array[float]:
    """Ask so many questions a second, each server in turn."""
    taken, turns = array("d"), itertools.cycle(askers)
    begin = time.monotonic()
    number, total = 0, int(rate * seconds)
    turn = next(turns)
    while number < total or any(each.waits for each in askers):
        now = time.monotonic()
        while number < total and begin + number / rate <= now and turn.ask(begin + number / rate):
            number += 1
            turn = next(turns)
        for each in askers:
            each.take(taken, 0.0005 / len(askers))
    return taken


if __name__ == "__main__":
    rate, seconds, output, path = float(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    given = list(zip(sys.argv[5::2], sys.argv[6::2], strict=True))
    askers = [
        Asker(int(port), path, Path(keys).read_text().split(), _CONNECTIONS // len(given)) for port, keys in given
    ]  # fmt: skip
    output.write_bytes(ask_at(rate, seconds, askers).tobytes())
