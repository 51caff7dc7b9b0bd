"""A server in the test's own process, on a thread of its own: real uvicorn, and what it holds can be looked at."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvicorn

from stateline.config.loading import load_config
from stateline.dsl.app import App
from stateline.server.guard.limits import Limits
from stateline.server.listeners import peer_listener
from stateline.server.main import create_app
from stateline.server.processes import uvicorn_settings
from stateline.server.serving import Serving
from support.processes.ports import free_port
from support.processes.query_server import make_app, wait_until
from support.run.patience import HANGING_S, PATIENT


@dataclass
class Here:
    """A server that runs here."""

    client: httpx.Client
    serving: Serving
    limits: Limits
    port: int


@contextlib.contextmanager
def served_here(state_dir: Path, *settings: str, app: App | None = None, until_ready: bool = True) -> Iterator[Here]:
    """Serve this application, that of `query_server` unless it is given, from this state directory; ready when the
    block begins, unless only started is enough.
    """
    port = free_port()
    app = app or make_app()
    own = "default.state.isolation.level=read_committed", f"state.dir={state_dir}", f"server.port={port}", PATIENT
    given = [*own, *settings]
    config = load_config(app.application_id, environment={}, overrides=given)
    api = create_app(app, config, for_nodes=peer_listener(config))
    running = uvicorn_settings(api, config)
    running.port = port
    server = uvicorn.Server(running)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANGING_S) as client:
            wait_until(lambda: server.started and (not until_ready or client.get("/readyz").status_code == 200))
            yield Here(client, api.state.serving, api.state.limits, port)
    finally:
        server.should_exit = True
        thread.join(HANGING_S)
    assert not thread.is_alive(), "the server did not stop"


@contextlib.contextmanager
def http_server(state_dir: Path, *settings: str) -> Iterator[httpx.Client]:
    """A client of such a server, ready or not. It is there in a fifth of the time that one as a process takes."""
    with served_here(state_dir, *settings, until_ready=False) as here:
        yield here.client
