"""A server without tokens over HTTP, as web pages of other sites would ask it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateline.config.loading import load_config
from stateline.server.guard.sites import Sites
from stateline_store import ForbiddenError
from support.processes.query_server import OwningWorker, wait_until
from support.processes.served_here import http_server

LEVEL = "default.state.isolation.level=read_committed"
QUERY = "/v1/stores/aircraft/query"
BODY = {"type": "range", "limit": 1}


@pytest.fixture(scope="module")
def behind(state_dir: Path, worker: OwningWorker) -> Iterator[httpx.Client]:
    """A server that something else guards."""
    with http_server(state_dir, LEVEL, "server.insecure=true") as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)
        yield client


def port_of(client: httpx.Client) -> str:
    return str(client.base_url.port)


def refused(response: httpx.Response) -> str:
    assert (response.status_code, response.json()["reason"]) == (403, "FORBIDDEN"), response.text
    assert response.headers["content-type"] == "application/problem+json"
    detail: str = response.json()["detail"]
    return detail


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "localhost.", "127.0.0.1", "127.8.9.10", "[::1]", "app.localhost"]
)
def test_it_is_known_by_the_names_of_this_machine(client: httpx.Client, host: str) -> None:
    for value in (host, f"{host}:{port_of(client)}", f"{host}:80"):
        assert client.get("/v1/stores", headers={"Host": value}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil.example:127.0.0.1",
        "notlocalhost",
        "192.168.1.5:8000",
        "[::2]",
        "[::1",
        "0x7f.1",
        "",
        "localhost, evil.example",
        "user@localhost",
        "[localhost]x",
    ],
)
def test_by_another_name_it_answers_nothing(
    client: httpx.Client, behind: httpx.Client, worker: OwningWorker, host: str
) -> None:
    worker.put("k", 1)
    worker.commit()
    assert client.get("/v1/stores/aircraft/keys/k").status_code == 200, "this is answered at once, before any routing"
    for path in ("/v1/stores", "/", "/metrics", "/v1/stores/aircraft/range", "/v1/stores/aircraft/keys/k", "/nowhere"):
        assert "evil" not in host or host in refused(client.get(path, headers={"Host": host}))
        refused(client.get(path, headers={"Host": host}))
    refused(client.post(QUERY, json=BODY, headers={"Host": host}))
    assert behind.get("/v1/stores", headers={"Host": host}).status_code == 200, "a proxy may ask by any name"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://localhost"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://{host}"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_what_a_page_of_another_site_posts_is_refused_and_does_nothing(
    client: httpx.Client, behind: httpx.Client, headers: dict[str, str]
) -> None:
    for server in (client, behind):
        given = {name: value.format(host=f"127.0.0.1:{port_of(server)}") for name, value in headers.items()}
        text = given | {"Content-Type": "text/plain"}  # what a page may send without asking first
        assert "another site" in refused(server.post(QUERY, json=BODY, headers=given))
        refused(server.post("/v1/snapshots", content='{"stores": ["aircraft"]}', headers=text))
        refused(server.delete("/v1/snapshots/0", headers=given))
        refused(server.patch("/v1/snapshots/0", json={}, headers=given))
        refused(server.get("/v1/snapshots", headers=given))
        refused(server.get("/v1/stores/aircraft/keys/k", headers=given))
        assert server.head("/v1/stores/aircraft/keys/k", headers=given).status_code == 403
        assert server.get("/v1/snapshots").json() == {"snapshots": []}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://{host}"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://{host}"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://behind.a.proxy"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_what_its_own_pages_and_programs_post_is_answered(
    client: httpx.Client, behind: httpx.Client, headers: dict[str, str]
) -> None:
    for server in (client, behind):
        given = {name: value.format(host=f"127.0.0.1:{port_of(server)}") for name, value in headers.items()}
        assert server.post(QUERY, json=BODY, headers=given).status_code == 200


NAVIGATION = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_link_of_another_site_leads_to_a_page_in_a_window_of_its_own_and_nowhere_else(
    client: httpx.Client, site: str
) -> None:
    link = {"Sec-Fetch-Site": site, **NAVIGATION}
    for path in ("/", "/stores/aircraft/keys/a%2Fb", "/settings", "/docs", "/docs/"):
        assert client.get(path, headers=link).status_code == 200
        refused(client.get(path, headers=link | {"Sec-Fetch-Dest": "iframe"}))
        refused(client.get(path, headers=link | {"Sec-Fetch-Dest": "object"}))
        refused(client.get(path, headers=link | {"Sec-Fetch-Mode": "no-cors"}))
        refused(client.post(path, headers=link))
    for path in (
        "/v1/stores",
        "/v1/stores/aircraft/keys/k",
        "/metrics",
        "/openapi.json",
        "/console/console.css",
        "/readyz",
    ):
        refused(client.get(path, headers=link))
        assert client.get(path, headers=link | {"Sec-Fetch-Site": "none"}).status_code in (200, 404)


def test_its_own_host_is_a_name_of_it(tmp_path: Path) -> None:
    config = load_config("a", environment={}, overrides=[f"state.dir={tmp_path}", "server.host=Mine.example"])
    scope: dict[str, Any] = {"method": "GET", "client": ("127.0.0.1", 1)}
    Sites(config).check(scope | {"headers": [(b"host", b"mine.example:8000")]})
    with pytest.raises(ForbiddenError):
        Sites(config).check(scope | {"headers": [(b"host", b"other.example:8000")]})
    Sites(config).check(scope | {"client": None, "headers": [(b"host", b"sibling")]})


def test_the_openapi_document_says_that_it_may_refuse(client: httpx.Client) -> None:
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for operation in methods.values():
            assert "403" in operation["responses"], path
            assert "401" not in operation["responses"], path


def test_values_that_are_remembered_are_few(tmp_path: Path) -> None:
    sites = Sites(load_config("a", environment={}, overrides=[f"state.dir={tmp_path}"]))
    for port in range(1000):
        headers = [(b"host", b"localhost:%d" % port)]
        sites.check({"method": "GET", "client": ("127.0.0.1", 1), "headers": headers})
    assert len(sites._known) <= 100
