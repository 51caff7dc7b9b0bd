"""Read a backup as the application of now declares and numbers its stores. Pure.

The application may have changed since the backup:

| the application has since                | then                                                                      |
|------------------------------------------|---------------------------------------------------------------------------|
| dropped a store, or put it into memory   | the store is left out (`undeclared`)                                      |
| added a store, or a topic                | it begins as at any other start                                           |
| numbered its subtopologies otherwise     | stores and offsets belong to the tasks that have them now                 |
| reset a store                            | the store is left out (`resets.without_stale`)                            |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stateline.backup.reading import declared, refuse_forgotten
from stateline.model.internal_topics import ConfiguredTopics
from stateline.model.topology import Topology
from stateline_store import DamagedDataError
from stateline_store.snapshots.backup import Backup
from stateline_store.task_id import TaskId


def as_declared(backup: Backup, topology: Topology) -> Backup:
    """Return the backup by the tasks of now, with the stores on disk and the source topics that the application has."""
    homes, moved = _homes(topology), dict[str, str]()
    parts = [part for part in backup.copy.parts if part.store in homes]
    for part in parts:
        moved[part.directory] = f"{TaskId(homes[part.store], part.partition)}/{Path(part.directory).name}"
    kept = backup.of_parts(parts)
    copy = replace(
        kept.copy,
        parts=tuple(replace(part, directory=moved[part.directory]) for part in parts),
        files={_moved(path, moved): size for path, size in kept.copy.files.items()},
    )
    return replace(
        kept,
        copy=copy,
        digests={_moved(path, moved): digests for path, digests in kept.digests.items()},
        offsets={moved[each]: offset for each, offset in backup.offsets.items() if each in moved},
        committed=_committed(backup, topology),
    )


def undeclared(backup: Backup, topology: Topology, partition: int | None = None) -> str:
    """Return which stores of the backup, or of this partition, are left out, for people; empty if none is."""
    homes, parts = _homes(topology), backup.copy.parts
    gone = sorted({p.store for p in parts if p.store not in homes and partition in (None, p.partition)})
    return f"Not declared any more, so left out: {', '.join(gone)}." if gone else ""


def without_forgotten(
    backup: Backup, task_id: str, topology: Topology, configured: ConfiguredTopics
) -> tuple[Backup, str]:
    """Return the stores of this task whose changelogs remember all deletes since the backup: all, or those without a
    changelog. Also returns the reason, for people. Raises `DamagedDataError` if there is none."""
    own = backup.of_task(task_id)
    try:
        refuse_forgotten(own, task_id, topology, configured)
    except DamagedDataError as error:
        unlogged = unlogged_stores(topology, task_id)
        parts = [part for part in own.copy.parts if part.store in unlogged]
        if not parts:
            raise
        names = ", ".join(sorted({part.store for part in parts}))
        return own.of_parts(parts), f"{error} So only stores without a changelog are taken: {names}."
    return own, ""


def unlogged_stores(topology: Topology, task_id: str) -> list[str]:
    """Return the stores on disk of this task that have no changelog, so that only a backup brings their rows."""
    return sorted(name for name, store in declared(topology, task_id).items() if store.changelog is None)


def made_from(backup: Backup, task_id: str, topology: Topology, ids: Mapping[str, str]) -> dict[str, str]:
    """Return the id that each topic must have had when these stores of a task were made: the id in `ids`, or an empty
    one if the topic is gone."""
    subtopology = topology.subtopology_at(TaskId.parse(task_id).subtopology)
    if subtopology is None:
        return {}
    stores = {part.store for part in backup.of_task(task_id).copy.parts}
    logs = (each.changelog(topology.application_id) for each in subtopology.stores if each.name in stores)
    sources = {topic.name for topic in subtopology.sources}
    known = sources & backup.copy.topics.keys() or sources  # topics that it does not know were added since
    return {topic: ids.get(topic, "") for topic in known | {log for log in logs if log is not None}}


def replaced_topics(backup: Backup, task_id: str, topology: Topology, ids: Mapping[str, str]) -> dict[str, str]:
    """Return the topics that these stores of a task were made from and that are gone or were created again, with their
    `ids` now, empty if gone. Without any, the stores fit the topics."""
    made_of = made_from(backup, task_id, topology, ids)
    return {topic: topic_id for topic, topic_id in made_of.items() if backup.copy.topics.get(topic) != topic_id}


def _homes(topology: Topology) -> dict[str, int]:
    """Return the subtopology of each store on disk."""
    return {name: each.ordinal for each in topology.subtopologies for name in declared(topology, str(each.task_id(0)))}


def _moved(path: str, moved: Mapping[str, str]) -> str:
    directory, _, name = path.rpartition("/")
    return f"{moved[directory]}/{name}"


def _committed(backup: Backup, topology: Topology) -> dict[str, dict[str, Any]]:
    readers = {topic.name: each.ordinal for each in topology.subtopologies for topic in each.sources}
    found: dict[str, dict[str, Any]] = {}
    for task_id, topics in backup.committed.items():
        if not topics:  # nothing was processed yet
            found.setdefault(task_id, {})
        for topic, at in topics.items():
            if topic in readers:
                task = str(TaskId(readers[topic], TaskId.parse(task_id).partition))
                found.setdefault(task, {})[topic] = at
    return found
