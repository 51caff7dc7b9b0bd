"""Says what a method or a class is called here to one who calls it by its name in Java, as `mapValues`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, ClassVar

# Classes of Kafka Streams that have no class of their name here.
CLASSES: Mapping[str, str] = {
    "TimeWindows": "TumblingWindows(size) or HoppingWindows(size, advance)",
    "StreamsBuilder": "App",
    "KafkaStreams": "App, and stateline run MODULE:APP",
    "KStream": "app.stream",
    "KTable": "app.ktable",
    "GlobalKTable": "app.global_table",
    "Serdes": "serdes",
    "Stores": "stores",
    "Consumed": "key= and value= of app.stream",
    "Produced": "key= and value= of app.topic",
    "Grouped": "name= and key= of .group_by",
    "Materialized": "store= of the aggregate",
    "Suppressed": "until_window_closes or until_time_limit",
    "EmitStrategy": "on_window_close",
}
_CAPITAL = re.compile("(?<=[a-z])(?=[A-Z])")


def python_name(name: str) -> str:
    """Return a name of Java's as Python writes it."""
    return _CAPITAL.sub("_", name).lower()


class HintsAtJavaNames:
    """A class whose methods are those of Kafka Streams. `_elsewhere`: for methods of Java's that are not here, by their
    names, the cure."""

    __slots__ = ()
    _elsewhere: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # else mypy would take any attribute to exist

        def __getattr__(self, name: str) -> object:
            """Raise `AttributeError`. For a name of Java's, it has the one of Python."""
            found = python_name(name)
            is_here = found != name and hasattr(type(self), found)
            cure = self._elsewhere.get(name) or (f"use .{found}" if is_here else "")
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{cure and ': ' + cure}", name=name)


class HintsAtConstructor(type):
    """The type of dataclasses that Java makes by methods such as ``TimeWindows.ofSizeWithNoGrace``."""

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> object:
            """Raise `AttributeError`. For such a method, it has the call that makes one here."""
            call = f"{cls.__name__}({', '.join(f'{each.name}=…' for each in fields(cls))})" if name[:2] == "of" else ""
            raise AttributeError(f"{cls.__name__} has no attribute {name!r}{call and ': use ' + call}", name=name)
