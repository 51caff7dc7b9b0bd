"""Waiting for a position bound, over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pytest

from stateline.query.wire import LENGTH, decode_message, frame, frame_size
from support.processes.query_server import PARTITIONS, TOPIC, OwningWorker, server_process, wait_until
from support.processes.served_here import served_here
from support.run.patience import HANGING_S


def bound(partition: int, offset: int) -> str:
    return json.dumps({TOPIC: {str(partition): offset}})


class Asking:
    """A request that was sent, on a connection of its own."""

    def __init__(self, client: httpx.Client, path: str, params: dict[str, Any]) -> None:
        self._client = client
        self._connection = http.client.HTTPConnection(
            client.base_url.host, client.base_url.port or 80, timeout=HANGING_S
        )
        self._connection.request("GET", f"{path}?{urlencode(params)}")

    def is_waiting(self) -> bool:
        """Whether the server has read the request, done all that it can for now, and not answered."""
        for _ in range(10):  # answered after the request was looked at: the server has one event loop
            assert self._client.get("/healthz").status_code == 200
        return not select.select([self._connection.sock], [], [], 0)[0]

    def answer(self) -> tuple[int, Any]:
        """Status and body of the answer, once it has come."""
        with contextlib.closing(self._connection):
            response = self._connection.getresponse()
            return response.status, json.load(response)

    def value(self) -> Any:
        """The value in the answer, once it has come."""
        status, body = self.answer()
        assert status == 200
        return body["value"]


def waiting_at_worker(state_dir: Path) -> int:
    """How many queries wait at the worker, after it has looked once more whether it can answer them."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as asking:
        asking.settimeout(HANGING_S)
        asking.connect(str(state_dir / "w1.sock"))
        asking.sendall(frame({"id": 1, "type": "status"}))
        with asking.makefile("rb") as replies:
            size = frame_size(replies.read(LENGTH.size))
            return int(decode_message(replies.read(size))["status"]["waiting"])


def test_without_a_wait_the_answer_says_where_it_stands(client: httpx.Client, worker: OwningWorker) -> None:
    at = worker.put("behind", 1)
    worker.commit()
    wanted = bound(at.partition, worker.offset(at.partition) + 1)
    response = client.get("/v1/stores/aircraft/keys/behind", params={"position_bound": wanted})
    problem = response.json()
    assert (response.status_code, problem["reason"]) == (412, "NOT_UP_TO_BOUND")
    assert problem["bound"] == json.loads(wanted)
    assert problem["position"] == {TOPIC: {str(at.partition): worker.offset(at.partition)}}
    assert (problem["store"], problem["partition"]) == ("aircraft", at.partition)


@pytest.mark.parametrize(("store", "at_worker"), [("aircraft", 0), ("cache", 1)])
def test_a_committed_read_waits_for_the_commit(
    client: httpx.Client, worker: OwningWorker, state_dir: Path, store: str, at_worker: int
) -> None:
    at = worker.put("awaited", 1)
    worker.commit()
    wanted = bound(at.partition, worker.offset(at.partition) + 1)
    params = {"position_bound": wanted, "wait_ms": 600_000}
    asking = Asking(client, f"/v1/stores/{store}/keys/awaited", params)
    wait_until(lambda: waiting_at_worker(state_dir) == at_worker)
    assert asking.is_waiting()
    worker.put("awaited", 2)  # staged only: it goes on waiting
    assert waiting_at_worker(state_dir) == at_worker
    assert asking.is_waiting()
    worker.commit()
    assert asking.value() == 2


def test_an_uncommitted_read_waits_for_the_record_alone(
    client: httpx.Client, worker: OwningWorker, state_dir: Path
) -> None:
    at = worker.put("staged", 1)
    wanted = bound(at.partition, worker.offset(at.partition) + 1)
    params = {"position_bound": wanted, "wait_ms": 600_000, "isolation_level": "read_uncommitted"}
    asking = Asking(client, "/v1/stores/aircraft/keys/staged", params)
    wait_until(lambda: waiting_at_worker(state_dir) == 1)
    assert asking.is_waiting()
    worker.put("staged", 2)
    assert asking.value() == 2


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_a_wait_that_runs_out_is_a_failure(client: httpx.Client, worker: OwningWorker, level: str) -> None:
    at = worker.put("never", 1)
    params: dict[str, Any] = {"position_bound": bound(at.partition, 10**12), "wait_ms": 50, "isolation_level": level}
    began_s = time.monotonic()
    response = client.get("/v1/stores/aircraft/keys/never", params=params)
    assert time.monotonic() - began_s >= 0.05
    assert (response.status_code, response.json()["reason"]) == (412, "NOT_UP_TO_BOUND")


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_a_bound_on_an_unknown_topic_is_never_met(client: httpx.Client, worker: OwningWorker, level: str) -> None:
    params = {"position_bound": '{"unknown":{"0":0}}', "isolation_level": level}
    response = client.get("/v1/stores/aircraft/range", params=params)
    assert (response.status_code, response.json()["reason"]) == (412, "NOT_UP_TO_BOUND")
    assert list(response.json()["failures"]) == ["0"]


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_a_bound_on_a_topic_that_is_no_input_fails_at_once(
    client: httpx.Client, worker: OwningWorker, level: str
) -> None:
    for partition in (0, PARTITIONS):
        named = json.dumps({"unknown": {str(partition): 0}})
        params = {"position_bound": named, "isolation_level": level, "wait_ms": "600000"}
        response = client.get("/v1/stores/aircraft/range", params=params, timeout=300)
        assert (response.status_code, response.json()["reason"]) == (412, "NOT_UP_TO_BOUND")
        assert "'unknown' is not an input of 'aircraft'" in response.json()["detail"]
        assert TOPIC in response.json()["detail"]


