"""Snapshots over HTTP: made, read, renewed, released and swept, over a real worker's socket and a real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from stateline.config.loading import load_config
from stateline.server.snapshots import sweeper as snapshot_sweeper
from stateline.server.snapshots.sweeper import SnapshotSweeper
from stateline_store.snapshots.checkpoints import CheckpointPart
from stateline_store.snapshots.snapshot_directory import SnapshotDirectory
from support.processes.query_server import (
    PARTITIONS,
    TIMESTAMP_MS,
    TOPIC,
    OwningWorker,
    from_another_address,
    wait_until,
)
from support.processes.served_here import http_server, served_here

ARROW = "application/vnd.apache.arrow.stream"


@pytest.fixture(scope="module")
def snapshots(worker: OwningWorker) -> SnapshotDirectory:
    return SnapshotDirectory(worker.application)


@pytest.fixture(autouse=True)
def none_left(client: httpx.Client) -> Iterator[None]:
    yield
    for snapshot in client.get("/v1/snapshots").json()["snapshots"]:
        assert client.delete(f"/v1/snapshots/{snapshot['id']}").status_code == 204


def make(client: httpx.Client, *stores: str, **more: Any) -> dict[str, Any]:
    response = client.post("/v1/snapshots", json={"stores": stores, **more})
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    assert response.headers["Location"] == f"/v1/snapshots/{made['id']}"
    return made


def table(client: httpx.Client, path: str, **filters: Any) -> pa.Table:
    response = client.get(path, params=filters)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == ARROW
    with pa.ipc.open_stream(response.content) as reader:
        return reader.read_all()


def rows(client: httpx.Client, snapshot: dict[str, Any], store: str, **filters: Any) -> dict[str, Any]:
    """Key → JSON value of all partitions."""
    found: dict[str, Any] = {}
    for part in snapshot["stores"][store].values():
        read = table(client, part["path"], **filters)
        keys, values = read["key"].to_pylist(), read["value"].to_pylist()
        assert found.keys().isdisjoint(keys)
        found |= dict(zip(keys, map(json.loads, values), strict=True))
    return found


def refused(response: httpx.Response, status: int, reason: str) -> str:
    assert (response.status_code, response.json()["reason"]) == (status, reason), response.text
    detail: str = response.json()["detail"]
    return detail


def test_a_snapshot_is_read_as_it_was_while_the_store_goes_on(client: httpx.Client, worker: OwningWorker) -> None:
    worker.put_all({f"s-{number}": {"n": number} for number in range(200)})
    worker.commit()
    worker.put("s-0", {"n": "staged"})
    snapshot = make(client, "aircraft", "counts")
    expected = {f"s-{number}": {"n": number} for number in range(200)}
    worker.put("s-1", {"n": "later"})
    worker.commit()
    assert rows(client, snapshot, "aircraft", prefix="s-") == expected
    assert rows(client, snapshot, "aircraft", prefix="s-") == expected  # opened once, read again
    later = rows(client, make(client, "aircraft"), "aircraft", prefix="s-")
    assert later == expected | {"s-0": {"n": "staged"}, "s-1": {"n": "later"}}


def test_the_answer_says_position_lease_and_paths(client: httpx.Client, worker: OwningWorker) -> None:
    worker.put("p", 1)
    worker.commit()
    before_ms = time.time_ns() // 1_000_000
    snapshot = make(client, "aircraft", "blobs", "aircraft", ttl_s=60)
    assert 59_000 <= snapshot["expires_at"] - before_ms <= 70_000
    assert list(snapshot["stores"]) == ["aircraft", "blobs"]
    assert list(snapshot["stores"]["blobs"]) == [str(p) for p in range(PARTITIONS)]
    position = client.get("/v1/stores/aircraft/position").json()["committed"]
    for number, part in snapshot["stores"]["aircraft"].items():
        assert part["position"] == position[number]
        assert part["path"] == f"/v1/snapshots/{snapshot['id']}/stores/aircraft/partitions/{number}"
    offsets = {p: offset for part in position.values() for p, offset in part.get(TOPIC, {}).items()}
    assert snapshot["position"] == {TOPIC: offsets}
    assert client.get(f"/v1/snapshots/{snapshot['id']}").json() == snapshot
    assert client.get("/v1/snapshots").json() == {"snapshots": [snapshot]}


def test_a_pin_is_one_snapshot_however_often_it_is_asked_for(client: httpx.Client, worker: OwningWorker) -> None:
    worker.put("pinned", 1)
    worker.commit()
    body = {"stores": ["aircraft", "blobs"], "pin": "job 7", "ttl_s": 60}
    first = client.post("/v1/snapshots", json=body)
    worker.put("pinned", 2)
    worker.commit()
    again = client.post("/v1/snapshots", json={**body, "stores": ["blobs", "aircraft"], "ttl_s": 600})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert rows(client, again.json(), "aircraft", prefix="pinned") == {"pinned": 1}
    other = client.post("/v1/snapshots", json={**body, "stores": ["aircraft"]})
    assert (other.status_code, other.json()["id"] != first.json()["id"]) == (201, True)
    client.delete(f"/v1/snapshots/{first.json()['id']}")
    refused(client.post("/v1/snapshots", json=body), 410, "CURSOR_EXPIRED")
    for bad in ("", "x" * 65, 7):
        assert "pin" in refused(client.post("/v1/snapshots", json={**body, "pin": bad}), 422, "INVALID_ARGUMENT")


def test_those_who_ask_for_one_pin_at_once_get_one_snapshot(client: httpx.Client, worker: OwningWorker) -> None:
    body = {"stores": ["aircraft"], "pin": "at once"}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.post("/v1/snapshots", json=body), range(8)))
    assert {answer.status_code for answer in answers} <= {200, 201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(client.get("/v1/snapshots").json()["snapshots"]) == 1


def test_many_keys_are_asked_for_by_a_body(client: httpx.Client, worker: OwningWorker) -> None:
    names = [f"by-body-{number}" for number in range(60)]
    worker.put_all({name: name for name in names})
    worker.commit()
    found: dict[str, str] = {}
    for part in make(client, "aircraft")["stores"]["aircraft"].values():
        body = {"keys": [*names, "nobody"], "columns": "key,value", "lower": "by-body-1", "skip": 1}
        response = client.post(part["path"], json=body)
        assert response.status_code == 200, response.text
        assert response.headers["Stateline-Position"] == json.dumps(part["position"], separators=(",", ":"))
        with pa.ipc.open_stream(response.content) as reader:
            read = reader.read_all()
        found |= dict(zip(read["key"].to_pylist(), read["value"].to_pylist(), strict=True))
    assert set(found) < set(names[1:])
    assert len(found) == len([name for name in names if name >= "by-body-1"]) - PARTITIONS, "each skips its first"
    assert "lower" in refused(client.post(part["path"], json={"keys": ["a"], "lower": 1}), 422, "INVALID_ARGUMENT")
    assert (
        client.post(part["path"], json={"columns": "key"}).content == client.get(f"{part['path']}?columns=key").content
    )
    assert "x" in refused(client.post(part["path"], params={"x": 1}, json={"keys": ["a"]}), 422, "INVALID_ARGUMENT")
    assert set(client.put(part["path"]).headers["Allow"].split(", ")) == {"GET", "HEAD", "POST"}


def test_a_store_says_which_columns_its_rows_have(client: httpx.Client, worker: OwningWorker) -> None:
    described = {store["store"]: store["columns"] for store in client.get("/v1/stores").json()["stores"]}
    assert described["aircraft"] == client.get("/v1/stores/aircraft").json()["columns"]
    snapshot = make(client, "aircraft", "counts", "blobs")
    for name in snapshot["stores"]:
        schema = table(client, snapshot["stores"][name]["0"]["path"]).schema
        columns = [{"name": f.name, "type": str(f.type), "nullable": f.nullable} for f in schema]
        assert described[name] == columns


def test_the_stream_has_the_position_and_the_types_of_the_store(client: httpx.Client, worker: OwningWorker) -> None:
    home = worker.put("typed", [1])
    worker.run(lambda: worker.stores["counts", 0].put((-7).to_bytes(8, "big", signed=True), (9).to_bytes(8, "big")))
    worker.commit()
    snapshot = make(client, "aircraft", "counts")
    part = snapshot["stores"]["aircraft"][str(home.partition)]
    response = client.get(part["path"], params={"lower": "typed", "upper": "typed"})
    assert json.loads(response.headers["Stateline-Position"]) == part["position"]
    with pa.ipc.open_stream(response.content) as reader:
        assert reader.schema.metadata[b"stateline.commit"] == str(part["commit"]).encode()
        assert reader.read_all().to_pylist() == [{"key": "typed", "value": "[1]", "timestamp": TIMESTAMP_MS}]
    counts = table(client, snapshot["stores"]["counts"]["0"]["path"], columns="value,key")
    assert counts.to_pydict() == {"value": [9], "key": [-7]}


def test_several_stores_are_at_one_commit_while_records_come_in(client: httpx.Client, worker: OwningWorker) -> None:
    """Each commit puts the same number into two stores of every partition; a snapshot must never see them differ."""
    stop = threading.Event()
    zero = (0).to_bytes(8, "big")

    def commit_once(number: int) -> None:
        for partition in range(PARTITIONS):
            worker.stores["counts", partition].put(zero, number.to_bytes(8, "big"))
            worker.stores["blobs", partition].put(b"same", number.to_bytes(8, "big"))
        worker.commit_here()

    def ingest() -> None:
        number = 1
        while not stop.is_set():
            worker.run(partial(commit_once, number))
            number += 1

    commit_once_first = worker.run(lambda: commit_once(0))
    assert commit_once_first is None
    thread = threading.Thread(target=ingest)
    thread.start()
    try:
        seen = set()
        for _ in range(10):
            snapshot = make(client, "counts", "blobs")
            values = set()
            for part in snapshot["stores"]["counts"].values():
                values |= set(table(client, part["path"], lower="0", upper="0")["value"].to_pylist())
            for part in snapshot["stores"]["blobs"].values():
                blobs = table(client, part["path"])
                values |= {int.from_bytes(value, "big") for value in blobs["value"].to_pylist()}
            assert len(values) == 1, "stores or partitions of one worker are at different commits"
            seen |= values
            client.delete(f"/v1/snapshots/{snapshot['id']}")
        assert len(seen) > 1, "nothing was committed in between: the test shows nothing"
    finally:
        stop.set()
        thread.join()


def test_a_renewed_lease_lasts_and_an_expired_one_is_gone(
    client: httpx.Client, worker: OwningWorker, snapshots: SnapshotDirectory
) -> None:
    short, long = make(client, "aircraft", ttl_s=1), make(client, "aircraft", ttl_s=60)
    path = f"/v1/snapshots/{long['id']}"
    renewed = client.patch(path, json={"ttl_s": 600})
    assert renewed.status_code == 200
    assert renewed.json() == {**long, "expires_at": renewed.json()["expires_at"]}
    assert renewed.json()["expires_at"] > long["expires_at"] + 500_000
    wait_until(lambda: not (snapshots.path / short["id"]).exists())
    assert client.get(path).json() == renewed.json()
    for response in (
        client.get(f"/v1/snapshots/{short['id']}"),
        client.patch(f"/v1/snapshots/{short['id']}", json={}),
        client.delete(f"/v1/snapshots/{short['id']}"),
        client.get(short["stores"]["aircraft"]["0"]["path"]),
    ):
        refused(response, 410, "CURSOR_EXPIRED")


def test_a_released_one_is_gone_and_an_unknown_one_never_was(client: httpx.Client, worker: OwningWorker) -> None:
    snapshot = make(client, "aircraft")
    table(client, snapshot["stores"]["aircraft"]["0"]["path"])
    assert client.delete(f"/v1/snapshots/{snapshot['id']}").status_code == 204
    for method in ("GET", "DELETE"):
        refused(client.request(method, f"/v1/snapshots/{snapshot['id']}"), 410, "CURSOR_EXPIRED")
    for unknown in ("0" * 24, "x", "..%2F0_0"):
        refused(client.get(f"/v1/snapshots/{unknown}"), 404, "DOES_NOT_EXIST")
        refused(client.get(f"/v1/snapshots/{unknown}/stores/aircraft/partitions/0"), 404, "DOES_NOT_EXIST")


def test_what_is_not_in_a_snapshot_does_not_exist(client: httpx.Client, worker: OwningWorker) -> None:
    path = f"/v1/snapshots/{make(client, 'aircraft')['id']}/stores"
    for missing in ("counts/partitions/0", "aircraft/partitions/3", "aircraft/partitions/x", "nope/partitions/0"):
        refused(client.get(f"{path}/{missing}"), 404, "DOES_NOT_EXIST")
    refused(client.get(f"{path}/aircraft/partitions/0", params={"columns": "nope"}), 422, "INVALID_ARGUMENT")
    refused(client.get(f"{path}/aircraft/partitions/0", params={"as_of": "5"}), 400, "UNKNOWN_QUERY_TYPE")
    rows = f"{path}/aircraft/partitions/0"
    names = ("content-type", "stateline-position", "content-length")
    head, got = client.head(rows).headers, client.get(rows).headers
    assert [head.get(name) for name in names] == [got.get(name) for name in names]


@pytest.mark.parametrize(
    ("body", "status", "reason", "says"),
    [
        ({"stores": ["cache"]}, 422, "INVALID_ARGUMENT", "in memory"),
        ({"stores": ["nope"]}, 404, "DOES_NOT_EXIST", "nope"),
        ({"stores": []}, 422, "INVALID_ARGUMENT", "1 to 1000"),
        ({"stores": "aircraft"}, 422, "INVALID_ARGUMENT", "stores"),
        ({"stores": [1]}, 422, "INVALID_ARGUMENT", "stores"),
        ({}, 422, "INVALID_ARGUMENT", "stores is missing"),
        ({"stores": ["aircraft"], "ttl_s": 0}, 422, "INVALID_ARGUMENT", "server.snapshot.ttl.max.ms"),
        ({"stores": ["aircraft"], "ttl_s": 3601}, 422, "INVALID_ARGUMENT", "1 to 3600"),
        ({"stores": ["aircraft"], "ttl_s": "1"}, 422, "INVALID_ARGUMENT", "ttl_s"),
        ({"stores": ["aircraft"], "more": 1}, 422, "INVALID_ARGUMENT", "more"),
        ([], 422, "INVALID_ARGUMENT", "object"),
    ],
)
def test_what_cannot_be_made_is_refused(
    client: httpx.Client, worker: OwningWorker, body: Any, status: int, reason: str, says: str
) -> None:
    assert says in refused(client.post("/v1/snapshots", json=body), status, reason)


def test_a_server_alone_says_that_a_snapshot_needs_a_worker_and_reads_those_that_were_made(tmp_path: Path) -> None:
    worker = OwningWorker(tmp_path)
    worker.put_all({"a": 1, "b": 2})
    worker.commit()
    with served_here(tmp_path) as here:
        made = make(here.client, "aircraft")
        worker.close()
        wait_until(lambda: not here.serving.workers.instances)
        says = refused(here.client.post("/v1/snapshots", json={"stores": ["aircraft"]}), 421, "NOT_PRESENT")
        assert "a server alone makes no snapshot" in says
        assert "Start `stateline worker`" in says
        assert "state.dir" in says
        parts = made["stores"]["aircraft"].values()
        tables = [pa.ipc.open_stream(here.client.get(part["path"]).content).read_all() for part in parts]
        assert sorted(key for table in tables for key in table.column("key").to_pylist()) == ["a", "b"]
        assert here.client.get("/v1/stores/aircraft/count", params={"exact": "true"}).json()["exact_entries"] == 2
        assert here.client.delete(f"/v1/snapshots/{made['id']}").status_code == 204


def test_one_that_fails_half_way_leaves_nothing(
    client: httpx.Client, worker: OwningWorker, snapshots: SnapshotDirectory
) -> None:
    """The third partition is on no worker: those before it were linked already."""
    worker.run(lambda: worker.states.update({2: worker.states[2].__class__.RESTORING}))
    try:
        refused(client.post("/v1/snapshots", json={"stores": ["aircraft"]}), 503, "NOT_ACTIVE")
    finally:
        worker.run(lambda: worker.states.update({2: worker.states[0]}))
    wait_until(lambda: not [name for name in os.listdir(snapshots.path) if not name.startswith((".gone", ".pin"))][1:])


def test_the_most_snapshots_and_bytes_are_kept_to(worker: OwningWorker, state_dir: Path, client: httpx.Client) -> None:
    with http_server(state_dir, "server.snapshots.max=1") as limited:
        wait_until(lambda: limited.get("/readyz").status_code == 200)
        snapshot = make(limited, "aircraft")
        response = limited.post("/v1/snapshots", json={"stores": ["aircraft"]})
        assert "server.snapshots.max allows 1" in refused(response, 429, "TOO_MANY_REQUESTS")
        assert int(response.headers["Retry-After"]) >= 1
        assert client.get(f"/v1/snapshots/{snapshot['id']}").json() == snapshot  # the other server knows it
        assert client.delete(f"/v1/snapshots/{snapshot['id']}").status_code == 204
        make(limited, "aircraft")
    with http_server(state_dir, "server.snapshots.max.bytes=1") as limited:
        wait_until(lambda: limited.get("/readyz").status_code == 200)
        response = limited.post("/v1/snapshots", json={"stores": ["aircraft"]})  # the manifest of the first has bytes
        assert "server.snapshots.max.bytes" in refused(response, 429, "TOO_MANY_REQUESTS")


def test_who_keeps_many_snapshots_leaves_some_for_the_next(
    worker: OwningWorker, state_dir: Path, client: httpx.Client
) -> None:
    asked = {"stores": ["aircraft"]}
    for _ in range(2):  # a restart forgets nothing
        with http_server(state_dir, "server.snapshots.max=3") as limited, from_another_address(limited) as another:
            wait_until(lambda: limited.get("/readyz").status_code == 200)
            while (response := limited.post("/v1/snapshots", json=asked)).status_code == 201:
                pass
            assert "server.caller.share.percent" in refused(response, 429, "TOO_MANY_REQUESTS")
            assert int(response.headers["Retry-After"]) >= 1
            kept = client.get("/v1/snapshots").json()["snapshots"]
            assert len(kept) == 2
            released = make(another, "aircraft")["id"]
            assert "server.snapshots.max allows 3" in refused(
                another.post("/v1/snapshots", json=asked), 429, "TOO_MANY_REQUESTS"
            )
            assert another.delete(f"/v1/snapshots/{released}").status_code == 204


def test_a_lease_that_was_given_is_kept_when_snapshots_keep_too_much_and_is_not_made_longer(
    worker: OwningWorker, state_dir: Path, client: httpx.Client
) -> None:
    snapshot = make(client, "aircraft", ttl_s=600)
    path = f"/v1/snapshots/{snapshot['id']}"
    with http_server(state_dir, "server.snapshots.max.bytes=1") as limited:
        wait_until(lambda: limited.get("/readyz").status_code == 200)
        detail = refused(limited.patch(path, json={"ttl_s": 700}), 429, "TOO_MANY_REQUESTS")
        assert "server.snapshots.max.bytes" in detail
        assert limited.get(path).json() == snapshot
        assert limited.patch(path, json={"ttl_s": 500}).json()["expires_at"] < snapshot["expires_at"]
        assert table(limited, snapshot["stores"]["aircraft"]["0"]["path"]) is not None


def test_snapshots_that_keep_too_much_are_counted_and_said_once(
    worker: OwningWorker, state_dir: Path, client: httpx.Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = [f"state.dir={state_dir}", "server.snapshots.max.bytes=1"]
    config = load_config("flights-app", environment={}, overrides=settings)
    figures = []

    async def look(times: int) -> None:
        sweeper = SnapshotSweeper(state_dir / "flights-app", config.server_snapshots_max_bytes)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(snapshot_sweeper, "_COUNT_INTERVAL_S", 0.0)
            patched.setattr(snapshot_sweeper, "_SWEEP_INTERVAL_S", 0.0)
            sweeping = asyncio.create_task(sweeper.sweep())
            for _ in range(times):
                before = sweeper.figures
                while sweeper.figures is before:
                    await asyncio.sleep(0)
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)
        figures.append(sweeper.figures)

    asyncio.run(look(1))
    snapshot = make(client, "aircraft")
    asyncio.run(look(3))
    assert [found.count for found in figures] == [0, 1]
    manifest = SnapshotDirectory(worker.application).path / snapshot["id"] / "snapshot.json"
    assert figures[1].kept_bytes - figures[0].kept_bytes >= manifest.stat().st_size
    said = [record.message for record in caplog.records if "server.snapshots.max.bytes" in record.message]
    assert len(said) == 1, "while it lasts"


def test_a_reader_reads_on_when_the_snapshot_is_released(client: httpx.Client, worker: OwningWorker) -> None:
    def put_all() -> None:
        store = worker.stores["blobs", 1]
        for number in range(20_000):
            store.put(b"big-%06d" % number, os.urandom(400))
        store.commit({})

    worker.run(put_all)
    snapshot = make(client, "blobs")
    path = snapshot["stores"]["blobs"]["1"]["path"]
    with client.stream("GET", path, params={"prefix": "YmlnLQ", "columns": "key"}) as response:
        pieces = response.iter_bytes(1024)
        data = next(pieces)
        assert client.delete(f"/v1/snapshots/{snapshot['id']}").status_code == 204
        data += b"".join(pieces)
    with pa.ipc.open_stream(data) as reader:
        assert reader.read_all()["key"].to_pylist() == [b"big-%06d" % number for number in range(20_000)]


def test_a_client_that_leaves_lets_go_of_its_scan(worker: OwningWorker, state_dir: Path, client: httpx.Client) -> None:
    worker.run(lambda: worker.stores["blobs", 2].put_all([(b"%06d" % n, os.urandom(2000)) for n in range(10_000)]))
    worker.commit()
    snapshot = make(client, "blobs")
    path = snapshot["stores"]["blobs"]["2"]["path"]
    with http_server(state_dir, "server.scans.max=1") as limited:
        wait_until(lambda: limited.get("/readyz").status_code == 200)
        with contextlib.ExitStack() as reading:
            # The system would take all of it for a reader whose buffer it may let grow: 32 MiB.
            small = httpx.HTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)])
            reader = reading.enter_context(httpx.Client(base_url=limited.base_url, transport=small))
            response = reading.enter_context(reader.stream("GET", path))
            pieces = response.iter_raw(1024)
            next(pieces)  # it is kept: one that is collected closes the connection
            refused(limited.get(path), 429, "TOO_MANY_REQUESTS")  # back-pressure: it stands still, and holds its scan
        wait_until(lambda: limited.get(path, params={"upper": "MDAwMDAw"}).status_code == 200)


def test_a_snapshot_that_lost_its_end_in_a_power_cut_is_gone_and_not_half(
    client: httpx.Client, worker: OwningWorker, snapshots: SnapshotDirectory
) -> None:
    worker.put("cut", 1, partition=0)
    worker.commit()
    snapshot = make(client, "aircraft")
    found = snapshots.find(snapshot["id"], 0)
    part: CheckpointPart = found.part("aircraft", 0)
    for name in part.lengths:
        if name.endswith(".log"):
            log = snapshots.path / snapshot["id"] / part.directory / name
            data = log.read_bytes()
            log.unlink()  # the worker's own is another file from now on
            log.write_bytes(data[: len(data) // 2])
    detail = refused(client.get(snapshot["stores"]["aircraft"]["0"]["path"]), 410, "CURSOR_EXPIRED")
    assert "make a new one" in detail


def test_the_document_says_what_there_is(client: httpx.Client, worker: OwningWorker) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths["/v1/snapshots"]) == {"post", "get"}
    assert set(paths["/v1/snapshots/{id}"]) == {"get", "patch", "delete"}
    post = paths["/v1/snapshots"]["post"]
    assert "201" in post["responses"]
    assert post["requestBody"]["content"]["application/json"]["schema"]["required"] == ["stores"]
    rows = paths["/v1/snapshots/{id}/stores/{store}/partitions/{partition}"]["get"]
    assert ARROW in rows["responses"]["200"]["content"]
    assert client.get("/docs").status_code == 200
