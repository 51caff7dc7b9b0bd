"""Long answers to another node, over connections of their own, so that heartbeats and small reads do not wait.

    dialer   := a request as in `nodes.http_over_link`, in a frame of `stateline.query.wire`
    listener := an answer as in `relay.frames`

A connection carries one request. It is greeted like a link (`nodes.greeting`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, contextmanager

import orjson
from starlette.types import ASGIApp

from stateline.processes.seldom import seldom
from stateline.query.wire import LENGTH, decode_message, frame, frame_size
from stateline.server.contract.observation import Observation
from stateline.server.guard.passing_on import token_to_pass_on
from stateline.server.guard.proofs import ProvenConnection
from stateline.server.nodes.credentials import proof_in, with_proof
from stateline.server.nodes.greeting import GREETING_TIMEOUT_S, READ, Hello
from stateline.server.nodes.http_over_link import body_of, encode_request, scope_of
from stateline.server.nodes.nodes import Nodes
from stateline.server.relay.answering import AnswerInPieces
from stateline.server.relay.frames import END, START, read_frame
from stateline_store import InvalidArgumentError, NotReadyError, UnauthenticatedError

_log = seldom(__name__)


async def answer_read(
    app: ASGIApp, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: Hello, proven: ProvenConnection
) -> None:
    """Answer one request of this node by `app`, until it hangs up."""
    leaving: asyncio.Task[bytes] | None = None
    try:
        async with asyncio.timeout(GREETING_TIMEOUT_S):
            size = frame_size(await reader.readexactly(LENGTH.size))
            message = decode_message(await reader.readexactly(size))
        leaving = asyncio.create_task(reader.read(1))  # the node sends nothing more: this is its end
        exchange = AnswerInPieces(body_of(message), leaving, writer, Observation(""))
        await app(scope_of(message, hello.node, proof_in(message, proven)), exchange.receive, exchange.send)
        await exchange.end()
    except (OSError, EOFError) as error:
        _log.debug("A request of node %r ended: %s", hello.node, error)
    except (InvalidArgumentError, UnauthenticatedError) as error:
        _log.warning("A request of node %r is not understood: %s", hello.node, error)
    except Exception:  # noqa: BLE001 - a defect: the node sees that the answer broke off
        _log.exception("A request of node %r failed", hello.node)
    finally:
        if leaving is not None:
            leaving.cancel()


async def streamed(
    nodes: Nodes, node: str, path: str, body: bytes, resources: AsyncExitStack
) -> tuple[int, AsyncGenerator[bytes, None]]:
    """Return the status of this node's answer to a POST, and the pieces of its body as they were sent. `resources`
    close the connection.

    Raises `NotPresentError` if the node cannot be reached, `NotReadyError` if it ends before the answer does.
    """
    reader, writer, proven = await nodes.dial(node, READ)
    resources.callback(writer.close)
    broken = f"Node {node!r} broke off its answer: ask again in a moment."
    with _as_not_ready(broken):
        writer.write(frame(with_proof(encode_request(1, "POST", path, {}, body), token_to_pass_on(), proven)))
        await writer.drain()
        kind, _, payload = await read_frame(reader)
        if kind != START:
            raise EOFError
    return int(orjson.loads(payload)["status"]), _pieces(reader, broken)


async def _pieces(reader: asyncio.StreamReader, broken: str) -> AsyncGenerator[bytes, None]:
    while True:
        with _as_not_ready(broken):
            kind, _, payload = await read_frame(reader)
        if kind == END:
            return
        yield payload


@contextmanager
def _as_not_ready(message: str) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError) as error:
        raise NotReadyError(message) from error
