"""Both clients and a cut: a snapshot as tables of a DuckDB in this process, with the names and types of the server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import cast
from uuid import uuid4

import httpx
import pytest

from service.sql.rows import BY_NAME, answer, batch
from stateline.client import Client, Retries, SqlAnswer, Store
from stateline.client.local_tables import LocalTables
from stateline.sql.engine import SqlEngine
from stateline_store import ConfigurationError
from support.http.blocking import blocking_client
from support.http.faulty_proxy import Cut, FaultyProxy
from support.oracles.sql_scene import AT_FIRST, SqlDeployment, SqlScene
from support.processes.query_server import OwningWorker, wait_until
from support.processes.served_here import served_here

Connect = Callable[..., Client]
_TYPES = 'select column_name, column_type from (describe "{}")'
_ROWS = 'select columns(*)::varchar from "{}" order by all'


@pytest.fixture(scope="module")
def server(state_dir: Path, worker: OwningWorker) -> Iterator[httpx.URL]:
    worker.put_all({f"N{number:02}": {"seats": number} for number in range(20)})
    worker.commit()
    with served_here(state_dir, "server.scan.processes=0") as found:
        yield found.client.base_url


def test_tables_are_those_of_the_server_for_every_kind_of_store(tmp_path: Path) -> None:
    deployment = SqlDeployment(tmp_path, "", uuid4().hex[:8])
    with closing(deployment.log), deployment.worker(commit__interval__ms=200), deployment.server() as http:
        SqlScene(deployment)  # writes its first records
        wait_until(lambda: http.get("/readyz").status_code == 200, 120)
        url = str(http.base_url)
        with Client(url, isolation_level="read_committed") as client, blocking_client(url) as second:
            stores = [store for store in client.stores() if store.persistent]
            wait_until(lambda: all(_read(client.store(store.store)) == AT_FIRST for store in stores), 120)
            made = []
            for each in (client, second):
                with each.cut([store.store for store in stores]) as cut:
                    made.append(cut.duckdb())
            versions = {f"{store.store}_versions" for store in stores if store.kind == "versioned"}
            for name in {store.store for store in stores} | versions:
                for sql in (_TYPES.format(name), _ROWS.format(name)):
                    rows = [tuple(row.values()) for row in client.sql(sql)]
                    assert rows, name
                    assert [local.sql(sql).fetchall() for local in made] == [rows, rows], name
            tables = [{name for (name,) in local.sql("show tables").fetchall()} for local in made]
            assert tables == [{store.store for store in stores} | versions] * 2


def test_an_unlimited_window_ends_where_it_does_in_the_servers_sql() -> None:
    table = BY_NAME["windows"]
    rows = [{"key": 1, "start": 0, "end": 2**63 - 1, "value": "{}", "timestamp": None}]
    engine = SqlEngine(1 << 28)
    engine.use_tables([table])
    names, types = list(table.columns), [kind.replace("TZ", " WITH TIME ZONE") for kind in table.columns.values()]
    of_server = [{"name": "windows", "column_names": names, "column_types": types}]
    local = LocalTables(cast(SqlAnswer, of_server), ("windows",))
    local.create("windows")
    local.add("windows", batch(table, rows, names))
    sql = 'select key, "end"::varchar as ended, timestamp from windows'
    expected = answer(engine, sql, {"windows": rows})
    assert local.connection.sql(sql).fetchall() == [tuple(row.values()) for row in expected]


def _read(store: Store) -> int:
    """How many records the committed store includes."""
    position = store.position().position
    return sum(offset + 1 for offsets in position.offsets.values() for offset in offsets.values())


def test_a_cut_is_released_with_its_block_and_its_tables_stay(client: Client, worker: OwningWorker) -> None:
    with client.cut(["aircraft", "counts"]) as cut:
        local = cut.duckdb()
        assert cut.details.id in {each.id for each in client.snapshots()}
    assert cut.details.id not in {each.id for each in client.snapshots()}
    worker.put("later", {"seats": 1})
    worker.commit()
    assert local.sql("select sum((value->>'seats')::int) from aircraft where key like 'N%'").fetchall() == [(190,)]
    assert local.sql("select * from counts").fetchall() == []


def test_a_lost_answer_leaves_one_snapshot(proxy: FaultyProxy, connect: Connect) -> None:
    client = connect(proxy.url, retries=Retries(first_pause_s=0.01))
    proxy.faults.append(Cut(30))
    with client.cut(["aircraft"]) as cut:
        assert [each.id for each in client.snapshots()] == [cut.details.id]


def test_a_short_lease_is_renewed_while_the_rows_are_loaded(client: Client) -> None:
    with client.cut(["aircraft"], ttl_s=60) as cut:
        before = cut.details.expires_at
        cut.duckdb()
        assert cut.details.expires_at > before
    with client.cut(["aircraft"], ttl_s=3000) as cut:
        before = cut.details.expires_at
        cut.duckdb()
        assert cut.details.expires_at == before, "a long one is not made shorter"


def test_a_cut_says_what_it_cannot_be(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with client.cut(["aircraft"]) as cut:
        monkeypatch.setitem(sys.modules, "duckdb", None)
        with pytest.raises(ConfigurationError, match=r"pip install 'stateline\[sql\]'"):
            cut.duckdb()
