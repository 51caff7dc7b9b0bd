"""The guard over HTTP: who is let in where, and what the others are told."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from stateline.cli import tokens as cli_tokens
from stateline.config.loading import load_config
from stateline.server import create_app, serve
from stateline.server.contract.console_paths import FILES, PAGES
from stateline.server.guard.access import AccessMiddleware, is_open, stores_of
from stateline.server.guard.caller import client_of
from stateline.server.guard.limits import Limits
from stateline.server.guard.tokens import Tokens, bearer_token
from stateline.server.wire.compression import CompressionMiddleware
from stateline_store import ConfigurationError, UnauthenticatedError
from support.processes.query_server import OwningWorker, make_app, server_process, wait_until
from support.processes.served_here import http_server

STORES = ("aircraft", "blobs", "cache", "counts", "places")
OPEN = {*PAGES, FILES, "/healthz", "/readyz"}
PROBLEM = "application/problem+json"


class Guarded(NamedTuple):
    """A server with tokens, and a client that sends none unless a test says so."""

    client: httpx.Client
    file: Path
    state_dir: Path
    one: dict[str, str]
    """Headers of a token for `aircraft` alone."""
    all: dict[str, str]
    admin: dict[str, str]


def run_cli(*arguments: str) -> str:
    """The output of `stateline token`, in this process."""
    from typer.testing import CliRunner

    done = CliRunner().invoke(cli_tokens.commands, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


def added(file: Path, name: str, *options: str) -> dict[str, str]:
    """The headers of a new token."""
    return {"Authorization": f"Bearer {run_cli('add', name, *options, '--file', str(file))}"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    state_dir = tmp_path_factory.mktemp("g")
    file = tmp_path_factory.mktemp("tokens") / "tokens.json"
    one, everything = added(file, "one", "--stores", "aircraft"), added(file, "all")
    admin = added(file, "root", "--role", "admin")
    worker = OwningWorker(state_dir)
    worker.put("k", 1)
    worker.commit()
    level = "default.state.isolation.level=read_committed"
    with http_server(state_dir, f"server.tokens.file={file}", level) as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)
        yield Guarded(client, file, state_dir, one, everything, admin)
    worker.close()


def refused(response: httpx.Response, status: int, reason: str) -> dict[str, Any]:
    """The problem, having checked that it is one."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == PROBLEM
    problem: dict[str, Any] = response.json()
    assert (problem["status"], problem["reason"]) == (status, reason)
    assert len(problem["detail"]) > 10
    return problem


def routes(state_dir: Path) -> list[Route]:
    """Every route that there is, from the application's own table."""
    found = create_app(make_app(), load_config("flights-app", overrides=[f"state.dir={state_dir}"])).routes
    assert len(found) > 15
    assert all(isinstance(route, Route) for route in found), "what is no route needs a guard of its own"
    return [route for route in found if isinstance(route, Route)]


def address_of(route: Route, store: str) -> str:
    """A path that the route takes."""
    given = {"store": store, "key": "k", "partition": "0", "p": "0", "id": "0", "path": "console.css"}
    return re.sub(r"\{(\w+)(:\w+)?\}", lambda found: given.get(found[1], "x"), route.path)


def test_every_route_that_is_not_open_wants_a_token(guarded: Guarded, tmp_path: Path) -> None:
    for route in routes(tmp_path):
        for method in sorted((route.methods or set()) - {"HEAD"}):
            response = guarded.client.request(method, address_of(route, "aircraft"))
            if route.path in OPEN:
                assert response.status_code == 200, route.path
            else:
                refused(response, 401, "UNAUTHENTICATED")
                assert response.headers["www-authenticate"] == 'Bearer realm="stateline"', route.path


def test_every_route_with_a_store_wants_a_token_for_it(guarded: Guarded, tmp_path: Path) -> None:
    below_stores = [route for route in routes(tmp_path) if "{store}" in route.path]
    assert len(below_stores) > 5
    for route in below_stores:
        for method in sorted((route.methods or set()) - {"HEAD"}):
            response = guarded.client.request(method, address_of(route, "counts"), headers=guarded.one)
            problem = refused(response, 403, "FORBIDDEN")
            assert "'counts'" in problem["detail"], route.path
            assert problem["store"] == "counts"
            with guarded.client.stream(method, address_of(route, "aircraft"), headers=guarded.one) as own:
                assert own.status_code not in (401, 403), route.path  # its answer may never end


