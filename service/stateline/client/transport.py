"""How requests travel: one attempt after the other over httpx, whole answers and streams, blocking or not.

The only module, with its two classes, that sends anything. Whom to is decided in `routing`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import httpx

from stateline.client import requests
from stateline.client.answers import NODES, Reply, failure_of
from stateline.client.failures import UnreachableError
from stateline.client.nodes import Nodes
from stateline.client.requests import Request
from stateline.client.retries import Attempts, Retries
from stateline.client.routing import LOOK_TIMEOUT_S, OWNER_TIMEOUT_S, Affinity, MapRequest, Route, Routing
from stateline.client.store_calls import Call
from stateline_store import InvalidArgumentError, StatelineError

T = TypeVar("T")
C = TypeVar("C")
CONNECT_TIMEOUT_S = 5.0
_NODE_CONNECT_TIMEOUT_S = 1.0  # of a node that the client was not given: there are others to ask


@dataclass(frozen=True, slots=True)
class Server:
    """Where the server is, at one URL or several, and what every request to it carries."""

    base_url: str | Sequence[str]
    token: str | None = field(repr=False)
    timeout_s: float
    retries: Retries
    ask_owners: bool = True
    compress: bool = False

    def __post_init__(self) -> None:
        if not self.urls:
            raise InvalidArgumentError("There is no address of a server: http://HOST:PORT is one.")
        for given in self.urls:
            url = httpx.URL(given)
            if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
                raise InvalidArgumentError(f"{given!r} is no address of a server: http://HOST:PORT is one.")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise InvalidArgumentError("token is empty or has characters that no token has.")

    @property
    def urls(self) -> tuple[str, ...]:
        """All of them."""
        return (self.base_url,) if isinstance(self.base_url, str) else tuple(self.base_url)

    def routing(self) -> Routing:
        """Which of them is asked, and which node."""
        return Routing(self.urls, ask_owners=self.ask_owners)

    def look(self, look: MapRequest) -> dict[str, Any]:
        """What httpx looks with."""
        return self._arguments(look.url, requests.NODES, LOOK_TIMEOUT_S, _NODE_CONNECT_TIMEOUT_S)

    def attempt(self, request: Request, route: Route, attempts: Attempts) -> dict[str, Any]:
        """What httpx asks for a whole answer with."""
        timeout_s = attempts.timeout_s(self._usual_s(request))
        if route.is_direct and request.is_read:
            timeout_s = min(timeout_s, OWNER_TIMEOUT_S + request.wait_ms / 1000)
        return self._arguments(route.url, request, timeout_s, self._connect_s(route))

    def stream(self, request: Request, route: Route) -> dict[str, Any]:
        """What httpx asks for a stream with."""
        return self._arguments(route.url, request, self._usual_s(request), self._connect_s(route))

    def _arguments(self, url: str, request: Request, timeout_s: float, connect_s: float) -> dict[str, Any]:
        headers = {"Accept": request.accept, "Accept-Encoding": "gzip" if self.compress else "identity"}
        if request.body is not None:
            headers["Content-Type"] = "application/json"
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        return {
            "method": request.method,
            "url": url + request.target,
            "content": request.body,
            "headers": headers,
            "timeout": httpx.Timeout(timeout_s, connect=min(timeout_s, connect_s)),
        }

    def _usual_s(self, request: Request) -> float:
        """How long the server may be silent."""
        return self.timeout_s + request.wait_ms / 1000

    @staticmethod
    def _connect_s(route: Route) -> float:
        return _NODE_CONNECT_TIMEOUT_S if route.is_direct else CONNECT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Incoming(Generic[C]):
    """An answer that is still arriving."""

    headers: Mapping[str, str]
    chunks: C


class Transport:
    """Sends from whichever thread calls; httpx's pool is shared. Closes `http` unless it was given."""

    def __init__(self, server: Server, http: httpx.Client | None) -> None:
        self.server = server
        self.routing = server.routing()
        self._owned = http is None
        self._http = httpx.Client() if http is None else http

    def ask(self, call: Call[T], retries: Retries | None = None, affinity: Affinity | None = None) -> T:
        """The answer. Raises the failure of the last attempt."""
        attempts = Attempts(retries or self.server.retries, call.request.wait_ms)
        route = Route(self.routing, call.request, attempts, affinity)
        while True:
            self._look(route)
            try:
                answer = call.reader.read(self._reply(self.server.attempt(call.request, route, attempts)))
            except StatelineError as error:
                pause_s = route.pause_s(error)
                if pause_s is None:
                    raise
            else:
                route.answered(answer)
                return answer
            time.sleep(pause_s)

    @contextmanager
    def stream(self, request: Request, affinity: Affinity | None = None) -> Iterator[Incoming[Iterator[bytes]]]:
        """An answer as it arrives; the connection is closed with the block. One attempt of each server."""
        route = Route(self.routing, request, Attempts(self.server.retries), affinity)
        with ExitStack() as stack:
            while True:
                self._look(route)
                try:
                    incoming = stack.enter_context(self._opened(self.server.stream(request, route)))
                    break
                except StatelineError as error:
                    if not route.goes_elsewhere(error):
                        raise
            route.answered()
            yield incoming

    def close(self) -> None:
        """Close the connections."""
        if self._owned:
            self._http.close()

    @contextmanager
    def _opened(self, arguments: dict[str, Any]) -> Iterator[Incoming[Iterator[bytes]]]:
        with _unreachable(arguments), self._http.stream(**arguments) as response:
            if not response.is_success:
                raise failure_of(_reply(response, response.read()))
            yield Incoming(response.headers, response.iter_bytes())

    def _look(self, route: Route) -> None:
        while (look := route.look()) is not None:
            found: Nodes | None = None
            try:
                found = NODES.read(self._reply(self.server.look(look)))
            except StatelineError:
                pass  # it is not asked for a while
            finally:
                self.routing.looked(look, found)

    def _reply(self, arguments: dict[str, Any]) -> Reply:
        with _unreachable(arguments):
            response = self._http.request(**arguments)
            return _reply(response, response.content)


