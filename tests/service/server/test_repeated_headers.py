"""A connection whose requests repeat their headers: they are answered without the parser, and never differently."""

from __future__ import annotations

import asyncio
import json
import math
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stateline.server.wire.http_protocol import ProblemProtocol
from support.processes.query_server import OwningWorker, wait_until
from support.processes.served_here import Here, served_here
from support.run.patience import HANGING_S

HOST = "Host: localhost\r\n"
PATH = "/v1/stores/aircraft/keys"


@pytest.fixture(scope="module")
def here(worker: OwningWorker, state_dir: Path) -> Iterator[Here]:
    for number in range(5):
        worker.put(f"N{number}", number)
    worker.commit()
    with served_here(state_dir) as found:
        yield found


@pytest.fixture
def parsed(here: Here, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the parser was given, from now on."""
    found: list[bytes] = []
    original = HttpToolsProtocol.data_received

    def data_received(self: HttpToolsProtocol, data: bytes) -> None:
        found.append(data)
        original(self, data)

    monkeypatch.setattr(HttpToolsProtocol, "data_received", data_received)
    return found


@pytest.fixture
def connection(here: Here) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", here.port), timeout=HANGING_S) as found:
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield found


def request(key: str, headers: str = HOST, query: str = "") -> bytes:
    return f"GET {PATH}/{key}{query} HTTP/1.1\r\n{headers}\r\n".encode()


def answer(connection: socket.socket) -> tuple[int, Any]:
    """Status and body of the next answer, of which nothing may follow."""
    data = b""
    while True:
        head, end, body = data.partition(b"\r\n\r\n")
        lengths = [line.partition(b":")[2] for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
        if end and len(body) == int(lengths[0]):
            return int(head.split(b" ")[1]), json.loads(body)
        more = connection.recv(65536)
        assert more, data
        data += more


@pytest.mark.parametrize("query", ["", "?isolation_level=read_uncommitted"])
def test_the_parser_sees_only_the_first_of_requests_with_the_same_headers(
    connection: socket.socket, parsed: list[bytes], query: str
) -> None:
    for number in (0, 1, 2, 3, 0):
        connection.sendall(request(f"N{number}", query=query))
        status, body = answer(connection)
        assert (status, body["value"], body["key"]) == (200, number, f"N{number}")
    assert parsed == [request("N0", query=query)]


@pytest.mark.parametrize(
    "other",
    [
        request("N1", HOST + "Accept: */*\r\n"),
        request("N1", "Host: 127.0.0.1\r\n"),
        request("N%31"),
        request("absent"),
        request("N1", query="?wait_ms=-1"),
        request("absent", query="?isolation_level=read_uncommitted"),
        request("N1", HOST + "Content-Length: 2\r\n") + b"ab",
        f"POST {PATH}/lookup HTTP/1.1\r\n{HOST}Content-Length: 2\r\n\r\n{{}}".encode(),
    ],
)
def test_what_differs_goes_to_the_parser_and_what_repeats_again_does_not(
    connection: socket.socket, parsed: list[bytes], other: bytes
) -> None:
    asked = [request("N1"), request("N2"), other, request("N3"), request("N4")]
    for each in asked:
        connection.sendall(each)
        assert (answer(connection)[0] == 200) or each is other
    assert b"".join(parsed) == b"".join((asked[0], other, asked[3]))


def test_a_request_to_another_host_is_refused_however_many_came_before(connection: socket.socket) -> None:
    for _ in range(3):
        connection.sendall(request("N1"))
        assert answer(connection)[0] == 200
    connection.sendall(request("N1", "Host: example.com\r\n"))
    assert answer(connection)[0] == 403
    connection.sendall(request("N1"))
    assert answer(connection)[0] == 200


def test_the_body_of_a_request_is_never_taken_for_a_request(connection: socket.socket, parsed: list[bytes]) -> None:
    """What a client hides in a body, in pieces as it likes, gets no answer and leaves no headers to be repeated."""
    hidden = request("N2", HOST + "X: 1\r\n")
    outer = request("N1", HOST + f"Content-Length: {len(hidden)}\r\n")
    for _ in range(2):
        connection.sendall(outer)
        assert answer(connection)[1]["value"] == 1
        connection.sendall(hidden)
        connection.sendall(request("N3"))
        assert answer(connection)[1]["value"] == 3
    connection.sendall(hidden)
    assert answer(connection)[1]["value"] == 2
    assert b"".join(parsed) == (outer + hidden + request("N3")) * 2 + hidden


@pytest.mark.parametrize("hidden", [f"GET {PATH}/N1 HTTP/1.1\r\nX: ".encode(), b"a\r\n"])
def test_headers_begin_behind_the_body_before_them(
    connection: socket.socket, parsed: list[bytes], hidden: bytes
) -> None:
    """A body that arrives together with the next request is no part of what that one may repeat."""
    connection.sendall(request("N1", HOST + f"Content-Length: {len(hidden)}\r\n"))
    answer(connection)
    connection.sendall(hidden + request("N1"))
    answer(connection)
    parsed.clear()
    again = request("N2").partition(b"\r\n")[0] + b"\r\n" + (hidden + request("N1")).partition(b"\r\n")[2]
    connection.sendall(again)
    answer(connection)
    assert b"".join(parsed) == again


@pytest.mark.parametrize(
    ("framing", "body", "planted"),
    [
        ("Content-Length: 33", b"x\r\nHost: evil.example\r\nX: y\r\n\r\n", "Host: evil.example\r\nX: y\r\n"),
        ("Content-Length: 17", b"x\r\nA: b\r\nX: y\r\n\r\n", "A: b\r\nX: y\r\n"),
        ("Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n", "hello\r\n0\r\n"),
    ],
)
def test_a_body_in_a_packet_of_its_own_plants_no_headers(
    connection: socket.socket, parsed: list[bytes], framing: str, body: bytes, planted: str
) -> None:
    connection.sendall(request("N1", HOST + framing + "\r\n"))
    assert answer(connection)[0] == 200
    connection.sendall(body)
    wait_until(lambda: b"".join(parsed).endswith(body))
    connection.sendall(request("N2", planted))
    assert answer(connection)[0] in (400, 403, 422)


def test_requests_with_a_body_are_always_parsed(connection: socket.socket, parsed: list[bytes]) -> None:
    asked = request("N1", HOST + "Content-Length: 0\r\n")
    for _ in range(3):
        connection.sendall(asked)
        assert answer(connection)[0] == 200
    assert parsed == [asked] * 3


def test_what_is_refused_does_not_take_the_place_of_an_answer_before_it(connection: socket.socket) -> None:
    first = f"GET {PATH}/N%31?wait_ms=0 HTTP/1.1\r\n{HOST}\r\n".encode()
    connection.sendall(first + first + b"GET /v1/stores HTTP/1.1\r\n\r\n")
    received = b""
    while more := connection.recv(65536):
        received += more
    assert [part[:3] for part in received.split(b"HTTP/1.1 ")[1:]] == [b"200", b"200"]


def test_requests_in_pieces_and_ahead_of_their_answers_come_in_order(connection: socket.socket) -> None:
    """Against an oracle that knows what each key holds, with a thousand random cuts."""
    chosen = random.Random(7)
    for _ in range(100):
        numbers = [chosen.randrange(5) for _ in range(chosen.choice((1, 1, 2, 5)))]
        sent = b"".join(request(f"N{number}", chosen.choice((HOST, HOST + "A: b\r\n"))) for number in numbers)
        cuts = sorted(chosen.sample(range(1, len(sent)), chosen.choice((0, 1, 3))))
        for begin, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
            connection.sendall(sent[begin:end])
            time.sleep(chosen.choice((0, 0.001)))
        received = b""
        while received.count(b"HTTP/1.1 200") < len(numbers) or not received.endswith(b"}}}"):
            received += connection.recv(65536)
        bodies = [piece.partition(b"\r\n\r\n")[2] for piece in received.split(b"HTTP/1.1 200 OK\r\n")[1:]]
        assert [json.loads(body)["value"] for body in bodies] == numbers


@dataclass
class Timer:
    """A callback that is due at a time of a `Clock`."""

    at_s: float
    call: Callable[[], object]

    def cancel(self) -> None:
        self.at_s = math.inf


class Clock:
    """The loop of a connection, whose time goes on as the test has it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._now_s, self._timers = loop, 0.0, list[Timer]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def time(self) -> float:
        return self._now_s

    def call_later(self, seconds: float, call: Callable[[], object]) -> Timer:
        self._timers.append(Timer(self._now_s + seconds, call))
        return self._timers[-1]

    def turn(self, seconds: float) -> None:
        """Let so much time pass, and do what is due then."""
        done = threading.Event()
        self._loop.call_soon_threadsafe(self._turn, seconds, done)
        assert done.wait(HANGING_S)

    def _turn(self, seconds: float, done: threading.Event) -> None:
        self._now_s += seconds
        for timer in [timer for timer in self._timers if timer.at_s <= self._now_s]:
            self._timers.remove(timer)
            timer.call()
        done.set()


def test_a_connection_is_kept_while_requests_come_and_closed_when_they_stop(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, clocks = ProblemProtocol.connection_made, list[Clock]()

    def connection_made(self: ProblemProtocol, transport: Any) -> None:
        self.timeout_keep_alive = 1
        clocks.append(Clock(self.loop))
        self.loop = clocks[-1]  # type: ignore[assignment]
        original(self, transport)

    monkeypatch.setattr(ProblemProtocol, "connection_made", connection_made)
    with socket.create_connection(("127.0.0.1", here.port), timeout=HANGING_S) as connection:
        for _ in range(5):
            connection.sendall(request("N1"))
            assert answer(connection)[0] == 200
            (clock,) = clocks
            clock.turn(0.7)
        clock.turn(0.4)
        assert connection.recv(1) == b""


def test_what_comes_behind_an_answer_does_not_keep_a_connection(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    original = ProblemProtocol.connection_made

    def connection_made(self: ProblemProtocol, transport: Any) -> None:
        self.timeout_keep_alive = 1
        original(self, transport)

    monkeypatch.setattr(ProblemProtocol, "connection_made", connection_made)
    with socket.create_connection(("127.0.0.1", here.port), timeout=HANGING_S) as connection:
        connection.sendall(request("N1", HOST + "Content-Length: 1\r\n"))
        assert answer(connection)[0] == 200
        connection.sendall(b"x")
        assert connection.recv(1) == b""


def test_repeated_requests_are_counted(connection: socket.socket, here: Here) -> None:
    def counted() -> float:
        lines = here.client.get("/metrics").text.splitlines()
        wanted = "stateline_store_requests_total{", 'outcome="ok"', 'store="aircraft"'
        return sum(float(line.rpartition(" ")[2]) for line in lines if all(part in line for part in wanted))

    before = counted()
    for _ in range(10):
        connection.sendall(request("N1"))
        answer(connection)
    assert counted() == before + 10