def test_a_store_that_does_not_exist_is_forbidden_like_any_other(guarded: Guarded) -> None:
    there, nowhere = (guarded.client.get(f"/v1/stores/{s}/count", headers=guarded.one) for s in ("counts", "nope"))
    assert refused(there, 403, "FORBIDDEN")["detail"].replace("counts", "nope") == nowhere.json()["detail"]
    refused(guarded.client.get("/v1/stores/nope/count", headers=guarded.all), 404, "DOES_NOT_EXIST")


def test_holders_are_answered(guarded: Guarded) -> None:
    for headers in (guarded.one, guarded.all, guarded.admin):
        assert guarded.client.get("/v1/stores/aircraft/keys/k", headers=headers).json()["value"] == 1
        for path in ("/v1/stores", "/v1/topology", "/v1/instances", "/docs", "/openapi.json"):
            assert guarded.client.get(path, headers=headers).status_code == 200, path
    for headers in (guarded.all, guarded.admin):
        assert guarded.client.get("/v1/stores/counts/count", headers=headers).status_code == 200


def test_listings_have_the_stores_that_the_token_may_read(guarded: Guarded) -> None:
    for headers, may in ((guarded.one, ["aircraft"]), (guarded.all, STORES), (guarded.admin, STORES)):
        listed = guarded.client.get("/v1/stores", headers=headers).json()["stores"]
        assert sorted(store["store"] for store in listed) == sorted(may)
        topology = guarded.client.get("/v1/topology", headers=headers).json()
        assert sorted(topology["stores"]) == sorted(may)
        assert sorted(name for s in topology["subtopologies"] for name in s["stores"]) == sorted(may)


def test_metrics_name_every_store_and_want_a_token_for_all_of_them(guarded: Guarded) -> None:
    for headers in (guarded.all, guarded.admin):
        assert guarded.client.get("/metrics", headers=headers).status_code == 200
    refused(guarded.client.get("/metrics", headers=guarded.one), 403, "FORBIDDEN")


def test_the_console_shows_a_token_the_stores_that_it_may_read(guarded: Guarded) -> None:
    for headers, may in ((guarded.one, ["aircraft"]), (guarded.all, STORES)):
        body = guarded.client.get("/v1/console?store=counts", headers=headers).json()
        assert sorted(store["store"] for store in body["stores"]) == sorted(may)
        assert body["selected"] == ("counts" if "counts" in may else "aircraft")
        assert (body["queries"] is None) == (headers is guarded.one)
        assert set(body["commits"]) == {"0_0", "0_1", "0_2"}


def test_the_consoles_history_has_no_queries_and_commits_of_others(guarded: Guarded) -> None:
    def newest(headers: dict[str, str]) -> dict[str, Any]:
        body = guarded.client.get("/v1/console/history", headers=headers).json()
        return dict(zip(["at_ms", *body["names"]], body["points"][-1], strict=True)) if body["points"] else {}

    nothing = added(guarded.file, "none", "--stores", "nope")
    wait_until(lambda: newest(guarded.all).get("commit_age_ms") is not None)
    wait_until(lambda: newest(guarded.all)["queries_per_s"] is not None)
    for headers, sees in ((guarded.one, True), (nothing, False)):
        found = newest(headers)
        assert [found[name] for name in ("commits_per_s", "queries_per_s", "p50_ms", "p99_ms")] == [None] * 4
        assert (found["commit_age_ms"] is not None) is sees


def test_the_consoles_settings_are_told_to_who_reads_every_store_without_secrets(guarded: Guarded) -> None:
    refused(guarded.client.get("/v1/console/settings", headers=guarded.one), 403, "FORBIDDEN")
    login = ("consumer.sasl.username=ann", "consumer.sasl.mechanism=PLAIN", "admin.ssl.key.password=open")
    with http_server(guarded.state_dir, f"server.tokens.file={guarded.file}", *login) as client:
        listed = client.get("/v1/console/settings", headers=guarded.all).json()["settings"]
    found = {row["name"]: row for row in listed}
    about = "The permissions of tokens: a file that `stateline token` writes. Unset: everyone may ask everything."
    tokens = {"name": "server.tokens.file", "value": str(guarded.file), "origin": "--set", "about": about}
    assert found["server.tokens.file"] == tokens
    assert found["num.workers"]["origin"] == "default"
    assert {found[setting.partition("=")[0]]["value"] for setting in login} == {"[hidden]"}


