"""`StoreStates`: a store as ``/v1/stores`` and the console describe it: what it is, and how its partitions stand."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from stateline.model.store_definition import StoreDefinition
from stateline.server.contract.hidden_paths import without_paths
from stateline.server.rows.columns import row_columns
from stateline.server.serving import Serving
from stateline.server.state.served_stores import ServedStore
from stateline_store import NotReadyError, StatelineError

_NO_LAG = {"lag_records": None, "lag_ms": None, "restore_remaining": None}


class StoreStates:
    """For one answer, over one look at all nodes. For the event loop's thread."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._view = serving.look()

    def describe(self, name: str) -> dict[str, Any]:
        """A store that can be asked, and its partitions as they are now."""
        definition = self._serving.topology.all_stores[name]
        described = {
            "store": name,
            **described_definition(definition),
            "global": name in self._serving.topology.global_tables,
            "columns": [asdict(column) for column in row_columns(definition)],  # as an Arrow stream has them
            "default_isolation_level": self._serving.config.default_state_isolation_level.value,
            "changelog": definition.changelog(self._serving.topology.application_id),
        }
        try:
            store = self._serving.stores.get(name)
        except NotReadyError as error:  # declared, and no worker runs it yet
            return described | {"partitions": {}, "not_ready": without_paths(error)}
        if store.stopped is not None:
            described["stopped"] = without_paths(NotReadyError(store.stopped))
        partition = self._partition if self._view.has_others and not store.is_global else self._here
        return described | {"partitions": {str(p): partition(store, p) for p in store.partitions}}

    def _partition(self, store: ServedStore, partition: int) -> dict[str, Any]:
        """As its owner has it, wherever that is; without one that is known, as it is here."""
        task_id = store.placement.task_id(partition)
        node, url = self._view.owner(task_id)
        copies = self._view.copies(store, partition)
        told = {"node": node, "url": url, "copies": copies}
        is_elsewhere = node != self._view.name and node in copies
        here = {} if is_elsewhere and self._view.name not in copies else self._here(store, partition)
        if self._view.name in copies:
            copies[self._view.name]["lag_ms"] = here["lag_ms"]
        if node is None or not is_elsewhere:
            return here | told
        lag_ms = 0 if copies[node]["state"] == "active" else None
        return {"task": task_id, "owner": None, **copies[node], "lag_ms": lag_ms, **told}

    def _here(self, store: ServedStore, partition: int) -> dict[str, Any]:
        task_id = store.placement.task_id(partition)
        workers = self._serving.workers
        owner = workers.owner(task_id)
        described: dict[str, Any] = {"task": task_id, "owner": owner, "state": None, **_NO_LAG}
        if not store.definition.persistent:
            lives = owner is not None and workers.is_alive(owner)  # what was in memory has gone with one that does not
            if lives and owner is not None:
                is_suspended = workers.instances[owner].state_of(task_id) == "suspended"
                described["state"] = "standby" if is_suspended else self._serving.ownership.role(task_id)
            elif workers.follows(task_id):
                described["state"] = "standby"
            return described
        try:
            copy = self._serving.partitions.status(store, partition)
            reader = self._serving.partitions.open(store, partition)
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
    """What a store is."""
    return {
        "kind": definition.kind,
        "key_type": definition.key.name,
        "value_type": definition.value.name,
        "persistent": definition.persistent,
        "logged": definition.logged,
        "retention_ms": definition.retention_ms or None,  # key-value stores keep every key until it is deleted
        "external": definition.external,
    }
