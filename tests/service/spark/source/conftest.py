"""Every kind of store behind a real worker and a real server, and what Spark reads of them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from service.spark.source.scenes import Kinds
from support.apps.kinds_app import Event
from support.apps.matrix_app import Deployment
from support.processes.query_server import OwningWorker, wait_until
from support.processes.served_here import http_server

_BASE_MS = (time.time_ns() // 1_000_000 // 3_600_000 - 2) * 3_600_000
_KEYS = ["", "a", "ab", "b", "k|1", "k2", "zürich", "~"]


def _events(count: int) -> list[Event]:
    """Two seconds apart: some out of order, some deletes."""
    chance, made = random.Random(5), []
    for n in range(count):
        back = chance.choices([0, chance.randrange(100_000)], [7, 2])[0]
        value = None if chance.random() < 0.12 else {"n": n, "x": [n, None]}
        made.append((chance.choice(_KEYS), value, max(_BASE_MS, _BASE_MS + n * 2_000 - back)))
    return made


@pytest.fixture(scope="package")  # no longer: a worker that waits costs a tenth of a processor
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kinds]:
    """Stores of every kind with the same records, committed, over three partitions."""
    deployment = Deployment(tmp_path_factory.mktemp("k"), "", uuid4().hex[:8])
    deployment.send(_events(150))
    with deployment.worker(commit__interval__ms=50), deployment.server(server__snapshots__max=100) as client:
        deployment.wait_for(client, "committed", deployment.history.ends())
        yield Kinds(deployment, client)


@pytest.fixture(scope="module")
def client(state_dir: Path, worker: OwningWorker) -> Iterator[httpx.Client]:
    """A server of the stores that `worker` has: of string, integer, bytes and JSON keys."""
    with http_server(state_dir, "server.snapshots.max=100") as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)
        yield client
