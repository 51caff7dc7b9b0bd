"""Adopt the stores of a Kafka Streams application: find, check, copy and report them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path

from stateline.cli.adopt.checks import Candidate, Offsets, checked_offsets, refuse_other_form
from stateline.cli.adopt.java_directory import JavaDirectory, java_directory
from stateline.cli.reset.running import running_here
from stateline.cli.table import as_text
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log, log_exists
from stateline.dsl.app import App
from stateline.model.store_definition import StoreDefinition
from stateline.model.topology import Topology
from stateline_store import (
    ConfigurationError,
    LockedError,
    Position,
    StateDirectory,
    StatelineError,
    TopicPartition,
    TopologyError,
    TransactionalStore,
)
from stateline_store.adoption.adopted_store import Target, adopt_store
from stateline_store.adoption.java_store import JavaStore
from stateline_store.files.directory import global_task, holds_database
from stateline_store.rocksdb.offline_store import OfflineStore
from stateline_store.task_id import TaskId


@dataclass(frozen=True, slots=True)
class AdoptedPartition:
    """The result for one partition of a store. `java_task` is the task's id in Java. `why` is empty unless refused."""

    store: str
    task: str
    java_task: str
    outcome: str
    rows: int | None = None
    offset: int | None = None
    why: str = ""


@dataclass(slots=True)
class AdoptionReport:
    """`notes` are for people."""

    outcomes: list[AdoptedPartition] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether no store was refused."""
        return not any(each.why for each in self.outcomes)

    def as_text(self, *, as_json: bool) -> str:
        """The outcomes as a table or as JSON."""
        return as_text([asdict(each) for each in self.outcomes], as_json=as_json, hide=("why",))


def adopt(app: App, config: Config, sources: Sequence[Path], *, dry_run: bool) -> AdoptionReport:
    """Adopt all stores that fit. Raises `LockedError` while the Kafka Streams application or this application runs,
    `ConfigurationError` if a source has no store of this application, and what the log raises."""
    topology = app.topology()
    directories = [_directories(topology, config, source) for source in sources]
    if not dry_run and (running := running_here(config)):
        raise LockedError(f"This application runs: {', '.join(running)}. Stop it, then adopt again.")
    report = AdoptionReport()
    found = [each for of_source in directories for each in _candidates(topology, config, of_source)]
    offsets = _offsets(config, found, dry_run=dry_run)
    copies = defaultdict[tuple[str, str], list[Candidate]](list)
    for candidate in found:
        copies[candidate.definition.name, candidate.task].append(candidate)
    for each in copies.values():
        report.outcomes.append(_adopted(config, _newest(config, each, offsets, report), offsets, dry_run=dry_run))
    _note(report, topology, [directory for of_source in directories for directory in of_source.values()])
    return report


def _newest(config: Config, copies: list[Candidate], bounds: Offsets, report: AdoptionReport) -> Candidate:
    """Return the copy with the highest offset of those that can be adopted: an instance may have it as a standby."""
    if len(copies) == 1:
        return copies[0]
    tried = [(_adopted(config, each, bounds, dry_run=True), each) for each in copies]
    _, newest = max(tried, key=lambda pair: -1 if pair[0].offset is None else pair[0].offset)
    for checked, candidate in tried:
        if candidate is not newest:
            why = checked.why or f"It has offset {checked.offset}, and another copy has that or a higher one."
            report.notes.append(f"Not taken: store {checked.store} in {candidate.files.task}. {why}")
    return newest


def _directories(topology: Topology, config: Config, source: Path) -> dict[str, JavaDirectory]:
    """Return the directories in `source` by application id."""
    if source.resolve() in (config.state_dir.resolve(), (config.state_dir / config.application_id).resolve()):
        raise ConfigurationError(f"--from {source} is this application's own state.dir. Give Kafka Streams' directory.")
    ids = dict.fromkeys(_java_application(topology, each) for each in topology.all_stores.values())
    found = {each: java_directory(source, each) for each in ids}
    there = {each: directory for each, directory in found.items() if directory is not None}
    if not there:
        raise ConfigurationError(
            f"--from {source}: it has no tasks of {', '.join(ids) or 'any declared store'}. Give state.dir of that "
            "Kafka Streams application, or its directory in state.dir."
        )
    return there


def _java_application(topology: Topology, definition: StoreDefinition) -> str:
    return definition.external or topology.application_id


def java_name(definition: StoreDefinition) -> str:
    """Return the store's name in Java: the one in the name of its changelog."""
    if definition.source is not None and definition.external is not None:
        name = definition.source.name.removeprefix(f"{definition.external}-")
        if name != definition.source.name and name.endswith("-changelog"):
            return name.removesuffix("-changelog")
    return definition.name


