"""Compress answers by gzip, for clients that accept it, as pure ASGI.

Streams are compressed piece by piece, so a client can read each piece at once. Large pieces are compressed in a thread,
without Python's lock. A compressed stream takes about 300 KB. Never compressed are answers of less than `LEAST_BYTES`,
events, and answers of `http_protocol`.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stateline.server.contract.formats import ARROW, JSON, NDJSON, accepted
from stateline.server.contract.observation import observed

LEAST_BYTES = 1024
_LEVEL = 1  # 80 MB/s of NDJSON; level 5 takes five times as long for a tenth fewer bytes
_GZIP = 16 + zlib.MAX_WBITS
_IN_THREAD = 16 * 1024  # bytes; from here on a thread is cheaper than blocking the event loop
_TYPES = frozenset({JSON, NDJSON, ARROW, "application/problem+json", "image/svg+xml"})


class CompressionMiddleware:
    """Compresses what `app` answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] != "HEAD":
            send = _Answer(send, takes_gzip=takes_gzip(scope)).send
        await self._app(scope, receive, send)


class _Answer:
    """Sends one answer, compressed or not."""

    def __init__(self, send: Send, *, takes_gzip: bool) -> None:
        self._send, self._takes_gzip = send, takes_gzip
        self._start: Message | None = None  # held back until the first piece of the body is known
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
    if observed().is_relayed:
        return False  # the other process has compressed it
    for name, value in start.get("headers", ()):
        if name == b"content-type":
            media_type = value.decode("latin-1").partition(";")[0]
            return media_type in _TYPES or (media_type.startswith("text/") and media_type != "text/event-stream")
    return False


def takes_gzip(scope: Scope) -> bool:
    """Return whether the client of this request accepts gzip."""
    return any(
        name == b"accept-encoding" and "gzip" in accepted(value.decode("latin-1")) for name, value in scope["headers"]
    )


def _compressor() -> Callable[[bytes, int], bytes]:
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return lambda data, mode: stream.compress(data) + stream.flush(mode)


def _say_so(start: Message, size: int, *, compressed: bool, whole: bool) -> None:
    """Set the headers for the encoding, the length and caches."""
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
