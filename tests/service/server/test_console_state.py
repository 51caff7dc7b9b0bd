"""`/v1/console`: what a look of the console asks for."""

from __future__ import annotations

from pathlib import Path

import httpx

from support.processes.query_server import PARTITIONS, OwningWorker, wait_until
from support.processes.served_here import http_server


def test_a_look_shows_every_store_and_the_partitions_of_one(client: httpx.Client, worker: OwningWorker) -> None:
    worker.put("looked", 1, partition=0)
    worker.commit()
    worker.put("looked", 2, partition=0)
    worker.put("looked", 2, partition=1)

    def look() -> dict[str, object]:
        (found,) = (s for s in client.get("/v1/console").json()["stores"] if s["store"] == "aircraft")
        return dict(found)

    wait_until(lambda: look()["staged_records"] == 2)  # what was seen within the last second is told again
    described = client.get("/v1/stores/aircraft").json()
    newest = max(partition["committed_at_ms"] for partition in described["partitions"].values())
    assert look() == {
        "store": "aircraft",
        "kind": "timestamped_key_value",
        "key_type": "string",
        "value_type": "json",
        "persistent": True,
        "states": {"active": PARTITIONS},
        "lag": 0,
        "input_lag": None,
        "staged_records": 2,
        "committed_at_ms": newest,
        "backed_up_at_ms": None,
    }
    for asked, selected in (({}, "aircraft"), ({"store": "counts"}, "counts"), ({"store": "nope"}, "aircraft")):
        body = client.get("/v1/console", params=asked).json()
        assert body["selected"] == selected
        told = client.get(f"/v1/stores/{selected}").json()["partitions"]
        unknown = {"input_lag": None, "backed_up_at_ms": None}
        assert body["partitions"] == {number: known | unknown for number, known in told.items()}
    assert body["application_id"] == "flights-app"
    assert body["pipelines"] == {}
    store = worker.stores["aircraft", 0]
    assert body["commits"]["0_0"] == worker.run(lambda: [store.commit_number, store.committed_at_ms])
    assert set(body["commits"]) == {f"0_{partition}" for partition in range(PARTITIONS)}


def test_it_counts_the_queries_and_nothing_else(client: httpx.Client) -> None:
    def counted() -> float:
        buckets = client.get("/v1/console").json()["queries"]
        assert [edge for edge, _ in buckets[:2]] == [0.0005, 0.001]
        assert buckets[-1][0] is None
        counts = [count for _, count in buckets]
        assert counts == sorted(counts)
        return float(counts[-1])

    client.get("/v1/stores/aircraft/count")
    wait_until(lambda: counted() > 0)
    before = counted()
    for _ in range(5):
        client.get("/v1/stores/aircraft/count")
        client.get("/v1/stores")
    wait_until(lambda: counted() == before + 5)


def test_before_any_worker_it_says_what_is_missing(tmp_path: Path) -> None:
    with http_server(tmp_path) as client:
        body = client.get("/v1/console").json()
        assert body["partitions"] == {}
        assert {store["states"] == {} and "No worker" in store["not_ready"] for store in body["stores"]} == {True}


def test_a_parameter_that_it_does_not_take_is_refused(client: httpx.Client) -> None:
    assert client.get("/v1/console?stor=aircraft").status_code == 422
