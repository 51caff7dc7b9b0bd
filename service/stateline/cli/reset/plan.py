"""Derive the steps of a reset. The steps are printed and done in the same order. Pure.

1. Write to the log that a reset has begun. No process starts from now on.
2. Delete changelogs. No old state can continue without them.
3. Set the group's offsets.
4. Delete repartition topics, markers and results. Their offsets are 0 already.
5. Delete stores and checkpoints on this machine.
6. Write to the log that the reset is done.

An interrupted reset can only be completed (`--resume`). Each step can run twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stateline.cli.reset.found import ResetFacts, others_of
from stateline.cli.reset.scope import Asked, Scope, check_scope, results_of, scope_of
from stateline.cli.reset.where_to import WhereTo
from stateline.deployment.stores.resets import ResetWork
from stateline.model.internal_topics import created_topics
from stateline.model.pipeline import epochs_topic
from stateline.model.replay import processed_by, written_by
from stateline.model.topology import Topology
from stateline_store import DoesNotExistError, TopicPartition

_SHOWN_PARTITIONS = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """`steps` and `notes` are for people: what a reset does, and what else they have to know."""

    work: ResetWork
    steps: tuple[str, ...]
    notes: tuple[str, ...]


def plan_of(topology: Topology, asked: Asked, found: ResetFacts) -> Plan:
    """Return the plan. Raises like `scope_of` and `check_scope`, and `DoesNotExistError` for internal topics that do
    not exist or are not the application's."""
    scope = scope_of(topology, asked)
    application_id = topology.application_id
    changelogs = [name for name in _changelogs(topology, scope) if name in found.topics]
    internal = [name for name in _internal(topology, scope) if name in found.topics]
    results = sorted({topic for p in scope.pipelines for topic in results_of(p)} & found.topics.keys())
    deleted = results if asked.delete_results else []
    check_scope(topology, scope, deleted=deleted, with_records=found.with_records)
    others = others_of(application_id, found.topics, _known(topology))
    for name in asked.internal_topics:
        if name not in others:
            raise DoesNotExistError(
                f"--internal-topics {name!r}: there is no such topic of {application_id!r} that its code does not "
                f"declare; there are {', '.join(others) or 'none'}."
            )
    offsets = _offsets(scope, asked.to, found, {*internal, *deleted})
    work = ResetWork(
        everything=scope.everything,
        subtopologies=tuple(s.ordinal for s in scope.replayed),
        stores=tuple(store.name for store in scope.stores),
        pipelines=tuple(p.name for p in scope.pipelines),
        changelogs=tuple(changelogs),
        internal=(*internal, *asked.internal_topics),
        results=tuple(deleted),
        offsets=_as_texts(offsets),
    )
    notes = _notes(topology, scope, asked, found, [name for name in others if name not in asked.internal_topics])
    return Plan(work, tuple(_steps(work, found, offsets)), tuple(notes))


def _changelogs(topology: Topology, scope: Scope) -> list[str]:
    """Changelogs of stores that count. A table's topic is the user's, and so is a changelog that somebody reads."""
    read = topology.topics_read().keys()
    names = [store.changelog(topology.application_id) for store in scope.stores if store.source is None]
    return [name for name in names if name is not None and name not in read]


def _internal(topology: Topology, scope: Scope) -> list[str]:
    repartition = {t.name for s in scope.replayed for p in s.processors for t in p.forwards if t.internal}
    return [*sorted(repartition), *(epochs_topic(topology.application_id, p.name) for p in scope.pipelines)]


def _known(topology: Topology) -> set[str]:
    own = {topic.name for topic in created_topics(topology)} | topology.topics_read().keys()
    own |= {topic for s in topology.subtopologies for topic in written_by(s)}
    return own | {epochs_topic(topology.application_id, name) for name in topology.pipelines}


def _offsets(scope: Scope, to: WhereTo, found: ResetFacts, deleted: set[str]) -> dict[TopicPartition, int]:
    """The group's next offsets: 0 for deleted topics, the end for topics that are written again and processed."""
    offsets: dict[TopicPartition, int] = {}
    for subtopology in scope.replayed:
        for topic in subtopology.sources:
            again = bool(scope.writers(topic.name)) and topic.name in processed_by(subtopology)
            for each in found.partitions(topic.name):
                first, end = found.bounds[each]
                if topic.name in deleted:
                    offsets[each] = 0
                elif again:
                    offsets[each] = end
                else:
                    offsets[each] = to.of(first, end, found.committed.get(each), found.at_time.get(each, first))
    return offsets


def _as_texts(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def _steps(work: ResetWork, found: ResetFacts, offsets: Mapping[TopicPartition, int]) -> Iterator[str]:
    yield from (f"delete the changelog {name}" for name in work.changelogs)
    for topic in dict.fromkeys(partition.topic for partition in offsets):
        moves = [
            f"{each.partition}: {found.committed.get(each, 'none')} to {offset}"
            for each, offset in offsets.items()
            if each.topic == topic
        ]
        more = f", and {len(moves) - _SHOWN_PARTITIONS} more" if len(moves) > _SHOWN_PARTITIONS else ""
        yield f"set the offsets of {topic}: {', '.join(moves[:_SHOWN_PARTITIONS])}{more}"
    yield from (f"delete the internal topic {name}" for name in work.internal)
    yield from (f"delete the result topic {name}" for name in work.results)
    yield from (f"delete {what} on this machine" for what in found.stored)
    yield from (f"delete the checkpoint {place}" for place in found.checkpoints.values())


def _notes(topology: Topology, scope: Scope, asked: Asked, found: ResetFacts, others: list[str]) -> Iterator[str]:
    tables = sorted(store.name for store in scope.stores if store.source is not None)
    if tables and asked.to.kind != "earliest":
        yield f"tables are rebuilt from the beginning of their topics: {', '.join(tables)}"
    results = {topic for p in scope.pipelines for topic in results_of(p)} & found.with_records
    if results and not asked.delete_results:
        yield (
            f"result topics keep what was written, and get it a second time: {', '.join(sorted(results))} "
            "(--delete-results deletes them)"
        )
    internal = {t.name for s in scope.replayed for p in s.processors for t in p.forwards if t.internal}
    written = {topic for s in scope.replayed for topic in written_by(s)} - internal
    if written:
        yield f"output topics keep what was written, and get it a second time: {', '.join(sorted(written))}"
    again = written | (set() if asked.delete_results else results)
    if skipped := {t.name for s in scope.replayed for t in s.sources if t.name in processed_by(s)} & again:
        yield f"they are written again, so processors go on at their end: {', '.join(sorted(skipped))}"
    if scope.everything and others:
        yield (
            f"of a store or pipeline that the code does not declare, or another application's: {', '.join(others)} "
            "(--internal-topics NAME deletes one)"
        )
    yield "state on other machines' disks is deleted there, when a worker, driver or server starts"
