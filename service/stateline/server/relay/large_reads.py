"""`LargeReads`: sends what makes many rows to a scan process (`server.scan.processes`)."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext

from starlette.requests import Request
from starlette.responses import Response

from stateline.server.guard.caller import caller_of
from stateline.server.guard.limits import Limits
from stateline.server.nodes.http_over_link import came_over_link
from stateline.server.relay.siblings import Siblings
from stateline.server.rows.streams import OwningStream

_BODY = "stateline.body"  # in the scope


def note_body(request: Request, body: bytes) -> None:
    """Keep the body of this request, which another process may have to answer."""
    request.scope[_BODY] = body


def body_of(request: Request) -> bytes:
    """Return the body that was kept; empty without one."""
    body: bytes = request.scope.get(_BODY, b"")
    return body


class LargeReads:
    """One per server process, for the event loop's thread. Unless `is_relaying`, this process answers them itself."""

    def __init__(self, siblings: Siblings, limits: Limits, *, is_relaying: bool) -> None:
        self._siblings, self._limits, self._is_relaying = siblings, limits, is_relaying

    async def answer(self, request: Request) -> OwningStream | None:
        """Return the answer of a scan process, which takes a place of server.scans.max until its end. None
        if there is none now: then answer here.

        Raises `TooManyRequestsError` if all places are taken, `NotReadyError` if the process ends before it answers.
        """
        if not self._is_relaying or Siblings.was_relayed(request.scope):
            return None
        async with AsyncExitStack() as resources:
            await resources.enter_async_context(self.place(request))
            return await self._siblings.to_scans(request, body_of(request), resources)

    def place(self, request: Request) -> AbstractAsyncContextManager[None]:
        """Return a place of server.scans.max for this request, unless it has one where it came in: at another node, or
        in another process. Entering it raises `TooManyRequestsError`."""
        if came_over_link(request) or Siblings.was_relayed(request.scope):
            return nullcontext()
        return self._limits.scan(caller_of(request))

    async def follow(self, request: Request, process: bytes) -> Response:
        """Return the next page of a cursor, from the process that holds it. Raises `CursorExpiredError` if that has
        ended."""
        async with AsyncExitStack() as resources:
            return await self._siblings.to_process(request, process, body_of(request), resources)
