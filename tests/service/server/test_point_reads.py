"""Reads of one key, which are answered before any routing: always what the routes would answer.

A request that has a percent-encoded byte in its path is left to the routes, so each can be asked both ways.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateline.config.loading import load_config
from stateline.server.guard.tokens import hash_of, new_token
from stateline.server.main import create_app
from stateline.server.queries.point_reads import LATER
from stateline.server.state.worker_connection import POINT_TIMEOUT_S
from stateline.server.wire.http_protocol import AT_ONCE
from stateline_store import StoreState
from support.processes.query_server import TOPIC, OwningWorker, make_app, wait_until
from support.processes.served_here import http_server
from support.run.length import long_only
from support.run.patience import HANGING_S

CLIENT = {"client": ("127.0.0.1", 1), "headers": [(b"host", b"localhost")]}
KEYS = ("N1", "N2", "a.b-c_d~", "absent", "null", "elsewhere", "staged")
QUERIES = (
    "",
    "isolation_level=read_committed",
    "isolation_level=read_uncommitted",
    "isolation_level=READ_COMMITTED",
    "require_active=true",
    "allow_partial=true",
    "partition=0",
    "partition=0&partition=1&partition=2",
    "partition=7",
    "wait_ms=1",
    "wait_ms=-1",
    'position_bound={"flights":{"0":0}}',
    'position_bound={"flights":{"0":99999}}&wait_ms=1',
    "position_bound={}",
    'position_bound={"weather":{"0":1}}',
    "as_of=1",
    "limit=1",
    "isolation_level=read_committed&isolation_level=read_committed",
    "%zz",
    "a=%C3%28",
)


@pytest.fixture(scope="module")
def filled(worker: OwningWorker) -> OwningWorker:
    worker.put("N1", {"seen": 1})
    worker.put("N2", "text")
    worker.put("a.b-c_d~", [1, 2])
    worker.put("null", None)
    worker.put("elsewhere", 1, partition=(worker.put("elsewhere", None).partition + 1) % 3)
    worker.commit()
    worker.put("staged", 1)
    return worker


@pytest.fixture(scope="module")
def server(filled: OwningWorker, state_dir: Path) -> Iterator[httpx.Client]:
    with http_server(state_dir, "default.state.isolation.level=read_committed") as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)
        yield client


def what_was_said(answer: httpx.Response) -> tuple[int, list[tuple[str, str]], bytes]:
    headers = sorted((name, value) for name, value in answer.headers.items() if name not in ("date", "x-request-id"))
    return answer.status_code, headers, answer.content


def both_ways(key: str) -> tuple[str, str]:
    return key, f"%{ord(key[0]):02X}{key[1:]}"


@pytest.mark.parametrize(
    "store",
    [
        *("aircraft", "cache", "counts", "none"),
        *(pytest.param(store, marks=long_only("the keys of counts have a type, too")) for store in ("blobs", "places")),
    ],
)
@pytest.mark.parametrize("query", QUERIES)
def test_every_request_is_answered_as_the_routes_answer_it(server: httpx.Client, store: str, query: str) -> None:
    for key in (*KEYS, "1", "bm90", "not base64!"):
        here, there = (server.get(f"/v1/stores/{store}/keys/{k}?{query}") for k in both_ways(key.replace(" ", "+")))
        assert what_was_said(here) == what_was_said(there), key


def test_what_can_be_answered_at_once_is_and_nothing_else(
    filled: OwningWorker, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = create_app(make_app(), load_config("flights-app", environment={}, overrides=[f"state.dir={state_dir}"]))

    def asked(later: Callable[..., None], path: str, query: str, method: str = "GET") -> Any:
        raw = path.encode()
        scope = {"method": method, "root_path": "", "raw_path": raw, "query_string": query.encode(), **CLIENT}
        return api.state.at_once(scope, later)

    def at_once(path: str, query: str = "isolation_level=read_committed", method: str = "GET") -> Any:
        body = asked(pytest.fail, path, query, method)
        return None if body is None else json.loads(body)["value"]

    async def by_the_worker(path: str, query: str) -> Any:
        told: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        assert asked(told.set_result, path, query) == LATER
        body = await told
        return None if body is None else json.loads(body)["value"]

    async def ask() -> None:
        async with api.router.lifespan_context(api):
            while await api.state.serving.readiness.reasons_not_ready():
                await asyncio.sleep(0.01)
            keys = "/v1/stores/aircraft/keys"
            assert at_once(f"{keys}/N1") == {"seen": 1}
            assert at_once(f"{keys}/N2", "wait_ms=5&isolation_level=read_committed") == "text"
            assert at_once(f"{keys}/N2", 'position_bound={"flights":{}}&isolation_level=read_committed') == "text"
            for path in ("absent", "null", "elsewhere", "staged", "%4E1", "N1/windows", "N\xe9", ""):
                assert at_once(f"{keys}/{path}") is None, path
            for query in ("isolation_level=read_committed&partition=0", "partition=0", "as_of=1"):
                assert at_once(f"{keys}/N1", query) is None, query
            for path in (f"{store}/keys/N1" for store in ("/v1/stores/none", "/v2/stores/aircraft", "")):
                assert at_once(path) is None, path
            uncommitted = "isolation_level=read_uncommitted"
            assert await by_the_worker(f"{keys}/staged", uncommitted) == 1
            assert await by_the_worker(f"{keys}/N1", "") == {"seen": 1}, "uncommitted unless it is set"
            assert await by_the_worker("/v1/stores/cache/keys/N1", "isolation_level=read_committed") == {"seen": 1}
            for path in ("absent", "null", "elsewhere"):
                assert await by_the_worker(f"{keys}/{path}", uncommitted) is None, path
            assert at_once(f"{keys}/N1", method="HEAD") is None
            api.state.serving.readiness.stop()
            assert at_once(f"{keys}/N1") is None

    asyncio.run(ask())


def test_who_asks_a_worker_that_is_busy_gets_its_answer_later(server: httpx.Client, filled: OwningWorker) -> None:
    read = "/v1/stores/aircraft/keys/N1?isolation_level=read_uncommitted"
    with ThreadPoolExecutor(1) as busy:
        done = busy.submit(filled.run, lambda: time.sleep(POINT_TIMEOUT_S + 0.5))
        answers = [server.get(read, timeout=HANGING_S) for _ in range(2)]
        done.result(HANGING_S)
    assert [(answer.status_code, answer.json()["value"]) for answer in answers] == [(200, {"seen": 1})] * 2


def test_a_commit_is_seen_by_the_next_read(server: httpx.Client, filled: OwningWorker) -> None:
    for number in range(20):
        filled.put("moving", number)
        filled.commit()
        answer = server.get("/v1/stores/aircraft/keys/moving").json()
        assert answer["value"] == number
        partition = next(iter(answer["partitions"]))
        assert answer["position"] == {TOPIC: {partition: filled.offset(int(partition))}}


def test_a_commit_is_seen_by_the_next_read_of_a_server_that_nobody_has_told_yet(tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path)
    partition = worker.put("moving", 0).partition
    worker.commit()
    store = worker.stores["aircraft", partition]
    with http_server(tmp_path, "default.state.isolation.level=read_committed", "server.follow.ms=0") as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)
        for number in range(1, 20):
            assert client.get("/v1/stores/aircraft/keys/moving").json()["value"] == number - 1
            worker.put("moving", number)
            worker.run(lambda: store.commit({}))
            answer = client.get("/v1/stores/aircraft/keys/moving").json()
            assert answer["value"] == number
            assert answer["position"] == {TOPIC: {str(partition): worker.offset(partition)}}
    worker.close()


def test_whatever_the_worker_does_each_read_says_what_the_routes_say(tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path)
    worker.put("N1", 0)
    worker.commit()
    with http_server(tmp_path, "default.state.isolation.level=read_committed") as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)

        def said() -> Any:
            found = list[tuple[int, list[tuple[str, str]], bytes]]()

            def are_equal() -> bool:  # not while the server hears that the worker has gone, or is there
                found[:] = [what_was_said(client.get(f"/v1/stores/aircraft/keys/{key}")) for key in both_ways("N1") * 3]
                return all(each == found[1] for each in found)

            wait_until(are_equal)
            return json.loads(found[0][2])

        def reopen() -> None:
            nonlocal worker
            worker.close()
            worker = OwningWorker(tmp_path)

        assert said()["value"] == 0
        for number in range(1, 4):
            worker.put("N1", number)
            assert said()["value"] == number - 1
            worker.commit()
            assert said()["value"] == number
            for state in (StoreState.RESTORING, StoreState.ACTIVE):
                worker.set_state(state)
                assert "status" in (told := said()) or told["value"] == number
            reopen()
            wait_until(lambda: client.get("/readyz").status_code == 200)
            assert said()["value"] == number
        worker.close()
        said()


def test_requests_sent_ahead_are_answered_in_their_order(server: httpx.Client) -> None:
    paths = ["keys/N1", "range?limit=1", "keys/N2", "keys/absent", "keys/%4E1", "keys/a.b-c_d~"] * (3 * AT_ONCE)
    sent = b"".join(f"GET /v1/stores/aircraft/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for path in paths)
    with socket.create_connection((server.base_url.host, server.base_url.port or 0), timeout=HANGING_S) as connection:
        connection.sendall(sent)
        bodies = read_answers(connection, len(paths))
    wanted = [server.get(f"/v1/stores/aircraft/{path}").json() for path in paths[:6]]
    for at, body in enumerate(bodies):
        found = json.loads(body)
        found.pop("cursor", None)
        wanted[at % 6].pop("cursor", None)
        assert found == wanted[at % 6]


@pytest.mark.parametrize("head", ["GET %s HTTP/1.0\r\n", "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"])
def test_a_client_that_wants_no_second_answer_is_hung_up_on(server: httpx.Client, head: str) -> None:
    with socket.create_connection((server.base_url.host, server.base_url.port or 0), timeout=HANGING_S) as connection:
        connection.sendall((head % "/v1/stores/aircraft/keys/N1" + "\r\n").encode())
        answer = b""
        while more := connection.recv(65536):
            answer += more
    assert b"connection: close" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["value"] == {"seen": 1}


def test_a_body_that_nobody_asked_for_does_not_disturb_the_next_request(server: httpx.Client) -> None:
    for _ in range(3):
        answer = server.request("GET", "/v1/stores/aircraft/keys/N1", content=b"x" * 100_000)
        assert answer.json()["value"] == {"seen": 1}


def test_they_are_counted_as_all_others(server: httpx.Client) -> None:
    def counted() -> int:
        labels = r'level="read_committed",outcome="ok",route="/v1/stores/\{store\}/keys/\{key\}"'
        found = re.search(rf"stateline_http_requests_total\{{{labels}\}} (\d+)", server.get("/metrics").text)
        return int(found[1]) if found else 0

    before = counted()
    for key in both_ways("N1"):
        assert server.get(f"/v1/stores/aircraft/keys/{key}").status_code == 200
    assert counted() == before + 2


def read_answers(connection: socket.socket, count: int) -> list[bytes]:
    """The bodies of so many answers."""
    data = b""
    bodies: list[bytes] = []
    while len(bodies) < count:
        head, end, rest = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if end and length is not None and len(rest) >= int(length[1]):
            bodies.append(rest[: int(length[1])])
            data = rest[int(length[1]) :]
            continue
        more = connection.recv(65536)
        assert more, "the server hung up"
        data += more
    return bodies


def test_a_token_that_may_not_read_the_store_gets_what_the_routes_say(
    filled: OwningWorker, state_dir: Path, tmp_path: Path
) -> None:
    secrets = {name: new_token() for name in ("all", "some", "none")}
    stores = {"all": "*", "some": ["aircraft"], "none": ["counts"]}
    entries = [
        {"name": n, "sha256": hash_of(secret).hex(), "role": "read", "stores": stores[n]}
        for n, secret in secrets.items()
    ]
    (tmp_path / "tokens.json").write_text(json.dumps({"tokens": entries}))
    settings = f"server.tokens.file={tmp_path / 'tokens.json'}", "default.state.isolation.level=read_committed"
    with http_server(state_dir, *settings) as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)
        found = {}
        for name, secret in {**secrets, "wrong": "no-token"}.items():
            headers = {"Authorization": f"Bearer {secret}"}
            here, there = (client.get(f"/v1/stores/aircraft/keys/{key}", headers=headers) for key in both_ways("N1"))
            assert what_was_said(here) == what_was_said(there), name
            found[name] = here.status_code
        assert client.get("/v1/stores/aircraft/keys/N1").status_code == 401
    assert found == {"all": 200, "some": 200, "none": 403, "wrong": 401}


def test_a_task_that_left_a_worker_that_lives_is_a_standby(tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path)
    worker.put("N1", 1)
    worker.commit()
    file = worker.application / "instances" / "w1.json"
    left = {**json.loads(file.read_text()), "tasks": {}}
    with http_server(tmp_path, "default.state.isolation.level=read_committed") as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)
        paths = [f"/v1/stores/aircraft/keys/{key}" for key in both_ways("N1")]
        assert [client.get(path, params={"require_active": True}).status_code for path in paths] == [200, 200]
        file.with_suffix(".new").write_text(json.dumps(left))
        file.with_suffix(".new").rename(file)
        wait_until(lambda: client.get(paths[0], params={"require_active": True}).status_code == 503)
        for path in paths:
            (partition,) = client.get(path).json()["partitions"].values()
            assert partition["served_by"] == "standby"
    worker.close()
