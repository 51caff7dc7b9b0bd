"""One server, beside the worker of `tests/service/conftest.py`, for a module's tests; its clients, a proxy between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import httpx
import pytest

from stateline.client import Client
from support.http.blocking import clients_of
from support.http.faulty_proxy import FaultyProxy, faulty_proxy
from support.processes.query_server import OwningWorker
from support.processes.served_here import served_here

Connect: TypeAlias = Callable[..., Client]


@pytest.fixture(scope="module")
def server(state_dir: Path, worker: OwningWorker) -> Iterator[httpx.URL]:
    """Its address."""
    with served_here(state_dir) as found:
        yield found.client.base_url


@pytest.fixture(params=["threads", "asyncio"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Makes clients of both kinds, for the same tests."""
    with clients_of(request.param) as connect:
        yield connect


@pytest.fixture
def client(server: httpx.URL, connect: Connect) -> Client:
    return connect(server)


@pytest.fixture
def proxy(server: httpx.URL) -> Iterator[FaultyProxy]:
    assert server.port is not None
    with faulty_proxy(server.port) as proxy:
        yield proxy
