"""What each store would have to read before it takes records, by the rules of the worker's restore plan. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stateline.cli.check.disk_view import DiskView, StoredPartition
from stateline.cli.check.findings import Finding
from stateline.cli.check.log_view import LogView
from stateline.model.restore_start import RestoreStart, is_behind_store, start_of_logged, start_of_table
from stateline.model.store_definition import StoreDefinition
from stateline.model.table_topics import beginning_is_lost, forgets
from stateline.model.topology import Subtopology, Topology
from stateline_store import StatelineError, TopicPartition, TopologyError


@dataclass(frozen=True, slots=True)
class StoreStart:
    """One store in all its partitions. `entries` (about) and `partitions_here` are what this disk has; `records` are
    offsets left to read at most, None where the log was not asked: compaction and transactions leave some out. `begins`
    says from where."""

    store: str
    kind: str
    subtopology: int | None
    partitions: int | None
    partitions_here: int
    entries: int
    begins: str
    records: int | None


@dataclass(frozen=True, slots=True)
class _Read:
    """Of one partition: from where, and up to where. `is_input`: as the task's input, while the store answers."""

    start: RestoreStart
    end: int
    is_stored: bool
    is_input: bool = False


def store_starts(
    topology: Topology, partitions: Mapping[int, int], disk: DiskView, log: LogView | None, *, dead_letters: bool
) -> tuple[list[StoreStart], list[Finding]]:
    """Store by store, and what a start would be refused for, or warn of. `partitions` are those of subtopologies, as
    far as they are known; `log` is None where it does not answer."""
    starts: list[StoreStart] = []
    findings: list[Finding] = []
    for subtopology in topology.subtopologies:
        count = partitions.get(subtopology.ordinal)
        for store in subtopology.stores:
            here = {n: each for (name, n), each in disk.stored.items() if name == store.name}
            reads = None
            if log is not None and count is not None:
                reads = [_read(subtopology, store, n, here.get(n), topology, log, dead_letters) for n in range(count)]
                findings += _findings(topology, store, here, log, count)
            starts.append(_start(store, subtopology.ordinal, count, here, reads))
    starts += [_of_global(name, store, log) for name, store in topology.global_tables.items()]
    return starts, findings


def _read(
    subtopology: Subtopology,
    store: StoreDefinition,
    partition: int,
    stored: StoredPartition | None,
    topology: Topology,
    log: LogView,
    dead_letters: bool,
) -> _Read | None:
    """None of a store that nothing can restore."""
    changelog = store.changelog(topology.application_id)
    if changelog is None:
        return None
    place = TopicPartition(changelog, partition)
    first, end = log.bounds.get(place, (0, 0))
    offset = None if stored is None or _is_recreated(stored, changelog, log) else stored.offset
    if store.source is None:
        return _Read(start_of_logged(offset, first), end, stored is not None)
    start = start_of_table(offset, first, end, forgets=forgets(store))
    if not subtopology.is_read_by_group(changelog, dead_letters=dead_letters):
        return _Read(start, end, stored is not None, is_input=True)
    group = log.committed.get(place, first)
    return _Read(start, group if first <= group <= end else first, stored is not None)


def _is_recreated(stored: StoredPartition, topic: str, log: LogView) -> bool:
    known = stored.topic_ids.get(topic)
    return known is not None and topic in log.topics and log.topics[topic].topic_id != known


def _findings(
    topology: Topology, store: StoreDefinition, here: Mapping[int, StoredPartition], log: LogView, count: int
) -> Iterator[Finding]:
    changelog = store.changelog(topology.application_id)
    if changelog is None:
        return
    places = [TopicPartition(changelog, partition) for partition in range(count)]
    if store.source is not None:
        firsts = {p: log.bounds[p][0] for p in places if p in log.bounds and log.bounds[p][0] > 0}
        begins = {p: at for p, at in firsts.items() if p.partition not in here or here[p.partition].offset is None}
        if begins and not forgets(store):
            yield Finding("warning", beginning_is_lost(store.name, begins))
        return
    for place in places:
        stored, end = here.get(place.partition), log.bounds.get(place, (0, 0))[1]
        if stored is not None and (is_behind_store(stored.offset, end) or _is_recreated(stored, changelog, log)):
            yield Finding(
                "refused",
                f"Store {store.name!r} has changelog offset {stored.offset}, but {place} "
                f"{f'ends at {end}' if changelog in log.topics else 'is missing'}: the topic was deleted, or this is "
                "another cluster. Bring the topic back; or begin anew without the store's data: stateline reset "
                f"MODULE:APP --store {store.name}",
            )
        yield from _of_types(store, place, log)


def _of_types(store: StoreDefinition, place: TopicPartition, log: LogView) -> Iterator[Finding]:
    found = log.types.get(place)
    if isinstance(found, StatelineError):
        yield Finding("refused", str(found))
    elif found is not None:
        try:
            store.types.check(found, place)
        except TopologyError as error:
            yield Finding("refused", f"Store {store.name!r}: {error} See docs/changes.md.")


def _start(
    store: StoreDefinition,
    ordinal: int,
    count: int | None,
    here: Mapping[int, StoredPartition],
    reads: list[_Read | None] | None,
) -> StoreStart:
    known = [read for read in reads or () if read is not None]
    records = None if reads is None else sum(max(0, read.end - read.start.at) for read in known)
    entries = sum(stored.entries for stored in here.values())
    begins = "not known" if reads is None else _begins(store, known, records or 0)
    return StoreStart(store.name, store.kind, ordinal, count, len(here), entries, begins, records)


def _begins(store: StoreDefinition, reads: list[_Read], records: int) -> str:
    if not reads:
        return "not restored: it has no changelog"
    if any(read.start.anew for read in reads):
        return "anew: it is emptied first"
    kept = sum(read.is_stored for read in reads)
    whence = "from where it is" if kept else "from the beginning"
    if 0 < kept < len(reads):
        whence = "in part from where it is"
    if reads[0].is_input:
        return f"{whence}, as input"
    return whence if records else "nothing to restore"


def _of_global(name: str, store: StoreDefinition, log: LogView | None) -> StoreStart:
    topic = "" if store.source is None else store.source.name
    bounds = [] if log is None else [b for place, b in log.bounds.items() if place.topic == topic]
    records = None if log is None else sum(end - first for first, end in bounds)
    begins = "from the beginning, on each worker"
    return StoreStart(name, "global table", None, len(bounds) or None, 0, 0, begins, records)
