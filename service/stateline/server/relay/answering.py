"""`RelayedRequests`: answers what a sibling passes on, with the application of this process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from pathlib import Path
from typing import Any, cast

from starlette.types import ASGIApp, Message

from stateline.deployment.unix_sockets import check_user, trusted_users
from stateline.server.contract.observation import Observation, begin
from stateline.server.guard.passing_on import note_shown
from stateline.server.guard.proofs import Shown
from stateline.server.nodes.nodes import Nodes
from stateline.server.relay.frames import (
    NODE,
    RelayedRequest,
    encode_end,
    encode_piece,
    encode_start,
    read_node,
    read_request,
)
from stateline.server.wire.streams import Arrivals

_log = logging.getLogger(__name__)


class RelayedRequests:
    """One per server process, for the event loop's thread. `application` is the application's directory: processes of
    its owner may ask."""

    def __init__(self, app: ASGIApp, application: Path, nodes: Nodes | None = None) -> None:
        """`nodes` answers large reads of other nodes, which siblings pass on."""
        self._app, self._application, self._nodes = app, application, nodes
        self._running: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> int:
        """Return how many requests are being answered."""
        return len(self._running)

    async def listen(self, listener: socket.socket) -> asyncio.Server:
        """Answer at this socket until the returned server is closed."""
        loop = asyncio.get_running_loop()

        def accepted() -> asyncio.StreamReaderProtocol:
            return asyncio.StreamReaderProtocol(Arrivals(loop=loop), cast(Any, self._answer), loop=loop)

        return await loop.create_unix_server(accepted, sock=listener)

    async def _answer(self, reader: Arrivals, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio runs each connection in a task"
        self._running.add(task)
        try:
            check_user(writer.get_extra_info("socket"), trusted_users(self._application))
            (version,) = await reader.readexactly(1)
            if version == NODE and self._nodes is not None:
                self._running.discard(task)  # it lasts as long as that node's link
                await self._nodes.answer_passed_on(reader, writer, *await read_node(reader))
            else:
                await self._run(await read_request(reader, version), reader, writer)
        except (OSError, EOFError) as error:
            _log.debug("A sibling's request ended: %s", error)
        except Exception:  # noqa: BLE001 - a defect: the sibling sees that the answer broke off
            _log.exception("A request of a sibling failed")
        finally:
            self._running.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _run(self, asked: RelayedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        observation = begin(asked.request_id)
        if asked.token is not None:
            note_shown(Shown(asked.token.digest, None))
        leaving = asyncio.create_task(reader.read(1))  # the sibling sends nothing more: this is its end
        try:
            exchange = AnswerInPieces(asked.body, leaving, writer, observation)
            await self._app(asked.scope, exchange.receive, exchange.send)
            await exchange.end()
        finally:
            leaving.cancel()


class AnswerInPieces:
    """The two ends of ASGI for one request."""

    def __init__(
        self, body: bytes, leaving: asyncio.Task[bytes], writer: asyncio.StreamWriter, observation: Observation
    ) -> None:
        self._body: bytes | None = body
        self._leaving, self._writer, self._observation = leaving, writer, observation
        self._held: tuple[bytes, ...] = ()  # frames that go out with the next one: each write wakes the sibling

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.wait([self._leaving])
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            self._held = (encode_start(message["status"], headers),)
            if not any(name == b"content-length" for name, _ in headers):
                await self._write()  # a stream's first piece may take long
            return
        if piece := message.get("body", b""):
            self._held += encode_piece(self._observation.rows, piece)
        if message.get("more_body", False):
            await self._write()

    async def end(self) -> None:
        await self._write(encode_end(self._observation))

    async def _write(self, *parts: bytes) -> None:
        if self._leaving.done() or self._writer.is_closing():
            raise ConnectionResetError("The sibling wants no more of this answer.")
        parts, self._held = self._held + parts, ()
        self._writer.writelines(parts)
        await self._writer.drain()
