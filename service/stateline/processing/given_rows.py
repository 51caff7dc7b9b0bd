"""What a function gave as rows. Text and mappings are none: Python would go through their characters, or their keys.
None is none either, but where a function says that it may give it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stateline.model.declared_at import SourceLine, placed
from stateline.serde.plain import shown
from stateline_store import TopologyError


def several(given: Any, function: Callable[..., Any]) -> Iterable[Any]:
    """What this function gave, which is to be any number. Raises `TopologyError`, with the function's file and line."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise _refused(f"The function gave {shown(given)}: give a list of rows, or yield each", function)
    return given


def key_and_value(given: Any, function: Callable[..., Any]) -> tuple[Any, Any]:
    """What this function gave as one row. Raises as `several`."""
    if isinstance(given, str | bytes) or not isinstance(given, Sequence) or len(given) != 2:
        raise _refused(f"The function gave {shown(given)} as a row: give (key, value)", function)
    key, value = given
    return key, value


def _refused(message: str, function: Callable[..., Any]) -> TopologyError:
    error, code = TopologyError(message), getattr(inspect.unwrap(function), "__code__", None)
    if code is not None:  # a callable object, or a C function, has no lines
        placed(error, SourceLine(code.co_filename, code.co_firstlineno))
    return error
