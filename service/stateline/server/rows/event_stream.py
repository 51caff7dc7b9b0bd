"""Server-Sent Events: their bytes, and an answer that sends them for as long as the client keeps up.

    event  := ["event: " name "\\n"] ["id: " id "\\n"] ("data: " line "\\n")* "\\n"
    beat   := ":\\n\\n"

Source: the HTML standard, section 9.2. Three tasks serve a client: one fills the outbox, one sends its events, one
waits for the client to leave. The outbox is bounded, so the filling task waits for a slow client. If the client is too
slow, the sending task ends the stream with a goodbye.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stateline.problem_kinds import problem_of
from stateline.processes.seldom import seldom
from stateline.server.contract.hidden_paths import without_paths
from stateline.server.wire.bounded_protocol import ABORT
from stateline.server.wire.time_limits import TimeLimits
from stateline_store import NotReadyError, StatelineError

MEDIA_TYPE = "text/event-stream"
# Proxies must neither cache nor buffer events. The connection ends with the stream.
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no", "connection": "close"}
HEARTBEAT = b":\n\n"
# The size of one write: large enough for speed, and soon sent to a slow client.
CHUNK_BYTES = 32 * 1024
# How long the goodbye may wait for a client that does not read.
_GOODBYE_S = 5.0

_log = seldom(__name__)


def event_bytes(data: Any, *, name: str, position: bytes | None = None) -> bytes:
    """Return one event with `data` as JSON, which may have line breaks. `position` is its id, in one line."""
    lines = b"\ndata: ".join(orjson.dumps(data).splitlines())
    where = b"" if position is None else b"id: %b\n" % position
    return b"event: %b\n%bdata: %b\n\n" % (name.encode(), where, lines)


def goodbye(reason: str, detail: str) -> bytes:
    """Return the last event of a stream: why it ends."""
    return event_bytes({"reason": reason, "detail": without_paths(detail)}, name="end")


class Outbox:
    """Bytes that wait to be sent to one client: up to `max_bytes`, or one larger piece. For one loop."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._moved = asyncio.Condition()
        self._last: bytes | None = None

    async def put(self, events: bytes) -> None:
        """Add whole events, as soon as there is room."""
        async with self._moved:
            await self._moved.wait_for(lambda: not self._size or self._size + len(events) <= self._max_bytes)
            self._waiting.append(events)
            self._size += len(events)
            self._moved.notify_all()

    async def finish(self, last: bytes) -> None:
        """Add the last event, without waiting for room."""
        async with self._moved:
            self._last = last
            self._moved.notify_all()

    async def take(self, patience_s: float) -> bytes | None:
        """Return the first events. Returns a heartbeat after `patience_s` without any, and None at the end."""
        async with self._moved:
            try:
                async with asyncio.timeout(patience_s):
                    await self._moved.wait_for(lambda: self._waiting or self._last is not None)
            except TimeoutError:
                return HEARTBEAT
            if not self._waiting:
                return None
            events = self._waiting.popleft()
            self._size -= len(events)
            self._moved.notify_all()
            return events

    def last(self) -> bytes:
        return self._last or b""


class EventStream(Response):
    """Sends the events of `source` until it ends, the client leaves, or the client reads nothing for `slow_s`.

    If a `StatelineError` ended the source, the last event has its reason. `release` is called once, when the source is
    no longer needed. `limits` ends a wait for the client when the server stops.
    """

    media_type = MEDIA_TYPE

    def __init__(
        self,
        source: AsyncGenerator[bytes, None],
        release: Callable[[], None],
        limits: TimeLimits,
        *,
        buffer_bytes: int,
        heartbeat_s: float,
        slow_s: float,
    ) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._source = source
        self._release = release
        self._limits = limits
        self._outbox = Outbox(buffer_bytes)
        self._heartbeat_s = heartbeat_s
        self._slow_s = slow_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (connection := scope.get("extensions", {}).get(ABORT)) is not None:
            connection["endless"]()
        filling = asyncio.create_task(self._fill())
        sending = asyncio.create_task(self._send(scope, send, filling))
        leaving = asyncio.create_task(_client_left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (filling, sending, leaving):
                task.cancel()
            self._let_go()
            ended = await asyncio.gather(filling, sending, leaving, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _fill(self) -> None:
        try:
            async with aclosing(self._source) as source:
                async for events in source:
                    await self._outbox.put(events)
        except StatelineError as error:
            await self._outbox.finish(goodbye(problem_of(error).reason, str(error)))
        except Exception:  # noqa: BLE001 - a defect; the client gets STORE_EXCEPTION, as in any answer
            _log.exception("A change feed failed")
            await self._outbox.finish(goodbye("STORE_EXCEPTION", "Something unexpected went wrong: see the log."))

    async def _send(self, scope: Scope, send: Send, filling: asyncio.Task[None]) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            while (chunk := await self._outbox.take(self._heartbeat_s)) is not None:
                async with self._limits.within(self._slow_s):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            last = self._outbox.last()
        except TimeoutError:
            last = goodbye("TOO_SLOW", f"Nothing was read for {self._slow_s:g} s: read on from the last event's id.")
        except NotReadyError as error:
            last = goodbye(problem_of(error).reason, str(error))
        filling.cancel()
        self._let_go()
        try:
            async with asyncio.timeout(min(self._slow_s, _GOODBYE_S)):
                await send({"type": "http.response.body", "body": last, "more_body": False})
        except TimeoutError:  # it does not read: only cutting the connection frees what waits there
            if (connection := scope.get("extensions", {}).get(ABORT)) is not None:
                connection["cut"]()

    def _let_go(self) -> None:
        release, self._release = self._release, lambda: None
        release()


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
