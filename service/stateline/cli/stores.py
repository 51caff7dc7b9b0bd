"""`stateline stores`: an application's stores, and what the state directory of this machine holds of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stateline.cli.table import Row, as_text
from stateline.config.settings import Config
from stateline.dsl.app import App
from stateline.model.store_definition import StoreDefinition
from stateline.model.topology import Topology
from stateline_store import NotPresentError, Position, StateDirectory
from stateline_store.directory import holds_database
from stateline_store.offline_store import OfflineStore
from stateline_store.task_id import TaskId


class StoreOnDisk(NamedTuple):
    """What is on disk of one store's partition, as committed."""

    partition: int
    approximate_entries: int
    position: Position


def stores(app: App, config: Config, *, as_json: bool) -> str:
    """The listing as text. Reads beside running workers, and neither makes nor writes a file in the state directory."""
    topology = app.topology()
    on_disk = {name: _on_disk(config, topology, definition) for name, definition in topology.stores.items()}
    return as_text(store_rows(topology, on_disk, as_json=as_json), as_json=as_json)


def nothing_there(config: Config) -> str | None:
    """What to tell the caller when there is no state directory of this application; None when there is."""
    application = config.state_dir / config.application_id
    if application.is_dir():
        return None
    return f"There is no state directory {application}: no worker has run with this state.dir here."


def store_rows(topology: Topology, on_disk: Mapping[str, Sequence[StoreOnDisk]], *, as_json: bool) -> list[Row]:
    """One row per store, with its partitions on disk summed up for people, listed for programs."""
    return [
        {
            "store": name,
            "kind": definition.kind,
            "key": definition.key.name,
            "value": definition.value.name,
            "persistent": definition.persistent,
            "changelog": definition.changelog(topology.application_id),
            "subtopology": topology.subtopology_of(name).ordinal,
            **(_listed(on_disk[name]) if as_json else _summed(on_disk[name])),
        }
        for name, definition in topology.stores.items()
    ]


def _listed(on_disk: Sequence[StoreOnDisk]) -> Row:
    return {
        "partitions": {
            str(part.partition): {
                "approximate_entries": part.approximate_entries,
                "position": part.position.to_json(),
            }
            for part in on_disk
        }
    }


def _summed(on_disk: Sequence[StoreOnDisk]) -> Row:
    position = Position()
    for part in on_disk:
        position = position.merge(part.position)
    return {
        "partitions": len(on_disk),
        "entries": sum(part.approximate_entries for part in on_disk),
        "position": json.dumps(position.to_json()) if position else None,
    }


def _on_disk(config: Config, topology: Topology, definition: StoreDefinition) -> list[StoreOnDisk]:
    application = config.state_dir / config.application_id
    if not definition.persistent or not application.is_dir():
        return []
    directory = StateDirectory(config.state_dir, config.application_id)
    ordinal = topology.subtopology_of(definition.name).ordinal
    tasks = [task for task in map(TaskId.parse, directory.tasks()) if task.subtopology == ordinal]
    found = (_read(directory, task, definition) for task in tasks)
    return [part for part in found if part is not None]


def _read(directory: StateDirectory, task: TaskId, definition: StoreDefinition) -> StoreOnDisk | None:
    """None when no owner ever opened the store in this task."""
    database = directory.store(str(task), definition.name, timestamped=definition.timestamped)
    if not holds_database(database):
        return None
    try:
        store = OfflineStore(database)
    except NotPresentError:
        return None
    with store:
        return StoreOnDisk(task.partition, store.approximate_num_entries(), store.commit.position)
