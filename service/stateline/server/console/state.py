"""`GET /v1/console?store=`: the figures of the console's pages. Only for the console, so it is in no OpenAPI document.

    {"application_id", "files": the version of the page's files, "pipelines": as in /v1/topology,
     "stores": [{"store", "kind", "key_type", "value_type", "persistent", "states": {state: partitions}, "lag",
                 "input_lag", "staged_records", "committed_at_ms", "not_ready": also why no worker runs
                 it, "backed_up_at_ms"}],    sums, the newest commit, the oldest backup of a partition; null: unknown.
                 `lag` has records that restores and standbys lack, `input_lag` records that no task has read
     "selected": store, "partitions": its own, as in /v1/stores/{store}, and
                 "input_lag": {topic: records} | null: no worker of this node has it,
                 "backed_up_at_ms": when this node, which owns it, made its newest backup | 0: it made none |
                 null: unknown
     "commits": {task: [number, ms]},    the newest of one store of each task
     "workers": {name: {"told_at_ms": of its last figures, "failed": records that it skipped or set aside since it
                 started, "steps": {step: {"taken": records, "dropped": {reason: records}}}}} | null,
                 those of this node that live
     "backup": {"last_ms", "made", "failed", "written_bytes"} of this node | null,    null: it makes none
     "queries": [[seconds, count], …] | null,    how many queries took no longer; the last edge is null
     "cluster": {"node": who answers, "nodes": as in /v1/nodes, "tasks": [of these stores]} | null}    null: one node

A token sees nothing of stores that it may not read. Only a token for all stores sees the times of queries and the
workers. All pages that ask in the same second share one look through the stores.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stateline.deployment.backup_figures import BackupFigures
from stateline.model.topology import Topology
from stateline.server.console.history import History
from stateline.server.contract.answers import json_response
from stateline.server.contract.arguments import Arguments
from stateline.server.contract.written_arguments import from_query_string
from stateline.server.guard.caller import may_read, reads_all
from stateline.server.state.partitions import Partitions
from stateline.server.state.served_stores import ServedStores
from stateline.server.state_routes import StateRoutes
from stateline.server.store_states import StoreStates
from stateline.server.telemetry.metrics import Metrics
from stateline.server.telemetry.store_metrics import Noticed, noticed
from stateline_store.task_id import TaskId

_FRESH_S = 1.0
_BACKUP = ("last_ms", "made", "failed", "written_bytes")
_SHOWN = ("store", "kind", "key_type", "value_type", "persistent", "not_ready")


@dataclass(eq=False, repr=False)
class ConsoleState:
    """The endpoint, and what it looked at last. For the event loop's thread."""

    _topology: Topology
    _served: ServedStores
    _partitions: Partitions
    _states: StoreStates
    _metrics: Metrics
    _state: StateRoutes
    _history: History
    _files_version: str
    _backup: Callable[[], BackupFigures | None]

    def __post_init__(self) -> None:
        self._looking = asyncio.Lock()
        self._looked_at_s = -math.inf
        self._stores: dict[str, dict[str, Any]] = {}
        self._seen: Sequence[Noticed] = ()
        self._queries: list[tuple[float | None, float]] = []
        self._input_lag = InputLag(self._topology)

    async def look(self, request: Request) -> Response:
        """Return every store that the caller may read, and the partitions of one of them."""
        arguments = Arguments(from_query_string(request.scope["query_string"]))
        arguments.refuse_others(("store",))
        wanted = arguments.text("store")
        await self._look()
        readable = [name for name in self._stores if may_read(request, name)]
        selected = wanted if wanted in readable else next(iter(readable), None)
        return json_response(
            {
                "application_id": self._topology.application_id,
                "files": self._files_version,
                "pipelines": self._state.pipelines(request),
                "stores": [self._stores[name] for name in readable],
                "selected": selected,
                "partitions": {} if selected is None else self._described(selected)["partitions"],
                "commits": _commits(self._seen, set(readable)),
                "backup": self._backed_up() if reads_all(request) else None,
                "workers": self._workers() if reads_all(request) else None,
                "queries": self._queries if reads_all(request) else None,
                "cluster": self._cluster(request, readable),
            }
        )

    def _cluster(self, request: Request, readable: Iterable[str]) -> dict[str, Any] | None:
        view = self._states.look()
        if not view.has_others:
            return None
        names = set(readable)
        stores = [store for store in self._served if store.name in names]
        tasks = {TaskId.parse(store.placement.task_id(p)) for store in stores for p in store.partitions}
        return {
            "node": view.name,
            "nodes": view.nodes(stores, everything=reads_all(request)),
            "tasks": [str(task) for task in sorted(tasks)],
        }

    async def _look(self) -> None:
        async with self._looking:
            if time.monotonic() - self._looked_at_s < _FRESH_S:
                return
            self._input_lag.see(worker.lag for worker in self._history.workers())
            stores = {}
            for name in self._served.names:
                stores[name] = _summary(self._described(name))
                await asyncio.sleep(0)  # a store of many partitions takes a millisecond or two
            self._stores, self._seen = stores, noticed(self._partitions)
            self._queries = await self._metrics.queries()
            self._looked_at_s = time.monotonic()

    def _backed_up(self) -> dict[str, int] | None:
        figures = self._backup()
        return None if figures is None else {name: getattr(figures, name) for name in _BACKUP}

    def _workers(self) -> dict[str, dict[str, Any]]:
        return {
            told.instance: {
                "told_at_ms": told.updated_at_ms,
                "failed": told.skipped + told.dead_lettered,
                "steps": {name: {"taken": s.taken, "dropped": s.dropped} for name, s in told.steps.items()},
            }
            for told in self._history.workers()
        }

    def _described(self, name: str) -> dict[str, Any]:
        view, figures = self._states.look(), self._backup()
        described = self._states.describe(name, view)
        made = figures.tasks if figures is not None and described["persistent"] else {}
        for partition in described["partitions"].values():
            task = partition["task"]
            partition["input_lag"] = self._input_lag.of(name, task)
            partition["backed_up_at_ms"] = made.get(task) if view.owner(task)[0] == view.name else None
        return described


