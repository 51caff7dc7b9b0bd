"""What every answer says to browsers, whoever made it: a route, the guard, the protocol, or what answers at once."""

from __future__ import annotations

import socket

import httpx
import pytest

from support.processes.served_here import Here
from support.run.patience import HANGING_S

SAID = {
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
}
ASKED = [
    ("GET", "/v1/stores/aircraft/keys/k", 200),  # at once
    ("HEAD", "/v1/stores/aircraft/keys/k", 200),
    ("GET", "/v1/stores/aircraft/keys/nobody", 404),
    ("GET", "/v1/stores/aircraft/range", 200),
    ("HEAD", "/v1/stores/aircraft/range", 200),
    ("GET", "/nowhere", 404),
    ("DELETE", "/v1/stores", 405),
    ("OPTIONS", "/v1/stores", 405),
    ("GET", "/v1/stores?x=1", 422),
    ("GET", "/v1/stores/aircraft/changes", 404),
    ("GET", "/", 200),
    ("GET", "/console/console.css", 200),
    ("GET", "/docs", 200),
    ("GET", "/metrics", 200),
    ("GET", "/healthz", 200),
]
NO_REQUEST = [b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: 1\r\n" * 300]


def check(response: httpx.Response) -> None:
    for name, value in SAID.items():
        assert response.headers.get_list(name) == [value], (response.request.url, response.status_code, name)
    assert any("frame-ancestors 'none'" in policy for policy in response.headers.get_list("content-security-policy"))


@pytest.mark.parametrize(("method", "path", "status"), ASKED)
def test_every_answer_may_be_neither_framed_nor_embedded_nor_guessed_at(
    here: Here, method: str, path: str, status: int
) -> None:
    response = here.client.request(method, path)
    assert status in (response.status_code, 404)
    check(response)


def test_what_is_refused_or_not_sent_again_says_it_too(here: Here) -> None:
    check(here.client.get("/v1/stores", headers={"Host": "evil.example"}))
    etag = here.client.get("/").headers["etag"]
    unchanged = here.client.get("/", headers={"If-None-Match": etag})
    assert unchanged.status_code == 304
    check(unchanged)
    with here.client.stream("GET", "/v1/stores/aircraft/range", headers={"Accept": "application/x-ndjson"}) as stream:
        check(stream)


@pytest.mark.parametrize("sent", NO_REQUEST)
def test_what_is_no_request_is_told_so_with_the_same_headers(here: Here, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", here.port), timeout=HANGING_S) as connection:
        connection.sendall(sent)
        answer = b""
        while more := connection.recv(65536):
            answer += more
    head = answer.partition(b"\r\n\r\n")[0].lower().decode()
    assert head.startswith("http/1.1 4")
    assert all(f"\r\n{name}: {value}\r\n" in f"{head}\r\n" for name, value in SAID.items())
    assert "\r\ncontent-security-policy: frame-ancestors 'none'\r\n" in f"{head}\r\n"
