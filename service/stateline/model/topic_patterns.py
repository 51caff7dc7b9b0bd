"""Patterns of topics' names: which topics they match. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from stateline.model.topology import Topology

NamePattern: TypeAlias = re.Pattern[str]

# What follows on `<application.id>-` in the names of topics that Stateline makes. Those of Kafka Streams come first.
_INTERNAL = re.compile(
    r".+-(changelog|repartition|subscription-registration-topic|subscription-response-topic)"
    r"|KTABLE-FK-JOIN-SUBSCRIPTION-(REGISTRATION|RESPONSE)-\d+-topic"
    r"|.+-epochs|nodes|pipeline-status"
)


def matches(pattern: NamePattern, application_id: str, topic: str) -> bool:
    """Whether the pattern matches the topic's full name. Internal topics of the application, and topics that begin with
    ``__``, match no pattern."""
    own = topic.removeprefix(f"{application_id}-")
    if topic.startswith("__") or (own != topic and _INTERNAL.fullmatch(own)):
        return False
    return pattern.fullmatch(topic) is not None


def matched(topology: Topology, topics: Iterable[str]) -> list[str]:
    """Return those of the topics that a pattern of the topology matches."""
    return [t for t in topics if any(matches(p, topology.application_id, t) for p in topology.patterns)]


def matched_sources(topology: Topology) -> list[str]:
    """Return the topics that the workers read by patterns."""
    return matched(topology, dict.fromkeys(t.name for s in topology.subtopologies for t in s.sources))


def unread(topology: Topology, topics: Iterable[str]) -> set[str]:
    """Return those of the topics that a pattern matches, and that the workers do not read."""
    return {*matched(topology, topics)} - {*matched_sources(topology)}
