"""Find the key in a request that repeats an earlier one of its connection with another key. Pure.

Most clients send the same headers with every request. Such a request needs no parser, because the earlier one was
parsed. Its request line must be one that every parser reads alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

_LINE = re.compile(rb"GET (/v1/stores/[\w.~:@-]+/keys/[\w.~:@-]+)\??((?<=\?)[\w.~:@&=,%+-]*|) HTTP/1\.1\r\n")
# The characters of such a key, and its most bytes.
_IN_KEY = bytes(byte for byte in range(128) if re.fullmatch(rb"[\w.~:@-]", bytes([byte])))
_LONGEST_KEY = 1000


def repeated_line(message: bytes, headers: bytes) -> tuple[bytes, bytes] | None:
    """Return path and query string of a whole message with these headers (as sent, with the empty line behind them), or
    None if it must be parsed."""
    line = _LINE.match(message)
    return None if line is None or message[line.end() :] != headers else (line[1], line[2])


Client: TypeAlias = tuple[str, int] | None
"""A client's address and port."""


class RepeatedRequest(NamedTuple):
    """The bytes before and behind the key, which a request shares with its repetitions."""

    before: bytes
    behind: bytes

    @classmethod
    def of(cls, message: bytes, path: bytes) -> RepeatedRequest:
        """Take apart a message and its path, as of `repeated_line`."""
        before, _, key = path.rpartition(b"/")
        before = b"GET %b/" % before
        return cls(before, message[len(before) + len(key) :])

    def key(self, message: bytes) -> bytes | None:
        """Return the key, or None if the message is no repetition. Keys of over 1,000 bytes are none."""
        before, behind = self
        if not message.startswith(before) or not message.endswith(behind):
            return None
        key = message[len(before) : -len(behind)]
        return key if 0 < len(key) <= _LONGEST_KEY and not key.translate(None, _IN_KEY) else None


class Repetition(NamedTuple):
    """Answers the repetitions of a request. `answer` takes the key, the request's id and the client's address. It
    returns a body, or None if the request must be read again. `sent_id` is the id that the client sends each time."""

    request: RepeatedRequest
    answer: Callable[[bytes, str, Client], bytes | None]
    sent_id: str | None
