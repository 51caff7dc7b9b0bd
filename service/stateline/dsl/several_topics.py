"""One stream of the records of one or several topics, by names or by a pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from stateline import serdes
from stateline.dsl.wrong_kinds import is_of_stateline, listed
from stateline.model.nodes import OperatorNode, Root
from stateline.model.topic import Topic
from stateline.model.topic_patterns import NamePattern
from stateline.processing.operators import Merge
from stateline.serde.plain import Serde
from stateline_store import TopologyError

if TYPE_CHECKING:
    from stateline.dsl.declarations import Declarations


def read_topics(
    declarations: Declarations,
    given: str | Topic | Iterable[str | Topic] | NamePattern,
    key: Serde | None,
    value: Serde | None,
) -> tuple[OperatorNode | Root, Serde, Serde]:
    """Return the node that all rows of these topics come from, and the types of the rows.

    Raises `TopologyError` for an empty list, a topic that is named twice, topics of different types, and as
    `TopicPatterns.read`."""
    if isinstance(given, re.Pattern):
        key, value = key or serdes.bytes, value or serdes.bytes
        node = declarations.patterns.read(given, key, value)
        return node, declarations.in_flight(key, "key"), declarations.in_flight(value, "value")
    names: tuple[Any, ...]
    if isinstance(given, str | Topic) or is_of_stateline(given):
        names = (given,)  # the declarations say what is wrong with a stream or a table
    else:
        names = listed("app.stream", "topic", given)
    topics = [declarations.topic("app.stream", each, key, value) for each in names]
    if not topics:
        raise TopologyError("app.stream was given no topic: name at least one.")
    first = topics[0]
    for topic in topics[1:]:
        if (topic.key.name, topic.value.name) != (first.key.name, first.value.name):
            raise TopologyError(
                f"app.stream: {first.name!r} has records of ({first.key.name}, {first.value.name}) and {topic.name!r} "
                f"of ({topic.key.name}, {topic.value.name}): one stream has one type. Bring both to the same types, "
                "then use .merge(…)."
            )
    if len({topic.name for topic in topics}) < len(topics):
        raise TopologyError(f"app.stream was given a topic twice: {[topic.name for topic in topics]}.")
    roots = [declarations.stream_root(topic) for topic in topics]
    if len(roots) == 1:
        return roots[0], first.key, first.value
    node = OperatorNode("merge", Merge, in_order=True)
    for root in roots:
        root.then(node)
    return node, first.key, first.value
