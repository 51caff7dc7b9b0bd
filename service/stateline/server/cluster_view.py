"""`ClusterView`: what all nodes have, as this one knows it. And `GET /v1/nodes`, which shows it.

No node is asked for it: a look costs some lookups for each copy.

{"application": its id, "node": who answers, "number": grows with each change,
 "nodes": {name: {"url", "version", "wire": [versions that it understands], "spoken": the one between it and who
                  answers, or null, "rack", "reached": bool, "reached_at_ms", "fault": why it is not, or null,
                  "worker_faults": {worker: why it does not run its tasks},
                  "tasks": {task: {"role", "followed": whether a worker keeps the standby up to date, "generation",
                  "lag_records", "restore_remaining", "upgraded": whether stores that are declared with timestamps
                  have them}}}},
 "stores": {store: {partition: URL of its owner, or null}}, "key_types": {store: name of the type of its keys}}

With a key's type who asks finds its partition (`stateline.serde.partitioner`), and with that its owner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stateline import __version__
from stateline.config.settings import Config
from stateline.model.topology import Topology
from stateline.serde.plain import type_name
from stateline.server.contract.answers import json_response
from stateline.server.contract.arguments import refuse_parameters
from stateline.server.guard.caller import may_read, reads_all
from stateline.server.nodes.greeting import WIRE_VERSIONS
from stateline.server.nodes.joining import node_url, rack
from stateline.server.nodes.node_map import NodeMap
from stateline.server.nodes.nodes import Nodes, Other
from stateline.server.nodes.own_map import OwnMap
from stateline.server.state.ownership import Ownership
from stateline.server.state.pipeline_states import PipelineStates, PipelineStatus, ReportedPipelines, of_all_nodes
from stateline.server.state.served_stores import ServedStore, ServedStores

_Places = Iterable[tuple[ServedStore, int]]
"""Partitions of stores."""


class ClusterView:
    """The state of all nodes when it was made, for one answer. For the event loop's thread."""

    def __init__(self, config: Config, own: Nodes | None, own_map: OwnMap, ownership: Ownership) -> None:
        self._config, self._own, self._ownership = config, own, ownership
        self.name = config.node
        self._url = node_url(config) or None
        self._nodes = None if own is None or not own.others else own
        self._maps = {self.name: own_map.now() if own is None else own.own_map()}
        if self._nodes is not None:
            self._maps |= {name: link.map for name, link in self._nodes.links()}

    @property
    def has_others(self) -> bool:
        return self._nodes is not None

    @property
    def number(self) -> int:
        """Return a number that grows with each change of any node."""
        return 0 if self._own is None else self._own.number

    def owner(self, task_id: str) -> tuple[str | None, str | None]:
        """Return name and URL of the node that owns this task, None for what is not known."""
        if self._ownership.is_owned(task_id):
            return self.name, self._url
        link = None if self._nodes is None else self._nodes.owner(task_id)
        return (None, None) if link is None else (link.hello.node, link.hello.url or None)

    def nodes(self, stores: Iterable[ServedStore], *, everything: bool) -> dict[str, dict[str, Any]]:
        """Return what is known of each node, with the tasks of these stores or `everything`."""
        places: defaultdict[str, list[tuple[ServedStore, int]]] = defaultdict(list)
        for store in stores:
            for partition in store.partitions:
                places[store.placement.task_id(partition)].append((store, partition))
        own: dict[str, Any] = {"url": self._url, "version": __version__, "wire": WIRE_VERSIONS, "spoken": None}
        own["rack"] = rack(self._config) or None
        fault = None if self._own is None else self._own.fault or None
        found = {self.name: own | {"reached": True, "reached_at_ms": None, "fault": fault}}
        if self._nodes is not None:
            away = self._nodes.out_of_reach()
            found |= {name: _other(other, away.get(name)) for name, other in self._nodes.others.items()}
        for name, each in found.items():
            told = self._maps.get(name, NodeMap())
            each["worker_faults"] = dict(told.faults)
            each["tasks"] = {
                task: {
                    "role": held.role,
                    "followed": task in told.followed,
                    "generation": held.generation,
                    **self._behind(told, task, places[task]),
                    "upgraded": task not in told.plain,
                }
                for task, held in sorted(told.tasks.items())
                if everything or task in places
            }
        return found

    def copies(self, store: ServedStore, partition: int) -> dict[str, dict[str, Any]]:
        """Return the copies of this partition, by node, of nodes that are reached."""
        task_id = store.placement.task_id(partition)
        return {
            name: {"state": told.tasks[task_id].role, **self._behind(told, task_id, [(store, partition)])}
            for name, told in self._maps.items()
            if task_id in told.tasks
        }

    def _behind(self, told: NodeMap, task_id: str, places: _Places) -> dict[str, int | None]:
        """Return what a node's copies lack of their changelogs, summed up; None if that is not known."""
        role, changelog = told.tasks[task_id].role, self._ownership.changelog
        on_disk = [place for place in places if role == "standby" and place[0].definition.persistent]
        lags = [self._lag(told, *place) for place in on_disk if changelog(place[0].definition, place[1]) is not None]
        known = [lag for lag in lags if lag is not None]
        lag = 0 if role == "active" else sum(known) if known and len(known) == len(lags) else None
        return {"lag_records": lag, "restore_remaining": told.remaining.get(task_id, 0)}

    def _lag(self, told: NodeMap, store: ServedStore, partition: int) -> int | None:
        changelog = self._ownership.changelog(store.definition, partition)
        offset = told.copies.get(store.name, {}).get(str(partition))
        return None if changelog is None or offset is None else self._ownership.behind(changelog, offset)


