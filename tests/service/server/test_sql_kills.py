"""Processes that end in the middle of a statement: a clear error, and right answers afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from support.processes.query_server import OwningWorker
from support.processes.serve_process import Served, served, until_ready, wait_until
from support.processes.sql_processes import ENDLESS, busy, query_processes, sent, ticks_by_process, ticks_of
from support.run.length import long_only
from support.run.patience import HANGING_S

ROWS = 200
COUNT = "select count(*) as n from aircraft"


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("sql-kills") / "state"
    directory.mkdir()
    worker = OwningWorker(directory)
    try:
        worker.put_all({f"N{number:05d}": {"seats": number} for number in range(ROWS)})
        worker.commit()
        with served(directory, "server.scan.processes=1") as running:
            until_ready(running)
            wait_until(lambda: bool(running.scans()))
            yield running
    finally:
        worker.close()


def asked(one: Served, sql: str, **members: object) -> httpx.Response:
    return httpx.post(f"{one.url}/v1/sql", json={"sql": sql, "max_age_ms": 0, **members}, timeout=HANGING_S)


@long_only("test_query_processes.py has one that dies, and test_sql_polls.py a scan process that is killed")
@pytest.mark.parametrize("killed", [query_processes, Served.scans], ids=["query process", "scan process"])
def test_a_statement_whose_process_is_killed_fails_and_the_next_one_is_right(
    one: Served, killed: Callable[[Served], Iterable[int]]
) -> None:
    wait_until(lambda: asked(one, COUNT).status_code == 200)
    wait_until(lambda: bool(query_processes(one)))
    before = ticks_by_process(one)

    def worked(pid: int) -> int:
        return ticks_of(pid) - before.get(pid, 0)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(asked, one, ENDLESS)
        wait_until(lambda: running.done() or bool(busy(one, before)))
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
        wait_until(lambda: not before.keys() & query_processes(one))


@long_only("test_sql_polls.py has two callers of a statement, of which one leaves")
def test_a_statement_goes_on_while_another_caller_waits(one: Served) -> None:
    long = "select count(*) as n from range(400000000) a, aircraft b where b.key = 'N00001' and a.range % 7 = 3"
    with sent(one, long, max_age_ms=60_000), ThreadPoolExecutor(1) as pool:
        stayed = pool.submit(asked, one, long, max_age_ms=60_000)
        before = ticks_by_process(one)
        wait_until(lambda: any(ticks_of(pid) - ticks > 20 for pid, ticks in before.items()) or stayed.done())
    assert stayed.result().json() == [{"n": 57_142_857}]
