"""`StoreStates`: a store and its partitions as ``/v1/stores`` and the console describe them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from stateline.config.settings import Config
from stateline.model.store_definition import StoreDefinition
from stateline.model.topology import Topology
from stateline.rows.columns import row_columns
from stateline.server.cluster_view import ClusterView
from stateline.server.contract.hidden_paths import without_paths
from stateline.server.state.partitions import Partitions
from stateline.server.state.served_stores import ServedStore, ServedStores
from stateline.server.state.workers import Workers
from stateline_store import NotReadyError, StatelineError

_NO_LAG = {"lag_records": None, "lag_ms": None, "restore_remaining": None}


@dataclass(eq=False, repr=False)
class StoreStates:
    """Describes stores. One per server process, for the event loop's thread."""

    _config: Config
    _topology: Topology
    _stores: ServedStores
    _workers: Workers
    _partitions: Partitions
    look: Callable[[], ClusterView]

    def describe(self, name: str, view: ClusterView) -> dict[str, Any]:
        """Return a store and its partitions as they are now, over one look at all nodes."""
        definition = self._topology.all_stores[name]
        described = {
            "store": name,
            **described_definition(definition),
            "global": name in self._topology.global_tables,
            "columns": [asdict(column) for column in row_columns(definition)],  # as an Arrow stream has them
            "default_isolation_level": self._config.default_state_isolation_level.value,
            "changelog": definition.changelog(self._topology.application_id),
        }
        try:
            store = self._stores.get(name)
        except NotReadyError as error:  # declared, and no worker runs it yet
            return described | {"partitions": {}, "not_ready": without_paths(error)}
        if store.stopped is not None:
            described["stopped"] = without_paths(NotReadyError(store.stopped))
        everywhere = view.has_others and not store.is_global
        found = {p: self._partition(store, p, view) if everywhere else self._here(store, p) for p in store.partitions}
        return described | {"partitions": {str(p): each for p, each in found.items()}}

    def _partition(self, store: ServedStore, partition: int, view: ClusterView) -> dict[str, Any]:
        """Return the partition as its owner has it, on any node; without a known owner, as it is here."""
        task_id = store.placement.task_id(partition)
        node, url = view.owner(task_id)
        copies = view.copies(store, partition)
        told = {"node": node, "url": url, "copies": copies}
        is_elsewhere = node != view.name and node in copies
        here = {} if is_elsewhere and view.name not in copies else self._here(store, partition)
        if view.name in copies:
            copies[view.name]["lag_ms"] = here["lag_ms"]
        if node is None or not is_elsewhere:
            return here | told
        lag_ms = 0 if copies[node]["state"] == "active" else None
        return {"task": task_id, "owner": None, **copies[node], "lag_ms": lag_ms, **told}

    def _here(self, store: ServedStore, partition: int) -> dict[str, Any]:
        task_id = store.placement.task_id(partition)
        workers = self._workers
        owner = workers.owner(task_id)
        described: dict[str, Any] = {"task": task_id, "owner": owner, "state": None, **_NO_LAG}
        if not store.definition.persistent:
            lives = owner is not None and workers.is_alive(owner)  # what was in memory has gone with one that does not
            if lives and owner is not None:
                is_suspended = workers.instances[owner].state_of(task_id) == "suspended"
                described["state"] = "standby" if is_suspended else self._partitions.served_by(store, partition)
            elif workers.follows(task_id):
                described["state"] = "standby"
            return described
        try:
            copy = self._partitions.status(store, partition)
            reader = self._partitions.open(store, partition)
        except StatelineError as error:
            return described | {"unreadable": without_paths(error)}
        return described | {
            "state": copy.served_by,
            "lag_records": 0 if copy.served_by == "active" else copy.lag_records,
            "lag_ms": 0 if copy.served_by == "active" else copy.lag_ms,
            "restore_remaining": reader.notice.restore_remaining,
            "staged_records": copy.staged_records,
            "staged_bytes": copy.staged_bytes,
            "committed_at_ms": copy.committed_at_ms,
        }


def described_definition(definition: StoreDefinition) -> dict[str, Any]:
    return {
        "kind": definition.kind,
        "key_type": definition.key.name,
        "value_type": definition.value.name,
        "persistent": definition.persistent,
        "logged": definition.logged,
        "retention_ms": definition.retention_ms or None,  # key-value stores keep every key until it is deleted
        "external": definition.external,
    }
