"""The server process: the FastAPI application, and `serve`, which runs it under uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from stateline.app import App
from stateline.config import Config
from stateline.server.answers import json_response
from stateline.server.arguments import COMMON
from stateline.server.http_protocol import ProblemProtocol
from stateline.server.metrics import MeasuringMiddleware, Metrics
from stateline.server.openapi import Operation, document
from stateline.server.pages import docs_page, index_page
from stateline.server.problems import on_disconnect, on_http_error, on_stateline_error, on_unexpected_error
from stateline.server.routes import BODY_PARAMETERS, OTHER_KINDS, RANGE_PARAMETERS, QueryRoutes
from stateline.server.serving import Serving
from stateline.server.state_routes import StateRoutes, refuse_parameters
from stateline_store import ConfigurationError, StatelineError

_STORE = "/v1/stores/{store}"
_QUERY_PROBLEMS = (404, 412, 421, 422, 500, 503)
_KEY, _RANGE, _COUNT = f"{_STORE}/keys/{{key}}", f"{_STORE}/range", f"{_STORE}/count"
_POSITION, _QUERY = f"{_STORE}/position", f"{_STORE}/query"
_BODIES = {kind: (*names, *COMMON) for kind, names in BODY_PARAMETERS.items()}
# How long answers that have begun may take after the server was told to stop; those that wait are ended at
# once.
_GRACE_S = 10

OPERATIONS = (
    Operation(_KEY, "get", "The value of one key.", (*COMMON, "as_of"), "key", (400, *_QUERY_PROBLEMS)),
    Operation(
        _RANGE,
        "get",
        "Entries from lower to upper, both inclusive, or of a prefix, in the order of serialized keys.",
        (*RANGE_PARAMETERS, *COMMON),
        "range",
        _QUERY_PROBLEMS,
    ),
    Operation(_COUNT, "get", "About how many entries there are.", COMMON, "count", _QUERY_PROBLEMS),
    Operation(_POSITION, "get", "How far each partition has come.", COMMON, "position", _QUERY_PROBLEMS),
    Operation(_QUERY, "post", "Any query as a body.", problems=(400, *_QUERY_PROBLEMS), body=_BODIES),
    Operation("/v1/stores", "get", "Every store.", problems=(422, 500)),
    Operation(_STORE, "get", "One store and its partitions.", problems=(404, 422, 500, 503)),
    Operation("/v1/topology", "get", "Subtopologies, topics, stores, pipelines.", problems=(422, 500)),
    Operation("/v1/instances", "get", "Which worker runs what.", problems=(422, 500, 503)),
    Operation("/healthz", "get", "This process is alive.", problems=(422,)),
    Operation("/readyz", "get", "Every store can be queried; else the reasons.", problems=(422, 503)),
    Operation("/metrics", "get", "Prometheus metrics.", problems=(422,), media_type="text/plain"),
)

_log = logging.getLogger(__name__)


class _KeyConvertor(Convertor[str]):
    """The rest of a path, whatever it is: Starlette's own `path` stops at a line break."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("stateline_key", _KeyConvertor())


