"""One worker for a module's tests, of a server and of its client; each test uses keys of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes.query_server import OwningWorker


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s")


@pytest.fixture(scope="module")
def worker(state_dir: Path) -> Iterator[OwningWorker]:
    worker = OwningWorker(state_dir)
    yield worker
    worker.close()
