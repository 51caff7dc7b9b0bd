"""One worker and one server for a module's tests; each test uses keys of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from query_server import OwningWorker, server_process, wait_until


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s")


@pytest.fixture(scope="module")
def worker(state_dir: Path) -> Iterator[OwningWorker]:
    worker = OwningWorker(state_dir)
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def client(state_dir: Path, worker: OwningWorker) -> Iterator[httpx.Client]:
    settings = ("default.state.isolation.level=read_committed", "server.wait.max.ms=30000")
    with server_process(state_dir, *settings) as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)
        yield client
