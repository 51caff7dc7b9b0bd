"""`Stream.to`: the topic, or the function that chooses it for each row, and the partitioner (docs/streams.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from stateline.dsl.declarations import Declarations
from stateline.dsl.wrong_kinds import listed
from stateline.model.function_checks import check_function, wants
from stateline.model.nodes import OperatorNode
from stateline.model.topic import Topic
from stateline.processing.operators import ChosenTopicSink, TopicSink
from stateline.serde.plain import Serde
from stateline_store import TopologyError

if TYPE_CHECKING:
    from stateline.processing.operators.topic_sinks import Partitioner

ChooseTopic: TypeAlias = Callable[[Any, Any], str | Topic] | Callable[[Any, Any, Any], str | Topic]
"""Takes the key and the value, and with three parameters the record (`InputRecord`), and returns the topic."""


def output(
    declarations: Declarations,
    to: str | Topic | ChooseTopic,
    topics: Sequence[str | Topic],
    partitioner: Partitioner | None,
    key: Serde,
    value: Serde,
) -> OperatorNode:
    """Declare the topics, and return the node that writes rows of these serdes. Raises `TopologyError`."""
    if partitioner is not None:
        check_function("to", partitioner, "topic", "key", "value", "partitions", role="partitioner")
    if not callable(to):
        if topics:
            raise TopologyError("to: topics=… is for a function that chooses among them. Leave it out.")
        target = declarations.topic_or_new("to", to, key, value)
        declarations.claim_outputs("`to`", [target])
        name = f"to {target.name}"
        return OperatorNode(name, partial(TopicSink, name, target, partitioner), forwards=(target,))
    known = tuple(declarations.topic_or_new("to", each, key, value) for each in listed("to", "topics", topics))
    declarations.claim_outputs("`to`", known)
    name = f"to {getattr(to, '__name__', type(to).__name__)}"
    topic_of = partial(declarations.chosen_topic, key=key, value=value)
    make = partial(ChosenTopicSink, name, _with_record(to), topic_of, partitioner)
    return OperatorNode(name, make, forwards=known, chooses_topic=True)


def _with_record(choose: Callable[..., Any]) -> Callable[[Any, Any, Any], Any]:
    if wants(choose, 3):
        check_function("to", choose, "key", "value", "record")
        return choose
    check_function("to", choose, "key", "value")
    return lambda key, value, record: choose(key, value)
