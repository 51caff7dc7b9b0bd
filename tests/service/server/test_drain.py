"""How a server stops: it is not ready at once, answers for a while, finishes what it has begun, and ends with 0."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from support.processes.query_server import OwningWorker
from support.processes.serve_process import (
    PATIENCE_S,
    Served,
    halt,
    served,
    status_of,
    until_all_ready,
    until_ready,
    wait_until,
)
from support.run.length import long_only

KEY = "/v1/stores/aircraft/keys/a"
FOREVER = "server.drain.ms=3600000"
ENTRIES = 300


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A worker with a store of about 12 MB: more than the buffers of a connection take."""
    directory = tmp_path_factory.mktemp("s")
    worker = OwningWorker(directory)
    worker.put("a", 1)
    worker.put_all({f"b{number:06}": "x" * 40_000 for number in range(ENTRIES)})
    worker.commit()
    yield directory
    worker.close()


def begin_stream(one: Served) -> socket.socket:
    """A client that has taken the head of a long answer, and nothing more yet."""
    client = socket.socket()
    client.settimeout(PATIENCE_S)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    client.connect(("127.0.0.1", httpx.URL(one.url).port))
    head = "GET /v1/stores/aircraft/range?prefix=b HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\n\r\n"
    client.sendall(head.encode())
    assert client.recv(15) == b"HTTP/1.1 200 OK"
    return client


def rest(client: socket.socket) -> bytes:
    """What still comes, until the server hangs up."""
    received = bytearray()
    while data := client.recv(65536):
        received += data
    return bytes(received)


def test_a_connection_that_was_taken_before_the_stop_gets_its_answer_after_it(state_dir: Path) -> None:
    with served(state_dir) as one:
        until_ready(one)
        with socket.create_connection(("127.0.0.1", httpx.URL(one.url).port or 0), timeout=PATIENCE_S) as taken:
            assert one.fresh(KEY).status_code == 200  # came after it, and was taken after it
            one.process.terminate()
            wait_until(lambda: status_of(one, "/healthz") is None)
            taken.sendall(f"GET {KEY} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            answer = rest(taken)
        assert answer.startswith(b"HTTP/1.1 200") or b'"NOT_READY"' in answer
        assert b"connection: close" in answer
        assert one.process.wait(timeout=PATIENCE_S) == 0


def test_it_is_not_ready_at_once_and_still_answers_new_connections(state_dir: Path) -> None:
    with served(state_dir, FOREVER) as one:
        until_ready(one)
        one.process.terminate()
        wait_until(lambda: status_of(one, "/readyz") == 503)
        told = one.fresh("/readyz").json()
        assert (told["reason"], told["reasons"]) == ("NOT_READY", ["The server is shutting down."])
        assert one.fresh("/healthz").status_code == 200
        assert one.fresh(KEY).json()["value"] == 1
        body = {"type": "key", "key": "a"}
        assert httpx.post(f"{one.url}/v1/stores/aircraft/query", json=body).json()["value"] == 1
        assert "\nstateline_server_ready 0.0\n" in one.fresh("/metrics").text


def test_after_the_drain_it_ends_with_0(state_dir: Path) -> None:
    with served(state_dir, "server.drain.ms=300") as one:
        until_ready(one)
        one.process.terminate()
        assert one.process.wait(timeout=PATIENCE_S) == 0
        assert one.lines("Shutting down")


def test_an_answer_that_has_begun_is_finished(state_dir: Path) -> None:
    with served(state_dir) as one:
        until_ready(one)
        client = begin_stream(one)
        one.process.terminate()
        wait_until(lambda: status_of(one, "/healthz") is None)
        assert rest(client).count(b'"key"') == ENTRIES
        assert one.process.wait(timeout=PATIENCE_S) == 0


def test_a_query_that_waits_is_told_when_the_drain_ends(state_dir: Path) -> None:
    with served(state_dir, "server.drain.ms=200") as one:
        until_ready(one)
        answers: list[httpx.Response] = []
        far = {"position_bound": '{"flights": {"0": 1000000}}', "wait_ms": "60000", "partition": "0"}
        asking = threading.Thread(target=lambda: answers.append(one.fresh(KEY, params=far)))
        asking.start()
        wait_until(lambda: "\nstateline_http_requests_waiting 1.0\n" in one.fresh("/metrics").text)
        one.process.terminate()
        asking.join(timeout=PATIENCE_S)
        assert (answers[0].status_code, answers[0].json()["reason"]) == (503, "NOT_READY")
        assert one.process.wait(timeout=PATIENCE_S) == 0


@pytest.mark.parametrize(
    "second", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=long_only("both come to the same handler"))]
)
def test_a_second_signal_ends_it_at_once(state_dir: Path, second: signal.Signals) -> None:
    with served(state_dir, FOREVER) as one:
        until_ready(one)
        client = begin_stream(one)
        one.process.terminate()
        wait_until(lambda: status_of(one, "/readyz") == 503)
        one.process.send_signal(second)
        one.process.wait(timeout=PATIENCE_S)
        assert rest(client).count(b'"key"') < ENTRIES
        assert not one.lines("Traceback")


def test_several_processes_drain_together(state_dir: Path) -> None:
    with served(state_dir, FOREVER, "server.processes=2") as one:
        until_all_ready(one, 2)
        one.process.terminate()
        wait_until(lambda: [status_of(one, "/readyz") for _ in range(10)] == [503] * 10)
        assert one.fresh(KEY).status_code == 200
        assert len(one.children()) == 2
        one.process.terminate()
        assert one.process.wait(timeout=PATIENCE_S) == 0
        assert not one.children()


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=long_only("each of several ends as one alone does"))])
def test_requests_that_wait_to_be_taken_when_it_stops_are_answered(state_dir: Path, processes: int) -> None:
    with served(state_dir, f"server.processes={processes}") as one, ExitStack() as stack:
        until_all_ready(one, processes)
        halted = one.children() if processes > 1 else [one.process.pid]
        for pid in halted:
            halt(pid)
        address = ("127.0.0.1", httpx.URL(one.url).port or 0)
        waiting = [stack.enter_context(socket.create_connection(address, timeout=PATIENCE_S)) for _ in range(60)]
        for connection in waiting:
            connection.sendall(f"GET {KEY} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        one.process.terminate()
        for pid in halted:
            wait_until(lambda pid=pid: is_signalled(pid, signal.SIGTERM))  # type: ignore[misc]
            os.kill(pid, signal.SIGCONT)
        assert {rest(connection)[:12] for connection in waiting} <= {b"HTTP/1.1 200", b"HTTP/1.1 503"}
        assert one.process.wait(timeout=PATIENCE_S) == 0


def is_signalled(pid: int, number: signal.Signals) -> bool:
    """Whether a process that is halted has been sent this signal."""
    pending = [line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "Pnd" in line]
    return any(int(mask, 16) & 1 << (number - 1) for mask in pending)
