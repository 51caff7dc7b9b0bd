"""uvicorn's HTTP protocol, which answers point reads without the application.

Requests that can be answered at once (`point_reads`), and unreadable ones (`bounded_protocol`), never reach the
application. A task per request, and an answer in two writes, cost more than reading a key and writing JSON.

Another node may give the answer. Its body then arrives later, and the connection waits as for the application.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from stateline.processes.seldom import seldom
from stateline.server.contract import request_id
from stateline.server.contract.formats import take_json
from stateline.server.contract.unreadable import OF_BODIES
from stateline.server.wire.bounded_protocol import BoundedProtocol
from stateline.server.wire.repeated_request import RepeatedRequest, Repetition, repeated_line

# At most this many requests that arrive together are answered at once, so that other clients do not wait.
AT_ONCE = 16

_LONGEST_REPEATED = 4096  # bytes of headers

# Bytes that a client may send ahead while another node answers. Then reading pauses.
_MOST_AHEAD = 64 * 1024
_LOOK_AGAIN_S = 0.1

AtOnce = Callable[[Scope, Callable[[bytes | None], None]], bytes | None]
Repeated = Callable[[RepeatedRequest, Scope], Repetition | None]

_log = seldom(__name__)


class _Answered:
    """uvicorn's cycle of a request that was answered at once."""

    response_started = response_complete = True
    keep_alive = True

    def __init__(self) -> None:
        self.message_event = asyncio.Event()  # unused


_ANSWERED = cast(RequestResponseCycle, _Answered())


class _Asked:
    """uvicorn's cycle of a request that another node answers. The parser has not seen it. `message` is the whole
    request, and `behind` the bytes that arrived later."""

    response_started = response_complete = False

    def __init__(self, message: bytes) -> None:
        self.message, self.behind = message, b""
        self.keep_alive = True
        self.message_event = asyncio.Event()  # unused


