"""What the service says about itself."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

from support.processes.query_server import TOPIC, OwningWorker


def test_every_store_is_described(client: httpx.Client, worker: OwningWorker) -> None:
    worker.put("described", 1, partition=0)
    worker.commit()
    stores = {store["store"]: store for store in client.get("/v1/stores").json()["stores"]}
    assert set(stores) == {"aircraft", "cache", "counts", "blobs", "places"}
    aircraft = client.get("/v1/stores/aircraft").json()
    partition = aircraft["partitions"].pop("0")
    assert partition.pop("committed_at_ms") > 0
    assert partition == {
        "task": "0_0",
        "owner": "w1",
        "state": "active",
        "lag_records": 0,
        "lag_ms": 0,
        "restore_remaining": 0,
        "staged_records": 0,
        "staged_bytes": 0,
    }
    assert set(aircraft.pop("partitions")) == {"1", "2"}
    assert aircraft == {
        "store": "aircraft",
        "kind": "timestamped_key_value",
        "key_type": "string",
        "value_type": "json",
        "persistent": True,
        "logged": True,
        "retention_ms": None,
        "external": None,
        "global": False,
        "columns": [
            {"name": "key", "type": "string", "nullable": False},
            {"name": "value", "type": "string", "nullable": False},
            {"name": "timestamp", "type": "int64", "nullable": True},
        ],
        "default_isolation_level": "read_committed",
        "changelog": TOPIC,
    }
    assert stores["cache"]["partitions"]["1"]["state"] == "active"


def test_the_topology_is_described(client: httpx.Client) -> None:
    topology = client.get("/v1/topology").json()
    assert topology["application_id"] == "flights-app"
    assert topology["subtopologies"] == [
        {
            "ordinal": 0,
            "sources": [TOPIC],
            "stores": ["aircraft", "cache", "counts", "blobs", "places"],
            "processors": ["update"],
        }
    ]
    assert [topic["topic"] for topic in topology["topics"]] == [TOPIC]


def test_instances_say_who_runs_what(client: httpx.Client) -> None:
    (instance,) = client.get("/v1/instances").json()["instances"]
    assert (instance["instance"], instance["reachable"]) == ("w1", True)
    assert instance["tasks"] == {"0_0": "running", "0_1": "running", "0_2": "running"}


def test_it_is_alive_and_ready(client: httpx.Client) -> None:
    assert client.get("/healthz").json() == {"status": "alive"}
    assert client.get("/readyz").json() == {"status": "ready"}


def test_metrics_count_requests_and_show_every_partition(client: httpx.Client, worker: OwningWorker) -> None:
    worker.put("metrics", 1, partition=0)
    worker.commit()
    worker.put("metrics", 2, partition=0)

    def value(line: str) -> float:
        found = re.search(rf"^{re.escape(line)} (\S+)$", client.get("/metrics").text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    asked = 'route="/v1/stores/{store}/keys/{key}"'
    count = f'stateline_http_requests_total{{level="read_committed",outcome="not_found",{asked}}}'
    before = value(count)
    client.get("/v1/stores/aircraft/keys/no-such-key")
    assert value(count) == before + 1
    assert value(f'stateline_http_request_seconds_count{{level="read_committed",{asked}}}') >= 1
    assert value('stateline_store_requests_total{outcome="not_found",store="aircraft"}') >= 1
    labels = '{store="aircraft",task="0_0"}'
    assert value(f"stateline_store_staged_records{labels}") == 1
    assert value(f"stateline_store_staged_bytes{labels}") > 0
    assert value(f"stateline_store_state{labels}") == 2
    store = worker.stores["aircraft", 0]
    assert value(f"stateline_store_commit_number{labels}") == worker.run(lambda: store.commit_number)
    assert value(f"stateline_store_committed_at_ms{labels}") == worker.run(lambda: store.committed_at_ms)


def test_a_path_that_leads_nowhere_is_counted_too(client: httpx.Client) -> None:
    client.get("/nowhere")
    counted = 'stateline_http_requests_total{level="",outcome="DOES_NOT_EXIST",route="unmatched"}'
    assert counted in client.get("/metrics").text


def test_the_documentation_needs_nothing_from_elsewhere(client: httpx.Client) -> None:
    response = client.get("/docs")
    assert response.headers["content-type"].startswith("text/html")
    assert not re.search(r"<script|@import|url\(|(src|href)=.?(https?:)?//", response.text)
    assert "flights-app" in response.text


def test_the_documentation_loads_no_script_style_or_picture_but_its_own_style(client: httpx.Client) -> None:
    answer = client.get("/docs")
    policy = next(each for each in answer.headers.get_list("content-security-policy") if "default-src" in each)
    console = client.get("/").headers.get_list("content-security-policy")
    assert any(policy.startswith(each) for each in console)
    (style,) = re.findall("<style>(.*?)</style>", answer.text)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.endswith(f"; style-src 'sha256-{digest}'")


@pytest.mark.parametrize("prefix", ["", "/below/a/proxy"])
@pytest.mark.parametrize("path", ["/docs", "/docs/", "/docs?utm=x"])
def test_the_documentation_finds_the_document_behind_a_proxy_with_a_path(
    client: httpx.Client, prefix: str, path: str
) -> None:
    (link,) = re.findall(r'href="([^"]*)"', client.get(path).text)
    assert urljoin(f"http://proxy{prefix}{path}", link) == f"http://proxy{prefix}/openapi.json"


@pytest.fixture
def openapi(client: httpx.Client) -> dict[str, Any]:
    document: dict[str, Any] = client.get("/openapi.json").json()
    return document


def test_every_documented_route_is_there(client: httpx.Client, openapi: dict[str, Any]) -> None:
    for path, methods in openapi["paths"].items():
        for method in methods:
            url = path.replace("{store}", "aircraft").replace("{key}", "described")
            response = client.request(method, url)
            assert str(response.status_code) in methods[method]["responses"], (method, url, response.text)


def test_every_documented_parameter_is_taken(client: httpx.Client, openapi: dict[str, Any]) -> None:
    values = {"position_bound": "{}", "store_bounds": "{}", "isolation_level": "read_committed", "order": "asc"}
    values |= {"from": "0", "to": "2026-01-31T12:00:00Z", "as_of": "1", "prefix": "described"}
    values |= {"require_active": "false", "allow_partial": "false", "limit": "1", "wait_ms": "0", "partition": "0"}
    values |= {"max_staleness_ms": "0", "format": "json", "details": "none", "exact": "true"}
    values |= {"q": "select 1", "params": "[]", "timeout_ms": "10000", "max_age_ms": "0"}
    columns = {"/count": "approximate_entries", "/position": "committed"}
    for path, methods in openapi["paths"].items():
        for parameter in methods.get("get", {}).get("parameters", []):
            name = parameter["name"]
            if (
                parameter["in"] == "path" or "/changes" in path
            ):  # that has no end, needs a log, and has tests of its own
                continue
            url = path.replace("{store}", "aircraft").replace("{key}", "described")
            own = columns.get(path[path.rindex("/") :], "value") if name == "columns" else "a"
            required = {"q": values["q"]} if path == "/v1/sql" else {}
            response = client.get(url, params={**required, name: values.get(name, own)})
            of_other_kinds = path.endswith(("/windows", "/sessions", "/versions")) and name != "cursor"
            as_of = name == "as_of" and path.endswith(("{key}", "/range"))
            wanted = (400,) if of_other_kinds or as_of else (200, 404)  # what is read wrongly is 422
            assert response.status_code in wanted, (url, name, response.text)


def test_answers_have_the_documented_members(client: httpx.Client, openapi: dict[str, Any]) -> None:
    schemas = openapi["components"]["schemas"]
    store = "/v1/stores/aircraft"
    answers = {
        "KeyAnswer": client.get(f"{store}/keys/described"),
        "RangeAnswer": client.get(f"{store}/range"),
        "CountAnswer": client.get(f"{store}/count"),
        "PositionAnswer": client.get(f"{store}/position"),
        "KeysAnswer": client.post(f"{store}/query", json={"type": "keys", "keys": ["described"]}),
    }
    for name, response in answers.items():
        body = response.json()
        optional = {"cursor", "failures", "headers", "key_text", "valid_to", "stopped", "exact_entries"}
        assert set(schemas[name]["properties"]) - optional == set(body)
        assert set(schemas[name]["required"]) == {"store", "isolation_level"}, "the rest may be left out"
        assert set(next(iter(body["partitions"].values()))) == set(schemas["Partition"]["required"])
    problem = client.get("/v1/stores/nope").json()
    assert set(schemas["Problem"]["required"]) <= set(problem) <= set(schemas["Problem"]["properties"])


def test_documented_references_lead_somewhere(client: httpx.Client, openapi: dict[str, Any]) -> None:
    references = set(re.findall(r'"\$ref":"#/components/schemas/(\w+)"', client.get("/openapi.json").text))
    assert references
    assert references <= set(openapi["components"]["schemas"])
