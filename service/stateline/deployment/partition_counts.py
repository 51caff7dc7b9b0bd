"""How many partitions topics had when stores were made of them. Pure.

A key's partition follows from the number of partitions. When that grows, new records of a key go to another partition
than the old ones: what keeps keys by partition would have the key twice, so it is refused. Two things tell that a topic
has grown since a store was made of it:

- ``topology.json``, where each worker writes down what it counted (`stateline.deployment.stores.topology_file`)
- the store's changelog, which has as many partitions as the topics had that it follows

Of the tables that a pipeline reads, and its results that are one, its checkpoint tells
(`stateline.spark.sink.partitions`). Of a topic that was deleted and made anew (it has another id) tables are made anew
as well. Topics without stores may grow: nothing is kept of their keys.
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
    """A topic as it was counted; its members are those of files (on disk: never change)."""

    partitions: int
    topic_id: str


class PartitionsChangedError(StoresRefusedError):
    """Topics have other numbers of partitions than when stores were made of them."""

    keeps_rows: ClassVar[bool] = True


def counted_topics(
    topology: Topology, found: Mapping[str, TopicInfo], before: Mapping[str, TopicInfo]
) -> dict[str, TopicInfo]:
    """Those of these topics whose number of partitions must stay, because stores are made of them; as they were counted
    `before`, unless they were made anew since."""
    names = [topic.name for s in topology.subtopologies if s.stores for topic in s.sources]
    names += [table.source.name for table in topology.global_tables.values() if table.source is not None]
    known = {name: info for name, info in before.items() if name in found and found[name].topic_id == info.topic_id}
    return {name: known.get(name, found[name]) for name in names if name in found}


def refuse_grown(topology: Topology, counted: Mapping[str, TopicInfo], found: Mapping[str, TopicInfo]) -> None:
    """Raise `PartitionsChangedError` if a topic of which stores are made has other partitions than were counted before.
    `found` is what there is now."""
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
    """Raise `PartitionsChangedError` for stores whose changelogs have other numbers of partitions (`found`) than the
    topics that they follow (`wanted`)."""
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
    """``Topic x has 4 partitions, and had 2`` of the first of these topics that has more than were counted before."""
    for name in names:
        before, now = counted.get(name), found.get(name)
        if before is None or now is None or before.topic_id != now.topic_id or before.partitions >= now.partitions:
            continue  # fewer are what a broker says that has not heard of the others
        return f"Topic {name} has {now.partitions} partitions, and had {before.partitions}"
    return None


def counts_of(counted: Mapping[str, TopicInfo]) -> dict[str, TopicCount]:
    """These topics as files have them."""
    return {name: TopicCount(info.partitions, info.topic_id) for name, info in counted.items()}


def topics_of(counts: Mapping[str, TopicCount]) -> dict[str, TopicInfo]:
    """The topics that files have so."""
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