class ProblemProtocol(BoundedProtocol):
    """Answers some requests at once.

    Most clients send the same headers with every request. If a request arrives whole and alone, and its headers equal
    those of a request answered at once before, it is answered without the parser. The next requests may differ from
    that one in their key alone (`RepeatedRequest`). Then nothing but the key is read.
    """

    # What each repetition needs. A connection has too many attributes for a quick dictionary.
    __slots__ = ("_is_last", "_repeated_s", "_repetition", "_request_id", "loop", "server_state", "transport")

    # uvicorn's default headers, and the status line with them, of all connections.
    _head: ClassVar[tuple[object, bytes]] = None, b""

    def __init__(self, config: Any, *args: Any, **others: Any) -> None:
        """Take uvicorn's arguments. The application's ``state.at_once`` returns the body of an answer, or None if it
        cannot answer. It returns an empty body if it will later call its second argument, with the body or None.
        ``state.repeated`` returns what answers repetitions of such a request, by key and request id, or None."""
        super().__init__(config, *args, **others)
        self._at_once: AtOnce | None = config.app.state.at_once
        self._repeated: Repeated | None = getattr(config.app.state, "repeated", None)
        self._left = 0
        # Headers as sent and as parsed. The first are empty unless a repetition may skip the parser.
        self._sent_again, self._parsed = b"", self.headers
        # While it is there, the connection is free for an answer.
        self._repetition: Repetition | None = None
        self._repeated_s = 0.0  # the last answer without the parser, by the loop's clock
        # A request that another node answers: a cycle without a task if parsed, else the message itself.
        self._is_asked = False  # whether the cycle made now is one
        self._unbegun: tuple[RequestResponseCycle, Any] | None = None
        self._asked: _Asked | None = None
        self._request_id = ""  # of the request that is answered at once

    def data_received(self, data: bytes) -> None:
        """Answer some requests at once. The others get tasks, and share the loop with other clients."""
        if self._repetition is not None and not self._is_last and self._answer_key(self._repetition, data):
            return
        if self._asked is not None:
            self._asked.behind += data
            if len(self._asked.behind) > _MOST_AHEAD:
                self.flow.pause_reading()
            return
        if self._sent_again and not self._is_last and self._answer_again(data):
            return
        self._left = AT_ONCE
        try:
            super().data_received(data)
        finally:
            self._left = 0  # a request behind an unfinished answer is started by that answer's task

    def on_message_begin(self) -> None:
        """Forget repeated headers, because this message may have others."""
        super().on_message_begin()
        self._sent_again, self._repetition = b"", None

    def pause_writing(self) -> None:
        """Answer no repetitions, because the client does not read."""
        super().pause_writing()
        self._repetition = None

    def _begin_answer(self) -> None:
        path, _, query = self.url.partition(b"?")
        body = self._ask(self._scope_of(path, query, self.headers)) if self._is_next() else None
        if body:
            self.cycle = _ANSWERED
            self._write(body)
            self.on_response_complete()
        else:
            self._is_asked = body is not None
            super()._begin_answer()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Start the application, unless another node was asked. `_take_later` may still start it."""
        if self._is_asked:
            self._is_asked, self._unbegun = False, (cycle, app)
        else:
            super()._start_asgi_task(cycle, app)

    def on_message_complete(self) -> None:
        """Remember the headers of a request answered at once, if it arrived alone and has no body. Then the lines after
        the first are as many as the headers, and an empty one."""
        super().on_message_complete()
        if self.cycle is not _ANSWERED and (self._unbegun is None or self.cycle is not self._unbegun[0]):
            return
        _, _, sent = self._arrived.partition(b"\r\n")
        alone = sent.endswith(b"\r\n\r\n") and sent.count(b"\r\n") == len(self.headers) + 1
        if alone and len(sent) <= _LONGEST_REPEATED and OF_BODIES.isdisjoint(name for name, _ in self.headers):
            self._sent_again, self._parsed = sent, self.headers

    def _answer_key(self, repetition: Repetition, data: bytes) -> bool:
        """Answer a request that repeats an answered one with another key. Returns whether it was answered."""
        request, answer, sent_id = repetition
        key = request.key(data)
        if key is None or self.transport.is_closing():
            return False
        self._request_id = number = sent_id or request_id.new_id()
        try:
            body = answer(key, number, self.client)
        except Exception:  # noqa: BLE001 - a defect: the application meets it too, and answers it
            _log.exception("A request could not be answered at once")
            return False
        if body is None:
            return False
        self._write(body)
        self._repeated_s = self.loop.time()
        return True

    def _answer_again(self, data: bytes) -> bool:
        """Answer a request that has the remembered headers. Returns whether it was answered, or another node asked."""
        line = repeated_line(data, self._sent_again)
        if line is None or not self._can_answer():
            return False
        scope = self._scope_of(*line, self._parsed)
        body = self._ask(scope)
        if body is None:
            return False
        if body:
            self.cycle = _ANSWERED
            self._repetition = self._repeated and self._repeated(RepeatedRequest.of(data, line[0]), scope)
            self._write(body)  # `pause_writing` may end the repetitions again
            self._repeated_s = self.loop.time()
        else:
            self._repetition, self._asked = None, _Asked(data)
            self.cycle = cast(RequestResponseCycle, self._asked)
        return True

    def _take_later(self, body: bytes | None) -> None:
        """Send another node's body. If it is None, start the application instead."""
        if self._asked is not None:
            asked, self._asked = self._asked, None
            self._end_asked(asked, body)
        elif self._unbegun is not None:
            (cycle, app), self._unbegun = self._unbegun, None
            if self.transport.is_closing():  # the client has gone
                return
            if body is None:
                super()._start_asgi_task(cycle, app)
                return
            cycle.response_started = cycle.response_complete = True
            self._write(body, last=not cycle.keep_alive)
            self.on_response_complete()

    def _end_asked(self, asked: _Asked, body: bytes | None) -> None:
        self.cycle = _ANSWERED
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if body is not None:
            self._write(body, last=not asked.keep_alive)
            self._repeated_s = self.loop.time()
        else:
            self._left = 0  # not at once
            super().data_received(asked.message)
            self.cycle.keep_alive &= asked.keep_alive
        if asked.behind and asked.keep_alive:
            self.data_received(asked.behind)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection like uvicorn. Answers without the parser do not restart uvicorn's timer."""
        left_s = self._repeated_s + self.timeout_keep_alive - self.loop.time()
        if left_s > 0 or self._asked is not None:
            left_s = max(left_s, _LOOK_AGAIN_S)
            self.timeout_keep_alive_task = self.loop.call_later(left_s, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def _is_next(self) -> bool:
        """Whether the request may be answered at once: it is the next one, and the connection stays open after it."""
        parser = self.parser
        return (
            self._left > 0
            and not self._is_last
            and self._can_answer()
            and parser.get_method() == b"GET"
            and parser.should_keep_alive()
            and parser.get_http_version() == "1.1"
            and not parser.should_upgrade()
            and take_json(self.headers)
        )

    def _can_answer(self) -> bool:
        """Whether no earlier request waits for its answer, and the client reads."""
        is_free = self.cycle is None or self.cycle.response_complete
        return is_free and not self.flow.write_paused and not self.transport.is_closing()

    def _scope_of(self, path: bytes, query: bytes, headers: list[tuple[bytes, bytes]]) -> Scope:
        self._request_id = request_id.request_id(headers)
        return {
            request_id.KEY: self._request_id,
            "method": "GET",
            "root_path": self.root_path,
            "raw_path": path,
            "query_string": query,
            "client": self.client,
            "headers": headers,
        }

    def _ask(self, scope: Scope) -> bytes | None:
        """Return the body of an answer, b"" if `_take_later` will get it, or None if the application must answer."""
        if self._at_once is None:
            return None
        try:
            body = self._at_once(scope, self._take_later)
        except Exception:  # noqa: BLE001 - a defect: the application meets it too, and answers it
            _log.exception("A request could not be answered at once")
            return None
        self._left -= bool(body)
        return body

    def _write(self, body: bytes, *, last: bool = False) -> None:
        """Write an answer with status 200. Close the connection after the `last` one."""
        more = b"connection: close\r\n" if last else b""
        headers, head = ProblemProtocol._head
        if headers is not self.server_state.default_headers:
            head = self._new_head()
        parts = (head, self._request_id.encode(), len(body), more, body)
        self.transport.write(b"%bx-request-id: %b\r\ncontent-length: %d\r\n%b\r\n%b" % parts)
        if last:
            self.transport.close()

    def _new_head(self) -> bytes:
        """Return the status line and the common headers. uvicorn renews its default headers once a second."""
        default = self.server_state.default_headers
        headers = [*default, (b"content-type", b"application/json")]
        head = STATUS_LINE[200] + b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        ProblemProtocol._head = default, head
        return head
