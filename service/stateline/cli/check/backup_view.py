"""Look up which backups a start would take, for tasks without stores here whose rows no changelog has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice

from stateline.backup.declared_parts import as_declared, replaced_topics, unlogged_stores, without_forgotten
from stateline.backup.location import BackupLocation
from stateline.backup.reading import backups, refuse_declared_otherwise, tasks
from stateline.cli.check.disk_view import DiskView
from stateline.cli.check.log_view import LogView
from stateline.cli.check.report import Finding
from stateline.config.settings import Config
from stateline.deployment.stores.resets import without_stale
from stateline.model.internal_topics import ConfiguredTopics
from stateline.model.topology import Topology
from stateline_store import DamagedDataError, Position, StatelineError, TopologyError
from stateline_store.snapshots.backup import task_of

_MOST_READ = 100  # manifests


def look_at_backups(
    topology: Topology, partitions: Mapping[int, int], config: Config, disk: DiskView, log: LogView
) -> tuple[dict[tuple[str, str], Position], list[Finding]]:
    """Return the Position of each store without a changelog that a backup brings to this disk, by store and task, and
    what is said of it. Reads manifests, and only if a task that has processed input has such stores and no files
    here."""
    lacking = _lacking(topology, partitions, disk, log)
    if config.backup_location is None or not lacking:
        return {}, []
    try:
        return _found(topology, lacking, BackupLocation.of(config), ConfiguredTopics.of(config), log)
    except (StatelineError, OSError) as error:
        why = f"backup.location was not looked at: {error} It may have rows of tasks {', '.join(lacking)}."
        return {}, [Finding("warning", why)]


def _lacking(topology: Topology, partitions: Mapping[int, int], disk: DiskView, log: LogView) -> list[str]:
    here, found = {task for _, task in disk.stored}, list[str]()
    for subtopology in topology.subtopologies:
        sources = {topic.name for topic in subtopology.sources}
        processed = {place.partition for place in log.committed if place.topic in sources}
        for number in sorted(processed & {*range(partitions.get(subtopology.ordinal, 0))}):
            task = str(subtopology.task_id(number))
            if unlogged_stores(topology, task) and task not in here:
                found.append(task)
    return found


def _found(
    topology: Topology, lacking: Collection[str], location: BackupLocation, configured: ConfiguredTopics, log: LogView
) -> tuple[dict[tuple[str, str], Position], list[Finding]]:
    ids = {name: info.topic_id for name, info in log.topics.items()}
    positions: dict[tuple[str, str], Position] = {}
    used: dict[str, str] = {}
    refused: dict[str, str] = {}  # why the newest one that has a task is not taken
    for whole in islice(backups(location), _MOST_READ):
        backup = without_stale(as_declared(whole, topology), log.reset)
        for task in {*tasks(backup)} & {*lacking} - used.keys():
            try:
                refuse_declared_otherwise(without_forgotten(backup, task, topology, configured)[0], topology)
            except (DamagedDataError, TopologyError) as error:
                refused.setdefault(task, f" {error}")
                continue
            if not replaced_topics(backup, task, topology, ids):
                used[task] = backup.id
                own = [part for part in backup.copy.parts if task_of(part) == task]
                unlogged = unlogged_stores(topology, task)
                positions |= {(part.store, task): part.position for part in own if part.store in unlogged}
        if len(used) == len(lacking):
            break
    told = [Finding("note", f"Task {task} would start here from the backup {at}.") for task, at in used.items()]
    without = [task for task in lacking if task not in used]
    if without:
        why = f"None of the newest {_MOST_READ} backups fits these tasks: {', '.join(without)}."
        reasons = "".join(dict.fromkeys(refused[task] for task in without if task in refused))
        told.append(Finding("warning", f"{why} Their stores without a changelog would start empty.{reasons}"))
    return positions, told
