"""`/v1/console/graph`: the topology as nodes and edges, and how fast records come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from typer.testing import CliRunner

from stateline import App, serdes
from stateline.cli import tokens
from stateline.log import open_log
from stateline.log.interface import Log
from stateline.server.console import history
from stateline.stores import key_value
from support.processes.query_server import wait_until
from support.processes.running_worker import configured, create, produce, running
from support.processes.served_here import served_here


def declared() -> App:
    """Orders that are counted by customer, prices, a global table that nothing joins, and a pipeline."""
    app = App("shop")
    totals = app.store(key_value("totals", key=serdes.string, value=serdes.int64))
    prices = app.topic("prices", key=serdes.string, value=serdes.json)
    app.table(prices, store="prices")
    app.global_table("codes", key=serdes.string, value=serdes.string)

    @app.process(app.topic("by-customer", key=serdes.string, value=serdes.string), stores=[totals])
    def count(record: Any, totals: Any) -> None:
        totals.put(record.key, (totals.get(record.key) or 0) + 1)

    @app.pipeline(
        reads=app.topic("raw", key=serdes.string, value=serdes.json), writes=prices, key="item", output_mode="append"
    )
    def priced(raw: Any) -> Any:
        return raw

    app.stream("orders", key=serdes.string, value=serdes.string).group_by(
        lambda key, value: value, key=serdes.string, name="by-value"
    ).count(store="by-value")
    return app


class Shop(NamedTuple):
    client: httpx.Client
    log: Log
    one: dict[str, str]
    """Headers of a token for `totals` alone."""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    state_dir, file = tmp_path_factory.mktemp("g"), tmp_path_factory.mktemp("t") / "tokens.json"
    everything, one = token(file, "all"), token(file, "one", "--stores", "totals")
    config = configured(declared(), state_dir)
    with pytest.MonkeyPatch.context() as patched, closing(open_log(config.bootstrap_servers, state_dir)) as log:
        patched.setattr(history, "INTERVAL_S", 0.1)
        counts = {"orders": 2, "prices": 1, "by-customer": 2, "codes": 1, "raw": 1}
        create(log, counts)
        produce(log, "by-customer", [(b"a", b"1", 1), (b"b", b"1", 1), (b"c", b"1", 1)])
        with (
            running(declared(), config, log),
            served_here(state_dir, f"server.tokens.file={file}", app=declared(), until_ready=False) as here,
        ):
            here.client.headers.update(everything)
            wait_until(lambda: rate(here.client) is not None)  # what was committed before the first look counts nowhere
            yield Shop(here.client, log, one)


def rate(client: httpx.Client, headers: Mapping[str, str] | None = None) -> float | None:
    """How fast `by-customer` is committed."""
    graph = client.get("/v1/console/graph", headers=headers)
    found: float | None = graph.json()["rates"].get("by-customer") if graph.is_success else None
    return found


def token(file: Path, name: str, *options: str) -> dict[str, str]:
    made = CliRunner().invoke(tokens.commands, ["add", name, *options, "--file", str(file)], catch_exceptions=False)
    return {"Authorization": f"Bearer {made.stdout.strip()}"}


def test_it_has_every_topic_operator_store_and_pipeline_and_who_is_connected(shop: Shop) -> None:
    graph = shop.client.get("/v1/console/graph").json()
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert len(nodes) == len(graph["nodes"])
    named = {(node["kind"], node["name"]): node for node in graph["nodes"]}
    assert {kind for kind, _ in named} == {"topic", "operator", "store", "global_table", "pipeline"}
    assert {node["name"] for node in graph["nodes"] if node["internal"]} == {"shop-by-value-repartition"}
    assert named["store", "totals"]["label"] == "totals\nkey_value, string → int64"
    counted = named["topic", "by-customer"]["subtopology"]
    assert counted == named["store", "totals"]["subtopology"] == named["operator", "count"]["subtopology"] is not None
    assert named["topic", "raw"]["subtopology"] is named["global_table", "codes"]["subtopology"] is None
    names = {(nodes[a]["name"], nodes[b]["name"]) for a, b in graph["edges"]}
    assert {("by-customer", "count"), ("count", "totals"), ("codes", "codes"), ("raw", "priced")} <= names
    assert ("priced", "prices") in names
    assert set(graph["rates"]) == {name for kind, name in named if kind == "topic"}


def test_a_topic_has_the_rate_at_which_it_is_committed(shop: Shop) -> None:
    produce(shop.log, "by-customer", [(b"a", b"2", 2)] * 50)
    wait_until(lambda: bool(rate(shop.client)))
    rates = shop.client.get("/v1/console/graph").json()["rates"]
    assert rates["prices"] == 0
    assert rates["raw"] is None, "nothing here is made of it"
    assert rate(shop.client, shop.one)


def test_a_token_sees_what_concerns_its_stores(shop: Shop) -> None:
    graph = shop.client.get("/v1/console/graph", headers=shop.one).json()
    assert {(node["kind"], node["name"]) for node in graph["nodes"]} == {
        ("topic", "by-customer"),
        ("operator", "count"),
        ("store", "totals"),
    }
    assert set(graph["rates"]) == {"by-customer"}
    assert shop.client.get("/v1/console/graph?store=totals").status_code == 422


def test_a_token_sees_ingest_of_its_topics_and_nothing_of_commits(shop: Shop) -> None:
    def ingested(headers: dict[str, str]) -> bool:
        body = shop.client.get("/v1/console/history", headers=headers).json()
        return any(point[1 + body["names"].index("ingest_per_s")] for point in body["points"])

    produce(shop.log, "by-customer", [(b"a", b"2", 2)] * 50)
    wait_until(lambda: ingested(shop.one))
