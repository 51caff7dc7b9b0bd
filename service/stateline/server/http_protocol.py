"""uvicorn's HTTP protocol, with the service's own answer to what it cannot parse, and to what it can answer at once.

What it cannot parse never reaches the application: bytes that are not HTTP, a method that HTTP does not know, or a URL
longer than the parser's lengths of 16 bits (`http_parser_url` of llhttp).

What can be answered at once (`point_reads`) does not either. A task per request, and an answer in two writes, of which
the first wakes the client for half of it, cost more than to read a key and write it as JSON.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Callable
from typing import Any, cast

from httptools import HttpParserCallbackError
from starlette.responses import Response
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from stateline.server.arguments import MAX_URL_BYTES, url_too_long
from stateline.server.problems import bad_request, problem_response
from stateline_store import InvalidArgumentError

# Of a request's `extensions` the one whose `cut` cuts the connection.
ABORT = "stateline.abort"

# Answers at once to what arrived together: a client that sends thousands of requests ahead keeps nobody waiting.
_AT_ONCE = 16

# A first line that means the same to every parser.
_PLAIN_LINE = re.compile(rb"GET (/v1/stores/[\w.~:@-]+/keys/[\w.~:@-]+)\??((?<=\?)[\w.~:@&=,%+-]*|) HTTP/1\.1\r\n")
_LONGEST_REPEATED = 4096  # bytes of headers
_OF_BODIES = frozenset({b"content-length", b"transfer-encoding"})

_log = logging.getLogger(__name__)


class _HostError(Exception):
    """A request without `Host`, or with more than one."""


class _Answered:
    """What uvicorn's protocol sees of a request that was answered at once."""

    response_complete = True
    keep_alive = True

    def __init__(self) -> None:
        self.message_event = asyncio.Event()  # of nobody who waits


_ANSWERED = cast(RequestResponseCycle, _Answered())


