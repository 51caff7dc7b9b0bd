"""Compute what each store would read before it takes records, by the rules of the worker's restore plan, and which
stores missed input while they were not declared. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from stateline.cli.check.disk_view import DiskView, StoredPart
from stateline.cli.check.log_view import LogView
from stateline.cli.check.report import Finding
from stateline.model.fed_parts import FedParts, parts_of
from stateline.model.missed_input import MissedInput, away_parts, missed_input, new_feed, refusals
from stateline.model.reset_command import of_store, reset_command, says_how_to_begin_anew, way_back
from stateline.model.restore_start import RestoreStart, has_seen, is_behind_store, start_of_logged, start_of_table
from stateline.model.store_definition import StoreDefinition
from stateline.model.table_topics import beginning_is_lost, forgets, never_read, windows_kept
from stateline.model.topology import Subtopology, Topology
from stateline_store import Position, StatelineError, TopicPartition, TopologyError
from stateline_store.task_id import TaskId


@dataclass(frozen=True, slots=True)
class StoreStart:
    """One store in all its partitions. `approximate_entries` (RocksDB's estimate) and `partitions_here` are this
    disk's. `records` is an upper limit of the offsets to read, None if the log was not asked. `begins` says from where.
    For a global table, which each worker has, they are the largest here."""

    store: str
    kind: str
    subtopology: int | None
    partitions: int | None
    partitions_here: int
    approximate_entries: int
    begins: str
    records: int | None


@dataclass(frozen=True, slots=True)
class _Read:
    """The range to read of one partition. `is_input`: the task reads it as input, while the store answers."""

    start: RestoreStart
    end: int
    is_stored: bool
    is_input: bool = False


def store_starts(
    topology: Topology,
    partitions: Mapping[int, int],
    disk: DiskView,
    log: LogView | None,
    *,
    workers: int,
    dead_letters: bool,
    exactly_once: bool,
    backup_location: str | None = None,
) -> tuple[list[StoreStart], list[Finding]]:
    """Return a `StoreStart` per store, and what a start would refuse or warn of. `partitions` has the known counts by
    subtopology. `log` is None if it does not answer. `exactly_once`: transactions write changelogs."""
    starts: list[StoreStart] = []
    findings: list[Finding] = []
    for subtopology in topology.subtopologies:
        count = partitions.get(subtopology.ordinal)
        for store in subtopology.stores:
            here = {TaskId.parse(at).partition: each for (name, at), each in disk.stored.items() if name == store.name}
            reads = None
            if log is not None and count is not None:
                asked = _Asked(topology, subtopology, store, log, dead_letters, exactly_once)
                reads = [_read(asked, n, here.get(n)) for n in range(count)]
                findings += _findings(topology, store, here, log, count, backup_location)
            starts.append(_start(store, subtopology.ordinal, count, here, reads))
    starts += [_of_global(store, disk, log, workers) for store in topology.global_tables.values()]
    return starts, findings


@dataclass(frozen=True, slots=True)
class _Asked:
    topology: Topology
    subtopology: Subtopology
    store: StoreDefinition
    log: LogView
    dead_letters: bool
    exactly_once: bool


def _read(of: _Asked, partition: int, stored: StoredPart | None) -> _Read | None:
    """None if nothing can restore the store."""
    store, log, changelog = of.store, of.log, of.store.changelog(of.topology.application_id)
    if changelog is None:
        return None
    place = TopicPartition(changelog, partition)
    first, end = log.bounds.get(place, (0, 0))
    offset = None if stored is None or _is_recreated(stored, changelog, log) else stored.offsets.get(place)
    if store.source is None:
        feeding = [TopicPartition(t.name, partition) for t in of.subtopology.sources_of(store.name)]
        committed = {source: log.committed[source] for source in feeding if source in log.committed}
        start = start_of_logged(
            offset,
            first,
            forgets=forgets(store),
            has_markers=of.exactly_once,
            has_all_input=stored is not None and has_seen(stored.position, committed),
        )
        return _Read(start, end, stored is not None)
    start = start_of_table(offset, first, end)
    if not of.subtopology.is_read_by_group(dead_letters=of.dead_letters):
        return _Read(start, end, stored is not None, is_input=True)
    group = log.committed.get(place, first)
    return _Read(start, group if first <= group <= end else first, stored is not None)


def _is_recreated(stored: StoredPart, topic: str, log: LogView) -> bool:
    known = stored.topic_ids.get(topic)
    return known is not None and topic in log.topics and log.topics[topic].topic_id != known


def _findings(
    topology: Topology,
    store: StoreDefinition,
    here: Mapping[int, StoredPart],
    log: LogView,
    count: int,
    backup_location: str | None,
) -> Iterator[Finding]:
    changelog = store.changelog(topology.application_id)
    if changelog is None:
        return
    places = [TopicPartition(changelog, partition) for partition in range(count)]
    if store.source is not None:
        firsts = {p: log.bounds[p][0] for p in places if p in log.bounds and log.bounds[p][0] > 0}
        begins = {p: at for p, at in firsts.items() if p.partition not in here or p not in here[p.partition].offsets}
        if begins and not forgets(store):
            yield Finding("warning", beginning_is_lost(store.name, begins))
        if missed := _missed(here, firsts):
            said = windows_kept if forgets(store) else never_read
            yield Finding("warning", said(store.name, missed))
        return
    for place in places:
        stored, end = here.get(place.partition), log.bounds.get(place, (0, 0))[1]
        offset = None if stored is None else stored.offsets.get(place)
        if stored is not None and (is_behind_store(offset, end) or _is_recreated(stored, changelog, log)):
            yield Finding(
                "refused",
                f"Store {store.name!r} has changelog offset {offset}, but {place} "
                f"{f'ends at {end}' if changelog in log.topics else 'is missing'}: the topic was deleted, or this is "
                f"another cluster. {way_back(topology, backup_location)}. Or start over without the store's data: "
                f"{reset_command(topology, [store.name])}",
            )
        yield from _of_types(topology, store, place, log)


def _missed(here: Mapping[int, StoredPart], firsts: Mapping[TopicPartition, int]) -> dict[TopicPartition, range]:
    """The offsets that a table's topic deleted before the table here read them."""
    offsets = {p: here[p.partition].offsets.get(p) for p in firsts if p.partition in here}
    found = {p: range(at + 1, firsts[p]) for p, at in offsets.items() if at is not None}
    return {p: missed for p, missed in found.items() if missed}


def _of_types(topology: Topology, store: StoreDefinition, place: TopicPartition, log: LogView) -> Iterator[Finding]:
    found = log.types.get(place)
    if isinstance(found, StatelineError):
        yield Finding("refused", str(found))
    elif found is not None:
        try:
            with says_how_to_begin_anew(topology), of_store(store.name):
                store.types.check(found, place)
        except TopologyError as error:
            yield Finding("refused", f"Store {store.name!r}: {error}", declared_otherwise=store.name)


def _start(
    store: StoreDefinition,
    ordinal: int,
    count: int | None,
    here: Mapping[int, StoredPart],
    reads: list[_Read | None] | None,
) -> StoreStart:
    known = [read for read in reads or () if read is not None]
    records = None if reads is None else sum(max(0, read.end - read.start.at) for read in known)
    entries = sum(stored.approximate_entries for stored in here.values())
    begins = "not known" if reads is None else _begins(known, records or 0)
    return StoreStart(store.name, store.kind, ordinal, count, len(here), entries, begins, records)


def _begins(reads: list[_Read], records: int) -> str:
    if not reads:
        return "not restored: it has no changelog"
    if any(read.start.anew for read in reads):
        return "from the beginning: it is emptied first"
    kept = sum(read.is_stored for read in reads)
    whence = "from where it is" if kept else "from the beginning"
    if 0 < kept < len(reads):
        whence = "in part from where it is"
    if reads[0].is_input:
        return f"{whence}, as input"
    return whence if records else "nothing to restore"


def _of_global(store: StoreDefinition, disk: DiskView, log: LogView | None, workers: int) -> StoreStart:
    assert store.source is not None, "a global table is of a topic"
    topic = store.source.name
    here: list[StoredPart | None] = [each for (name, _), each in disk.stored.items() if name == store.name]
    each_worker = [*here, *[None] * (workers - len(here))]
    reads = None if log is None else [_reads_of_global(each, topic, log) for each in each_worker]
    records = None if reads is None else max(sum(read.end - read.start.at for read in each) for each in reads)
    begins = "not known"
    if reads is not None:
        begins = f"{_begins([read for each in reads for read in each], records or 0)}, on each worker"
    parts = [each for each in here if each is not None]
    return StoreStart(
        store.name,
        "global table",
        None,
        sum(place.topic == topic for place in log.bounds) or None if log is not None else None,
        max((len(each.offsets) for each in parts), default=0),
        max((each.approximate_entries for each in parts), default=0),
        begins,
        records,
    )


def _reads_of_global(stored: StoredPart | None, topic: str, log: LogView) -> list[_Read]:
    """The range of each partition for one worker, by the rules of `stateline.worker.restore.global_table_store`."""
    bounds = {place: each for place, each in log.bounds.items() if place.topic == topic}
    offsets = {} if stored is None else stored.offsets
    starts = {p: start_of_table(offsets.get(p), first, end) for p, (first, end) in bounds.items()}
    is_anew = stored is not None and _is_recreated(stored, topic, log)
    if is_anew or any(start.anew for start in starts.values()):
        starts = {place: RestoreStart(first, anew=True) for place, (first, _) in bounds.items()}
    return [_Read(starts[place], end, place in offsets) for place, (_, end) in bounds.items()]


def missed_findings(
    topology: Topology,
    partitions: Mapping[int, int],
    disk: DiskView,
    log: LogView,
    backed_up: Mapping[tuple[str, str], Position],
    *,
    dead_letters: bool,
) -> Iterator[Finding]:
    """Apply the rules of `stateline.worker.restore.missed_input` to this disk, the changelogs, and the stores that a
    backup brings (`backed_up`, by store and task)."""
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
                stores = _Stores(topology, subtopology, partition, disk, log, backed_up)
                seen = stores.seen(source)
                missed, new = missed_input(away, subtopology, topology, seen, dead_letters=dead_letters)
                found += [] if missed is None else [missed]
                for store in new:
                    if stores.position(store):
                        yield Finding("warning", new_feed(store, source, at, topology))
    yield from (Finding("refused", why) for why in dict.fromkeys(refusals(found, topology).values()))
    yield from (Finding("warning", told) for each in found for told in each.told())


@dataclass(frozen=True, slots=True)
class _Stores:
    """The stores of one task, as they are once restored."""

    topology: Topology
    subtopology: Subtopology
    partition: int
    disk: DiskView
    log: LogView
    backed_up: Mapping[tuple[str, str], Position]

    def seen(self, source: TopicPartition) -> Callable[[str], int | None]:
        return lambda store: self.position(store).get(*source)

    def position(self, store: str) -> Position:
        task = str(self.subtopology.task_id(self.partition))
        stored = self.disk.stored.get((store, task))
        own = self.backed_up.get((store, task), Position()) if stored is None else stored.position
        changelog = self.topology.stores[store].changelog(self.topology.application_id)
        in_changelog = None if changelog is None else self.log.positions.get(TopicPartition(changelog, self.partition))
        return own if in_changelog is None else own.merge(in_changelog)
