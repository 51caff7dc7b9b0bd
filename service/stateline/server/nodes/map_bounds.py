"""`MapBounds`: which part of another node's map this node keeps: the part that its own application can have."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any

import orjson

from stateline.deployment.pipelines.status import MOST_BYTES
from stateline.server.nodes.node_map import NodeMap
from stateline.server.state.served_stores import ServedStores

MOST_WORKERS = 64
MOST_FAULT_CHARACTERS = 1_000


class MapBounds:
    """One per server process, for the event loop's thread."""

    def __init__(self, stores: ServedStores, pipelines: Collection[str]) -> None:
        self._stores = stores
        self._pipelines = frozenset(pipelines)

    def bounded(self, told: NodeMap) -> NodeMap:
        """The map without tasks, stores, partitions and pipelines that the application does not have, and without
        statuses of more than 64 KiB. Faults of 64 workers are kept, with 1,000 characters each."""
        has_task = self._stores.has_task
        tasks = {task: held for task, held in told.tasks.items() if has_task(task)}
        copies = {store: kept for store, offsets in told.copies.items() if (kept := self._copies(store, offsets))}
        pipelines = {name: status for name, status in told.pipelines.items() if self._is_kept(name, status)}
        remaining = {task: left for task, left in told.remaining.items() if task in tasks}
        plain, followed = told.plain & tasks.keys(), told.followed & tasks.keys()
        return NodeMap(told.number, tasks, copies, pipelines, remaining, plain, followed, _faults(told.faults))

    def _copies(self, store: str, offsets: Mapping[str, int]) -> Mapping[str, int]:
        names = map(str, self._stores.partitions(store))
        return {partition: offsets[partition] for partition in names if partition in offsets}

    def _is_kept(self, name: str, status: Mapping[str, Any]) -> bool:
        return name in self._pipelines and len(orjson.dumps(status)) <= MOST_BYTES


def _faults(told: Mapping[str, str]) -> Mapping[str, str]:
    kept = islice(told.items(), MOST_WORKERS)
    return {worker[:MOST_FAULT_CHARACTERS]: why[:MOST_FAULT_CHARACTERS] for worker, why in kept}
