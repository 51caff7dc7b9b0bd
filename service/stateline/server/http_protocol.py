"""uvicorn's HTTP protocol, with the service's own answer to what it cannot parse, and to what it can answer at once.

What it cannot parse never reaches the application: bytes that are not HTTP, a method that HTTP does not know, or a URL
longer than the parser's lengths of 16 bits (`http_parser_url` of llhttp).

What can be answered at once (`point_reads`) does not either. A task per request, and an answer in two writes, of which
the first wakes the client for half of it, cost more than to read a key and write it as JSON.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from stateline.server.arguments import MAX_URL_BYTES, url_too_long
from stateline.server.problems import problem_response
from stateline_store import InvalidArgumentError

# Of a request's `extensions` the one whose `cut` cuts the connection.
ABORT = "stateline.abort"

# Answers at once to what arrived together: a client that sends thousands of requests ahead keeps nobody waiting.
_AT_ONCE = 16

_log = logging.getLogger(__name__)


class _Answered:
    """What uvicorn's protocol sees of a request that was answered at once."""

    response_complete = True
    keep_alive = True

    def __init__(self) -> None:
        self.message_event = asyncio.Event()  # of nobody who waits


_ANSWERED = cast(RequestResponseCycle, _Answered())


class ProblemProtocol(HttpToolsProtocol):
    """Answers `application/problem+json` where uvicorn's answers plain text."""

    url = b""

    def __init__(self, config: Any, *args: Any, **others: Any) -> None:
        """As uvicorn makes it. The application's ``state.at_once`` gives the body of an answer, or None."""
        super().__init__(config, *args, **others)
        self._at_once: Callable[[Scope], bytes | None] | None = config.app.state.at_once
        self._left = 0

    def data_received(self, data: bytes) -> None:
        """Some requests at once, the others in turn with those of other clients."""
        self._left = _AT_ONCE
        try:
            super().data_received(data)
        finally:
            self._left = 0  # what waits for an earlier answer is begun by that one, in its task

    def on_message_begin(self) -> None:
        """Let what answers cut the connection: uvicorn's own way waits until the client has read everything."""
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"cut": self.transport.abort}}

    def on_url(self, url: bytes) -> None:
        """A part of the URL; of one that is too long no more is kept than shows that it is."""
        if len(self.url) <= MAX_URL_BYTES:
            self.url += url

    def on_headers_complete(self) -> None:
        """Refuse a URL that is too long here, where the client has sent all of it; else answer, or have it answered."""
        if len(self.url) > MAX_URL_BYTES:
            raise url_too_long()  # the parser gives up with an error of its own, and `send_400_response` follows
        if not (self._at_once is not None and self._is_next() and self._answer(self._at_once)):
            super().on_headers_complete()

    def _is_next(self) -> bool:
        """Whether this can be answered now, and the connection goes on as it is."""
        parser = self.parser
        return (
            self._left > 0
            and (self.cycle is None or self.cycle.response_complete)
            and not self.flow.write_paused
            and parser.get_method() == b"GET"
            and parser.should_keep_alive()
            and parser.get_http_version() == "1.1"
            and not parser.should_upgrade()
            and b"#" not in self.url  # what is behind it is no part of the path
            and not self.transport.is_closing()
        )

    def _answer(self, at_once: Callable[[Scope], bytes | None]) -> bool:
        path, _, query = self.url.partition(b"?")
        scope = {
            "method": "GET",
            "root_path": self.root_path,
            "raw_path": path,
            "query_string": query,
            "client": self.client,
            "headers": self.headers,
        }
        try:
            body = at_once(scope)
        except Exception:  # noqa: BLE001 - a defect: the application meets it too, and says so
            _log.exception("A request could not be answered at once")
            return False
        if body is None:
            return False
        self._left -= 1
        parts = [STATUS_LINE[200]]
        for name, value in self.server_state.default_headers:
            parts += (name, b": ", value, b"\r\n")
        parts += (b"content-length: %d\r\ncontent-type: application/json\r\n\r\n" % len(body), body)
        self.cycle = _ANSWERED
        self.transport.write(b"".join(parts))
        self.on_response_complete()
        return True

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Not behind an answer that has said that it is the last."""
        if not self.transport.is_closing():
            super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        """Answer and hang up: there is no telling where the next request begins."""
        if len(self.url) > MAX_URL_BYTES:
            error = url_too_long()
        else:
            error = InvalidArgumentError(f"{msg} Nothing but GET and POST of HTTP/1.1 is understood here.")
        response = problem_response(error)
        _log.info("A request was refused: %s", error)
        head = [STATUS_LINE[response.status_code].rstrip()]
        head += [name + b": " + value for name, value in response.raw_headers]
        self.transport.write(b"\r\n".join([*head, b"connection: close", b"", bytes(response.body)]))
        self.transport.close()
