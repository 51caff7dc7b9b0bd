"""Queries that are longer than a URL may be go as bodies, whatever their kind: both clients, through a proxy that
sees what is sent. The oracle is the same query of a short key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from stateline import App, SessionWindows, TumblingWindows, serdes, stores
from stateline.client import Client, NotUpToBoundError, Position
from stateline.client.requests import RowArguments
from stateline.log.embedded import EmbeddedLog
from stateline_store import InvalidArgumentError
from support.http.blocking import clients_of
from support.http.faulty_proxy import Answered, Cut, FaultyProxy, faulty_proxy
from support.processes.query_server import wait_until
from support.processes.running_worker import configured, create, produce, running
from support.processes.served_here import served_here
from support.run.length import long_only

Connect = Callable[..., Client]
KEY = "é" * 12_000  # percent-encoded 72 kB, more than a server takes
TIME_MS = 1_700_000_000_000
MINUTE = timedelta(minutes=1)
# Long names: a Position of all of them is longer than a URL may be, and a store has them as input.
TOPICS = [f"{number:02}-{'x' * 190}" for number in range(45)]


class Served(NamedTuple):
    log: EmbeddedLog
    proxy: FaultyProxy


def application() -> App:
    app = App("long", config={"default.state.isolation.level": "read_committed"})
    source = app.topic("t", key=serdes.string, value=serdes.string)
    app.table(source, store="tab")
    app.table("v", key=serdes.string, value=serdes.string, store="ver", versioned=timedelta(days=1))
    grouped = app.stream(source).group_by_key()
    grouped.windowed_by(TumblingWindows(MINUTE)).count("win", retention=timedelta(days=1))
    grouped.windowed_by(SessionWindows(MINUTE)).count("ses", retention=timedelta(days=1))
    wide = app.store(stores.key_value("wide", key=serdes.string, value=serdes.string))
    for name in TOPICS:

        @app.process(app.topic(name, key=serdes.string, value=serdes.string), name=name[:2], stores=[wide])
        def keep(record: Any, wide: Any) -> None:
            wide.put(record.key, record.value)

    return app


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("long")
    bootstrap, app = f"embedded:{root / 'log.db'}", application()
    config = configured(app, root, **{"bootstrap.servers": bootstrap})
    with closing(EmbeddedLog(root / "log.db")) as log:
        create(log, dict.fromkeys(("t", "v", *TOPICS), 1))
        for key in (KEY, "short"):
            produce(log, "t", [(key.encode(), b"x", TIME_MS)])
            produce(log, "v", [(key.encode(), b"x", TIME_MS)])
        for name in TOPICS:
            produce(log, name, [(name[:2].encode(), b"1", TIME_MS)])
        with running(app, config, log), served_here(root, f"bootstrap.servers={bootstrap}", app=app) as here:
            for store, count in (("tab", 2), ("ver", 2), ("wide", len(TOPICS))):
                path = f"/v1/stores/{store}/range"
                wait_until(lambda path=path, count=count: len(here.client.get(path).json()["entries"]) == count)  # type: ignore[misc]
            assert here.client.base_url.port is not None
            with faulty_proxy(here.client.base_url.port) as proxy:
                yield Served(log, proxy)


@pytest.fixture(params=["asyncio", pytest.param("threads", marks=long_only("requests are made by the same code"))])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    with clients_of(request.param) as connect:
        yield connect


@pytest.fixture
def client(served: Served, connect: Connect) -> Iterator[Client]:
    """Each of its connections has one request, which the proxy sees."""
    served.proxy.requests.clear()
    yield connect(served.proxy.url)
    for first in served.proxy.requests:
        line = first.split(b"\r\n", 1)[0]
        assert len(line) < 7_600, line[:100]


CALLS: dict[str, Callable[[Client, str], Any]] = {
    "get": lambda client, key: client.store("tab").get(key).value,
    "get as_of": lambda client, key: client.store("ver").get(key, as_of=TIME_MS).value,
    "get_many": lambda client, key: client.store("tab").get_many([key]).entries[0].value,
    "range": lambda client, key: [e.value for e in client.store("tab").range(lower=key, upper=key)],
    "prefix": lambda client, key: [e.value for e in client.store("tab").range(prefix=key, order="desc")],
    "versioned range": lambda client, key: [
        e.value for e in client.store("ver").range(lower=key, upper=key, as_of=TIME_MS)
    ],
    "windows": lambda client, key: [w.value for w in client.store("win").windows(key, time_from=TIME_MS - 60_000)],
    "sessions": lambda client, key: [w.value for w in client.store("ses").sessions(key, time_to=TIME_MS)],
    "versions": lambda client, key: [v.value for v in client.store("ver").versions(key, order="asc", limit=5)],
    "batches": lambda client, key: sum(b.num_rows for b in client.store("win").windows(key).batches()),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_key_too_long_for_a_url_is_asked_for_in_a_body_by_every_query(client: Client, call: str) -> None:
    assert CALLS[call](client, KEY) == CALLS[call](client, "short")


@pytest.mark.parametrize("call", CALLS)
def test_a_body_is_sent_again_after_a_lost_connection_and_a_refusal(served: Served, client: Client, call: str) -> None:
    if call == "batches":
        return  # a stream that has begun is not sent twice
    served.proxy.faults.extend([Cut(0), Answered("503 Service Unavailable", {"Retry-After": "0"})])
    assert CALLS[call](client, KEY) == CALLS[call](client, "short")
    assert not served.proxy.faults


def test_pages_behind_a_body_are_of_the_same_state(served: Served, client: Client) -> None:
    pages = list(client.store("tab").range(upper=KEY, page_size=1).pages())
    assert [[entry.key for entry in page.entries] for page in pages] == [["short"], [KEY]]
    pages = list(client.store("wide").range(page_size=15, bound=client.store("wide").position().position).pages())
    assert [len(page.entries) for page in pages] == [15, 15, 15]


def test_a_bound_too_long_for_a_url_goes_along_with_every_query(client: Client) -> None:
    wide = client.store("wide")
    seen = wide.position().position
    assert len(seen.offsets) == len(TOPICS)
    bound = client.store("wide", bound=seen)
    assert bound.get("00").value == "1"
    assert [e.value for e in bound.get_many(["00", "01"]).entries] == ["1", "1"]
    assert len(list(bound.range())) == len(TOPICS)
    assert bound.count().approximate_entries == wide.count().approximate_entries
    assert bound.position().committed == wide.position().committed
    assert sum(batch.num_rows for batch in bound.range().batches()) == len(TOPICS)


def test_changes_begin_after_a_position_too_long_for_a_url(served: Served, client: Client) -> None:
    position = client.store("wide").position().position
    key = f"new-{position.offsets[TOPICS[0]]}"
    produce(served.log, TOPICS[0], [(key.encode(), b"1", TIME_MS)])
    for since in (position, position.to_json()):
        with closing(client.store("wide").changes(since=since)) as changes:
            assert next(changes).key == key


def test_a_bound_may_be_the_json_that_produce_prints(client: Client) -> None:
    for bound in ({"t": {"0": 1}}, {"t": {0: 1}}, Position({"t": {0: 1}})):
        assert client.store("tab").get("short", bound=bound).found
        assert client.store("tab", bound=bound).get("short").found
    with pytest.raises(NotUpToBoundError):
        client.store("tab").get("short", bound={"t": {"0": 99}})
    wrong: list[Any] = [{"t": 5}, {"t": {"x": 1}}, {"t": {0: "1"}}, [], "{}", {"t": {-1: 0}}]
    for bad in wrong:
        with pytest.raises(InvalidArgumentError, match=r"bound=.* is no Position"):
            client.store("tab").get("short", bound=bad)


def test_bounds_of_a_snapshots_rows_may_be_too_long_for_a_url(client: Client) -> None:
    with client.snapshot(["tab"], ttl_s=60) as snapshot:
        bounds: list[RowArguments] = [{"lower": KEY}, {"prefix": KEY}, {"lower": KEY, "upper": KEY}]
        for given in bounds:
            (batch,) = snapshot.read("tab", 0, **given)
            assert batch.column("key").to_pylist() == [KEY]
        assert [b.num_rows for b in snapshot.read("tab", 0, upper=KEY, skip=1)] == [1]
        assert list(snapshot.read("tab", 0, after=KEY)) == []