class ProblemProtocol(HttpToolsProtocol):
    """Answers `application/problem+json` where uvicorn's answers plain text.

    Most clients send the same headers with every request. One that arrives whole and alone, and has the headers of one
    before it that was answered at once, byte for byte, is answered without the parser, which stands between two
    messages meanwhile.
    """

    url = b""

    def __init__(self, config: Any, *args: Any, **others: Any) -> None:
        """As uvicorn makes it. The application's ``state.at_once`` gives the body of an answer, or None."""
        super().__init__(config, *args, **others)
        self._at_once: Callable[[Scope], bytes | None] | None = config.app.state.at_once
        self._left = 0
        self._hosts = 0  # headers of that name
        self._refused = False
        self._in_message = False  # the parser
        self._arrived = b""  # what the parser is given now, if that begins with a message
        # Headers as they are sent, and as they are parsed; the first are empty unless they may be repeated.
        self._sent_again, self._parsed = b"", self.headers
        self._repeated_s = 0.0  # when that happened last, on the loop's clock
        self._default_headers: object = None
        self._head = b""

    def data_received(self, data: bytes) -> None:
        """Some requests at once, the others in turn with those of other clients."""
        if self._sent_again and self._answer_again(data):
            return
        if self._refused:
            return
        self._left, self._arrived = _AT_ONCE, b"" if self._in_message else data
        try:
            super().data_received(data)
        finally:
            self._left, self._arrived = 0, b""  # what waits for an earlier answer is begun by that one, in its task

    def on_message_begin(self) -> None:
        """Let what answers cut the connection: uvicorn's own way waits until the client has read everything."""
        super().on_message_begin()
        self._hosts = 0
        self._in_message = True
        self._sent_again = b""
        self.scope["extensions"] = {ABORT: {"cut": self.transport.abort}}

    def on_url(self, url: bytes) -> None:
        """A part of the URL; of one that is too long no more is kept than shows that it is."""
        if len(self.url) <= MAX_URL_BYTES:
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """All that uvicorn's does, which is not called: that would cost twice as much, for each header."""
        name = name.lower()
        if name == b"host":
            self._hosts += 1
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Refuse a URL that is too long here, where the client has sent all of it; else answer, or have it answered."""
        if len(self.url) > MAX_URL_BYTES:
            raise url_too_long()  # the parser gives up with an error of its own, and `send_400_response` follows
        if self._hosts != 1 and (self._hosts or self.parser.get_http_version() == "1.1"):
            raise _HostError
        path, _, query = self.url.partition(b"?")
        if self._is_next() and self._answer(path, query, self.headers):
            self.on_response_complete()
        else:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Remember the headers of what was answered at once, if the message is all that arrived, and has no body: then
        there are as many lines behind the first one as there are headers, and the empty one."""
        super().on_message_complete()
        self._in_message = False
        if self.cycle is not _ANSWERED:
            return
        if self.timeout_keep_alive_task is None and not self.transport.is_closing():  # its body came later
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        _, _, sent = self._arrived.partition(b"\r\n")
        alone = sent.endswith(b"\r\n\r\n") and sent.count(b"\r\n") == len(self.headers) + 1
        if alone and len(sent) <= _LONGEST_REPEATED and _OF_BODIES.isdisjoint(name for name, _ in self.headers):
            self._sent_again, self._parsed = sent, self.headers

    def _answer_again(self, data: bytes) -> bool:
        """Whether this is a request with the headers that were sent before, and was answered."""
        line = _PLAIN_LINE.match(data)
        if line is None or data[line.end() :] != self._sent_again or not self._can_write():
            return False
        if not self._answer(line[1], line[2], self._parsed):
            return False
        self.server_state.total_requests += 1
        self._repeated_s = self.loop.time()
        return True

    def timeout_keep_alive_handler(self) -> None:
        """As uvicorn's, which is told of a pause by a timer; what is answered without the parser leaves that alone."""
        left_s = self._repeated_s + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left_s, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def _is_next(self) -> bool:
        """Whether this can be answered now, and the connection goes on as it is."""
        parser = self.parser
        return (
            self._left > 0
            and (self.cycle is None or self.cycle.response_complete)
            and self._can_write()
            and parser.get_method() == b"GET"
            and parser.should_keep_alive()
            and parser.get_http_version() == "1.1"
            and not parser.should_upgrade()
            and b"#" not in self.url  # what is behind it is no part of the path
        )

    def _can_write(self) -> bool:
        return not self.flow.write_paused and not self.transport.is_closing()

    def _answer(self, path: bytes, query: bytes, headers: list[tuple[bytes, bytes]]) -> bool:
        """Whether it could be answered at once."""
        if self._at_once is None:
            return False
        scope = {
            "method": "GET",
            "root_path": self.root_path,
            "raw_path": path,
            "query_string": query,
            "client": self.client,
            "headers": headers,
        }
        try:
            body = self._at_once(scope)
        except Exception:  # noqa: BLE001 - a defect: the application meets it too, and says so
            _log.exception("A request could not be answered at once")
            return False
        if body is None:
            return False
        self._left -= 1
        self.cycle = _ANSWERED
        self.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (self._response_head(), len(body), body))
        return True

    def _response_head(self) -> bytes:
        """The status and all headers but the length; uvicorn makes those anew once a second that all answers have."""
        if self._default_headers is not self.server_state.default_headers:
            self._default_headers = self.server_state.default_headers
            headers = [*self.server_state.default_headers, (b"content-type", b"application/json")]
            self._head = STATUS_LINE[200] + b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        return self._head

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Not behind an answer that has said that it is the last."""
        if not self.transport.is_closing():
            super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        """Answer and hang up: there is no telling where the next request begins. What was asked before is answered
        first, and then that is the end: two answers must not change places."""
        response = self._refusal(msg)
        _log.info("A request was refused: %s", bytes(response.body).decode())
        self._refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
            return
        head = [STATUS_LINE[response.status_code].rstrip()]
        head += [name + b": " + value for name, value in response.raw_headers]
        self.transport.write(b"\r\n".join([*head, b"connection: close", b"", bytes(response.body)]))
        self.transport.close()

    def _refusal(self, msg: str) -> Response:
        failed = sys.exception()
        why = failed.__context__ if isinstance(failed, HttpParserCallbackError) else None
        if len(self.url) > MAX_URL_BYTES:
            return problem_response(url_too_long())
        if isinstance(why, _HostError):  # RFC 9112, 3.2
            return bad_request(f"A request has one Host header, and this one has {self._hosts or 'none'}: send one.")
        if failed is not None and why is None:
            msg = f"{failed}."  # in words of the parser's own: nothing of the request is in them
        return problem_response(InvalidArgumentError(f"This is not HTTP/1.1 as RFC 9112 has it: {msg} Correct it."))
