"""Connections that break, servers that die, leases that end, wrong tokens: every row once, or a clear error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from service.spark.source.scenes import Kinds, as_counted, gated_read, read, rows, snapshots
from stateline.client.lean.client import Failover, LeanClient, LeanRequest, PassingError
from stateline.client.lean.snapshot_rows import RowsQuery, batches
from stateline.server.guard.tokens import hash_of, new_token
from stateline.spark.reading.lease import is_kept, renew
from stateline_store import (
    ConfigurationError,
    CursorExpiredError,
    ForbiddenError,
    NotReadyError,
    UnauthenticatedError,
)
from stateline_store.clock import now_ms
from support.http.faulty_proxy import Answered, Cut, FaultyProxy, faulty_proxy
from support.processes.query_server import PARTITIONS, OwningWorker, wait_until
from support.processes.serve_process import Served, served, until_ready
from support.processes.served_here import http_server
from support.run.length import long_only, long_or_short
from support.run.other_user import listens_at

MANY = 30_000
MOST_BYTES = 30_000_000  # two thirds of all, of which Spark takes the first 10,000 rows at once
KEYS = [b"big-%06d" % number for number in range(MANY)]


@pytest.fixture(scope="module")
def many(worker: OwningWorker) -> None:
    """One partition of `blobs` with 45 MB of rows."""

    def put() -> None:
        store = worker.stores["blobs", 1]
        for key in KEYS:
            store.put(key, key + os.urandom(1_500))
        worker.commit_here()

    worker.run(put)


@pytest.fixture
def proxy(client: httpx.Client) -> Iterator[FaultyProxy]:
    with faulty_proxy(client.base_url.port or 0) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def released(client: httpx.Client) -> Iterator[None]:
    """One caller may keep a few snapshots only: none is left to the next test."""
    yield
    for each in snapshots(client):
        client.delete(f"/v1/snapshots/{each}")


def snapshot_of(client: httpx.Client, store: str, partition: int = 1) -> tuple[str, str]:
    """Its id, and the path of a partition."""
    made = client.post("/v1/snapshots", json={"stores": [store], "ttl_s": 600}).json()
    return made["id"], made["stores"][store][str(partition)]["path"]


def column(found: Iterator[pa.RecordBatch], name: str) -> list[Any]:
    return [value for batch in found for value in batch.column(name).to_pylist()]


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    ("columns", "keys", "resumed"),
    [(("value", "key"), None, b"after="), (("value",), None, b"skip="), (("value",), KEYS[::4], b'"skip": ')],
)
def test_a_stream_that_breaks_off_is_gone_on_with(
    client: httpx.Client, proxy: FaultyProxy, columns: tuple[str, ...], keys: list[bytes] | None, resumed: bytes
) -> None:
    _, path = snapshot_of(client, "blobs")
    texts = None if keys is None else tuple(key.decode() for key in map(_base64, keys))
    proxy.faults.extend([Cut(0), Cut(3_000_000), Cut(100), Cut(4_000_000), Answered("503 Service Unavailable")])
    values = column(batches(LeanClient((proxy.url,)), path, RowsQuery(columns, (), texts)), "value")
    assert [value[:10] for value in values] == (keys or KEYS)
    assert not proxy.faults
    assert any(resumed in request for request in proxy.requests)


def _base64(key: bytes) -> bytes:
    import base64

    return base64.urlsafe_b64encode(key)


@pytest.mark.usefixtures("many")
def test_the_server_decides_when_it_is_asked_again(client: httpx.Client, proxy: FaultyProxy) -> None:
    _, path = snapshot_of(client, "blobs")
    proxy.faults.append(Answered("429 Too Many Requests", {"Retry-After": "2"}, '{"detail": "slow down"}'))
    begin_s = time.monotonic()
    assert column(batches(LeanClient((proxy.url,)), path, RowsQuery(("key",))), "key") == KEYS
    assert time.monotonic() - begin_s >= 2


def test_a_server_that_is_to_be_asked_too_late_is_an_error_that_says_when(proxy: FaultyProxy) -> None:
    proxy.faults.append(Answered("429 Too Many Requests", {"Retry-After": "600"}, '{"detail": "slow down"}'))
    with pytest.raises(NotReadyError, match=r"asked again in 600 s, and only 5 s are waited for it: slow"):
        LeanClient((proxy.url,), retry_s=5).ask(LeanRequest("GET", "/healthz"))


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (PassingError("full", 429, 1.0), r"has refused for 1.001 s: full\. .* use stateline\.spark\.cut.*lease"),
        (PassingError("gone", 502), r"did not answer as it should for 0.001 s: gone\. Is the server running there"),
    ],
    ids=["429", "502"],
)
def test_whoever_has_waited_in_vain_hears_what_to_do(error: PassingError, why: str) -> None:
    failover = Failover(LeanClient(("http://localhost",)), patience_s=error.retry_after_s + 0.001)
    time.sleep(0.002)
    with pytest.raises(NotReadyError, match=why):
        failover.pause(error)


@pytest.mark.usefixtures("many")
def test_whoever_takes_long_for_a_batch_has_as_much_time_as_before_for_the_next(
    client: httpx.Client, proxy: FaultyProxy
) -> None:
    _, path = snapshot_of(client, "blobs")
    found = batches(LeanClient((proxy.url,), retry_s=1), path, RowsQuery(("key",)))
    first = next(found)
    proxy.most_bytes = 0  # what comes before the connection is lost is not the rest
    time.sleep(1.2)
    proxy.lose_connections()
    proxy.most_bytes = None
    assert [*first.column("key").to_pylist(), *column(found, "key")] == KEYS


def test_a_server_that_does_not_come_back_is_an_error_that_says_where(client: httpx.Client) -> None:
    _, path = snapshot_of(client, "blobs")
    with faulty_proxy(1) as proxy:
        gone = LeanClient((proxy.url,), token="secret-token", retry_s=0.5)
        with pytest.raises(NotReadyError, match=proxy.url) as raised:
            list(batches(gone, path, RowsQuery(("key",))))
    assert "secret-token" not in f"{raised.value} {gone!r}"
    with faulty_proxy(1) as other:
        other.faults.append(Answered("200 OK", {}, "<html>"))
        with pytest.raises(ConfigurationError, match="not as a Stateline server"):
            LeanClient((other.url,)).ask(LeanRequest("GET", "/"))


@pytest.mark.usefixtures("many")
def test_the_next_address_is_asked_when_one_does_not_answer(client: httpx.Client) -> None:
    _, path = snapshot_of(client, "blobs")
    with faulty_proxy(1) as dead:
        both = LeanClient((dead.url, str(client.base_url)))
        assert column(batches(both, path, RowsQuery(("key",))), "key") == KEYS


@pytest.mark.usefixtures("many")
def test_a_snapshot_that_ends_while_it_is_read_is_an_error_and_never_the_end(
    client: httpx.Client, proxy: FaultyProxy
) -> None:
    snapshot, path = snapshot_of(client, "blobs")
    found = batches(LeanClient((proxy.url,)), path, RowsQuery(("key", "value")))
    next(found)
    assert client.delete(f"/v1/snapshots/{snapshot}").status_code == 204
    proxy.lose_connections()
    with pytest.raises(CursorExpiredError, match=r"lease .* has ended.*new DataFrame"):
        list(found)


def test_a_partition_is_read_by_as_many_tasks_as_it_has_splits_that_are_wanted(
    session: SparkSession, client: httpx.Client, worker: OwningWorker
) -> None:
    keys = [b"aa-%06d" % number for number in range(MANY)]

    def put() -> None:
        for number, key in enumerate(keys, 1):
            worker.stores["blobs", 0].put(key, os.urandom(1_500))
            if number % (MANY // 10) == 0:  # what is committed at once is one table
                worker.commit_here()

    worker.run(put)
    least, last = (_base64(key).decode() for key in (keys[0], keys[-1]))

    made: list[str] = []

    def has_tables() -> bool:
        """Whether the newest snapshot has several: a flush runs beside the commit."""
        snapshot, path = snapshot_of(client, "blobs", 0)
        made.append(snapshot)
        return len(client.get(f"{path}/splits", params={"size_bytes": 1_000_000}).json()["splits"]) > 1

    while not has_tables():
        client.delete(f"/v1/snapshots/{made.pop()}")
        time.sleep(0.2)

    def frame(size: int, upper: str = last) -> DataFrame:
        bounds = {"lower": least, "upper": upper, "snapshot": made[0], "split_bytes": size}
        return read(session, str(client.base_url), "blobs", **bounds)

    assert frame(10**9).rdd.getNumPartitions() == PARTITIONS
    assert frame(1_000_000).rdd.getNumPartitions() > PARTITIONS
    assert sorted(bytes(row.key) for row in frame(1_000_000).select("key").collect()) == keys
    first = frame(1_000_000, upper=least)
    assert first.rdd.getNumPartitions() == PARTITIONS
    assert [bytes(row.key) for row in first.select("key").collect()] == keys[:1]
    client.delete(f"/v1/snapshots/{made[0]}")


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("split_bytes", long_or_short([10**9, 1], [1]))
def test_a_job_goes_on_when_the_server_is_killed_and_started_again(
    session: SparkSession, worker: OwningWorker, state_dir: Path, tmp_path: Path, split_bytes: int
) -> None:
    del worker
    most = "server.snapshots.max=1000"  # every frame of this process keeps its own
    with served(state_dir, most) as first, faulty_proxy(_port(first)) as proxy, served(state_dir, most) as second:
        until_ready(first)

        proxy.most_bytes = MOST_BYTES

        def kill() -> None:
            first.process.kill()
            first.process.wait()
            proxy.lose_connections()
            until_ready(second)
            proxy.target = _port(second)
            proxy.most_bytes = None

        found = gated_read(all_big(session, proxy.url, split_bytes=split_bytes), tmp_path, kill)
        gone_on = [request for request in proxy.requests if b"after=" in request]
        assert gone_on, "all had arrived: the test shows nothing"
        assert all(b"split=" in request for request in gone_on)
    assert sorted(map(bytes, found)) == KEYS


def all_big(session: SparkSession, url: str, **options: Any) -> DataFrame:
    """What `many` has put."""
    return read(session, url, "blobs", lower="YmlnLQ==", **options)


def _port(server: Served) -> int:
    return int(server.url.rpartition(":")[2])


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    "released", [True, pytest.param(False, marks=long_only("a lease that has run out is answered like a released one"))]
)
def test_a_job_whose_lease_ends_fails_and_says_what_to_do(
    session: SparkSession, client: httpx.Client, proxy: FaultyProxy, tmp_path: Path, released: bool
) -> None:
    """Released by somebody, or by itself."""

    def is_gone(path: str) -> bool:
        return client.get(path).status_code == 410

    proxy.most_bytes = MOST_BYTES

    def end() -> None:
        for snapshot in client.get("/v1/snapshots").json()["snapshots"]:
            path = f"/v1/snapshots/{snapshot['id']}"
            if released:
                client.delete(path)
            else:
                client.patch(path, json={"ttl_s": 1})
                wait_until(partial(is_gone, path))
        proxy.lose_connections()
        proxy.most_bytes = None

    frame = all_big(session, proxy.url, lease="ttl", ttl_s=600)
    (error,) = gated_read(frame, tmp_path, end)
    assert "has ended" in str(error)
    assert "Run it again with a new DataFrame" in str(error)
    with pytest.raises(Exception, match="has ended"):
        frame.count()


def test_tokens_are_needed_read_from_a_file_and_shown_nowhere(
    session: SparkSession, worker: OwningWorker, state_dir: Path, tmp_path: Path
) -> None:
    made = {name: new_token() for name in ("ann", "bob")}
    may = {"ann": "*", "bob": ["counts"]}
    entries = [{"name": name, "sha256": hash_of(token).hex(), "stores": may[name]} for name, token in made.items()]
    tokens = tmp_path / "tokens.json"
    tokens.touch(mode=0o600)
    tokens.write_text(json.dumps({"tokens": entries}))
    file = tmp_path / "token"
    file.write_text(made["ann"] + "\n")
    worker.put("secured", 1)
    worker.commit()
    with http_server(state_dir, f"server.tokens.file={tokens}") as secured:
        url = str(secured.base_url)
        wait_until(lambda: secured.get("/readyz").status_code == 200)
        for options, error in (({}, UnauthenticatedError), ({"token": "wrong-one"}, UnauthenticatedError)):
            with pytest.raises(Exception, match=error.__name__) as raised:
                read(session, url, "aircraft", **options).count()
            assert "token_file" in str(raised.value).splitlines()[0]
            assert "wrong-one" not in str(raised.value)
        with pytest.raises(Exception, match=ForbiddenError.__name__):
            read(session, url, "aircraft", token=made["bob"]).count()
        by_file = read(session, url, "aircraft", token_file=file, lower="secured", upper="secured")
        assert by_file.count() == 1
        by_option = read(session, url, "aircraft", token=made["ann"], lower="secured", upper="secured")
        assert by_option.count() == 1
        plan = by_option._jdf.queryExecution().toString() + by_option._jdf.queryExecution().analyzed().toJSON()
        assert made["ann"] not in plan


KEEP = """
import os, sys, json
from stateline.spark.reading.lease import keep_while_driver_lives
from stateline.client.lean.client import LeanClient
from stateline.spark.reading.source_options import SourceOptions
options = SourceOptions(LeanClient((sys.argv[1],)), "plain", ("plain",), ttl_s=18)
for _ in range(3):
    keep_while_driver_lives(options, {"id": sys.argv[2]}, is_own=True)