@dataclass(eq=False, repr=False)
class ClusterPipelines:
    """The application's pipelines on all nodes. For the event loop's thread."""

    own: PipelineStates
    _reported: ReportedPipelines
    _nodes: Nodes | None
    _node: str

    def statuses(self) -> dict[str, PipelineStatus | None]:
        """Return each pipeline's status, from this node or from the one that runs it; None if no node knows it."""
        own = self.own.read()
        if self._nodes is None:
            return dict(own)
        reported = self.reported()
        linked = ((name, link.map.pipelines) for name, link in self._nodes.links())
        return of_all_nodes(own, (*linked, *reported), self._node if reported else self._nodes.shown)

    def reported(self) -> list[tuple[str, Mapping[str, PipelineStatus]]]:
        """Return the statuses of drivers without a node beside them, each with the name that they give their node."""
        if self._nodes is None:
            return []
        return self._reported.told({link.hello.directory for _, link in self._nodes.links()})

    def elsewhere(self) -> set[str]:
        """Return the pipelines that other nodes have a status of."""
        return set() if self._nodes is None else {n for _, link in self._nodes.links() for n in link.map.pipelines}


@dataclass(eq=False, repr=False)
class NodesRoutes:
    """One per server process, for the event loop's thread."""

    _topology: Topology
    _stores: ServedStores
    _ownership: Ownership
    _look: Callable[[], ClusterView]

    async def nodes(self, request: Request) -> Response:
        """GET /v1/nodes, with the tasks and stores that the caller may read."""
        refuse_parameters(request)
        if self._look().has_others:
            await self._ownership.until_ends_are_known()
        view = self._look()
        readable = [store for store in self._stores if may_read(request, store.name)]
        return json_response(
            {
                "application": self._topology.application_id,
                "node": view.name,
                "number": view.number,
                "nodes": view.nodes(readable, everything=reads_all(request)),
                "stores": {
                    store.name: {str(p): view.owner(store.placement.task_id(p))[1] for p in store.partitions}
                    for store in readable
                },
                "key_types": {store.name: type_name(store.definition.key) for store in readable},
            }
        )


def _other(other: Other, fault: str | None) -> dict[str, Any]:
    return {
        "url": other.url,
        "version": other.entry.version,
        "wire": other.entry.wire,
        "spoken": None if fault is not None or other.link is None else other.link.wire,
        "rack": other.entry.rack or None,
        "reached": fault is None,
        "reached_at_ms": other.reached_at_ms,
        "fault": fault,
    }