def test_the_openapi_document_names_no_store_that_the_token_may_not_read(guarded: Guarded) -> None:
    for headers, may in ((guarded.one, {"aircraft"}), (added(guarded.file, "no", "--stores", "nope"), set())):
        paths = guarded.client.get("/openapi.json", headers=headers).json()["paths"].values()
        operations = [operation for methods in paths for operation in methods.values()]
        named = {p["example"] for o in operations for p in o["parameters"] if p["name"] == "store" and "example" in p}
        assert named == may


def test_a_token_for_stores_that_there_are_not_is_told_of_nothing(guarded: Guarded) -> None:
    nothing = added(guarded.file, "nothing", "--stores", "nope")
    topology = guarded.client.get("/v1/topology", headers=nothing).json()
    assert {name: found for name, found in topology.items() if found} == {"application_id": "flights-app"}
    (instance,) = guarded.client.get("/v1/instances", headers=nothing).json()["instances"]
    assert instance["tasks"] == {}
    for headers in (guarded.one, guarded.all):
        assert len(guarded.client.get("/v1/topology", headers=headers).json()["topics"]) == 1
        assert len(guarded.client.get("/v1/instances", headers=headers).json()["instances"][0]["tasks"]) == 3


def test_the_rows_of_a_snapshot_want_a_token_for_every_store_of_it(guarded: Guarded) -> None:
    body = {"stores": ["aircraft", "counts"]}
    made = guarded.client.post("/v1/snapshots", json=body, headers=guarded.all).json()
    path = f"/v1/snapshots/{made['id']}"
    for each in (path, f"{path}/stores/aircraft/partitions/0"):
        assert guarded.client.get(each, headers=guarded.all).status_code == 200
        assert "'counts'" in refused(guarded.client.get(each, headers=guarded.one), 403, "FORBIDDEN")["detail"]
    listed = guarded.client.get("/v1/snapshots", headers=guarded.one).json()["snapshots"]
    assert made["id"] not in [each["id"] for each in listed]
    assert guarded.client.delete(path, headers=guarded.all).status_code == 204


def test_a_snapshot_is_changed_by_the_token_that_made_it_or_by_an_admin(guarded: Guarded) -> None:
    other = added(guarded.file, "other")
    for owner in (guarded.one, guarded.all, guarded.admin):
        made = guarded.client.post("/v1/snapshots", json={"stores": ["aircraft"]}, headers=owner).json()
        path = f"/v1/snapshots/{made['id']}"
        for stranger in (guarded.one, guarded.all, other):
            if stranger is not owner:
                refused(guarded.client.patch(path, json={"ttl_s": 1}, headers=stranger), 403, "FORBIDDEN")
                refused(guarded.client.delete(path, headers=stranger), 403, "FORBIDDEN")
                assert guarded.client.get(path, headers=stranger).json() == made, "who may read the store may read it"
        assert guarded.client.patch(path, json={"ttl_s": 99}, headers=owner).status_code == 200
        assert guarded.client.patch(path, json={"ttl_s": 98}, headers=guarded.admin).status_code == 200
        refused(guarded.client.delete(path, headers=other), 403, "FORBIDDEN")
        assert guarded.client.delete(path, headers=owner).status_code == 204


def test_a_snapshot_that_nobody_is_named_for_is_changed_by_admins_alone(guarded: Guarded) -> None:
    made = guarded.client.post("/v1/snapshots", json={"stores": ["aircraft"]}, headers=guarded.all).json()
    manifest = guarded.state_dir / "flights-app" / "snapshots" / made["id"] / "snapshot.json"
    members = json.loads(manifest.read_bytes())
    assert members.pop("owner") == "all"
    manifest.write_text(json.dumps(members))
    path = f"/v1/snapshots/{made['id']}"
    refused(guarded.client.delete(path, headers=guarded.all), 403, "FORBIDDEN")
    assert guarded.client.get(path, headers=guarded.all).json() == made
    assert guarded.client.delete(path, headers=guarded.admin).status_code == 204


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        "Basic dXNlcjpwYXNzd29yZA==",
        "Token {token}",
        "{token}",
        "Bearer{token}",
        "Bearer\t{token}",
        "Bearer {token} {token}",
        "Bearer {token},",
        'Bearer "{token}"',
        "Bearer token={token}",
        "Bearer {token}=",
        "Bearer x{token}",
        "Bearer " + "a" * 5_000,
        "Bearer \xff\xfe",
        "Bearer {token}, Bearer {token}",
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_header_that_is_no_valid_token_is_refused(guarded: Guarded, value: str) -> None:
    token = guarded.all["Authorization"].removeprefix("Bearer ")
    headers = {b"Authorization": value.replace("{token}", token).encode("latin-1")}
    response = guarded.client.get("/v1/stores/aircraft/keys/k", headers=headers)
    refused(response, 401, "UNAUTHENTICATED")
    assert response.headers["www-authenticate"] == 'Bearer realm="stateline", error="invalid_token"'
    assert token not in response.text


