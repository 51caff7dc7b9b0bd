"""`Siblings`: the server processes of one state directory pass on the requests that another one of them must answer.

Such a request continues a cursor that the other process holds, or reads so much that a scan process answers
it. Each process listens at a unix socket of its own in ``servers/`` of the application's directory: ``<process,
hex>.sock``, of a scan process ``<process, hex>.<pid of its parent, hex>.scans-1.sock``. Only its user can open it.

A server process uses the scan processes of its own parent: another server may have other settings.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from stateline.deployment.unix_sockets import connected, is_served, listening, trusted_users
from stateline.server.contract.observation import observed
from stateline.server.guard.proofs import ProvenConnection
from stateline.server.nodes.greeting import Hello
from stateline.server.relay.frames import END, RELAYED, START, VERSION, encode_node, encode_request, read_frame
from stateline.server.rows.streams import OwningStream
from stateline.server.wire.exchange import Exchange, Message
from stateline.server.wire.streams import streams
from stateline_store import CursorExpiredError, NotReadyError

_SOCKET = ".sock"
_SCANS = f".scans-{VERSION}{_SOCKET}"  # of another version, it would not be understood
_BUFFER_BYTES = 1024 * 1024  # of one answer, before the other process has to wait

_log = logging.getLogger(__name__)


class Siblings:
    """The sockets of one process and its siblings. For the event loop's thread, but for `listener`.

    `scans`: this process is one for large reads. `patience_s`: how long a client may take nothing of an answer.
    """

    def __init__(self, application: Path, process: bytes, *, scans: bool, patience_s: float) -> None:
        self._application = application
        self._folder = application / "servers"
        self._of_parent = f".{os.getppid():x}{_SCANS}"
        self._own = self._folder / f"{process.hex()}{self._of_parent if scans else _SOCKET}"
        self._patience_s = patience_s

    def listener(self) -> socket.socket | None:
        """Return the socket to answer siblings at. None if none can be made: cursors then work in their process alone,
        and a scan process gets no requests."""
        listener = None
        try:
            self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            for path in self._folder.glob(f"*{_SOCKET}"):
                if _is_left_over(path):
                    path.unlink(missing_ok=True)
            draft = self._own.with_suffix(".new")
            listener = listening(draft)
            draft.rename(self._own)  # not before it listens: others would take it for left over
        except OSError as error:
            _log.info("This process answers no requests of its siblings: %s", error)
            if listener is not None:
                listener.close()
            return None
        return listener

    @staticmethod
    def was_relayed(scope: Scope) -> bool:
        """Return whether a sibling sends this request. It is answered here, and not passed on again."""
        return RELAYED in scope

    async def to_scans(self, request: Request, body: bytes, resources: AsyncExitStack) -> OwningStream | None:
        """Return the answer of a scan process; None if there is none now. The answer owns `resources`.

        Raises `NotReadyError` if the process ends before it answers.
        """
        for path in self._scan_processes():
            with contextlib.suppress(OSError):  # left over, or ending: the next one
                connection = connected(path, trusted_users(self._application))
                try:
                    return await self._answer(connection, request, body, resources)
                except EOFError as error:
                    raise NotReadyError("The scan process has ended: ask again.") from error
        return None

    async def link_to_scans(
        self, hello: Hello, proven: ProvenConnection, take: Callable[[Message], None]
    ) -> Exchange | None:
        """Connect with a scan process, for large reads of this node. None if there is none now."""
        loop = asyncio.get_running_loop()
        for path in self._scan_processes():
            with contextlib.suppress(OSError):  # left over, or ending: the next one
                connection = connected(path, trusted_users(self._application))
                arrivals, writer = await streams(partial(loop.create_unix_connection, sock=connection))
                writer.write(encode_node(hello, proven))
                exchange = Exchange(arrivals, writer, "The scan process", take)
                await exchange.begin()
                return exchange
        return None

    def _scan_processes(self) -> list[Path]:
        names = [name for name in self._names() if name.endswith(self._of_parent)]
        random.shuffle(names)
        return [self._folder / name for name in names]

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._folder)
        except FileNotFoundError:
            return []

    async def to_process(self, request: Request, process: bytes, body: bytes, resources: AsyncExitStack) -> Response:
        """Return that process's answer. Raises `CursorExpiredError` if it has ended."""
        gone = CursorExpiredError("The server process that had this cursor has ended. Start over without it.")
        if self.was_relayed(request.scope):
            raise gone
        for name in [name for name in self._names() if name.startswith(f"{process.hex()}.")]:
            with contextlib.suppress(OSError):
                connection = connected(self._folder / name, trusted_users(self._application))
                try:
                    return await self._answer(connection, request, body, resources)
                except EOFError as error:
                    raise gone from error
        raise gone

    async def _answer(
        self, connection: socket.socket, request: Request, body: bytes, resources: AsyncExitStack
    ) -> OwningStream:
        """Raises `OSError` if the other process does not read, `EOFError` if it ends before it answers."""
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=_BUFFER_BYTES)
        resources.callback(writer.close)
        writer.write(encode_request(request.scope, body))
        await writer.drain()
        kind, _, payload = await read_frame(reader)
        if kind != START:
            raise EOFError(f"a frame of kind {kind} before the start of an answer")
        observed().is_relayed = True
        start = orjson.loads(payload)
        headers = {name: value for name, value in start["headers"] if name != "content-type"}
        media_type = next((value for name, value in start["headers"] if name == "content-type"), "")
        pieces = _pieces(reader)
        return OwningStream(pieces, resources.pop_all(), self._patience_s, media_type, headers, start["status"])

    def close(self) -> None:
        """Remove the socket's file."""
        with contextlib.suppress(OSError):
            self._own.unlink()


async def _pieces(reader: asyncio.StreamReader) -> AsyncGenerator[bytes, None]:
    """Return the pieces of an answer. Raises `ConnectionAbortedError` if it breaks off, as a client sees it too."""
    seen = observed()
    try:
        while True:
            kind, seen.rows, payload = await read_frame(reader)
            if kind == END:
                told = orjson.loads(payload)
                seen.reason, seen.level = told["reason"] or seen.reason, told["level"] or seen.level
                seen.route = told["route"] or seen.route
                return
            yield payload
    except asyncio.IncompleteReadError as error:
        raise ConnectionAbortedError("The process that answered this request has ended.") from error


def _is_left_over(path: Path) -> bool:
    """Whether its process is gone without having removed it."""
    try:
        return not is_served(path)
    except OSError:
        return False
