"""Limit the values and the nesting of a JSON text before it is parsed.

Parsing a malicious text can take seconds, and a hundred times its size. So commas and brackets outside of strings are
counted as the bytes arrive. Commas and opening brackets are never more than items, members, arrays and objects. The
counts mean nothing for a text that is not JSON, but that is refused anyway.
"""

from __future__ import annotations

from array import array
from itertools import accumulate

from stateline_store import InvalidArgumentError

MAX_VALUES = 100_000
"""Items and members of a body, plus one for each array and object."""
MAX_DEPTH = 100

_STRINGS_OF_A_VALUE = 2  # a member's name, and its value
_NOT_COUNTED = bytes(set(range(256)) - set(b",[]{}"))
_STEPS = bytes.maketrans(b"[]{}", bytes([1, 255, 1, 255]))  # up or down, as signed bytes


class JsonBounds:
    """Counts one text. A megabyte takes at most some milliseconds, also of a malicious text."""

    def __init__(self) -> None:
        self.values = self.depth = self._quotes = 0
        self._is_escaped = False  # the next piece's first byte

    def take(self, piece: bytes) -> None:
        """Count the next piece. Raises `InvalidArgumentError` as soon as the text exceeds a limit."""
        if not piece:
            return
        # The first of several backslashes is not escaped, so they pair up from there.
        bare = piece[self._is_escaped :].replace(rb"\\", b"")
        self._is_escaped = bare.endswith(b"\\")
        bare = bare.replace(rb"\"", b"")
        begins_inside = self._quotes % 2
        self._quotes += bare.count(b'"')
        if self._quotes > 2 * _STRINGS_OF_A_VALUE * MAX_VALUES:
            raise _too_many()
        outside = b"".join(bare.replace(b'""', b"").split(b'"')[begins_inside::2])
        self._count(outside.translate(None, _NOT_COUNTED))

    def _count(self, marks: bytes) -> None:
        brackets = marks.translate(None, b",")
        closed = brackets.count(b"]") + brackets.count(b"}")
        opened = len(brackets) - closed
        self.values += len(marks) - closed
        if self.values > MAX_VALUES:
            raise _too_many()
        depth_before, self.depth = self.depth, self.depth + opened - closed
        if self.depth < 0:
            raise InvalidArgumentError("The body is not JSON: it closes more arrays and objects than it opens.")
        steps = array("b", brackets.translate(_STEPS))
        if depth_before + opened > MAX_DEPTH and max(accumulate(steps, initial=depth_before)) > MAX_DEPTH:
            raise InvalidArgumentError(f"The body is nested too deeply: {MAX_DEPTH} levels are accepted.")


def _too_many() -> InvalidArgumentError:
    return InvalidArgumentError(
        f"The body has more than {MAX_VALUES} values, each array and object counted too: ask for fewer keys at a time."
    )
