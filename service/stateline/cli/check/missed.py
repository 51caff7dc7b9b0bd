"""Find stores that were not declared while the group processed their input, and what a start would do. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from stateline.cli.check.disk_view import DiskView
from stateline.cli.check.findings import Finding
from stateline.cli.check.log_view import LogView
from stateline.model.fed_parts import FedParts, parts_of
from stateline.model.missed_input import MissedInput, away_parts, missed_input, new_feed, refusals
from stateline.model.topology import Subtopology, Topology
from stateline_store import Position, TopicPartition


def missed_findings(
    topology: Topology, partitions: Mapping[int, int], disk: DiskView, log: LogView, *, dead_letters: bool
) -> Iterator[Finding]:
    """Apply the rules of `stateline.worker.restore.missed_input` to this disk and to the changelogs."""
    found: list[MissedInput] = []
    parts_of_topics = parts_of(topology)
    for subtopology in topology.subtopologies:
        for topic in subtopology.sources:
            parts = parts_of_topics[topic.name]
            for partition in range(partitions.get(subtopology.ordinal, 0)):
                source = TopicPartition(topic.name, partition)
                if source not in log.notes:
                    continue
                at, note = log.committed[source], FedParts.decode(log.notes[source].fed)
                away = away_parts(subtopology, parts, source, log.bounds[source], at, note)
                if away is None:
                    continue
                seen = _seen(topology, subtopology, source, disk, log)
                missed, new = missed_input(away, subtopology, topology, seen, dead_letters=dead_letters)
                found += [] if missed is None else [missed]
                for store in new:
                    if _position(topology, subtopology, store, partition, disk, log):
                        yield Finding("warning", new_feed(store, source, at, topology))
    yield from (Finding("refused", why) for why in dict.fromkeys(refusals(found, topology).values()))
    yield from (Finding("warning", told) for each in found for told in each.told())


def _seen(
    topology: Topology, subtopology: Subtopology, source: TopicPartition, disk: DiskView, log: LogView
) -> Callable[[str], int | None]:
    return lambda store: _position(topology, subtopology, store, source.partition, disk, log).get(*source)


def _position(
    topology: Topology, subtopology: Subtopology, store: str, partition: int, disk: DiskView, log: LogView
) -> Position:
    """The store's Position once its changelog is restored."""
    stored = disk.stored.get((store, str(subtopology.task_id(partition))))
    own = Position() if stored is None else stored.position
    changelog = topology.stores[store].changelog(topology.application_id)
    in_changelog = None if changelog is None else log.positions.get(TopicPartition(changelog, partition))
    return own if in_changelog is None else own.merge(in_changelog)
