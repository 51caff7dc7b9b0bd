"""uvicorn's HTTP protocol with limits: for the time and size of a request's head, and with answers to unreadable
requests.

uvicorn limits only the time between two requests. Its parser collects a header of any length.
"""

from __future__ import annotations

import asyncio
import re
import sys
from typing import Any

from httptools import HttpParserCallbackError
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from stateline.processes.seldom import seldom
from stateline.server.contract import request_id
from stateline.server.contract.answer_headers import lines_of_every_answer
from stateline.server.contract.problems import problem_response, unreadable_response
from stateline.server.contract.unreadable import (
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    OF_BODIES,
    VERSIONS,
    UnreadableRequestError,
    hash_in_url,
    headers_too_large,
    in_plain_words,
    upgrade_with_body,
    wrong_coding,
    wrong_hosts,
    wrong_version,
)
from stateline.server.contract.written_arguments import MAX_URL_BYTES, url_too_long
from stateline.server.wire.bodies import PATIENCE_S
from stateline_store import InvalidArgumentError

# A member of a request's `extensions`. Its `cut` aborts the connection. Its `endless` notes that the answer has no end:
# the connection is aborted when the client sends something unreadable.
ABORT = "stateline.abort"

# At a stop of the server: how long a connection without a request may still send one.
_LAST_REQUEST_S = 5.0

_AUTHORITY = re.compile(rb"[a-z][a-z0-9+.-]*://([^/?#]*)", re.IGNORECASE)
_AROUND_HEADER = 4  # bytes: ": " and the end of its line

_log = seldom(__name__)


