"""Statements beyond a limit: how many run at a time, of all callers and of one, and how long."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateline.server.guard.tokens import hash_of
from support.processes.query_server import OwningWorker
from support.processes.serve_process import Served, served, until_ready, wait_until
from support.processes.sql_processes import ENDLESS, is_answered, query_processes, sent
from support.run.length import long_only
from support.run.patience import HANGING_S


@contextmanager
def server(directory: Path, *settings: str) -> Iterator[Served]:
    state = directory / "state"
    tokens = directory / "tokens.json"
    given = [{"name": name, "sha256": hash_of(name).hex(), "stores": "*"} for name in ("first", "second")]
    tokens.write_text(json.dumps({"tokens": given}))
    tokens.chmod(0o600)
    worker = OwningWorker(state)
    try:
        worker.put_all({f"N{number:04d}": {"seats": number} for number in range(30)})
        worker.commit()
        every = ("server.scan.processes=1", f"server.tokens.file={tokens}", *settings)
        with served(state, *every) as one:
            until_ready(one)
            wait_until(lambda: asked(one, "select 1").status_code == 200)
            yield one
    finally:
        worker.close()


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Four places of scans, of which a caller has two, and one statement at a time."""
    settings = ("sql.processes=1", "server.scans.max=4", "server.caller.share.percent=50")
    with server(tmp_path_factory.mktemp("sql-limits"), *settings) as running:
        yield running


def asked(one: Served, sql: str, token: str = "first", **members: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    body = {"sql": sql, "max_age_ms": 0, **members}
    return httpx.post(f"{one.url}/v1/sql", json=body, headers=headers, timeout=HANGING_S)


@contextmanager
def begun(one: Served, token: str, count: int) -> Iterator[None]:
    """So many statements of this caller have taken their places: one more is refused. They end with the block."""
    with ExitStack() as held:

        def begin(number: int) -> socket.socket:
            return held.enter_context(sent(one, f"{ENDLESS} -- {token} {number}", token, max_age_ms=0))

        running = [begin(number) for number in range(count)]

        def have_places() -> bool:
            for number, connection in enumerate(running):
                if is_answered(connection):  # the request below had a place just then
                    assert b" 429 " in connection.recv(4_096)
                    running[number] = begin(number)
            return "scans are yours" in asked(one, "select 1", token, timeout_ms=100).text

        wait_until(have_places)
        yield


def test_a_caller_has_its_share_and_is_told_when_to_come_back(one: Served) -> None:
    with begun(one, "first", 2):
        refused = asked(one, "select 1", "first")
        waited = asked(one, "select 1", "second", timeout_ms=300)
        for answer, why in ((refused, "2 scans are yours"), (waited, "1 statements run already")):
            assert (answer.status_code, answer.json()["reason"]) == (429, "TOO_MANY_REQUESTS"), answer.text
            assert answer.headers["retry-after"] == "1"
            assert why in answer.json()["detail"]
    wait_until(lambda: asked(one, "select 1 as n", "first").json() == [{"n": 1}])


def test_a_caller_has_its_share_without_a_scan_process_too(tmp_path: Path) -> None:
    settings = ("sql.processes=1", "server.scans.max=4", "server.caller.share.percent=50", "server.scan.processes=0")
    with server(tmp_path, *settings) as alone, begun(alone, "first", 2):
        refused = asked(alone, "select 1", "first")
        assert (refused.status_code, refused.json()["reason"]) == (429, "TOO_MANY_REQUESTS"), refused.text
        assert "1 statements run already" in asked(alone, "select 1", "second", timeout_ms=300).text


def test_a_caller_whose_statements_take_long_leaves_a_process_to_others(tmp_path: Path) -> None:
    with server(tmp_path, "sql.processes=2") as two, ExitStack() as running:
        for number in range(3):
            running.enter_context(sent(two, f"{ENDLESS} -- {number}", "first", max_age_ms=0))
        wait_until(lambda: "statements are yours" in asked(two, "select 1", timeout_ms=100).text)
        assert asked(two, "select 1 as n", "second").json() == [{"n": 1}]


def test_head_has_the_headers_of_get(one: Served) -> None:
    sql = "select count(*) as n from aircraft"
    given = {
        "params": {"q": sql, "max_age_ms": "60000"},
        "headers": {"Authorization": "Bearer first"},
        "timeout": HANGING_S,
    }
    got = httpx.get(f"{one.url}/v1/sql", **given)  # type: ignore[arg-type]
    head = httpx.head(f"{one.url}/v1/sql", **given)  # type: ignore[arg-type]
    assert (got.status_code, head.status_code, head.content) == (200, 200, b"")
    named = ("content-type", "content-length", "etag", "stateline-position", "stateline-cut")
    assert [head.headers.get(name) for name in named] == [got.headers.get(name) for name in named]
    given["headers"] = {"Authorization": "Bearer first", "If-None-Match": got.headers["etag"]}
    assert httpx.head(f"{one.url}/v1/sql", **given).status_code == 304  # type: ignore[arg-type]


def test_a_statement_in_q_and_in_sql_is_refused(one: Served) -> None:
    headers = {"Authorization": "Bearer first"}
    both = httpx.get(
        f"{one.url}/v1/sql", params={"q": "select 1", "sql": "select 2"}, headers=headers, timeout=HANGING_S
    )
    assert (both.status_code, both.json()["reason"]) == (422, "INVALID_ARGUMENT"), both.text
    assert "give one of them" in both.json()["detail"]
    long = httpx.get(f"{one.url}/v1/sql", params={"sql": "select 1 as n"}, headers=headers, timeout=HANGING_S)
    assert long.json() == [{"n": 1}]


def test_no_process_of_a_statement_is_left_when_its_deadline_is_told(one: Served) -> None:
    wait_until(lambda: len(query_processes(one)) == 1)
    (before,) = query_processes(one)
    answer = asked(one, ENDLESS, timeout_ms=300)
    assert (answer.status_code, answer.json()["reason"]) == (504, "SQL_TIMEOUT")
    assert before not in query_processes(one)


@long_only("few run two servers over one directory, and each of them counts by itself")
def test_servers_of_one_directory_keep_to_their_own_limits(tmp_path: Path) -> None:
    count = "select count(*) as n from aircraft"
    with server(tmp_path, "sql.max.rows.scanned=1000") as large:
        tokens = f"server.tokens.file={tmp_path / 'tokens.json'}"
        with served(tmp_path / "state", "server.scan.processes=1", "sql.max.rows.scanned=10", tokens) as small:
            until_ready(small)
            wait_until(lambda: asked(small, "select 1").status_code == 200 and bool(small.scans()))
            for _ in range(8):
                assert asked(large, count).json() == [{"n": 30}]
                refused = asked(small, count)
                assert (refused.status_code, refused.json()["reason"]) == (413, "SQL_TOO_LARGE"), refused.text
