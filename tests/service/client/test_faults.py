"""Both clients when the network, a gateway or the server fails: what is tried again, what is raised, and when."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from stateline.client import (
    NEVER,
    Client,
    GatewayError,
    NotReadyError,
    NotUpToBoundError,
    Position,
    Retries,
    RetryLaterError,
    Session,
    TooManyRequestsError,
    UnreachableError,
)
from stateline_store import TopicPartition
from support.http.blocking import clients_of
from support.http.faulty_proxy import Answered, Cut, FaultyProxy
from support.processes.ports import free_port
from support.processes.query_server import OwningWorker, wait_until
from support.processes.served_here import http_server
from support.run.length import long_only
from support.run.patience import HANGING_S

Connect = Callable[..., Client]
QUICK = Retries(first_pause_s=0.01, longest_pause_s=0.02)
PROBLEM = {"Content-Type": "application/problem+json"}
BUSY = '{"reason": "TOO_MANY_REQUESTS", "status": 429, "detail": "Too many: come later."}'


@pytest.fixture(params=["asyncio", pytest.param("threads", marks=long_only("test_client.py has both kinds"))])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    with clients_of(request.param) as connect:
        yield connect


@pytest.fixture(autouse=True)
def key(worker: OwningWorker) -> str:
    worker.put("k", 1)
    worker.commit()
    return "k"


def test_what_a_gateway_refuses_for_now_is_asked_again_until_it_is_answered(
    proxy: FaultyProxy, connect: Connect
) -> None:
    proxy.faults.extend(Answered(status) for status in ("503 Service Unavailable", "502 Bad Gateway", "504 Timeout"))
    aircraft = connect(proxy.url, retries=QUICK).store("aircraft")
    assert aircraft.get("k").value == 1
    assert len(proxy.requests) == 4


@pytest.mark.parametrize("after_bytes", [0, 10, 200])
def test_a_connection_that_is_lost_while_it_answers_is_asked_again(
    proxy: FaultyProxy, connect: Connect, after_bytes: int
) -> None:
    proxy.faults.append(Cut(after_bytes))
    aircraft = connect(proxy.url, retries=QUICK).store("aircraft")
    assert aircraft.get_many(["k"]).entries[0].value == 1, "a query as a body is a read"
    assert len(proxy.requests) == 2


def test_retry_after_is_waited_for(proxy: FaultyProxy, connect: Connect) -> None:
    proxy.faults.append(Answered("429 Too Many Requests", PROBLEM | {"Retry-After": "1"}, BUSY))
    client = connect(proxy.url, retries=QUICK)
    begun_s = time.monotonic()
    assert client.store("aircraft").get("k").found
    assert time.monotonic() - begun_s >= 1


def test_a_retry_after_beyond_the_deadline_is_not_waited_for(proxy: FaultyProxy, connect: Connect) -> None:
    proxy.faults.append(Answered("429 Too Many Requests", PROBLEM | {"Retry-After": "60"}, BUSY))
    with pytest.raises(TooManyRequestsError) as caught:
        connect(proxy.url).store("aircraft").get("k")
    assert caught.value.problem.retry_after_s == 60
    assert len(proxy.requests) == 1


def test_attempts_end_with_the_deadline_and_the_last_failure_is_raised(proxy: FaultyProxy, connect: Connect) -> None:
    proxy.faults.extend([Answered("503 Service Unavailable")] * 10_000)
    with pytest.raises(GatewayError):
        connect(proxy.url, retries=Retries(deadline_s=2, first_pause_s=0.01)).store("aircraft").get("k")
    assert len(proxy.requests) > 2


def test_a_failure_that_cannot_pass_is_asked_once(proxy: FaultyProxy, connect: Connect) -> None:
    bound = Position.of({TopicPartition("flights", p): 10**9 for p in range(3)})
    with pytest.raises(NotUpToBoundError):
        connect(proxy.url, retries=QUICK).store("aircraft").get("k", bound=bound)
    assert len(proxy.requests) == 1


def test_what_changes_something_is_sent_once_whatever_becomes_of_it(proxy: FaultyProxy, connect: Connect) -> None:
    proxy.faults.extend([Cut(0), Answered("503 Service Unavailable")])
    client = connect(proxy.url, retries=QUICK)
    for _ in range(2):
        with pytest.raises(RetryLaterError):
            client.snapshot(["aircraft"])
    assert [request.split(b" ")[0] for request in proxy.requests] == [b"POST"] * 2


def test_nobody_there_is_unreachable_at_once_without_retries(connect: Connect) -> None:
    client = connect(f"http://127.0.0.1:{free_port()}", retries=NEVER)
    with pytest.raises(UnreachableError, match="does not answer"):
        client.store("aircraft").get("k")
    with pytest.raises(UnreachableError):
        client.check_health()


def test_a_server_that_hangs_up_is_told_in_one_sentence_each(proxy: FaultyProxy, connect: Connect) -> None:
    proxy.faults.append(Cut(0))
    with pytest.raises(UnreachableError, match=r"does not answer: [^.]*[^.]\. Is") as raised:
        connect(proxy.url, retries=NEVER).store("aircraft").get("k")
    assert ".." not in str(raised.value)


def test_a_server_that_is_silent_is_unreachable_after_the_timeout(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = connect(f"http://127.0.0.1:{silent.getsockname()[1]}", retries=NEVER, timeout_s=0.2)
        with pytest.raises(UnreachableError):
            client.store("aircraft").get("k")


def test_a_token_is_sent_with_every_request(proxy: FaultyProxy, connect: Connect) -> None:
    proxy.faults.append(Answered("503 Service Unavailable"))
    connect(proxy.url, token="t0ken", retries=QUICK).store("aircraft").get("k")
    assert len(proxy.requests) == 2
    assert all(b"authorization: bearer t0ken" in request.lower() for request in proxy.requests)


def test_an_answer_that_waits_for_its_bound_takes_longer_than_the_timeout(
    server: httpx.URL, connect: Connect, worker: OwningWorker
) -> None:
    at = worker.put("slow", "new")
    bound = Position.of({at: worker.offset(at.partition)})
    store = connect(server, timeout_s=0.3).store("aircraft")
    committing = threading.Timer(0.8, worker.commit)
    committing.start()
    try:
        assert store.get("slow", bound=bound, wait_ms=20_000).value == "new"
    finally:
        committing.join()


def test_a_server_that_is_restarted_is_only_a_delay(
    state_dir: Path, proxy: FaultyProxy, worker: OwningWorker, connect: Connect
) -> None:
    proxy.target = free_port()  # nobody is there
    store = connect(proxy.url, retries=Retries(deadline_s=60)).store("aircraft")
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(store.get, "k", wait_ms=5000)
        wait_until(lambda: len(proxy.requests) > 2)
        with http_server(state_dir) as http:
            assert http.base_url.port is not None
            proxy.target = http.base_url.port
            assert asking.result(HANGING_S).value == 1


def test_a_server_that_is_not_ready_yet_is_asked_until_it_is(tmp_path: Path, connect: Connect) -> None:
    with http_server(tmp_path) as http:
        client = connect(http.base_url)
        assert not client.readiness().ready
        assert client.readiness().reasons
        impatient = connect(http.base_url, retries=NEVER)
        with pytest.raises(NotReadyError) as caught:
            impatient.store("aircraft").get("k")
        assert caught.value.problem.retry_after_s is not None
        worker = OwningWorker(tmp_path)
        worker.put("k", 1)
        worker.commit()
        assert client.store("aircraft", wait_ms=5000).get("k").value == 1
        worker.close()


def test_a_session_over_two_servers_never_goes_back_in_time(
    server: httpx.URL, worker: OwningWorker, tmp_path: Path, connect: Connect
) -> None:
    """The second server has a worker of its own, which has not read as far."""
    behind = OwningWorker(tmp_path, "w2")
    with http_server(tmp_path, "default.state.isolation.level=read_committed") as http:
        wait_until(lambda: http.get("/readyz").status_code == 200)
        assert behind.put("k", "old") == worker.put("k", "new")
        worker.commit()
        behind.commit()
        session = Session(wait_ms=0)
        first = connect(server, session=session).store("aircraft")
        second = connect(http.base_url, session=session).store("aircraft")
        assert second.get("k").value == "old"
        seen = first.get("k")
        assert seen.value == "new"
        with pytest.raises(NotUpToBoundError):
            second.get("k")
        ((at, offset),) = seen.position
        while behind.offset(at.partition) < offset:
            behind.put("k", "new")
        catching_up = threading.Timer(0.2, behind.commit)
        catching_up.start()
        try:
            assert second.get("k", wait_ms=20_000).value == "new"
        finally:
            catching_up.join()
    behind.close()
