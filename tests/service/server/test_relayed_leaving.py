"""An answer of the scan process ends when its reader leaves. These answers do not end by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from stateline.deployment.unix_sockets import connected, listening, trusted_users
from stateline.server.contract.request_id import KEY
from stateline.server.relay.answering import RelayedRequests
from stateline.server.relay.frames import START, encode_request, read_frame
from stateline.server.wire.time_limits import while_there
from support.run.patience import HANGING_S

REQUEST: Scope = {"method": "GET", "raw_path": b"/", "query_string": b"", "headers": [], "client": None, KEY: "1"}


async def streams(scope: Scope, receive: Receive, send: Send) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1_000
            await asyncio.sleep(0)

    await StreamingResponse(pieces())(scope, receive, send)


async def streams_without_looking(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send({"type": "http.response.body", "body": b"x" * 1_000, "more_body": True})
        await asyncio.sleep(0)


async def works_before_it_answers(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive)
    await request.body()
    async with while_there(request):
        await asyncio.Event().wait()
    await Response()(scope, receive, send)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANGING_S):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("app", [streams, streams_without_looking, works_before_it_answers])
def test_an_answer_ends_when_its_reader_leaves(app: ASGIApp, tmp_path: Path) -> None:
    async def main() -> None:
        relayed = RelayedRequests(app, tmp_path)
        async with await relayed.listen(listening(tmp_path / "scans.sock")):
            connection = connected(tmp_path / "scans.sock", trusted_users(tmp_path))
            reader, writer = await asyncio.open_unix_connection(sock=connection)
            writer.write(encode_request(REQUEST, b""))
            await until(lambda: relayed.running == 1)
            if app is not works_before_it_answers:
                assert (await read_frame(reader)).kind == START
            writer.close()
            await until(lambda: relayed.running == 0)

    asyncio.run(main())
