"""Bodies that are made to cost much: many values, many bytes, many at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import threading
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from stateline.config.loading import load_config
from stateline.server.wire import json_bounds
from stateline.server.wire.bodies import LARGEST_AT_ONCE, SMALL_BYTES, Bodies
from stateline.server.wire.json_bounds import MAX_DEPTH, MAX_VALUES, JsonBounds
from stateline.server.wire.time_limits import TimeLimits
from stateline_store import InvalidArgumentError, TooManyRequestsError
from support.processes.query_server import OwningWorker, wait_until
from support.processes.served_here import http_server, served_here
from support.run.patience import HANGING_S

QUERY = "/v1/stores/aircraft/query"
MOST = 64 * 1024
WAITS = "server.wait.max.ms=3600000"


def taken(text: str, pieces: int = 1) -> JsonBounds:
    """Bounds that were given this text, cut somewhere."""
    data, bounds = text.encode(), JsonBounds()
    cuts = sorted(random.Random(len(data) + pieces).choices(range(len(data) + 1), k=pieces - 1))
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        bounds.take(data[begin:end])
    return bounds


def values_in(value: Any) -> int:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, dict | list) + sum(1 + values_in(item) for item in items)


TRICKY = [",", "[{,", '"', '\\"', "\\", '\\\\",[', "a\\", '","', "\u2028,", "😀[", "\n,\t", "]]}}"]


@pytest.mark.parametrize("pieces", [1, 2, 7, 60])
def test_what_stands_in_strings_counts_as_nothing_wherever_the_text_is_cut(pieces: int) -> None:
    nested = {text: [text, {}, [], [text], {text: 1.5, "": None}] for text in TRICKY}
    for value in (nested, TRICKY, {}, [], "[,]", [[1, [2]], "\\"]):
        for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
            assert 0 <= taken(text, pieces).values <= values_in(value)
            assert taken(text, pieces).depth == 0, "a bracket in a string was taken for one"


def test_a_body_of_as_many_values_as_may_be_is_read_and_one_more_is_not() -> None:
    texts = ['"a,[{"'] * (MAX_VALUES - 2)
    taken(f'{{"keys":[{",".join(texts)}]}}', 9)
    for text in ('{"keys":[' + ",".join(["1"] * (MAX_VALUES + 1)), "[]," * MAX_VALUES, '""' * 3 * MAX_VALUES):
        with pytest.raises(InvalidArgumentError, match=f"more than {MAX_VALUES} values"):
            taken(text, 9)


def test_a_body_is_not_nested_deeper_than_may_be() -> None:
    taken("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    with pytest.raises(InvalidArgumentError, match="nested too deeply"):
        taken("[{" * MAX_DEPTH, 5)


@pytest.mark.parametrize(
    "body",
    [
        b'{"type":"keys","keys":[' + b",".join([b"[]"] * 300_000) + b"]}",
        b"{" + b",".join(b'"%d":1' % i for i in range(300_000)) + b"}",
        b"[" * 500_000,
    ],
)
def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(client: httpx.Client, body: bytes) -> None:
    answer = client.post(QUERY, content=body)
    assert (answer.status_code, answer.json()["reason"]) == (422, "INVALID_ARGUMENT")
    assert "values" in answer.json()["detail"] or "deeply" in answer.json()["detail"]


@pytest.mark.parametrize("text", [b"]", b'"]"]', b"[" * 90 + b"]" * 91, b"{}}"])
def test_what_closes_more_than_it_opens_is_refused_before_it_is_looked_at_one_by_one(
    text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_bounds, "accumulate", lambda *_, **__: pytest.fail("looked at one by one"))
    with pytest.raises(InvalidArgumentError, match="closes more"):
        JsonBounds().take(text)


def bodies_of(share: int = 100) -> Bodies:
    settings = [f"server.body.max.bytes={MOST}", f"server.caller.share.percent={share}"]
    return Bodies(TimeLimits(), load_config("a", environment={}, overrides=settings))


def parsed(body: bytes) -> tuple[int, int]:
    """Its size, of which all is still held."""
    return len(body), len(body)


def keeping(kept: int, body: bytes) -> tuple[None, int]:
    return None, kept


def asked(*pieces: bytes, whole: bool = True, by: str = "10.0.0.1") -> Request:
    """A request whose body arrives in these pieces, and then ends, or does not go on."""
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages += [{"type": "http.request", "body": b"", "more_body": False}] * whole

    async def receive() -> Any:
        return messages.pop(0) if messages else await asyncio.Event().wait()

    return Request({"type": "http", "method": "POST", "headers": [], "client": (by, 1)}, receive)


def test_only_a_large_body_is_parsed_in_another_thread() -> None:
    async def parsed_here(size: int) -> bool:
        async with bodies_of().read(asked(b" " * size), lambda _: (threading.current_thread(), 0)) as thread:
            return thread is threading.current_thread()

    assert asyncio.run(parsed_here(SMALL_BYTES))
    assert not asyncio.run(parsed_here(SMALL_BYTES + 1))


def test_a_body_gives_its_room_back_whatever_becomes_of_it() -> None:
    async def run() -> None:
        bodies = bodies_of()

        def refuse(body: bytes) -> tuple[None, int]:
            raise InvalidArgumentError("no")

        for request, parse in (
            (asked(b" " * MOST), refuse),
            (asked(b" " * (MOST + 1)), parsed),
            (asked(b"[" * MOST), parsed),
        ):
            with pytest.raises(InvalidArgumentError):
                async with bodies.read(request, parse):
                    pass
            assert bodies.taken == 0
        hanging = asyncio.create_task(bodies.read(asked(b" " * MOST, whole=False), parsed).__aenter__())
        while bodies.taken == 0:
            await asyncio.sleep(0)
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        assert bodies.taken == 0
        async with contextlib.AsyncExitStack() as held:
            for _ in range(LARGEST_AT_ONCE):
                await held.enter_async_context(bodies.read(asked(b" " * MOST), parsed))
            for by, who in (("10.0.0.1", "your"), ("10.0.0.2", "other")):
                with pytest.raises(TooManyRequestsError, match=who):
                    await held.enter_async_context(bodies.read(asked(b" " * MOST, by=by), parsed))
            assert await held.enter_async_context(bodies.read(asked(b" " * SMALL_BYTES), parsed)) == SMALL_BYTES
        assert (bodies.taken, bodies._taken) == (0, {})

    asyncio.run(run())


def test_a_query_takes_the_room_of_its_keys_and_no_longer_that_of_its_body() -> None:
    async def run() -> None:
        bodies = bodies_of()
        for kept, counted in ((0, 0), (SMALL_BYTES, 0), (MOST // 2, MOST // 2), (2 * MOST, MOST)):
            async with bodies.read(asked(b" " * MOST), partial(keeping, kept)):
                assert bodies.taken == counted
        assert bodies.taken == 0

    asyncio.run(run())


def test_no_caller_has_more_than_its_share_of_the_room() -> None:
    async def run() -> None:
        bodies = bodies_of(50)
        async with contextlib.AsyncExitStack() as held:
            for by in ("10.0.0.1", "10.0.0.2"):
                for _ in range(LARGEST_AT_ONCE // 2):
                    await held.enter_async_context(bodies.read(asked(b" " * MOST, by=by), parsed))
                with pytest.raises(TooManyRequestsError, match=r"server\.caller\.share\.percent|other requests"):
                    await held.enter_async_context(bodies.read(asked(b" " * MOST, by=by), parsed))
        async with bodies_of(1).read(asked(b" " * MOST), parsed) as size:
            assert size == MOST, "one of the largest size is for everybody"

    asyncio.run(run())


def test_a_body_that_comes_drop_by_drop_ends_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateline.server.wire.bodies.WHOLE_S", 0.05)

    async def receive() -> Any:
        await asyncio.sleep(0.001)
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def run() -> None:
        request = Request({"type": "http", "method": "POST", "headers": [], "client": ("a", 1)}, receive)
        async with bodies_of().read(request, parsed):
            pytest.fail("a body without end was read")

    with pytest.raises(InvalidArgumentError, match=r"did not arrive within 0\.05 s"):
        asyncio.run(run())


def test_all_bodies_together_have_a_bound_and_small_queries_go_on(state_dir: Path, worker: OwningWorker) -> None:
    settings = ("default.state.isolation.level=read_committed", f"server.body.max.bytes={MOST}")
    head = f"POST {QUERY} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {MOST}\r\n\r\n".encode()
    with http_server(state_dir, *settings) as client, contextlib.ExitStack() as held:
        wait_until(lambda: client.get("/readyz").status_code == 200)
        large = b'{"type":"count"' + b" " * (MOST - 16) + b"}"
        assert client.post(QUERY, content=large).status_code == 200
        for _ in range(2 * LARGEST_AT_ONCE):
            address = (client.base_url.host, client.base_url.port)
            connection = held.enter_context(socket.create_connection(address, timeout=HANGING_S))
            connection.sendall(head + b" " * (MOST - 1))  # and never the last byte
        wait_until(lambda: client.post(QUERY, content=large).status_code == 429)
        refused = client.post(QUERY, content=large)
        assert "one caller may have" in refused.json()["detail"]
        assert (refused.json()["reason"], refused.headers["retry-after"]) == ("TOO_MANY_REQUESTS", "1")
        assert client.post(QUERY, json={"type": "count"}).status_code == 200
        held.close()
        wait_until(lambda: client.post(QUERY, content=large).status_code == 200)


def test_clients_that_have_hung_up_take_no_room_and_wait_for_nothing(state_dir: Path, worker: OwningWorker) -> None:
    bound = '{"type":"keys","wait_ms":3600000,"position_bound":{"flights":{"0":999999}},"keys":["a","%s"]}'
    with served_here(state_dir, f"server.body.max.bytes={MOST}", "server.caller.share.percent=100", WAITS) as here:
        serving = here.serving
        for key, counted in (("a", 0), ("k" * (MOST // 2), MOST // 2 + 1)):
            body = (bound % key).encode().ljust(MOST)
            with contextlib.ExitStack() as held:
                for _ in range(LARGEST_AT_ONCE):
                    connection = held.enter_context(
                        socket.create_connection(("127.0.0.1", here.port), timeout=HANGING_S)
                    )
                    connection.sendall(f"POST {QUERY} HTTP/1.1\r\nHost: localhost\r\n".encode())
                    connection.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
                wait_until(lambda: serving.commits.waiting == LARGEST_AT_ONCE)
                assert serving.bodies.taken == LARGEST_AT_ONCE * counted
            wait_until(lambda: (serving.commits.waiting, serving.bodies.taken) == (0, 0))


def test_a_client_that_hangs_up_ends_its_query_that_waits(state_dir: Path, worker: OwningWorker) -> None:
    with served_here(state_dir, WAITS) as here:
        waiting = "wait_ms=3600000&position_bound=%7B%22flights%22:%7B%220%22:999999%7D%7D&partition=0"
        with socket.create_connection(("127.0.0.1", here.port), timeout=HANGING_S) as connection:
            connection.sendall(f"GET /v1/stores/aircraft/count?{waiting} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            wait_until(lambda: here.serving.commits.waiting == 1)
        wait_until(lambda: here.serving.commits.waiting == 0)


def test_a_bound_names_no_more_than_an_application_may_have(client: httpx.Client) -> None:
    many = {f"topic-{n}": {"0": 1} for n in range(10_000)}
    for bound in (many, {"flights": {str(n): 1 for n in range(20_000)}}):
        answer = client.post(QUERY, json={"type": "count", "position_bound": bound})
        assert (answer.status_code, answer.json()["reason"]) == (422, "INVALID_ARGUMENT")
        assert "position_bound names" in answer.json()["detail"]
    assert len(answer.content) < 1_000
    few = {f"topic-{n}": {"0": 1} for n in range(100)}
    assert client.post(QUERY, json={"type": "count", "position_bound": few}).status_code == 412