def _summary(described: Mapping[str, Any]) -> dict[str, Any]:
    partitions = described["partitions"].values()
    states = Counter("unreadable" if "unreadable" in p else p["state"] or "unknown" for p in partitions)
    lags = [lacks for p in partitions if (lacks := p.get("restore_remaining") or p.get("lag_records")) is not None]
    behind = [sum(p["input_lag"].values()) for p in partitions if p["input_lag"] is not None]
    staged, times = (
        [p[name] for p in partitions if p.get(name) is not None] for name in ("staged_records", "committed_at_ms")
    )
    return {
        **{name: described[name] for name in _SHOWN if name in described},
        **({"not_ready": described["stopped"]} if "stopped" in described else {}),
        "states": states,
        "lag": sum(lags) if lags else None,
        "input_lag": sum(behind) if behind else None,
        "staged_records": sum(staged) if staged else None,
        "committed_at_ms": max(times, default=None),
        "backed_up_at_ms": min((at for p in partitions if (at := p["backed_up_at_ms"]) is not None), default=None),
    }


def _commits(seen: Iterable[Noticed], readable: set[str]) -> dict[str, list[int]]:
    """Return number and time of each task's newest commit, from the first of its stores that may be read."""
    first: dict[str, Noticed] = {}
    for each in seen:
        known = first.get(each.task)
        if each.store in readable and (known is None or each.store < known.store):
            first[each.task] = each
    return {task: [each.commit_number, each.status.committed_at_ms] for task, each in first.items()}


Lag = Mapping[str, int]
"""Topic → how many of its records a task has not read: Kafka's consumer lag, of one partition."""


class InputLag:
    """Counts the input records that stores lack, from the last figures of this node's workers."""

    def __init__(self, topology: Topology) -> None:
        self._topics = _topics_by_store(topology)
        self._tasks: Mapping[str, Lag] = {}

    def see(self, lags: Iterable[Mapping[str, Lag]]) -> None:
        """Take each worker's `lags`, by task."""
        self._tasks = {task: topics for lag in lags for task, topics in lag.items()}

    def of(self, store: str, task: str) -> Lag | None:
        """Return the lag of the topics that the store follows; None if no worker of this node reads them."""
        known, topics = self._tasks.get(task), self._topics.get(store, frozenset())
        if known is None or not topics & known.keys():
            return None
        return {topic: records for topic, records in known.items() if topic in topics}


def _topics_by_store(topology: Topology) -> Mapping[str, frozenset[str]]:
    found = {n: frozenset({t.source.name} if t.source else ()) for n, t in topology.global_tables.items()}
    for subtopology in topology.subtopologies:
        for store in subtopology.stores:
            fed = (t.name for t in subtopology.sources if store.name in subtopology.stores_fed_by(t.name))
            found[store.name] = frozenset(fed)
    return found
