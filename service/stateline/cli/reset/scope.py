"""Decide which parts start over together, so that nothing is counted twice. Pure.

A table has the same content whenever its topic is read again. Any other store counts records. So if one store reads
input again, all stores of its subtopology do. A subtopology writes its output again, so readers of the output would
count it twice, unless they start over too:

| in scope                        | and not in scope                       | then                                   |
|---------------------------------|----------------------------------------|----------------------------------------|
| a store that counts             | another one of the same subtopology    | refused                                |
| a writer or reader of a         | another writer or reader of it         | refused: the topic is deleted, or its  |
| repartition topic               |                                        | records went when they were processed  |
| a writer of another topic       | a processor or pipeline that reads it  | refused                                |
| a writer of another topic, and  |                                        | processors continue at the topic's     |
| its reader                      |                                        | end; a pipeline cannot and is refused  |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from stateline.cli.reset.where_to import WhereTo
from stateline.model.pipeline import Pipeline
from stateline.model.replay import processed_by, repartition_topics, replayed_with, users_of, written_by
from stateline.model.store_definition import StoreDefinition
from stateline.model.topology import Subtopology, Topology
from stateline_store import DoesNotExistError, InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command. Without a named part it means the whole application."""

    to: WhereTo = field(default_factory=WhereTo)
    subtopologies: tuple[int, ...] = ()
    stores: tuple[str, ...] = ()
    pipelines: tuple[str, ...] = ()
    internal_topics: tuple[str, ...] = ()
    delete_results: bool = False

    @property
    def everything(self) -> bool:
        return not (self.subtopologies or self.stores or self.pipelines)


@dataclass(frozen=True, slots=True)
class Scope:
    """`replayed` read their input again. `stores` are emptied: all of theirs, and requested tables. `pipelines` start
    over."""

    everything: bool
    replayed: tuple[Subtopology, ...]
    stores: tuple[StoreDefinition, ...]
    pipelines: tuple[Pipeline, ...]

    def writers(self, topic: str) -> list[str]:
        """Parts in scope that write this topic again, for people."""
        return [
            *(f"subtopology {s.ordinal}" for s in self.replayed if topic in written_by(s)),
            *(f"pipeline {p.name}" for p in self.pipelines if topic in results_of(p)),
        ]


def results_of(pipeline: Pipeline) -> set[str]:
    return {topic.name for topic in pipeline.results}


def scope_of(topology: Topology, asked: Asked) -> Scope:
    """The parts that start over. Raises `DoesNotExistError` for an unknown name or number, and `InvalidArgumentError`
    for a store that cannot start over alone, or pipelines or tables that are not to begin at the beginning."""
    stores = {**topology.stores, **topology.global_tables}
    if asked.everything:
        pipelines = tuple(topology.pipelines.values())
        _refuse_late_pipelines(topology, pipelines, asked.to)
        return Scope(True, topology.subtopologies, tuple(stores.values()), pipelines)
    _refuse_unknown("subtopology", asked.subtopologies, [s.ordinal for s in topology.subtopologies])
    _refuse_unknown("store", asked.stores, stores)
    _refuse_unknown("pipeline", asked.pipelines, topology.pipelines)
    chosen = set(asked.subtopologies) | {
        topology.subtopology_of(name).ordinal for name in asked.stores if stores[name].source is None
    }
    replayed = tuple(s for s in topology.subtopologies if s.ordinal in chosen)
    for subtopology in replayed:
        if subtopology.ordinal not in asked.subtopologies:
            _refuse_others(topology, subtopology, asked.stores)
    tables = [stores[name] for name in asked.stores if stores[name].source is not None]
    if asked.to.kind != "earliest" and tables and not replayed:
        raise InvalidArgumentError(
            f"Table {tables[0].name!r} is always rebuilt from the beginning of its topic. Leave out the option --to-…."
        )
    pipelines = tuple(topology.pipelines[name] for name in dict.fromkeys(asked.pipelines))
    _refuse_late_pipelines(topology, pipelines, asked.to)
    emptied = {store.name: store for store in [*(s for t in replayed for s in t.stores), *tables]}
    return Scope(False, replayed, tuple(emptied.values()), pipelines)


