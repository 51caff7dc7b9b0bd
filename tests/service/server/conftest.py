"""One server, beside the worker of `tests/service/conftest.py`, for a module's tests; a browser to look at one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from support.console.console_browser import BrowserMissingError, Flights, chromium, served_flights
from support.processes.query_server import OwningWorker
from support.processes.served_here import Here, served_here

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def client(state_dir: Path, worker: OwningWorker) -> Iterator[httpx.Client]:
    with served_here(state_dir, "server.wait.max.ms=30000") as found:
        yield found.client


@pytest.fixture(scope="module")
def here(worker: OwningWorker, state_dir: Path) -> Iterator[Here]:
    """A server in this process that has the key `k`; modules that need another one make it themselves."""
    worker.put("k", 1)
    worker.commit()
    with served_here(state_dir) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real Chromium. For a module only: while it runs, this thread counts as having an event loop."""
    try:
        with chromium() as browser:
            yield browser
    except BrowserMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def served(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Flights, str]]:
    """The console's application with all its data committed, and the address of its server."""
    with served_flights(tmp_path_factory.mktemp("c")) as served:
        yield served
