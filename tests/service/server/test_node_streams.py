"""A node reads a long answer of another one over a connection of its own, in the pieces in which it is made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from stateline.rows.selection import RowSelection
from stateline.server.guard.access import PROOF
from stateline.server.guard.passing_on import note_shown
from stateline.server.guard.proofs import Shown
from stateline.server.nodes.greeting import READ
from stateline.server.nodes.http_over_link import came_over_link
from stateline.server.relay.node_streams import answer_read, streamed
from stateline_store import NotPresentError, NotReadyError
from stateline_store.scan import KeyRange
from support.processes.linked_nodes import LinkedNode, run, until, with_secret

DIGEST = b"d" * 32


async def numbers(request: Request) -> Response:
    """As many pieces as the body says, then perhaps a failure."""
    count, ending = (await request.body()).decode().split()

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(int(count)):
            yield b"%d," % number * 1_000
        if ending == "fails":
            raise ValueError("a defect")
        if ending == "hangs":
            request.app.state.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                request.app.state.ended.set()

    return StreamingResponse(pieces())


async def refused(request: Request) -> Response:
    proof = request.scope[PROOF]
    told = {"node": came_over_link(request), "proof": proof is not None and proof.holds(DIGEST)}
    return JSONResponse(told, 403)


class Scene:
    """Nodes one and two, of which two answers."""

    def __init__(self, folder: Path) -> None:
        config = with_secret(folder)
        self.one, self.two = LinkedNode("one", config), LinkedNode("two", config)
        self.app = Starlette(
            routes=[
                Route("/v1/numbers", numbers, methods=["POST"]),
                Route("/v1/refused", refused, methods=["POST"]),
            ]
        )
        self.app.state.began, self.app.state.ended = asyncio.Event(), asyncio.Event()
        self.two.nodes.purposes = {READ: partial(answer_read, self._answer)}

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)

    async def __aenter__(self) -> Scene:
        self.one.hear_of("two", self.two.entry)
        await until(lambda: self.one.is_linked_with("two"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.one.close()
        await self.two.close()


def test_pieces_arrive_as_they_were_made(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Scene(tmp_path) as nodes, AsyncExitStack() as resources:
            status, pieces = await streamed(nodes.one.nodes, "two", "/v1/numbers", b"700 whole", resources)
            assert status == 200
            found = [piece async for piece in pieces]
            assert found == [b"%d," % number * 1_000 for number in range(700)]

    run(scene())


def test_the_caller_is_known_there_by_a_proof_for_this_connection(tmp_path: Path) -> None:
    async def scene() -> None:
        note_shown(Shown(DIGEST, None))
        async with Scene(tmp_path) as nodes, AsyncExitStack() as resources:
            status, pieces = await streamed(nodes.one.nodes, "two", "/v1/refused", b"", resources)
            assert (status, b"".join([piece async for piece in pieces])) == (403, b'{"node":true,"proof":true}')

    run(scene())


def test_an_answer_that_breaks_off_or_a_node_without_a_link_is_an_error_that_says_so(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Scene(tmp_path) as nodes, AsyncExitStack() as resources:
            _, pieces = await streamed(nodes.one.nodes, "two", "/v1/numbers", b"2 fails", resources)
            with pytest.raises(NotReadyError, match="'two' broke off its answer: ask again"):
                async for _ in pieces:
                    pass
            with pytest.raises(NotPresentError, match="'three' is not linked"):
                await streamed(nodes.one.nodes, "three", "/v1/numbers", b"", resources)

    run(scene())


def test_an_answer_that_nobody_reads_any_more_ends_there(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Scene(tmp_path) as nodes:
            async with AsyncExitStack() as resources:
                _, pieces = await streamed(nodes.one.nodes, "two", "/v1/numbers", b"1 hangs", resources)
                await anext(pieces)
                await nodes.app.state.began.wait()
            await nodes.app.state.ended.wait()

    run(scene())


@pytest.mark.parametrize(
    "wanted",
    [
        RowSelection(),
        RowSelection(("key",), KeyRange(b"\x00\xff", None), 1, 2),
        RowSelection((), KeyRange(b"", b"\xfe"), as_of=2**63 - 2, only=(b"", b"a\xff")),
    ],
)
def test_wanted_rows_of_a_snapshot_are_the_same_at_another_node(wanted: RowSelection) -> None:
    assert RowSelection.from_json(wanted.to_json()) == wanted
