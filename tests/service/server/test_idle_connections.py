"""Thousands of connections that ask nothing keep nobody from being answered."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from support import TESTS
from support.processes.ports import free_port
from support.processes.query_server import OwningWorker, wait_until
from support.run.length import long_or_short
from support.run.patience import HANGING_S

IDLE = long_or_short(5_000, 2_000)
_SHELLS_LIMIT = 1024  # what a login shell gives


@contextmanager
def room_for(files: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < files:
        pytest.skip(f"a process may have {hard} files open here (ulimit -Hn): {files} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, files), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_thousands_of_idle_connections_leave_queries_answered(state_dir: Path, worker: OwningWorker) -> None:
    worker.put("idle", 1)
    worker.commit()
    port = free_port()
    command = f"ulimit -Sn {_SHELLS_LIMIT}; exec {sys.executable} -m support.processes.query_server {state_dir}"
    with ExitStack() as stack:
        stack.enter_context(room_for(IDLE + 500))
        server = stack.enter_context(subprocess.Popen(["/bin/sh", "-c", f"{command} server.port={port}"], cwd=TESTS))
        stack.callback(server.kill)
        wait_until(lambda: server.poll() is not None or _answers(port))
        for _ in range(IDLE):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=HANGING_S))
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANGING_S) as client:
            for _ in range(20):
                assert client.get("/v1/stores/aircraft/keys/idle").json()["value"] == 1
        assert server.poll() is None


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/v1/stores/aircraft/keys/idle").status_code == 200
    except httpx.TransportError:
        return False
