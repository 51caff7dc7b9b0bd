"""Errors for arguments of a wrong kind. They name the argument and the right kind. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias, TypeVar

from stateline.model.store_definition import StoreDefinition
from stateline.model.topic import Topic
from stateline.serde.plain import shown
from stateline_store import TopologyError

T = TypeVar("T")
Wanted: TypeAlias = Literal[
    "topic", "declared topic", "store", "new store", "stream", "stream to join", "table", "declared table",
    "table or stream to join",
]  # fmt: skip

_KEEP_IT = "keep what it has with .to_table(…), and give that"
_ADVICE: dict[Wanted, str] = {
    "topic": "give its name, or what app.topic(…) returned",
    "declared topic": "give what app.topic(…) or app.repartition(…) returned",
    "store": "give what app.store(…) or app.table(…) returned",
    "new store": "give what one of the functions of stateline.stores returned, such as stores.key_value(…)",
    "stream": "give what app.stream(…) returned, or one of a stream's methods",
    "stream to join": "leave out within=… to join a table, or give a stream",
    "table": "give what app.ktable(…) returned, or a table that was made of others",
    "declared table": "give what app.table(…) returned",
    "table or stream to join": "give a Table, a Stream with within=…, app.table(…), or app.global_table(…) with on=…",
}
# By what was given; else the above.
_INSTEAD: dict[tuple[Wanted, str], str] = {
    ("topic", "Stream"): "write it to a topic with .to(…), and give that topic",
    ("topic", "Table"): "give the topic that it is of, or write its changes to one with .to_stream().to(…)",
    ("topic", "WindowedTable"): "write its changes to a topic with .to_stream().to(…), and give that topic",
    ("topic", "StoreDefinition"): "give the topic that it is of",
    ("topic", "Pattern"): "only app.stream takes a pattern, alone and not in a list. Give the name of a topic",
    ("store", "Table"): "give its .store",
    ("store", "WindowedTable"): "give its .store",
    ("store", "GlobalTable"): "join a stream with it by Stream.join(…, on=…), or give what app.table(…) returned",
    ("store", "Stream"): _KEEP_IT + " table's .store",
    ("stream", "Table"): "give its .to_stream()",
    ("stream", "WindowedTable"): "give its .to_stream()",
    ("table", "Stream"): _KEEP_IT,
    ("table", "StoreDefinition"): "give app.ktable(…) of it",
    ("table", "GlobalTable"): "join a stream with it by Stream.join(…, on=…)",
}


def wrong_kind(operator: str, given: object, wanted: Wanted) -> TopologyError:
    """Return the error for `given`, which `operator` cannot take; `wanted` says what it takes."""
    advice = _INSTEAD.get((wanted, type(given).__name__), _ADVICE[wanted])
    return TopologyError(f"{operator} was given {_described(given)}, which is no {wanted}: {advice}.")


def listed(operator: str, argument: str, given: Iterable[T]) -> tuple[T, ...]:
    """Return the items of a list. Raises `TopologyError` for a single item, such as a text, which Python would take
    for a list of letters."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TopologyError(f"{operator} was given {argument}={_described(given)}: give it as a list, […].")
    return tuple(given)


def is_of_stateline(given: object) -> bool:
    """Whether this is a stream, a table, a topic or another thing that an application declares."""
    return type(given).__module__.startswith("stateline.")


def _described(given: object) -> str:
    if isinstance(given, Topic | StoreDefinition):
        return f"the {'topic' if isinstance(given, Topic) else 'store'} {given.name!r}"
    if is_of_stateline(given):
        return f"a {type(given).__name__}"
    return shown(given)
