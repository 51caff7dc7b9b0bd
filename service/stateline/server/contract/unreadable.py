"""Messages about bytes that are not a readable request, in plain words for the usual causes."""

from __future__ import annotations

from http import HTTPStatus

from httptools import HttpParserCallbackError

MAX_HEADERS = 200
MAX_HEADER_BYTES = 64 * 1024
VERSIONS = frozenset({"1.0", "1.1"})
OF_BODIES = frozenset({b"content-length", b"transfer-encoding"})

_TLS = b"\x16\x03"  # RFC 8446, 5.1: a handshake's record, of version 3.something
_HTTP_2 = b"PRI * HTTP/2"  # RFC 9113, 3.4

_VERSION = "Only HTTP/1.1 and HTTP/1.0 are spoken here: end the first line with HTTP/1.1."
_CODING = (
    "A body comes with Content-Length, or in HTTP/1.1 with Transfer-Encoding: chunked and nothing else: send it so."
)
_NO_PATH = "The URL is no path: it begins with a /, as in /v1/stores."
# What llhttp says begins so → what is meant.
_WORDS = {
    "Invalid method": "The first line begins with no method of HTTP, in capitals: GET, for example.",
    "Expected HTTP/": "Behind the URL does not stand HTTP/1.1: if the URL has a space, percent-encode it (%20).",
    "Invalid char in url": "The URL has a character that a URL cannot have, as one beyond ASCII: percent-encode it.",
    "Invalid characters in url": _NO_PATH,
    "Unexpected start char in url": _NO_PATH,
    "Unexpected char in url": _NO_PATH,
    "Invalid HTTP version": _VERSION,
    "Invalid major version": _VERSION,
    "Invalid minor version": _VERSION,
}


class UnreadableRequestError(Exception):
    """A request that is not read any further. str() says why, and what to do."""

    def __init__(self, detail: str, status: int = HTTPStatus.UNPROCESSABLE_ENTITY) -> None:
        super().__init__(detail)
        self.status = status


def headers_too_large() -> UnreadableRequestError:
    return UnreadableRequestError(
        f"A request has at most {MAX_HEADERS} headers, of {MAX_HEADER_BYTES} bytes (64 KiB) in all: send fewer, or "
        "shorter ones.",
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    )


def hash_in_url() -> UnreadableRequestError:
    """Refuse a fragment, which no client may send: parsers disagree on where the path ends. Source: RFC 9112, 3.2.1."""
    return UnreadableRequestError("The URL has a raw #, which belongs to no request: write # as %23, or leave it out.")


def wrong_hosts(count: int) -> UnreadableRequestError:
    """Refuse so many `Host` headers. Source: RFC 9112, 3.2."""
    return UnreadableRequestError(
        f"A request has one Host header, and this one has {count or 'none'}: send one.", HTTPStatus.BAD_REQUEST
    )


def wrong_coding() -> UnreadableRequestError:
    """Refuse a body in an unknown transfer coding, or with two framings. Source: RFC 9112, 6.1."""
    return UnreadableRequestError(_CODING, HTTPStatus.BAD_REQUEST)


def wrong_version() -> UnreadableRequestError:
    return UnreadableRequestError(_VERSION)


def upgrade_with_body() -> UnreadableRequestError:
    """Refuse Upgrade with a body. The parser takes the body for the other protocol, so it would be lost."""
    return UnreadableRequestError(
        "A request that asks for another protocol (Upgrade) has no body here: leave out Upgrade (curl --http1.1)."
    )


def in_plain_words(error: BaseException | None, arrived: bytes) -> str:
    """Say what is wrong with a message that began with `arrived` and failed with this error of the parser or of the
    URL. Nothing of the request is in it."""
    if arrived.startswith(_TLS):
        return "This port speaks no TLS: use http://, or set server.tls.certificate.file at the server."
    if arrived.startswith(_HTTP_2):
        return "This is HTTP/2: use HTTP/1.1 (curl --http1.1)."
    if isinstance(error, HttpParserCallbackError):
        return _NO_PATH
    says = str(error)
    for begin, words in _WORDS.items():
        if says.startswith(begin):
            return words
    return f"This is not HTTP/1.1 as RFC 9112 has it: {says}. Correct it."
