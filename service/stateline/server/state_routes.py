"""What the service says about itself: stores, topology, instances, health, readiness, metrics."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Container, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from stateline.deployment.instance_file import Instance
from stateline.model.pipeline import Pipeline
from stateline.model.store_definition import StoreDefinition
from stateline.model.topic import Topic
from stateline.model.topology import Subtopology
from stateline.server.contract.answers import json_response
from stateline.server.contract.arguments import refuse_parameters
from stateline.server.contract.hidden_paths import without_paths
from stateline.server.contract.problems import problem_response
from stateline.server.guard.caller import is_known, may_read, reads_all
from stateline.server.rows.columns import row_columns
from stateline.server.rows.streams import accepted
from stateline.server.serving import Serving
from stateline.server.state.served_stores import ServedStore
from stateline.server.telemetry.metrics import Metrics
from stateline.server.telemetry.pipelines import PipelineStates
from stateline_store import NotReadyError, StatelineError
from stateline_store.task_id import TaskId

_LEVEL = 5  # of gzip: the next ones take longer and find hardly anything


class StateRoutes:
    """The endpoints that describe the service."""

    def __init__(self, serving: Serving, metrics: Metrics) -> None:
        self._serving = serving
        self._metrics = metrics
        self._pipelines = PipelineStates(serving.topology, serving.config.state_dir)

    async def stores(self, request: Request) -> Response:
        """GET /v1/stores: every store that who asks may read."""
        refuse_parameters(request)
        return json_response({"stores": [self.describe(name) for name in self._readable(request)]})

    async def store(self, request: Request) -> Response:
        """GET /v1/stores/{store}: one store."""
        refuse_parameters(request)
        store = self._serving.stores.get(request.path_params["store"])
        return json_response(self.describe(store.name))

    async def topology(self, request: Request) -> Response:
        """GET /v1/topology: what the application consists of; of that what the stores are fed by that who asks may
        read."""
        refuse_parameters(request)
        topology = self._serving.topology
        subtopologies = [s for s in topology.subtopologies if _concerns(s, request)]
        pipelines = [p for p in topology.pipelines.values() if _feeds(p, subtopologies, request)]
        return json_response(
            {
                "application_id": topology.application_id,
                "subtopologies": [_subtopology(s, request) for s in subtopologies],
                "topics": [_topic(t) for t in _topics(subtopologies, pipelines)],
                "stores": {name: _definition(d) for name, d in topology.stores.items() if may_read(request, name)},
                "pipelines": self.pipelines(request),
            }
        )

    def pipelines(self, request: Request) -> dict[str, Any]:
        """Name → what it reads and writes and how it stands, of those that feed what who asks may read."""
        topology = self._serving.topology
        subtopologies = [s for s in topology.subtopologies if _concerns(s, request)]
        shown = {name: p for name, p in topology.pipelines.items() if _feeds(p, subtopologies, request)}
        states = self._pipelines.read() if shown else {}
        return {name: _pipeline(p) | {"status": _status(states[name], request)} for name, p in shown.items()}

    async def instances(self, request: Request) -> Response:
        """GET /v1/instances: who runs what, as the workers have written it down; of the tasks those that have a store
        which who asks may read. A worker that was killed runs nothing."""
        refuse_parameters(request)
        workers = self._serving.workers
        await workers.refresh()
        hidden = {s.ordinal for s in self._serving.topology.subtopologies if not _concerns(s, request)}
        return json_response({"instances": [self._instance(i, hidden) for i in workers.instances.values()]})

    async def healthz(self, request: Request) -> Response:
        """GET /healthz: this process is alive."""
        return json_response({"status": "alive"})

    async def readyz(self, request: Request) -> Response:
        """GET /readyz: 200 only when every store can be queried, else the reasons that who asks may know."""
        if not await self._serving.reasons_not_ready():
            return json_response({"status": "ready"})
        if not is_known(request):
            return problem_response(NotReadyError("Not every store can be queried yet: a token is told the reasons."))
        reasons = await self._serving.reasons_not_ready(self._readable(request))
        error = NotReadyError("Not every store can be queried yet: see reasons, and ask again in a moment.")
        return problem_response(error, reasons=reasons)

    async def metrics(self, request: Request) -> Response:
        """GET /metrics: Prometheus text, compressed where that is accepted."""
        text, headers = await self._metrics.text(), {"Vary": "Accept-Encoding"}
        if "gzip" in accepted(request.headers.get("accept-encoding", "")):
            text, headers["Content-Encoding"] = await asyncio.to_thread(gzip.compress, text, _LEVEL), "gzip"
        return Response(text, headers=headers, media_type=CONTENT_TYPE_LATEST)

    def _instance(self, instance: Instance, hidden: Container[int]) -> dict[str, Any]:
        workers = self._serving.workers
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
        return [name for name in self._serving.stores.names if may_read(request, name)]

    def describe(self, name: str) -> dict[str, Any]:
        """A store that can be asked, and its partitions as they are now."""
        definition = self._serving.topology.stores[name]
        described = {
            "store": name,
            **_definition(definition),
            "columns": _columns(definition),
            "default_isolation_level": self._serving.config.default_state_isolation_level.value,
            "changelog": definition.changelog(self._serving.topology.application_id),
        }
        try:
            store = self._serving.stores.get(name)
        except NotReadyError as error:  # declared, and no worker runs it yet
            return described | {"partitions": {}, "not_ready": without_paths(error)}
        return described | {"partitions": {str(p): self._partition(store, p) for p in store.partitions}}

    def _partition(self, store: ServedStore, partition: int) -> dict[str, Any]:
        task_id = store.placement.task_id(partition)
        workers = self._serving.workers
        owner = workers.owner(task_id)
        described: dict[str, Any] = {"task": task_id, "owner": owner, "state": None, "lag": None}
        if not store.definition.persistent:
            lives = owner is not None and workers.is_alive(owner)  # what was in memory has gone with one that does not
            task_state = workers.instances[owner].tasks[task_id] if lives and owner is not None else None
            described["state"] = {"running": "active", "suspended": "active"}.get(task_state or "", task_state)
            return described
        try:
            reader = self._serving.partitions.open(store, partition)
        except StatelineError as error:
            return described | {"unreadable": without_paths(error)}
        copy = self._serving.partitions.status(store, partition)
        return described | {
            "state": copy.served_by,
            "lag": reader.notice.restore_remaining,
            "staged_records": copy.staged_records,
            "staged_bytes": copy.staged_bytes,
            "committed_at_ms": copy.committed_at_ms,
        }


def _definition(definition: StoreDefinition) -> dict[str, Any]:
    return {
        "kind": definition.kind,
        "key_type": definition.key.name,
        "value_type": definition.value.name,
        "persistent": definition.persistent,
        "logged": definition.logged,
        "retention_ms": definition.retention_ms or None,  # key-value stores keep every key until it is deleted
        "external": definition.external,
    }


def _columns(definition: StoreDefinition) -> list[dict[str, Any]]:
    """The columns of its rows as an Arrow stream, with Arrow's names of types."""
    return [asdict(column) for column in row_columns(definition)]


def _concerns(subtopology: Subtopology, request: Request) -> bool:
    """Whether who asks may know of this subtopology: of one store in it, or of everything."""
    return reads_all(request) or any(may_read(request, store.name) for store in subtopology.stores)


def _feeds(pipeline: Pipeline, subtopologies: Iterable[Subtopology], request: Request) -> bool:
    sources = {topic.name for subtopology in subtopologies for topic in subtopology.sources}
    return reads_all(request) or any(t.name in sources for t in (pipeline.writes, *pipeline.branches))


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


def _status(status: dict[str, Any] | None, request: Request) -> dict[str, Any] | None:
    """Without the error for who may not read everything: it may show records of other stores."""
    return status if status is None or reads_all(request) else status | {"last_error": None}


def _topics(subtopologies: Sequence[Subtopology], pipelines: Iterable[Pipeline]) -> list[Topic]:
    topics = [t for s in subtopologies for t in s.sources]
    topics += [t for s in subtopologies for p in s.processors for t in p.forwards]
    topics += [t for p in pipelines for t in (*p.reads, *p.tables, *p.static, p.writes, *p.branches)]
    return list({topic.name: topic for topic in topics}.values())