def _candidates(topology: Topology, config: Config, directories: Mapping[str, JavaDirectory]) -> Iterator[Candidate]:
    for name, definition in topology.all_stores.items():
        directory = directories.get(_java_application(topology, definition))
        if directory is None:
            continue
        topic = definition.changelog(topology.application_id)
        is_global = name in topology.global_tables
        for java_task, files in directory.stores(java_name(definition), is_global=is_global):
            if is_global:
                for number in range(config.num_workers):
                    task = global_task(f"worker-{number}")
                    yield Candidate(definition, topic, java_task, files, task, None, frozenset())
            else:
                subtopology, partition = topology.subtopology_of(name), TaskId.parse(java_task).partition
                sources = frozenset(each.name for each in subtopology.sources_of(name))
                task = str(subtopology.task_id(partition))
                yield Candidate(definition, topic, java_task, files, task, partition, sources)


def _offsets(config: Config, candidates: list[Candidate], *, dry_run: bool) -> Offsets:
    """Return the first offset and the end of each changelog partition. Raises `LockedError` if the Kafka Streams
    application of the same id, whose offsets this one takes over, still has members in its group."""
    names = sorted({each.topic for each in candidates if each.topic is not None})
    if not log_exists(config):
        return {}
    with closing(configured_log(config, read_only=True)) as log, closing(log.admin()) as admin:
        is_taken_over = any(each.definition.source is None for each in candidates)
        if is_taken_over and not dry_run and (members := admin.members(config.application_id)):
            raise LockedError(
                f"Group {config.application_id} still has {len(members)} members. A stopped instance of Kafka Streams "
                "stays a member until its session ends (session.timeout.ms, 45 s by default). Stop all of them, wait, "
                "then adopt again."
            )
        topics = admin.topics(names)
        return admin.bounds([place for info in topics.values() for place in info.places]) if topics else {}


def _adopted(config: Config, candidate: Candidate, bounds: Offsets, *, dry_run: bool) -> AdoptedPartition:
    name, task, java_task = candidate.definition.name, candidate.task, candidate.java_task
    try:
        built = candidate.definition.build()
        refuse_other_form(candidate, built)
        assert isinstance(built, TransactionalStore)
        with JavaStore(candidate.files) as java:
            offsets = checked_offsets(candidate, java, built.layout, bounds)
            offset = max(offsets.values())
            if dry_run:
                return AdoptedPartition(name, task, java_task, "would be adopted", None, offset)
            directory = StateDirectory(config.state_dir, config.application_id)
            path = directory.store(task, name, timestamped=built.timestamped)
            with directory.lock_task(task) as lock:
                if _has_all(directory, task, name, offsets):
                    return AdoptedPartition(name, task, java_task, "exists", None, offset)
                directory.delete_store(lock, name)  # what is left of a deleted one: its notice, its Position file
                position = _position(candidate, java.position, offsets)
                types = candidate.definition.types
                target = Target(directory.task(task), path, built.layout, types, offsets, position)
                return AdoptedPartition(name, task, java_task, "adopted", adopt_store(java, target), offset)
    except StatelineError as error:
        return AdoptedPartition(name, task, java_task, "refused", why=str(error))


def _position(candidate: Candidate, java: Position, offsets: Mapping[TopicPartition, int]) -> Position:
    """Return the Position of the input that the rows reflect. A table follows the offset in its own topic."""
    if candidate.definition.source is not None:
        return Position.of(offsets)
    read = {TopicPartition(topic, candidate.partition or 0) for topic in candidate.sources}
    return Position.of([(place, offset) for place, offset in java if place in read])


def _has_all(directory: StateDirectory, task: str, name: str, offsets: Mapping[TopicPartition, int]) -> bool:
    """Whether the store exists here up to these offsets. Raises `TopologyError` if it exists and has less."""
    for timestamped in (False, True):
        if holds_database(path := directory.store(task, name, timestamped=timestamped)):
            with OfflineStore(path) as store:
                there = store.commit.offsets
            if all(there.get(place, -1) >= offset for place, offset in offsets.items()):
                return True
            raise TopologyError(
                f"{path} exists, up to offset {max(there.values(), default=-1)} only. To adopt the store nevertheless, "
                "delete this directory first."
            )
    return False


def _note(report: AdoptionReport, topology: Topology, directories: Sequence[JavaDirectory]) -> None:
    for each in report.outcomes:
        if each.why:
            report.notes.append(f"Refused: store {each.store} of task {each.java_task}. {each.why}")
    found = {each.store for each in report.outcomes}
    for name in topology.all_stores.keys() - found:
        report.notes.append(
            f"Store {name} has no files there. It is in memory in Java, or has another name, or other instances have "
            "it. The worker restores it."
        )
    declared = {java_name(each) for each in topology.all_stores.values()}
    for directory in directories:
        if more := sorted(directory.names() - declared):
            report.notes.append(f"Not declared here, and not adopted: {', '.join(more)} of {directory.path}.")