class AsyncTransport:
    """The same for asyncio; for tasks of one event loop."""

    def __init__(self, server: Server, http: httpx.AsyncClient | None) -> None:
        self.server = server
        self.routing = server.routing()
        self._owned = http is None
        self._http = httpx.AsyncClient() if http is None else http

    async def ask(self, call: Call[T], retries: Retries | None = None, affinity: Affinity | None = None) -> T:
        """The answer. Raises the failure of the last attempt."""
        attempts = Attempts(retries or self.server.retries, call.request.wait_ms)
        route = Route(self.routing, call.request, attempts, affinity)
        while True:
            await self._look(route)
            try:
                answer = call.reader.read(await self._reply(self.server.attempt(call.request, route, attempts)))
            except StatelineError as error:
                pause_s = route.pause_s(error)
                if pause_s is None:
                    raise
            else:
                route.answered(answer)
                return answer
            await asyncio.sleep(pause_s)

    @asynccontextmanager
    async def stream(
        self, request: Request, affinity: Affinity | None = None
    ) -> AsyncIterator[Incoming[AsyncIterator[bytes]]]:
        """An answer as it arrives; the connection is closed with the block. One attempt of each server."""
        route = Route(self.routing, request, Attempts(self.server.retries), affinity)
        async with AsyncExitStack() as stack:
            while True:
                await self._look(route)
                try:
                    incoming = await stack.enter_async_context(self._opened(self.server.stream(request, route)))
                    break
                except StatelineError as error:
                    if not route.goes_elsewhere(error):
                        raise
            route.answered()
            yield incoming

    async def close(self) -> None:
        """Close the connections."""
        if self._owned:
            await self._http.aclose()

    @asynccontextmanager
    async def _opened(self, arguments: dict[str, Any]) -> AsyncIterator[Incoming[AsyncIterator[bytes]]]:
        with _unreachable(arguments):
            async with self._http.stream(**arguments) as response:
                if not response.is_success:
                    raise failure_of(_reply(response, await response.aread()))
                yield Incoming(response.headers, response.aiter_bytes())

    async def _look(self, route: Route) -> None:
        while (look := route.look()) is not None:
            found: Nodes | None = None
            try:
                found = NODES.read(await self._reply(self.server.look(look)))
            except StatelineError:
                pass  # it is not asked for a while
            finally:
                self.routing.looked(look, found)

    async def _reply(self, arguments: dict[str, Any]) -> Reply:
        with _unreachable(arguments):
            response = await self._http.request(**arguments)
            return _reply(response, response.content)


def _reply(response: httpx.Response, content: bytes) -> Reply:
    headers: Mapping[str, str] = response.headers  # httpx finds them in any case
    return Reply(response.status_code, headers, content)


@contextmanager
def _unreachable(arguments: dict[str, Any]) -> Iterator[None]:
    """What httpx says of a connection, as an error of ours."""
    try:
        yield
    except httpx.RequestError as error:
        why = str(error).rstrip(".") or type(error).__name__
        whom = httpx.URL(arguments["url"]).copy_with(raw_path=b"").__str__().rstrip("/")
        sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
        raise UnreachableError(f"{whom} does not answer: {why}. Is the server running there?", sent=sent) from error
