"""Functions that an operator cannot call, or that would not run, are refused where they are declared."""

from __future__ import annotations

import functools
import inspect
import operator
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stateline import App, SessionWindows, TumblingWindows, serdes, stores
from stateline.dsl.streams import GroupedStream, Stream, Table
from stateline_store import TopologyError

MINUTE = timedelta(minutes=1)


class Scene:
    """An application with one of everything that takes functions."""

    def __init__(self) -> None:
        self.app = App("shop")
        self.kept = self.app.table("products", key=serdes.string, value=serdes.json)
        self.all = self.app.global_table("countries", key=serdes.string, value=serdes.json)

    @property
    def stream(self) -> Stream:
        return self.app.stream("orders", key=serdes.string, value=serdes.json)

    @property
    def table(self) -> Table:
        return self.app.ktable(self.kept)

    @property
    def grouped(self) -> GroupedStream:
        return self.stream.group_by_key()


def first(*given: Any) -> Any:
    return given[0]


# How many arguments each function gets, and how it is given: `f` is the one that is looked at.
Give = Callable[[Scene, Any], object]
OPERATORS: list[tuple[str, int, Give]] = [
    ("filter", 2, lambda s, f: s.stream.filter(f)),
    ("filter_not", 2, lambda s, f: s.stream.filter_not(f)),
    ("peek", 2, lambda s, f: s.stream.peek(f)),
    ("map_values", 2, lambda s, f: s.stream.map_values(f)),
    ("flat_map_values", 2, lambda s, f: s.stream.flat_map_values(f)),
    ("map", 2, lambda s, f: s.stream.map(f)),
    ("flat_map", 2, lambda s, f: s.stream.flat_map(f)),
    ("select_key", 2, lambda s, f: s.stream.select_key(f)),
    ("group_by", 2, lambda s, f: s.stream.group_by(f, name="again")),
    ("join", 2, lambda s, f: s.stream.join(s.table, f)),
    ("left_join", 2, lambda s, f: s.stream.left_join(s.kept, f)),
    ("join", 2, lambda s, f: s.stream.join(s.all, first, on=f)),
    ("filter", 2, lambda s, f: s.table.filter(f, "some")),
    ("filter_not", 2, lambda s, f: s.table.filter_not(f, "some")),
    ("map_values", 2, lambda s, f: s.table.map_values(f, "some")),
    ("join", 2, lambda s, f: s.table.join(s.table, f, "both")),
    ("left_join", 2, lambda s, f: s.table.left_join(s.table, f, "both")),
    ("outer_join", 2, lambda s, f: s.table.outer_join(s.table, f, "both")),
    ("reduce", 2, lambda s, f: s.grouped.reduce(f, "sums")),
    ("aggregate", 0, lambda s, f: s.grouped.aggregate(f, first, "sums", value=serdes.json)),
    ("aggregate", 3, lambda s, f: s.grouped.aggregate(dict, f, "sums", value=serdes.json)),
    ("reduce", 2, lambda s, f: s.grouped.windowed_by(TumblingWindows(MINUTE)).reduce(f, "sums")),
    (
        "aggregate",
        0,
        lambda s, f: s.grouped.windowed_by(TumblingWindows(MINUTE)).aggregate(f, first, "sums", value=serdes.json),
    ),
    (
        "aggregate",
        3,
        lambda s, f: s.grouped.windowed_by(TumblingWindows(MINUTE)).aggregate(dict, f, "sums", value=serdes.json),
    ),
    (
        "aggregate",
        3,
        lambda s, f: s.grouped.windowed_by(SessionWindows(MINUTE)).aggregate(
            dict, first, "sums", value=serdes.json, merger=f
        ),
    ),
    ("Processor 'own'", 2, lambda s, f: s.app.process("orders", stores=[s.kept], name="own")(f)),
    (
        "Punctuation 'own'",
        2,
        lambda s, f: s.app.punctuate(every=MINUTE, on="stream_time", stores=[s.kept], name="own")(f),
    ),
    ("Pipeline 'own'", 2, lambda s, f: s.app.pipeline(reads=["a", "b"], writes="c", key="k", name="own")(f)),
    (
        "Store 'own'",
        1,
        lambda s, f: s.app.store(stores.custom("own", f, key=serdes.string, value=serdes.json)),
    ),
]
EACH = pytest.mark.parametrize(("name", "count", "give"), OPERATORS)


async def slept(*given: Any) -> None: ...


async def streamed(*given: Any) -> AsyncIterator[Any]:
    yield given


def several(*given: Any) -> Iterator[Any]:
    yield from given


class Sleeper:
    async def __call__(self, *given: Any) -> None: ...


def taking(count: int) -> Callable[..., Any]:
    """A function of exactly so many arguments."""
    made: Callable[..., Any] = eval(f"lambda {', '.join(f'a{n}' for n in range(count))}: 1")
    return made


def refusal(give: Give, function: Any) -> str:
    line = inspect.getsourcelines(give)[1]
    with pytest.raises(TopologyError) as caught:
        give(Scene(), function)
    message = str(caught.value)
    # A table of lambdas over several lines: what counts is the file and that it is one of its lines.
    said = re.search(rf"\({re.escape(str(Path(__file__).relative_to(Path.cwd())))}, line (\d+)\)$", message)
    assert said is not None, message
    assert line <= int(said[1]) <= line + 5, message
    return message


