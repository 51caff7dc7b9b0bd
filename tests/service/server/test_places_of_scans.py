"""A place of `server.scans.max` is given back however its answer ends. Here is one place, and a scan process."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from service.server.test_large_reads import PAGE, STREAM, scan_process, scene, sockets
from support.processes.query_server import OwningWorker
from support.processes.serve_process import Served, wait_until
from support.processes.sql_processes import ENDLESS, busy, is_answered, sent, ticks_by_process
from support.run.length import long_only
from support.run.patience import HANGING_S

LONG = 5_000
"""Rows that no buffer on the way takes."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, OwningWorker]]:
    with scene(tmp_path_factory.mktemp("places") / "state", "server.scans.max=1") as (one, worker):
        for at in range(0, LONG, 1_000):
            worker.put_all({f"X{number:05d}": "x" * 8_000 for number in range(at, at + 1_000)})
        worker.commit()
        wait_until(lambda: statement(one, "select 1 as n").status_code == 200)
        yield one, worker


def statement(one: Served, sql: str) -> httpx.Response:
    return httpx.post(f"{one.url}/v1/sql", json={"sql": sql, "max_age_ms": 0}, timeout=HANGING_S)


def is_refused(one: Served) -> bool:
    answer = one.fresh(PAGE)
    assert answer.status_code in (200, 429), answer.text
    return answer.status_code == 429


@contextmanager
def streaming(one: Served) -> Iterator[Iterator[bytes]]:
    """The pieces of an answer that has begun."""
    with httpx.Client(timeout=HANGING_S) as client, client.stream("GET", f"{one.url}{STREAM}") as answer:
        pieces = answer.iter_raw(4_096)
        next(pieces)
        assert is_refused(one)
        yield pieces


@contextmanager
def running_statement(one: Served) -> Iterator[socket.socket]:
    """A statement without an end, which has the place and runs. Its caller leaves at the end of the block."""
    before = ticks_by_process(one)
    while True:
        with sent(one, ENDLESS, max_age_ms=0) as connection:
            wait_until(lambda: is_answered(connection) or is_refused(one))
            if is_answered(connection):
                assert b" 429 " in connection.recv(4_096)  # a look at the place had it just then
                continue
            wait_until(lambda: bool(busy(one, before)))  # until the scan process has read it, another one may answer
            yield connection
            return


def kill_scans(one: Served) -> None:
    """Kill the scan process, and wait until another one is there."""
    pid = scan_process(one)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: scan_process(one) not in (None, pid))


def test_when_the_client_leaves_in_the_middle(running: tuple[Served, OwningWorker]) -> None:
    one, _ = running
    with streaming(one):
        pass
    wait_until(lambda: not is_refused(one))
    with running_statement(one):
        pass
    wait_until(lambda: not is_refused(one))


@pytest.mark.parametrize(
    "fail",
    [
        lambda one: one.fresh("/v1/stores/none/range?format=ndjson"),
        lambda one: one.fresh(f'{STREAM}&position_bound={{"flights":{{"0":1000000}}}}'),
        lambda one: one.fresh(f"{STREAM}&order=sideways"),
        lambda one: one.fresh(f"{PAGE}&cursor=none"),
        lambda one: statement(one, "select none"),
        lambda one: statement(one, "select (value->>'none')::int / 0 from aircraft where error(key)"),
        lambda one: httpx.post(f"{one.url}/v1/stores/aircraft/query", content=b"{", timeout=HANGING_S),
    ],
)
def test_when_the_request_fails(running: tuple[Served, OwningWorker], fail: Callable[[Served], httpx.Response]) -> None:
    one, _ = running
    for _ in range(3):
        answer = fail(one)
        assert answer.status_code >= 400, answer.text
        assert answer.status_code != 429, answer.text
    assert not is_refused(one)


@long_only("test_sql_polls.py and test_large_reads.py kill it and ask again")
def test_when_the_scan_process_is_killed(running: tuple[Served, OwningWorker]) -> None:
    one, worker = running
    with streaming(one) as pieces:
        before = sockets(worker.application.parent)
        kill_scans(one)
        with pytest.raises(httpx.RemoteProtocolError):
            for _ in pieces:
                pass
    wait_until(lambda: not is_refused(one))
    wait_until(lambda: bool(sockets(worker.application.parent) - before))
    with running_statement(one) as connection:
        kill_scans(one)
        assert b"NOT_READY" in connection.recv(65_536)
    wait_until(lambda: not is_refused(one))
