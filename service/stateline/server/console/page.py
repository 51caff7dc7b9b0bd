"""The console at `/`: one page of static files, which asks this server's own API and nothing else.

The files are in the folder `files`. Nothing is filled in here: what the page shows it reads from the API with the
token of who looks, so the page itself needs none.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

_PAGE = "index.html"
_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS = {
    # No script, style or connection but to this server. A policy beside that of every answer (`answer_headers`).
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; object-src 'none'",
    "Referrer-Policy": "no-referrer",
    # Kept by browsers, and asked about each time: after an upgrade no page runs with scripts of another version.
    "Cache-Control": "no-cache",
}


class ConsolePage:
    """The endpoints of the console's files, which are read once. For one event loop, as all routes."""

    def __init__(self) -> None:
        folder = files("stateline.server.console") / "files"
        self._files = {file.name: _StaticFile(file.name, file.read_bytes()) for file in folder.iterdir()}

    def routes(self) -> list[BaseRoute]:
        """The page at ``/``, its files below ``/console/``."""
        return [Route("/", self.console), Route("/console/{file}", self.console_file)]

    async def console(self, request: Request) -> Response:
        """GET /: the page."""
        return self._files[_PAGE].answer(request)

    async def console_file(self, request: Request) -> Response:
        """GET /console/{file}: a script, a style sheet, the icon. Raises 404 for a file that is none of them."""
        found = self._files.get(request.path_params["file"])
        if found is None:
            raise HTTPException(404)
        return found.answer(request)


class _StaticFile:
    """The bytes of a file, and what is said with them."""

    def __init__(self, name: str, content: bytes) -> None:
        self._content = content
        self._etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        media_type = _MEDIA_TYPES[name.rpartition(".")[2]]
        self._headers = {**_HEADERS, "ETag": self._etag, "Content-Type": media_type}

    def answer(self, request: Request) -> Response:
        """The file, or 304 when the client has these very bytes."""
        known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
        if self._etag in known or "*" in known:
            return Response(status_code=304, headers=self._headers)
        return Response(self._content, headers=self._headers)
