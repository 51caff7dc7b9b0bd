"""Decide whether an application can be restored exactly without its changelogs, and give the reasons if not."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence

from stateline.cli.table import Row
from stateline.log.interface import Admin
from stateline.model.replay import processed_by, written_by
from stateline.model.reset_command import reset_command, restore_command
from stateline.model.topology import Subtopology, Topology
from stateline_store import InvalidArgumentError, TopicPartition, TransactionalStore

NO_TASK: Row = {"task": None, "backup": None, "node": None, "outcome": None, "bytes": 0, "why": ""}


def other_topics(replaced: Mapping[str, str], topology: Topology) -> str:
    """Return why stores of a backup do not fit these topics. `replaced` has their ids now, empty if a topic is gone."""
    told = [f"{name} {'was created again' if replaced[name] else 'is gone'}" for name in sorted(replaced)]
    why = f"{', '.join(told)}: the backup's offsets mean other records now."
    changelogs = {
        store.changelog(topology.application_id) for store in topology.stores.values() if store.source is None
    }
    if not replaced.keys() <= changelogs:
        return why
    return f"{why} To write lost changelogs again, stop the application everywhere: {restore_command(topology)}"


def rewound(topology: Topology, only: Collection[int], existing: Container[str]) -> list[Subtopology]:
    """Return the subtopologies with stores besides tables, or `only` these: their input continues where it was in the
    backup. `existing` are the log's topics. Raises `InvalidArgumentError` for an unknown subtopology, and for one that
    cannot be restored exactly."""
    known = {each.ordinal: each for each in topology.subtopologies}
    if unknown := sorted(set(only) - known.keys()):
        raise InvalidArgumentError(f"There is no subtopology {unknown[0]}: there are {', '.join(map(str, known))}.")
    counting = [number for number, each in known.items() if any(store.source is None for store in each.stores)]
    found = [known[number] for number in sorted(only or counting)]
    if not found:
        raise InvalidArgumentError("No store has a changelog: restore without --changelogs-lost.")
    for each in found:
        refuse_repeats(topology, each)
        if gone := [topic.name for topic in each.sources if topic.internal and topic.name not in existing]:
            raise InvalidArgumentError(f"{gone[0]} is gone, with records for its stores. {way_out(topology, each)}")
        for store in each.stores:
            built = store.build() if store.source is None and store.logged else None
            if built is not None and not (built.persistent and isinstance(built, TransactionalStore)):
                raise InvalidArgumentError(
                    f"Store {store.name!r} is in memory or of your own kind, so its rows were in its changelog alone. "
                    + way_out(topology, each)
                )
    return found


def refuse_repeats(topology: Topology, subtopology: Subtopology) -> None:
    """Raise `InvalidArgumentError` if the application counts records that this subtopology would write again."""
    for topic in sorted(written_by(subtopology)):
        readers = [f"subtopology {each.ordinal}" for each in topology.subtopologies if topic in processed_by(each)]
        for pipeline in topology.pipelines.values():
            if topic in {each.name for each in (*pipeline.reads, *pipeline.tables)}:
                readers.append(f"pipeline {pipeline.name}")
        if readers:
            raise InvalidArgumentError(
                f"Subtopology {subtopology.ordinal} would write records to {topic} a second time, and "
                f"{', '.join(readers)} would count them twice. {way_out(topology, subtopology)}"
            )


def missed_input(
    topology: Topology, subtopology: Subtopology, next_offsets: Mapping[TopicPartition, int], admin: Admin
) -> str:
    """Return which input since the backup was deleted, for people; empty if none was. Raises `InvalidArgumentError` if
    a topic ends before the backup, or if a repartition topic lacks records."""
    internal, missed = {topic.name for topic in subtopology.sources if topic.internal}, []
    for place, (first, end) in admin.bounds(next_offsets).items():
        at = next_offsets[place]
        if at > end or (at < first and place.topic in internal):
            raise InvalidArgumentError(
                f"{place} has offsets {first} to {end - 1}, and the backup continues at {at}: records in between are "
                f"lost. {way_out(topology, subtopology)}"
            )
        if at < first:
            missed.append(f"{place} begins at offset {first}: {at} to {first - 1} were deleted.")
    return " ".join(missed)


def refuse_records(admin: Admin, changelogs: Sequence[str], target: str) -> None:
    """Raise `InvalidArgumentError` if one of these changelogs has records: it is not lost, or was written since."""
    places = [place for info in admin.topics(changelogs).values() for place in info.places] if changelogs else []
    for place, (_, end) in admin.bounds(places).items():
        if end > 0:
            raise InvalidArgumentError(
                f"{place.topic} has records, so it is not lost. Without --changelogs-lost a worker reads it. If its "
                f"records are worth nothing, delete it first: stateline topics {target} --delete {place.topic}"
            )


def way_out(topology: Topology, subtopology: Subtopology) -> str:
    """Return how to go on without a restore of this subtopology."""
    stores = [store.name for store in subtopology.stores if store.source is None]
    over = f"Read its input from the beginning: {reset_command(topology, stores)}. " if stores else ""
    return f"{over}Restore the others with --subtopology N. Nothing was changed."
