"""uvicorn's HTTP protocol, with the service's own answer to what it cannot parse, and to what it can answer at once.

What it cannot parse never reaches the application: bytes that are not HTTP, a method that HTTP does not know, or a URL
longer than the parser's lengths of 16 bits (`http_parser_url` of llhttp).

What can be answered at once (`point_reads`) does not either. A task per request, and an answer in two writes, of which
the first wakes the client for half of it, cost more than to read a key and write it as JSON.
"""

from __future__ import annotations

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
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Let what answers cut the connection: uvicorn's own way waits until the client has read everything."""
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"cut": self.transport.abort}}

    def on_url(self, url: bytes) -> None:
        """A part of the URL; of one that is too long no more is kept than shows that it is."""
        if len(self.url) <= MAX_URL_BYTES:
            self.url += url

    def on_headers_complete(self) -> None:
        """Refuse a URL that is too long here, where the client has sent all of it."""
        if len(self.url) > MAX_URL_BYTES:
            raise url_too_long()  # the parser gives up with an error of its own, and `send_400_response` follows
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Answer, or let the application."""
        body, scope = None, cast(Scope, cycle.scope)
        # One that has waited for those before it (then it is not the newest) is left to a task: the answer starts the
        # next one, in a call within this call.
        if self._at_once is not None and self._left and cycle is self.cycle and not self.flow.write_paused:
            try:
                body = self._at_once(scope)
            except Exception:  # noqa: BLE001 - a defect: the application meets it too, and says so
                _log.exception("A request could not be answered at once")
        if body is None:
            super()._start_asgi_task(cycle, app)
        else:
            self._left -= 1
            self._answer(cycle, body)

    def _answer(self, cycle: RequestResponseCycle, body: bytes) -> None:
        parts = [STATUS_LINE[200]]
        for name, value in self.server_state.default_headers:
            parts += (name, b": ", value, b"\r\n")
        parts += (b"content-length: %d\r\ncontent-type: application/json\r\n" % len(body),)
        parts += (b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n", body)
        cycle.response_started = cycle.response_complete = True
        self.transport.write(b"".join(parts))
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()

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
