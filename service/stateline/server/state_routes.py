"""The service's state: stores, topology, instances, health, readiness, metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from stateline.deployment.workers.instance_file import Instance
from stateline.model.pipeline import Pipeline
from stateline.model.topic import Topic
from stateline.model.topology import Subtopology, Topology
from stateline.server.contract.answers import json_response
from stateline.server.contract.arguments import refuse_parameters
from stateline.server.contract.problems import problem_response
from stateline.server.guard.caller import concerns, feeds, is_known, may_read, reads_all
from stateline.server.state.pipeline_states import PipelineStatus
from stateline.server.state.served_stores import ServedStores
from stateline.server.state.workers import Workers
from stateline.server.store_states import StoreStates, described_definition
from stateline.server.telemetry.metrics import Metrics
from stateline_store import NotReadyError
from stateline_store.task_id import TaskId


@dataclass(eq=False, repr=False)
class StateRoutes:
    """The endpoints that describe the service."""

    _topology: Topology
    _stores: ServedStores
    _workers: Workers
    _states: StoreStates
    _metrics: Metrics
    _pipeline_states: Callable[[], Mapping[str, PipelineStatus | None]]
    _reasons_not_ready: Callable[..., Awaitable[list[str]]]

    async def stores(self, request: Request) -> Response:
        """GET /v1/stores: every store that the caller may read."""
        refuse_parameters(request)
        view = self._states.look()
        return json_response({"stores": [self._states.describe(name, view) for name in self._readable(request)]})

    async def store(self, request: Request) -> Response:
        refuse_parameters(request)
        store = self._stores.get(request.path_params["store"])
        return json_response(self._states.describe(store.name, self._states.look()))

    async def topology(self, request: Request) -> Response:
        """GET /v1/topology: the parts of the application that feed stores that the caller may read."""
        refuse_parameters(request)
        topology = self._topology
        subtopologies = [s for s in topology.subtopologies if concerns(s, request)]
        pipelines = [p for p in topology.pipelines.values() if feeds(p, subtopologies, request)]
        return json_response(
            {
                "application_id": topology.application_id,
                "subtopologies": [_subtopology(s, request) for s in subtopologies],
                "topics": [_topic(t) for t in _topics(subtopologies, pipelines)],
                "stores": {
                    name: described_definition(d) for name, d in topology.all_stores.items() if may_read(request, name)
                },
                "pipelines": self.pipelines(request),
            }
        )

    def pipelines(self, request: Request) -> dict[str, Any]:
        """Return the pipelines that feed stores which the caller may read, with their topics and status."""
        topology = self._topology
        subtopologies = [s for s in topology.subtopologies if concerns(s, request)]
        shown = {name: p for name, p in topology.pipelines.items() if feeds(p, subtopologies, request)}
        states = self._pipeline_states() if shown else {}
        return {name: _pipeline(p) | {"status": _status(states[name], request)} for name, p in shown.items()}

    async def instances(self, request: Request) -> Response:
        """GET /v1/instances: the workers, with the tasks that have a store which the caller may read. A killed worker
        has no tasks."""
        refuse_parameters(request)
        workers = self._workers
        await workers.refresh()
        hidden = {s.ordinal for s in self._topology.subtopologies if not concerns(s, request)}
        return json_response({"instances": [self._instance(i, hidden) for i in workers.instances.values()]})

    async def healthz(self, request: Request) -> Response:
        return json_response({"status": "alive"})

    async def readyz(self, request: Request) -> Response:
        """GET /readyz: 200 if every store can be queried, else the reasons that the caller may know."""
        if not await self._reasons_not_ready():
            why = self._stores.stopped if is_known(request) else ""
            return json_response({"status": "ready", **({"stopped": why} if why else {})})
        if not is_known(request):
            return problem_response(NotReadyError("Not every store can be queried yet: a token is told the reasons."))
        reasons = await self._reasons_not_ready(self._readable(request))
        error = NotReadyError("Not every store can be queried yet: see reasons, and ask again in a moment.")
        return problem_response(error, reasons=reasons)

    async def metrics(self, request: Request) -> Response:
        return Response(await self._metrics.text(), media_type=CONTENT_TYPE_LATEST)

    def _instance(self, instance: Instance, hidden: Container[int]) -> dict[str, Any]:
        workers = self._workers
        alive = workers.is_alive(instance.instance)
        tasks = instance.tasks.items() if alive else ()
        return {
            "instance": instance.instance,
            "pid": instance.pid,
            "alive": alive,
            "reachable": workers.answers(instance.instance),
            "tasks": {task: state for task, state in tasks if TaskId.parse(task).subtopology not in hidden},
        }

    def _readable(self, request: Request) -> list[str]:
        return [name for name in self._stores.names if may_read(request, name)]


def _subtopology(subtopology: Subtopology, request: Request) -> dict[str, Any]:
    return {
        "ordinal": subtopology.ordinal,
        "sources": [topic.name for topic in subtopology.sources],
        "stores": [store.name for store in subtopology.stores if may_read(request, store.name)],
        "processors": [processor.name for processor in subtopology.processors],
    }


def _topic(topic: Topic) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "key_type": topic.key.name,
        "value_type": topic.value.name,
        "internal": topic.internal,
        "external": topic.external,
    }


def _pipeline(pipeline: Pipeline) -> dict[str, Any]:
    return {
        "reads": [topic.name for topic in pipeline.reads],
        "tables": [topic.name for topic in pipeline.tables],
        "static": [topic.name for topic in pipeline.static],
        "writes": pipeline.writes.name,
        "branches": [topic.name for topic in pipeline.branches],
        "key": list(pipeline.key),
        "timestamp": pipeline.timestamp,
        "output_mode": pipeline.output_mode,
    }


def _status(status: PipelineStatus | None, request: Request) -> PipelineStatus | None:
    """Return the status. Only a caller who may read everything gets its error: it may show records."""
    return status if status is None or reads_all(request) else {**status, "last_error": None}


def _topics(subtopologies: Sequence[Subtopology], pipelines: Iterable[Pipeline]) -> list[Topic]:
    topics = [t for s in subtopologies for t in s.sources]
    topics += [t for s in subtopologies for p in s.processors for t in p.forwards]
    topics += [t for p in pipelines for t in (*p.reads, *p.tables, *p.static, p.writes, *p.branches)]
    return list({topic.name: topic for topic in topics}.values())
