"""Polls of a statement: the server process answers them from what it kept, and a run ends with its last client."""

from __future__ import annotations

import gzip
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest

from stateline.server.guard.tokens import hash_of
from support.processes.query_server import OwningWorker
from support.processes.serve_process import Served, halt, served, until_ready, wait_until
from support.processes.sql_processes import ENDLESS, busy, query_processes, sent, ticks_by_process, ticks_of
from support.run.length import long_only
from support.run.patience import HANGING_S

COUNT = "select count(*) as n from aircraft"
KEPT_MS = 60_000


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwningWorker]:
    directory = tmp_path_factory.mktemp("polls") / "state"
    directory.mkdir()
    worker = OwningWorker(directory)
    worker.put_all({f"N{number:04d}": {"seats": number} for number in range(300)})
    worker.commit()
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def one(worker: OwningWorker) -> Iterator[Served]:
    directory = worker.application.parent
    tokens = directory.parent / "tokens.json"
    given = [{"name": name, "sha256": hash_of(name).hex(), "stores": stores}
             for name, stores in (("first", "*"), ("second", "*"), ("some", ["counts"]))]  # fmt: skip
    tokens.write_text(json.dumps({"tokens": given}))
    tokens.chmod(0o600)
    settings = ("server.scan.processes=1", f"server.tokens.file={tokens}")
    with served(directory, *settings) as running:
        until_ready(running)
        wait_until(lambda: asked(running, "select 1").status_code == 200)
        yield running


