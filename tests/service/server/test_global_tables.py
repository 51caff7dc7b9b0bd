"""Global tables over HTTP: the paths of other stores, one partition, the Position of all of the topic's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stateline import App, serdes
from stateline.deployment.workers.instance_file import Instance
from stateline.query.values import PartitionAnswer, Terms
from stateline.server.state.ownership import Ownership
from stateline.server.state.partitions import Partitions
from stateline.server.state.served_stores import ServedStores
from stateline.server.state.workers import Workers
from stateline.server.wire.time_limits import TimeLimits
from stateline.testing import Record, TestDriver
from stateline_store import (
    IsolationLevel,
    KeyQuery,
    Position,
    StateDirectory,
    StoreContext,
    TimestampedKeyValueStore,
    TopicPartition,
)
from stateline_store.files.directory import global_task
from support.run.length import long_only

READ_COMMITTED = IsolationLevel.READ_COMMITTED

COUNTS = {"codes": 3, "rows": 2, "out": 1}


def declared(*, persistent: bool) -> App:
    app = App("codes-app")
    codes = app.global_table("codes", key=serdes.string, value=serdes.string, persistent=persistent)
    app.table("rows", key=serdes.string, value=serdes.string)
    rows = app.stream("asked", key=serdes.string, value=serdes.string)
    rows.join(codes, lambda row, found: f"{row}|{found}", on=lambda key, row: row).to("out")
    return app


@pytest.fixture(
    params=[True, pytest.param(False, marks=long_only("it is read by the same code"))], ids=["on disk", "in memory"]
)
def driver(request: pytest.FixtureRequest) -> Iterator[TestDriver]:
    with TestDriver(declared(persistent=request.param), partitions=COUNTS) as made:
        yield made


def asked(driver: TestDriver, path: str, status: int = 200, **parameters: Any) -> Any:
    answer = driver.client.get(f"/v1/stores/codes{path}", params=parameters)
    assert answer.status_code == status, answer.text
    return answer.json()


def codes(driver: TestDriver, first: int, last: int, value: str) -> dict[str, str]:
    """Write these; by key."""
    made = {f"c{n:02}": f"{value}-{n}" for n in range(first, last)}
    driver.pipe_all("codes", [Record(key, value, n) for n, (key, value) in enumerate(made.items(), first)])
    return made


def test_every_query_answers_what_the_topic_says(driver: TestDriver) -> None:
    wanted = codes(driver, 0, 40, "one") | codes(driver, 30, 50, "two")
    driver.pipe("codes", "c07", None, timestamp_ms=1)
    del wanted["c07"]
    assert {key: asked(driver, f"/keys/{key}")["value"] for key in wanted} == wanted
    assert asked(driver, "/keys/c07", 404)["found"] is False
    entries = asked(driver, "/range")["entries"]
    assert {e["key"]: e["value"] for e in entries} == wanted
    assert [e["key"] for e in entries] == sorted(wanted)
    assert [e["timestamp"] for e in entries] == [int(key[1:]) for key in sorted(wanted)]
    first = asked(driver, "/range", limit=10, order="desc", prefix="c")
    second = asked(driver, "/range", cursor=first["cursor"], limit=100)
    assert [e["key"] for e in first["entries"] + second["entries"]] == sorted(wanted, reverse=True)
    body = {"type": "keys", "keys": ["c01", "c07", "c49"]}
    found = driver.client.post("/v1/stores/codes/query", json=body).json()["entries"]
    assert [e.get("value") for e in found] == ["one-1", None, "two-49"]
    assert asked(driver, "/count")["approximate_entries"] >= len(wanted)
    lines = driver.client.get("/v1/stores/codes/range", headers={"accept": "application/x-ndjson"}).text.splitlines()
    assert [json.loads(line)["key"] for line in lines] == sorted(wanted)


def test_its_position_is_of_all_partitions_of_the_topic_and_a_bound_is_one_of_each(driver: TestDriver) -> None:
    codes(driver, 0, 40, "one")
    answer = asked(driver, "/range")
    assert list(answer["partitions"]) == ["0"]
    position = answer["position"]
    assert sum(offset + 1 for offset in position["codes"].values()) == 40
    assert len(position["codes"]) == 3
    assert asked(driver, "/position")["committed"] == {"0": position}
    bounded = asked(driver, "/keys/c01", position_bound=json.dumps(position), wait_ms=1_000)
    assert (bounded["value"], bounded["position"]) == ("one-1", position)
    for number, offset in position["codes"].items():
        beyond = json.dumps({"codes": {**position["codes"], number: offset + 1}})
        for path in ("/keys/c01", "/range"):
            assert asked(driver, path, 412, position_bound=beyond)["reason"] == "NOT_UP_TO_BOUND"
    never = asked(driver, "/keys/c01", 412, position_bound=json.dumps({"rows": {"1": 0}}), wait_ms=60_000)
    assert "'rows' is not an input of 'codes', which reads codes" in never["detail"]


def test_what_is_not_committed_is_seen_uncommitted_alone() -> None:
    app = declared(persistent=True)
    with TestDriver(app, partitions=COUNTS, autocommit=False) as driver:
        codes(driver, 0, 10, "one")
        driver.commit()
        codes(driver, 5, 15, "two")
        for level, value, last in (("read_committed", "one-5", 10), ("read_uncommitted", "two-5", 15)):
            found = asked(driver, "/keys/c05", isolation_level=level)
            assert (found["value"], found["partitions"]["0"]["served_by"]) == (value, "active")
            assert found["partitions"]["0"]["staged_records"] == 10
            assert len(asked(driver, "/range", isolation_level=level)["entries"]) == last
        uncommitted, committed = (
            asked(driver, "/position")[level]["0"]["codes"] for level in ("uncommitted", "committed")
        )
        assert sum(uncommitted.values()) == sum(committed.values()) + 10
        driver.crash()
        driver.commit()
        assert asked(driver, "/keys/c05", isolation_level="read_committed")["value"] == "two-5"


def test_it_is_described_as_other_stores_are_and_as_global(driver: TestDriver) -> None:
    codes(driver, 0, 10, "one")
    described = {each["store"]: each for each in driver.client.get("/v1/stores").json()["stores"]}
    assert {name: each["global"] for name, each in described.items()} == {"rows": False, "codes": True}
    assert described["codes"] == asked(driver, "")
    assert (described["codes"]["kind"], described["codes"]["changelog"]) == ("timestamped_key_value", "codes")
    (partition,) = described["codes"]["partitions"].values()
    assert (partition["task"], partition["state"], partition["owner"]) == ("global", "active", "worker-0")
    assert driver.client.get("/v1/topology").json()["stores"]["codes"]["kind"] == "timestamped_key_value"
    assert driver.client.get("/v1/console", params={"store": "codes"}).json()["selected"] == "codes"
    nodes = driver.client.get("/v1/nodes").json()
    assert "global" not in json.dumps(nodes)
    asked(driver, "/keys/c01")
    metrics = driver.client.get("/metrics", headers={"accept-encoding": "identity"}).text
    assert 'stateline_store_requests_total{outcome="ok",store="codes"}' in metrics


def test_the_copy_of_a_worker_that_has_all_of_it_is_read_and_without_one_the_last_that_was(tmp_path: Path) -> None:
    topology, directory = declared(persistent=True).topology(), StateDirectory(tmp_path, "codes-app")
    for instance in ("one", "two"):
        store, place = TimestampedKeyValueStore("codes"), global_task(instance)
        with directory.lock_task(place):
            store.init(StoreContext(place, directory.task(place)))
            store.put_with_timestamp(b"k", instance.encode(), 1)
            store.commit({}, position=Position.of({TopicPartition("codes", 2): 7}))
            store.close()
    workers = Workers(directory.application, lambda: None, TimeLimits())
    ownership = Ownership(topology, workers, None, exactly_once=False)
    partitions = Partitions(directory, tmp_path / "scratch", ownership)
    served, terms = ServedStores(topology, directory.application).get("codes"), Terms("codes", READ_COMMITTED)

    def found() -> bytes:
        answer = partitions.ask(served, terms, 0, KeyQuery(b"k"))
        assert isinstance(answer, PartitionAnswer)
        ((_, stored),) = answer.rows.entries
        assert isinstance(stored, bytes)
        return stored[8:]

    def tell(**states: str | None) -> None:
        workers.instances = {
            name: Instance(instance=name, pid=1, socket=tmp_path, tasks={}, global_tables=state)
            for name, state in states.items()
        }

    assert found() == b"one"
    for states, wanted in (
        ({"one": "restoring", "two": "running"}, b"two"),
        ({}, b"two"),
        ({"one": "running", "two": "restoring"}, b"one"),
        ({"two": "restoring"}, b"two"),
        ({"one": None}, b"two"),
    ):
        tell(**states)
        assert found() == wanted
    partitions.close()


def test_snapshots_and_change_feeds_of_it_are_refused_with_the_way_out(driver: TestDriver) -> None:
    snapshot = driver.client.post("/v1/snapshots", json={"stores": ["codes"]})
    assert (snapshot.status_code, snapshot.json()["reason"]) == (422, "INVALID_ARGUMENT")
    assert "'codes' is a global table" in snapshot.json()["detail"]
    changes: httpx.Response = driver.client.get("/v1/stores/codes/changes")
    assert (changes.status_code, changes.json()["reason"]) == (400, "UNKNOWN_QUERY_TYPE")
    assert "are the records of its topic codes" in changes.json()["detail"]
    assert asked(driver, "/windows", 400)["reason"] == "UNKNOWN_QUERY_TYPE"
    assert asked(driver, "/keys/c01", 404, partition=1)["reason"] == "DOES_NOT_EXIST"


def test_it_is_a_table_of_sql_with_each_row_once(driver: TestDriver) -> None:
    wanted = codes(driver, 0, 10, "one")

    def rows(sql: str) -> httpx.Response:
        answer: httpx.Response = driver.client.post("/v1/sql", json={"sql": sql, "max_age_ms": 0})
        assert answer.status_code == 200, answer.text
        return answer

    found = rows("select key, value from codes order by key")
    assert {row["key"]: row["value"] for row in found.json()} == wanted
    assert len(found.json()) == len(wanted)
    assert sum(o + 1 for o in json.loads(found.headers["stateline-position"])["codes"].values()) == len(wanted)
    assert rows("select value from codes where key = 'c03'").json() == [{"value": "one-3"}]
    driver.pipe("rows", "r1", "c03")
    both = rows("select r.key, c.value from rows r join codes c on r.value = c.key")
    assert (both.json(), both.headers["stateline-cut"]) == ([{"key": "r1", "value": "one-3"}], "false")
