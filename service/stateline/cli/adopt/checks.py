"""Whether a store of Kafka Streams can be adopted for a declared store, and up to which offset it goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from stateline.model.store_definition import StoreDefinition
from stateline_store import Layout, StateStore, TopicPartition, TopologyError, TransactionalStore
from stateline_store.adoption.java_store import JavaFiles, JavaStore

Offsets: TypeAlias = Mapping[TopicPartition, tuple[int, int]]
"""First offset and end of changelog partitions."""


class Candidate(NamedTuple):
    """A partition of a store in Java, and the store and task that it is for. `partition` is None for a global table,
    `topic` for a store without a changelog. The store's Position follows `sources`."""

    definition: StoreDefinition
    topic: str | None
    java_task: str
    files: JavaFiles
    task: str
    partition: int | None
    sources: frozenset[str]


def refuse_other_form(candidate: Candidate, built: StateStore) -> None:
    """Raise `TopologyError` if a store that is declared like this one cannot take files of Java's."""
    if not isinstance(built, TransactionalStore) or candidate.definition.factory is not None:
        raise TopologyError("It is of a kind of your own here. Only Stateline's own kinds can be adopted.")
    if candidate.definition.ttl_ms or candidate.definition.own_ttl:
        raise TopologyError("It has a time to live here, which Kafka Streams does not have.")
    if not built.persistent:
        raise TopologyError("It is in memory here, so it is read from its changelog at each start.")
    if candidate.topic is None:
        raise TopologyError("It has no changelog here, so no offset belongs to its rows.")
    in_segments = built.layout.kind in ("window", "session")
    if in_segments != bool(candidate.files.starts_ms):
        java = "windows or sessions" if candidate.files.starts_ms else "keys without windows"
        raise TopologyError(f"It is a store of {java} in Java, and of kind {candidate.definition.kind} here.")


def checked_offsets(
    candidate: Candidate, java: JavaStore, layout: Layout, bounds: Offsets
) -> dict[TopicPartition, int]:
    """Return the changelog offsets up to which the rows go. A store of a join of streams may have lost the headers
    here. Raises `TopologyError` with the reason if this store cannot be adopted."""
    of_java, declared = _form(java.timestamped, java.has_headers), _form(layout.timestamped, layout.headers)
    if of_java != declared and not (java.has_headers and layout.retain_duplicates and not layout.timestamped):
        raise TopologyError(f"Its rows are {of_java} in Java, and declared {declared} here. Declare them as in Java.")
    if not java.is_closed:
        raise TopologyError(
            "It was open when Java's process ended, so rows may be missing. Start the Java application, stop it with "
            "SIGTERM, then adopt again."
        )
    behind = 1 if candidate.partition is None else 0  # of global stores, Kafka Streams keeps the next offset
    of_topic = {
        place: offset - behind
        for place, offset in java.offsets.items()
        if place.topic == candidate.topic and candidate.partition in (None, place.partition) and offset >= behind
    }
    if not of_topic:
        raise _without_offset(candidate, java)
    for place, offset in of_topic.items():
        _check_bounds(place, offset, bounds)
    return of_topic


def _form(timestamped: bool, headers: bool) -> str:
    return "with headers" if headers else "with timestamps" if timestamped else "without timestamps"


def _without_offset(candidate: Candidate, java: JavaStore) -> TopologyError:
    others = sorted({place.topic for place in java.offsets})
    own = next((topic for topic in others if topic.endswith("-changelog")), None)
    if own is not None and not (candidate.topic or "").endswith("-changelog"):
        return TopologyError(
            f"Java keeps it in {own}, because its topology is not optimized, and this table is read from "
            f"{candidate.topic}. The worker restores it from there."
        )
    if others and java.has_own_offsets:
        return TopologyError(
            f"Its offset is of {', '.join(others)}, but this store is read from {candidate.topic}. It belongs to "
            "another application or topology."
        )
    known = f" It has {', '.join(others)}." if others else ""
    return TopologyError(
        f"There is no offset of {candidate.topic}: the Java application was not stopped in order, or it is another "
        f"one.{known} Start it, stop it with SIGTERM, then adopt again."
    )


def _check_bounds(place: TopicPartition, offset: int, bounds: Offsets) -> None:
    if place not in bounds:
        raise TopologyError(f"There is no {place} on this Kafka cluster. Check bootstrap.servers.")
    first, end = bounds[place]
    if offset + 1 < first:
        raise TopologyError(
            f"It has offset {offset}, and {place} begins at offset {first}: the records in between were deleted. The "
            "worker restores the store."
        )
    if offset + 1 > end:
        raise TopologyError(
            f"It has offset {offset}, but {place} ends at offset {end}: the topic was created again, or this is "
            "another cluster."
        )
