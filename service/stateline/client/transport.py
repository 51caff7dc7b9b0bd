"""Arguments and responses of httpx, for both clients. `async_transport` sends. `routing` chooses the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import httpx

from stateline.client import requests
from stateline.client.answers import Reply
from stateline.client.failures import UnreachableError
from stateline.client.requests import Request
from stateline.client.retries import Attempts, Retries
from stateline.client.routing import LOOK_TIMEOUT_S, OWNER_TIMEOUT_S, MapRequest, Route, Routing
from stateline_store import InvalidArgumentError

C = TypeVar("C")
CONNECT_TIMEOUT_S = 5.0
_NODE_CONNECT_TIMEOUT_S = 1.0  # for nodes from the map, because other servers can be asked


@dataclass(frozen=True, slots=True)
class Server:
    """The server's URLs, and the settings of all requests to it. Raises `InvalidArgumentError` for a URL or token that
    cannot be one."""

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
        """All URLs, also if one was given as text."""
        return (self.base_url,) if isinstance(self.base_url, str) else tuple(self.base_url)

    def routing(self) -> Routing:
        """Return a new routing over these URLs."""
        return Routing(self.urls, ask_owners=self.ask_owners)

    def look(self, look: MapRequest) -> dict[str, Any]:
        """Return httpx's arguments for a look at the map."""
        return self._arguments(look.url, requests.NODES, LOOK_TIMEOUT_S, _NODE_CONNECT_TIMEOUT_S)

    def attempt(self, request: Request, route: Route, attempts: Attempts) -> dict[str, Any]:
        """Return httpx's arguments for a whole answer."""
        timeout_s = attempts.timeout_s(self._usual_s(request))
        if route.is_direct and request.is_read:
            timeout_s = min(timeout_s, OWNER_TIMEOUT_S + request.wait_ms / 1000)
        return self._arguments(route.url, request, timeout_s, self._connect_s(route))

    def stream(self, request: Request, route: Route) -> dict[str, Any]:
        """Return httpx's arguments for a stream."""
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
        """Return the seconds that the server may be silent."""
        return self.timeout_s + request.wait_ms / 1000

    @staticmethod
    def _connect_s(route: Route) -> float:
        return _NODE_CONNECT_TIMEOUT_S if route.is_direct else CONNECT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Incoming(Generic[C]):
    """An answer that is still arriving."""

    headers: Mapping[str, str]
    chunks: C


def reply_of(response: httpx.Response, content: bytes) -> Reply:
    """Return a response as a `Reply`."""
    headers: Mapping[str, str] = response.headers  # upper and lower case are alike
    return Reply(response.status_code, headers, content)


def unreachable(arguments: dict[str, Any], error: httpx.RequestError) -> UnreachableError:
    """Return the error of a request that got no answer."""
    why = str(error).rstrip(".") or type(error).__name__
    whom = httpx.URL(arguments["url"]).copy_with(raw_path=b"").__str__().rstrip("/")
    sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    return UnreachableError(f"{whom} does not answer: {why}. Is the server running there?", sent=sent)
