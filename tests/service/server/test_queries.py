"""The contract's queries over HTTP: real stores, a server in another process."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from stateline_store import Position, TopicPartition
from support.processes.query_server import PARTITIONS, TIMESTAMP_MS, TOPIC, OwningWorker

UNCOMMITTED = {"isolation_level": "read_uncommitted"}


def ask(client: httpx.Client, body: dict[str, Any], store: str = "aircraft") -> httpx.Response:
    return client.post(f"/v1/stores/{store}/query", json=body)


def test_a_committed_read_reflects_the_newest_commit_of_another_process(
    client: httpx.Client, worker: OwningWorker
) -> None:
    for i in range(50):
        at = worker.put("newest", {"i": i})
        worker.commit()
        answer = client.get("/v1/stores/aircraft/keys/newest").json()
        assert answer["value"] == {"i": i}
        assert answer["position"] == {TOPIC: {str(at.partition): worker.offset(at.partition)}}


def test_an_answer_carries_what_the_contract_names(client: httpx.Client, worker: OwningWorker) -> None:
    at = worker.put("whole", {"a": 1})
    worker.commit()
    worker.put("whole", {"a": 2})
    answer = client.get("/v1/stores/aircraft/keys/whole").json()
    partition = answer["partitions"].pop(str(at.partition))
    committed_at_ms = worker.run(lambda: worker.stores["aircraft", at.partition].committed_at_ms)
    position = {TOPIC: {str(at.partition): worker.offset(at.partition) - 1}}
    assert answer == {
        "store": "aircraft",
        "isolation_level": "read_committed",
        "found": True,
        "key": "whole",
        "value": {"a": 1},
        "timestamp": TIMESTAMP_MS,
        "position": position,
        "partitions": {},
    }
    assert partition.pop("staged_bytes") > 0
    assert partition == {
        "position": position,
        "served_by": "active",
        "staged_records": 1,
        "committed_at_ms": committed_at_ms,
    }


def test_uncommitted_reads_see_what_is_staged_and_committed_ones_do_not(
    client: httpx.Client, worker: OwningWorker
) -> None:
    at = worker.put("staged", 1)
    uncommitted = client.get("/v1/stores/aircraft/keys/staged", params=UNCOMMITTED)
    assert uncommitted.json()["value"] == 1
    assert uncommitted.json()["isolation_level"] == "read_uncommitted"
    assert uncommitted.json()["position"][TOPIC][str(at.partition)] == worker.offset(at.partition)
    assert client.get("/v1/stores/aircraft/keys/staged").status_code == 404
    worker.commit()
    assert client.get("/v1/stores/aircraft/keys/staged").json()["value"] == 1


def test_a_store_in_memory_is_read_at_both_levels(client: httpx.Client, worker: OwningWorker) -> None:
    worker.put("memory", 1)
    worker.commit()
    worker.put("memory", 2)
    assert client.get("/v1/stores/cache/keys/memory").json()["value"] == 1
    assert client.get("/v1/stores/cache/keys/memory", params=UNCOMMITTED).json()["value"] == 2


def test_an_absent_key_is_the_ordinary_answer_with_404(client: httpx.Client, worker: OwningWorker) -> None:
    worker.put("here", 1)
    worker.commit()
    response = client.get("/v1/stores/aircraft/keys/not-here")
    answer = response.json()
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/json"
    assert (answer["found"], answer["key"], answer["value"], answer["timestamp"]) == (False, "not-here", None, None)
    assert list(answer["partitions"]) == ["0", "1", "2"]
    assert answer["position"][TOPIC]


def test_a_deleted_key_is_absent(client: httpx.Client, worker: OwningWorker) -> None:
    worker.put("gone", 1)
    worker.commit()
    worker.put("gone", None)
    worker.commit()
    assert client.get("/v1/stores/aircraft/keys/gone").status_code == 404


@pytest.mark.parametrize(
    "key", ["a/b", "a//b/", "/", "ü ☃", "%2F", "a?b#c&d=e", "line\nbreak", "a/versions", "versions", "..", " ", "+"]
)
def test_any_text_can_be_a_key(client: httpx.Client, worker: OwningWorker, key: str) -> None:
    worker.put(key, {"key": key})
    worker.commit()
    response = client.get(f"/v1/stores/aircraft/keys/{quote(key, safe='').replace('.', '%2E')}")
    assert (response.status_code, response.json()["key"]) == (200, key)
    assert response.json()["value"] == {"key": key}
    assert ask(client, {"type": "key", "key": key}).json()["value"] == {"key": key}


def test_json_values_come_byte_for_byte(client: httpx.Client, worker: OwningWorker) -> None:
    text = b'{"b" :1.10,\t"a":  "\\u00e9", "b":2e400}'
    partition = worker.put("exact", 0).partition
    worker.run(lambda: worker.stores["aircraft", partition].put(b"exact", text))
    worker.commit()
    assert b'"value":' + text in client.get("/v1/stores/aircraft/keys/exact").content


def test_keys_and_values_are_written_in_their_types(client: httpx.Client, worker: OwningWorker) -> None:
    number, raw = -5, b"\xff\xfe\x00?"
    worker.run(lambda: worker.stores["counts", 1].put((number).to_bytes(8, "big", signed=True), b"\0" * 7 + b"\7"))
    worker.run(lambda: worker.stores["blobs", 2].put(raw, raw))
    worker.commit()
    count = client.get("/v1/stores/counts/keys/-5").json()
    assert (count["key"], count["value"], count["timestamp"]) == (-5, 7, None)
    assert ask(client, {"type": "key", "key": -5}, "counts").json()["value"] == 7
    text = base64.urlsafe_b64encode(raw).decode()
    blob = client.get(f"/v1/stores/blobs/keys/{text.rstrip('=')}").json()
    assert (blob["key"], blob["value"]) == (text, base64.b64encode(raw).decode())


def test_a_key_in_another_partition_than_its_home_is_found(client: httpx.Client, worker: OwningWorker) -> None:
    for partition in range(PARTITIONS):
        worker.put(f"stray{partition}", partition, partition=partition)
    worker.commit()
    for partition in range(PARTITIONS):
        for params in ({}, UNCOMMITTED):
            answer = client.get(f"/v1/stores/aircraft/keys/stray{partition}", params=params).json()
            assert answer["value"] == partition
        elsewhere = [p for p in range(PARTITIONS) if p != partition]
        only = client.get(f"/v1/stores/aircraft/keys/stray{partition}", params={"partition": elsewhere})
        assert only.status_code == 404
        assert list(only.json()["partitions"]) == [str(p) for p in elsewhere]


def test_many_keys_at_once_come_in_the_order_asked(client: httpx.Client, worker: OwningWorker) -> None:
    for i in range(6):
        worker.put(f"many{i}", i, partition=i % PARTITIONS)
    worker.commit()
    keys = ["many5", "many0", "absent", "many3"]
    for extra in ({}, UNCOMMITTED):
        entries = ask(client, {"type": "keys", "keys": keys, **extra}).json()["entries"]
        assert [(e["key"], e["found"], e["value"]) for e in entries] == [
            ("many5", True, 5),
            ("many0", True, 0),
            ("absent", False, None),
            ("many3", True, 3),
        ]


@pytest.mark.parametrize("store", ["aircraft", "cache"])
@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_a_range_is_in_key_order_over_all_partitions(
    client: httpx.Client, worker: OwningWorker, store: str, level: str
) -> None:
    keys = [f"r{i:02}" for i in range(20)]
    for key in reversed(keys):
        worker.put(key, key.upper())
    worker.commit()

    def found(**params: Any) -> list[str]:
        answer = client.get(f"/v1/stores/{store}/range", params={"isolation_level": level, **params}).json()
        body = {"type": "range", "isolation_level": level, **params}
        assert ask(client, body, store).json()["entries"] == answer["entries"]
        return [entry["key"] for entry in answer["entries"]]

    assert found(lower="r03", upper="r05") == ["r03", "r04", "r05"]
    assert found(lower="r03", upper="r05", order="desc") == ["r05", "r04", "r03"]
    assert found(prefix="r1") == keys[10:]
    assert found(prefix="r", order="desc", limit=3) == ["r19", "r18", "r17"]
    assert found(lower="r05", upper="r03") == []


def test_a_range_that_is_cut_off_says_so(client: httpx.Client, worker: OwningWorker) -> None:
    for i in range(4):
        worker.put(f"cut{i}", i)
    worker.commit()
    whole = client.get("/v1/stores/aircraft/range", params={"prefix": "cut", "limit": 4}).json()
    part = client.get("/v1/stores/aircraft/range", params={"prefix": "cut", "limit": 3}).json()
    assert (len(whole["entries"]), "cursor" in whole) == (4, False)
    assert (len(part["entries"]), "cursor" in part) == (3, True)
    assert "truncated" not in part
    assert whole["entries"][0] == {"key": "cut0", "value": 0, "timestamp": TIMESTAMP_MS}


def test_one_partition_can_be_asked_alone(client: httpx.Client, worker: OwningWorker) -> None:
    for partition in range(PARTITIONS):
        worker.put(f"only{partition}", partition, partition=partition)
    worker.commit()
    for params in ([("partition", "0"), ("partition", "2")], [("partition", "2,0")]):
        answer = client.get("/v1/stores/aircraft/range", params=[("prefix", "only"), *params]).json()
        assert [e["key"] for e in answer["entries"]] == ["only0", "only2"]
        assert list(answer["partitions"]) == ["0", "2"]
    body = {"type": "range", "prefix": "only", "partition": 1}
    assert [e["key"] for e in ask(client, body).json()["entries"]] == ["only1"]


def test_a_count_is_of_all_partitions(client: httpx.Client, worker: OwningWorker) -> None:
    count = client.get("/v1/stores/aircraft/count").json()["approximate_entries"]
    assert count == ask(client, {"type": "count"}).json()["approximate_entries"]
    assert count >= 0


def test_a_position_is_told_for_both_levels(client: httpx.Client, worker: OwningWorker) -> None:
    at = worker.put("position", 1)
    worker.commit()
    before = worker.offset(at.partition)
    worker.put("position", 2)
    answer = client.get("/v1/stores/aircraft/position").json()
    mine = str(at.partition)
    assert answer["committed"][mine] == {TOPIC: {mine: before}}
    assert answer["uncommitted"][mine] == {TOPIC: {mine: before + 1}}
    assert answer["position"][TOPIC][mine] == before


def test_an_answers_position_is_a_bound_that_is_met(client: httpx.Client, worker: OwningWorker) -> None:
    worker.put("bounded", 1)
    worker.commit()
    position = client.get("/v1/stores/aircraft/range").json()["position"]
    assert Position.from_json(position).get(*TopicPartition(TOPIC, 0)) is not None or position
    body = {"type": "key", "key": "bounded", "position_bound": position}
    assert ask(client, body).json()["value"] == 1
