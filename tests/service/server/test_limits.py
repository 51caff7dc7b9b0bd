"""Limits: requests per second, scans at once, time. The clock is the test's own."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from stateline.config.loading import load_config
from stateline.server.contract.formats import ARROW
from stateline.server.guard import limits as limits_module
from stateline.server.guard.limits import Limits, RateLimit
from stateline_store import TooManyRequestsError
from support.processes.query_server import OwningWorker, from_another_address, wait_until
from support.processes.served_here import http_server, served_here

EVERYTHING = "server.caller.share.percent=100"


def limits(*settings: str) -> Limits:
    return Limits(load_config("flights-app", overrides=list(settings)))


def admitted(rate: RateLimit, client: str, requests: int) -> int:
    """How many of so many requests are let in."""
    count = 0
    for _ in range(requests):
        try:
            rate.take(client)
        except TooManyRequestsError:
            continue
        count += 1
    return count


def test_a_seconds_worth_may_come_at_once_and_then_as_many_as_the_rate() -> None:
    now_s = 100.0
    rate = RateLimit(8, lambda: now_s)
    assert admitted(rate, "a", 50) == 8
    now_s += 0.125
    assert admitted(rate, "a", 50) == 1
    now_s += 0.6875
    assert admitted(rate, "a", 50) == 5
    now_s += 3600
    assert admitted(rate, "a", 50) == 8


def test_over_an_hour_of_too_many_requests_the_rate_is_what_gets_in() -> None:
    now_s = 0.0
    rate = RateLimit(7, lambda: now_s)
    count = 0
    for _ in range(36_000):
        now_s += 0.1
        count += admitted(rate, "a", 2)
    assert 7 * 3_600 <= count <= 7 * 3_601 + 1


def test_one_client_does_not_use_up_what_another_has() -> None:
    rate = RateLimit(3, lambda: 1.0)
    assert admitted(rate, "a", 100) == 3
    assert admitted(rate, "b", 2) == 2


def test_no_more_clients_are_remembered_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "MAX_CLIENTS", 100)
    rate = RateLimit(1, lambda: 1.0)
    for number in range(1_000):
        rate.take(f"client {number}")
        assert admitted(rate, "the busy one", 1) == (number == 0)  # whoever keeps asking is not forgotten
    assert len(rate._buckets) == 100


def test_without_a_setting_nobody_is_counted() -> None:
    unlimited = limits()
    assert not unlimited.limits_rate
    for _ in range(10_000):
        unlimited.admit("a")


def test_scans_run_up_to_the_limit_and_one_that_ends_makes_room() -> None:
    limited = limits("server.scans.max=3", EVERYTHING)

    async def run() -> None:
        async with AsyncExitStack() as running:
            first = await running.enter_async_context(AsyncExitStack())
            await first.enter_async_context(limited.scan("a"))
            for _ in range(2):
                await running.enter_async_context(limited.scan("a"))
            with pytest.raises(TooManyRequestsError, match=r"3 scans are running, as many as server\.scans\.max"):
                async with limited.scan("a"):
                    pytest.fail("a fourth one ran")
            assert limited.scans == 3
            await first.aclose()
            async with limited.scan("a"):
                assert limited.scans == 3
        assert limited.scans == 0

    asyncio.run(run())


def test_one_caller_has_its_share_of_the_scans_and_others_have_the_rest() -> None:
    limited = limits("server.scans.max=4")

    async def run() -> None:
        async with AsyncExitStack() as running:
            for _ in range(2):
                await running.enter_async_context(limited.scan("greedy"))
            with pytest.raises(TooManyRequestsError, match=r"2 scans are yours.*4.*server\.caller\.share\.percent"):
                async with limited.scan("greedy"):
                    pytest.fail("a third one ran")
            await running.enter_async_context(limited.scan("modest"))
            assert limited.scans == 3
        async with limited.scan("greedy"):
            assert limited.scans == 1

    asyncio.run(run())


def test_of_many_at_once_exactly_as_many_run_as_may() -> None:
    limited = limits("server.scans.max=5", EVERYTHING)
    together = 0

    async def scan(end: asyncio.Event) -> bool:
        nonlocal together
        try:
            async with limited.scan("a"):
                together = max(together, limited.scans)
                await end.wait()
        except TooManyRequestsError:
            return False
        return True

    async def run() -> int:
        end = asyncio.Event()
        scans = [asyncio.create_task(scan(end)) for _ in range(200)]
        await asyncio.sleep(0)  # each has begun, or was refused
        end.set()
        return sum(await asyncio.gather(*scans))

    assert asyncio.run(run()) == together == 5
    assert limited.scans == 0


def test_a_scan_that_fails_or_is_cancelled_gives_its_place_back() -> None:
    limited = limits("server.scans.max=1")

    async def fail() -> None:
        async with limited.scan("a"):
            raise ZeroDivisionError

    async def run() -> None:
        with pytest.raises(ZeroDivisionError):
            await fail()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0), limited.scan("a"):
                await asyncio.Event().wait()
        async with limited.scan("a"):
            pass

    asyncio.run(run())


def test_scans_may_be_unlimited() -> None:
    limited = limits("server.scans.max=-1")

    async def run() -> None:
        async with AsyncExitStack() as running:
            for _ in range(1_000):
                await running.enter_async_context(limited.scan("a"))

    asyncio.run(run())


def test_a_query_that_takes_too_long_is_told_the_setting() -> None:
    limited = limits("server.query.timeout.ms=1")

    async def run() -> None:
        async with limited.query():
            await asyncio.Event().wait()

    with pytest.raises(TooManyRequestsError, match=r"longer than 1 ms \(server\.query\.timeout\.ms\)"):
        asyncio.run(run())


def test_the_time_a_query_waits_for_its_bound_is_not_counted() -> None:
    limited = limits("server.query.timeout.ms=1")

    async def run() -> str:
        async with limited.query(wait_ms=3_600_000):
            await asyncio.sleep(0.005)  # longer than the query may work
            return "answered"

    assert asyncio.run(run()) == "answered"


def test_a_timeout_of_the_querys_own_stays_what_it_is() -> None:
    async def run() -> None:
        async with limits().query():
            raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        asyncio.run(run())


def test_over_http_one_request_too_many_is_429_and_probes_are_always_answered(tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path)
    level = "default.state.isolation.level=read_committed"
    with http_server(tmp_path, "server.rate.limit=1", level) as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)
        responses = [client.get("/v1/stores/aircraft/count") for _ in range(200)]
        statuses = {response.status_code for response in responses}
        assert statuses == {200, 429}
        assert responses[0].status_code == 200
        refused = next(response for response in responses if response.status_code == 429)
        check_refusal(refused)
        assert {client.get(probe).status_code for probe in ("/healthz", "/readyz") for _ in range(20)} == {200}
    worker.close()


def check_refusal(refused: httpx.Response) -> None:
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["reason"] == "TOO_MANY_REQUESTS"
    assert "server.rate.limit" in refused.json()["detail"]


def test_over_http_a_caller_beyond_its_share_of_scans_is_refused_and_another_is_answered(tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path)
    with served_here(tmp_path, "server.scans.max=100") as here, from_another_address(here.client) as another:
        snapshot = here.client.post("/v1/snapshots", json={"stores": ["aircraft"]}).json()
        pages, rows = "/v1/stores/aircraft/range", snapshot["stores"]["aircraft"]["0"]["path"]
        asked = ((pages, "application/json"), (pages, "application/x-ndjson"), (rows, ARROW))
        here.limits._scans["127.0.0.1"] += 50  # scans of this address that never end
        for path, accept in asked:
            refused = here.client.get(path, headers={"Accept": accept})
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert "server.caller.share.percent" in refused.json()["detail"]
            assert another.get(path, headers={"Accept": accept}).status_code == 200
    worker.close()
