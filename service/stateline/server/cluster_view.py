"""`ClusterView`: what all nodes have, as this one knows it: what it has itself, and what they said over their links.

Nobody is asked for it: a look costs some lookups for each copy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from stateline import __version__
from stateline.config.settings import Config
from stateline.server.nodes.greeting import WIRE_VERSIONS
from stateline.server.nodes.joining import node_url, rack
from stateline.server.nodes.node_map import NodeMap
from stateline.server.nodes.nodes import Nodes, Other
from stateline.server.nodes.own_map import OwnMap
from stateline.server.state.ownership import Ownership
from stateline.server.state.served_stores import ServedStore

_Places = Iterable[tuple[ServedStore, int]]
"""Partitions of stores."""


class ClusterView:
    """As it was when it was made, for one answer. For the event loop's thread."""

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
        """Whether there is another node."""
        return self._nodes is not None

    @property
    def number(self) -> int:
        """Grows with each change of what any node has."""
        return 0 if self._own is None else self._own.number

    def owner(self, task_id: str) -> tuple[str | None, str | None]:
        """Name and URL of the node that has this task as its owner; None for what is not known."""
        if self._ownership.is_owned(task_id):
            return self.name, self._url
        link = None if self._nodes is None else self._nodes.owner(task_id)
        return (None, None) if link is None else (link.hello.node, link.hello.url or None)

    def nodes(self, stores: Iterable[ServedStore], *, everything: bool) -> dict[str, dict[str, Any]]:
        """Node → what is known of it; of tasks those of these stores, or `everything`."""
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
        """Node → its copy of this partition, of those that are reached."""
        task_id = store.placement.task_id(partition)
        return {
            name: {"state": told.tasks[task_id].role, **self._behind(told, task_id, [(store, partition)])}
            for name, told in self._maps.items()
            if task_id in told.tasks
        }

    def _behind(self, told: NodeMap, task_id: str, places: _Places) -> dict[str, int | None]:
        """What a node's copies lack of their changelogs, summed up; None where that is not known."""
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
