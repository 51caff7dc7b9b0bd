"""Refuse requests of other sites' web pages to a server without tokens.

Such a server answers everyone who reaches it. Any page in a browser on this machine does, so listening on 127.0.0.1
alone is no protection. A browser sends two headers that a page cannot change:

- `Host` is the host name of the requested URL. An attacker's own name may lead to 127.0.0.1 (DNS rebinding). Then the
  page could read everything. So the server answers only under names of this machine. With `server.insecure=true`,
  something else guards the server, and any name is answered.
- `Sec-Fetch-Site`, or `Origin` without it, is the site of the page. A page can send a POST to any site without reading
  the answer. From a GET it learns the time, and what a frame shows. So requests of other sites, and of other ports of
  this host, are refused. Two are allowed: a link that opens a page in its own window, and origins of
  `server.cors.origins` (`cors`). Go's `http.CrossOriginProtection` checks the headers in the same order.

Other programs send neither header, or any value; these checks are not about them. With tokens, the checks are not
needed, because a page of another site has no token. `/mcp` checks the second one nevertheless: its protocol demands it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from stateline.config.settings import Config
from stateline.server.contract.console_paths import is_console_page
from stateline.server.contract.problems import problem_response
from stateline.server.guard.cors import cors_origins
from stateline_store import ForbiddenError

_DOCS = frozenset({"/docs", "/docs/"})
_SAME_SITE = frozenset({b"same-origin", b"none"})  # none: from the user, such as a bookmark
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::\d*)?")
# Remembered accepted values of `Host`. Each port of a name is another value.
_MOST_REMEMBERED = 100


class Sites:
    """Checks requests of one server process without tokens."""

    def __init__(self, config: Config) -> None:
        self._any_name = config.server_insecure
        self._names = frozenset({"localhost", config.server_host.lower()})
        self._known: set[bytes] = set()
        self._let_in = cors_origins(config)

    def check(self, scope: Scope) -> None:
        """Raise `ForbiddenError` if the request's headers are those of a page of another site."""
        if not self._any_name and scope["client"] is not None:  # None: from another process of this server
            self._check_host(scope)
        self.check_origin(scope)

    def check_origin(self, scope: Scope) -> None:
        """Raise `ForbiddenError` if a page of another site has sent the request."""
        _check_origin(scope, self._let_in)

    def _check_host(self, scope: Scope) -> None:
        if (name := self._foreign_name(scope)) is not None:
            raise ForbiddenError(
                f"This server is not known as {name.decode('latin-1')[:100]!r}: ask 127.0.0.1 or localhost. Behind a "
                "proxy that asks by another name set server.insecure=true, or tokens."
            )

    def _foreign_name(self, scope: Scope) -> bytes | None:
        for name, value in scope["headers"]:
            if name == b"host":
                known: bytes = value
                return None if known in self._known or self._is_ours(known) else known
        return None

    def _is_ours(self, value: bytes) -> bool:
        found = _HOST.fullmatch(value.decode("latin-1").lower())
        name = "" if found is None else found[1].rstrip(".")
        if name.strip("[]") not in self._names and not _is_loopback(name):
            return False
        if len(self._known) < _MOST_REMEMBERED:
            self._known.add(value)
        return True


class SitesMiddleware:
    def __init__(self, app: ASGIApp, sites: Sites) -> None:
        self._app, self._sites = app, sites

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._sites.check(scope)
            except ForbiddenError as error:
                await problem_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return name.endswith(".localhost")  # RFC 6761: never anything else


_LOOKED_AT = frozenset({b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest", b"origin", b"host"})


def _check_origin(scope: Scope, let_in: frozenset[bytes]) -> None:
    said = {name: value for name, value in scope["headers"] if name in _LOOKED_AT}
    site, origin = said.get(b"sec-fetch-site"), said.get(b"origin")
    if site is not None:
        is_ours = site in _SAME_SITE
    else:
        is_ours = origin is None or origin.partition(b"://")[2].lower() == said.get(b"host", b"").lower()
    if not (is_ours or origin in let_in or _leads_to_a_page(scope, said)):
        raise ForbiddenError(
            "A page of another site has sent this: such requests are refused, unless server.cors.origins names its "
            "origin."
        )


def _leads_to_a_page(scope: Scope, said: Mapping[bytes, bytes]) -> bool:
    """Whether the answer is shown in its own window, where no other page can read it."""
    is_link = said.get(b"sec-fetch-mode") == b"navigate" and said.get(b"sec-fetch-dest") == b"document"
    path = scope["raw_path"].decode("latin-1")
    return is_link and scope["method"] == "GET" and (path in _DOCS or is_console_page(path))
