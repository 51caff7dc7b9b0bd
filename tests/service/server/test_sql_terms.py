"""What a statement may read: staged rows, rows up to a bound, stores in memory, and the tables of a token alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from stateline.query.values import Terms
from stateline.server.guard.tokens import hash_of
from stateline.server.routing.query_routing import QueryRouting
from stateline.server.state.served_stores import ServedStore
from stateline_store import Position, StoreState
from support.processes.query_server import PARTITIONS, OwningWorker, wait_until
from support.processes.served_here import Here, served_here

NAMES = {"N1": 1, "N2": 2, "N3": 3}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Here, OwningWorker]]:
    directory = tmp_path_factory.mktemp("sql-terms")
    tokens = directory / "tokens.json"
    tokens.write_text(json.dumps({"tokens": [
        {"name": "all", "sha256": hash_of("all").hex(), "stores": "*"},
        {"name": "some", "sha256": hash_of("some").hex(), "stores": ["counts"]},
        {"name": "both", "sha256": hash_of("both").hex(), "stores": ["counts", "places"]},
    ]}))  # fmt: skip
    tokens.chmod(0o600)
    worker = OwningWorker(directory / "state")
    try:
        worker.put_all({key: {"seats": seats} for key, seats in NAMES.items()})
        worker.commit()
        settings = ("server.scan.processes=0", f"server.tokens.file={tokens}")
        with served_here(directory / "state", *settings, until_ready=False) as here:
            here.client.headers["Authorization"] = "Bearer all"
            wait_until(lambda: here.client.get("/readyz").status_code == 200)
            yield here, worker
    finally:
        worker.close()


def asked(here: Here, sql: str, token: str = "all", **members: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    return here.client.post("/v1/sql", json={"sql": sql, "max_age_ms": 0, **members}, headers=headers)


@pytest.mark.parametrize("where", ["", " where key in ('N1', 'new')", " where key >= 'N'"])
def test_staged_rows_are_seen_uncommitted_alone(running: tuple[Here, OwningWorker], where: str) -> None:
    here, worker = running
    sql = f"select key, (value->>'seats')::int as seats from aircraft{where} order by key"
    before = asked(here, sql).json()
    place = worker.put("N1", {"seats": 100})
    worker.put("new", {"seats": 5})
    try:
        assert asked(here, sql).json() == before
        bound = {"flights": {str(place.partition): worker.offset(place.partition)}}
        with_bound = asked(here, sql, isolation_level="read_uncommitted", position_bound=bound, wait_ms=60_000)
        assert with_bound.headers["stateline-isolation-level"] == "read_uncommitted"
        staged = {row["key"]: row["seats"] for row in with_bound.json()}
        assert (staged["N1"], staged["new"]) == (100, 5)
        refused = asked(here, sql, position_bound=bound)
        assert (refused.status_code, refused.json()["reason"]) == (412, "NOT_UP_TO_BOUND")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(asked, here, sql, position_bound=bound, wait_ms=60_000)
            worker.commit()
            assert {row["key"]: row["seats"] for row in waiting.result().json()} == staged
    finally:
        worker.put("N1", {"seats": 1})
        worker.put("new", None)
        worker.commit()


def test_a_store_in_memory_is_read_from_its_worker(running: tuple[Here, OwningWorker]) -> None:
    here, _ = running
    assert asked(here, "select count(*) as n from cache").json() == [{"n": len(NAMES)}]
    both = asked(here, "select a.key from aircraft a join cache c on a.key = c.key order by 1")
    assert [row["key"] for row in both.json()] == sorted(NAMES)
    assert both.headers["stateline-cut"] == "false"
    told = asked(here, "select a.key from aircraft a, cache c", details="all").json()
    assert (told["cut"], told["no_cut"]) == (False, "No snapshot has global tables and stores in memory: cache.")


def test_rows_may_not_be_staler_than_asked(running: tuple[Here, OwningWorker]) -> None:
    here, _ = running
    assert asked(here, "select key from aircraft where key = 'N1'", max_staleness_ms=0).json() == [{"key": "N1"}]
    assert asked(here, "select count(*) as n from aircraft", max_staleness_ms=0).json() == [{"n": len(NAMES)}]


@pytest.mark.parametrize(
    ("sql", "reads"),
    [
        ("select key from aircraft where key = 'N1'", "ask"),
        ("select key from aircraft where key >= 'N1'", "scan_all"),
        ("select a.key from aircraft a, counts c where a.key = 'N1' and c.key = 1", "ask"),
    ],
)
def test_every_read_keeps_to_the_terms_of_its_statement(
    running: tuple[Here, OwningWorker], monkeypatch: pytest.MonkeyPatch, sql: str, reads: str
) -> None:
    here, worker = running
    seen: list[Terms] = []
    read = getattr(QueryRouting, reads)

    async def noted(self: QueryRouting, store: ServedStore, terms: Terms, *more: Any) -> Any:
        seen.append(terms)
        return await read(self, store, terms, *more)

    monkeypatch.setattr(QueryRouting, reads, noted)
    offsets = {partition: worker.offset(partition) for partition in range(PARTITIONS)}
    bound = {"flights": {str(partition): offset for partition, offset in offsets.items() if offset >= 0}}
    answer = asked(here, sql, require_active=True, max_staleness_ms=5_000, position_bound=bound)
    assert answer.status_code == 200, answer.text
    assert seen
    for terms in seen:
        assert terms.require_active
        assert terms.bound.position == Position.from_json(bound)
        assert terms.max_staleness_ms == 5_000 or "counts" in sql  # a cut is of owners


def test_a_copy_that_is_not_active_is_refused_if_the_owner_must_answer(running: tuple[Here, OwningWorker]) -> None:
    here, worker = running
    sql = "select count(*) as n from aircraft"
    worker.set_state(StoreState.STANDBY)
    try:
        wait_until(lambda: asked(here, sql, require_active=True).status_code == 503)
        assert asked(here, sql, require_active=True).json()["reason"] == "NOT_ACTIVE"
        assert asked(here, sql).json() == [{"n": len(NAMES)}]
    finally:
        worker.set_state(StoreState.ACTIVE)
    wait_until(lambda: asked(here, sql, require_active=True).status_code == 200)


def test_a_cut_that_was_made_before_a_bound_is_not_shared(running: tuple[Here, OwningWorker]) -> None:
    here, worker = running
    sql = "select (select count(*) from aircraft) as n, (select count(*) from counts) as m"
    assert asked(here, sql, max_age_ms=10_000).json() == [{"n": len(NAMES), "m": 0}]
    place = worker.put("new", {"seats": 5})
    worker.commit()
    try:
        bound = {"flights": {str(place.partition): worker.offset(place.partition)}}
        again = asked(here, f"{sql} -- again", max_age_ms=10_000, position_bound=bound, wait_ms=60_000)
        assert (again.json(), again.headers["stateline-cut"]) == ([{"n": len(NAMES) + 1, "m": 0}], "true")
    finally:
        worker.put("new", None)
        worker.commit()


def test_a_cut_that_is_staler_than_asked_is_not_shared(running: tuple[Here, OwningWorker]) -> None:
    here, worker = running
    sql = "select (select count(*) from aircraft) as n, (select count(*) from places) as m"
    assert asked(here, sql, max_age_ms=10_000).json() == [{"n": len(NAMES), "m": 0}]
    worker.put("new", {"seats": 5})
    worker.commit()
    try:
        assert asked(here, f"{sql} -- shared", max_age_ms=10_000).json() == [{"n": len(NAMES), "m": 0}]
        again = asked(here, f"{sql} -- again", max_age_ms=10_000, max_staleness_ms=0)
        assert (again.json(), again.headers["stateline-cut"]) == ([{"n": len(NAMES) + 1, "m": 0}], "true")
    finally:
        worker.put("new", None)
        worker.commit()


def test_what_is_shared_shows_each_token_the_rows_of_its_own_tables(running: tuple[Here, OwningWorker]) -> None:
    here, _ = running
    catalog = "select table_name from information_schema.tables order by 1"
    everything = {row["table_name"] for row in asked(here, catalog, max_age_ms=60_000).json()}
    assert "aircraft" in everything
    assert asked(here, catalog, "some", max_age_ms=60_000).json() == [{"table_name": "counts"}]
    of_cut = "select (select count(*) from counts) as n, (select count(*) from {}) as m"
    large = "select (select count(*) from counts), (select count(*) from places), (select count(*) from aircraft)"
    assert asked(here, large, max_age_ms=10_000).status_code == 200
    assert asked(here, of_cut.format("places"), "both", max_age_ms=10_000).json() == [{"n": 0, "m": 0}]
    for token in ("both", "some"):
        refused = asked(here, of_cut.format("aircraft"), token, max_age_ms=10_000)
        assert (refused.status_code, refused.json()["reason"]) == (422, "SQL_INVALID")
        assert "does not exist" in refused.json()["detail"]


@pytest.mark.parametrize(
    "sql",
    [
        "show tables",
        "show all tables",
        "select table_name from information_schema.tables",
        "select table_name, column_name from information_schema.columns",
        "select table_name from duckdb_tables()",
        "select table_name, column_name from duckdb_columns()",
        "select view_name from duckdb_views() where not internal",
        "select * from pg_catalog.pg_tables",
        "select relname from pg_catalog.pg_class",
        "select name from sqlite_master",
    ],
)
def test_catalogs_list_the_tables_of_a_token_alone(running: tuple[Here, OwningWorker], sql: str) -> None:
    here, _ = running
    everything, some = asked(here, sql), asked(here, sql, token="some")
    assert everything.status_code in (200, 403), everything.text
    assert some.status_code == everything.status_code, some.text
    if everything.status_code == 200:
        assert "aircraft" in everything.text or "view" in sql
        assert "counts" in some.text or "view" in sql
    for hidden in ("aircraft", "blobs", "places"):  # DuckDB has columns with "cache" in their names
        assert hidden not in some.text


@pytest.mark.parametrize(
    "sql",
    [
        "select * from aircrafts",
        "select * from aircraf",
        "select * from Aircraft_",
        "select aircraf.key from counts",
        "select * from counts, blob",
        'describe "aircraft_"',
        "describe aircraf",
        "summarize aircraf",
        "explain select * from aircraf",
        "select * from main.aircraf",
        "select * from memory.main.plac",
        "select * from query_table('aircraf')",
    ],
)
def test_messages_name_no_hidden_table(running: tuple[Here, OwningWorker], sql: str) -> None:
    here, _ = running
    answer = asked(here, sql, token="some")
    assert answer.status_code in (403, 422), answer.text
    told = answer.json()["detail"].replace(sql, "")
    told = told.replace("aircrafts", "").replace("aircraft_", "")
    assert not [name for name in ("aircraft", "places", "blobs", "cache") if name in told], told


def test_quoted_names_are_described_to_whoever_may_read_them(running: tuple[Here, OwningWorker]) -> None:
    here, _ = running
    columns = {row["column_name"] for row in asked(here, 'describe "aircraft"').json()}
    assert columns == {"key", "value", "timestamp"}
    refused = asked(here, 'describe "aircraft"', token="some")
    assert (refused.status_code, refused.json()["reason"]) == (422, "SQL_INVALID")
    assert {row["column_name"] for row in asked(here, 'describe "counts"', token="some").json()} == {"key", "value"}


def test_a_process_forgets_the_tables_of_other_rights(running: tuple[Here, OwningWorker]) -> None:
    here, _ = running
    for _ in range(3):
        assert asked(here, "select count(*) as n from aircraft").json() == [{"n": len(NAMES)}]
        assert "does not exist" in asked(here, "select count(*) from aircraft", token="some").json()["detail"]
