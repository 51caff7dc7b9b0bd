"""SQL over HTTP: one SELECT over the stores of a server, with what its rows are of."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import duckdb
import httpx
import pyarrow as pa
import pytest

from stateline import serdes, stores
from stateline.dsl.app import App
from stateline.server.guard.tokens import hash_of
from stateline.server.sql.answers import SqlResult
from stateline.server.sql.reading import OpenTable, TableReading
from stateline.server.sql.statements import Statements
from stateline_store import Windowed
from support.processes.query_server import OwningWorker, wait_until
from support.processes.served_here import Here, served_here
from support.run.patience import HANGING_S

ROWS = 500
SETTINGS = ("sql.max.rows=400", "sql.max.rows.scanned=5000")
VALUES: dict[str, dict[str, Any]] = {
    f"N{number:05d}": {"seats": number % 7, "maker": ["Airbus", "Boeing", None][number % 3], "range": number / 8}
    for number in range(ROWS)
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Here, OwningWorker]]:
    directory = tmp_path_factory.mktemp("sql")
    worker = OwningWorker(directory)
    try:
        worker.put_all(VALUES)
        worker.commit()
        with served_here(directory, "server.scan.processes=0", *SETTINGS) as here:
            yield here, worker
    finally:
        worker.close()


@pytest.fixture
def client(running: tuple[Here, OwningWorker]) -> httpx.Client:
    return running[0].client


def rows(client: httpx.Client, sql: str, **members: Any) -> list[dict[str, Any]]:
    answer = client.post("/v1/sql", json={"sql": sql, **members})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()
    return found


def refused(client: httpx.Client, sql: str, status: int, reason: str, **members: Any) -> str:
    answer = client.post("/v1/sql", json={"sql": sql, **members})
    assert (answer.status_code, answer.json()["reason"]) == (status, reason), answer.text
    detail: str = answer.json()["detail"]
    return detail


@pytest.mark.parametrize(
    ("sql", "params", "path"),
    [
        ("select '/home/x'::int", [], "/home/x"),
        ("select ($1::varchar)::int", ["/home/y"], "/home/y"),
        ("select /tmp/z", [], "/tmp/z"),
    ],
)
def test_an_error_shows_the_paths_of_the_statement_itself(
    client: httpx.Client, sql: str, params: list[str], path: str
) -> None:
    assert path in refused(client, sql, 422, "SQL_INVALID", params=params)


@pytest.mark.parametrize(
    "sql",
    [
        "select key, value->>'maker' as maker from aircraft where key = 'N00007'",
        "select key from aircraft where key in ('N00001', 'N00400', 'none') order by key",
        "select key from aircraft where key between 'N00010' and 'N00019' order by key desc",
        "select key from aircraft where key like 'N0012%' order by key",
        "select value->>'maker' as maker, sum((value->>'range')::double) as s from aircraft group by 1 order by 1",
        "select (value->>'seats')::int as seats, count(*) as n from aircraft "
        "where value->>'maker' = 'Airbus' group by 1 order by 1",
        "select key from aircraft order by (value->>'range')::double desc, key limit 20",
        "select count(*) as n from aircraft",
        "with big as (select key, value from aircraft where (value->>'seats')::int > 5) select count(*) as n from big",
        "select a.key from aircraft a join aircraft b on a.key = b.key where a.key < 'N00005' order by 1",
    ],
)
def test_rows_are_those_of_the_same_statement_over_a_table_of_the_input(client: httpx.Client, sql: str) -> None:
    table = pa.table({"key": list(VALUES), "value": [json.dumps(value) for value in VALUES.values()]})
    oracle = duckdb.connect()
    oracle.register("input", table)
    oracle.execute("create view aircraft as select key, value::json as value from input")
    expected = [
        dict(zip([d[0] for d in oracle.description], row, strict=True)) for row in oracle.execute(sql).fetchall()
    ]
    assert rows(client, sql) == expected


def test_values_have_the_types_of_their_store(client: httpx.Client) -> None:
    (row,) = rows(client, "select key, value, timestamp from aircraft where key = 'N00003'")
    assert row == {"key": "N00003", "value": VALUES["N00003"], "timestamp": "2013-02-27T21:20:00+00:00"}
    tables = {row["name"] for row in rows(client, "show tables")}
    assert tables == {"aircraft", "cache", "counts", "blobs", "places"}
    columns = {row["column_name"]: row["column_type"] for row in rows(client, "describe counts")}
    assert columns == {"key": "BIGINT", "value": "BIGINT"}


def test_parameters_are_values(client: httpx.Client) -> None:
    assert rows(client, "select key from aircraft where key = $1", params=["N00001"]) == [{"key": "N00001"}]
    by_name = rows(client, "select count(*) as n from aircraft where key < $last", params={"last": "N00010"})
    assert by_name == [{"n": 10}]
    hostile = "x' or '1'='1"
    assert rows(client, "select key from aircraft where key = $1", params=[hostile]) == []
    got = client.get("/v1/sql", params={"q": "select key from aircraft where key = $1", "params": '["N00002"]'})
    assert got.json() == [{"key": "N00002"}]


def test_every_format_has_the_same_rows(client: httpx.Client) -> None:
    sql = "select key, value, timestamp, null as nothing from aircraft where key < 'N00003' order by key"
    as_json = rows(client, sql)
    lines = client.post("/v1/sql", json={"sql": sql, "format": "ndjson"})
    assert [json.loads(line) for line in lines.text.splitlines()] == as_json
    arrow = client.post("/v1/sql", json={"sql": sql}, headers={"Accept": "application/vnd.apache.arrow.stream"})
    table = pa.ipc.open_stream(arrow.content).read_all()
    assert table.column("key").to_pylist() == [row["key"] for row in as_json]
    assert table.schema.names == ["key", "value", "timestamp", "nothing"]
    csv = client.post("/v1/sql", json={"sql": sql, "format": "csv"}).text.splitlines()
    assert csv[0] == "key,value,timestamp,nothing"
    assert csv[1] == 'N00000,"{""seats"": 0, ""maker"": ""Airbus"", ""range"": 0.0}",2013-02-27T21:20:00+00:00,'


def test_headers_and_envelope_say_what_the_rows_are_of(running: tuple[Here, OwningWorker]) -> None:
    here, worker = running
    answer = here.client.get("/v1/sql", params={"q": "select count(*) as n from aircraft", "max_age_ms": 0})
    position = json.loads(answer.headers["stateline-position"])
    assert position == {"flights": {str(p): worker.offset(p) for p in range(3)}}
    assert answer.headers["stateline-isolation-level"] == "read_committed"
    assert (answer.headers["stateline-cut"], answer.headers["age"]) == ("false", "0")
    again = here.client.get(
        "/v1/sql", params={"q": "select count(*) as n from aircraft"}, headers={"If-None-Match": answer.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")
    told = here.client.post("/v1/sql", json={"sql": "select count(*) as n from aircraft", "details": "all"}).json()
    assert told["rows"] == [{"n": ROWS}]
    assert told["position"] == position
    assert told["reads"] == ["aircraft: full scan"]
    assert (told["cut"], told["no_cut"].split(".")[0]) == (False, "Each partition was read as it is now")
    nothing = here.client.post("/v1/sql", json={"sql": "select 1", "details": "all"}).json()
    assert (nothing["cut"], nothing["no_cut"]) == (True, None)


def test_uncommitted_rows_of_one_table_can_be_asked(running: tuple[Here, OwningWorker]) -> None:
    here, worker = running
    worker.put("N00001", {"seats": 1000})
    asked = "select (value->>'seats')::int as seats from aircraft where key = 'N00001'"
    try:
        assert rows(here.client, asked, isolation_level="read_uncommitted") == [{"seats": 1000}]
        assert rows(here.client, asked, isolation_level="read_committed", max_age_ms=0) == [{"seats": 1}]
    finally:
        worker.put("N00001", VALUES["N00001"])
        worker.commit()
    why = refused(here.client, "select 1 from aircraft, counts", 422, "SQL_INVALID", isolation_level="read_uncommitted")
    assert "read_uncommitted with 2 tables" in why


def test_a_bound_is_waited_for_or_refused(running: tuple[Here, OwningWorker]) -> None:
    here, worker = running
    bound = {"flights": {"0": worker.offset(0) + 1}}
    asked = "select count(*) as n from aircraft"
    assert refused(here.client, asked, 412, "NOT_UP_TO_BOUND", position_bound=bound)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(rows, here.client, asked, position_bound=bound, wait_ms=60_000)
        worker.put("N00000", VALUES["N00000"], partition=0)
        worker.commit()
        assert waiting.result()[0]["n"] >= ROWS


def test_statements_that_wait_for_a_bound_hold_up_no_other(running: tuple[Here, OwningWorker]) -> None:
    """There are two query processes, and four statements that wait."""
    here, worker = running
    bound = {"flights": {"0": worker.offset(0) + 1}}
    with ThreadPoolExecutor(4) as pool:
        waiting = [
            pool.submit(
                rows, here.client, f"select {n} + 0 * count(*) as n from aircraft", position_bound=bound, wait_ms=60_000
            )
            for n in range(4)
        ]
        assert rows(here.client, "select 1 as n") == [{"n": 1}]
        assert not any(each.done() for each in waiting)
        worker.put("N00000", VALUES["N00000"], partition=0)
        worker.commit()
        assert [each.result()[0]["n"] for each in waiting] == list(range(4))


def test_a_bound_may_be_waited_for_longer_than_a_statement_may_run(running: tuple[Here, OwningWorker]) -> None:
    here, worker = running
    bound = {"flights": {"0": worker.offset(0) + 1}}
    terms = {"position_bound": bound, "wait_ms": 1_500, "timeout_ms": 500}
    assert refused(here.client, "select 1 from aircraft", 412, "NOT_UP_TO_BOUND", **terms)


def test_several_tables_are_of_one_moment(running: tuple[Here, OwningWorker]) -> None:
    here, worker = running
    sql = "select (select count(*) from aircraft) as a, (select count(*) from counts) as c"
    answer = here.client.post("/v1/sql", json={"sql": sql, "max_age_ms": 60_000})
    assert (answer.status_code, answer.headers["stateline-cut"]) == (200, "true"), answer.text
    worker.put("X1", {"seats": 0})
    worker.commit()
    try:
        shared = here.client.post("/v1/sql", json={"sql": f"{sql} -- another", "max_age_ms": 60_000})
        fresh = here.client.post("/v1/sql", json={"sql": sql, "max_age_ms": 0})
        assert (shared.json(), fresh.json()[0]["a"]) == (answer.json(), answer.json()[0]["a"] + 1)
        assert int(shared.headers["age"]) >= 0
    finally:
        worker.put("X1", None)
        worker.commit()


def test_explain_says_what_is_read_and_runs_nothing(client: httpx.Client) -> None:
    told = rows(client, "explain select value from aircraft where key in ('a', 'b')")
    assert told == [{"table": "aircraft", "reads": "2 keys: a, b", "columns": "key, value", "estimated_rows": 2}]
    (full,) = rows(client, "explain select count(*) from aircraft")
    assert full["reads"] == "full scan"
    assert full["estimated_rows"] >= ROWS


@pytest.mark.parametrize(
    ("sql", "status", "reason", "says"),
    [
        ("select * from nope", 422, "SQL_INVALID", "nope"),
        ("selec 1", 422, "SQL_INVALID", "syntax error"),
        ("select kye from aircraft", 422, "SQL_INVALID", 'Candidate bindings: "key"'),
        ("", 422, "SQL_INVALID", "The statement is empty: write one SELECT."),
        (" ;; ", 422, "SQL_INVALID", "The statement is empty: write one SELECT."),
        ("-- nothing\n/* at all */ ;", 422, "SQL_INVALID", "The statement is empty: write one SELECT."),
        ("explain -- nothing", 422, "SQL_INVALID", "The statement is empty: write one SELECT."),
        ("drop table aircraft", 403, "SQL_NOT_ALLOWED", "one SELECT"),
        ("select 1; select 2", 403, "SQL_NOT_ALLOWED", "2 statements"),
        ("select * from read_csv('/etc/passwd')", 403, "SQL_NOT_ALLOWED", "file"),
        ("copy aircraft to '/tmp/stolen.csv'", 403, "SQL_NOT_ALLOWED", "one SELECT"),
        ("select * from aircraft", 413, "SQL_TOO_LARGE", "sql.max.rows"),
        ("select repeat('x', 20000000)", 413, "SQL_TOO_LARGE", "sql.max.bytes"),
        ("select unnest(range(1000000000))", 413, "SQL_TOO_LARGE", ""),
    ],
)
def test_what_is_refused_says_why(client: httpx.Client, sql: str, status: int, reason: str, says: str) -> None:
    assert says in refused(client, sql, status, reason)


def test_a_statement_ends_at_its_deadline(client: httpx.Client) -> None:
    endless = "with recursive r(i) as (select 1 union all select i + 1 from r) select count(*) from r"
    assert "0.3 s" in refused(client, endless, 504, "SQL_TIMEOUT", timeout_ms=300)
    assert rows(client, "select 1 as one") == [{"one": 1}]


def test_parameters_that_are_none_are_named(client: httpx.Client) -> None:
    assert "Unknown parameter 'sq'" in client.post("/v1/sql", json={"sq": "select 1"}).json()["detail"]
    assert "sql is missing" in client.post("/v1/sql", json={}).json()["detail"]
    assert "timeout_ms=0" in client.get("/v1/sql", params={"q": "select 1", "timeout_ms": 0}).json()["detail"]
    assert client.get("/v1/sql", params={"q": "select 1", "format": "xml"}).status_code == 422


def test_equal_statements_at_once_run_once(running: tuple[Here, OwningWorker], monkeypatch: pytest.MonkeyPatch) -> None:
    here, _ = running
    runs, run_one = [], Statements._result

    async def counted(self: Statements, *given: Any) -> SqlResult:
        runs.append(given)
        return await run_one(self, *given)

    monkeypatch.setattr(Statements, "_result", counted)
    sql = "select count(*) as n, max(value->>'range') as m from aircraft"

    def asked(_: int) -> tuple[str, list[dict[str, Any]]]:
        body = {"sql": sql, "max_age_ms": 600_000}
        answer = httpx.post(f"http://127.0.0.1:{here.port}/v1/sql", json=body)
        return answer.headers["etag"], answer.json()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(asked, range(24)))
    assert len({tag for tag, _ in answers}) == 1
    assert len(runs) == 1


def test_a_token_sees_the_tables_of_its_stores_alone(tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path / "state")
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps({"tokens": [
        {"name": "all", "sha256": hash_of("all").hex(), "stores": "*"},
        {"name": "some", "sha256": hash_of("some").hex(), "stores": ["counts"]},
    ]}))  # fmt: skip
    tokens.chmod(0o600)
    try:
        worker.put("N1", {"seats": 3})
        worker.commit()
        settings = ("server.scan.processes=0", f"server.tokens.file={tokens}")
        with served_here(tmp_path / "state", *settings, until_ready=False) as here:
            every, some = ({"Authorization": f"Bearer {name}"} for name in ("all", "some"))

            def asked(sql: str, headers: dict[str, str]) -> httpx.Response:
                return here.client.post("/v1/sql", json={"sql": sql}, headers=headers)

            assert asked("select key from aircraft", every).json() == [{"key": "N1"}]
            refusal = asked("select key from aircraft", some)
            assert (refusal.status_code, refusal.json()["reason"]) == (422, "SQL_INVALID")
            assert "does not exist" in refusal.json()["detail"]
            assert asked("show tables", some).json() == [{"name": "counts"}]
            assert asked("select table_name from information_schema.tables", some).json() == [{"table_name": "counts"}]
            assert here.client.post("/v1/sql", json={"sql": "select 1"}).status_code == 401
    finally:
        worker.close()


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KINDS_AT_MS = 1_700_000_000_000
MINUTE_MS = 60_000
UUID_KEY = "0198c0de-0000-7000-8000-0000000000ab"


@dataclass
class Kinds:
    """A server with stores by type and by kind, whose rows tests put."""

    here: Here
    worker: OwningWorker

    def rows(self, sql: str, **members: Any) -> list[dict[str, Any]]:
        return rows(self.here.client, sql, max_age_ms=0, **members)


def put(worker: OwningWorker, store: str, partition: int, key: bytes, *more: Any) -> None:
    """Stage a row of a store of any kind."""
    kept: Any = worker.stores[store, partition]
    worker.run(lambda: kept.put(key, *more))


def kinds_app() -> App:
    app = App("flights-app")
    topic = app.topic("flights", key=serdes.string, value=serdes.json)
    minute, hour = timedelta(minutes=1), timedelta(hours=1)
    typed: dict[str, Any] = {"value": serdes.int64}
    made = [
        stores.key_value("aircraft", key=serdes.string, **typed),
        stores.key_value("docs", key=serdes.json, **typed),
        stores.key_value("packed", key=serdes.msgpack, **typed),
        stores.key_value("ids", key=serdes.uuid, **typed),
        stores.key_value("moments", key=serdes.datetime, **typed),
        stores.window("id-windows", key=serdes.uuid, size=minute, retention=hour, **typed),
        stores.session("sessions", key=serdes.string, retention=hour, **typed),
        stores.versioned("prices", key=serdes.string, history=hour, **typed),
        stores.key_value("prices_versions", key=serdes.string, **typed),
    ]
    views = [app.store(each) for each in made]

    @app.process(topic, stores=views)
    def keep(record: Any, *given: Any) -> None: ...

    return app


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kinds]:
    directory = tmp_path_factory.mktemp("sql-kinds")
    app = kinds_app()
    tokens = directory / "tokens.json"
    worker = OwningWorker(directory / "state", app=app)
    one = serdes.int64.serialize(1)
    try:
        put(worker, "docs", 0, b'{"a":1}', one)
        put(worker, "packed", 0, serdes.msgpack.serialize({"a": 1}), one)
        for number, spelling in enumerate((UUID_KEY, UUID_KEY.upper())):
            put(worker, "ids", number, spelling.encode(), one)
        put(worker, "id-windows", 1, UUID_KEY.encode(), one, KINDS_AT_MS)
        for at in (-1, 5, 70):
            put(worker, "moments", 0, serdes.datetime.serialize(EPOCH + timedelta(hours=at)), one)
        put(worker, "aircraft", 0, b"twice", one)
        put(worker, "aircraft", 1, b"twice", one)
        session: Any = Windowed(b"a", KINDS_AT_MS, KINDS_AT_MS + 10 * MINUTE_MS)
        put(worker, "sessions", 0, session, one)
        for at, value in ((0, 1), (10, 2)):
            put(worker, "prices", 0, b"p", serdes.int64.serialize(value), KINDS_AT_MS + at)
        put(worker, "prices_versions", 0, b"hidden", one)
        worker.commit()
        tokens.write_text(json.dumps({"tokens": [
            {"name": "some", "sha256": hash_of("some").hex(), "stores": ["prices"]},
            {"name": "all", "sha256": hash_of("all").hex(), "stores": "*"},
        ]}))  # fmt: skip
        tokens.chmod(0o600)
        settings = ("server.scan.processes=0", f"server.tokens.file={tokens}")
        with served_here(directory / "state", *settings, app=app, until_ready=False) as here:
            here.client.headers["Authorization"] = "Bearer all"
            wait_until(lambda: here.client.get("/readyz").status_code == 200)
            yield Kinds(here, worker)
    finally:
        worker.close()


def test_a_json_key_is_found_by_its_text(kinds: Kinds) -> None:
    for table in ("docs", "packed"):
        for filters in ("key = '{\"a\":1}'", "key >= '{\"a\":0}'", "key IN ('{\"a\":1}', 'x')", "key LIKE '{\"a%'"):
            assert kinds.rows(f"select value from {table} where {filters}") == [{"value": 1}], (table, filters)


def test_a_uuid_is_found_in_either_case_and_each_row_once(kinds: Kinds) -> None:
    for spelling in (UUID_KEY, UUID_KEY.upper()):
        assert kinds.rows(f"select count(*) as n from ids where key = '{spelling}'") == [{"n": 2}]
        assert kinds.rows(f"select value from \"id-windows\" where key = '{spelling}'") == [{"value": 1}]


def test_a_key_is_found_in_every_partition_that_has_it(kinds: Kinds) -> None:
    assert kinds.rows("select count(*) as n from aircraft where key = 'twice'") == [{"n": 2}]
    assert kinds.rows("select count(*) as n from aircraft where key || '' = 'twice'") == [{"n": 2}]


def test_a_session_is_found_by_any_time_that_bounds_it(kinds: Kinds) -> None:
    early, late = ("2023-11-14T22:14:20Z", "2023-11-14T22:20:20Z")
    for filters in (f"start <= '{early}'", f"\"end\" >= '{late}' and start <= '{early}'", f"start < '{late}'"):
        for key in ("", "key = 'a' and "):
            assert kinds.rows(f"select value from sessions where {key}{filters}") == [{"value": 1}], filters
        of_cut = f"select s.value from sessions s, docs d where {filters}"
        assert kinds.rows(of_cut) == [{"value": 1}], filters


def test_times_as_keys_are_ordered_by_time(kinds: Kinds) -> None:
    for filters, count in (
        ("key >= '1970-01-01 00:00Z'", 2),
        ("key < '1970-01-02 00:00Z'", 2),
        ("key > '1969-12-31 00:00Z'", 3),
    ):
        assert kinds.rows(f"select count(*) as n from moments where {filters}") == [{"n": count}]


def test_all_versions_are_there_at_any_as_of(kinds: Kinds) -> None:
    only_prices = {"Authorization": "Bearer some"}

    def versions(where: str, **members: Any) -> Any:
        body = {"sql": f"select value from prices_versions {where}", "max_age_ms": 0, **members}
        return kinds.here.client.post("/v1/sql", json=body, headers=only_prices).json()

    assert sorted(row["value"] for row in versions("")) == [1, 2]
    assert sorted(row["value"] for row in versions("where key = 'p'")) == [1, 2]
    both = "select (select value from prices) as then, (select count(*) from prices_versions) as n"
    body = {"sql": both, "as_of": KINDS_AT_MS + 5}
    assert kinds.here.client.post("/v1/sql", json=body, headers=only_prices).json() == [{"then": 1, "n": 2}]
    assert versions("", isolation_level="read_uncommitted")["reason"] == "SQL_INVALID"


def test_a_token_does_not_see_a_store_by_the_name_of_versions(kinds: Kinds) -> None:
    asked = {"sql": "select key, value from prices_versions", "max_age_ms": 0}
    some = kinds.here.client.post("/v1/sql", json=asked, headers={"Authorization": "Bearer some"})
    assert "hidden" not in some.text
    assert kinds.rows("select key from prices_versions") == [{"key": "hidden"}]


def test_as_of_is_for_versioned_stores(kinds: Kinds) -> None:
    assert kinds.rows("select value from prices where key = 'p'", as_of=KINDS_AT_MS + 5) == [{"value": 1}]
    mixed = "select p.value from prices p, docs d"
    assert kinds.rows(mixed, as_of=KINDS_AT_MS + 5) == [{"value": 1}]
    assert "no versioned store" in refused(kinds.here.client, "select 1 from docs", 422, "SQL_INVALID", as_of=5)


def test_a_statement_for_now_reads_what_was_committed_before_it(
    running: tuple[Here, OwningWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although an equal one goes on, which has read its rows."""
    here, worker = running
    sql = "select count(*) as n from aircraft where key = 'late'"
    has_read, may_go_on, open_live = Event(), Event(), TableReading.open_live

    async def held(self: TableReading, *given: Any) -> OpenTable:
        opened = await open_live(self, *given)
        if not has_read.is_set():
            has_read.set()
            while not may_go_on.is_set():
                await asyncio.sleep(0.01)
        return opened

    monkeypatch.setattr(TableReading, "open_live", held)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(rows, here.client, sql, max_age_ms=0)
        try:
            assert has_read.wait(HANGING_S)
            worker.put("late", {"seats": 1})
            worker.commit()
            assert rows(here.client, sql, max_age_ms=0) == [{"n": 1}]
            assert not slow.done()
        finally:
            may_go_on.set()
            worker.put("late", None)
            worker.commit()
        assert slow.result() == [{"n": 0}]


