"""docs/sql-tools.md and docs/grafana.md are true: their code and their bodies are asked of a server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest

from stateline import App
from stateline.testing import TestDriver
from support.http.grafana import sent
from support.processes.ports import free_port
from support.processes.query_server import OwningWorker
from support.processes.served_here import Here, served_here
from test_docs import blocks, document

TOOLS, GRAFANA = document("docs/sql-tools.md"), document("docs/grafana.md")
BY_CSV, BY_ARROW, DATABASE = blocks(TOOLS, "python")
PATIENT = {"sql.timeout.ms": 60_000}  # a query process starts slowly on a busy machine
AIRCRAFT: dict[str, Any] = {f"N{number}": {"carrier": ("AA", "UA", "UA")[number % 3]} for number in range(1, 31)}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Here, OwningWorker]]:
    directory = tmp_path_factory.mktemp("tools")
    worker = OwningWorker(directory)
    try:
        worker.put_all(AIRCRAFT)
        worker.commit()
        with served_here(directory, "server.scan.processes=0", "sql.timeout.ms=60000") as served:
            yield served, worker
    finally:
        worker.close()


def run(code: str, port: int) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    exec(code.replace("localhost:8000", f"127.0.0.1:{port}"), scope)
    return scope


def test_a_notebook_reads_csv_with_pandas_alone(here: tuple[Here, OwningWorker]) -> None:
    frame = run(BY_CSV, here[0].port)["by_carrier"]
    assert frame.to_dict("records") == [{"carrier": "AA", "aircraft": 10}, {"carrier": "UA", "aircraft": 20}]


def test_a_notebook_reads_arrow_with_the_types_of_the_columns(here: tuple[Here, OwningWorker]) -> None:
    frame = run(BY_ARROW, here[0].port)["latest"]
    assert sorted(frame["key"]) == sorted(key for key in AIRCRAFT if "N1" <= key <= "N2")
    assert str(frame["timestamp"].dtype.tz) == "UTC"


def test_the_query_of_excel_and_power_bi_is_answered_as_csv(here: tuple[Here, OwningWorker]) -> None:
    (statement,) = re.findall(r'Statement = "(.+)",', TOOLS)
    (path,) = re.findall(r'RelativePath = "(.+)",', TOOLS)
    (form,) = re.findall(r'Query = \[q = Statement, format = "(\w+)"\]', TOOLS)
    answer = here[0].client.get(f"/{path}", params={"q": statement, "format": form})
    header, *rows = answer.text.split("\r\n")
    assert header == "carrier,aircraft"
    assert sorted(rows) == ["", "AA,10", "UA,20"]
    values = json.loads(re.findall(r'`params = "(.+?)"`', TOOLS)[0].replace('""', '"'))
    sql = "select key from aircraft where key in ($1, $2) order by key"
    named = here[0].client.get(f"/{path}", params={"q": sql, "params": json.dumps(values)})
    assert named.json() == [{"key": "N1"}, {"key": "N2"}]


def test_a_database_over_copies_has_the_rows_of_the_last_one(here: tuple[Here, OwningWorker], tmp_path: Path) -> None:
    served, worker = here
    (script,) = blocks(TOOLS, "sh")

    def copy(port: int) -> int:
        here_now = script.replace("cd /data", f"cd {tmp_path}").replace("localhost:8000", f"127.0.0.1:{port}")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        # Its clock has seconds: a second copy in the same one needs another name.
        named = here_now.replace("$(date +%s)", str(time.time_ns()))
        return subprocess.run(["sh", "-c", named], env={**os.environ, "PATH": path}, check=False).returncode

    assert copy(served.port) == 0
    exec(DATABASE.replace("/data/", f"{tmp_path}/"), {})
    with duckdb.connect(str(tmp_path / "state.duckdb"), read_only=True) as connection:
        count = "select value->>'carrier', count(*) from aircraft group by 1 order by 1"
        assert connection.execute(count).fetchall() == [("AA", 10), ("UA", 20)]
        worker.put_all({"N99": {"carrier": "AA"}})
        worker.commit()
        assert copy(served.port) == 0
        assert connection.execute(count).fetchall() == [("AA", 11), ("UA", 20)]
        assert copy(free_port()) != 0, "no server answers there"
        assert connection.execute(count).fetchall() == [("AA", 11), ("UA", 20)]


@pytest.fixture(scope="module")
def demo() -> Iterator[httpx.Client]:
    """The stores of the demo that the page on Grafana asks."""
    from flights.application import app

    with TestDriver(app, config=PATIENT) as driver:
        totals = {"departures": 10, "cancelled": 2, "delay_minutes": 40, "worst_delay": 30}
        departure = {"origin": "JFK", "dep_delay": None, "carrier": "UA", "tailnum": "N1"}
        driver.pipe("departures", "N1", departure, timestamp_ms=1_384_000_000_000)
        driver.pipe("delay_windows", ["JFK", 1_383_998_400_000], totals, timestamp_ms=1_383_998_400_000)
        yield driver.client


def test_each_body_of_the_page_on_grafana_has_rows(demo: httpx.Client) -> None:
    bodies = blocks(GRAFANA, "json")
    assert len(bodies) == 3
    for body in bodies:
        text = sent(body, {"airport": ["JFK"]}, 1_383_000_000_000, 1_385_000_000_000)
        answer = demo.post("/v1/sql", content=text, headers={"Content-Type": "application/json"})
        assert answer.status_code == 200, answer.text
        assert answer.json(), text


def test_a_text_box_of_grafana_is_quoted_in_the_statement(demo: httpx.Client) -> None:
    (statement,) = blocks(GRAFANA, "sql")
    for typed in ("N1", "' or true --"):
        quoted = "'" + typed.replace("'", "''").replace('"', '\\"') + "'"
        answer = demo.get("/v1/sql", params={"q": statement.strip().replace("${tail:sqlstring}", quoted)})
        assert answer.json() == []


def test_the_aggregate_that_the_page_on_grafana_declares_is_what_its_panel_reads() -> None:
    (code,) = blocks(GRAFANA, "python")
    scope: dict[str, Any] = {}
    exec(code, scope)
    app = scope["app"]
    assert isinstance(app, App)
    (statement,) = re.findall(r"`(select .+ from orders_by_city)`", GRAFANA)
    with TestDriver(app, config=PATIENT) as driver:
        for customer, city in (("ann", "Bern"), ("bob", "Bonn"), ("cat", "Bern")):
            driver.pipe("orders", customer, {"city": city})
        rows = driver.client.post("/v1/sql", json={"sql": f"{statement} order by city"}).json()
    assert rows == [{"city": "Bern", "orders": 2}, {"city": "Bonn", "orders": 1}]
