"""How many values a JSON text has at most, and how deeply they are nested: counted in its bytes as they arrive, because
to parse a text that was made to have many takes seconds and a hundred times its size.

Outside of strings an array or object begins with a bracket, and a comma stands between two items or members. So commas
and opening brackets together are never more than items, members, arrays and objects are. For a text that is no JSON
the numbers mean nothing, and it is refused either way.
"""

from __future__ import annotations

from array import array
from itertools import accumulate

from stateline_store import InvalidArgumentError

MAX_VALUES = 100_000
"""Of a body: its items and members, each array and object counted once more."""
MAX_DEPTH = 100

_STRINGS_OF_A_VALUE = 2  # a member's name, and its value
_NOT_COUNTED = bytes(set(range(256)) - set(b",[]{}"))
_STEPS = bytes.maketrans(b"[]{}", bytes([1, 255, 1, 255]))  # up or down, as signed bytes


class JsonBounds:
    """The bounds of one text. A megabyte of it takes some milliseconds, or less, also where it is made to take more:
    brackets and quotes are looked at one by one only while they are few."""

    def __init__(self) -> None:
        self.values = self.depth = self._quotes = 0
        self._is_escaped = False  # the first byte of what comes next

    def take(self, piece: bytes) -> None:
        """Count the next piece of the text. Raises `InvalidArgumentError` as soon as it has more than the bounds
        allow."""
        if not piece:
            return
        # The first of several backslashes is not escaped itself, so they pair up from there on.
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
