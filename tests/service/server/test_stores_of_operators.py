"""The stores of every operator over HTTP: what groups, joins and `suppress` keep is asked like any other store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from stateline import App, JoinWindows, TumblingWindows, on_window_close, serdes, until_time_limit
from stateline.log import open_log
from support.processes.query_server import wait_until
from support.processes.running_worker import configured, create, produce, running
from support.processes.served_here import served_here

TEXTS: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
MINUTE = TumblingWindows(timedelta(seconds=60))
INPUT = {
    "names": [("c1", "Ada", 1)],
    "orders": [("o1", "c1-tea", 2), ("o2", "c2-oil", 3), ("o1", "c1-jam", 4), ("o3", "c1-nut", 5)],
    "clicks": [("k1", "a1", 10_000), ("k1", "a2", 10_000), ("k2", "a3", 11_000)],
    "views": [("k1", "b1", 10_500), ("k3", "b2", 12_000), ("k3", "b3", 12_000)],
}


def plus(one: str | None, other: str | None) -> str:
    return f"{one}+{other}"


def customer(key: str, order: str) -> str:
    return order[:2]


def add(key: str, value: str, text: str) -> str:
    return text + value


def declared() -> App:
    app = App("app")
    orders, names = (app.ktable(app.table(topic, **TEXTS)) for topic in ("orders", "names"))
    orders.group_by(lambda key, order: (order[:2], order), name="counted").count("counted")
    grouped = orders.group_by(lambda key, order: (order[:2], order), name="added")
    grouped.aggregate(str, add, lambda key, order, text: text.replace(order, ""), "added", value=serdes.string)
    orders.left_join(names, plus, "named", on=customer, name="named")
    orders.suppress(until_time_limit(timedelta(minutes=1)), name="calm").to_stream().to("out")
    clicks, views = (app.stream(topic, **TEXTS) for topic in ("clicks", "views"))
    both = clicks.group_by_key().cogroup(add).cogroup(views.group_by_key(), add)
    both.aggregate(str, "both", value=serdes.string)
    both.windowed_by(MINUTE).aggregate(str, "minutes", value=serdes.string)
    within = JoinWindows(timedelta(seconds=1), grace=timedelta(minutes=1))
    clicks.join(views, plus, within=within, store="inner").to("out")
    clicks.outer_join(views, plus, within=within, store="outer").to("out")
    clicks.join(clicks, plus, within=within).to("out")
    final = clicks.group_by_key().windowed_by(MINUTE).emit_strategy(on_window_close())
    final.count("closing").to_stream().map(lambda key, n: (key.key, str(n)), **TEXTS).to("out")
    return app


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    state_dir, app = tmp_path_factory.mktemp("state"), declared()
    config = configured(app, state_dir)
    with closing(open_log(config.bootstrap_servers, state_dir)) as log:
        create(log, dict.fromkeys((*INPUT, "out"), 1))
        with running(app, config, log), served_here(state_dir, "server.scan.processes=0", app=declared()) as here:
            for topic, records in INPUT.items():
                produce(log, topic, [(key.encode(), value.encode(), at) for key, value, at in records])
            wait_until(lambda: rows(here.client, "both") != [] and len(rows(here.client, "named")) == 3)
            wait_until(lambda: len(rows(here.client, "outer-outer-shared-join-store")) == 2)
            wait_until(lambda: [row["value"] for row in rows(here.client, "minutes")] == ["a1a2b1", "a3", "b2b3"])
            wait_until(lambda: len(rows(here.client, "counted")) == len(rows(here.client, "added")) == 2)
            yield here.client


def answer(client: httpx.Client, store: str, rest: str) -> Any:
    found = client.get(f"/v1/stores/{store}/{rest}")
    assert found.status_code == 200, (rest, found.text)
    return found.json()


def is_windowed(client: httpx.Client, store: str) -> bool:
    return str(client.get(f"/v1/stores/{store}").json()["kind"]).endswith("window")


def rows(client: httpx.Client, store: str) -> list[dict[str, Any]]:
    windowed = is_windowed(client, store)
    entries: list[dict[str, Any]] = answer(client, store, "windows" if windowed else "range")["entries"]
    return entries


def sql(client: httpx.Client, statement: str) -> list[dict[str, Any]]:
    found = client.post("/v1/sql", json={"sql": statement})
    assert found.status_code == 200, found.text
    made: list[dict[str, Any]] = found.json()
    return made


STORES = sorted(declared().topology().stores)


@pytest.mark.parametrize("store", STORES)
def test_every_row_is_found_under_its_key_and_by_sql(client: httpx.Client, store: str) -> None:
    entries = rows(client, store)
    assert entries
    assert answer(client, store, "count?exact=true")["exact_entries"] == len(entries)
    for entry in entries:
        key, value = entry["key"], entry["value"]
        text = quote(key if isinstance(key, str) else json.dumps(key), safe="")
        if is_windowed(client, store):
            windows = answer(client, store, f"keys/{text}/windows?from={entry['start']}&to={entry['start']}")["entries"]
            assert value in [window["value"] for window in windows]
        else:
            assert answer(client, store, f"keys/{text}")["value"] == value
    found = [(row["key"], row["value"]) for row in sql(client, f'select key, value from "{store}"')]
    assert sorted(found, key=repr) == sorted(((row["key"], row["value"]) for row in entries), key=repr)


@pytest.mark.parametrize("store", STORES)
def test_the_change_feed_of_every_store_has_its_rows(client: httpx.Client, store: str) -> None:
    missing = [(row["key"], row["value"]) for row in rows(client, store)]
    with client.stream("GET", f"/v1/stores/{store}/changes?from=earliest") as feed:
        for line in feed.iter_lines():
            if line.startswith("data: ") and (change := json.loads(line.removeprefix("data: "))).keys() >= {"key"}:
                row = change["key"], change["value"]
                missing = [each for each in missing if each != row]
            if not missing:
                return
    raise AssertionError(f"the feed ended without {missing}")


EXPECTED: dict[str, list[tuple[Any, Any]]] = {
    "counted": [("c1", 2), ("c2", 1)],
    "added": [("c1", "c1-jamc1-nut"), ("c2", "c2-oil")],
    "named": [("o1", "c1-jam+Ada"), ("o2", "c2-oil+None"), ("o3", "c1-nut+Ada")],
    "both": [("k1", "a1a2b1"), ("k2", "a3"), ("k3", "b2b3")],
    "inner-this-join-store": [("k1", "a1"), ("k1", "a2"), ("k2", "a3")],
    "inner-other-join-store": [("k1", "b1"), ("k3", "b2"), ("k3", "b3")],
    "outer-outer-shared-join-store": [([11_000, "left", "k2"], ["a3"]), ([12_000, "right", "k3"], ["b2", "b3"])],
    "KSTREAM-JOINTHIS-0000000000-store": [("k1", "a1"), ("k1", "a2"), ("k2", "a3")],
    "closing": [("k1", 2), ("k2", 1)],
}


@pytest.mark.parametrize("store", EXPECTED)
def test_rows_have_what_the_operator_keeps(client: httpx.Client, store: str) -> None:
    assert [(row["key"], row["value"]) for row in rows(client, store)] == EXPECTED[store]


def test_a_change_that_waits_is_shown_with_its_values_and_its_record(client: httpx.Client) -> None:
    (row,) = [row for row in rows(client, "calm-store") if row["key"] == "o1"]
    waiting = {"new": "c1-jam", "prior": None, "timestamp_ms": 4, "topic": "orders", "offset": 2}
    assert {**row["value"], **waiting} == row["value"]
    (found,) = sql(client, "select value->>'new' as waiting from \"calm-store\" where key = 'o2'")
    assert found == {"waiting": "c2-oil"}


def test_subscriptions_are_found_by_their_foreign_key(client: httpx.Client) -> None:
    prefix = quote(json.dumps(["c1", ""]))
    entries = answer(client, "named-subscription-store", f"range?prefix={prefix}")["entries"]
    assert [entry["key"] for entry in entries] == [["c1", "o1"], ["c1", "o3"]]
    found = sql(client, "select value->>'primary_key' as of from \"named-subscription-store\" where key->>0 = 'c2'")
    assert found == [{"of": "o2"}]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("stores/named-subscription-store/keys/c1", "[foreign key, primary key]"),
        ("stores/outer-outer-shared-join-store/keys/k2", '[timestamp, "left" or "right", key]'),
        ("stores/inner-this-join-store/keys/k1", "ask for windows"),
    ],
)
def test_a_key_of_another_form_is_refused_with_the_right_one(client: httpx.Client, path: str, said: str) -> None:
    found = client.get(f"/v1/{path}")
    assert (found.is_client_error, said in found.json()["detail"]) == (True, True), found.text
