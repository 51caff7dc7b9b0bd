"""uvicorn's HTTP protocol, with the service's own answer to what it cannot read, and to what it can answer at once.

What can be answered at once (`point_reads`) never reaches the application, as what cannot be read (`bounded_protocol`)
does not. A task per request, and an answer in two writes, of which the first wakes the client for half of it, cost more
than to read a key and write it as JSON.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from stateline.server.contract.unreadable import OF_BODIES
from stateline.server.wire.bounded_protocol import BoundedProtocol

# Answers at once to what arrived together: a client that sends thousands of requests ahead keeps nobody waiting.
_AT_ONCE = 16

# A first line that means the same to every parser.
_PLAIN_LINE = re.compile(rb"GET (/v1/stores/[\w.~:@-]+/keys/[\w.~:@-]+)\??((?<=\?)[\w.~:@&=,%+-]*|) HTTP/1\.1\r\n")
_LONGEST_REPEATED = 4096  # bytes of headers

_log = logging.getLogger(__name__)


class _Answered:
    """What uvicorn's protocol sees of a request that was answered at once."""

    response_complete = True
    keep_alive = True

    def __init__(self) -> None:
        self.message_event = asyncio.Event()  # of nobody who waits


_ANSWERED = cast(RequestResponseCycle, _Answered())


class ProblemProtocol(BoundedProtocol):
    """Answers some requests at once, and problems where uvicorn's answers plain text.

    Most clients send the same headers with every request. One that arrives whole and alone, and has the headers of one
    before it that was answered at once, byte for byte, is answered without the parser, which stands between two
    messages meanwhile.
    """

    def __init__(self, config: Any, *args: Any, **others: Any) -> None:
        """As uvicorn makes it. The application's ``state.at_once`` gives the body of an answer, or None."""
        super().__init__(config, *args, **others)
        self._at_once: Callable[[Scope], bytes | None] | None = config.app.state.at_once
        self._left = 0
        # Headers as they are sent, and as they are parsed; the first are empty unless they may be repeated.
        self._sent_again, self._parsed = b"", self.headers
        self._repeated_s = 0.0  # when that happened last, on the loop's clock
        self._default_headers: object = None
        self._head = b""

    def data_received(self, data: bytes) -> None:
        """Some requests at once, the others in turn with those of other clients."""
        if self._sent_again and self._answer_again(data):
            return
        self._left = _AT_ONCE
        try:
            super().data_received(data)
        finally:
            self._left = 0  # what waits for an earlier answer is begun by that one, in its task

    def on_message_begin(self) -> None:
        """The next one may have other headers."""
        super().on_message_begin()
        self._sent_again = b""

    def _begin_answer(self) -> None:
        path, _, query = self.url.partition(b"?")
        if self._is_next() and self._answer(path, query, self.headers):
            self.on_response_complete()
        else:
            super()._begin_answer()

    def on_message_complete(self) -> None:
        """Remember the headers of what was answered at once, if the message is all that arrived, and has no body: then
        there are as many lines behind the first one as there are headers, and the empty one."""
        super().on_message_complete()
        if self.cycle is not _ANSWERED:
            return
        _, _, sent = self._arrived.partition(b"\r\n")
        alone = sent.endswith(b"\r\n\r\n") and sent.count(b"\r\n") == len(self.headers) + 1
        if alone and len(sent) <= _LONGEST_REPEATED and OF_BODIES.isdisjoint(name for name, _ in self.headers):
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
