"""`stateline stores`: list an application's stores, with their state on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stateline.cli.table import Row, as_text
from stateline.config.settings import Config
from stateline.deployment.stores.leftover_stores import delete_leftover, leftovers, told
from stateline.dsl.app import App
from stateline.model.store_definition import StoreDefinition
from stateline.model.topology import Topology
from stateline_store import DoesNotExistError, NotPresentError, Position, StateDirectory
from stateline_store.files.directory import holds_database
from stateline_store.rocksdb.offline_store import OfflineStore
from stateline_store.task_id import TaskId


class StoreOnDisk(NamedTuple):
    """The committed state of one partition of a store, or of one worker's global table. `part` is the partition's
    number, or the worker's name."""

    part: str
    approximate_entries: int
    position: Position


_NOTHING = StoreOnDisk("", 0, Position())


def stores(app: App, config: Config, *, as_json: bool) -> str:
    """The listing. It reads beside running workers and makes no file."""
    topology = app.topology()
    on_disk = {name: _on_disk(config, topology, definition) for name, definition in topology.all_stores.items()}
    return as_text(store_rows(topology, on_disk, as_json=as_json), as_json=as_json)


def leftover_stores(app: App, config: Config) -> str | None:
    """A warning of undeclared stores on disk; None if there are none."""
    if nothing_there(config):
        return None
    topology = app.topology()
    found = leftovers(StateDirectory(config.state_dir, config.application_id), topology.all_stores)
    return told(found, topology.target) if found else None


def delete(app: App, config: Config, name: str) -> str:
    """Delete the files of an undeclared store. Returns what to tell the caller. Raises like `delete_leftover`."""
    if (nothing := nothing_there(config)) is not None:
        raise DoesNotExistError(nothing)
    topology = app.topology()
    directory = StateDirectory(config.state_dir, config.application_id)
    found = delete_leftover(directory, name, topology.all_stores, topology.target)
    changelog = f"{config.application_id}-{name}-changelog"
    return (
        f"Deleted {name!r} ({found.described}: {', '.join(found.tasks)}). If it has a changelog topic, that stays. To "
        f"delete that too, run with the code that declares it: stateline topics {topology.target} --delete {changelog}"
    )


def nothing_there(config: Config) -> str | None:
    """Say that this application has no state directory here; None if it has one."""
    application = config.state_dir / config.application_id
    if application.is_dir():
        return None
    return f"There is no state directory {application}: no worker has run with this state.dir here."


def store_rows(topology: Topology, on_disk: Mapping[str, Sequence[StoreOnDisk]], *, as_json: bool) -> list[Row]:
    """A row per store: its partitions on disk summed up for people, listed for programs. For a global table, which each
    worker has, people see the largest one."""
    rows: list[Row] = []
    for name, definition in topology.all_stores.items():
        is_global = name in topology.global_tables
        own = {
            "store": name,
            "kind": "global table" if is_global else definition.kind,
            "key": definition.key.name,
            "value": definition.value.name,
            "persistent": definition.persistent,
            "changelog": definition.changelog(topology.application_id),
            "subtopology": None if is_global else topology.subtopology_of(name).ordinal,
        }
        if as_json:
            parts = {
                each.part: {"approximate_entries": each.approximate_entries, "position": each.position.to_json()}
                for each in on_disk[name]
            }
            rows.append({**own, "workers" if is_global else "partitions": parts})
            continue
        if is_global:
            position = max(on_disk[name], key=lambda each: each.approximate_entries, default=_NOTHING).position
            count = len(list(position))
        else:
            position, count = Position(), len(on_disk[name])
            for each in on_disk[name]:
                position = position.merge(each.position)
        text = json.dumps(position.to_json()) if position else None
        rows.append({**own, "partitions": count, "position": text})
    return rows


def _on_disk(config: Config, topology: Topology, definition: StoreDefinition) -> list[StoreOnDisk]:
    application = config.state_dir / config.application_id
    if not definition.persistent or not application.is_dir():
        return []
    directory = StateDirectory(config.state_dir, config.application_id)
    if definition.name in topology.global_tables:
        places = {task: task.partition("/")[2] for task in directory.global_tasks()}
    else:
        ordinal = topology.subtopology_of(definition.name).ordinal
        tasks = [task for task in map(TaskId.parse, directory.tasks()) if task.subtopology == ordinal]
        places = {str(task): str(task.partition) for task in tasks}
    found = (_read(directory, task, part, definition) for task, part in places.items())
    return [each for each in found if each is not None]


def _read(directory: StateDirectory, task: str, part: str, definition: StoreDefinition) -> StoreOnDisk | None:
    """None if no worker ever opened the store there."""
    database = directory.store(task, definition.name, timestamped=definition.timestamped)
    if not holds_database(database):
        return None
    try:
        store = OfflineStore(database)
    except NotPresentError:
        return None
    with store:
        return StoreOnDisk(part, store.approximate_num_entries(), store.commit.position)
