"""What is given where something else belongs is named, and what belongs there instead is said."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from stateline import App, JoinWindows, serdes, stores
from stateline.dsl.streams import Stream, Table
from stateline.model.methods_of_tables import METHODS_OF_TABLES
from stateline.model.store_definition import GlobalTable
from stateline_store import CallerError

DAY = timedelta(days=1)
A_TYPE: Any = str


class Scene:
    def __init__(self) -> None:
        self.app = App("shop")
        self.stream: Stream = self.app.stream("orders", key=serdes.string, value=serdes.json)
        self.kept = self.app.table("products", key=serdes.string, value=serdes.json)
        self.table: Table = self.app.ktable(self.kept)
        self.all: GlobalTable = self.app.global_table("countries", key=serdes.string, value=serdes.json)
        self.topic = self.app.topic("events", key=serdes.string, value=serdes.json)
        theirs = App("theirs")
        self.their_stream: Stream = theirs.stream("orders", key=serdes.string, value=serdes.json)
        self.their_table = theirs.ktable(theirs.table("products", key=serdes.string, value=serdes.json))


def taking(*given: Any) -> Any: ...


MIXED_UP: dict[str, tuple[Callable[[Any], object], str]] = {
    "a stream joined with a stream": (lambda s: s.stream.join(s.stream, taking), r"join of two streams .*\.to_table"),
    "a stream joined with a name": (
        lambda s: s.stream.left_join("products", taking),
        r"left_join .*'products'.*app\.table",
    ),
    "a stream joined with a topic": (lambda s: s.stream.join(s.topic, taking), r"join .*topic .*app\.table"),
    "a table joined with a stream": (lambda s: s.table.join(s.stream, taking, "x"), r"join .* Stream,.*\.to_table"),
    "a table joined with a global table": (
        lambda s: s.table.left_join(s.all, taking, "x"),
        r"join .* GlobalTable,.*Stream\.join",
    ),
    "a table joined with a store": (lambda s: s.table.join(s.kept, taking, "x"), r"join .*app\.ktable"),
    "a stream merged with another application's": (lambda s: s.stream.merge(s.their_stream), r"^merge: .*'theirs'"),
    "a stream joined with another application's": (
        lambda s: s.stream.join(s.their_stream, taking, within=JoinWindows(DAY)),
        r"^join: .*'theirs'",
    ),
    "a stream joined with another application's table": (
        lambda s: s.stream.left_join(s.their_table, taking),
        r"^left_join: .*'theirs'",
    ),
    "a stream grouped with another application's": (
        lambda s: s.stream.group_by_key().cogroup(max).cogroup(s.their_stream.group_by_key(), max),
        r"^cogroup: .*'theirs'",
    ),
    "a table joined with another application's": (
        lambda s: s.table.join(s.their_table, taking),
        r"^join: .*'theirs'",
    ),
    "a stream merged with a table": (lambda s: s.stream.merge(s.table), r"merge .* Table,.*to_stream"),
    "a global table in a processor": (
        lambda s: s.app.process("orders", stores=[s.all])(taking),
        r"Processor 'taking' .* GlobalTable,.*Stream\.join.*app\.table",
    ),
    "a global table in a punctuation": (
        lambda s: s.app.punctuate(every=DAY, on="stream_time", stores=[s.all])(taking),
        r"Punctuation 'taking' .* GlobalTable,.*app\.table",
    ),
    "another clock for a punctuation": (
        lambda s: s.app.punctuate(every=DAY, on="streamtime", stores=[s.kept]),
        r"on='streamtime'.*'stream_time' or 'wall_clock_time'",
    ),
    "a number as an interval": (
        lambda s: s.app.punctuate(every=10, on="stream_time", stores=[s.kept]),
        r"every=10.*timedelta",
    ),
    "a table in a processor": (lambda s: s.app.process("orders", stores=[s.table])(taking), r"Table,.*\.store"),
    "a name in a processor": (
        lambda s: s.app.process("orders", stores=["products"])(taking),
        r"'products'.*app\.store",
    ),
    "names as stores": (lambda s: s.app.process("orders", stores="products")(taking), r"stores='products': .*list"),
    "a store as stores": (lambda s: s.app.process("orders", stores=s.kept)(taking), r"stores=.*: .*list"),
    "a name to forward to": (lambda s: s.app.process("orders", forwards=["out"])(taking), r"'out'.*app\.topic"),
    "a stream to forward to": (lambda s: s.app.process("orders", forwards=[s.stream])(taking), r"Stream,.*app\.topic"),
    "a processor of a stream": (lambda s: s.app.process(s.stream)(taking), r"^app\.process .* Stream,.*\.to\("),
    "a processor of a table": (lambda s: s.app.process(s.table)(taking), r"^app\.process .* Table,.*to_stream"),
    "a stream of a table": (lambda s: s.app.stream(s.kept), r"^app\.stream .*store 'products'.*topic"),
    "a stream of a stream": (lambda s: s.app.stream(s.stream), r"^app\.stream .* Stream,.*\.to\("),
    "a table of a stream": (lambda s: s.app.table(s.stream), r"^app\.table .* Stream,.*\.to"),
    "a stream written to a stream": (lambda s: s.stream.to(s.stream), r"^to .* Stream,.*\.to\("),
    "a pipeline of a stream": (
        lambda s: s.app.pipeline(reads=s.stream, writes="o", key="k"),
        r"^app\.pipeline .* Stream,.*\.to\(",
    ),
    "a stream as a pipeline's result": (
        lambda s: s.app.pipeline(reads="i", writes=s.stream, key="k"),
        r"^app\.pipeline .* Stream,.*\.to\(",
    ),
    "a global table of a stream": (
        lambda s: s.app.global_table(s.stream),
        r"^app\.global_table .* Stream,.*\.to\(",
    ),
    "a pipeline of a table": (
        lambda s: s.app.pipeline(reads=[], tables=[s.table], writes="o", key="k"),
        r"^app\.pipeline .* Table,.*topic",
    ),
    "a name as a table": (lambda s: s.app.ktable("products"), r"'products'.*app\.table"),
    "a table as a table": (lambda s: s.app.ktable(s.table), r"Table,.*app\.table"),
    "a global table as a table": (lambda s: s.app.ktable(s.all), r"GlobalTable,.*app\.table"),
    "a name as a store": (lambda s: s.app.store("seen"), r"'seen'.*stores\."),
    "a topic as a store": (lambda s: s.app.store(s.topic), r"the topic .*stores\."),
    "a name as a store of another application": (
        lambda s: s.app.external_store("seen", of="java"),
        r"'seen'.*stores\.",
    ),
    "a type as a serde": (
        lambda s: s.app.topic("t", key=str, value=serdes.json),
        r"<class 'str'> is no serde.*serdes\.string",
    ),
    "a class as a serde": (lambda s: s.app.topic("t", value=type(serdes.json)), r"JsonSerde.*serde.*serdes\.string"),
    "a function as a serde": (lambda s: s.app.stream("t", key=serdes.windowed), r"windowed .*serde.*serdes\.string"),
    "a type as a store's serde": (
        lambda s: stores.key_value("n", key=A_TYPE, value=serdes.json),
        r"serde.*serdes\.string",
    ),
    "a type as the serde of values": (lambda s: s.stream.map_values(taking, value=int), r"serde.*serdes\.string"),
    "a type as a window's key": (lambda s: serdes.windowed(A_TYPE), r"serde.*serdes\.string"),
}  # fmt: skip


@pytest.mark.parametrize("what", MIXED_UP)
def test_it_is_said_what_there_is_instead(what: str) -> None:
    declare, says = MIXED_UP[what]
    with pytest.raises(CallerError, match=says) as caught:
        declare(Scene())
    assert len(str(caught.value)) < 400
    assert " object at 0x" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("str", "string"),
        ("int", "int64"),
        ("float", "float64"),
        ("double", "float64"),
        ("dict", "json"),
        ("nonsense", ""),
    ],
)
def test_a_serde_that_is_called_otherwise_is_named(name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=rf"no serde {name!r}.*serdes\.{instead}"):
        getattr(serdes, name)
    assert not hasattr(serdes, name)


def test_methods_of_tables_are_found_from_the_declaration_of_a_table() -> None:
    methods = {name for name, each in inspect.getmembers(Table, inspect.isfunction) if name[0] != "_"}
    assert methods - {"named"} == METHODS_OF_TABLES
    kept = Scene().kept
    for name in METHODS_OF_TABLES:
        with pytest.raises(
            AttributeError, match=rf"no attribute '{name}': call app\.ktable\(…\) of it, then \.{name}\("
        ):
            getattr(kept, name)
    with pytest.raises(AttributeError, match=r"no attribute 'sideways'$"):
        _ = kept.sideways  # type: ignore[attr-defined]  # the mistake
    assert pickle.loads(pickle.dumps(kept)).name == kept.name
    assert copy.copy(kept) == kept