def test_a_token_that_is_there_twice_is_refused(guarded: Guarded) -> None:
    twice = [("Authorization", guarded.all["Authorization"])] * 2
    refused(guarded.client.get("/v1/stores", headers=twice), 401, "UNAUTHENTICATED")


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER   "])
def test_the_scheme_is_read_in_any_case(guarded: Guarded, scheme: str) -> None:
    value = guarded.all["Authorization"].replace("Bearer ", scheme)
    assert guarded.client.get("/v1/stores", headers={"authorization": value}).status_code == 200


@pytest.mark.parametrize("name", ["access_token", "token", "authorization", "api_key"])
def test_a_token_in_the_url_is_not_accepted(guarded: Guarded, name: str) -> None:
    token = guarded.all["Authorization"].removeprefix("Bearer ")
    for value in (token, f"Bearer {token}"):
        refused(guarded.client.get("/v1/stores", params={name: value}), 401, "UNAUTHENTICATED")
    refused(guarded.client.get("/v1/stores", cookies={name: token}), 401, "UNAUTHENTICATED")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/stores/counts%2Fcount",
        "/v1%2Fstores/counts/count",
        "/v1%2Fstores%2Fcounts%2Fcount",
        "/v1/stores%2Fcounts/count",
        "/v1/stores/%63ounts/count",
        "/v1/stores/counts/keys/1",
        "/v1/stores/aircraft%2F..%2Fcounts/count",
        "/v1/stores/aircraft%2Fkeys/counts/count",
        "/v1/stores/counts%2Fkeys%2F..%2F..%2Faircraft/keys/k",
        "/v1/stores/counts/",
        "/v1/stores/",
        "/v1/snapshots/0/stores/counts/partitions/0",
        "/v1/snapshots/0/stores/%63ounts/partitions/0",
        "/v1/snapshots/0%2Fstores%2Fcounts/partitions/0",
    ],
)
def test_a_store_cannot_be_named_around_the_guard(guarded: Guarded, path: str) -> None:
    """Sent byte for byte, as no client library would."""
    head = (
        f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {guarded.one['Authorization']}\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection((guarded.client.base_url.host, guarded.client.base_url.port or 80)) as raw:
        raw.sendall(head.encode())
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert answer.split(b" ")[1] in (b"403", b"404"), answer
    assert b"approximate_entries" not in answer


def test_health_is_told_to_everybody_and_reasons_to_holders_of_their_stores(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    one, everything = added(file, "one", "--stores", "aircraft"), added(file, "all")
    (tmp_path / "s").mkdir()
    with server_process(tmp_path / "s", f"server.tokens.file={file}") as client:
        worker = OwningWorker(tmp_path / "s")
        wait_until(lambda: client.get("/readyz").status_code == 200)
        worker.close(killed=True)
        wait_until(lambda: client.get("/readyz").status_code == 503)
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            assert client.get("/healthz", headers=headers).json() == {"status": "alive"}
            problem = refused(client.get("/readyz", headers=headers), 503, "NOT_READY")
            assert "reasons" not in problem
            assert not any(store in str(problem) for store in STORES)
        told = [client.get("/readyz", headers=headers).json()["reasons"] for headers in (one, everything)]
        assert all("'aircraft'" in reason for reason in told[0])
        assert any("'counts'" in reason for reason in told[1])
        for store in worker.stores.values():
            store.close()


def test_tokens_are_rotated_while_the_server_runs(guarded: Guarded) -> None:
    def status(headers: dict[str, str]) -> int:
        return guarded.client.get("/v1/stores/blobs/count", headers=headers).status_code

    old = added(guarded.file, "rotated", "--stores", "blobs")
    assert status(old) == 200
    new = added(guarded.file, "rotated-2", "--stores", "blobs")
    assert (status(old), status(new)) == (200, 200)
    run_cli("remove", "rotated", "--file", str(guarded.file))
    assert (status(old), status(new), status(guarded.all)) == (401, 200, 200)
    good = guarded.file.read_bytes()
    guarded.file.write_text("{")
    assert (status(old), status(new)) == (401, 200), "the last good tokens stay"
    guarded.file.write_bytes(good)
    run_cli("remove", "rotated-2", "--file", str(guarded.file))
    assert status(new) == 401


def test_a_token_expires_while_the_server_runs(guarded: Guarded) -> None:
    headers = added(guarded.file, "short", "--expires", "1h")
    assert guarded.client.get("/v1/stores", headers=headers).status_code == 200
    content = guarded.file.read_text()
    expires = re.findall(r'"expires_at": "(\S+)"', content)
    assert len(expires) == 1
    guarded.file.write_text(content.replace(expires[0], "2020-01-01T00:00:00Z"))
    problem = refused(guarded.client.get("/v1/stores", headers=headers), 401, "UNAUTHENTICATED")
    assert "expired" in problem["detail"]


def test_a_wrong_token_does_not_cost_what_a_right_one_has(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    holder = added(file, "holder")
    (tmp_path / "s").mkdir()
    with http_server(tmp_path / "s", f"server.tokens.file={file}", "server.rate.limit=1") as client:
        assert guesses(client) == {401, 429}, "guessing has a limit, whoever X-Forwarded-For says is guessing"
        assert client.get("/v1/topology", headers=holder).status_code == 200


def test_a_proxy_is_believed_when_it_is_named(tmp_path: Path) -> None:
    added(tmp_path / "tokens.json", "holder")
    settings = (f"server.tokens.file={tmp_path}/tokens.json", "server.rate.limit=1")
    with http_server(tmp_path, *settings, "server.forwarded.allow.ips=10.0.0.0/8, 127.0.0.1") as client:
        assert guesses(client) == {401}


def guesses(client: httpx.Client) -> set[int]:
    """How wrong tokens of ever other addresses are answered, going by a header that anybody can send."""
    said = ({"Authorization": f"Bearer {n}", "X-Forwarded-For": f"198.51.100.{n}"} for n in range(200))
    return {client.get("/v1/stores", headers=headers).status_code for headers in said}


def test_the_openapi_document_says_who_is_refused(guarded: Guarded) -> None:
    document = guarded.client.get("/openapi.json", headers=guarded.one).json()
    assert document["components"]["securitySchemes"]["token"] == {"type": "http", "scheme": "bearer"}
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert ({"401", "403"} <= operation["responses"].keys()) == (path not in OPEN), path
            assert operation.get("security") == (None if path in OPEN else [{"token": []}]), path


# Binding


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_binding_wider_without_tokens_is_refused(tmp_path: Path, host: str) -> None:
    config = load_config("flights-app", overrides=[f"state.dir={tmp_path}", f"server.host={host}", "server.port=0"])
    with pytest.raises(ConfigurationError) as raised:
        serve(make_app(), config)
    assert str(raised.value).startswith(f"server.host = '{host}' (from --set) is reached by other machines")
    assert "server.tokens.file" in str(raised.value)
    assert "server.insecure=true" in str(raised.value)


def test_binding_wider_is_possible_with_tokens_or_when_told_so(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    added(file, "holder")
    (tmp_path / "s").mkdir()
    for setting, status in ((f"server.tokens.file={file}", 401), ("server.insecure=true", 200)):
        with http_server(tmp_path / "s", "server.host=0.0.0.0", setting) as client:
            assert client.get("/v1/topology").status_code == status


def test_a_tokens_file_that_is_not_there_ends_the_server_at_its_start(tmp_path: Path) -> None:
    settings = [f"state.dir={tmp_path}", "server.port=0", f"server.tokens.file={tmp_path}/none.json"]
    with pytest.raises(ConfigurationError, match=r"server\.tokens\.file = .* cannot be read"):
        serve(make_app(), load_config("flights-app", overrides=settings))


def test_nobody_pays_for_a_guard_that_has_nothing_to_do(tmp_path: Path) -> None:
    def middleware(*settings: str) -> list[object]:
        config = load_config("flights-app", overrides=[f"state.dir={tmp_path}", *settings])
        return [entry.cls for entry in create_app(make_app(), config).user_middleware]

    assert AccessMiddleware not in middleware()
    assert middleware("server.rate.limit=5")[-2:] == [AccessMiddleware, CompressionMiddleware]


def test_all_of_a_process_asks_one_reader_of_the_tokens_file(tmp_path: Path) -> None:
    added(file := tmp_path / "tokens.json", "one")
    settings = [f"state.dir={tmp_path}", f"server.tokens.file={file}"]
    api = create_app(make_app(), load_config("flights-app", overrides=settings))
    (guard,) = (each for each in api.user_middleware if "tokens" in each.kwargs)
    assert guard.kwargs["tokens"] is api.state.serving.tokens


# Answers that take long, streams, and what is not HTTP


@pytest.mark.parametrize("status", [200, 404, 500])
def test_a_token_that_is_removed_while_its_query_waits_gets_401(tmp_path: Path, status: int) -> None:
    file = tmp_path / "tokens.json"
    headers = added(file, "waiting")

    async def wait(request: Request) -> Response:
        run_cli("remove", "waiting", "--file", str(file))
        return Response("what it may not read any more", status, headers={"Stateline-Position": "{}"})

    async def ask() -> httpx.Response:
        guard = AccessMiddleware(
            Starlette(routes=[Route("/wait", wait)]), Tokens(file), Limits(load_config("flights-app"))
        )
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://localhost") as client:
            return await client.get("/wait", headers=headers)

    response = asyncio.run(ask())
    refused(response, 401, "UNAUTHENTICATED")
    assert "invalid_token" in response.headers["www-authenticate"]
    assert "stateline-position" not in response.headers


def test_a_stream_is_cut_when_its_token_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    authorization = added(file, "reader")["Authorization"].encode()
    pieces: list[bytes] = []

    async def stream(request: Request) -> Response:
        async def content() -> AsyncIterator[bytes]:
            yield b"first"
            run_cli("remove", "reader", "--file", str(file))
            yield b"second"

        return StreamingResponse(content())

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: MutableMapping[str, Any]) -> None:
        pieces.append(message.get("body", b""))
        assert message.get("more_body", message["type"] == "http.response.start"), "it looks complete"

    guard = AccessMiddleware(
        Starlette(routes=[Route("/stream", stream)]), Tokens(file), Limits(load_config("flights-app"))
    )
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/stream", "raw_path": b"/stream"}
    scope |= {"query_string": b"", "headers": [(b"authorization", authorization)], "client": ("127.0.0.1", 1)}
    scope["asgi"] = {"spec_version": "2.4"}
    asyncio.run(guard(scope, receive, send))
    assert b"".join(pieces) == b"first"


def test_what_is_not_http_is_closed(tmp_path: Path) -> None:
    sent: list[MutableMapping[str, Any]] = []

    async def application(*_: object) -> None:
        pytest.fail("it came through")

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    guard = AccessMiddleware(application, None, Limits(load_config("flights-app")))
    asyncio.run(guard({"type": "websocket", "path": "/v1/stores", "headers": []}, receive, send))
    assert [message["type"] for message in sent] == ["websocket.close"]


# Pure parts


@pytest.mark.parametrize(
    ("raw_path", "stores"),
    [
        (b"/v1/stores/orders", ("orders",)),
        (b"/v1/stores/orders/keys/a%2Fb", ("orders",)),
        (b"/v1/stores/a%20b/range", ("a b",)),
        (b"/v1/stores/a%2Fkeys/range", ("a", "a/keys")),
        (b"/v1/stores", ()),
        (b"/v1/snapshots", ()),
        (b"/v1/snapshots/7", ()),
        (b"/v1/snapshots/7/stores/orders/partitions/0", ("orders",)),
        (b"/v1/topology", ()),
        (b"/", ()),
    ],
)
def test_a_path_names_the_stores_that_a_handler_may_read_from_it(raw_path: bytes, stores: tuple[str, ...]) -> None:
    from urllib.parse import unquote

    assert stores_of(unquote(raw_path.decode()), raw_path) == stores


@pytest.mark.parametrize(
    "path",
    [
        "/console",
        "/console/",
        "/stores/",
        "/stores//keys/k",
        "/stores/s/key",
        "/queries/q",
        "/healthz/",
        "//",
        "",
        "/v1",
        "/readyz/x",
    ],
)
def test_only_whole_paths_are_open(path: str) -> None:
    assert not is_open(path)


def test_addresses_of_one_network_count_together() -> None:
    assert client_of("10.1.2.3") == "10.1.2.3"
    assert client_of("2001:db8:1:2:3::4") == client_of("2001:db8:1:2::5") != client_of("2001:db8:1:3::4")
    assert client_of("fe80::1%eth0") == client_of("fe80::2")
    assert client_of("no:address") == "no:address"


def test_a_token_is_never_shown_in_the_refusal_of_its_header() -> None:
    with pytest.raises(UnauthenticatedError) as raised:
        bearer_token([(b"authorization", b"Basic secret")])
    assert "secret" not in str(raised.value)
