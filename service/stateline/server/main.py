"""The server process: the FastAPI application, and `serve`, which runs it under uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

import uvicorn
from fastapi import FastAPI
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from stateline.config.settings import Config
from stateline.config.temporary import use_temporary_directory
from stateline.deployment.stores.discarding import settle_if_known
from stateline.dsl.app import App
from stateline.processes.child import ReadySignal
from stateline.processes.machine import allow_many
from stateline.processes.seldom import seldom
from stateline.processes.terminal import Terminal
from stateline.processes.tracing import traced
from stateline.server.changes.feed import ChangeSource
from stateline.server.changes.routes import OPERATIONS as CHANGES
from stateline.server.changes.routes import ChangeRoutes
from stateline.server.cluster_view import NodesRoutes
from stateline.server.console.failures import ConsoleFailures
from stateline.server.console.graph import ConsoleGraph
from stateline.server.console.history import History
from stateline.server.console.page import ConsolePage, root_from
from stateline.server.console.settings import ConsoleSettings
from stateline.server.console.state import ConsoleState
from stateline.server.contract.answer_headers import headers_of_every_answer
from stateline.server.contract.answers import json_response
from stateline.server.contract.hidden_paths import hide_directory
from stateline.server.contract.openapi import Operation, document, with_examples
from stateline.server.contract.pages import DOCS_HEADERS, docs_page
from stateline.server.contract.problems import on_disconnect, on_http_error, on_stateline_error, on_unexpected_error
from stateline.server.copies.receiving import CopyReceiver
from stateline.server.copies.sending import CopySender
from stateline.server.drain import GRACE_S, DrainingServer
from stateline.server.guard.access import guarded, install_guard
from stateline.server.guard.caller import may_read
from stateline.server.guard.exposure import refuse_exposure
from stateline.server.guard.limits import Limits
from stateline.server.listeners import http_listener, peer_listener
from stateline.server.nodes.joining import joined
from stateline.server.processes import inherit, run_processes
from stateline.server.queries.operations import OPERATIONS as QUERIES
from stateline.server.queries.operations import STORE
from stateline.server.queries.point_reads import PointReads
from stateline.server.queries.requests import RequestReader
from stateline.server.queries.routes import QueryRoutes
from stateline.server.queries.scan_answers import ScanAnswers
from stateline.server.serving import Serving
from stateline.server.snapshots.asked_nodes import AskedNodes
from stateline.server.snapshots.cluster import ClusterSnapshots
from stateline.server.snapshots.operations import OPERATIONS as SNAPSHOTS
from stateline.server.snapshots.own_parts import OwnParts
from stateline.server.snapshots.routes import SnapshotRoutes
from stateline.server.snapshots.sweeper import SnapshotSweeper
from stateline.server.stand_in import StandIn
from stateline.server.start_checks import check_files
from stateline.server.state_routes import StateRoutes
from stateline.server.store_states import StoreStates
from stateline.server.telemetry.access_log import AccessLog
from stateline.server.telemetry.measuring import Measuring, MeasuringMiddleware
from stateline.server.telemetry.metrics import Metrics
from stateline.server.telemetry.workers_metrics import FiguresReader
from stateline.server.wire.accepting import ConnectionCounts
from stateline.server.wire.compression import CompressionMiddleware
from stateline.server.wire.http_protocol import ProblemProtocol
from stateline_store import ConfigurationError, StatelineError

OPERATIONS = (
    *QUERIES,
    *SNAPSHOTS,
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

# A server that starts looks for other nodes for so long before it answers.
_LINKED_WITHIN_S, _LOOK_AGAIN_S = 3.0, 0.02
# And one that takes over from another so long until every store can be queried: that one answers meanwhile.
_TAKES_OVER_WITHIN_S = 15.0

# The event loop waits for the interpreter this long while another thread works. Python's default is 5 ms.
_SWITCH_S = 0.001

_log = logging.getLogger(__name__)


class _KeyConvertor(Convertor[str]):
    """The rest of a path, whatever it is: Starlette's own `path` stops at a line break."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("stateline_key", _KeyConvertor())


