"""Know how many partitions topics had when stores were made of them. Pure.

A key's partition depends on the number of partitions. If the number grows, new records of a key go to another
partition, and stores by partition would have the key twice. So that is refused. Two places have the old number:

- ``topology.json``, with the counts of the last worker (`stateline.deployment.stores.topology_file`)
- the store's changelog, which has as many partitions as the topics that it follows

A pipeline's checkpoint has the counts of its tables and results (`stateline.spark.sink.declaration`). If a topic was
deleted and created again, its id differs, and its tables are rebuilt. Topics without stores may grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from stateline.deployment.refused_stores import StoresRefusedError
from stateline.log.interface import TopicInfo

if TYPE_CHECKING:
    from stateline.model.topology import Topology


@dataclass(frozen=True, slots=True)
class TopicCount:
    """A topic as it was counted. On disk: never change its members."""

    partitions: int
    topic_id: str


class PartitionsChangedError(StoresRefusedError):
    """The numbers of partitions differ from those when stores were made."""

    keeps_rows: ClassVar[bool] = True


def counted_topics(
    topology: Topology, found: Mapping[str, TopicInfo], before: Mapping[str, TopicInfo]
) -> dict[str, TopicInfo]:
    """The topics whose number of partitions must stay, because stores are made of them. Counts `before` stay valid
    unless the topic was created again."""
    names = [topic.name for s in topology.subtopologies if s.stores for topic in s.sources]
    names += [table.source.name for table in topology.global_tables.values() if table.source is not None]
    known = {name: info for name, info in before.items() if name in found and found[name].topic_id == info.topic_id}
    return {name: known.get(name, found[name]) for name in names if name in found}


def refuse_grown(topology: Topology, counted: Mapping[str, TopicInfo], found: Mapping[str, TopicInfo]) -> None:
    """Raise `PartitionsChangedError` if a topic with stores has more partitions in `found` than in `counted`."""
    reasons: dict[str, str] = {}
    for subtopology in topology.subtopologies:
        stores = [store.name for store in subtopology.stores]
        names = [topic.name for topic in subtopology.sources] if stores else []
        if why := _grown(topology, names, stores, counted, found):
            reasons |= dict.fromkeys(stores, why)
    for name, table in topology.global_tables.items():
        if table.source is not None and (why := _grown(topology, [table.source.name], [name], counted, found)):
            reasons[name] = why
    if reasons:
        raise PartitionsChangedError(reasons)


def refuse_other_changelogs(topology: Topology, found: Mapping[str, int], wanted: Mapping[str, int]) -> None:
    """Raise `PartitionsChangedError` if a changelog has other partitions (`found`) than the topics it follows
    (`wanted`)."""
    reasons: dict[str, str] = {}
    for subtopology in topology.subtopologies:
        sources = ", ".join(topic.name for topic in subtopology.sources)
        for store in subtopology.stores:
            name = store.changelog(topology.application_id)
            if store.source is None and name is not None and found.get(name, wanted[name]) != wanted[name]:
                why = (
                    f"Changelog {name} has {found[name]} partitions, and {sources}, which its store follows, "
                    f"{wanted[name]}: {_way_out(topology)}"
                )
                reasons |= dict.fromkeys((each.name for each in subtopology.stores), why)
    if reasons:
        raise PartitionsChangedError(reasons)


def grown(names: Iterable[str], counted: Mapping[str, TopicInfo], found: Mapping[str, TopicInfo]) -> str | None:
    """``Topic x has 4 partitions, and had 2`` for the first of these topics that has grown."""
    for name in names:
        before, now = counted.get(name), found.get(name)
        if before is None or now is None or before.topic_id != now.topic_id or before.partitions >= now.partitions:
            continue  # fewer: this broker does not know the others yet
        return f"Topic {name} has {now.partitions} partitions, and had {before.partitions}"
    return None


def counts_of(counted: Mapping[str, TopicInfo]) -> dict[str, TopicCount]:
    return {name: TopicCount(info.partitions, info.topic_id) for name, info in counted.items()}


def topics_of(counts: Mapping[str, TopicCount]) -> dict[str, TopicInfo]:
    return {name: TopicInfo(name, count.partitions, count.topic_id) for name, count in counts.items()}


def _grown(
    topology: Topology,
    names: Iterable[str],
    stores: list[str],
    counted: Mapping[str, TopicInfo],
    found: Mapping[str, TopicInfo],
) -> str | None:
    what = grown(names, counted, found)
    return what and f"{what} when {', '.join(stores)} began: {_way_out(topology)}"


def _way_out(topology: Topology) -> str:
    return (
        "new records of a key go to another partition than its old ones, so no worker runs the application, and "
        "servers answer its last committed state. Stop it, then run "
        f"`stateline reset {topology.target}` or set a new application.id, and start it: its stores are made again "
        "from the topics. Old records stay in their old partitions, so first write them to a new topic with as many "
        "partitions, or read the topic through a repartition."
    )
