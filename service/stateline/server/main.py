"""The FastAPI application of a server process, composed of its parts."""

from __future__ import annotations

import secrets
import socket
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from functools import cache, partial
from http import HTTPStatus
from pathlib import Path

from fastapi import FastAPI
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from stateline.config.settings import Config
from stateline.config.temporary import use_temporary_directory
from stateline.deployment.backup_figures import BackupFigures
from stateline.dsl.app import App
from stateline.server.agents.routes import AgentRoutes
from stateline.server.backups.keeping import BackupKeeper
from stateline.server.backups.making import BackupMaker
from stateline.server.changes.pending import ChangeSource
from stateline.server.changes.routes import OPERATIONS as CHANGES
from stateline.server.changes.routes import ChangeRoutes
from stateline.server.cluster_view import NodesRoutes
from stateline.server.console.failures import ConsoleFailures
from stateline.server.console.graph import ConsoleGraph
from stateline.server.console.history import History
from stateline.server.console.page import ConsolePage, root_from
from stateline.server.console.settings import console_settings
from stateline.server.console.state import ConsoleState
from stateline.server.contract.answers import json_response
from stateline.server.contract.hidden_paths import hide_directory
from stateline.server.contract.openapi import Operation, document, with_examples
from stateline.server.contract.pages import DOCS_HEADERS, docs_page
from stateline.server.contract.problems import HANDLERS, on_http_error
from stateline.server.copies.sending import CopySender
from stateline.server.guard.access import guarded, install_guard
from stateline.server.guard.caller import may_read
from stateline.server.guard.limits import Limits
from stateline.server.lifetime import lifetime
from stateline.server.nodes.greeting import COPY, READ
from stateline.server.queries.operations import OPERATIONS as QUERIES
from stateline.server.queries.operations import STORE
from stateline.server.queries.point_reads import PointReads
from stateline.server.queries.requests import RequestReader
from stateline.server.read_routes import read_routes, relayed_app
from stateline.server.relay.answering import RelayedRequests
from stateline.server.relay.node_streams import answer_read
from stateline.server.serving import Serving
from stateline.server.snapshots.operations import OPERATIONS as SNAPSHOTS
from stateline.server.snapshots.sweeper import SnapshotSweeper
from stateline.server.sql.routes import OPERATIONS as SQL
from stateline.server.state_routes import StateRoutes
from stateline.server.store_states import StoreStates
from stateline.server.telemetry.access_log import AccessLog
from stateline.server.telemetry.measuring import Measuring, MeasuringMiddleware
from stateline.server.telemetry.metrics import Metrics
from stateline.server.telemetry.workers_metrics import FiguresReader
from stateline.server.wire.compression import CompressionMiddleware

OPERATIONS = (
    *QUERIES,
    *SNAPSHOTS,
    *SQL,
    *CHANGES,
    Operation("/v1/stores", "get", "All stores.", problems=(422, 500)),
    Operation(STORE, "get", "One store and its partitions.", problems=(404, 422, 500, 503)),
    Operation("/v1/topology", "get", "Subtopologies, topics, stores and pipelines.", problems=(422, 500)),
    Operation("/v1/instances", "get", "The workers of this node and their tasks.", problems=(422, 500, 503)),
    Operation("/v1/nodes", "get", "All nodes and their tasks.", problems=(422, 500)),
    Operation("/healthz", "get", "200 while the process lives.", problems=()),
    Operation("/readyz", "get", "200 if every store can be queried. Else 503 with the reasons.", problems=(503,)),
    Operation("/metrics", "get", "Metrics, as Prometheus text.", problems=(), media_type="text/plain"),
)