def test_a_bound_on_a_partition_that_the_topic_cannot_have_is_refused(
    client: httpx.Client, worker: OwningWorker
) -> None:
    response = client.get("/v1/stores/aircraft/range", params={"position_bound": bound(PARTITIONS, 0)})
    assert (response.status_code, response.json()["reason"]) == (422, "INVALID_ARGUMENT")
    assert f"partition {PARTITIONS} of '{TOPIC}'" in response.json()["detail"]


def test_a_bound_on_partitions_that_are_not_asked_says_nothing(client: httpx.Client, worker: OwningWorker) -> None:
    params = {"position_bound": bound(1, 10**12), "partition": "0"}
    assert client.get("/v1/stores/aircraft/range", params=params).status_code == 200


def test_partial_answers_come_with_the_failures_beside(client: httpx.Client, worker: OwningWorker) -> None:
    for partition in range(PARTITIONS):
        worker.put(f"part{partition}", partition, partition=partition)
    worker.commit()
    params = {"position_bound": bound(1, 10**12), "prefix": "part"}
    whole = client.get("/v1/stores/aircraft/range", params=params)
    assert (whole.status_code, whole.json()["partition"]) == (412, 1)
    part = client.get("/v1/stores/aircraft/range", params={**params, "allow_partial": "true"})
    assert part.status_code == 200
    assert [entry["key"] for entry in part.json()["entries"]] == ["part0", "part2"]
    assert list(part.json()["partitions"]) == ["0", "2"]
    assert part.json()["failures"]["1"]["reason"] == "NOT_UP_TO_BOUND"


def test_partial_is_still_a_failure_when_nothing_answered(client: httpx.Client, worker: OwningWorker) -> None:
    params = {"position_bound": bound(1, 10**12), "partition": "1", "allow_partial": "true"}
    assert client.get("/v1/stores/aircraft/range", params=params).status_code == 412


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_scans_that_wait_for_their_bound_leave_the_places_of_scans_to_others(
    state_dir: Path, worker: OwningWorker, level: str
) -> None:
    at = worker.put("scanned", 0)
    worker.commit()
    wanted = bound(at.partition, worker.offset(at.partition) + 1)
    params = {"position_bound": wanted, "wait_ms": 600_000, "isolation_level": level, "prefix": "scanned"}
    with served_here(state_dir, "server.scans.max=1", "server.wait.max.ms=600000") as here:
        path = "/v1/stores/aircraft/range"
        asking: list[Asking] = []
        while len(asking) < 3:
            asking.append(Asking(here.client, path, params))
            wait_until(lambda: len(asking) in (here.serving.commits.waiting, waiting_at_worker(state_dir)))
        assert here.limits.scans == 0
        assert here.client.get(path, params={"prefix": "scanned"}).status_code == 200
        assert all(each.is_waiting() for each in asking)
        worker.put("scanned", 1)
        worker.commit()
        answers = [each.answer() for each in asking]
        # All bounds are met at once and there is one place. A request that finds it taken is refused.
        assert {status for status, _ in answers} <= {200, 429}
        assert next(body["entries"][0]["value"] for status, body in answers if status == 200) == 1


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_a_scan_of_several_partitions_waits_for_those_that_are_behind(
    client: httpx.Client, worker: OwningWorker, level: str
) -> None:
    for partition in range(PARTITIONS):
        worker.put(f"late{partition}", 0, partition=partition)
    worker.commit()
    wanted = json.dumps({TOPIC: {str(p): worker.offset(p) + 1 for p in (0, 2)}})
    params = {"position_bound": wanted, "wait_ms": 600_000, "isolation_level": level, "prefix": "late"}
    asking = Asking(client, "/v1/stores/aircraft/range", params)
    worker.put("late0", 1, partition=0)
    worker.commit()
    assert asking.is_waiting()
    worker.put("late2", 2, partition=2)
    worker.commit()
    status, body = asking.answer()
    assert status == 200
    assert [entry["value"] for entry in body["entries"]] == [1, 0, 2]


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_waiting_requests_end_when_the_server_stops(state_dir: Path, worker: OwningWorker, level: str) -> None:
    with contextlib.ExitStack() as stack:
        settings = (f"default.state.isolation.level={level}", "server.wait.max.ms=600000")
        with server_process(state_dir, *settings) as client:
            wait_until(lambda: client.get("/readyz").status_code == 200)
            address = (client.base_url.host, client.base_url.port)
            waiting = stack.enter_context(socket.create_connection(address, timeout=HANGING_S))
            query = f"position_bound={quote(bound(0, 10**12))}&wait_ms=600000"
            waiting.sendall(f"GET /v1/stores/aircraft/range?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            for _ in range(3):  # answered after the request above was read: the server has one event loop
                assert client.get("/healthz").status_code == 200
        answer = b"".join(iter(lambda: waiting.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"reason":"NOT_READY"' in answer