def check_scope(topology: Topology, scope: Scope, *, deleted: Collection[str], with_records: Collection[str]) -> None:
    """Raise `InvalidArgumentError` with a way out if something would be counted twice. `deleted` are the topics to
    delete, `with_records` those with records."""
    _refuse_parted_repartitions(topology, scope)
    kept = {topic for s in scope.replayed for topic in written_by(s)} - repartition_topics(topology)
    for topic in sorted(kept | {topic for p in scope.pipelines for topic in results_of(p)}):
        _refuse_second_time(topology, scope, topic)
        for pipeline in scope.pipelines:
            again = topic in {t.name for t in (*pipeline.reads, *pipeline.tables)}
            if again and topic in with_records and topic not in deleted:
                raise InvalidArgumentError(
                    f"Pipeline {pipeline.name!r} reads {topic}, which {_listed(scope.writers(topic))} writes again, "
                    "from its first record: it would have old and new ones. "
                    + (
                        "Give --delete-results."
                        if any(topic in results_of(p) for p in topology.pipelines.values())
                        else f"Delete that topic first (stateline topics MODULE:APP --delete {topic}), and create it."
                    )
                )


def _refuse_parted_repartitions(topology: Topology, scope: Scope) -> None:
    chosen = {s.ordinal for s in scope.replayed}
    for topic in sorted(repartition_topics(topology)):
        users = users_of(topology, topic)
        if users & chosen and users - chosen:
            raise InvalidArgumentError(
                f"Subtopologies {_listed(users)} are connected by the repartition topic {topic}, whose records go when "
                f"they have been processed: they start over together, with {_options(replayed_with(topology, users))}."
            )


def _refuse_second_time(topology: Topology, scope: Scope, topic: str) -> None:
    chosen = {s.ordinal for s in scope.replayed}
    whole = {result for p in scope.pipelines if p.whole_epochs for result in results_of(p)}
    for subtopology in topology.subtopologies:
        sources = {source.name for source in subtopology.sources}
        counts = topic in processed_by(subtopology) or (topic in whole and topic in sources)
        if counts and subtopology.ordinal not in chosen:
            raise InvalidArgumentError(
                f"Topic {topic} is written again by {_listed(scope.writers(topic))}, and subtopology "
                f"{subtopology.ordinal}, which reads it, would count its records a second time: start it over too, "
                f"with {_options(replayed_with(topology, {*chosen, subtopology.ordinal}))}."
            )
    names = {p.name for p in scope.pipelines}
    for pipeline in topology.pipelines.values():
        if topic in {t.name for t in (*pipeline.reads, *pipeline.tables)} and pipeline.name not in names:
            raise InvalidArgumentError(
                f"Topic {topic} is written again by {_listed(scope.writers(topic))}, and pipeline {pipeline.name!r}, "
                "which reads it, would count its records a second time: start it over too, with --pipeline "
                f"{pipeline.name}."
            )


def _refuse_unknown(what: str, named: Iterable[object], known: Collection[object]) -> None:
    for each in named:
        if each not in known:
            raise DoesNotExistError(f"There is no {what} {each!r}: there are {_listed(known)}.")


def _refuse_others(topology: Topology, subtopology: Subtopology, named: Collection[str]) -> None:
    counting = [store.name for store in subtopology.stores if store.source is None]
    if others := [name for name in counting if name not in named]:
        mine = [name for name in counting if name in named]
        raise InvalidArgumentError(
            f"Store {_listed(mine)} is filled by subtopology {subtopology.ordinal}, and so is {_listed(others)}, which "
            "would count its records a second time: start all of it over, with "
            f"{_options(replayed_with(topology, [subtopology.ordinal]))}."
        )


def _refuse_late_pipelines(topology: Topology, pipelines: Iterable[Pipeline], to: WhereTo) -> None:
    names = [pipeline.name for pipeline in pipelines]
    if names and to.kind != "earliest":
        rest = _options(s.ordinal for s in topology.subtopologies)
        way_out = f", or start over what is no pipeline: {rest}" if rest else ""
        raise InvalidArgumentError(
            f"Pipeline {_listed(names)} starts over with the first records that its topics keep, and nowhere else. "
            f"Leave out where to{way_out}."
        )


def _options(subtopologies: Iterable[int]) -> str:
    return " ".join(f"--subtopology {number}" for number in sorted(subtopologies))


def _listed(names: Iterable[object]) -> str:
    return ", ".join(map(str, sorted(names, key=str))) or "none"
