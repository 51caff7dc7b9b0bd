"""Answers compressed by gzip: the same bytes, as soon, and only for who accepts it. The oracle is the plain answer."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow
import pytest
from starlette.responses import Response

from stateline.client import Client
from stateline.server.wire.compression import CompressionMiddleware
from support.http.blocking import blocking_client
from support.http.faulty_proxy import faulty_proxy
from support.processes.query_server import OwningWorker
from support.processes.served_here import Here, served_here
from support.run.patience import HANGING_S

ROWS = 20_000  # several chunks of a stream
NDJSON = "application/x-ndjson"
STREAMS = ["format=ndjson", "format=csv", "format=arrow", "limit=1000"]


@pytest.fixture(scope="module")
def here(worker: OwningWorker, state_dir: Path) -> Iterator[Here]:
    worker.put_all({f"s{number:05}": {"number": number, "text": "some text"} for number in range(ROWS)})
    worker.commit()
    with served_here(state_dir) as found:
        yield found


def raw(here: Here, path: str, accepted: str, method: str = "GET") -> tuple[httpx.Response, bytes]:
    with here.client.stream(method, path, headers={"Accept-Encoding": accepted}) as response:
        return response, b"".join(response.iter_raw())


def unpacked(data: bytes) -> bytes:
    return zlib.decompress(data, 16 + zlib.MAX_WBITS)


def rows_of(data: bytes, query: str) -> Any:
    """The rows of a stream. How many a batch of Arrow has depends on how long they take."""
    return pyarrow.ipc.open_stream(data).read_all() if query == "format=arrow" else data


@pytest.mark.parametrize("query", STREAMS)
def test_an_answer_is_the_same_compressed_or_not(here: Here, query: str) -> None:
    path = f"/v1/stores/aircraft/range?{query}&details=none"
    _, plain = raw(here, path, "identity")
    response, data = raw(here, path, "br, gzip;q=0.5")
    assert response.headers["content-encoding"] == "gzip"
    assert "Accept-Encoding" in response.headers["vary"]
    assert len(data) < len(plain) / 3
    if query == "limit=1000":
        assert json.loads(gzip.decompress(data))["entries"] == json.loads(plain)["entries"]
        assert int(response.headers["content-length"]) == len(data)
    else:
        assert rows_of(gzip.decompress(data), query) == rows_of(plain, query)
        assert "content-length" not in response.headers


@pytest.mark.parametrize("accepted", ["identity", "gzip;q=0", "br", "deflate, gzip; q=0.0"])
def test_who_does_not_accept_it_gets_what_there_is(here: Here, accepted: str) -> None:
    response, data = raw(here, "/v1/stores/aircraft/range", accepted)
    assert "content-encoding" not in response.headers
    assert "Accept-Encoding" in response.headers["vary"]
    assert len(json.loads(data)["entries"]) == 1000


def test_small_answers_and_those_to_head_are_not_compressed(here: Here) -> None:
    response, data = raw(here, "/healthz", "gzip")
    assert ("content-encoding" in response.headers, json.loads(data)) == (False, {"status": "alive"})
    response, data = raw(here, "/v1/stores/aircraft/range", "gzip", "HEAD")
    assert ("content-encoding" in response.headers, data) == (False, b"")
    response, _ = raw(here, "/v1/stores/aircraft/keys/s00001", "gzip")
    assert "content-encoding" not in response.headers


def test_a_problem_is_compressed_as_any_answer(here: Here) -> None:
    response, data = raw(here, f"/v1/stores/aircraft/range?{'x' * 3000}=1", "gzip")
    assert response.status_code == 422
    assert json.loads(data if "content-encoding" not in response.headers else unpacked(data))["status"] == 422


def test_what_has_come_of_a_stream_can_be_read_before_the_rest(here: Here) -> None:
    """Each piece ends where the decompressor has all of it."""
    head = f"GET /v1/stores/aircraft/range?prefix=s HTTP/1.1\r\nHost: localhost\r\nAccept: {NDJSON}\r\n"
    with socket.create_connection(("127.0.0.1", here.port)) as connection:
        connection.settimeout(HANGING_S)
        connection.sendall(f"{head}Accept-Encoding: gzip\r\n\r\n".encode())
        data, reader = b"", zlib.decompressobj(16 + zlib.MAX_WBITS)
        while b"\r\n\r\n" not in data or data.count(b"\r\n") < 20:
            if b"\r\n\r\n" in data and len(data.split(b"\r\n\r\n", 1)[1]) > 10:
                break
            data += connection.recv(65536)
        head_text, _, body = data.partition(b"\r\n\r\n")
        assert b"content-encoding: gzip" in head_text.lower()
        size, _, rest = body.partition(b"\r\n")
        while len(rest) < int(size, 16):
            rest += connection.recv(65536)
        first = reader.decompress(rest[: int(size, 16)])
        assert first.endswith(b"}\n"), "whole lines, though the stream goes on"
        assert first.count(b"\n") < ROWS


def test_events_are_never_compressed() -> None:
    async def asked() -> httpx.Response:
        events = CompressionMiddleware(Response("data: 1\n\n" * 1000, media_type="text/event-stream"))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(events), base_url="http://h") as client:
            return await client.get("/", headers={"Accept-Encoding": "gzip"})

    assert not {"content-encoding", "vary"} & set(asyncio.run(asked()).headers)


def test_a_script_of_the_console_is_compressed_and_its_tag_is_a_weak_one(here: Here) -> None:
    plain, text = raw(here, "/console/console.js", "identity")
    packed, data = raw(here, "/console/console.js", "gzip")
    assert packed.headers["etag"] == f"W/{plain.headers['etag']}"
    assert unpacked(data) == text
    again = here.client.get("/console/console.js", headers={"If-None-Match": packed.headers["etag"]})
    assert again.status_code == 304


def test_a_column_that_arrow_does_not_have_is_refused_before_the_stream(here: Here) -> None:
    response = here.client.get("/v1/stores/counts/range", params={"columns": "timestamp", "format": "arrow"})
    assert (response.status_code, response.json()["reason"]) == (422, "INVALID_ARGUMENT")
    assert here.client.get("/v1/stores/counts/range", params={"columns": "timestamp"}).status_code == 200


@pytest.mark.parametrize("kind", [Client, blocking_client])
@pytest.mark.parametrize("compress", [True, False])
def test_a_client_asks_for_compression_only_when_it_is_told_to(here: Here, kind: Any, compress: bool) -> None:
    with faulty_proxy(here.port) as proxy, kind(proxy.url, compress=compress) as client:
        store = client.store("aircraft")
        assert len(list(store.range(prefix="s0", page_size=5000))) == 10_000
        assert sum(batch.num_rows for batch in store.range(prefix="s").batches()) == ROWS
        asked = b"accept-encoding: gzip" if compress else b"accept-encoding: identity"
        assert all(asked in request.lower() for request in proxy.requests)
