"""`GET /v1/console/graph`: the topology as in `stateline check`, with rates of records.

    {"nodes": [{"id", "kind", "name", "label", "subtopology": number | null, "internal"}], "edges": [[id, id], …],
     "rates": {topic: records per second | null}}

A label may have a second line. A topic's subtopology is the one that reads it. Rates are those of committed records
(`history`), or null if unknown. Parts are left out if the caller may read none of their stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stateline.model.graph import Drawn, DrawnKind, GraphPart, graph_of
from stateline.model.topology import Topology
from stateline.server.console.history import History
from stateline.server.contract.answers import json_response
from stateline.server.contract.arguments import refuse_parameters
from stateline.server.guard.caller import concerns, feeds, may_read

_KINDS: Mapping[DrawnKind, str] = {
    "topic": "topic",
    "processor": "operator",
    "operator": "operator",
    "table": "store",
    "store": "store",
    "global table": "global_table",
    "pipeline": "pipeline",
}
_STORES = frozenset({"table", "store", "global table"})


class ConsoleGraph:
    """The endpoint. For the event loop's thread."""

    def __init__(self, topology: Topology, history: History) -> None:
        self._topology, self._history = topology, history
        self._parts = graph_of(topology)
        self._internal = _internal_topics(topology)

    async def graph(self, request: Request) -> Response:
        refuse_parameters(request)
        parts, known = self._known(request)
        nodes = {
            drawn: self._node(drawn, None if drawn.kind == "topic" else part.subtopology)
            for part in parts
            for drawn in part.drawn
            if drawn in known
        }
        for part in parts:
            for topic in part.entries:
                if part.subtopology is not None:
                    nodes[topic]["subtopology"] = part.subtopology
        edges = [edge for part in parts for edge in part.edges if edge.start in known and edge.end in known]
        rates = self._history.rates()
        return json_response(
            {
                "nodes": list(nodes.values()),
                "edges": list(dict.fromkeys((edge.start.key, edge.end.key) for edge in edges)),
                "rates": {each.name: rates.get(each.name) for each in nodes if each.kind == "topic"},
            }
        )

    def _known(self, request: Request) -> tuple[list[GraphPart], set[Drawn]]:
        """Return the parts that the caller may know of, and their known nodes."""
        subtopologies = [s for s in self._topology.subtopologies if concerns(s, request)]
        ordinals = {None, *(subtopology.ordinal for subtopology in subtopologies)}
        pipelines = {name for name, p in self._topology.pipelines.items() if feeds(p, subtopologies, request)}

        def may_know(drawn: Drawn) -> bool:
            if drawn.kind == "pipeline":
                return drawn.name in pipelines
            return drawn.kind not in _STORES or may_read(request, drawn.name)

        parts = [
            part
            for part in self._parts
            if part.subtopology in ordinals
            and all(may_know(drawn) for drawn in part.drawn if drawn.kind in ("pipeline", "global table"))
        ]
        return parts, {drawn for part in parts for drawn in part.drawn if may_know(drawn)}

    def _node(self, drawn: Drawn, subtopology: int | None) -> dict[str, Any]:
        return {
            "id": drawn.key,
            "kind": _KINDS[drawn.kind],
            "name": drawn.name,
            "label": f"{drawn.name}\n{drawn.note}" if drawn.note else drawn.name,
            "subtopology": subtopology,
            "internal": drawn.kind == "topic" and drawn.name in self._internal,
        }


def _internal_topics(topology: Topology) -> frozenset[str]:
    read = [topic for subtopology in topology.subtopologies for topic in subtopology.sources]
    read += [topic for pipeline in topology.pipelines.values() for topic in pipeline.inputs]
    return frozenset(topic.name for topic in read if topic.internal)