@pytest.mark.parametrize("form", ["json", "ndjson", "csv", "arrow"])
@pytest.mark.parametrize(
    "value",
    [
        "'infinity'::timestamptz", "'-infinity'::date", "'2020-01-01 00:00:00.123456789'::timestamp_ns",
        "'24:00:00'::time", "170141183460469231731687303715884105727::hugeint", "map {'a': 1}", "interval 1 month",
        "'a'::enum('a', 'b')", "union_value(n := 1)", "'101'::bit", "'nan'::double", "[1, null]", "null",
        "'12:00:00+01'::timetz", "{'a': '0198c0de-0000-7000-8000-0000000000ab'::uuid}",
    ],
)  # fmt: skip
def test_a_value_of_any_type_is_answered(client: httpx.Client, value: str, form: str) -> None:
    answer = client.post("/v1/sql", json={"sql": f"select {value} as v", "format": form})
    assert answer.status_code == 200, answer.text
    if "infinity" in value and form != "arrow":
        assert value.split("'")[1] in answer.text


def test_no_rows_and_equal_names_have_their_columns(client: httpx.Client) -> None:
    sql = "select key, key, value from aircraft where key = 'none'"
    told = client.post("/v1/sql", json={"sql": sql, "details": "all"}).json()
    assert (told["rows"], [each["name"] for each in told["columns"]]) == ([], ["key", "key_1", "value"])
    assert client.post("/v1/sql", json={"sql": sql, "format": "csv"}).text == "key,key_1,value\r\n"
    big = 2**70
    assert rows(client, "select $1 as a, $1 as a", params=[big]) == [{"a": big, "a_1": big}]