class _KeyConvertor(Convertor[str]):
    """The rest of a path. Starlette's own `path` stops at a line break."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    to_string = convert


register_url_convertor("stateline_key", _KeyConvertor())


def create_app(
    app: App,
    config: Config,
    *,
    announces: bool = True,
    for_nodes: socket.socket | None = None,
    takes_over: bool = False,
) -> FastAPI:
    """Return the HTTP application that answers for `app`. It runs once.

    One process of a node `announces` the node to others. `for_nodes` is the socket at which they reach it, if they can.
    With `takes_over` another process answers meanwhile, so this one begins when every store can be queried, or after a
    while.

    Raises `ConfigurationError` if the tokens file cannot be read or there is no directory for temporary files,
    `TopologyError` if the application is declared wrongly, `RetryLaterError` if the state directory cannot be created.
    """
    # Secondaries keep a few own files beside the store's, from their first opening.
    use_temporary_directory(config)
    scratch = Path(tempfile.gettempdir()) / f"stateline-server-{secrets.token_hex(8)}"
    hide_directory(config.state_dir, "<state.dir>")
    hide_directory(scratch, "<scratch>")
    limits = Limits(config)
    serving = Serving(app.configured_topology(config), config, scratch)
    application = config.state_dir / app.application_id
    snapshots = SnapshotSweeper(application, config.server_snapshots_max_bytes)
    source = ChangeSource(config, serving.topology, serving.copies, serving.routing, serving.ownership, serving.commits)
    changes = ChangeRoutes(serving.stores, serving.bodies, serving.limits, source)
    requests = RequestReader(config, serving.bounds)
    reads = read_routes(serving, requests, limits, snapshots, runs_sql=config.server_scan_processes == 0)
    figures = FiguresReader(application, serving.workers.unwritten_figures)
    metrics = Metrics(
        serving.topology,
        application,
        serving.partitions,
        serving.cursors,
        serving.readiness,
        serving.certificates,
        serving.nodes,
        serving.own_map,
        serving.pipelines,
        figures,
        snapshots,
        changes,
        config.backup_location is not None,
    )
    history, page = History(serving.topology, serving.partitions, figures, metrics), ConsolePage()
    backups = None
    if config.backup_location is not None and announces:  # one process of a node
        maker = BackupMaker(config, serving.topology, serving.workers)
        backups = BackupKeeper(maker, application, config.backup_interval_ms)
    mode = config.server_access_log
    access_log = None if mode == "off" else AccessLog(mode, config.server_slow_query_ms)
    measuring = Measuring(metrics, access_log, config.server_forwarded_allow_ips)
    relayed = RelayedRequests(relayed_app(reads.routes()), application)
    api = FastAPI(
        title=app.application_id,
        lifespan=lambda _: lifetime(
            serving, reads, relayed, snapshots, measuring, history, backups, scratch, announces, for_nodes, takes_over
        ),
        routes=[
            *reads.routes(),
            *_routes(serving, changes, metrics, history, page, app.examples),
        ],
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    api.state.serving, api.state.limits = serving, limits
    if serving.nodes is not None:
        serving.nodes.app = api
        serving.nodes.to_scans = serving.siblings.link_to_scans if config.server_scan_processes else None
        sender = CopySender(config, serving.topology, serving.workers, serving.nodes)
        serving.nodes.purposes = {COPY: sender.send, READ: partial(answer_read, api)}
    api.add_middleware(CompressionMiddleware)
    # Inside of the measuring: what it refuses counts.
    admit = install_guard(api, config, limits, serving.tokens)
    api.add_middleware(MeasuringMiddleware, routes=api.routes, measuring=measuring)
    for kind, handler in {**HANDLERS, HTTPException: _for_the_lost(page)}.items():
        api.add_exception_handler(kind, handler)
    api.state.at_once = api.state.repeated = None  # what `http_protocol` looks for
    points = PointReads(
        serving.stores,
        serving.partitions,
        serving.workers,
        serving.commits,
        serving.nodes,
        serving.cluster,
        serving.for_nodes,
        requests,
        measuring,
        admit,
        serving.tokens is not None,
    )
    serving.for_nodes.points, serving.for_nodes.tell = points.answer_for_node, measuring.tell_message
    if admit is not None and config.tracing_exporter == "none":  # which makes no spans
        api.state.at_once, api.state.repeated = points.answer, points.repeated
    return api


def _for_the_lost(page: ConsolePage) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(request: Request, error: Exception) -> Response:
        is_lost = isinstance(error, HTTPException) and error.status_code == HTTPStatus.NOT_FOUND
        return (page.lost(request) if is_lost else None) or await on_http_error(request, error)

    return answer


def _routes(
    serving: Serving,
    changes: ChangeRoutes,
    metrics: Metrics,
    history: History,
    page: ConsolePage,
    examples: Mapping[str, str],
) -> list[BaseRoute]:
    config, topology, served = serving.config, serving.topology, serving.stores
    workers, partitions = serving.workers, serving.partitions
    states = StoreStates(config, topology, served, workers, partitions, serving.look)
    ready, pipelines = serving.readiness.reasons_not_ready, serving.pipelines.statuses
    state = StateRoutes(topology, served, workers, states, metrics, pipelines, ready)
    application = config.state_dir / topology.application_id
    backup = partial(BackupFigures.read, application) if config.backup_location else lambda: None
    console = ConsoleState(topology, served, partitions, states, metrics, state, history, page.version, backup)
    largest = {
        "limit": config.server_limit_max,
        "wait_ms": config.server_wait_max_ms,
        "ttl_s": config.server_snapshot_ttl_max_ms // 1000,
    }
    openapi = document(topology.application_id, guarded(OPERATIONS, config), largest)
    docs = cache(partial(docs_page, openapi))  # one for each depth of address
    stores = topology.all_stores

    async def show_openapi(request: Request) -> Response:
        readable = [store for name, store in stores.items() if may_read(request, name)]
        return json_response(with_examples(openapi, readable, examples))

    async def show_docs(request: Request) -> Response:
        return HTMLResponse(docs(root_from(request.scope)), headers=DOCS_HEADERS)

    return [
        *AgentRoutes(config, serving.bodies).routes(),
        *changes.routes(),
        Route("/v1/stores", state.stores),
        Route(STORE, state.store),
        Route("/v1/topology", state.topology),
        Route("/v1/instances", state.instances),
        Route("/v1/nodes", NodesRoutes(topology, served, serving.ownership, serving.look).nodes),
        Route("/healthz", state.healthz),
        Route("/readyz", state.readyz),
        Route("/metrics", state.metrics),
        Route("/openapi.json", show_openapi),
        Route("/docs/", show_docs),
        Route("/docs", show_docs),  # the last of the two: metrics call both by its path
        Route("/v1/console", console.look),
        Route("/v1/console/history", history.history),
        Route("/v1/console/graph", ConsoleGraph(topology, history).graph),
        Route("/v1/console/settings", console_settings(config)),
        Route("/v1/console/failures", ConsoleFailures(topology, config).failures),
        *page.routes(),
    ]
