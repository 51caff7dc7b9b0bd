"""`GET /v1/nodes`: every node, which tasks it has, and where the owner of each partition is asked.

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

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from stateline.model.topology import Topology
from stateline.serde.plain import type_name
from stateline.server.cluster_view import ClusterView
from stateline.server.contract.answers import json_response
from stateline.server.contract.arguments import refuse_parameters
from stateline.server.guard.caller import may_read, reads_all
from stateline.server.state.ownership import Ownership
from stateline.server.state.served_stores import ServedStores


class NodesRoutes:
    """Of one server process; for the event loop's thread."""

    def __init__(
        self, topology: Topology, stores: ServedStores, ownership: Ownership, look: Callable[[], ClusterView]
    ) -> None:
        self._topology, self._stores, self._ownership, self._look = topology, stores, ownership, look

    async def nodes(self, request: Request) -> Response:
        """GET /v1/nodes. Of tasks and stores those that who asks may read."""
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