"""


@pytest.mark.parametrize(
    "of_others",
    [False, pytest.param(True, marks=long_only("the lease is renewed in the same way, without the address"))],
)
def test_a_lease_is_renewed_while_the_driver_lives_and_let_go_with_it(
    kinds: Kinds, tmp_path: Path, of_others: bool
) -> None:
    """The driver is a shell by the name of Spark's: the renewing process looks for `java` above itself. Another user
    may have taken its address."""
    made = kinds.client.post("/v1/snapshots", json={"stores": ["plain"], "ttl_s": 20}).json()
    path = f"/v1/snapshots/{made['id']}"
    with listens_at(f"@stateline-lease-{os.getuid()}-{made['id']}") if of_others else nullcontext():
        _keeps(kinds, tmp_path, made, path, of_others=of_others)


def _keeps(kinds: Kinds, tmp_path: Path, made: dict[str, Any], path: str, *, of_others: bool) -> None:
    java = tmp_path / "java"
    java.write_bytes(Path("/bin/bash").read_bytes())
    java.chmod(0o755)
    script = f'{sys.executable} -c "$0" {kinds.url} {made["id"]}; echo kept; read'
    driver = subprocess.Popen([java, "-c", script, KEEP], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"kept\n"
        wait_until(lambda: is_kept(made["id"]) is not of_others)
        wait_until(lambda: kinds.client.get(path).json().get("expires_at", 0) > made["expires_at"] + 2_000)
        kinds.client.patch(path, json={"ttl_s": 600})  # by itself it would not end for long
    finally:
        driver.kill()
        driver.wait()
    wait_until(lambda: kinds.client.get(path).status_code == 410)
    wait_until(lambda: not is_kept(made["id"]))


@pytest.mark.parametrize("ahead_h", [-48, 48])
def test_how_long_a_lease_lasts_is_judged_by_the_servers_clock(
    kinds: Kinds, monkeypatch: pytest.MonkeyPatch, ahead_h: int
) -> None:
    """A driver's clock that is wrong would shorten a longer lease, or never renew."""
    made = kinds.client.post("/v1/snapshots", json={"stores": ["plain"], "ttl_s": 600}).json()
    path, server = f"/v1/snapshots/{made['id']}", LeanClient((kinds.url,))
    given = time.time_ns
    with monkeypatch.context() as wrong:
        wrong.setattr(time, "time_ns", lambda: given() + ahead_h * 3_600_000_000_000)
        assert abs(now_ms() - made["created_at"]) > 40 * 3_600_000
        renew(server, made["id"], 300)
        assert kinds.client.get(path).json()["expires_at"] == made["expires_at"], "it lasts for longer anyway"
        renew(server, made["id"], 900)
    assert kinds.client.get(path).json()["expires_at"] > made["expires_at"] + 200_000
    kinds.client.delete(path)


def test_a_plain_frame_has_its_lease_kept(session: SparkSession, kinds: Kinds) -> None:
    before = snapshots(kinds.client).keys()
    frame = read(session, kinds.url, "plain", ttl_s=20)
    assert as_counted(rows(frame)) == as_counted(kinds.expected("plain"))
    ((made, expires_at),) = [item for item in snapshots(kinds.client).items() if item[0] not in before]
    path = f"/v1/snapshots/{made}"
    wait_until(lambda: kinds.client.get(path).json()["expires_at"] > expires_at + 2_000)
    assert frame.count() == len(kinds.expected("plain"))