def asked(one: Served, sql: str, token: str = "first", timeout: float = HANGING_S, **members: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    body = {"sql": sql, "max_age_ms": KEPT_MS, **members}
    return httpx.post(f"{one.url}/v1/sql", json=body, headers=headers, timeout=timeout)


@contextmanager
def scans_halted(one: Served) -> Iterator[None]:
    pid = one.scans()[0]  # a child has its arguments for a moment
    halt(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def queries_halted(one: Served) -> Iterator[None]:
    found = query_processes(one)
    assert found
    for pid in found:
        halt(pid)
    try:
        yield
    finally:
        for pid in found:
            with suppress(ProcessLookupError):  # one whose client has left is killed
                os.kill(pid, signal.SIGCONT)


def test_a_result_is_not_made_again_until_a_commit(one: Served, worker: OwningWorker) -> None:
    sql = "select sum((value->>'seats')::int) as seats from aircraft"
    first = asked(one, sql, max_age_ms=1)
    with queries_halted(one):
        again = asked(one, sql, max_age_ms=1)
        assert (again.json(), again.headers["etag"]) == (first.json(), first.headers["etag"])
        enveloped = asked(one, sql, max_age_ms=1, details="all").json()
        assert (enveloped["rows"], enveloped["read_at"] > time.time() * 1000 - KEPT_MS) == (first.json(), True)
    with queries_halted(one), pytest.raises(httpx.ReadTimeout):
        asked(one, sql, max_age_ms=0, timeout=1.0)
    assert asked(one, sql, max_age_ms=1).json() == first.json()
    worker.put("N0001", {"seats": 1_001})
    worker.commit()
    with queries_halted(one), pytest.raises(httpx.ReadTimeout):
        asked(one, sql, max_age_ms=1, timeout=1.0)
    assert asked(one, sql, max_age_ms=1).json() == [{"seats": first.json()[0]["seats"] + 1_000}]
    worker.put("N0001", {"seats": 1})
    worker.commit()


@pytest.mark.parametrize(
    "sql",
    [
        "select count(*), now() from aircraft",
        pytest.param("select sum(random()) from aircraft", marks=long_only("it is told in the same way")),
    ],
)
def test_a_statement_with_the_time_or_with_chance_is_made_again(one: Served, sql: str) -> None:
    asked(one, sql, max_age_ms=1)
    with queries_halted(one), pytest.raises(httpx.ReadTimeout):
        asked(one, sql, max_age_ms=1, timeout=1.0)


def test_a_poll_is_answered_without_the_scan_process(one: Served) -> None:
    first = asked(one, COUNT)
    with scans_halted(one):
        again, of_another = asked(one, COUNT), asked(one, COUNT, "second")
        headers = {"Authorization": "Bearer first", "If-None-Match": first.headers["etag"]}
        parameters = {"q": COUNT, "max_age_ms": str(KEPT_MS)}
        same = httpx.get(f"{one.url}/v1/sql", params=parameters, headers=headers, timeout=HANGING_S)
    for each in (again, of_another):
        assert (each.status_code, each.json()) == (200, [{"n": 300}])
        named = ("content-type", "stateline-position", "stateline-isolation-level", "stateline-cut", "etag")
        assert [each.headers[name] for name in named] == [first.headers[name] for name in named]
        assert int(each.headers["age"]) >= int(first.headers["age"])
        assert "stateline-read-at" not in each.headers
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", first.headers["etag"])


OTHERS: list[dict[str, Any]] = [
    {"max_age_ms": 0},
    {"format": "csv"},
    {"details": "all"},
    {"require_active": True},
    {"token": "some"},
    {"isolation_level": "read_uncommitted"},
    {"as_of": 1_000},
    {"position_bound": {"flights": {"0": 1}}},
    {"max_staleness_ms": 5_000},
]


def test_a_request_that_differs_is_answered_anew(one: Served) -> None:
    sql = "select count(*) as n from information_schema.tables"
    asked(one, sql)
    with scans_halted(one), ThreadPoolExecutor(len(OTHERS)) as pool:
        waiting = [pool.submit(asked, one, sql, **{"timeout": 1.0, **other}) for other in OTHERS]
        for other, each in zip(OTHERS, waiting, strict=True):
            assert isinstance(each.exception(), httpx.ReadTimeout), other


def test_an_envelope_says_when_the_rows_were_read(one: Served) -> None:
    first = asked(one, COUNT, details="all").json()
    with scans_halted(one):
        again = asked(one, COUNT, details="all")
    assert again.json() == first
    assert first["read_at"] > 0
    assert "etag" not in again.headers


def test_a_large_answer_is_kept_as_it_was_compressed(one: Served) -> None:
    sql = "select key, value from aircraft order by key"
    rows = asked(one, sql).json()
    with scans_halted(one), httpx.Client(timeout=HANGING_S) as client:
        headers = {"Authorization": "Bearer first", "Accept-Encoding": "gzip"}
        body = {"sql": sql, "max_age_ms": KEPT_MS}
        with client.stream("POST", f"{one.url}/v1/sql", json=body, headers=headers) as answer:
            sent = b"".join(answer.iter_raw())
        assert answer.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(sent)) == rows


@pytest.mark.parametrize("method", [pytest.param("GET", marks=long_only("POST leads to the same run")), "POST"])
def test_a_run_goes_on_for_whoever_waits_and_ends_when_nobody_does(one: Served, method: str) -> None:
    sql, before = f"{ENDLESS} -- {method}", ticks_by_process(one)
    first, second = (sent(one, sql, "first", method) for _ in range(2))
    wait_until(lambda: bool(busy(one, before)))
    first.close()
    (pid,) = busy(one, before)
    ticks = ticks_of(pid)
    wait_until(lambda: ticks_of(pid) > ticks + 50)
    assert busy(one, before) == {pid}
    second.close()
    wait_until(lambda: pid not in query_processes(one))


@long_only("it waits for twenty seconds, and the next test has one that is gone")
def test_a_scan_process_that_hangs_holds_up_its_callers_little_longer_than_their_statements_may_run(
    one: Served,
) -> None:
    with scans_halted(one), ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(asked, one, COUNT, max_age_ms=age, timeout_ms=100) for age in (0, 1)]
        for answer in [each.result() for each in waiting]:
            assert (answer.status_code, answer.json()["reason"]) == (503, "NOT_READY"), answer.text
            assert "gave no answer within 20.2 s" in answer.json()["detail"]
    assert asked(one, COUNT, max_age_ms=0).json() == [{"n": 300}]


def test_a_statement_waits_for_the_scan_process_until_its_deadline(one: Served) -> None:
    killed = one.scans()[0]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: killed not in one.scans())
    assert asked(one, COUNT, max_age_ms=0).json() == [{"n": 300}]
    for socket_of_scans in one.log.parent.glob("*/servers/*.scans-*.sock"):
        socket_of_scans.unlink()
    refused = asked(one, COUNT, max_age_ms=0, timeout_ms=200)
    assert (refused.status_code, refused.json()["reason"]) == (503, "NOT_READY")
    headers = {"Authorization": "Bearer first"}
    assert httpx.get(f"{one.url}/v1/stores/aircraft/keys/N0001", headers=headers, timeout=HANGING_S).status_code == 200
