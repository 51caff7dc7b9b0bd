"""`count` with `exact=true`: as many entries as a scan has, whatever was overwritten, deleted or has expired."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Literal

import httpx
import pytest

from stateline import App, SessionWindows, TumblingWindows, serdes
from stateline.client import Client
from stateline.testing import TestDriver
from support.processes.query_server import OwningWorker
from support.processes.served_here import Here

HOUR = timedelta(hours=1)
TIME_MS = 1_700_000_000_000
KEYS, ROUNDS = 7, 30
Level = Literal["read_committed", "read_uncommitted"]
LEVELS: tuple[Level, ...] = ("read_committed", "read_uncommitted")
SCANS = {"newest": "range", "history": "range", "hourly": "windows", "visits": "sessions"}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    app = App("counts", config={"default.state.isolation.level": "read_committed"})
    records = app.topic("records", key=serdes.string, value=serdes.string)
    app.table(records, store="newest")
    app.table("versions", key=serdes.string, value=serdes.string, store="history", versioned=HOUR)
    grouped = app.stream(records).group_by_key()
    grouped.windowed_by(TumblingWindows(HOUR)).count("hourly", retention=timedelta(hours=4))
    grouped.windowed_by(SessionWindows(timedelta(minutes=1))).count("visits", retention=timedelta(hours=4))
    with TestDriver(app) as driver:
        for number in range(ROUNDS):  # each on a commit of its own, so that RocksDB has all of the overwrites
            for topic in ("records", "versions"):
                for key in range(KEYS):
                    driver.pipe(topic, f"k{key}", str(number), timestamp_ms=TIME_MS + number * 900_000)
        for topic in ("records", "versions"):
            driver.pipe(topic, "k0", None, timestamp_ms=TIME_MS + ROUNDS * 900_000)
        yield driver.client


@pytest.mark.parametrize("store", SCANS)
def test_an_exact_count_is_the_number_of_entries_of_a_scan(client: httpx.Client, store: str) -> None:
    scanned = len(client.get(f"/v1/stores/{store}/{SCANS[store]}").json()["entries"])
    path = f"/v1/stores/{store}"
    counted = client.get(f"{path}/count", params={"exact": "true"}).json()
    assert counted["exact_entries"] == scanned > 0
    assert "approximate_entries" not in counted
    assert counted["position"]
    assert client.post(f"{path}/query", json={"type": "count", "exact": True}).json() == counted
    if SCANS[store] == "range":
        assert scanned == KEYS - 1


def test_an_estimate_is_answered_under_its_own_name_alone(client: httpx.Client) -> None:
    answer = client.get("/v1/stores/newest/count").json()
    assert "exact_entries" not in answer
    assert answer.keys() == client.get("/v1/stores/newest/count", params={"exact": "false"}).json().keys()


def test_columns_of_a_count_are_those_that_it_has(client: httpx.Client) -> None:
    asked = {"exact": "true", "columns": "exact_entries", "details": "none"}
    answer = client.get("/v1/stores/newest/count", params=asked).json()
    assert answer == {"store": "newest", "isolation_level": "read_committed", "exact_entries": KEYS - 1}
    refused = client.get("/v1/stores/newest/count", params=asked | {"columns": "approximate_entries"})
    assert (refused.status_code, refused.json()["reason"]) == (422, "INVALID_ARGUMENT")
    refused = client.get("/v1/stores/newest/count", params={"exact": "perhaps"})
    assert (refused.status_code, refused.json()["reason"]) == (422, "INVALID_ARGUMENT")
    assert client.head("/v1/stores/newest/count", params={"exact": "true"}).status_code == 200


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_staged_counts_once_and_only_for_who_reads_it(here: Here, worker: OwningWorker, level: Level) -> None:
    path, params = "/v1/stores/aircraft/count", {"exact": "true", "isolation_level": level}
    worker.put_all({f"{level}{n:05}": n for n in range(5_000)})  # several readings of each partition
    worker.commit()
    before = here.client.get(path, params=params).json()["exact_entries"]
    worker.put_all({f"{level}{n:05}": -n for n in range(4_000, 6_000)})
    staged = here.client.get(path, params=params).json()["exact_entries"]
    assert staged == before + (1_000 if level == "read_uncommitted" else 0)
    parts = [
        here.client.get(path, params=params | {"partition": p}).json()["exact_entries"]
        for p in here.client.get(path).json()["partitions"]
    ]
    assert sum(parts) == staged
    with Client(str(here.client.base_url)) as client:
        assert client.store("aircraft").count(exact=True, isolation_level=level).exact_entries == staged
    worker.commit()
    assert here.client.get(path, params=params).json()["exact_entries"] == before + 1_000
    assert here.limits.scans == 0
