"""How requests travel: one attempt after the other over httpx, whole answers and streams, blocking or not.

The only module, with its two classes, that sends anything.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import httpx

from stateline.client.answers import Reply, failure_of
from stateline.client.failures import UnreachableError
from stateline.client.requests import Request
from stateline.client.retries import Attempts, Retries
from stateline.client.store_calls import Call
from stateline_store import InvalidArgumentError, StatelineError

T = TypeVar("T")
C = TypeVar("C")
CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Server:
    """Where the server is, and what every request to it carries."""

    base_url: str
    token: str | None = field(repr=False)
    timeout_s: float
    retries: Retries

    def __post_init__(self) -> None:
        url = httpx.URL(self.base_url)
        if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
            raise InvalidArgumentError(f"{self.base_url!r} is no address of a server: http://HOST:PORT is one.")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise InvalidArgumentError("token is empty or has characters that no token has.")

    def arguments(self, request: Request, timeout_s: float) -> dict[str, Any]:
        """What httpx sends this request with."""
        headers = {"Accept": request.accept, **dict(request.headers)}
        if request.body is not None:
            headers["Content-Type"] = "application/json"
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        return {
            "method": request.method,
            "url": self.base_url.rstrip("/") + request.target,
            "content": request.body,
            "headers": headers,
            "timeout": httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S)),
        }

    def usual_s(self, request: Request) -> float:
        """How long the server may be silent."""
        return self.timeout_s + request.wait_ms / 1000


@dataclass(frozen=True, slots=True)
class Incoming(Generic[C]):
    """An answer that is still arriving."""

    headers: Mapping[str, str]
    chunks: C


class Transport:
    """Sends from whichever thread calls; httpx's pool is shared. Closes `http` unless it was given."""

    def __init__(self, server: Server, http: httpx.Client | None) -> None:
        self.server = server
        self._owned = http is None
        self._http = httpx.Client() if http is None else http

    def ask(self, call: Call[T], retries: Retries | None = None) -> T:
        """The answer. Raises the failure of the last attempt."""
        attempts = Attempts(retries or self.server.retries, call.request.wait_ms)
        while True:
            try:
                return call.reader.read(self._reply(call.request, attempts))
            except StatelineError as error:
                pause_s = attempts.pause_s(call.request, error)
                if pause_s is None:
                    raise
            time.sleep(pause_s)

    @contextmanager
    def stream(self, request: Request) -> Iterator[Incoming[Iterator[bytes]]]:
        """An answer as it arrives; the connection is closed with the block. One attempt."""
        arguments = self.server.arguments(request, self.server.usual_s(request))
        with _unreachable(self.server), self._http.stream(**arguments) as response:
            if not response.is_success:
                raise failure_of(_reply(response, response.read()))
            yield Incoming(response.headers, response.iter_bytes())

    def close(self) -> None:
        """Close the connections."""
        if self._owned:
            self._http.close()

    def _reply(self, request: Request, attempts: Attempts) -> Reply:
        arguments = self.server.arguments(request, attempts.timeout_s(self.server.usual_s(request)))
        with _unreachable(self.server):
            response = self._http.request(**arguments)
            return _reply(response, response.content)


class AsyncTransport:
    """The same for asyncio; for tasks of one event loop."""

    def __init__(self, server: Server, http: httpx.AsyncClient | None) -> None:
        self.server = server
        self._owned = http is None
        self._http = httpx.AsyncClient() if http is None else http

    async def ask(self, call: Call[T], retries: Retries | None = None) -> T:
        """The answer. Raises the failure of the last attempt."""
        attempts = Attempts(retries or self.server.retries, call.request.wait_ms)
        while True:
            try:
                return call.reader.read(await self._reply(call.request, attempts))
            except StatelineError as error:
                pause_s = attempts.pause_s(call.request, error)
                if pause_s is None:
                    raise
            await asyncio.sleep(pause_s)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Incoming[AsyncIterator[bytes]]]:
        """An answer as it arrives; the connection is closed with the block. One attempt."""
        arguments = self.server.arguments(request, self.server.usual_s(request))
        with _unreachable(self.server):
            async with self._http.stream(**arguments) as response:
                if not response.is_success:
                    raise failure_of(_reply(response, await response.aread()))
                yield Incoming(response.headers, response.aiter_bytes())

    async def close(self) -> None:
        """Close the connections."""
        if self._owned:
            await self._http.aclose()

    async def _reply(self, request: Request, attempts: Attempts) -> Reply:
        arguments = self.server.arguments(request, attempts.timeout_s(self.server.usual_s(request)))
        with _unreachable(self.server):
            response = await self._http.request(**arguments)
            return _reply(response, response.content)


def _reply(response: httpx.Response, content: bytes) -> Reply:
    headers: Mapping[str, str] = response.headers  # httpx finds them in any case
    return Reply(response.status_code, headers, content)


@contextmanager
def _unreachable(server: Server) -> Iterator[None]:
    """What httpx says of a connection, as an error of ours."""
    try:
        yield
    except httpx.RequestError as error:
        why = str(error).rstrip(".") or type(error).__name__
        raise UnreachableError(f"{server.base_url} does not answer: {why}. Is the server running there?") from error
