"""Forward requests between the server processes of one application on this machine.

Only the process that has pinned a state can answer its next page. Each process listens at its own unix socket,
``servers/<process, hex>.sock`` in the application's directory. Only its user can connect. It answers there as at its
port, and checks tokens.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from stateline.deployment.unix_sockets import address, is_served, listening
from stateline.server.guard.passing_on import token_header
from stateline.server.guard.proofs import ProvenConnection
from stateline.server.wire.loading import loaded
from stateline_store import CursorExpiredError

# A request that has been handed on once is not handed on again: two processes could disagree for ever.
_HANDED_ON = "stateline-handed-on"
_TIMEOUT_S = 60.0
_KEPT = ("content-type", "retry-after", "www-authenticate")
_log = logging.getLogger(__name__)


class Siblings:
    """The siblings of one process. For the event loop's thread, except for `listener`."""

    def __init__(self, application: Path, process: bytes, of_node: ProvenConnection, *, tls: bool) -> None:
        self._folder = application / "servers"
        self._own = self._folder / f"{process.hex()}.sock"
        self._of_node = of_node
        self._scheme = "https" if tls else "http"

    def listener(self) -> socket.socket | None:
        """Return the socket for requests of siblings. None if it cannot be made. Then only a cursor's own process can
        continue it."""
        listener = None
        try:
            self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            for path in self._folder.glob("*.sock"):
                if _is_left_over(path):
                    path.unlink(missing_ok=True)
            draft = self._own.with_suffix(".new")
            listener = listening(draft)
            draft.rename(self._own)  # not before it listens: others would take it for left over
        except OSError as error:
            _log.info("Cursors of this process are answered by it alone: %s", error)
            if listener is not None:
                listener.close()
            return None
        return listener

    @staticmethod
    def was_handed_on(request: Request) -> bool:
        """Whether another process of this node forwarded this request, or the caller claims so. It is not forwarded
        again."""
        return _HANDED_ON in request.headers

    async def hand_on(self, request: Request, process: bytes, url: str) -> Response:
        """Return that process's answer to a GET or HEAD of `url`. Raises `CursorExpiredError` if it is gone."""
        path = self._folder / f"{process.hex()}.sock"
        gone = CursorExpiredError("The server process that had this cursor has ended. Start over without it.")
        if self.was_handed_on(request) or not path.exists():
            raise gone
        method = "HEAD" if request.method == "HEAD" else "GET"
        headers = {_HANDED_ON: "1", "Accept-Encoding": "identity"}
        await loaded("httpx")
        import httpx  # where there is one process, nobody asks this way, and it takes a tenth of a server's start

        try:
            with address(path) as near:
                # To a socket that only this user can make: there is no certificate to look at.
                transport = httpx.AsyncHTTPTransport(uds=near, verify=False)
                async with httpx.AsyncClient(transport=transport, timeout=_TIMEOUT_S) as client:
                    asked = client.build_request(method, f"{self._scheme}://sibling{url}", headers=headers)
                    asked.headers.update(token_header(self._of_node, asked.url.raw_path))
                    answer = await client.send(asked)
        except httpx.HTTPError as error:
            raise gone from error
        return passed_back(answer.status_code, answer.headers, answer.content)

    def close(self) -> None:
        """Remove the socket's file."""
        with contextlib.suppress(OSError):
            self._own.unlink()


def passed_back(status: int, headers: Mapping[str, str], body: bytes) -> Response:
    """Return another process's answer. Headers of its connection are left out."""
    return Response(body, status, headers={name: headers[name] for name in _KEPT if name in headers})


def _is_left_over(path: Path) -> bool:
    """Whether its process ended without removing it."""
    try:
        return not is_served(path)
    except OSError:
        return False
