"""Requests that another node answers: the connection waits as if the application answered, in order, and goes on."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Scope

from stateline.server.wire.http_protocol import ProblemProtocol
from support.processes.ports import free_port
from support.processes.query_server import wait_until
from support.run.length import long_or_short
from support.run.patience import HANGING_S

HOST = "Host: localhost\r\n"


@dataclass
class Scene:
    """A server whose keys tell how they are answered: at once, later, later and then by the application (declined), or
    by the application."""

    port: int
    server: uvicorn.Server
    held: list[Callable[[bytes | None], None]] = field(default_factory=list)
    """What is not answered before a test does it."""

    def connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=HANGING_S)


def told(key: str, by: str) -> bytes:
    return json.dumps({"key": key, "by": by}).encode()


@pytest.fixture
def scene() -> Iterator[Scene]:
    async def of_routes(request: Request) -> JSONResponse:
        return JSONResponse({"key": request.path_params["key"], "by": "routes"})

    def at_once(scope: Scope, later: Callable[[bytes | None], None]) -> bytes | None:
        key = scope["raw_path"].rpartition(b"/")[2].decode()
        match key[0]:
            case "o":
                return told(key, "once")
            case "l":
                made.server.servers[0].get_loop().call_later(random.uniform(0, 0.002), later, told(key, "later"))
                return b""
            case "d":
                made.server.servers[0].get_loop().call_later(random.uniform(0, 0.002), later, None)
                return b""
            case "h":
                made.held.append(later)
                return b""
        return None

    api = Starlette(routes=[Route("/v1/stores/s/keys/{key}", of_routes)])
    api.state.at_once = at_once
    port = free_port()
    config = uvicorn.Config(
        api, port=port, http=ProblemProtocol, ws="none", log_config=None, timeout_graceful_shutdown=5
    )
    made = Scene(port, uvicorn.Server(config))
    thread = threading.Thread(target=made.server.run)
    thread.start()
    wait_until(lambda: made.server.started)
    yield made
    made.server.should_exit = True
    for later in made.held:
        made.server.servers[0].get_loop().call_soon_threadsafe(later, None)
    thread.join(HANGING_S)
    assert not thread.is_alive()


def request(key: str, headers: str = HOST) -> bytes:
    return f"GET /v1/stores/s/keys/{key} HTTP/1.1\r\n{headers}\r\n".encode()


class Answers:
    """What a connection gives, one answer after the other."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._data = connection, b""

    def next(self) -> tuple[str, dict[str, Any]]:
        """Head and body."""
        while b"\r\n\r\n" not in self._data:
            self._more()
        head, _, rest = self._data.partition(b"\r\n\r\n")
        (length,) = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        while len(rest) < length:
            self._more()
            rest = self._data.partition(b"\r\n\r\n")[2]
        self._data = rest[length:]
        return head.decode(), json.loads(rest[:length])

    def _more(self) -> None:
        more = self._connection.recv(65536)
        assert more, "the server hung up"
        self._data += more

    def ended(self) -> bool:
        with contextlib.suppress(ConnectionResetError):
            return not self._data and self._connection.recv(1) == b""
        return True


# What waits behind another answer may be left to the application.
WAYS = {"o": ("once", "routes"), "l": ("later", "routes"), "d": ("routes",), "r": ("routes",)}


@pytest.mark.parametrize("seed", range(long_or_short(20, 3)))
def test_answers_come_in_the_order_of_the_requests_however_they_arrive(scene: Scene, seed: int) -> None:
    """One by one, many in one piece, in pieces that end anywhere, with the same headers or others."""
    chosen = random.Random(seed)
    headers = [HOST, HOST + "A: 1\r\n"]
    keys = [f"{chosen.choice('oldr')}{number}" for number in range(60)]
    with scene.connected() as connection:
        answers = Answers(connection)
        waiting: list[str] = []
        ways = set()

        def take(most: int) -> None:
            while len(waiting) > most:
                key = waiting.pop(0)
                found = answers.next()[1]
                assert found["key"] == key
                assert found["by"] in WAYS[key[0]]
                ways.add(found["by"])

        for key in keys:
            sent = request(key, chosen.choice(headers) if seed % 2 else HOST)
            cut = chosen.randrange(len(sent)) if chosen.random() < 0.3 else len(sent)
            for piece in (sent[:cut], sent[cut:]):
                if piece:
                    connection.sendall(piece)
            waiting.append(key)
            take(chosen.choice([0, 0, 3, 10]))
        take(0)
    assert ways == {"once", "later", "routes"}