def create_app(app: App, config: Config) -> FastAPI:
    """The HTTP application that answers for `app`. It runs once: a server that was shut down is made anew.

    Raises `TopologyError` when the application cannot run as declared, `RetryLaterError` when the state
    directory cannot be created.
    """
    # Secondaries keep a few files of their own beside the store's; made when the first one is opened.
    scratch = Path(tempfile.gettempdir()) / f"stateline-server-{secrets.token_hex(8)}"
    serving = Serving(app.topology(), config, scratch)
    metrics = Metrics(serving.partitions)
    api = FastAPI(
        title=app.application_id,
        lifespan=lambda _: _lifespan(serving, scratch),
        routes=_routes(serving, metrics),
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    api.state.serving = serving
    api.add_middleware(MeasuringMiddleware, metrics=metrics)
    api.add_exception_handler(StatelineError, on_stateline_error)
    api.add_exception_handler(HTTPException, on_http_error)
    api.add_exception_handler(ClientDisconnect, on_disconnect)
    api.add_exception_handler(Exception, on_unexpected_error)
    return api


def serve(app: App, config: Config) -> None:
    """Answer HTTP for `app` until SIGTERM or SIGINT.

    Raises `ConfigurationError` when its host or port cannot be listened on, and what `create_app` raises.
    """
    api = create_app(app, config)
    listener = _listener(config)
    host, port = listener.getsockname()[:2]
    _log.info("Answering at http://%s:%d", host, port)
    settings = uvicorn.Config(
        api,
        log_level="warning",
        access_log=False,  # /metrics counts requests; a line for each costs a tenth of the throughput
        timeout_graceful_shutdown=_GRACE_S,
        server_header=False,
        http=ProblemProtocol,
        log_config=None,  # its lines go where ours go, in our format
    )
    with listener:
        _Server(settings, api.state.serving).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Ends waiting queries when it is told to stop: uvicorn itself would wait for them."""

    def __init__(self, settings: uvicorn.Config, serving: Serving) -> None:
        super().__init__(settings)
        self._serving = serving
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._loop is not None:  # we are in a signal handler: let the loop do it between two callbacks
            self._loop.call_soon_threadsafe(self._serving.stop)
        # Not uvicorn's own, which raises the signal again at the end: a clean stop exits with 0.
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


@contextlib.asynccontextmanager
async def _lifespan(serving: Serving, scratch: Path) -> AsyncIterator[None]:
    keeper = asyncio.create_task(serving.keep())
    try:
        yield
    finally:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
        await serving.close()
        shutil.rmtree(scratch, ignore_errors=True)  # a leftover is a few kilobytes of RocksDB's log


def _routes(serving: Serving, metrics: Metrics) -> list[BaseRoute]:
    queries, state = QueryRoutes(serving), StateRoutes(serving, metrics)
    openapi = document(serving.topology.application_id, OPERATIONS)
    docs, index = docs_page(openapi), index_page(serving.topology.application_id, serving.names_of_key_value())

    async def show_openapi(request: Request) -> Response:
        refuse_parameters(request)
        return json_response(openapi)

    async def show_docs(request: Request) -> Response:
        refuse_parameters(request)
        return HTMLResponse(docs)

    async def show_index(request: Request) -> Response:
        refuse_parameters(request)
        return HTMLResponse(index)

    return [
        Route(f"{_STORE}/keys/{{key:stateline_key}}", queries.key),
        Route(_RANGE, queries.range),
        Route(_COUNT, queries.count),
        Route(_POSITION, queries.position),
        Route(_QUERY, queries.query, methods=["POST"]),
        *(Route(f"{_STORE}/{name}", queries.other_kind) for name in OTHER_KINDS),
        Route("/v1/stores", state.stores),
        Route(_STORE, state.store),
        Route("/v1/topology", state.topology),
        Route("/v1/instances", state.instances),
        Route("/healthz", state.healthz),
        Route("/readyz", state.readyz),
        Route("/metrics", state.metrics),
        Route("/openapi.json", show_openapi),
        Route("/docs", show_docs),
        Route("/docs/", show_docs),
        Route("/", show_index),
    ]


def _listener(config: Config) -> socket.socket:
    """Bound here rather than by uvicorn, which would end the process when the port is taken."""
    host, port = config.server_host, config.server_port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigurationError(f"server.host = {host!r} cannot be listened on: {error.strerror}.") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigurationError(
                f"server.host = {host!r} is no address of this machine: set server.host to one of its own, 127.0.0.1 "
                "for this machine alone or 0.0.0.0 for all of its addresses."
            ) from error
        why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be listened on ({error.strerror})"
        raise ConfigurationError(
            f"server.port = {port} on {host} {why}: stop what listens there, or set another server.port."
        ) from error
    return listener
