"""A coroutine or a generator that comes out of a function, where no look at the function could tell, fails the record:
nothing runs it."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from service.worker.operators.operator_scene import Scene
from stateline import App, SessionWindows, TumblingWindows, serdes
from stateline.serde.plain import Serde
from stateline_store import RecordError

GAP = timedelta(minutes=1)


async def slept(*given: Any) -> bool:
    return False


async def streamed(*given: Any) -> AsyncIterator[Any]:
    yield given


def several(*given: Any) -> Iterator[Any]:
    yield from given


def hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    """As a decorator hides it."""

    @functools.wraps(function)
    def logged(*given: Any) -> Any:
        return function(*given)

    return logged


class Anything(type(serdes.string)):  # type: ignore[misc]  # the class of a ready-made one
    """A type of an application's own that writes whatever it is given."""

    def serialize(self, value: Any) -> bytes:
        return repr(value).encode()


ANY: Serde = Anything()


def second(*given: Any) -> Any:
    return given[1]


class Everything:
    """An application with one topic, and each operator that takes functions, to be given one of them."""

    def __init__(self) -> None:
        self.app = App("app")
        self.stream = self.app.stream("in", key=serdes.string, value=ANY)
        self.kept = self.app.table("in", store="kept", key=serdes.string, value=ANY)
        self.table = self.app.ktable(self.kept)
        self.all = self.app.global_table("all", key=ANY, value=ANY)
        self.grouped = self.stream.group_by_key()

    def tumbling(self) -> Any:
        return self.grouped.windowed_by(TumblingWindows(GAP))

    def sessions(self) -> Any:
        return self.grouped.windowed_by(SessionWindows(GAP))


OPERATORS: dict[str, Callable[[Everything, Any], Any]] = {
    "filter": lambda e, f: e.stream.filter(f).to("out"),
    "filter_not": lambda e, f: e.stream.filter_not(f).to("out"),
    "peek": lambda e, f: e.stream.peek(f).to("out"),
    "map_values": lambda e, f: e.stream.map_values(f).to("out"),
    "select_key": lambda e, f: e.stream.select_key(f, key=ANY).to("out"),
    "join": lambda e, f: e.stream.join(e.kept, f).to("out"),
    "left_join": lambda e, f: e.stream.left_join(e.all, second, on=f).to("out"),
    "filter of a table": lambda e, f: e.table.filter(f, "made").to_stream().to("out"),
    "filter_not of a table": lambda e, f: e.table.filter_not(f, "made").to_stream().to("out"),
    "map_values of a table": lambda e, f: e.table.map_values(f, "made").to_stream().to("out"),
    "join of tables": lambda e, f: e.table.join(e.grouped.count("counts"), f, "made", value=ANY).to_stream().to("out"),
    "reduce": lambda e, f: e.stream.flat_map_values(lambda k, v: (v, v)).group_by_key().reduce(f, "made"),
    "initial": lambda e, f: e.grouped.aggregate(f, second, "made", value=ANY).to_stream().to("out"),
    "adder": lambda e, f: e.grouped.aggregate(int, f, "made", value=ANY).to_stream().to("out"),
    "adder of windows": lambda e, f: e.tumbling().aggregate(int, f, "made", value=ANY).to_stream().to("out"),
    "merger": lambda e, f: (
        e.stream.flat_map_values(lambda k, v: (v, v))
        .group_by_key()
        .windowed_by(SessionWindows(GAP))
        .aggregate(int, second, "made", value=ANY, merger=f)
    ),
    "initial of sessions": lambda e, f: (
        e.sessions().aggregate(f, second, "made", value=ANY, merger=second).to_stream().to("out")
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_a_record_whose_function_ran_nothing_has_failed(tmp_path: Path, name: str) -> None:
    everything = Everything()
    OPERATORS[name](everything, hidden(slept))
    scene = Scene(everything.app, tmp_path, partitions=1)
    scene.create("out")
    scene.send("in", [("a", "1", 1_000)])
    with pytest.raises(RecordError, match=r"failed on in-0 offset 0 .*gave a coroutine, and nothing runs it"):
        scene.work_off()


def test_under_skip_it_is_left_out_and_all_else_goes_on(tmp_path: Path) -> None:
    app = App("app")
    stream = app.stream("in", key=serdes.string, value=serdes.string)
    for n, function in enumerate((slept, streamed, several)):
        lazy = functools.partial(lambda run, key, value: run() if value == "lazy" else True, hidden(function))
        stream.filter(lazy).to(f"out-{n}")
    scene = Scene(app, tmp_path, partitions=1, settings={"processing.exception.handler": "skip"})
    scene.send("in", [("a", "1", 1), ("b", "lazy", 2), ("c", "3", 3)])
    scene.work_off()
    for n in range(3):
        assert [record.value for record in scene.written(f"out-{n}")] == [b"1", b"3"]
    assert scene.failures.skipped == 3
