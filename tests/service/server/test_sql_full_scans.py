"""A full scan of more rows than may be read is refused before it begins, as soon as that is certain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any, cast

import httpx
import pytest

from service.server.test_sql import KINDS_AT_MS, UUID_KEY, kinds_app
from service.server.test_sql import put as put_row
from stateline import serdes
from stateline.server.guard.tokens import hash_of
from stateline.server.sql.reading import RowAccount, WantedTable
from stateline_store import SqlTooLargeError
from support.processes.query_server import PARTITIONS, OwningWorker, wait_until
from support.processes.served_here import served_here
from support.run.length import long_only, long_or_short

MOST = 1_000
STORES = ["id-windows", "prices", "docs"]
BEFORE, MEANWHILE = "The statement reads all of 'aircraft'", "The statement reads more than 1,000 rows"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[httpx.Client, OwningWorker]]:
    worker = OwningWorker(tmp_path / "state")
    try:
        put(worker, range(MOST))
        with served_here(tmp_path / "state", "server.scan.processes=0", f"sql.max.rows.scanned={MOST}") as here:
            yield here.client, worker
    finally:
        worker.close()


def put(worker: OwningWorker, numbers: Any, value: Any = 1) -> None:
    worker.put_all({f"N{number:05d}": value for number in numbers})
    worker.commit()


def compact(worker: OwningWorker) -> None:
    """Have each row once, in files, and show them to servers, which look at files when something is committed."""
    for partition in range(PARTITIONS):
        engine: Any = worker.stores["aircraft", partition]._engine
        worker.run(engine._db.flush)
        worker.run(partial(engine._db.compact_range, None, None))
    put(worker, range(30))  # of all partitions


def asked(client: httpx.Client, sql: str = "select count(*) as n from aircraft") -> Any:
    answer = client.post("/v1/sql", json={"sql": sql, "max_age_ms": 0})
    if answer.status_code == 200:
        return answer.json()[0]["n"]
    assert (answer.status_code, answer.json()["reason"]) == (413, "SQL_TOO_LARGE"), answer.text
    return answer.json()["detail"]


def test_a_row_too_many_in_files_is_refused_at_once(running: tuple[httpx.Client, OwningWorker]) -> None:
    client, worker = running
    compact(worker)
    assert asked(client) == MOST
    put(worker, range(MOST, MOST + 40))
    compact(worker)
    wait_until(lambda: asked(client).startswith(BEFORE))
    told = asked(client)
    assert "has more than 1,000 rows" in told
    assert "Narrow it: key = …" in told
    assert asked(client, "select count(*) as n from aircraft where key < 'N00100'") == 100


def test_a_limit_and_exists_begin_and_read_what_they_need(running: tuple[httpx.Client, OwningWorker]) -> None:
    client, worker = running
    put(worker, range(3 * MOST))
    compact(worker)
    wait_until(lambda: asked(client).startswith(BEFORE))
    assert asked(client, "select exists(select 1 from aircraft) as n") is True
    limited = client.post("/v1/sql", json={"sql": "select key, value from aircraft limit 5", "max_age_ms": 0})
    assert len(limited.json()) == 5, limited.text


def test_a_table_that_has_shrunk_is_read_again(running: tuple[httpx.Client, OwningWorker]) -> None:
    client, worker = running
    put(worker, range(MOST, MOST + 10))
    assert asked(client).startswith(MEANWHILE)
    put(worker, range(MOST // 2, MOST + 10), None)
    for value in range(3):
        put(worker, range(MOST // 2), value)
    assert asked(client) == MOST // 2


def test_a_few_rows_that_are_written_all_the_time_are_few(running: tuple[httpx.Client, OwningWorker]) -> None:
    client, worker = running
    put(worker, range(10, MOST), None)
    for value in range(long_or_short(40, 12) * MOST // 10):
        worker.put_all({f"N{number:05d}": value for number in range(10)})
    worker.commit()
    assert asked(client) == 10


@long_only("the test before has a few that are written all the time")
def test_rows_that_were_written_often_count_once(running: tuple[httpx.Client, OwningWorker]) -> None:
    client, worker = running
    for value in range(8):
        put(worker, range(MOST), value)
    assert client.get("/v1/stores/aircraft/count").json()["approximate_entries"] > 5 * MOST
    assert asked(client) == asked(client) == MOST
    compact(worker)
    put(worker, range(0, MOST, 2), None)
    assert asked(client) == MOST // 2


def test_windows_and_versions_beyond_the_limit_are_named_with_their_rows(tmp_path: Path) -> None:
    app = kinds_app()
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps({"tokens": [{"name": "some", "sha256": hash_of("some").hex(), "stores": STORES}]}))
    tokens.chmod(0o600)
    worker = OwningWorker(tmp_path / "state", app=app)
    one = serdes.int64.serialize(1)
    try:
        for number in range(6):
            put_row(worker, "id-windows", 0, UUID_KEY.encode(), one, KINDS_AT_MS + number * 60_000)
            put_row(worker, "prices", 0, b"p", one, KINDS_AT_MS + number)
        put_row(worker, "docs", 0, b"{}", one)
        worker.commit()
        settings = ("server.scan.processes=0", "sql.max.rows.scanned=5", f"server.tokens.file={tokens}")
        with served_here(tmp_path / "state", *settings, app=app, until_ready=False) as here:
            here.client.headers["Authorization"] = "Bearer some"
            wait_until(lambda: here.client.get("/readyz").status_code == 200)
            of_windows = asked(here.client, 'select count(*) as n from "id-windows"')
            assert of_windows == (
                "The statement reads more than 5 rows (sql.max.rows.scanned), so far 6 of 'id-windows'. Narrow it by "
                "key or time."
            )
            of_key = f"select count(*) as n from \"id-windows\" where key = '{UUID_KEY}'"
            assert "so far 6 of 'id-windows'. " in asked(here.client, of_key)
            for where in ("", " where key = 'p'"):
                assert "so far 6 of 'prices_versions'. " in asked(
                    here.client, f"select count(*) as n from prices_versions{where}"
                )
            both = asked(here.client, 'select count(*) as n from docs, "id-windows"')
            assert "6 of 'id-windows'" in both
    finally:
        worker.close()


def test_rows_beyond_the_limit_are_counted_for_each_table() -> None:
    account, tables = RowAccount(5), [cast(WantedTable, Namespace(read=Namespace(table=name))) for name in "ab"]
    account.add(tables[0], 1)
    with pytest.raises(SqlTooLargeError, match=r"so far 5 of 'b', 1 of 'a'\. "):
        account.add(tables[1], 5)
    assert account.rows == 6
