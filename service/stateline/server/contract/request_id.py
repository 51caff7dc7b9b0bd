"""The id of a request: `x-request-id` of its answer, `request_id` in logs, passed to the nodes that are asked."""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

HEADER = b"x-request-id"
KEY = "stateline.request_id"
"""Where a scope has it, as text."""

# A client's own id, if it can stand in a header and in a log line as it is.
_TAKEN = re.compile(rb"[\w.:/+=@~-]{1,128}")
# W3C Trace Context, section 3.2: version, trace-id, parent-id, flags. An all-zero trace-id is invalid.
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")

# In a message between nodes. On the wire: never change.
_MEMBER = "request_id"

new_id: Callable[[], str] = map(f"{secrets.token_hex(6)}-{{:x}}".format, itertools.count(1)).__next__
"""Return an id that no other request of this server has. Each read of a key asks, so it makes no call in Python."""


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the id that the client sent (`sent_id`), or a new one."""
    return sent_id(headers) or new_id()


def sent_id(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the id that the client sent: `x-request-id`, else the trace id of `traceparent`.

    `headers` have names in lower case. An id counts as none if it has over 128 characters, or others than letters,
    digits and ``._:/+=@~-``.
    """
    trace = None
    for name, value in headers:
        if name == HEADER and _TAKEN.fullmatch(value):
            return value.decode("ascii")
        if name == b"traceparent" and (found := _TRACEPARENT.fullmatch(value)):
            trace = found[1].decode("ascii")
    return trace


class AskedBy(NamedTuple):
    """Another node that asks for a client. `request_id` is empty if that node has not sent one."""

    node: str
    request_id: str


def passed_on(number: str | None) -> dict[str, str]:
    """Return the member of a message to another node with the id of the client's request; empty without one."""
    return {} if number is None else {_MEMBER: number}


def asked_by(node: str, message: Mapping[str, object]) -> AskedBy:
    """Read what `passed_on` wrote. A text that cannot be an id counts as none."""
    number = message.get(_MEMBER)
    is_one = isinstance(number, str) and _TAKEN.fullmatch(number.encode(errors="replace"))
    return AskedBy(node, str(number) if is_one else "")
