"""Notes the stateful operators that a pipeline's function declares, and the parameters that their state depends on.

Checkpoints keep the notes, and the next start compares them (`stateline.spark.sink.declaration`). A function is noted
by its qualified name without the module. A partial has its arguments: texts and numbers as they are, others by name or
type. A schema is noted as names and types. Delays, expressions and bodies of functions are left out, since state does
not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from pyspark.sql.types import StructType

Declared = dict[str, Any]
"""An operator's name, under ``operator``, and its parameters by name, as JSON values."""

STATE = 1
"""The form of the operators' state (docs/formats/pipelines.md), among an operator's parameters: never change it without
changing the form."""

_noting: ContextVar[list[Declared] | None] = ContextVar("operators", default=None)


@contextmanager
def declared_operators() -> Iterator[list[Declared]]:
    """Yield the operators that this thread declares within the block, in order."""
    made: list[Declared] = []
    token = _noting.set(made)
    try:
        yield made
    finally:
        _noting.reset(token)


def declare(operator: str, **parameters: Any) -> None:
    """Note an operator, inside a block of `declared_operators`."""
    made = _noting.get()
    if made is not None:
        made.append({"operator": operator, **{name: _as_json(value) for name, value in parameters.items()}})


def _as_json(value: Any) -> Any:
    if isinstance(value, StructType):
        return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in value)
    return _name(value) if callable(value) else value


def _shown(argument: Any) -> str:
    if isinstance(argument, str | int | float | None):
        return repr(argument)
    return _name(argument) if callable(argument) else type(argument).__qualname__


def _name(function: Callable[..., Any]) -> str:
    if isinstance(function, partial):
        given = [_shown(value) for value in function.args]
        given += (f"{name}={_shown(value)}" for name, value in sorted(function.keywords.items()))
        return f"{_name(function.func)}({', '.join(given)})"
    return str(getattr(function, "__qualname__", type(function).__qualname__))
