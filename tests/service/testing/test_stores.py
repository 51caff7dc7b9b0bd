"""Reads of every kind of store in a test driver, against plain Python, and the answers that the server gives."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import httpx
import pytest

from service.testing import orders
from stateline import App, InputRecord, serdes, stores
from stateline.client import Client
from stateline.testing import Record, TestDriver
from stateline_store import InvalidArgumentError, UnknownQueryTypeError
from support.apps import kinds_app
from support.apps.kinds_app import BOOM, Event, Oracle
from support.apps.own_stores import OwnStore
from support.run.length import long_or_short


def events(count: int) -> list[Event]:
    """Mostly in order, some late, some deletes, some that the processor raises on."""
    chance, at = random.Random(7), 1_700_000_100_000
    made: list[Event] = []
    for n in range(count):
        at += chance.randrange(9_000)
        value = chance.choices([n, None, BOOM], [20, 2, 1])[0]
        made.append((f"k{chance.randrange(5)}", value, at - chance.choices([0, 200_000], [12, 1])[0]))
    return made


def contents(driver: TestDriver, name: str) -> list[Any]:
    """As the oracle has them."""
    store = driver.store(name)
    if name in ("history", "table"):
        keys = [f"k{n}" for n in range(5)]
        found = {key: [(v.value, v.timestamp, v.valid_to) for v in store.versions(key)][::-1] for key in keys}
        return [(key, versions) for key, versions in found.items() if versions]
    rows: list[Any] = []
    for each in store.fetch_all():
        times = (each.start,) if name in ("counts", "newest", "each") else (each.start, each.end)
        rows.append((each.key, *times, each.value, *([] if each.timestamp is None else [each.timestamp])))
    if name != "each":
        return sorted(rows, key=lambda row: (row[0], row[2], row[1]) if len(times) == 2 else row[:2])
    return sorted(rows, key=lambda row: row[:2])


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("guarantee", long_or_short(orders.GUARANTEES, ["exactly_once_v2"]))
def test_stores_of_every_kind_hold_what_an_oracle_makes_of_the_same_records_over_restarts(
    guarantee: str, persistent: bool, partitions: int
) -> None:
    given = events(300)
    if partitions > 1:  # the oracle is of one partition: stream time is each one's own
        given = [event for event in given if event[0] == "k1"]
    app = kinds_app.build("driver", persistent=persistent)
    config = {"processing.guarantee": guarantee, "processing.exception.handler": "skip"}
    oracle = Oracle()
    with TestDriver(app, partitions=partitions, config=config) as driver:
        third = len(given) // 3
        for end, part in (("restart", given[:third]), ("crash", given[third : 2 * third]), ("", given[2 * third :])):
            driver.pipe_all("events-driver", [Record(key, value, at) for key, value, at in part])
            oracle.process(part)
            if end:
                getattr(driver, end)()
        for name, (_, wanted) in oracle.contents().items():
            assert contents(driver, name) == wanted, name


def test_ranges_prefixes_and_order_are_those_of_the_keys_over_all_partitions() -> None:
    app = App("ranges")
    app.table("names", key=serdes.string, value=serdes.int64)
    given = {f"{letter}{n}": n for n in range(15) for letter in "abc"}
    with TestDriver(app, partitions=3) as driver:
        driver.pipe_all("names", [Record(key, value, 5) for key, value in given.items()])
        store = driver.store("names")

        def keys(**arguments: Any) -> list[str]:
            return [entry.key for entry in store.range(**arguments)]

        assert {entry.key: entry.value for entry in store.all()} == given
        assert keys() == sorted(given)
        assert keys(lower="a9", upper="b10") == [key for key in sorted(given) if "a9" <= key <= "b10"]
        assert keys(prefix="b") == [key for key in sorted(given) if key.startswith("b")]
        assert keys(prefix="b", order="desc") == sorted((key for key in given if key.startswith("b")), reverse=True)
        assert keys(lower="b", upper="a") == []
        assert {entry.timestamp for entry in store.all()} == {5}
        with pytest.raises(InvalidArgumentError, match="not both"):
            store.range("a", prefix="b")
        with pytest.raises(InvalidArgumentError, match="order is asc or desc, not 'down'"):
            store.range(order="down")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match=r"isolation_level is .*, not 'committed'"):
            store.get("a1", isolation_level="committed")  # type: ignore[arg-type]


def test_more_entries_than_one_page_has_are_all_there() -> None:
    app = App("many")
    app.table("rows", key=serdes.int64, value=serdes.string)
    with TestDriver(app) as driver:
        driver.pipe_all("rows", [Record(n, "x" * 500) for n in range(12_000)])
        assert [entry.key for entry in driver.store("rows").all()] == list(range(12_000))


def test_a_read_that_a_kind_of_store_does_not_have_names_those_that_it_has() -> None:
    with TestDriver(kinds_app.build("driver")) as driver:
        with pytest.raises(
            UnknownQueryTypeError, match=r"'counts' is a window store, .* no get: .* fetch, fetch_all\."
        ):
            driver.store("counts").get("k1")
        with pytest.raises(UnknownQueryTypeError, match=r"'history' is a versioned store, .* no fetch: .*versions\."):
            driver.store("history").fetch("k1")
    with TestDriver(orders.made()) as driver, pytest.raises(UnknownQueryTypeError, match="keeps no versions"):
        driver.store("totals").get("alice", as_of=3)


def test_versions_windows_and_sessions_are_found_by_time() -> None:
    with TestDriver(kinds_app.build("driver")) as driver:
        first = 1_700_000_040_000
        for at, value in ((first, 1), (first + 30_000, 2), (first + 61_000, 3)):
            driver.pipe("events-driver", "k1", value, timestamp_ms=at)
        table = driver.store("table")
        assert [table.get("k1", as_of=first + ms) for ms in (-1, 0, 29_999, 30_000, 90_000)] == [None, 1, 1, 2, 3]
        assert [version.value for version in table.versions("k1", time_to=first + 30_000)] == [1, 2]
        entry = table.entry("k1", as_of=first)
        assert entry is not None
        assert (entry.timestamp, entry.valid_to) == (first, first + 30_000)
        assert [e.value for e in table.all(as_of=first)] == [1]
        windows = driver.store("counts").fetch("k1", time_from=first, time_to=first + 59_999)
        assert [(window.start, window.end, window.value) for window in windows] == [(first, first + 60_000, 2)]
        sessions = driver.store("visits").fetch("k1", time_from=first + 30_000)
        assert [(s.start - first, s.end - first) for s in sessions] == [(30_000, 30_000), (61_000, 61_000)]


def test_global_tables_and_stores_of_ones_own_can_be_looked_at() -> None:
    app = App("others")
    countries = app.global_table("countries", key=serdes.string, value=serdes.string)
    towns = app.stream("towns", key=serdes.string, value=serdes.string)
    towns.join(countries, lambda town, country: f"{town}, {country}", on=lambda key, town: key).to(
        app.topic("out", key=serdes.string, value=serdes.string)
    )
    with TestDriver(app) as driver:
        driver.pipe("countries", "uk", "England")
        driver.pipe("towns", "uk", "Bath")
        driver.pipe("countries", "uk", "Wales")
        driver.pipe("towns", "uk", "Cardiff")
        assert [record.value for record in driver.read("out")] == ["Bath, England", "Cardiff, Wales"]
        assert driver.store("countries").get("uk") == "Wales"
        driver.restart()
        assert driver.store("countries").get("uk") == "Wales"


@pytest.mark.parametrize("end", ["restart", "crash", "abort"])
@pytest.mark.parametrize("manages_offsets", [True, False])
def test_a_store_of_ones_own_is_the_workers_own_and_is_there_again(manages_offsets: bool, end: str) -> None:
    app = App("own")
    make = partial(OwnStore, transactional=True, manages_offsets=manages_offsets)
    own = app.store(stores.custom("own", make, key=serdes.string, value=serdes.string))

    @app.process("in", key=serdes.string, value=serdes.string, stores=[own])
    def keep(record: InputRecord, own: OwnStore) -> None:
        own.put(record.key, record.value)

    with TestDriver(app) as driver:
        driver.pipe("in", "a", "x")
        getattr(driver, end)()
        kept = driver.store("own").of_partition()
        assert isinstance(kept, OwnStore)
        assert kept.get("a") == "x"
        with pytest.raises(UnknownQueryTypeError, match=r"'own' is a custom store, which has no get: .* of_partition"):
            driver.store("own").get("a")


@pytest.mark.parametrize("guarantee", orders.GUARANTEES)
def test_the_server_answers_as_it_does_over_http_at_both_levels(guarantee: str) -> None:
    with TestDriver(orders.made(processing__guarantee=guarantee), partitions={"orders": 2}) as driver:
        driver.pipe("orders", "alice", {"amount": 1, "city": "Bath"})
        driver.autocommit = False
        driver.pipe("orders", "alice", {"amount": 2})

        def answer(level: str) -> Any:
            return driver.client.get("/v1/stores/totals/keys/alice", params={"isolation_level": level}).json()

        assert [answer(level)["value"] for level in ("read_committed", "read_uncommitted")] == [1, 3]
        default = "read_committed" if guarantee == "exactly_once_v2" else "read_uncommitted"
        assert driver.client.get("/v1/stores/totals/keys/alice").json()["isolation_level"] == default
        assert driver.client.get("/v1/stores/totals/keys/nobody").status_code == 404
        driver.commit()
        assert answer("read_committed")["value"] == 3
        found = driver.client.post("/v1/stores/cities/query", json={"type": "range", "lower": "B"}).json()
        assert [(entry["key"], entry["value"]) for entry in found["entries"]] == [("Bath", 1)]


@pytest.mark.parametrize("end", ["restart", "crash", "abort"])
def test_the_server_answers_after_the_worker_was_started_again(end: str) -> None:
    with TestDriver(orders.made()) as driver:
        client = driver.client
        driver.pipe("orders", "alice", {"amount": 1})
        assert client.get("/v1/stores/totals/keys/alice").json()["value"] == 1
        getattr(driver, end)()
        assert client.get("/v1/stores/totals/keys/alice").json()["value"] == 1
        driver.pipe("orders", "alice", {"amount": 1})
        assert client.get("/v1/stores/totals/keys/alice").json()["value"] == 2


def test_a_stream_without_an_end_is_given_up_after_the_clients_time() -> None:
    with TestDriver(orders.made()) as driver:
        driver.pipe("orders", "alice", {"amount": 1})
        feed = "/v1/stores/totals/changes?from=earliest"
        with pytest.raises(httpx.ReadTimeout, match=r"within 0\.1 s: a stream without an end"):
            driver.client.get(feed, timeout=0.1)
        assert driver.client.get("/v1/stores/totals/keys/alice").json()["value"] == 1


def test_the_python_client_asks_it_too() -> None:
    with TestDriver(orders.made()) as driver:
        driver.pipe("orders", "alice", {"amount": 1})
        client = Client(str(driver.client.base_url), http=driver.client)
        answer = client.store("totals").get("alice")
        assert (answer.value, answer.found) == (1, True)
        assert [entry.key for entry in client.store("totals").range(prefix="a")] == ["alice"]
