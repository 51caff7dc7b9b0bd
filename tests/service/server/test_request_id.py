"""Each answer has the id of its request, the client's own where it sent one."""

from __future__ import annotations

import socket

import httpx
import pytest

from stateline.server.contract.request_id import request_id
from support.processes.query_server import OwningWorker

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
ANSWERED_AT_ONCE = "/v1/stores/aircraft/keys/here"
PATHS = [ANSWERED_AT_ONCE, "/v1/stores", "/v1/stores/aircraft/keys/nobody", "/nowhere", "/metrics", "/"]


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([(b"x-request-id", b"a-7")], "a-7"),
        ([(b"traceparent", PARENT.encode()), (b"x-request-id", b"a-7")], "a-7"),
        ([(b"x-request-id", b"a-7"), (b"traceparent", PARENT.encode())], "a-7"),
        ([(b"traceparent", PARENT.encode())], TRACE),
    ],
)
def test_the_clients_own_id_is_taken(headers: list[tuple[bytes, bytes]], found: str) -> None:
    assert request_id(headers) == found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"x-request-id", b""),
        (b"x-request-id", b"two words"),
        (b"x-request-id", b"a\tb"),
        (b"x-request-id", b'a"b'),
        (b"x-request-id", "é".encode()),
        (b"x-request-id", b"x" * 129),
        (b"traceparent", b"00-" + b"0" * 32 + b"-00f067aa0ba902b7-01"),
        (b"traceparent", b"garbage"),
    ],
)
def test_an_id_that_cannot_stand_in_a_header_and_a_log_is_replaced_by_a_new_one(name: bytes, value: bytes) -> None:
    one, another = (request_id([(name, value)]) for _ in range(2))
    assert one != another
    assert value.decode("latin-1") not in (one, another)


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_has_it(client: httpx.Client, worker: OwningWorker, path: str) -> None:
    worker.put("here", "1")
    worker.commit()
    for _ in range(3):  # the third is answered without the parser, where that is possible
        answer = client.get(path, headers={"x-request-id": "mine"})
        assert answer.headers.get_list("x-request-id") == ["mine"]
    ids = {client.get(path).headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


def test_what_cannot_be_read_has_one_too(client: httpx.Client) -> None:
    with socket.create_connection((client.base_url.host, client.base_url.port or 80)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nx-request-id: mine\r\n\r\n")  # without a host
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"\r\nx-request-id: mine\r\n" in answer
