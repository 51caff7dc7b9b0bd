"""Find stores that are new to an application that has run before. They get new records, and no history.

A store with a changelog is new if this start created the changelog after the group had read the store's input. A new
store without a changelog cannot be recognised.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Container, Iterable, Iterator, Mapping

from stateline.deployment.refused_stores import StoresRefusedError
from stateline.deployment.stores.resets import Reset, is_where_it_was_put
from stateline.log.interface import Admin, OffsetNote, TopicInfo
from stateline.model.fed_parts import FedPart, FedParts, PartKind
from stateline.model.replay import written_by
from stateline.model.reset_command import reset_command, way_back
from stateline.model.store_definition import StoreDefinition
from stateline.model.topology import Subtopology, Topology
from stateline_store import TopicPartition

_log = logging.getLogger(__name__)

_IN_STORE: tuple[PartKind, ...] = ("store", "through")


def say_new_stores(topology: Topology, created: Collection[str], admin: Admin, reset: Reset | None) -> None:
    for warning in new_stores(topology, created, admin, reset):
        _log.warning("%s", warning)


def new_stores(topology: Topology, created: Collection[str], admin: Admin, reset: Reset | None) -> Iterator[str]:
    """Yield a warning per subtopology with new stores, with the command that fills them. `created` are the topics that
    the start creates. A `reset` creates changelogs again, and then nothing is missing. Raises what the log raises."""
    for subtopology in topology.subtopologies:
        new = [
            store.name
            for store in subtopology.stores
            if store.source is None and store.changelog(topology.application_id) in created
        ]
        if new and (passed := _passed(topology, _feeding(topology, subtopology, created), admin, reset)):
            yield (
                f"{', '.join(new)} of subtopology {subtopology.ordinal} is new, and {', '.join(passed)} was read "
                "before: it gets what comes from now on. To fill it from the beginning, stop the application "
                f"everywhere: {reset_command(topology, new)}"
            )


def lost_changelogs(
    topology: Topology,
    existing: Container[str],
    committed: Mapping[TopicPartition, tuple[int, OffsetNote]],
    bounds: Mapping[TopicPartition, tuple[int, int]],
    backup_location: str | None,
) -> dict[str, str]:
    """Store → why it is not served, if its changelog was deleted. The group's notes say that input went into the store,
    and an empty changelog would restore it without that input. Pure."""
    reasons: dict[str, str] = {}
    missing = {
        FedPart(store.name, kind).digest: store
        for store in _without_changelog(topology, existing)
        for kind in _IN_STORE
    }
    for source, (at, note) in committed.items():
        fed = FedParts.decode(note.fed)
        if (
            fed is None or not bounds[source][0] < at <= bounds[source][1]
        ):  # nothing was read, or the topic was created again
            continue
        for digest in missing.keys() & (fed.has_all | {digest for digest, left in fed.left.items() if left > 0}):
            store = missing[digest]
            reasons.setdefault(
                store.name,
                f"{store.changelog(topology.application_id)} is missing: the topic was deleted or this is another "
                f"cluster. Store {store.name!r} has input of {source} up to offset {fed.left.get(digest, at) - 1}, and "
                f"an empty topic cannot restore it. {way_back(topology, backup_location)}, or rebuild the store: stop "
                f"the application everywhere, then {reset_command(topology, [store.name])}",
            )
    return reasons


def refuse_lost_changelogs(
    topology: Topology, existing: Mapping[str, TopicInfo], admin: Admin, backup_location: str | None
) -> None:
    """Raise `StoresRefusedError` for `lost_changelogs`, before anybody creates a changelog again. Raises what the log
    raises."""
    if not _without_changelog(topology, existing):
        return
    sources = {topic.name for subtopology in topology.subtopologies for topic in subtopology.sources}
    places = [place for name in sources & existing.keys() for place in existing[name].places]
    committed = admin.committed_with_notes(topology.application_id, places)
    if reasons := lost_changelogs(topology, existing, committed, admin.bounds(committed), backup_location):
        raise StoresRefusedError(reasons)


def _without_changelog(topology: Topology, existing: Container[str]) -> list[StoreDefinition]:
    changelogs = [
        (store, store.changelog(topology.application_id)) for store in topology.stores.values() if store.source is None
    ]
    return [store for store, topic in changelogs if topic is not None and topic not in existing]


def _feeding(topology: Topology, subtopology: Subtopology, created: Collection[str]) -> list[Subtopology]:
    """The subtopology, and those that fill its new repartition topics: these topics lack what was read before."""
    found = [subtopology]
    for each in found:
        new = {topic.name for topic in each.sources if topic.internal and topic.name in created}
        found += [other for other in topology.subtopologies if other not in found and written_by(other) & new]
    return found


def _passed(topology: Topology, feeding: Iterable[Subtopology], admin: Admin, reset: Reset | None) -> list[str]:
    """Their sources in which the group is not at the beginning, unless a reset put it there."""
    names = list(dict.fromkeys(topic.name for subtopology in feeding for topic in subtopology.sources))
    places = [place for info in admin.topics(names).values() for place in info.places]
    committed = admin.committed(topology.application_id, places)
    bounds = admin.bounds(committed)
    passed: list[str] = []
    for name in names:
        own = {each.partition: offset for each, offset in committed.items() if each.topic == name}
        was_read = any(offset > bounds[TopicPartition(name, partition)][0] for partition, offset in own.items())
        if was_read and not is_where_it_was_put(reset, name, own.items()):
            passed.append(name)
    return passed
