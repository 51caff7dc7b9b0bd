"""Every kind of store behind a real worker and a real server, and what Spark reads of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.spark.source.scenes import Kinds, kinds_that_run
from support.processes.query_server import OwningWorker, wait_until
from support.processes.served_here import http_server


@pytest.fixture(scope="package")  # no longer: a worker that waits costs a tenth of a processor
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kinds]:
    """Stores of every kind with the same records, committed, over three partitions."""
    with kinds_that_run(tmp_path_factory.mktemp("k")) as kinds:
        yield kinds


@pytest.fixture(scope="module")
def client(state_dir: Path, worker: OwningWorker) -> Iterator[httpx.Client]:
    """A server of the stores that `worker` has: of string, integer, bytes and JSON keys."""
    with http_server(state_dir, "server.snapshots.max=1000") as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)
        yield client
