"""`/mcp`, asked by the client of the protocol's SDK: tools answer what HTTP answers, to the same callers."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from stateline.server.agents.tools import DEFAULT_LIMIT, MOST_BYTES
from stateline.server.guard.tokens import hash_of
from support.apps.matrix_app import Deployment
from support.http.agent import called, told, with_client
from support.processes.query_server import OwningWorker, wait_until
from support.processes.serve_process import served, until_ready
from support.processes.served_here import Here, served_here
from support.run.patience import HANGING_S

MODES = ("auto", "legacy")  # the protocol of 2026-07-28, and the handshake before it
LARGE = 20_000  # bytes: such a body counts while it is held
BASE_MS = 1_700_000_000_000
ROWS = {f"N{number:03d}": {"seats": number} for number in range(50)}


def post(client: httpx.Client, name: str, headers: dict[str, str] | None = None, **given: Any) -> httpx.Response:
    """One call as a bare request: a message needs nothing before it."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": given}}
    headers = {"Accept": "application/json", "Content-Type": "application/json", **(headers or {})}
    return client.post("/mcp", content=json.dumps(message), headers=headers)  # in ASCII, so that any text can be sent


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwningWorker]:
    """Rows are committed, and the first one is staged again."""
    made = OwningWorker(tmp_path_factory.mktemp("a"))
    made.put_all(ROWS)
    made.commit()
    made.put("N000", {"seats": 999})
    yield made
    made.close()


@pytest.fixture(scope="module")
def here(worker: OwningWorker) -> Iterator[Here]:
    with served_here(worker._state_dir, "server.scan.processes=0") as made:
        yield made


@pytest.fixture
def url(here: Here) -> str:
    return str(here.client.base_url).rstrip("/")


