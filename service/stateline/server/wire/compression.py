"""Answers compressed by gzip, for clients that accept it, as pure ASGI.

An answer of less than `LEAST_BYTES` is never compressed. A stream is compressed piece by piece, and a client can
read each piece at once: nothing waits for more. A large piece is compressed in a thread, which takes no time of the
interpreter. A stream keeps about 300 KB for it. Events are never compressed, nor what `http_protocol` answers itself.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stateline.server.contract.formats import ARROW, JSON, NDJSON, accepted

LEAST_BYTES = 1024
_LEVEL = 1  # of NDJSON 80 MB/s; level 5 takes five times as long for a tenth fewer bytes
_GZIP = 16 + zlib.MAX_WBITS
_IN_THREAD = 16 * 1024  # bytes, from which on a thread costs less than the event loop's time
_TYPES = frozenset({JSON, NDJSON, ARROW, "application/problem+json", "image/svg+xml"})


class CompressionMiddleware:
    """Compresses what `app` answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] != "HEAD":
            send = _Answer(send, takes_gzip=_takes_gzip(scope)).send
        await self._app(scope, receive, send)


class _Answer:
    """One answer on its way."""

    def __init__(self, send: Send, *, takes_gzip: bool) -> None:
        self._send, self._takes_gzip = send, takes_gzip
        self._start: Message | None = None  # held back until it is known whether the body is long
        self._compress: Callable[[bytes, int], bytes] | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if _may_be_compressed(message):
                self._start = message
                return
        elif message["type"] == "http.response.body":
            message = await self._body(message)
        await self._send(message)

    async def _body(self, message: Message) -> Message:
        body, more = message.get("body", b""), message.get("more_body", False)
        if self._start is not None:
            start, self._start = self._start, None
            if more or len(body) >= LEAST_BYTES:
                if self._takes_gzip:
                    self._compress = _compressor()
                    body = await self._compressed(body, more)
                _say_so(start, len(body), compressed=self._takes_gzip, whole=not more)
            await self._send(start)
        elif self._compress is not None:
            body = await self._compressed(body, more)
        return {**message, "body": body}

    async def _compressed(self, body: bytes, more: bool) -> bytes:
        assert self._compress is not None
        mode = zlib.Z_SYNC_FLUSH if more else zlib.Z_FINISH
        if len(body) < _IN_THREAD:
            return self._compress(body, mode)
        return await asyncio.to_thread(self._compress, body, mode)


def _may_be_compressed(start: Message) -> bool:
    for name, value in start.get("headers", ()):
        if name == b"content-type":
            media_type = value.decode("latin-1").partition(";")[0]
            return media_type in _TYPES or (media_type.startswith("text/") and media_type != "text/event-stream")
    return False


def _takes_gzip(scope: Scope) -> bool:
    return any(
        name == b"accept-encoding" and "gzip" in accepted(value.decode("latin-1")) for name, value in scope["headers"]
    )


def _compressor() -> Callable[[bytes, int], bytes]:
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return lambda data, mode: stream.compress(data) + stream.flush(mode)


def _say_so(start: Message, size: int, *, compressed: bool, whole: bool) -> None:
    """Say in the headers how it is written, and that others may get it otherwise."""
    headers = MutableHeaders(raw=list(start["headers"]))
    start["headers"] = headers.raw
    headers.add_vary_header("Accept-Encoding")
    if not compressed:
        return
    headers["Content-Encoding"] = "gzip"
    del headers["Content-Length"]
    if whole:
        headers["Content-Length"] = str(size)
    if (tag := headers.get("etag", "")) and not tag.startswith("W/"):
        headers["ETag"] = f"W/{tag}"  # of the same content in other bytes
