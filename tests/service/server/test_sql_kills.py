"""Processes that end in the middle of a statement: a clear error, and right answers afterwards."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import httpx
import pytest

from support.processes.query_server import OwningWorker
from support.processes.serve_process import Served, arguments_of, descendants_of, served, until_ready, wait_until

ROWS = 200
ENDLESS = "with recursive r(i) as (select 1 union all select i + 1 from r) select count(*) from r, aircraft"
_BUSY = 250
"""Of ticks, so that a process runs a statement. A spare that starts meanwhile takes less than half as many."""
COUNT = "select count(*) as n from aircraft"


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("sql-kills") / "state"
    directory.mkdir()
    worker = OwningWorker(directory)
    try:
        worker.put_all({f"N{number:05d}": {"seats": number} for number in range(ROWS)})
        worker.commit()
        with served(directory, "server.scan.processes=1", "sql.timeout.ms=60000") as running:
            until_ready(running)
            wait_until(lambda: bool(running.scans()))
            yield running
    finally:
        worker.close()


def asked(one: Served, sql: str, **members: object) -> httpx.Response:
    return httpx.post(f"{one.url}/v1/sql", json={"sql": sql, "max_age_ms": 0, **members}, timeout=120)


def query_processes(one: Served) -> list[int]:
    return [pid for pid in descendants_of(one.process.pid) if "stateline.sql.process" in arguments_of(pid)]


def ticks_of(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(fields[11]) + int(fields[12])


@pytest.mark.parametrize("killed", [query_processes, Served.scans], ids=["query process", "scan process"])
def test_a_statement_whose_process_is_killed_fails_and_the_next_one_is_right(
    one: Served, killed: Callable[[Served], list[int]]
) -> None:
    wait_until(lambda: asked(one, COUNT).status_code == 200)
    wait_until(lambda: bool(query_processes(one)))
    left = query_processes(one)
    at_rest = {pid: ticks_of(pid) for pid in left}

    def worked(pid: int) -> int:
        return ticks_of(pid) - at_rest.get(pid, 0)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(asked, one, ENDLESS)
        wait_until(lambda: running.done() or any(worked(pid) > _BUSY for pid in query_processes(one)))
        os.kill(max(killed(one), key=worked), signal.SIGKILL)
        answer = running.result()
    assert answer.status_code == 503, answer.text
    assert answer.json()["reason"] == "NOT_READY"
    assert "again" in answer.json()["detail"]

    def is_right() -> bool:
        found = asked(one, COUNT)
        assert found.status_code in (200, 503), found.text
        return found.status_code == 200 and found.json() == [{"n": ROWS}]

    wait_until(is_right)
    assert httpx.get(f"{one.url}/v1/stores/aircraft/keys/N00001").status_code == 200
    if killed is Served.scans:  # its query processes go with it
        wait_until(lambda: not set(left) & set(query_processes(one)))


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_statement_ends_when_its_last_caller_leaves(one: Served, method: str) -> None:
    wait_until(lambda: asked(one, COUNT).status_code == 200)
    at_rest = {pid: ticks_of(pid) for pid in query_processes(one)}

    def busy() -> list[int]:
        return [pid for pid in query_processes(one) if ticks_of(pid) - at_rest.get(pid, 0) > _BUSY]

    with left_in_the_middle(one, method, ENDLESS), left_in_the_middle(one, method, ENDLESS) as other:
        wait_until(lambda: bool(busy()))
        (pid,) = busy()
        other.close()
    wait_until(lambda: pid not in query_processes(one))
    assert asked(one, COUNT).json() == [{"n": ROWS}]


def test_a_statement_goes_on_while_another_caller_waits(one: Served) -> None:
    long = "select count(*) as n from range(400000000) a, aircraft b where b.key = 'N00001' and a.range % 7 = 3"
    with left_in_the_middle(one, "POST", long), ThreadPoolExecutor(1) as pool:
        stayed = pool.submit(asked, one, long, max_age_ms=60_000)
        at_rest = {pid: ticks_of(pid) for pid in query_processes(one)}
        wait_until(lambda: any(ticks_of(pid) - ticks > 20 for pid, ticks in at_rest.items()) or stayed.done())
    assert stayed.result().json() == [{"n": 57_142_857}]


@contextmanager
def left_in_the_middle(one: Served, method: str, sql: str) -> Iterator[socket.socket]:
    """A request whose caller leaves at the end of the block."""
    with socket.create_connection(("127.0.0.1", urlsplit(one.url).port)) as connection:
        body = json.dumps({"sql": sql, "max_age_ms": 60_000})
        path = f"/v1/sql?{urlencode({'q': sql, 'max_age_ms': 60_000})}" if method == "GET" else "/v1/sql"
        sent = "" if method == "GET" else body
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(sent)}\r\n\r\n"
        connection.sendall((head + sent).encode())
        yield connection
