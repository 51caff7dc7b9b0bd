"""`OwnMap`: what this node has, as it is said to others and shown by ``/v1/nodes``."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from stateline.deployment.stores.topology_file import GLOBAL_TABLES
from stateline.server.contract.hidden_paths import without_paths
from stateline.server.nodes.node_map import HeldTask, NodeMap
from stateline.server.state.ownership import Ownership
from stateline.server.state.partitions import Partitions
from stateline.server.state.pipeline_states import PipelineStates, PipelineStatus
from stateline.server.state.served_stores import ServedStore, ServedStores
from stateline.server.state.workers import Workers
from stateline_store import StatelineError, TopicPartition

# How often the pipelines' files are looked at: a driver writes them once a micro-batch.
_PIPELINES_INTERVAL_S = 1.0


class _Place(NamedTuple):
    """The partition of a store that a task has."""

    partition: int
    changelog: TopicPartition | None


@dataclass(eq=False, repr=False)
class OwnMap:
    """One per server process, for the event loop's thread."""

    _stores: ServedStores
    _ownership: Ownership
    _partitions: Partitions
    _workers: Workers
    _pipelines: PipelineStates

    def __post_init__(self) -> None:
        self._statuses: dict[str, PipelineStatus] = {}
        self._looked_at_s = -math.inf
        self._last = NodeMap()
        self._placed: list[tuple[ServedStore, Mapping[str, _Place]]] = []  # by task

    def now(self) -> NodeMap:
        """Return the map of this moment: the last map itself if nothing has changed. It has a new number if the tasks
        have changed."""
        tasks = self._tasks()
        number = self._last.number + (tasks != self._last.tasks)
        remaining, plain = self._remaining(tasks), self._plain(tasks.keys())
        followed = frozenset(task for task in tasks if self._workers.follows(task))
        faults = {name: without_paths(why) for name, why in self._workers.faults().items()}
        now = NodeMap(number, tasks, self._copies(tasks), self._pipelines_now(), remaining, plain, followed, faults)
        if now != self._last:
            self._last = now
        return self._last

    def _pipelines_now(self) -> dict[str, PipelineStatus]:
        if time.monotonic() - self._looked_at_s >= _PIPELINES_INTERVAL_S:
            self._looked_at_s = time.monotonic()
            self._statuses = {name: told for name, told in self._pipelines.read().items() if told is not None}
        return self._statuses

    def _tasks(self) -> dict[str, HeldTask]:
        held = dict.fromkeys(task for task, _ in self._partitions.readers)
        held |= dict.fromkeys(task for each in self._workers.instances.values() for task in each.tasks)
        held.pop(GLOBAL_TABLES, None)  # every node has its own
        return {task: self._held(task) for task in held}

    def _held(self, task: str) -> HeldTask:
        role = self._ownership.role(task)
        return HeldTask(role) if role == "standby" else HeldTask(role, self._workers.generation(task))

    def _places(self) -> list[tuple[ServedStore, Mapping[str, _Place]]]:
        """Return each store with its places by task. They are computed again when the stores change."""
        stores = list(self._stores)
        if stores != [store for store, _ in self._placed]:
            self._placed = [(store, self._places_of(store)) for store in stores]
        return self._placed

    def _places_of(self, store: ServedStore) -> Mapping[str, _Place]:
        changelog, task_id = self._ownership.changelog, store.placement.task_id
        return {task_id(p): _Place(p, changelog(store.definition, p)) for p in store.partitions}

    def _copies(self, tasks: Mapping[str, HeldTask]) -> dict[str, dict[str, int]]:
        copies = [(task, held.role == "restoring") for task, held in tasks.items() if held.role != "active"]
        found: dict[str, dict[str, int]] = {}
        for store, places in self._places():
            for task, is_owned in copies if store.definition.persistent else ():
                place = places.get(task)
                if place is None or place.changelog is None:
                    continue
                offset = self._offset(task, store.name, place.changelog, is_owned=is_owned)
                if offset is not None:
                    found.setdefault(store.name, {})[str(place.partition)] = offset
        return found

    def _plain(self, tasks: Collection[str]) -> frozenset[str]:
        return frozenset(
            task
            for store, places in self._places()
            if store.definition.timestamped  # others have no plain files
            for task in tasks
            if (place := places.get(task)) is not None and self._partitions.is_plain(store, place.partition)
        )

    def _remaining(self, tasks: Mapping[str, HeldTask]) -> dict[str, int]:
        found = {task: 0 for task, held in tasks.items() if held.role == "restoring"}
        if found:
            for task, _, reader in self._partitions.opened():
                if task in found:
                    found[task] += reader.notice.restore_remaining
        return found

    def _offset(self, task: str, store: str, changelog: TopicPartition, *, is_owned: bool) -> int | None:
        found = self._partitions.readers.get((task, store))
        if found is None:
            return None
        try:
            offsets = found.reader.offsets  # raises while nothing can be read
            if not is_owned and found.reader.is_behind:  # only the last commit: nobody writes there any more
                found.reader.refresh()
                offsets = found.reader.offsets
        except StatelineError:
            return None
        return offsets.get(changelog, -1)
