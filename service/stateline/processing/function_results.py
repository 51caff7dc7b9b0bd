"""Checks the results of an application's functions: a result that nothing runs, several rows, or one row."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, TypeVar

from stateline.model.declared_at import SourceLine, placed
from stateline.serde.plain import Serde, shown
from stateline_store import InvalidArgumentError, TopologyError

# Types, and not the abstract classes of `collections.abc`: with those the look at each result takes ten times as long.
_UNRUN = {CoroutineType: "coroutine", GeneratorType: "generator", AsyncGeneratorType: "generator"}

T = TypeVar("T")


def refuse_unrun(result: T) -> T:
    """Return this result. Raises `TopologyError` for a coroutine or a generator, which nothing would run. A decorator
    can hide one from `stateline.model.function_checks`."""
    kind = _UNRUN.get(type(result))
    if kind is None:
        return result
    if isinstance(result, CoroutineType | GeneratorType):
        result.close()  # otherwise Python warns that it was never awaited
    raise TopologyError(f"The function gave a {kind}, and nothing runs it: give a plain function.")


def written(serde: Serde, value: Any) -> bytes | None:
    """Serialize a result; None stays None. Raises `InvalidArgumentError` for one of another type, and `TopologyError`
    as `refuse_unrun`."""
    try:
        return None if value is None else serde.serialize(refuse_unrun(value))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"{error} For another type, pass key=… or value=… with a serde of its type."
        ) from error


def several(given: Any, function: Callable[..., Any]) -> Iterable[Any]:
    """Return the rows that this function gave. Raises `TopologyError`, with the function's file and line, for text and
    mappings: Python would iterate over their characters or keys."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise _refused(f"The function gave {shown(given)}: give a list of rows, or yield each", function)
    return given


def key_and_value(given: Any, function: Callable[..., Any]) -> tuple[Any, Any]:
    """Return one row that this function gave. Raises as `several`."""
    if type(given) is tuple and len(given) == 2:  # nearly always, and the abstract class takes a microsecond
        return given
    if isinstance(given, str | bytes) or not isinstance(given, Sequence) or len(given) != 2:
        raise _refused(f"The function gave {shown(given)} as a row: give (key, value)", function)
    key, value = given
    return key, value


def _refused(message: str, function: Callable[..., Any]) -> TopologyError:
    error, code = TopologyError(message), getattr(inspect.unwrap(function), "__code__", None)
    if code is not None:  # a callable object, or a C function, has no lines
        placed(error, SourceLine(code.co_filename, code.co_firstlineno))
    return error
