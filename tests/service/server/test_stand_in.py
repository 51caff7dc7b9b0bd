"""While no server process answers, clients are told so at once, and none waits for it."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from stateline.cli.nodes.certificates import make_authority, make_certificate
from stateline.config.loading import load_config
from stateline.processes.child import Child, RestartPolicy
from stateline.processes.supervisor import Supervisor
from stateline.server.listeners import http_listener
from stateline.server.stand_in import StandIn
from support.processes.query_server import OwningWorker, wait_until
from support.processes.serve_process import Served, served, until_all_ready
from support.run.length import long_only
from support.run.patience import HANGING_S

KEY = "/v1/stores/aircraft/keys/a"
# Takes the next connection, but only when it is told to begin.
SERVER = """
import os, socket, sys, time
from pathlib import Path
from stateline.processes.child import ReadySignal
readiness = ReadySignal()
while not Path(sys.argv[2]).exists():
    time.sleep(0.01)
listener = socket.socket(fileno=int(sys.argv[1]))
listener.setblocking(True)
readiness.say()
while True:
    connection, _ = listener.accept()
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\nconnection: close\\r\\n\\r\\n%d" % os.getpid())
    connection.close()
"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with http_listener(load_config("flights", overrides=["server.port=0"])) as made:
        yield made


def url(listener: socket.socket, scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{listener.getsockname()[1]}{KEY}"


def polled(supervisor: Supervisor) -> Supervisor:
    supervisor.poll()
    return supervisor


def test_every_request_is_answered_with_503_and_told_when_to_ask_again(listener: socket.socket) -> None:
    with closing(StandIn(listener, load_config("flights"))) as stand_in:
        stand_in.answer(is_needed=True)
        answers = [httpx.get(url(listener)), httpx.post(url(listener), content=b"x" * 1_000_000)]
        for answer in answers:
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["reason"] == "NOT_READY"
        head = httpx.head(url(listener))
        assert (head.status_code, head.content) == (503, b"")


def test_it_speaks_tls_where_the_server_does(listener: socket.socket, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    make_authority(tmp_path, now)
    made = make_certificate(tmp_path, "one", ["127.0.0.1"], now, timedelta(days=1))
    files = [f"server.tls.certificate.file={made.certificate}", f"server.tls.key.file={made.key}"]
    trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    with closing(StandIn(listener, load_config("flights", overrides=files))) as stand_in:
        stand_in.answer(is_needed=True)
        assert httpx.get(url(listener, "https"), verify=trusting).status_code == 503


def test_a_connection_that_says_nothing_does_not_keep_others_waiting(listener: socket.socket) -> None:
    with closing(StandIn(listener, load_config("flights"))) as stand_in:
        stand_in.answer(is_needed=True)
        with socket.create_connection(listener.getsockname()):
            assert httpx.get(url(listener)).status_code == 503


def test_clients_are_refused_from_the_death_of_a_server_until_the_next_one_is_ready(
    listener: socket.socket, tmp_path: Path
) -> None:
    said: list[str] = []
    begins = tmp_path / "begins"
    command = (sys.executable, "-c", SERVER, str(listener.fileno()), str(begins))
    child = Child("server", command, pass_fds=(listener.fileno(),), answers=True)
    stand_in = StandIn(listener, load_config("flights"), said.append)

    def quick() -> RestartPolicy:
        return RestartPolicy(first_delay_s=0.01, max_delay_s=0.02)

    with Supervisor([child], emit=lambda *_: None, policy=quick, listeners=[listener], stand_in=stand_in) as supervisor:
        for _ in range(2):
            assert httpx.get(url(listener)).status_code == 503
            begins.touch()
            wait_until(lambda: polled(supervisor).is_answered and bool(said), HANGING_S)
            assert said.pop() == f"Answering at {url(listener).removesuffix(KEY)} (server.host, server.port)"
            pid = supervisor.processes["server"]
            assert [httpx.get(url(listener)).text for _ in range(20)] == [str(pid)] * 20
            begins.unlink()
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not polled(supervisor).is_answered, HANGING_S)


@long_only("the test before kills what answers, too")
def test_nobody_waits_for_server_processes_that_were_all_killed(tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path)
    worker.put("a", 1)
    worker.commit()
    with closing(worker), served(tmp_path, "server.processes=2") as one:
        until_all_ready(one, 2)

        def is_refused(one: Served = one) -> bool:
            for pid in one.children():
                os.kill(pid, signal.SIGKILL)
            try:
                return one.fresh(KEY).status_code == 503
            except httpx.TransportError:  # it was taken by one that died
                return False

        wait_until(is_refused, HANGING_S)
        refused = one.fresh(KEY)
        assert refused.status_code == 200 or json.loads(refused.content)["reason"] == "NOT_READY"
        wait_until(lambda: one.fresh(KEY).status_code == 200, HANGING_S)
