"""Functions that gave what nothing runs: a coroutine or a generator, where a result belongs. Pure."""

from __future__ import annotations

from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, TypeVar

from stateline.serde.plain import Serde
from stateline_store import TopologyError

# Types, and not the abstract classes of `collections.abc`: with those the look at each result takes ten times as long.
_UNRUN = {CoroutineType: "coroutine", GeneratorType: "generator", AsyncGeneratorType: "generator"}

T = TypeVar("T")


def refuse_unrun(result: T) -> T:
    """What a function gave, as it is. Raises `TopologyError` if that is a coroutine or a generator, which nothing would
    run: a decorator can hide it from `stateline.model.function_checks`."""
    kind = _UNRUN.get(type(result))
    if kind is None:
        return result
    if isinstance(result, CoroutineType | GeneratorType):
        result.close()  # or Python warns of one that was never awaited
    raise TopologyError(f"The function gave a {kind}, and nothing runs it: give a plain function.")


def written(serde: Serde, value: Any) -> bytes | None:
    """The bytes of what a function gave, None for None. Raises `InvalidArgumentError`, and `TopologyError` for what
    nothing has run."""
    return None if value is None else serde.serialize(refuse_unrun(value))
