"""uvicorn's HTTP protocol, with the service's own answer to what it cannot parse.

Such a request never reaches the application: bytes that are not HTTP, a method that HTTP does not know, or a URL
longer than the parser's lengths of 16 bits (`http_parser_url` of llhttp).
"""

from __future__ import annotations

import logging

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from stateline.server.arguments import MAX_URL_BYTES, url_too_long
from stateline.server.problems import problem_response
from stateline_store import InvalidArgumentError

# Of a request's `extensions` the one whose `cut` cuts the connection.
ABORT = "stateline.abort"

_log = logging.getLogger(__name__)


class ProblemProtocol(HttpToolsProtocol):
    """Answers `application/problem+json` where uvicorn's answers plain text."""

    url = b""

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