@pytest.mark.parametrize("mode", MODES)
def test_an_agent_sees_what_there_is_and_how_to_ask(url: str, mode: str) -> None:
    async def ask(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == [
            *("list_stores", "describe_store", "get", "range", "windows", "sessions", "versions", "sql"),
            *("topology", "health"),
        ]
        for name, tool in tools.items():
            assert re.search("isolation", tool.description or ""), name
            assert re.search("position", tool.description or "", re.IGNORECASE), name
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint
            assert all(each["description"] for each in tool.input_schema["properties"].values()), name
        assert tools["get"].input_schema["required"] == ["store", "key"]
        stores = (await called(client, "list_stores")).body["stores"]
        assert {each["store"]: each["key_type"] for each in stores} == {
            "aircraft": "string",
            "blobs": "bytes",
            "cache": "string",
            "counts": "int64",
            "places": "json",
        }
        described = (await called(client, "describe_store", store="aircraft")).body
        assert (described["value_type"], described["partitions"]) == ("json", {"active": 3})
        assert described["isolation_level"] == "read_committed"
        assert sum(described["position"]["flights"].values()) == len(ROWS) - 3
        assert (await called(client, "topology")).body["subtopologies"][0]["sources"] == ["flights"]
        assert await called(client, "health") == ({"status": "ready"}, False)

    with_client(url, ask, mode=mode)


def test_a_value_has_its_position_and_is_staged_only_for_those_who_ask_for_it(here: Here, url: str) -> None:
    committed = told(url, "get", store="aircraft", key="N000").body
    assert (committed["value"], committed["isolation_level"]) == ({"seats": 0}, "read_committed")
    staged = told(url, "get", store="aircraft", key="N000", isolation_level="read_uncommitted").body
    assert (staged["value"], staged["isolation_level"]) == ({"seats": 999}, "read_uncommitted")
    (before,), (after,) = (each["position"]["flights"].values() for each in (committed, staged))
    assert after == before + 1
    assert committed == here.client.get("/v1/stores/aircraft/keys/N000").json()
    bound = told(url, "get", store="aircraft", key="N000", position_bound=staged["position"])
    assert bound.reason == "NOT_UP_TO_BOUND"
    assert told(url, "get", store="aircraft", key="none").body["found"] is False


@pytest.mark.parametrize(
    ("name", "given", "reason", "detail"),
    [
        ("get", {"store": "none", "key": "k"}, "DOES_NOT_EXIST", "There is no store 'none'; there are: aircraft"),
        ("get", {"store": "a/b?c", "key": "k"}, "DOES_NOT_EXIST", "Nothing is at"),
        ("get", {"store": "counts", "key": "k"}, "INVALID_ARGUMENT", 'key: "k" is not an int64'),
        ("get", {"store": "counts", "key": 2**70}, "INVALID_ARGUMENT", "is not an int64"),
        ("get", {"store": "aircraft"}, "INVALID_ARGUMENT", "key is missing"),
        ("get", {"key": "k"}, "INVALID_ARGUMENT", "store is missing"),
        ("get", {"store": 7, "key": "k"}, "INVALID_ARGUMENT", "store=7 is not a text"),
        ("get", {"store": "aircraft", "key": "k", "type": "range"}, "INVALID_ARGUMENT", "Unknown parameter 'type'"),
        ("range", {"store": "aircraft", "limit": 1001}, "INVALID_ARGUMENT", "1 to 1000"),
        ("range", {"store": "aircraft", "format": "ndjson"}, "INVALID_ARGUMENT", "Unknown parameter 'format'"),
        ("windows", {"store": "aircraft"}, "UNKNOWN_QUERY_TYPE", "cannot answer 'windows'"),
        ("describe_store", {"store": "none"}, "DOES_NOT_EXIST", "There is no store 'none'"),
        ("sql", {"sql": "select nothing"}, "SQL_INVALID", "nothing"),
        ("sql", {"sql": "select 1", "limit": 0}, "INVALID_ARGUMENT", "limit=0"),
    ],
)
def test_a_mistake_is_an_error_of_the_tool_with_the_reason_of_http(
    url: str, name: str, given: dict[str, Any], reason: str, detail: str
) -> None:
    failed = told(url, name, **given)
    assert failed.reason == reason
    assert detail in failed.body["detail"]


def test_answers_are_small_unless_more_is_asked_for(url: str) -> None:
    async def ask(client: Client) -> None:
        first = (await called(client, "range", store="aircraft")).body
        assert [each["key"] for each in first["entries"]] == list(ROWS)[:DEFAULT_LIMIT]
        then = (await called(client, "range", store="aircraft", cursor=first["cursor"], limit=5)).body
        assert [each["key"] for each in then["entries"]] == list(ROWS)[DEFAULT_LIMIT:][:5]
        assert then["position"] == first["position"]
        everything = (await called(client, "range", store="aircraft", limit=1000)).body
        assert len(everything["entries"]) == len(ROWS)
        assert "cursor" not in everything
        rows = (await called(client, "sql", sql="select key, value from aircraft order by key", limit=3)).body
        assert rows["rows"] == [{"key": key, "value": ROWS[key]} for key in list(ROWS)[:3]]
        assert (rows["more_rows"], rows["isolation_level"]) == (len(ROWS) - 3, "read_committed")
        assert rows["position"] == first["position"]
        large = await called(client, "sql", sql=f"select repeat('x', {MOST_BYTES}) as x")
        assert large.reason == "INVALID_ARGUMENT"
        assert "ask for less" in large.body["detail"]
        with pytest.raises(MCPError, match="There is no tool 'drop'; there are: list_stores"):
            await client.call_tool("drop", {})

    with_client(url, ask)


def test_a_limit_of_the_server_below_the_usual_one_counts(worker: OwningWorker) -> None:
    with served_here(worker._state_dir, "server.limit.max=7", "server.limit.default=5") as few:
        url = str(few.client.base_url).rstrip("/")
        assert len(told(url, "range", store="aircraft").body["entries"]) == 7
        assert told(url, "range", store="aircraft", limit=8).reason == "INVALID_ARGUMENT"


@pytest.mark.parametrize("mode", MODES)
def test_a_token_has_the_rights_that_it_has_over_http(worker: OwningWorker, tmp_path: Path, mode: str) -> None:
    file = tmp_path / "tokens.json"
    given = {"one": ["aircraft"], "all": "*"}
    tokens = [{"name": name, "sha256": hash_of(name).hex(), "stores": stores} for name, stores in given.items()]
    file.write_text(json.dumps({"tokens": tokens}))
    file.chmod(0o600)
    with served_here(worker._state_dir, f"server.tokens.file={file}", "server.scan.processes=0") as guarded:
        url = str(guarded.client.base_url).rstrip("/")
        for token in ("", "wrong"):
            with pytest.RaisesGroup(MCPError, allow_unwrapped=True, flatten_subgroups=True):
                told(url, "health", token=token, mode=mode)
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            answer = post(guarded.client, "health", headers)
            assert (answer.status_code, answer.json()["reason"]) == (401, "UNAUTHENTICATED")
            assert answer.headers["www-authenticate"].startswith("Bearer")

        async def ask(client: Client) -> None:
            assert [each["store"] for each in (await called(client, "list_stores")).body["stores"]] == ["aircraft"]
            assert (await called(client, "get", store="aircraft", key="N001")).body["value"] == {"seats": 1}
            for store in ("counts", "none"):  # whether there is such a store is not told
                assert (await called(client, "range", store=store)).reason == "FORBIDDEN"
                assert (await called(client, "describe_store", store=store)).reason == "FORBIDDEN"
            assert (await called(client, "sql", sql="select * from counts")).reason == "SQL_INVALID"
            assert list((await called(client, "topology")).body["stores"]) == ["aircraft"]

        with_client(url, ask, "one", mode)
        assert told(url, "range", store="counts", token="all", mode=mode).body["entries"] == []
        page = {"Authorization": "Bearer all", "Origin": "http://elsewhere.example"}
        assert post(guarded.client, "health", page).json()["reason"] == "FORBIDDEN"


def test_pages_of_other_sites_are_refused_without_tokens(here: Here) -> None:
    assert post(here.client, "health", {"Origin": str(here.client.base_url).rstrip("/")}).status_code == 200
    for headers in ({"Origin": "http://elsewhere.example"}, {"Host": "elsewhere.example"}):
        assert post(here.client, "health", headers).status_code == 403


def test_a_call_is_logged_and_counted_like_the_request_that_it_makes(worker: OwningWorker) -> None:
    with served(worker._state_dir, "server.access.log=on") as one:
        until_ready(one)
        client = httpx.Client(base_url=one.url, timeout=HANGING_S)
        answer = post(client, "get", store="aircraft", key="N001")
        wait_until(lambda: bool(one.lines("route=/mcp")))
        (outer,) = one.lines("route=/mcp")
        (inner,) = one.lines("route=/v1/stores/{store}/query")
        assert "store=aircraft" in inner
        assert "level=read_committed" in inner
        assert "rows=1" in inner
        assert all(f"request_id={answer.headers['x-request-id']}" in line for line in (outer, inner))
        assert not one.lines("N001")
        post(client, "get", store="aircraft")
        wait_until(lambda: bool(one.lines("outcome=INVALID_ARGUMENT")))


def test_a_call_counts_once_for_the_rate_of_requests(worker: OwningWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    with served_here(worker._state_dir, "server.rate.limit=100000") as limited:
        counted: list[str] = []
        monkeypatch.setattr(limited.limits, "admit", counted.append)
        assert post(limited.client, "get", store="aircraft", key="N001").status_code == 200
        assert counted == ["127.0.0.1"]


@pytest.mark.parametrize("mode", MODES)
def test_a_client_that_leaves_ends_its_query_and_holds_no_message(here: Here, url: str, mode: str) -> None:
    def running() -> int:
        (line,) = re.findall(r"^stateline_http_requests_in_progress (\S+)", here.client.get("/metrics").text, re.M)
        return int(float(line)) - 1  # this one

    async def ask(client: Client) -> None:
        waiting = {"position_bound": {"flights": {"0": 10**6}}, "wait_ms": 60_000, "lower": "k" * LARGE}
        call = asyncio.create_task(called(client, "range", store="aircraft", **waiting))
        while await asyncio.to_thread(running) < 2:
            await asyncio.sleep(0.01)
        assert here.serving.bodies.taken > LARGE
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    with_client(url, ask, mode=mode)
    wait_until(lambda: running() == 0)
    assert here.serving.bodies.taken == 0


def test_what_is_no_message_of_the_protocol_is_refused(here: Here) -> None:
    assert here.client.get("/mcp").status_code == 405
    assert here.client.post("/mcp", content=b"{", headers={"Content-Type": "application/json"}).status_code == 400
    assert post(here.client, "get", store="\ud800", key="k").json()["error"]["code"] == -32700
    large = post(here.client, "get", store="aircraft", key="k" * 300_000)
    assert large.json()["reason"] == "INVALID_ARGUMENT"


def test_it_can_be_turned_off(worker: OwningWorker) -> None:
    with served_here(worker._state_dir, "server.mcp=false") as off:
        assert post(off.client, "health").status_code == 404


def test_a_server_without_the_sdk_says_what_to_install(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    answer = post(here.client, "health")
    assert (answer.status_code, answer.json()["reason"]) == (501, "MCP_NOT_INSTALLED")
    assert answer.json()["detail"].endswith("run `pip install 'stateline[mcp]'`.")


def test_a_server_with_another_sdk_says_what_to_install(worker: OwningWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    with served_here(worker._state_dir) as other:
        for _ in range(2):
            answer = post(other.client, "health")
            assert (answer.status_code, answer.json()["reason"]) == (501, "MCP_NOT_INSTALLED")
            assert "of another version" in answer.json()["detail"]


def test_every_kind_of_store_answers_as_over_http(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, "", uuid4().hex[:8])
    events = [(f"k{number % 13}", number, BASE_MS + number * 2_000) for number in range(60)]
    with deployment.server() as http, deployment.worker(commit__interval__ms=50):
        deployment.send(events)
        deployment.wait_for(http, "committed", deployment.history.ends())
        url = str(http.base_url).rstrip("/")
        asked: list[tuple[str, str, dict[str, Any]]] = [
            ("windows", "counts", {"key": "k1"}),
            ("windows", "counts-in-memory", {"from": BASE_MS, "to": BASE_MS + 100_000, "limit": 9}),
            ("sessions", "visits", {"key": "k2", "order": "desc"}),
            ("versions", "history", {"key": "k0", "limit": 3}),
            ("range", "history", {"as_of": BASE_MS + 100_000}),
            ("get", "history", {"key": "k0", "as_of": BASE_MS + 100_000}),
        ]

        async def ask(client: Client) -> None:
            for name, store, given in asked:
                body = {"type": "key" if name == "get" else name, **given}
                wanted = http.post(f"/v1/stores/{store}/query", json=body).json()
                found = (await called(client, name, store=store, **given)).body
                for each in (wanted, found):
                    each.pop("cursor", None)
                    each.pop("partitions")
                assert found == wanted
                assert found.get("found") or found["entries"]
            sql = "select count(*) as n from latest"  # which a scan process runs
            rows = (await called(client, "sql", sql=sql)).body
            assert rows["rows"] == [{"n": 13}]
            assert rows["position"] == (await called(client, "range", store="latest")).body["position"]

        for mode in MODES:
            with_client(url, ask, mode=mode)
