"""Read the state directory as a start would: which stores are where, in which format.

It takes no lock and changes nothing. It opens databases through `OfflineStore`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stateline.cli.check.report import Finding
from stateline.config.settings import Config
from stateline.deployment.stores.topology_file import read_counted, read_made_of
from stateline.log.interface import TopicInfo
from stateline.model.reset_command import of_store, says_how_to_begin_anew
from stateline.model.store_definition import StoreDefinition
from stateline.model.topology import Topology
from stateline.worker.files.topic_ids import known
from stateline_store import (
    DamagedDataError,
    NotPresentError,
    Position,
    RetryLaterError,
    StateDirectory,
    StatelineError,
    TopicPartition,
    TopologyError,
    TransactionalStore,
    store_path,
)
from stateline_store.files.directory import holds_database
from stateline_store.files.offset_checkpoint import OFFSET_CHECKPOINT, OFFSET_UNKNOWN, read_offset_checkpoint
from stateline_store.files.relocation import plan_relocation, read_listing, unknown_stores
from stateline_store.files.relocation_journal import Move
from stateline_store.rocksdb.offline_store import OfflineStore
from stateline_store.rocksdb.rows import check_format


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A store's database in one task, or a global table's on one worker. `offsets` are the last changelog offsets that
    it has applied. `topic_ids` are those of the topics from which the task's stores were made."""

    approximate_entries: int
    offsets: Mapping[TopicPartition, int]
    position: Position
    topic_ids: Mapping[str, str]
    has_headers: bool = False


@dataclass(frozen=True, slots=True)
class DiskView:
    """The content of the state directory. `stored` is by store and by a name of `StateDirectory.all_tasks`. `counted`
    are topics as the last worker counted them. `made_of` describes unnamed stores. `is_there`: a worker has run here.
    """

    is_there: bool = False
    stored: Mapping[tuple[str, str], StoredPart] = field(default_factory=dict)
    counted: Mapping[str, TopicInfo] = field(default_factory=dict)
    made_of: Mapping[str, str] = field(default_factory=dict)
    findings: Sequence[Finding] = ()


def look_at_disk(topology: Topology, config: Config) -> DiskView:
    """Return the content and the findings of a start. Never raises for the directory's content."""
    application = config.state_dir / config.application_id
    if not application.is_dir():
        return DiskView()
    directory = StateDirectory(config.state_dir, config.application_id)
    findings: list[Finding] = []
    stored: dict[tuple[str, str], StoredPart] = {}
    counted: dict[str, TopicInfo] = {}
    try:
        findings += _of_places(directory, topology, automatic=config.automatic_state_relocation)
        counted = read_counted(application)
    except StatelineError as error:
        findings.append(Finding("refused", str(error)))
    for places, stores in ((directory.tasks(), topology.stores), (directory.global_tasks(), topology.global_tables)):
        for place in places:
            for store in stores.values():
                findings += _look(directory, place, store, topology, stored)
    return DiskView(True, stored, counted, read_made_of(application), tuple(dict.fromkeys(findings)))


def _of_places(directory: StateDirectory, topology: Topology, *, automatic: bool) -> Iterator[Finding]:
    wanted = {store.name: s.ordinal for s in topology.subtopologies for store in s.stores}
    for task, name in unknown_stores(read_listing(directory), wanted):
        yield Finding("note", f"{directory.task(task)} holds store {name!r}, which the application has not: it stays.")
    for move in plan_relocation(directory, wanted):
        yield _of_move(move, automatic=automatic)


def _of_move(move: Move, *, automatic: bool) -> Finding:
    where = f"Store {move.store!r} is in task {move.source}, and its subtopology has another number now"
    if automatic:
        return Finding("note", f"{where}: it is moved to {move.target}.")
    advice = "set automatic.state.relocation=true, or declare what is read in the order as before"
    return Finding("refused", f"{where}, {move.target}: {advice}.")


def _look(
    directory: StateDirectory,
    task: str,
    store: StoreDefinition,
    topology: Topology,
    stored: dict[tuple[str, str], StoredPart],
) -> Iterator[Finding]:
    """Add this task's or worker's copy of the store to `stored`. Yield what a worker would refuse, or do, when it opens
    it."""
    if store.kind == "custom" or not store.persistent:
        return
    folder, changelog = directory.task(task), store.changelog(topology.application_id)
    database = store_path(folder, store.name, timestamped=store.timestamped)
    if not holds_database(database):
        if holds_database(store_path(folder, store.name, timestamped=not store.timestamped)):
            yield _of_other_files(store, task, changelog)
        return
    whose = f"Store {store.name!r} of task {task}"
    try:
        with says_how_to_begin_anew(topology), of_store(store.name):
            stored[store.name, task] = part = _opened(store, folder, database, changelog)
        if store.headers and not part.has_headers:
            yield Finding("note", f"{whose} keeps no headers yet: its rows are rewritten when a worker opens it.")
    except NotPresentError:
        return
    except TopologyError as error:
        yield Finding("refused", str(error), declared_otherwise=store.name)
    except DamagedDataError as error:
        if changelog is None:
            yield Finding("refused", f"{whose}: {error}")
        else:
            yield Finding("warning", f"{whose}: {error} It is rebuilt from {changelog}.")
    except StatelineError as error:
        yield Finding("unknown" if isinstance(error, RetryLaterError) else "refused", f"{whose}: {error}")


def _of_other_files(store: StoreDefinition, task: str, changelog: str | None) -> Finding:
    has, wanted = ("without", "with") if store.timestamped else ("with", "without")
    where = f"Store {store.name!r} of task {task} is on disk {has} timestamps"
    if changelog is None:
        advice = "declare it as it was, or under another name"
        return Finding("refused", f"{where}, and has no changelog to be built {wanted} them from: {advice}.")
    return Finding("note", f"{where}, and is declared {wanted} them: it is rebuilt from {changelog}.")


def _opened(store: StoreDefinition, task: Path, database: Path, changelog: str | None) -> StoredPart:
    """Raises what `OfflineStore` raises, and what a worker would raise when it opens this database for the declared
    store."""
    with OfflineStore(database) as opened:
        declared = store.build()
        if opened.format is not None and isinstance(declared, TransactionalStore):
            check_format(opened.format, declared.layout, store.types, opened.commit, database)
        offsets = {place: at for place, at in opened.commit.offsets.items() if place.topic == changelog}
        if not offsets and changelog is not None:
            noted = read_offset_checkpoint(task / OFFSET_CHECKPOINT)
            offsets = {place: at for place, at in noted.items() if place.topic == changelog and at != OFFSET_UNKNOWN}
        has_headers = opened.layout is not None and opened.layout.headers and opened.layout.headers_up_to is None
        return StoredPart(opened.approximate_num_entries(), offsets, opened.commit.position, known(task), has_headers)