def test_a_request_behind_one_that_another_node_answers_waits_for_its_turn(scene: Scene) -> None:
    """The first request of the connection, which was parsed, and one with the same headers, which need not be."""
    with scene.connected() as connection:
        answers = Answers(connection)
        connection.sendall(request("h1"))
        wait_until(lambda: bool(scene.held))
        connection.sendall(request("o2"))
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(HANGING_S)
        scene.server.servers[0].get_loop().call_soon_threadsafe(scene.held.pop(), told("h1", "later"))
        assert [answers.next()[1]["key"] for _ in range(2)] == ["h1", "o2"]


def test_what_many_send_ahead_of_an_answer_waits_without_filling_memory(scene: Scene) -> None:
    with scene.connected() as connection:
        large = HOST + f"A: {'a' * 3000}\r\n"
        connection.sendall(request("o1", large))
        answers = Answers(connection)
        answers.next()
        connection.sendall(request("h1", large))
        wait_until(lambda: bool(scene.held))
        ahead = 5_000
        sending = threading.Thread(target=connection.sendall, args=(request("o2", large) * ahead,))
        sending.start()
        sending.join(0.5)
        assert sending.is_alive(), "the server reads all that a client sends ahead"
        scene.server.servers[0].get_loop().call_soon_threadsafe(scene.held.pop(), told("h1", "later"))
        assert answers.next()[1]["by"] == "later"
        for _ in range(ahead):
            assert answers.next()[1]["key"] == "o2"
        sending.join(HANGING_S)


@pytest.mark.parametrize("first", ["h1", "o1"])
@pytest.mark.parametrize("body", [told("h2", "later"), None])
def test_a_server_that_stops_answers_what_another_node_was_asked_and_hangs_up(
    scene: Scene, first: str, body: bytes | None
) -> None:
    """With the parser (the first request of a connection) and without it."""
    with scene.connected() as connection:
        answers = Answers(connection)
        if first == "o1":
            connection.sendall(request("o1"))
            answers.next()
        connection.sendall(request("h2"))
        wait_until(lambda: bool(scene.held))
        loop = scene.server.servers[0].get_loop()
        scene.server.should_exit = True
        wait_until(lambda: not scene.server.servers[0].is_serving())
        loop.call_soon_threadsafe(scene.held.pop(), body)
        head, found = answers.next()
        assert found["by"] == ("routes" if body is None else "later")
        assert "connection: close" in head.lower()
        assert answers.ended()


def test_a_client_that_has_gone_harms_nobody(scene: Scene) -> None:
    for before in ((), ("o1",)):
        with scene.connected() as connection:
            for key in before:
                connection.sendall(request(key))
                Answers(connection).next()
            connection.sendall(request("h1"))
            wait_until(lambda: bool(scene.held))
        scene.server.servers[0].get_loop().call_soon_threadsafe(scene.held.pop(), told("h1", "later"))
    with scene.connected() as connection:
        connection.sendall(request("l1"))
        assert Answers(connection).next()[1]["by"] == "later"


def test_what_cannot_be_read_is_refused_behind_the_answer_that_is_waited_for(scene: Scene) -> None:
    with scene.connected() as connection:
        answers = Answers(connection)
        connection.sendall(request("h1") + b"NONSENSE\r\n\r\n")
        wait_until(lambda: bool(scene.held))
        scene.server.servers[0].get_loop().call_soon_threadsafe(scene.held.pop(), told("h1", "later"))
        head, found = answers.next()
        assert found["by"] == "later"
        assert "connection: close" in head.lower()
        assert answers.ended()


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("body", [told("h", "later"), None])
def test_an_answer_that_comes_when_the_client_has_reset_its_connection_goes_nowhere(
    scene: Scene, repeated: bool, body: bytes | None
) -> None:
    with scene.connected() as connection:
        if repeated:
            connection.sendall(request("o1"))
            Answers(connection).next()
        connection.sendall(request("h1"))
        wait_until(lambda: len(scene.held) == 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: not scene.server.server_state.connections)
    raised: Future[BaseException | None] = Future()

    def answer() -> None:
        try:
            scene.held.pop()(body)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            raised.set_result(error)
        else:
            raised.set_result(None)

    scene.server.servers[0].get_loop().call_soon_threadsafe(answer)
    assert raised.result(HANGING_S) is None