@EACH
def test_an_async_function_is_refused_with_the_operator_and_the_line(name: str, count: int, give: Give) -> None:
    cached = (functools.cache(slept), functools.lru_cache(5)(Sleeper()), functools.partial(functools.cache(streamed)))
    for function in (slept, streamed, Sleeper(), functools.partial(Sleeper()), functools.partial(slept), *cached):
        message = refusal(give, function)
        assert message.startswith(name)
        assert "async" in message


@EACH
def test_a_generator_function_is_refused_unless_its_rows_are_wanted(name: str, count: int, give: Give) -> None:
    if name.startswith("flat_map"):
        give(Scene(), several)
    else:
        for function in (several, functools.cache(several)):
            message = refusal(give, function)
            assert message.startswith(name)
            assert "yield" in message


@EACH
def test_what_takes_another_number_of_arguments_is_refused_and_told_what_it_gets(
    name: str, count: int, give: Give
) -> None:
    most = count + 1 if name.endswith("join") else count  # a joiner may take the key, too
    for function in (taking(most + 1), functools.partial(taking(most + 2), 1)):
        message = refusal(give, function)
        assert message.startswith(name)
        assert f"with {count} argument" in message or (count == 0 and "without arguments" in message)
        assert "a0" in message or "a1" in message, "what it takes is shown"
    if count:
        refusal(give, taking(count - 1))


@EACH
def test_what_is_no_function_is_refused(name: str, count: int, give: Give) -> None:
    for strange in ("x > 1", 5, ["a"], None if name.startswith(("map", "filter")) else b"x"):
        message = refusal(give, strange)
        assert message.startswith(name)
        assert repr(strange) in message


@dataclass
class Pair:
    one: Any
    other: Any = 1
    third: Any = 2


class Callee:
    def __call__(self, *given: Any) -> Any: ...

    def method(self, one: Any, other: Any, third: Any = None) -> Any: ...

    @staticmethod
    def plain(one: Any, other: Any) -> Any: ...


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that gives its function one more argument."""

    @functools.wraps(function)
    def wrapper(*given: Any) -> Any:
        return function("log", *given)

    return wrapper


@pytest.mark.parametrize(
    "function",
    [
        taking(2),
        lambda k, v, more=1: v,
        lambda *row: row,
        lambda k, *rest, log=None, **others: k,
        functools.partial(taking(3), 1),
        functools.partial(lambda k, v, *, log: v, log=1),
        functools.cache(taking(2)),
        logged(taking(3)),
        Callee(),
        Callee().method,
        Callee.plain,
        Pair,
        dict,
        int,
        max,
        print,
        divmod,
        operator.add,
        operator.itemgetter(0),
        "{}".format,
        {}.get,
    ],
    ids=lambda function: getattr(function, "__qualname__", type(function).__name__),  # the same in every process
)
def test_whatever_can_be_called_so_is_taken(function: Any) -> None:
    Scene().stream.map_values(function)


def test_builtins_without_a_signature_and_methods_of_types_are_taken() -> None:
    for factory in (dict, list, int, str, set):
        Scene().grouped.aggregate(factory, first, "sums", value=serdes.json)
    shorter: list[Any] = [len, str.upper, repr]
    for one in shorter:
        with pytest.raises(TopologyError, match=r"takes \("):
            Scene().stream.map_values(one)


def test_a_function_without_a_name_needs_one_and_what_is_no_function_is_called_so() -> None:
    process = Scene().app.process("orders")
    with pytest.raises(TopologyError, match=r"Processor .*Callee.* name=.*test_function_checks.py, line"):
        process(Callee())
    with pytest.raises(TopologyError, match=r"Processor was given 'orders' as its fun"):
        process("orders")  # type: ignore[type-var]  # what is looked at
    Scene().app.process("orders", name="own")(Callee())


def test_what_was_refused_is_not_declared() -> None:
    scene = Scene()
    with pytest.raises(TopologyError):
        scene.grouped.reduce(slept, "sums")
    scene.grouped.reduce(first, "sums")


def forgets(*given: Any) -> None:
    del given


def deletes(*given: Any) -> None:
    return None


def fails(*given: Any) -> Any:
    raise ValueError(given)


AGGREGATES: dict[str, Callable[[Scene, Callable[..., Any]], object]] = {
    "reducer": lambda s, f: s.grouped.reduce(f, "sums"),
    "adder": lambda s, f: s.grouped.aggregate(dict, f, "sums", value=serdes.json),
    "reducer of windows": lambda s, f: s.grouped.windowed_by(TumblingWindows(MINUTE)).reduce(f, "sums"),
    "merger": lambda s, f: s.grouped.windowed_by(SessionWindows(MINUTE)).aggregate(
        dict, first, "sums", value=serdes.json, merger=f
    ),
    "aggregator": lambda s, f: s.grouped.cogroup(f),
    "subtractor": lambda s, f: s.table.group_by(first, name="g").reduce(first, f),
    "subtractor of a table": lambda s, f: s.table.group_by(first, name="g").aggregate(
        dict, first, f, value=serdes.json
    ),
}


@pytest.mark.parametrize("role", AGGREGATES)
def test_an_aggregate_refuses_a_function_without_return(role: str) -> None:
    with pytest.raises(
        TopologyError, match=rf"{role.split()[0]}, which has no `return`\. Its result is always None, which deletes"
    ):
        AGGREGATES[role](Scene(), forgets)
    for accepted in (deletes, fails, lambda *given: None, functools.wraps(forgets)(lambda *given: given)):
        AGGREGATES[role](Scene(), accepted)
