"""Which pages of other origins may ask this server and read what it answers: those of `server.cors.origins`.

A browser asks first (a preflight) whether a page may send what is no plain GET, and never sends a token with that: so
it is answered before any token is asked for. Tokens come in a header, so no credentials of the browser's own are let
in. Starlette's middleware sees requests of the origins that are named; to it and to others nothing is said of the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stateline.config.settings import Config

_METHODS = ("GET", "HEAD", "POST", "PATCH", "DELETE")
_HEADERS = (
    *("Authorization", "Content-Type", "If-None-Match", "Last-Event-ID", "X-Request-Id"),
    *("Mcp-Method", "Mcp-Name", "Mcp-Protocol-Version"),  # of agents in a browser
)
_SHOWN = (
    "ETag",
    "Location",
    "Retry-After",
    "Stateline-Failures",
    "Stateline-Isolation-Level",
    "Stateline-Position",
    "Stateline-Stopped",
    "WWW-Authenticate",
    "X-Request-Id",
)


class CorsMiddleware:
    """In front of every guard. `admit` counts preflights, which no guard sees, and answers one too many."""

    def __init__(self, app: ASGIApp, origins: frozenset[bytes], admit: Callable[[Scope], ASGIApp | None]) -> None:
        self._app, self._origins, self._admit = app, origins, admit
        self._allowing = CORSMiddleware(
            app,
            allow_origins=[origin.decode() for origin in origins],
            allow_methods=_METHODS,
            allow_headers=_HEADERS,
            expose_headers=_SHOWN,
            allow_private_network=True,  # a page of the Internet asks a machine beside its user: the operator said so
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or origin_of(scope) not in self._origins:
            await self._app(scope, receive, send)
        elif _asks_first(scope) and (refusal := self._admit(scope)) is not None:
            await refusal(scope, receive, send)
        else:
            await self._allowing(scope, receive, partial(_send_once, send))


def _asks_first(scope: Scope) -> bool:
    return scope["method"] == "OPTIONS" and any(n == b"access-control-request-method" for n, _ in scope["headers"])


async def _send_once(send: Send, message: Message) -> None:
    """Send without Starlette's `Vary: Origin`, because every answer has one (`answer_headers`)."""
    if message["type"] == "http.response.start":
        headers = MutableHeaders(scope=message)
        given = [name.strip() for line in headers.getlist("vary") for name in line.split(",")]
        del headers["vary"]
        if others := [name for name in given if name != "Origin"]:
            headers["vary"] = ", ".join(others)
    await send(message)


def cors_origins(config: Config) -> frozenset[bytes]:
    """Return the allowed origins, as browsers write them."""
    named = config.server_cors_origins or ""
    return frozenset(each.strip().lower().encode() for each in named.split(",")) - {b""}


def origin_of(scope: Scope) -> bytes | None:
    """Return the origin of the page that sent this; None without one, or with more than one."""
    found = [value for name, value in scope["headers"] if name == b"origin"]
    return found[0] if len(found) == 1 else None
