"""Read backups: find the newest of a task, fetch its stores, and check them.

Files go to where copies of other nodes arrive (`stateline_store.snapshots.store_copies`), and are checked and placed
like those. A file that is damaged or gone at the location makes its backup unusable; the next older one is taken then.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from threading import Event
from typing import Literal, NamedTuple

from stateline.backup.cut import fetch_file, fetch_files, fetch_part, leased, refuse_stopped
from stateline.backup.location import BackupLocation, check_id
from stateline.model.internal_topics import ConfiguredTopics
from stateline.model.store_definition import DAY_MS, StoreDefinition
from stateline.model.topology import Topology
from stateline_store import (
    DamagedDataError,
    DoesNotExistError,
    NewerFormatError,
    StateDirectory,
    StatelineError,
    TopicPartition,
    TopologyError,
)
from stateline_store.clock import now_ms
from stateline_store.files.directory import has_stores
from stateline_store.snapshots.backup import Backup, settled, task_of
from stateline_store.snapshots.checkpoints import Checkpoint
from stateline_store.snapshots.store_copies import CopyDirectory, Declared
from stateline_store.steps import reached
from stateline_store.stores.committed_store import CommittedStore
from stateline_store.task_id import TaskId

_log = logging.getLogger(__name__)

_MARGIN_MS = 60 * 60 * 1000
_WRITE_AGAIN = "To write every file again, run stateline backup now --full on node {!r}."


class Fault(NamedTuple):
    """A task of a backup that cannot be used, and the reason. `outcome` is a word for what was found."""

    task: str
    outcome: Literal["damaged", "declared otherwise", "not checked"]
    why: str


def backups(location: BackupLocation, until: str | None = None) -> Iterator[Backup]:
    """Yield the readable backups, newest first: that of the id `until` and older ones, or all. Others are logged. If
    several with the same id have a task, one keeps it (`settled`). Raises `DoesNotExistError` if there is no backup of
    the id `until`."""
    names = location.manifests()
    if until is not None:
        check_id(location, until, (backup_id for backup_id, _ in names))
    for backup_id, nodes in groupby(reversed(names), key=itemgetter(0)):
        if until is None or backup_id <= until:
            yield from settled([found for _, node in nodes if (found := _readable(location, backup_id, node))])


def _readable(location: BackupLocation, backup_id: str, node: str) -> Backup | None:
    try:
        return location.read(backup_id, node)
    except (DoesNotExistError, DamagedDataError, NewerFormatError) as error:
        _log.warning("%s", error)
        return None


def tasks(backup: Backup) -> list[str]:
    """Return the tasks that the backup has, in order."""
    return sorted({task_of(part) for part in backup.copy.parts}, key=TaskId.parse)


def declared(topology: Topology, task_id: str) -> dict[str, Declared]:
    """Return the stores on disk of this task, as the application declares them."""
    partition, found = TaskId.parse(task_id).partition, dict[str, Declared]()
    for store in _stores(topology, task_id):
        changelog, built = store.changelog(topology.application_id), store.build()
        if isinstance(built, CommittedStore) and store.persistent and store.external is None:
            place = None if changelog is None else TopicPartition(changelog, partition)
            found[store.name] = Declared(built.layout, store.types, place)
    return found


def _stores(topology: Topology, task_id: str) -> Sequence[StoreDefinition]:
    subtopology = topology.subtopology_at(TaskId.parse(task_id).subtopology)
    return () if subtopology is None else subtopology.stores


def refuse_declared_otherwise(backup: Backup, topology: Topology) -> None:
    """Raise `TopologyError` if the manifest has a store of this backup with another kind or other types than the
    application declares. Files tell more, once they are here."""
    for name in sorted({part.store for part in backup.copy.parts}):
        told, store = backup.stores.get(name, {}), topology.stores[name]
        kind, types = told.get("kind", store.kind), store.types
        types = replace(
            types,
            key=told.get("key_type", types.key),
            value=told.get("value_type", types.value),
            window_size_ms=told.get("window_size_ms", types.window_size_ms) or None,
        )
        headers = bool(told.get("headers"))
        if (kind, types) != (store.kind, store.types) or (headers and not store.headers):
            raise TopologyError(
                f"The backup {backup.id} has {name!r} as {kind} with {types}{' and headers' if headers else ''}. The "
                f"application declares {store.description}. Declare it as it was, or give it a new name: it then "
                "starts empty."
            )


def refuse_forgotten(backup: Backup, task_id: str, topology: Topology, configured: ConfiguredTopics) -> None:
    """Raise `DamagedDataError` if a changelog of this task may have forgotten deletes since this backup: the deleted
    rows would come back. Kafka forgets them after ``delete.retention.ms``, a day by default."""
    logged = (s for s in _stores(topology, task_id) if s.changelog(topology.application_id) is not None)
    changelogs = [s.changelog_settings(configured.settings, configured.window_additional_ms) for s in logged]
    compacted = [each for each in changelogs if "compact" in each.get("cleanup.policy", "")]
    kept_ms = [int(each.get("delete.retention.ms", DAY_MS)) for each in compacted]
    if kept_ms and backup.created_at_ms < now_ms() - min(kept_ms) + min(_MARGIN_MS, min(kept_ms) // 2):
        raise DamagedDataError(
            f"The backup {backup.id} is older than what the changelogs remember of deletes: {min(kept_ms) / 3.6e6:g} "
            "hours (delete.retention.ms). With it, deleted rows would come back."
        )


def fetch(
    location: BackupLocation,
    backup: Backup,
    task_id: str,
    topology: Topology,
    arriving: CopyDirectory,
    stopped: Event | None = None,
) -> int:
    """Fetch the stores of this task into the directory where copies arrive, and check them as their opening will.
    Returns the bytes. Pieces that came before are kept.

    Raises `DamagedDataError` for a file that is not what was written, `DoesNotExistError` for one that is gone,
    `TopologyError` for stores that do not fit their declaration, and `RetryLaterError` when the location or the disk
    refuses, or soon after `stopped` is set."""
    wanted, of_task = declared(topology, task_id), backup.of_task(task_id)
    refuse_declared_otherwise(of_task, topology)
    stamped = {name: topology.stores[name].timestamped for name in wanted}
    of_task.copy.check_stores(task_id, stamped, TaskId.parse(task_id).partition)

    def arrive(location: BackupLocation, backup: Backup, path: str, target: Path) -> None:
        os.utime(arriving.path)  # a server deletes files that nobody has touched for long
        fetch_file(location, backup, path, target, stopped)
        with target.open("rb") as file:
            os.fsync(file.fileno())
        reached("copy:file-arrived")

    arriving.begin(of_task.copy)
    with leased(location, backup.id):
        fetch_files(location, of_task, arriving.path, of_task.copy.files, arrive)
    arriving.check(of_task.copy, wanted)
    return of_task.copy.size_bytes


def place(
    location: BackupLocation,
    backup: Backup,
    task_id: str,
    topology: Topology,
    directory: StateDirectory,
    ids: Mapping[str, str],
    instance: str = "",
    stopped: Event | None = None,
) -> int | None:
    """Fetch the stores of this task, and move them into its directory here in one step. `ids` are the ids of its topics
    now, `instance` is the worker that fetches, if one does. Returns the bytes; None if the task has stores already, or
    they were made from other topics.

    Raises as `fetch`, and `LockedError` while another process has the task. Once `stopped` is set, nothing is moved."""
    arriving, task = CopyDirectory(directory.application, task_id, instance), directory.task(task_id)
    size = 0 if has_stores(task) else fetch(location, backup, task_id, topology, arriving, stopped)
    with directory.lock_task(task_id):
        refuse_stopped(stopped)
        if not has_stores(task) and arriving.place(task, ids):
            return size
    arriving.remove()
    return None


def verify(
    location: BackupLocation, backup: Backup, topology: Topology | None, read: Callable[[int], None] = lambda _: None
) -> list[Fault]:
    """Fetch every store of a backup into a temporary directory, and open it. Returns what is wrong; nothing, if each
    store shows the commit and the Position that the manifest says. Without a topology, stores are not compared with
    their declarations. `read` gets the bytes of each task."""
    found = []
    for task_id in tasks(backup):
        of_task = backup.of_task(task_id)
        with tempfile.TemporaryDirectory(prefix="stateline-verify-") as folder:
            try:
                differs = _rehearsed(location, of_task, task_id, topology, Path(folder))
                if differs is not None:
                    found.append(Fault(task_id, "declared otherwise", str(differs)))
            except (DamagedDataError, DoesNotExistError) as error:
                found.append(Fault(task_id, "damaged", f"{error} {_WRITE_AGAIN.format(backup.node)}"))
            except StatelineError as error:
                found.append(Fault(task_id, "not checked", str(error)))
        read(of_task.copy.size_bytes)
    return found


def _rehearsed(
    location: BackupLocation, backup: Backup, task_id: str, topology: Topology | None, folder: Path
) -> TopologyError | None:
    """Fetch and open the stores of this task. Returns how the application declares them otherwise, if it does."""
    differs, arriving = None, CopyDirectory(folder, task_id)
    if topology is not None:
        try:
            fetch(location, backup, task_id, topology, arriving)
            return None
        except TopologyError as error:
            differs = error
            arriving.remove()
    fetch_part(location, backup, folder)
    for part in backup.copy.parts:
        with Checkpoint(folder, part):  # compares the commit and its Position
            pass
    return differs
