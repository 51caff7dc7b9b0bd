"""Whether an operator can call the function that an application gives it: said where it is declared. Pure.

A function of another number of arguments fails for every record; a coroutine or a generator runs nothing when it is
called, so that input would be committed and nothing stored.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from types import FunctionType, MethodType

from stateline.serde.plain import shown
from stateline_store import TopologyError

_SHOWN = 100  # characters of what a function takes


def check_function(
    operator: str,
    function: object,
    *arguments: str,
    role: str = "function",
    may_yield: bool = False,
    may_take_context: bool = False,
    must_return: bool = False,
    before: str = "",
) -> None:
    """Raise `TopologyError` unless a call with these arguments, by position, runs the function to its result.

    The message has the operator, and what it calls its `role` with. A function whose arguments cannot be read, such as
    some written in C, is accepted. With `may_yield` generators are, too: the operator goes through what comes back;
    with `may_take_context` it may name a `context` that it wants besides. With `must_return`, a function without any
    `return` is refused: its result is always None. The message says that it may take `before`, too.
    """
    count = len(arguments)
    calls = (
        f"with {count} argument{'' if count == 1 else 's'}: {', '.join(arguments)}" if count else "without arguments"
    )
    if before:
        calls += f", or with {before} before them"
    if not callable(function):
        raise TopologyError(
            f"{operator} was given {shown(function)} as its {role}: give a function. It is called {calls}."
        )
    called = _called(function)
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        raise TopologyError(
            f"{operator} was given {_name(function)} as its {role}, which is async and would never run: give a plain "
            f"function. It is called {calls}."
        )
    if inspect.isgeneratorfunction(called) and not may_yield:
        raise TopologyError(
            f"{operator} was given {_name(function)} as its {role}, which has a yield in it and would never run: "
            f"give a function that returns. It is called {calls}."
        )
    if must_return and _never_returns(called):
        raise TopologyError(
            f"{operator} was given {_name(function)} as its {role}, which has no `return`. Its result is "
            "always None, which deletes: return the new result."
        )
    if (takes := _other_arguments(function, arguments, with_context=may_take_context)) is not None:
        raise TopologyError(f"{operator} calls its {role} {calls}. {_name(function)} takes {takes}.")


def wants(function: object, count: int) -> bool:
    """Whether it needs so many arguments, by position: it takes them, and not one less."""
    fewer, all_ = (_other_arguments(function, ("",) * n, with_context=False) for n in (count - 1, count))
    return all_ is None and fewer is not None


def takes_context(function: object) -> bool:
    """Whether it has a keyword-only parameter named `context`: ``def add_up(order, totals, *, context)``."""
    try:
        parameters = inspect.signature(function, follow_wrapped=False).parameters  # type: ignore[arg-type]  # callable
    except (ValueError, TypeError):
        return False
    return "context" in parameters and parameters["context"].kind is inspect.Parameter.KEYWORD_ONLY


def name_of(what: str, name: str | None, function: object) -> str:
    """The name that was given, else the function's own. Raises `TopologyError` when there is neither."""
    own: object = name or getattr(function, "__name__", None)
    if isinstance(own, str) and own != "<lambda>":
        return own
    if callable(function):
        raise TopologyError(
            f"{what.capitalize()} was given {shown(function)}, which has no name of its own: give one with name=…."
        )
    raise TopologyError(f"{what.capitalize()} was given {shown(function)} as its function: give a function.")


def _called(function: object) -> object:
    """Whose code a call runs, as far as that is certain: what other decorators wrap they may run to its end."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, MethodType):
            function = function.__func__
        elif isinstance(function, functools._lru_cache_wrapper):
            function = function.__wrapped__
        else:
            break
    if isinstance(function, type) or inspect.isroutine(function):
        return function
    return type(function).__call__


def _never_returns(function: object) -> bool:
    """Whether its source has neither `return` nor `raise`. False if the source is not at hand."""
    if not isinstance(function, FunctionType) or function.__code__.co_name == "<lambda>":
        return False
    if hasattr(function, "__wrapped__"):
        return False  # a decorator, whose own source is not found so
    try:
        source = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return False
    return not any(isinstance(each, ast.Return | ast.Raise) for each in ast.walk(source))


def _other_arguments(function: object, given: tuple[str, ...], *, with_context: bool) -> str | None:
    """Return the arguments that the function takes, if a call with the given ones must fail; else None."""
    try:
        # Not what a decorator wraps: it may call that with others.
        signature = inspect.signature(function, follow_wrapped=False)  # type: ignore[arg-type]  # callable
    except (ValueError, TypeError):
        return None  # written in C: it can only be tried
    try:
        signature.bind(*given, **({"context": None} if with_context and takes_context(function) else {}))
    except TypeError:
        plain = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
        text = str(signature.replace(parameters=plain, return_annotation=signature.empty))
        return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]}...)"
    return None


def _name(function: object) -> str:
    return getattr(function, "__name__", None) or shown(function)