class BoundedProtocol(HttpToolsProtocol):
    """Answers `application/problem+json` where uvicorn answers plain text, or nothing.

    The attributes are the state of the arriving message, because the parser reports it in many calls.
    """

    url = b""

    def __init__(self, config: Any, *args: Any, **others: Any) -> None:
        super().__init__(config, *args, **others)
        self._hosts = 0  # headers of that name
        self._reads_no_more = self._is_refused = False
        self._is_endless = False  # the answer
        self._is_last = False  # the next answer
        self._in_message = False  # the parser
        self._in_head = False  # of the message
        self._size = 0  # of the bytes that the parser gets now
        # Bytes that the parser keeps because no element is whole yet: all of them, and those it gets now.
        self._unfinished = self._growth = 0
        self._is_split = False  # the head arrives in several pieces
        self._trailers = 0  # bytes, of the message
        self._waits_since_s = 0.0  # for a head, on the loop's clock
        self.patience: asyncio.TimerHandle | None = None
        self._arrived = b""  # the bytes that the parser gets now, if they begin with a message

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Start the connection's only timer. A timer per request would cost more than some answers."""
        super().connection_made(transport)
        self._waits_since_s = self.loop.time()
        self.patience = self.loop.call_later(PATIENCE_S, self._look_after)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        super().connection_lost(exc)
        if self.patience is not None:
            self.patience.cancel()

    def _look_after(self) -> None:
        """Close the connection if it has waited for a request's head for `PATIENCE_S`. Between requests, uvicorn's
        timer does this."""
        now_s = self.loop.time()
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering or not (self._in_head or self.cycle is None):
            self._waits_since_s = now_s
        left_s = self._waits_since_s + PATIENCE_S - now_s
        if left_s > 0:
            self.patience = self.loop.call_later(left_s, self._look_after)
        else:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Parse the bytes. Refuse the request if the parser keeps too many of them."""
        if self._reads_no_more:
            return
        self._arrived = b"" if self._in_message else data
        self._size = self._growth = len(data)
        try:
            super().data_received(data)
        finally:
            self._arrived = b""
        if self._in_message:
            self._is_split = self._in_head
            self._unfinished += self._growth
            if self._unfinished > MAX_HEADER_BYTES and not self._reads_no_more:
                self._refuse(headers_too_large())
        if self.timeout_keep_alive_task is None and not self._in_head:
            self._wait_for_next()

    def _wait_for_next(self) -> None:
        """Wait again for the next request. The received bytes ended uvicorn's wait, but were the body of an answered
        request, or empty lines."""
        if self.cycle is not None and self.cycle.response_complete and not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_message_begin(self) -> None:
        """Give the application `ABORT`. uvicorn's own way to close waits until the client has read everything."""
        super().on_message_begin()
        self._hosts = 0
        self._in_message = self._in_head = True
        self._is_split = False
        self._trailers = 0
        self._waits_since_s = self.loop.time()
        self._unfinished = self._growth = 0
        self.scope["extensions"] = {ABORT: {"cut": self.transport.abort, "endless": self._note_endless}}

    def on_url(self, url: bytes) -> None:
        """Keep a part of the URL. If the URL is too long, keep only enough to refuse it."""
        self._unfinished = self._growth = 0
        if len(self.url) <= MAX_URL_BYTES:
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header. uvicorn's method would double the cost. Count and drop trailers (RFC 9110, 6.5.1)."""
        if not self._in_head:
            self._trailers += len(name) + len(value) + _AROUND_HEADER
            if self._trailers > MAX_HEADER_BYTES:
                raise headers_too_large()
            return
        name = name.lower()
        if name == b"host":
            self._hosts += 1
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))
        if len(self.headers) > MAX_HEADERS:
            raise headers_too_large()  # the parser fails, and uvicorn calls `send_400_response`

    def on_headers_complete(self) -> None:
        """Refuse or answer the request, now that its head is complete."""
        self._check_head()
        self._take_authority()
        self._unfinished = self._growth = 0
        self._begin_answer()
        self._in_head = False
        if self.parser.should_upgrade():  # answered without an upgrade; the next bytes are another protocol's
            self.cycle.keep_alive = False
            self._reads_no_more = True

    def hand_over(self) -> None:
        """Announce the next answer as the connection's last, because this process accepts no more requests."""
        self._is_last = True

    def shutdown(self) -> None:
        """Shut down like uvicorn, but first answer an arriving request. uvicorn would reset the connection. After
        `hand_over`, an idle connection stays until it times out."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        is_idle = self.cycle is not None and not is_answering and not self._in_message
        has_its_answer = is_idle or (is_answering and self.cycle.response_started)
        if self._is_last and has_its_answer:
            return
        if is_answering or is_idle:
            super().shutdown()
        else:
            self._is_last = True
            self.loop.call_later(_LAST_REQUEST_S, self._close_unasked)

    def _close_unasked(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _begin_answer(self) -> None:
        """Start the answer. The body may still be arriving."""
        super().on_headers_complete()
        if self._is_last:
            self.cycle.keep_alive = False

    def _check_head(self) -> None:
        """Raise an error if the request's head is refused."""
        if len(self.url) > MAX_URL_BYTES:
            raise url_too_long()
        if b"#" in self.url:
            raise hash_in_url()
        if self._is_split or self._size > MAX_HEADER_BYTES:
            size = sum(len(name) + len(value) + _AROUND_HEADER for name, value in self.headers)
            if size > MAX_HEADER_BYTES:
                raise headers_too_large()
        version = self.parser.get_http_version()
        if version not in VERSIONS:
            raise wrong_version()
        if self._hosts != 1 and (self._hosts or version == "1.1"):
            raise wrong_hosts(self._hosts)
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if codings and (version != "1.1" or b",".join(codings).lower() != b"chunked"):
            raise wrong_coding()
        if self.parser.should_upgrade() and not OF_BODIES.isdisjoint(name for name, _ in self.headers):
            raise upgrade_with_body()

    def _take_authority(self) -> None:
        """Replace `Host` by the authority of an absolute URL (RFC 9112, 3.2.2)."""
        if not self.url.startswith(b"/") and (found := _AUTHORITY.match(self.url)) is not None:
            self.headers[:] = [(name, value) for name, value in self.headers if name != b"host"]
            self.headers.append((b"host", found[1]))

    def on_body(self, body: bytes) -> None:
        """Pass the body on. The parser then collects the next chunk or trailer from zero."""
        super().on_body(body)
        self._unfinished = self._growth = 0

    def _should_upgrade(self) -> bool:
        """Return False: this server speaks no other protocol."""
        return False

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing. uvicorn would recommend a package that changes nothing here."""

    def on_message_complete(self) -> None:
        """Note the end of the message."""
        super().on_message_complete()
        self._in_message = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Start the application, unless the connection is closing after its announced last answer."""
        if not self.transport.is_closing():
            super()._start_asgi_task(cycle, app)

    def _note_endless(self) -> None:
        """Note that the present answer ends only with the connection."""
        self._is_endless = True
        if self._is_refused:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that the parser cannot read."""
        del msg  # always the same text
        failed = sys.exception()
        why = failed.__context__ if isinstance(failed, HttpParserCallbackError) else None
        if len(self.url) > MAX_URL_BYTES:
            self._refuse(url_too_long())
        elif isinstance(why, UnreadableRequestError):
            self._refuse(why)
        elif "Transfer-Encoding" in str(failed):  # the parser's own words for some of what `_check_head` refuses
            self._refuse(wrong_coding())
        else:
            self._refuse(UnreadableRequestError(in_plain_words(failed, self._arrived)))

    def _refuse(self, why: UnreadableRequestError | InvalidArgumentError) -> None:
        """Answer with the reason and close, because the next request's beginning is unknown.

        Earlier requests are answered first. If such an answer has no end, abort without a reason."""
        _log.info("A request was refused: %s", why)
        self._reads_no_more = self._is_refused = True
        cycle, is_begun = self.cycle, self._in_message and not self._in_head
        if cycle is not None and not cycle.response_complete:
            if is_begun and not cycle.response_started and not self.pipeline:  # the application waits for this body
                cycle.disconnected = True
                cycle.message_event.set()
                self._answer_refused(why)
            elif self._is_endless:
                self.transport.abort()
            else:
                cycle.keep_alive = False
        elif is_begun:  # the request has its answer already
            self.transport.close()
        else:
            self._answer_refused(why)

    def _answer_refused(self, why: UnreadableRequestError | InvalidArgumentError) -> None:
        if isinstance(why, UnreadableRequestError):
            response = unreadable_response(str(why), why.status)
        else:
            response = problem_response(why)
        head = [STATUS_LINE[response.status_code].rstrip()]
        head += [name + b": " + value for name, value in response.raw_headers]
        head += lines_of_every_answer()
        head.append(b"x-request-id: " + request_id.request_id(self.headers).encode("ascii"))
        self.transport.write(b"\r\n".join([*head, b"connection: close", b"", bytes(response.body)]))
        self.transport.close()
