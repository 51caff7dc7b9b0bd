"""A node answers the HTTP that another asks over their link by its own application."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from stateline.query import wire
from stateline.server.contract import observation
from stateline.server.nodes import http_over_link
from stateline.server.nodes.answering import AskingNode
from stateline.server.nodes.http_over_link import came_over_link
from stateline.server.nodes.link import Link
from stateline.server.nodes.traffic import Traffic
from stateline.server.wire.streams import Arrivals
from stateline_store import InvalidArgumentError, NotPresentError, StatelineError
from support.processes.linked_nodes import GREETING, PROVEN, HasNothing, link_to
from support.run.patience import HANGING_S


@contextlib.asynccontextmanager
async def linked(*routes: Route) -> AsyncIterator[Link]:
    """A link to a node with these routes."""
    app = Starlette(routes=list(routes))

    async def accept(arrivals: Arrivals, writer: asyncio.StreamWriter) -> None:
        asking = AskingNode(arrivals, writer, GREETING, HasNothing(), app, Traffic(), PROVEN)
        await asking.begin()
        await asking.ended()

    async with link_to(accept) as link:
        yield link


def test_a_request_that_is_answered_here_takes_its_id_along() -> None:
    assert "x-request-id" not in http_over_link.encode_request(1, "GET", "/v1/stores", {}, b"")["headers"]
    observation.begin("mine-7")
    try:
        message = http_over_link.encode_request(1, "GET", "/v1/stores", {}, b"")
        assert (message["id"], message["headers"]["x-request-id"]) == (1, "mine-7")
    finally:
        observation._current.set(None)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(HANGING_S):
            await test()

    asyncio.run(bounded())


async def echo(request: Request) -> Response:
    told = {
        "path": request.url.path,
        "query": request.url.query,
        "token": request.headers.get("authorization"),
        "cookie": request.headers.get("cookie"),
        "body": (await request.body()).decode(),
        "client": request.client,
        "node": came_over_link(request),
    }
    return JSONResponse(told, 201, headers={"Retry-After": "1"})


def test_a_request_arrives_as_it_was_sent_and_is_known_to_come_from_a_node() -> None:
    async def test() -> None:
        async with linked(Route("/v1/{rest:path}", echo, methods=["POST"])) as link:
            headers = {"Authorization": "Bearer x", "Cookie": "no", "stateline-from-node": "no"}
            answer = await link.http("POST", "/v1/a%20b?c=%C3%A4&d=1", headers, b"{}")
            assert (answer.status, answer.headers["retry-after"]) == (201, "1")
            told = JSONResponse(
                {"path": "/v1/a b", "query": "c=%C3%A4&d=1", "token": None, "cookie": None}
                | {"body": "{}", "client": None, "node": True}
            )
            assert answer.body == told.body
            assert (await link.http("GET", "/v1/x", {})).status == 405
            with pytest.raises(StatelineError, match="is no request that nodes make"):
                await link.http("GET", "/metrics", {})

    run(test)


def test_what_is_too_large_or_breaks_off_is_an_error_and_harms_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_over_link, "MAX_BODY_BYTES", 1000)

    async def size(request: Request) -> Response:
        pieces = [b"x" * int(request.path_params["size"])] * 2
        return StreamingResponse(_all(pieces, request.query_params.get("fails")))

    async def test() -> None:
        async with linked(Route("/v1/{size:int}", size)) as link:
            assert (await link.http("GET", "/v1/500", {})).body == b"x" * 1000
            with pytest.raises(StatelineError, match="more than 1000 bytes"):
                await link.http("GET", "/v1/501", {})
            with pytest.raises(StatelineError, match="broke off"):
                await link.http("GET", "/v1/1?fails=1", {})
            with pytest.raises(InvalidArgumentError, match="1001 bytes"):
                await link.http("GET", "/v1/1", {}, b"x" * 1001)
            assert (await link.http("GET", "/v1/1", {})).body == b"xx"

    run(test)


async def _all(pieces: list[bytes], fails: str | None) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
    if fails:
        raise ValueError


def test_what_nobody_waits_for_any_more_ends_there_too() -> None:
    begun: asyncio.Queue[None] = asyncio.Queue()
    ended: asyncio.Queue[None] = asyncio.Queue()

    async def wait(request: Request) -> Response:
        begun.put_nowait(None)
        try:
            await asyncio.Event().wait()
        finally:
            ended.put_nowait(None)
        raise NotImplementedError

    async def test() -> None:
        async with linked(Route("/v1/wait", wait)) as link:
            with pytest.raises(NotPresentError, match="did not answer"):
                await link.http("GET", "/v1/wait", {}, timeout_s=0.2)
            if not begun.empty():  # or the machine is so slow that it had not begun when that was over
                begun.get_nowait()
                await ended.get()
            for leaves in (asyncio.Task.cancel, lambda _: asyncio.create_task(link.close())):
                asking = asyncio.create_task(link.http("GET", "/v1/wait", {}))
                await begun.get()
                leaves(asking)
                await asyncio.gather(asking, return_exceptions=True)
                await ended.get()

    run(test)


def test_who_waits_for_a_node_that_has_fallen_silent_is_told_and_the_link_goes_on() -> None:
    async def test() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slow(request: Request) -> Response:
            begun.set()
            await go_on.wait()
            return JSONResponse({})

        async with linked(Route("/v1/slow", slow), Route("/v1/{rest:path}", echo)) as link:
            waiting = asyncio.create_task(link.http("GET", "/v1/slow", {}))
            await begun.wait()
            link.give_up()
            with pytest.raises(NotPresentError, match="hung up"):
                await waiting
            go_on.set()
            assert (await link.http("GET", "/v1/a", {})).status == 201

    run(test)


def test_an_answer_for_one_key_that_no_frame_holds_is_asked_for_otherwise_and_the_link_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 1000)
    monkeypatch.setattr(HasNothing, "point", lambda node, path, query, token, asked_by: b"x" * len(path) * 100)

    async def test() -> None:
        async with linked() as link:
            for path, body in (("/" * 10, None), ("/", b"x" * 100)):
                answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
                link.point(path, "", None, "id", answer.set_result)
                assert await answer == body

    run(test)
