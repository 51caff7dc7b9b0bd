"""Functions that the worker calls, as an application declares them: with records, or as time goes by. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from stateline.model.nodes import Root, nodes_of
from stateline.model.store_definition import StoreDefinition
from stateline.model.topic import Topic


@dataclass(frozen=True, slots=True)
class Punctuation:
    """When a function is called that sees no records: by the timestamps of the task's records, or by the clock."""

    every_ms: int
    on: Literal["stream_time", "wall_clock_time"]


@dataclass(frozen=True, slots=True)
class Processor:
    """A user's function that sees each record of a topic, with its stores and the topics it writes to; or, with
    `roots`, the operators that take the topic's records (`stateline.dsl.streams`); or, with a `punctuation`, a function
    that is called as time goes by (`source` is then a topic that feeds its stores)."""

    name: str
    function: Callable[..., object]
    source: Topic
    stores: tuple[StoreDefinition, ...] = ()
    forwards: tuple[Topic, ...] = ()
    roots: tuple[Root, ...] = field(default=(), repr=False)
    punctuation: Punctuation | None = None

    @property
    def chooses_topic(self) -> bool:
        """Whether it also writes to topics that are not known before."""
        return any(node.chooses_topic for node in nodes_of(self.roots))

    @property
    def is_called_by_clock(self) -> bool:
        return self.punctuation is not None and self.punctuation.on == "wall_clock_time"


def processor_of(topic: Topic, roots: tuple[Root, ...]) -> Processor:
    """Return the topology's entry for the operators that get the records of one topic."""
    nodes = nodes_of(roots)
    stores = [root.table for root in roots if root.table is not None] + [s for node in nodes for s in node.stores]
    forwards = [topic for node in nodes for topic in node.forwards]
    return Processor(
        f"{topic.name}-operators",
        _not_called,
        topic,
        tuple({store.name: store for store in stores}.values()),
        tuple({topic.name: topic for topic in forwards}.values()),
        roots,
    )


def _not_called(*arguments: object) -> None:
    raise AssertionError("Operators are run by the worker's operator graph.")
