"""Values with the headers of their records (KIP-1271): the bytes of both, joined.

value with headers := varint(length of headers) ‖ headers ‖ value       on disk: never change
headers            := varint(count), and for each: varint(length) ‖ name in UTF-8 ‖ varint(length) ‖ value

Without headers the length is 0 and nothing follows. A header's value may be None: its length is -1. Varints are
Kafka's: zig-zag, seven bits a byte, the lowest first. A row begins with the timestamp (`timestamped_rows`), the value
with headers follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from stateline_store.errors import DamagedDataError

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
NO_HEADERS = b"\0"


def join_headers(value: bytes, headers: Headers) -> bytes:
    """Return a value with headers."""
    if not headers:
        return NO_HEADERS + value
    parts = [_varint(len(headers))]
    for name, content in headers:
        text = name.encode()
        parts += [_varint(len(text)), text, _varint(-1 if content is None else len(content)), content or b""]
    joined = b"".join(parts)
    return _varint(len(joined)) + joined + value


def split_headers(joined: bytes) -> tuple[bytes, Headers]:
    """Return the value and its headers. Raises `DamagedDataError` for bytes that are no value with headers."""
    if joined[:1] == NO_HEADERS:
        return joined[1:], ()
    at, end = _bounds(joined)
    found: list[tuple[str, bytes | None]] = []
    try:
        count, at = _read(joined, at)
        for _ in range(count):
            name, at = _read_bytes(joined, at, end)
            content, at = _read_bytes(joined, at, end)
            if name is None:
                raise _damaged(joined)
            found.append((name.decode(), content))
    except (IndexError, UnicodeDecodeError) as error:
        raise _damaged(joined) from error
    if at != end or count != len(found):
        raise _damaged(joined)
    return joined[end:], tuple(found)


def without_headers(joined: bytes) -> bytes:
    """Return the value alone. Raises `DamagedDataError` like `split_headers`."""
    return joined[1:] if joined[:1] == NO_HEADERS else joined[_bounds(joined)[1] :]


def timestamp_first(stored: bytes) -> bytes:
    """Return a value that Kafka Streams stored as headers, timestamp, value. Raises `DamagedDataError`."""
    end = 1 if stored[:1] == NO_HEADERS else _bounds(stored)[1]
    if len(stored) < end + 8:
        raise _damaged(stored)
    return stored[end : end + 8] + stored[:end] + stored[end + 8 :]


def _bounds(joined: bytes) -> tuple[int, int]:
    try:
        length, at = _read(joined, 0)
    except IndexError as error:
        raise _damaged(joined) from error
    if not 0 <= length <= len(joined) - at:
        raise _damaged(joined)
    return at, at + length


def _varint(number: int) -> bytes:
    rest = number << 1 if number >= 0 else (-number << 1) - 1
    made = bytearray()
    while rest > 127:
        made.append(rest & 127 | 128)
        rest >>= 7
    made.append(rest)
    return bytes(made)


def _read(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at this place, and the place behind it. Raises `IndexError` at the end of the data, or for a
    number of more than five bytes, the most that Kafka's have."""
    zigzag = 0
    for shift in range(0, 35, 7):
        byte = data[at]
        at += 1
        zigzag |= (byte & 127) << shift
        if byte < 128:
            return (zigzag >> 1) ^ -(zigzag & 1), at
    raise IndexError("too long a number")


def _read_bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = _read(data, at)
    if length == -1:
        return None, at
    if not 0 <= length <= end - at:
        raise IndexError("beyond the headers")
    return data[at : at + length], at + length


def _damaged(joined: bytes) -> DamagedDataError:
    return DamagedDataError(f"{joined!r:.200} is no value with headers: rebuild the store from its changelog.")
