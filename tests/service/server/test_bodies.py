"""Bodies of requests: how they arrive, or do not, and keys of type json, which are looked up as they are written."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from stateline import serdes
from stateline.config.loading import load_config
from stateline.server.contract.arguments import Arguments
from stateline.server.contract.written_arguments import from_body
from stateline.server.queries.routes import QueryRoutes
from stateline.server.serving import Serving
from stateline_store import InvalidArgumentError
from support.processes.query_server import OwningWorker, make_app, server_process, wait_until
from support.run.patience import HANGING_S

LEVEL = "default.state.isolation.level=read_committed"


def head(length: int) -> bytes:
    return b"POST /v1/stores/aircraft/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % length


@contextlib.contextmanager
def connected(client: httpx.Client) -> Iterator[socket.socket]:
    address = (client.base_url.host, client.base_url.port)
    with socket.create_connection(address, timeout=HANGING_S) as connection:
        yield connection


def read_answer(connection: socket.socket) -> bytes:
    answer = b""
    while b'"reason"' not in answer and (more := connection.recv(65536)):
        answer += more
    return answer


def requests_counted(client: httpx.Client) -> list[str]:
    lines = client.get("/metrics").text.splitlines()
    return [line for line in lines if line.startswith("stateline_http_requests_total{") and "/query" in line]


def test_a_name_that_is_not_known_is_refused_also_with_null(client: httpx.Client) -> None:
    for name in ("lowr", ""):
        answer = client.post("/v1/stores/aircraft/query", json={"type": "range", "lower": None, name: None})
        assert (answer.status_code, answer.json()["reason"]) == (422, "INVALID_ARGUMENT")


def test_a_client_that_hangs_up_in_the_middle_of_a_body_is_no_error_of_the_service(
    tmp_path: Path, worker: OwningWorker, state_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with server_process(state_dir, LEVEL) as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)
        with connected(client) as connection:
            connection.sendall(head(100) + b'{"type"')
            client.get("/healthz")
        wait_until(lambda: bool(requests_counted(client)))
        counted = requests_counted(client)
    asked = 'level="",outcome="client_gone",route="/v1/stores/{store}/query"'
    assert counted == [f"stateline_http_requests_total{{{asked}}} 1.0"]
    assert "Traceback" not in capfd.readouterr().err


def test_a_length_above_the_limit_is_refused_before_the_body_is_sent(client: httpx.Client) -> None:
    for length in (4 * 1024 * 1024 + 1, 10**30):
        with connected(client) as connection:
            connection.sendall(head(length))
            answer = read_answer(connection)
        assert answer.startswith(b"HTTP/1.1 422 ")
        assert b'"reason":"INVALID_ARGUMENT"' in answer


def test_a_body_that_does_not_go_on_is_refused(
    state_dir: Path, worker: OwningWorker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("stateline.server.wire.bodies.PATIENCE_S", 0.01)
    config = load_config("flights-app", environment={}, overrides=[f"state.dir={state_dir}"])

    async def ask() -> None:
        parts = iter([{"type": "http.request", "body": b'{"type"', "more_body": True}])

        async def receive() -> Any:
            with contextlib.suppress(StopIteration):
                return next(parts)
            return await asyncio.Event().wait()  # the client sends no more

        serving = Serving(make_app().topology(), config, tmp_path)
        path = b"/v1/stores/aircraft/query"
        scope = {
            "type": "http", "method": "POST", "path": path.decode(), "raw_path": path,
            "query_string": b"", "headers": [], "client": ("127.0.0.1", 1),
        }  # fmt: skip
        try:
            nothing: Any = None
            routes = QueryRoutes(serving.stores, serving.routing, serving.bodies, nothing, nothing)
            await routes.query(Request(scope, receive))
        finally:
            await serving.close()

    with pytest.raises(InvalidArgumentError, match=r"Nothing more of the body arrived for 0\.01 s, after 7 bytes"):
        asyncio.run(ask())


def test_a_body_that_does_not_go_on_ends_when_the_server_stops(state_dir: Path, worker: OwningWorker) -> None:
    with contextlib.ExitStack() as stack:
        with server_process(state_dir, LEVEL) as client:
            wait_until(lambda: client.get("/readyz").status_code == 200)
            connection = stack.enter_context(connected(client))
            connection.sendall(head(100) + b'{"type"')
            for _ in range(3):  # answered after the bytes above were read: the server has one event loop
                assert client.get("/healthz").status_code == 200
        answer = read_answer(connection)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"reason":"NOT_READY"' in answer


# Keys of type json


BODY = b"""
 { "key" : [1,  2.50, "a\\u0041 }"] , "lower":{"b": 1,"a":\t2}, "upper": 123456789012345678901234567890,
   "keys": [ "x" , [ ] ,{},1e2,[1, 2] ], "order": null, "limit": 5}"""


def test_a_json_key_in_a_body_is_the_text_that_was_sent() -> None:
    arguments = Arguments(from_body(BODY, keep_text=True))
    assert arguments.key("key", serdes.json) == b'[1,  2.50, "a\\u0041 }"]'
    assert arguments.key("lower", serdes.json) == b'{"b": 1,"a":\t2}'
    assert arguments.key("upper", serdes.json) == b"123456789012345678901234567890"
    assert arguments.keys(serdes.json, 10) == (b'"x"', b"[ ]", b"{}", b"1e2", b"[1, 2]")
    assert arguments.integer("limit", 1, 1, 10, "server.limit.max") == 5


@pytest.mark.parametrize("body", [b'{"keys":[]}', b'{ "keys" : [ ] }', b"{}", b"{ }"])
def test_empty_objects_and_arrays_have_no_keys(body: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="1 to 10"):
        Arguments(from_body(body, keep_text=True)).keys(serdes.json, 10)


def test_a_json_key_is_found_by_post_as_by_get(client: httpx.Client, worker: OwningWorker) -> None:
    key = "[1, 2]"
    worker.run(lambda: worker.stores["places", 0].put(key.encode(), b'"here"'))
    worker.commit()
    assert client.get(f"/v1/stores/places/keys/{key}").json()["value"] == "here"
    for body in ('{"type": "key", "key": [1, 2]}', '{"type": "keys", "keys": [[1, 2]]}'):
        answer = client.post("/v1/stores/places/query", content=body).json()
        found = answer["entries"][0] if "entries" in answer else answer
        assert (found["found"], found["value"]) == (True, "here")
    other = client.post("/v1/stores/places/query", content='{"type": "key", "key": [1,2]}')
    assert (other.status_code, other.json()["found"]) == (404, False)
