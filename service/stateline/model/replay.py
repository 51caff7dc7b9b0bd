"""Which subtopologies have to read their input again together, because one writes what the other one reads. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from stateline.model.topology import Subtopology, Topology


def written_by(subtopology: Subtopology) -> set[str]:
    """The topics that its processors write to."""
    return {topic.name for processor in subtopology.processors for topic in processor.forwards}


def processed_by(subtopology: Subtopology) -> set[str]:
    """The topics that its processors read; not those that only tables are kept of."""
    return {processor.source.name for processor in subtopology.processors}


def repartition_topics(topology: Topology) -> set[str]:
    """The topics whose records go when they have been processed."""
    processors = [processor for subtopology in topology.subtopologies for processor in subtopology.processors]
    return {topic.name for processor in processors for topic in processor.forwards if topic.internal}


def users_of(topology: Topology, repartition: str) -> set[int]:
    """The subtopologies that write to this repartition topic, or read it."""
    found = {s.ordinal for s in topology.subtopologies if repartition in written_by(s)}
    return found | {s.ordinal for s in topology.subtopologies if repartition in {t.name for t in s.sources}}


def replayed_with(topology: Topology, ordinals: Iterable[int]) -> set[int]:
    """These subtopologies, and those that have to start over with them: connected by repartition topics, or processing
    what one of them writes."""
    found, size = set(ordinals), 0
    while size != len(found):
        size = len(found)
        for topic in repartition_topics(topology):
            if (users := users_of(topology, topic)) & found:
                found |= users
        written = {topic for s in topology.subtopologies if s.ordinal in found for topic in written_by(s)}
        found |= {s.ordinal for s in topology.subtopologies if processed_by(s) & written}
    return found