def create_app(
    app: App,
    config: Config,
    *,
    announces: bool = True,
    for_nodes: socket.socket | None = None,
    takes_over: bool = False,
) -> FastAPI:
    """The HTTP application that answers for `app`. It runs once: a server that was shut down is made anew.

    `announces`: it tells other nodes of this one, as one process of a node does. `for_nodes` is the socket at which
    they reach it (`peer_listener`), None where they do not. `takes_over`: another process answers until this one does,
    so it begins when every store can be queried, or after a while.

    Raises `ConfigurationError` when the tokens file cannot be read or temporary files can be kept nowhere,
    `TopologyError` when the application cannot run as declared, `RetryLaterError` when the state directory
    cannot be created.
    """
    # Secondaries keep a few files of their own beside the store's; made when the first one is opened.
    use_temporary_directory(config)
    scratch = Path(tempfile.gettempdir()) / f"stateline-server-{secrets.token_hex(8)}"
    hide_directory(config.state_dir, "<state.dir>")
    hide_directory(scratch, "<scratch>")
    limits = Limits(config)
    serving = Serving(app.topology(), config, scratch)
    snapshots = SnapshotSweeper(config.state_dir / app.application_id, config.server_snapshots_max_bytes)
    source = ChangeSource(config, serving.topology, serving.copies, serving.routing, serving.ownership, serving.commits)
    changes = ChangeRoutes(serving.stores, serving.bodies, serving.limits, source)
    metrics = Metrics(serving, snapshots, changes)
    requests = RequestReader(config, serving.bounds)
    scans = ScanAnswers(serving.routing, serving.cursors, serving.partitions, serving.nodes, serving.siblings, limits)
    queries = QueryRoutes(serving.stores, serving.routing, serving.bodies, requests, scans)
    figures = FiguresReader(config.state_dir / app.application_id, serving.workers.unwritten_figures)
    history, page = History(serving.topology, serving.partitions, figures, metrics), ConsolePage()
    own = OwnParts(config, serving.stores, serving.workers, serving.ownership, snapshots.directory)
    cluster = ClusterSnapshots(serving.ownership, own, AskedNodes(config, serving.nodes))
    mode = config.server_access_log
    measuring = Measuring(metrics, None if mode == "off" else AccessLog(mode, config.server_slow_query_ms))
    api = FastAPI(
        title=app.application_id,
        lifespan=lambda _: _lifespan(serving, snapshots, measuring, history, scratch, announces, for_nodes, takes_over),
        routes=[
            *_routes(serving, queries, changes, metrics, history, page, app.examples),
            *SnapshotRoutes(config, serving.stores, serving.bodies, limits, snapshots, cluster).routes(),
        ],
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    api.state.serving, api.state.limits = serving, limits
    if serving.nodes is not None:
        serving.nodes.app = api
        serving.nodes.send_copy = CopySender(config, serving.topology, serving.workers, serving.nodes).send
    api.add_middleware(CompressionMiddleware)
    # Inside of the measuring: what it refuses counts.
    admit = install_guard(api, config, limits, serving.tokens, serving.of_node)
    api.add_middleware(MeasuringMiddleware, routes=api.routes, measuring=measuring)
    api.add_exception_handler(StatelineError, on_stateline_error)
    api.add_exception_handler(HTTPException, _for_the_lost(page))
    api.add_exception_handler(ClientDisconnect, on_disconnect)
    api.add_exception_handler(Exception, on_unexpected_error)
    api.state.at_once = None  # what `http_protocol` looks for
    points = PointReads(serving, requests, measuring, admit)
    serving.for_nodes.points, serving.for_nodes.tell = points.answer_for_node, measuring.tell_message
    if admit is not None and config.tracing_exporter == "none":  # which makes no spans
        api.state.at_once = points.answer
    return api


def _for_the_lost(page: ConsolePage) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(request: Request, error: Exception) -> Response:
        is_lost = isinstance(error, HTTPException) and error.status_code == HTTPStatus.NOT_FOUND
        return (page.lost(request) if is_lost else None) or await on_http_error(request, error)

    return answer


class Listening(NamedTuple):
    """Sockets that a server process inherits, by their descriptors; that for other nodes is None where none is."""

    clients: int
    nodes: int | None


def serve(
    app: App,
    config: Config,
    command: Sequence[str] = (),
    load: Sequence[str] = (),
    inherited: Listening | None = None,
    terminal: Terminal | None = None,
) -> None:
    """Answer HTTP for `app` until SIGTERM or SIGINT, or until SIGHUP says that the `terminal` has gone.

    With `server.processes` above 1 that many processes do, each started by `command`, which has to come to
    `serve_inherited`, and anew by SIGHUP when `load` ends with 0. With `inherited` sockets another process can answer
    at them as well: HAND_OVER ends this one then.

    Raises `ConfigurationError` when its host or port cannot be listened on, or not without tokens, when certificate or
    key cannot be used, and when there is no command for several processes; and what `create_app` raises.
    """
    readiness = ReadySignal()
    check_files(config)
    several = config.server_processes > 1
    if several and not command:
        raise ConfigurationError(f"server.processes = {config.server_processes} needs `stateline serve`, or set 1.")
    with http_listener(config) if inherited is None else socket.socket(fileno=inherited.clients) as listener:
        others = peer_listener(config) if inherited is None else _socket(inherited.nodes)
        with others or contextlib.nullcontext() as for_nodes:
            if several:
                told, hands_over = readiness, inherited is not None
                run_processes(config, listener, for_nodes, command, load, readiness=told, hands_over=hands_over)
                return
            with contextlib.closing(StandIn(listener, config, _log.info)) as stand_in:
                stand_in.answer(is_needed=inherited is None)  # else the parent's does

                def ready() -> None:
                    stand_in.answer(is_needed=False)
                    readiness.say()

                takes_over, hands_over = readiness.takes_over, inherited is not None
                _answer(app, config, listener, ready, takes_over, for_nodes, hands_over=hands_over, terminal=terminal)


def serve_inherited(app: App, config: Config, number: int, inherited: Listening) -> None:
    """Answer HTTP for `app` as process number `number` of several, at the listeners that the parent has bound."""
    readiness = ReadySignal()
    listener, counts = inherit(number, inherited.clients)
    with listener:
        others = _socket(inherited.nodes)
        ready, takes_over, announces = readiness.say, readiness.takes_over, number == 0
        _answer(app, config, listener, ready, takes_over, others, counts, announces=announces, hands_over=True)


def _socket(descriptor: int | None) -> socket.socket | None:
    return None if descriptor is None else socket.socket(fileno=descriptor)


def _answer(
    app: App,
    config: Config,
    listener: socket.socket,
    ready: Callable[[], object],
    takes_over: bool,
    for_nodes: socket.socket | None,
    counts: ConnectionCounts | None = None,
    *,
    announces: bool = True,
    hands_over: bool = False,
    terminal: Terminal | None = None,
) -> None:
    refuse_exposure(config, listener.getsockname()[0])  # whoever has bound it may have had other settings
    allow_many()
    sys.setswitchinterval(_SWITCH_S)
    settle_if_known(config)
    config = config.model_copy(update={"server_port": listener.getsockname()[1]})  # 0 was any
    api = create_app(app, config, announces=announces, for_nodes=for_nodes, takes_over=takes_over)
    settings = uvicorn_settings(api, config)
    serving: Serving = api.state.serving
    for_siblings = serving.siblings.listener()
    sockets = [listener] if for_siblings is None else [listener, for_siblings]
    for name in ("uvicorn.error", "asyncio"):  # a client can have them say the same again and again
        seldom(name)
    drain_ms = config.server_drain_ms
    server = DrainingServer(settings, serving, drain_ms, counts, ready=ready, hands_over=hands_over, terminal=terminal)
    server.run(sockets=sockets)


def uvicorn_settings(api: FastAPI, config: Config) -> uvicorn.Config:
    """How uvicorn runs this application."""
    proxies = config.server_forwarded_allow_ips
    return uvicorn.Config(
        api,
        log_level="warning",
        access_log=False,  # there is one of our own, which knows stores and outcomes
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
        headers=headers_of_every_answer(config),
        http=ProblemProtocol,
        ws="none",  # nothing here speaks WebSocket
        log_config=None,  # its lines go where ours go, in our format
        # Its own default believes whatever is on this machine, and a variable of the environment.
        proxy_headers=proxies is not None,
        forwarded_allow_ips=proxies or "",
        ssl_certfile=config.server_tls_certificate_file,
        ssl_keyfile=config.server_tls_key_file,
    )


@contextlib.asynccontextmanager
async def _lifespan(
    serving: Serving,
    snapshots: SnapshotSweeper,
    measuring: Measuring,
    history: History,
    scratch: Path,
    announces: bool,
    for_nodes: socket.socket | None,
    takes_over: bool,
) -> AsyncIterator[None]:
    running = serving.store_watch.follow(), serving.follower.follow(), snapshots.sweep(), history.keep()
    tasks = [asyncio.create_task(each) for each in running]
    if serving.group is not None:
        tasks.append(asyncio.create_task(serving.group.keep()))
    if measuring.metrics.shared:
        tasks.append(asyncio.create_task(measuring.metrics.keep_shared()))
    tasks.append(asyncio.create_task(serving.certificates.keep(warns=announces)))
    if serving.nodes is not None and announces:
        receiver = CopyReceiver(serving.config, serving.topology, serving.workers, serving.nodes)
        tasks.append(asyncio.create_task(receiver.keep()))
    with contextlib.suppress(OSError):  # a query of a store meets the same, and says so
        scratch.mkdir(mode=0o700)
    try:
        async with AsyncExitStack() as stack:
            stack.enter_context(traced(serving.config, "server"))
            if serving.nodes is not None:
                await stack.enter_async_context(joined(serving.nodes, serving.config, for_nodes, announces=announces))
                with contextlib.suppress(TimeoutError):  # whoever is asked first would refuse what others have
                    async with asyncio.timeout(_LINKED_WITHIN_S):
                        while not serving.nodes.is_settled:
                            await asyncio.sleep(_LOOK_AGAIN_S)
            if takes_over:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_TAKES_OVER_WITHIN_S):
                        while await serving.reasons_not_ready():
                            await asyncio.sleep(_LOOK_AGAIN_S)
            yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await serving.close()
        measuring.close()
        shutil.rmtree(scratch, ignore_errors=True)  # a leftover is a few kilobytes of RocksDB's log


def _routes(
    serving: Serving,
    queries: QueryRoutes,
    changes: ChangeRoutes,
    metrics: Metrics,
    history: History,
    page: ConsolePage,
    examples: Mapping[str, str],
) -> list[BaseRoute]:
    config, topology, served = serving.config, serving.topology, serving.stores
    workers, partitions = serving.workers, serving.partitions
    states = StoreStates(config, topology, served, workers, partitions, serving.look)
    ready, pipelines = serving.reasons_not_ready, serving.pipeline_states
    state = StateRoutes(topology, served, workers, states, metrics, pipelines, ready)
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
        *queries.routes(),
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
        *ConsoleState(topology, served, partitions, states, metrics, state, history, page.version).routes(),
        *history.routes(),
        *ConsoleGraph(topology, history).routes(),
        *ConsoleSettings(config).routes(),
        *ConsoleFailures(topology, config).routes(),
        *page.routes(),
    ]
