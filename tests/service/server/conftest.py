"""One server, beside the worker of `tests/service/conftest.py`, for a module's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.processes.query_server import OwningWorker
from support.processes.served_here import Here, served_here


@pytest.fixture(scope="module")
def client(state_dir: Path, worker: OwningWorker) -> Iterator[httpx.Client]:
    with served_here(state_dir, "server.wait.max.ms=600000", "server.scan.processes=0") as found:
        yield found.client


@pytest.fixture(scope="module")
def here(worker: OwningWorker, state_dir: Path) -> Iterator[Here]:
    """A server in this process that has the key `k`; modules that need another one make it themselves."""
    worker.put("k", 1)
    worker.commit()
    with served_here(state_dir) as found:
        yield found
