"""What is no request, not one that this server reads, or none yet: told plainly, and bounded in bytes and in time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stateline.processes import seldom
from stateline.server.contract.unreadable import MAX_HEADER_BYTES, MAX_HEADERS
from stateline.server.rows.event_stream import EventStream
from stateline.server.wire.http_protocol import ProblemProtocol
from stateline.server.wire.time_limits import TimeLimits
from support.processes.ports import free_port
from support.processes.query_server import OwningWorker, wait_until
from support.processes.served_here import Here, served_here
from support.run.length import long_only
from support.run.patience import HANGING_S

GET = b"GET /v1/stores/aircraft/keys/N1 HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"POST /v1/stores/aircraft/query HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
ENTRIES = 40_000  # some megabytes: more than sockets hold


@pytest.fixture(scope="module")
def here(worker: OwningWorker, state_dir: Path) -> Iterator[Here]:
    worker.put("N1", 1)
    worker.put_all({f"many-{number:06}": "x" * 200 for number in range(ENTRIES)})
    worker.commit()
    with served_here(state_dir) as found:
        yield found


@pytest.fixture
def connection(here: Here) -> Iterator[socket.socket]:
    with connected(here.port) as found:
        yield found


def connected(port: int) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port), timeout=HANGING_S)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def rest(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    data = b""
    try:
        while more := connection.recv(65536):
            data += more
    except ConnectionResetError:  # it did not read all that was sent
        pass
    return data


def refused(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """Status and problem of the answer that is the last on the connection."""
    head, _, body = rest(connection).partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head
    assert b"connection: close" in head
    return int(head.split()[1]), json.loads(body)


def send_without_end(connection: socket.socket, piece: bytes, most: int) -> int:
    """How much of it was taken before the server hung up."""
    sent = 0
    try:
        while sent < most:
            sent += connection.send(piece)
    except OSError:
        pass
    return sent


# Headers


@pytest.mark.parametrize(
    "headers",
    [
        b"".join(b"X-%d: 1\r\n" % number for number in range(MAX_HEADERS)),
        b"X: " + b"x" * MAX_HEADER_BYTES + b"\r\n",
        b"".join(b"X-%d: %b\r\n" % (number, b"x" * 1000) for number in range(66)),
    ],
    ids=["many", "one long", "long in all"],
)
def test_more_headers_than_any_client_needs_are_refused(connection: socket.socket, headers: bytes) -> None:
    connection.sendall(GET + headers + b"\r\n")
    status, problem = refused(connection)
    assert (status, problem["status"], problem["reason"]) == (431, 431, "INVALID_ARGUMENT")
    assert "200 headers" in problem["detail"]
    assert "64 KiB" in problem["detail"]


@pytest.mark.parametrize("first", [1, 1000, 40_000, MAX_HEADER_BYTES])
def test_headers_that_are_too_long_are_refused_in_pieces_too(connection: socket.socket, first: int) -> None:
    line = b"X: " + b"x" * MAX_HEADER_BYTES + b"\r\n\r\n"
    connection.sendall(GET + line[:first])
    time.sleep(0.1)  # so that it arrives by itself; if it does not, the test above is run again
    connection.sendall(line[first:])
    assert refused(connection)[0] == 431


@pytest.mark.parametrize(
    "headers",
    [
        b"".join(b"X-%d: 1\r\n" % number for number in range(MAX_HEADERS - 2)),
        b"X: " + b"x" * (MAX_HEADER_BYTES - 100) + b"\r\n",
    ],
    ids=["many", "long"],
)
def test_headers_up_to_the_limit_are_read(connection: socket.socket, headers: bytes) -> None:
    connection.sendall(GET + b"Connection: close\r\n" + headers + b"\r\n")
    assert rest(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "codings",
    [
        "identity",
        "Identity",
        "gzip",
        "gzip, chunked",
        "chunked, identity",
        "chunked, chunked",
        "",
        "xchunked",
        ",chunked",
    ],
)
def test_a_body_in_a_coding_that_is_not_known_is_refused(connection: socket.socket, codings: str) -> None:
    """Who takes it for a body of no length, or of another, sees another next request (RFC 9112, 6.1)."""
    connection.sendall(CHUNKED.replace(b"chunked", codings.encode()) + b"0\r\n\r\n" + GET + b"\r\n")
    answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 400 "), answer[:300]
    assert answer.count(b"\r\n\r\n") == 1, "what follows was taken for another request"


@pytest.mark.parametrize(("count", "status"), [(2, 200), (66, 431)])
@pytest.mark.parametrize("pieces", [1, 2])
def test_trailers_behind_a_body_are_no_longer_than_headers(
    connection: socket.socket, count: int, status: int, pieces: int
) -> None:
    trailers = b"".join(b"X-%d: %b\r\n" % (number, b"x" * 1000) for number in range(count)) + b"\r\n"
    connection.sendall(CHUNKED + b"10\r\n" + b'{"type":"count"}' + b"\r\n0\r\n")
    for piece in (trailers,) if pieces == 1 else (trailers[: len(trailers) // 2], trailers[len(trailers) // 2 :]):
        time.sleep(0.1)  # so that it arrives by itself
        connection.sendall(piece)
    answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:300]


def test_transfer_encoding_is_there_once_alone_and_of_http_1_1(here: Here) -> None:
    for headers in (
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding: identity\r\n",
    ):
        with connected(here.port) as connection:
            connection.sendall(CHUNKED.replace(b"Transfer-Encoding: chunked\r\n", headers) + b"0\r\n\r\n")
            assert rest(connection).startswith(b"HTTP/1.1 4"), headers
    with connected(here.port) as connection:
        connection.sendall(CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + b"0\r\n\r\n")
        assert refused(connection)[0] == 400
    with connected(here.port) as connection:
        connection.sendall(
            CHUNKED.replace(b": chunked", b": Chunked") + b"10\r\n" + b'{"type":"count"}' + b"\r\n0\r\n\r\n"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        (b"http://evil.example/v1/stores", b"localhost", 403),
        (b"http://evil.example:80/v1/stores/aircraft/keys/N1", b"localhost", 403),
        (b"http://localhost@evil.example/v1/stores", b"localhost", 403),
        (b"http://user@localhost/v1/stores", b"localhost", 403),
        (b"http://localhost/v1/stores", b"localhost", 200),
        (b"http://127.0.0.1:1/v1/stores/aircraft/keys/N1?wait_ms=0", b"localhost", 200),
        (b"HTTP://LOCALHOST/v1/stores", b"evil.example", 200),
    ],
)
def test_an_absolute_url_says_by_which_name_it_is_asked(
    connection: socket.socket, target: bytes, host: bytes, status: int
) -> None:
    """And `Host` says nothing then (RFC 9112, 3.2.2)."""
    connection.sendall(b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % (target, host))
    assert rest(connection).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (GET, b"X: 1\r\n" * 10_000),
        (GET + b"X: ", b"x" * 60_000),
        (GET, b"x" * 60_000),
        (CHUNKED + b"1\r\n{\r\n0\r\nX: ", b"x" * 60_000),
        (CHUNKED + b"1\r\n{\r\n0\r\n", b"X: 1\r\n" * 10_000),
    ],
    ids=["lines", "a value", "a name", "a trailer", "trailers"],
)
def test_headers_without_end_are_not_read_without_end(connection: socket.socket, begin: bytes, piece: bytes) -> None:
    connection.sendall(begin)
    most = 100_000_000
    assert send_without_end(connection, piece, most) < most


@long_only("test_later_answers.py has many that are sent ahead")
def test_thousands_of_requests_sent_ahead_are_no_long_header(connection: socket.socket) -> None:
    count = 4_000
    connection.sendall((GET + b"X: " + b"x" * 50 + b"\r\n\r\n") * count + GET + b"Connection: close\r\n\r\n")
    assert rest(connection).count(b"HTTP/1.1 200 ") == count + 1


def test_a_large_body_is_no_long_header(connection: socket.socket) -> None:
    body = json.dumps({"type": "keys", "keys": [f"{number:0100}" for number in range(5_000)]}).encode()
    head = b"POST /v1/stores/aircraft/query HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert rest(connection).startswith(b"HTTP/1.1 200 ")


def test_a_raw_hash_is_refused_behind_answers_without_the_parser_too(connection: socket.socket) -> None:
    for _ in range(2):
        connection.sendall(GET + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    connection.sendall(GET.replace(b"/N1", b"/N1#x") + b"\r\n")
    assert refused(connection)[0] == 422


# Time


@pytest.mark.parametrize(
    "sent",
    [b"", b"\r\n", b"GET /", GET, GET + b"\r\n" + GET],
    ids=["nothing", "an empty line", "half a line", "no end", "a second one without end"],
)
def test_a_request_that_does_not_come_ends_the_connection(
    here: Here, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr("stateline.server.wire.bounded_protocol.PATIENCE_S", 0.05)
    with connected(here.port) as connection:
        connection.sendall(sent)
        assert rest(connection).count(b"HTTP/1.1 ") == sent.count(b"\r\n\r\n")


def test_an_answer_that_takes_long_outlives_that_patience(
    here: Here, worker: OwningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateline.server.wire.bounded_protocol.PATIENCE_S", 0.01)
    bound = json.dumps({"flights": {"0": worker.offset(0) + 1}}).replace('"', "%22").replace(" ", "")
    path = f"/v1/stores/aircraft/count?partition=0&wait_ms=300&position_bound={bound}"
    with connected(here.port) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert rest(connection).startswith(b"HTTP/1.1 412 ")


def test_empty_lines_between_requests_do_not_keep_a_connection(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    original = ProblemProtocol.connection_made

    def connection_made(self: ProblemProtocol, transport: asyncio.Transport) -> None:
        original(self, transport)
        self.timeout_keep_alive = 0  # seconds

    monkeypatch.setattr(ProblemProtocol, "connection_made", connection_made)
    with connected(here.port) as connection:
        connection.sendall(GET + b"\r\n\r\n")
        assert rest(connection).startswith(b"HTTP/1.1 200 ")


def test_a_connection_has_one_timer_of_its_own_and_none_when_it_is_over(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ProblemProtocol] = []
    original = ProblemProtocol.connection_made

    def connection_made(self: ProblemProtocol, transport: asyncio.Transport) -> None:
        original(self, transport)
        made.append(self)

    monkeypatch.setattr(ProblemProtocol, "connection_made", connection_made)
    with connected(here.port) as connection:
        for _ in range(3):
            connection.sendall(GET + b"X: 1\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
            timers = {id(protocol.patience) for protocol in made}
        assert len(timers) == len(made) == 1
    wait_until(lambda: made[0].patience is not None and made[0].patience.cancelled())


# What is refused while an answer is under way


def test_what_cannot_be_read_behind_a_stream_lets_the_stream_end(
    here: Here, connection: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "stateline.server.wire.bounded_protocol")
    connection.sendall(
        b"GET /v1/stores/aircraft/range HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\n\r\n"
    )
    data = connection.recv(1000)  # it is under way, and waits for this client
    connection.sendall(b"\0\1\2 no HTTP\r\n\r\n")
    wait_until(lambda: "A request was refused" in caplog.text)
    data += rest(connection)
    assert data.endswith(b"\r\n0\r\n\r\n")
    assert data.count(b"HTTP/1.1 ") == 1
    assert data.count(b'"key":') >= ENTRIES
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]


@pytest.mark.parametrize("at_once", [True, False])
def test_what_cannot_be_read_cuts_a_stream_of_events(at_once: bool, caplog: pytest.LogCaptureFixture) -> None:
    with served_events() as (port, released), connected(port) as connection:
        request, rubbish = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\0\1\2 no HTTP\r\n\r\n"
        data = b""
        if at_once:
            connection.sendall(request + rubbish)
        else:
            connection.sendall(request)
            while b"data: " not in data:
                data += connection.recv(65536)
            connection.sendall(rubbish)
        data += rest(connection)
        assert data.count(b"HTTP/1.1 ") == (0 if at_once else 1)
        assert b"problem" not in data
        assert not data.endswith(b"\r\n0\r\n\r\n")
        wait_until(lambda: released == [True])
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]


def test_a_stream_of_events_is_given_also_to_who_asks_for_another_protocol() -> None:
    with served_events() as (port, _), connected(port) as connection:
        connection.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        data = b""
        while data.count(b"data: ") < 3:
            more = connection.recv(65536)
            assert more, data
            data += more


def test_a_body_that_cannot_be_read_is_refused_at_once(connection: socket.socket) -> None:
    connection.sendall(CHUNKED)
    connection.sendall(b"1\r\n{\r\n")
    connection.sendall(b"no number\r\n")
    status, problem = refused(connection)
    assert (status, problem["reason"]) == (422, "INVALID_ARGUMENT")
    assert "chunk size" in problem["detail"]


def test_a_request_that_has_its_answer_gets_no_second_one_for_its_body(connection: socket.socket) -> None:
    connection.sendall(CHUNKED.replace(b"aircraft", b"nope"))
    data = connection.recv(65536)
    connection.sendall(b"no number\r\n")
    data += rest(connection)
    assert data.count(b"HTTP/1.1 ") == data.count(b"HTTP/1.1 404 ") == 1


# Other protocols, other versions


@pytest.mark.parametrize("path", [b"/healthz", b"/v1/stores/aircraft/keys/N1"])
@pytest.mark.parametrize("protocol", [b"websocket", b"h2c"])
def test_an_upgrade_is_ignored(
    connection: socket.socket, caplog: pytest.LogCaptureFixture, path: bytes, protocol: bytes
) -> None:
    connection.sendall(
        b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: %b\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n\x81\x05" % (path, protocol)
    )
    head, _, body = rest(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in head
    assert json.loads(body)
    assert "WebSocket" not in caplog.text


def test_an_upgrade_with_a_body_is_refused_rather_than_read_without_it(connection: socket.socket) -> None:
    connection.sendall(
        b"POST /v1/stores/aircraft/query HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
        b'Content-Length: 16\r\n\r\n{"type":"count"}'
    )
    status, problem = refused(connection)
    assert (status, problem["reason"]) == (422, "INVALID_ARGUMENT")
    assert "leave out Upgrade" in problem["detail"]


@pytest.mark.parametrize("path", [b"/healthz", b"/v1/stores/aircraft/keys/N1"])
@pytest.mark.parametrize("version", [b"", b" HTTP/0.9", b" HTTP/1.2", b" HTTP/2.0", b" HTTP/3.0", b" HTTP/9.9"])
def test_only_two_versions_of_http_are_answered(connection: socket.socket, path: bytes, version: bytes) -> None:
    connection.sendall(b"GET " + path + version + b"\r\nHost: localhost\r\n\r\n")
    status, problem = refused(connection)
    assert (status, problem["reason"]) == (422, "INVALID_ARGUMENT")
    assert "HTTP/1.1 and HTTP/1.0" in problem["detail"]


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "use http://"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "This is HTTP/2: use HTTP/1.1"),
        (b"FETCH / HTTP/1.1\r\n", "method of HTTP"),
        (b"get / HTTP/1.1\r\n", "in capitals"),
        (b"GET /v1/stores/a b HTTP/1.1\r\n", "percent-encode"),
        ("GET /v1/stores/é HTTP/1.1\r\n".encode(), "percent-encode"),
        ("GET /v1/stores?a=é HTTP/1.1\r\n".encode(), "percent-encode"),
        (GET.replace(b"/N1", b"/N1#x") + b"\r\n", "write # as %23"),
        (GET.replace(b"/N1", b"/#") + b"\r\n", "write # as %23"),
        (GET.replace(b"/keys/N1", b"/range?prefix=N1#x") + b"\r\n", "write # as %23"),
        (b"GET http://localhost/v1/stores#x HTTP/1.1\r\nHost: localhost\r\n\r\n", "write # as %23"),
        (b"GET v1/stores HTTP/1.1\r\n", "begins with a /"),
        (b"GET ?a HTTP/1.1\r\n", "begins with a /"),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", "begins with a /"),
    ],
    ids=lambda given: given[:20] if isinstance(given, str) else "",
)
def test_the_usual_mistakes_are_told_in_plain_words(connection: socket.socket, sent: bytes, told: str) -> None:
    connection.sendall(sent)
    status, problem = refused(connection)
    assert (status, problem["reason"]) == (422, "INVALID_ARGUMENT")
    assert told in problem["detail"]
    for word in ("encountered", "RTSP", "char in", "Pause", "RFC"):
        assert word not in problem["detail"]


@contextlib.contextmanager
def served_events() -> Iterator[tuple[int, list[bool]]]:
    """A server with one stream of events that never ends; what is released is noted."""
    released: list[bool] = []

    async def source() -> AsyncGenerator[bytes, None]:
        while True:
            yield b"data: 1\n\n"
            await asyncio.sleep(0.001)

    async def events(request: Request) -> Response:
        def release() -> None:
            released.append(True)

        return EventStream(source(), release, TimeLimits(), buffer_bytes=65536, heartbeat_s=1, slow_s=60)

    app = FastAPI(routes=[Route("/events", events)])
    app.state.at_once = None
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, access_log=False, http=ProblemProtocol))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield port, released
    finally:
        server.should_exit = True
        thread.join(HANGING_S)
    assert not thread.is_alive()


def test_whoever_sends_what_cannot_be_read_again_and_again_does_not_fill_the_log(
    here: Here, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seldom, "LINE_INTERVAL_S", 1e9)
    with caplog.at_level(logging.INFO):
        for number in range(50):
            with connected(here.port) as connection:
                connection.sendall(b"NO%d / HTTP/1.1\r\n\r\n" % number)
                assert refused(connection)[0] == 422
    assert caplog.text.count("A request was refused") <= 1
