"""Put stores of a backup into a state directory that no process uses."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from stateline.backup.declared_parts import (
    as_declared,
    made_from,
    replaced_topics,
    undeclared,
    without_forgotten,
)
from stateline.backup.location import BackupLocation
from stateline.backup.reading import backups, place, tasks
from stateline.cli.backup.restorable import NO_TASK, other_topics
from stateline.cli.reset.running import running_here
from stateline.cli.table import Row
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.deployment.stores.discarding import settle_resets
from stateline.deployment.stores.resets import without_stale
from stateline.dsl.app import App
from stateline.log.interface import Log
from stateline.model.internal_topics import ConfiguredTopics
from stateline.model.topology import Topology
from stateline_store import DamagedDataError, DoesNotExistError, LockedError, StateDirectory, StatelineError
from stateline_store.snapshots.backup import Backup
from stateline_store.task_id import TaskId

_THERE = "Its stores are there already."


def restored(app: App, config: Config, backup_id: str | None, node: str | None) -> list[Row]:
    """Restore each task from its newest backup, or from those of this id and older ones. Returns a row for each task.

    Raises `LockedError` while processes of the application run here, `DoesNotExistError` if there is no backup, and
    `ConfigurationError` if a reset is not complete."""
    location, topology = BackupLocation.of(config), app.configured_topology(config)
    if running := running_here(config):
        raise LockedError(f"This application runs: {', '.join(running)}. Stop it, then restore again.")
    there = list(backups(location, backup_id))
    if not there:
        raise DoesNotExistError(f"{location.url} has no backup of {config.application_id} to restore.")
    found = [each for each in there if node in (None, each.node)]
    if not found:
        nodes = ", ".join(sorted({repr(each.node) for each in there}))
        raise DoesNotExistError(f"No backup of {config.application_id} is of node {node!r}: there are {nodes}.")
    log = configured_log(config)
    with closing(log):
        # Before anything is here: the first start would delete it as older than a reset.
        reset = settle_resets(config, log, topology.target)
        ids = _topic_ids(log, topology)
    known = [as_declared(each, topology) for each in found]
    names = sorted({task for backup in known for task in tasks(backup)}, key=TaskId.parse)
    current = [without_stale(each, reset) for each in known]
    rows = [_restored(location, config, topology, task, current, ids) for task in names]
    why = undeclared(found[0], topology)
    return [*rows, {**NO_TASK, "outcome": "left out", "why": why}] if why else rows


def _restored(
    location: BackupLocation,
    config: Config,
    topology: Topology,
    task: str,
    found: Sequence[Backup],
    ids: dict[str, str],
) -> Row:
    directory, why = StateDirectory(config.state_dir, config.application_id), ""
    if not any(task in tasks(backup) for backup in found):
        why = "Its stores were reset since its backups."
    for backup in found:
        if task not in tasks(backup):
            continue
        row = {"task": task, "backup": backup.id, "node": backup.node}
        try:
            taken, partly = without_forgotten(backup, task, topology, ConfiguredTopics.of(config))
            size = place(location, taken, task, topology, directory, made_from(taken, task, topology, ids))
        except (DamagedDataError, DoesNotExistError) as error:
            why = why or str(error)
            continue
        except StatelineError as error:
            return {**row, "outcome": "not restored", "bytes": 0, "why": str(error)}
        if size is not None:
            return {**row, "outcome": "restored", "bytes": size, "why": f"{why} {partly}".strip()}
        is_there = (directory.task(task) / "rocksdb").exists()
        told = _THERE if is_there else other_topics(replaced_topics(taken, task, topology, ids), topology)
        return {**row, "outcome": "kept" if is_there else "not restored", "bytes": 0, "why": told}
    return {**NO_TASK, "task": task, "outcome": "not restored", "why": why}


def _topic_ids(log: Log, topology: Topology) -> dict[str, str]:
    """Return the ids of the application's topics as they are now."""
    logs = (store.changelog(topology.application_id) for each in topology.subtopologies for store in each.stores)
    sources = {topic.name for each in topology.subtopologies for topic in each.sources}
    with closing(log.admin()) as admin:
        found = admin.topics(sorted(sources | {name for name in logs if name is not None}))
        return {name: info.topic_id for name, info in found.items()}
