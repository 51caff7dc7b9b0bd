"""Which pages of other origins may ask this server and read what it answers: those of `server.cors.origins`.

A browser asks first (a preflight) whether a page may send what is no plain GET, and never sends a token with that: so
it is answered before any token is asked for. Tokens come in a header, so no credentials of the browser's own are let
in. Starlette's middleware sees requests of the origins that are named; to it and to others nothing is said of the rest.
"""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from stateline.config import Config

_METHODS = ("GET", "HEAD", "POST", "PATCH", "DELETE")
_HEADERS = ("Authorization", "Content-Type", "If-None-Match", "Last-Event-ID")
_SHOWN = (
    "ETag",
    "Location",
    "Retry-After",
    "Stateline-Failures",
    "Stateline-Isolation-Level",
    "Stateline-Position",
    "WWW-Authenticate",
)


class CorsMiddleware:
    """In front of every guard."""

    def __init__(self, app: ASGIApp, origins: frozenset[bytes]) -> None:
        self._app, self._origins = app, origins
        self._allowing = CORSMiddleware(
            app,
            allow_origins=[origin.decode() for origin in origins],
            allow_methods=_METHODS,
            allow_headers=_HEADERS,
            expose_headers=_SHOWN,
            allow_private_network=True,  # a page of the Internet asks a machine beside its user: the operator said so
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        is_named = scope["type"] == "http" and origin_of(scope) in self._origins
        await (self._allowing if is_named else self._app)(scope, receive, send)


def cors_origins(config: Config) -> frozenset[bytes]:
    """The origins that are let in, as browsers write them."""
    named = config.server_cors_origins or ""
    return frozenset(each.strip().lower().encode() for each in named.split(",")) - {b""}


def origin_of(scope: Scope) -> bytes | None:
    """The origin of the page that sent this; None where none is told, or more than one."""
    found = [value for name, value in scope["headers"] if name == b"origin"]
    return found[0] if len(found) == 1 else None
