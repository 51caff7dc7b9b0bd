"""The console: one page of static files at each of its addresses. It asks only this server's own API.

The page reads everything from the API with the user's token, so the page itself needs none. The server fills in two
things. One is the relative URL of the server's root, by which the page finds its files and the API, also behind a proxy
with its own path. The other is the version of the files: browsers may keep the files below it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from stateline.query.kinds import KINDS
from stateline.server.contract.console_paths import FILES, PAGES
from stateline.server.contract.pages import PAGE_HEADERS
from stateline_store.layout import STORE_KINDS

_PAGE = "index.html"
_BASE, _LINK = b'<base href="./">', b'"console/'
_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "md": "text/markdown; charset=utf-8",  # licences
    "txt": "text/plain; charset=utf-8",
}
# Browsers check the page each time. It links to the files of its own version. During an upgrade a server may have other
# files. It then sends its own, uncached. An open tab reports this, and reloads at a link.
_CHECKED, _KEPT = "no-cache", "public, max-age=31536000, immutable"


class ConsolePage:
    """The endpoints of the console's files, which are read once. For one event loop."""

    def __init__(self, folder: Traversable | None = None) -> None:
        """`folder` is the package's own by default. `version` changes whenever a file does."""
        found = dict(_below(folder or files("stateline.server.console") / "files")) | {"base/kinds.js": _kinds()}
        everything = b"".join(b"%b\0%d\0%b" % (p.encode(), len(c), c) for p, c in sorted(found.items()))
        self.version = f"@{hashlib.sha256(everything).hexdigest()[:16]}"
        self._page = found[_PAGE].replace(_LINK, b'"console/%b/' % self.version.encode())
        self._files = {path: _StaticFile(path, content) for path, content in found.items()}

    def routes(self) -> list[BaseRoute]:
        """Return routes for the page at all its addresses, and for its files below ``/console/``."""
        return [*(Route(path, self.console) for path in PAGES), Route(FILES, self.console_file)]

    async def console(self, request: Request) -> Response:
        return _StaticFile(_PAGE, self._page_at(request.scope)).answer(request)

    def lost(self, request: Request) -> Response | None:
        """Return the page with status 404 for a browser at an address where nothing is; None for a program."""
        if request.method != "GET" or "text/html" not in request.headers.get("accept", ""):
            return None
        return Response(self._page_at(request.scope), 404, {**PAGE_HEADERS, "Content-Type": _MEDIA_TYPES["html"]})

    async def console_file(self, request: Request) -> Response:
        """GET /console/{path}: a script, a style sheet or the icon, with or without version. Raises 404 for others."""
        path: str = request.path_params["path"]
        version, _, below = path.partition("/")
        found = self._files.get(below if version.startswith("@") else path)
        if found is None:
            raise HTTPException(404)
        return found.answer(request, _KEPT if version == self.version else _CHECKED)

    def _page_at(self, scope: Scope) -> bytes:
        return self._page.replace(_BASE, b'<base href="%b">' % root_from(scope).encode())


def root_from(scope: Scope) -> str:
    """Return the server's root as a relative URL from this request's address."""
    raw_path: bytes = scope["raw_path"]
    # A slash of a key may be written as it is, or as %2F: browsers count the former alone.
    return "../" * (raw_path.count(b"/") - scope.get("root_path", "").count("/") - 1) or "./"


class _StaticFile:
    def __init__(self, path: str, content: bytes) -> None:
        self._content = content
        self._etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        self._headers = {**PAGE_HEADERS, "ETag": self._etag, "Content-Type": _MEDIA_TYPES[path.rpartition(".")[2]]}

    def answer(self, request: Request, kept: str = _CHECKED) -> Response:
        """Return the file, or 304 if the client has it. `kept` is the Cache-Control."""
        headers = {**self._headers, "Cache-Control": kept}
        known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
        if self._etag in known or "*" in known:
            return Response(status_code=304, headers=headers)
        return Response(self._content, headers=headers)


def _kinds() -> bytes:
    """Return a JavaScript module with the queries of the console: name → label, word, parameters, path and kinds of
    stores."""
    queries = {
        form.name: {
            "label": form.label,
            "type": kind.word,
            "fields": kind.shown_parameters(form),
            "path": next((path[1:] for path, _, of_key in kind.paths() if of_key is form.of_key), None),
            "kinds": [each for each in STORE_KINDS if form in kind.stores(each)],
        }
        for kind in KINDS
        for form in kind.forms
        if form.name
    }
    return b"export const QUERIES = %b;\n" % orjson.dumps(queries)


def _below(folder: Traversable, path: str = "") -> Iterator[tuple[str, bytes]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _below(each, f"{path}{each.name}/")
        else:
            yield f"{path}{each.name}", each.read_bytes()
