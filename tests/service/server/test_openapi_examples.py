"""The examples of the OpenAPI document: requests of which each is answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from stateline import App, serdes
from stateline.cli.check.run import check
from stateline.config.loading import load_config
from stateline.server import create_app
from stateline.testing import TestDriver
from stateline_store import TopologyError
from support.apps.kinds_app import build

TYPES = (serdes.string, serdes.json, serdes.bytes, serdes.int32, serdes.int64, serdes.float64, serdes.uuid,
         serdes.datetime)  # fmt: skip

PERSON = serdes.avro({"type": "record", "name": "shop.Person", "fields": [{"name": "id", "type": "string"}]})


def of_type(key: Any) -> App:
    app = App("typed")
    app.table("rows", key=key, value=serdes.string)
    return app


def asked(client: httpx.Client, document: Mapping[str, Any]) -> Iterator[tuple[str, httpx.Response]]:
    """Each example, and its answer."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            given = {p["name"]: p["example"] for p in operation["parameters"] if "example" in p}
            if not given:
                continue
            url = path
            for name, example in given.items():
                url = url.replace(f"{{{name}}}", quote(example, safe=""))
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
            yield path, client.request(method, url, json=body)


def test_every_example_of_every_kind_of_store_is_answered() -> None:
    with TestDriver(build("examples")) as driver:
        document = driver.client.get("/openapi.json").json()
        answers = dict(asked(driver.client, document))
        below = {path.removeprefix("/v1/stores/{store}") for path in document["paths"] if "/v1/stores/{store}" in path}
        below = {path for path in below if not path.startswith("/changes")}
        assert {path.removeprefix("/v1/stores/{store}") for path in answers} == below
        for path, answer in answers.items():
            absent = answer.status_code == 404 and answer.json().get("found") is False
            assert answer.status_code == 200 or absent, (path, answer.text)


@pytest.mark.parametrize("key", TYPES, ids=lambda serde: serde.name)
def test_the_key_of_an_example_is_of_the_stores_type(key: Any) -> None:
    with TestDriver(of_type(key)) as driver:
        answers = dict(asked(driver.client, driver.client.get("/openapi.json").json()))
        for path in ("/v1/stores/{store}/keys/{key}", "/v1/stores/{store}/query"):
            assert answers[path].json()["found"] is False, answers[path].text


def test_keys_that_the_application_names_are_shown() -> None:
    app = App("named", examples={"rows": "a/ü"})
    app.table("rows", key=serdes.string, value=serdes.string)
    with TestDriver(app) as driver:
        driver.pipe("rows", "a/ü", "found")
        answers = dict(asked(driver.client, driver.client.get("/openapi.json").json()))
        assert answers["/v1/stores/{store}/keys/{key}"].json()["value"] == "found"
        assert answers["/v1/stores/{store}/query"].json()["value"] == "found"


@pytest.mark.parametrize(
    ("examples", "said"),
    [
        ({"row": "a"}, "there is no store 'row'. There are: rows"),
        ({"rows": "a"}, "the key of 'rows': 'a' is not an int64"),
    ],
)
def test_an_example_of_no_store_or_of_another_type_is_refused_by_whatever_reads_the_declaration(
    examples: dict[str, str], said: str, tmp_path: Path
) -> None:
    app = App("wrong", examples=examples)
    app.table("rows", key=serdes.int64, value=serdes.string)
    config = load_config("wrong", environment={}, overrides=[f"state.dir={tmp_path}"])
    for read in (app.topology, lambda: check(app, config), lambda: create_app(app, config)):
        with pytest.raises(TopologyError, match=said):
            read()


def test_a_key_with_a_schema_is_shown_without_asking_the_registry() -> None:
    app = App("people", config={"schema.registry.url": "http://127.0.0.1:1"}, examples={"people": '{"id": "ann"}'})
    app.table("people", key=PERSON, value=serdes.string)
    with TestDriver(app) as driver:
        operations = driver.client.get("/openapi.json").json()["paths"]
    (key,) = (p for p in operations["/v1/stores/{store}/keys/{key}"]["get"]["parameters"] if p["name"] == "key")
    assert key["example"] == '{"id": "ann"}'
    body = operations["/v1/stores/{store}/query"]["post"]["requestBody"]["content"]["application/json"]
    assert body["example"] == {"type": "key", "key": {"id": "ann"}}


def test_an_example_that_is_no_json_is_refused_of_a_key_with_a_schema() -> None:
    app = App("people", examples={"people": "ann"})
    app.table("people", key=PERSON, value=serdes.string)
    with pytest.raises(TopologyError, match=r"the key of 'people': 'ann' is not the JSON of avro\(shop.Person\)"):
        app.topology()
