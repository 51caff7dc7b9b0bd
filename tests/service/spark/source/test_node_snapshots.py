"""Snapshots over two linked nodes on a real broker: made, renewed, released and listed at either, and read from each
node by itself, over HTTP and by Spark."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import stateline.spark
from service.spark.source.scenes import read, rows
from stateline.client import Client
from stateline.server.guard.tokens import hash_of
from stateline.server.snapshots import cluster
from stateline_store import RetryLaterError
from stateline_store.snapshots import snapshot_directory
from support.kafka.kafka_broker import KafkaBroker
from support.processes.machines import PARTITIONS, Machine, Machines
from support.processes.node_secret import write_secret
from support.processes.query_server import wait_until
from support.run.length import long_only
from support.run.patience import HANGING_S

STORES = ["counts", "windows", "history"]
TOKENS = {"everything": "*", "another": "*", "windows": ["windows"]}
MAY = {"Authorization": "Bearer everything"}


class Scene(Machines):
    """Two nodes, of which each owns one partition."""

    one: Machine
    two: Machine

    def directories(self) -> dict[str, list[str]]:
        """The snapshots that each node keeps."""
        return {name: self._kept(name) for name in self.every}

    def _kept(self, name: str) -> list[str]:
        folder = self.root / name / self.app.application_id / "snapshots"
        return sorted(path.name for path in folder.glob("*") if re.fullmatch("[0-9a-f]{24}", path.name))


@pytest.fixture(scope="module")
def scene(kafka_broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    root = tmp_path_factory.mktemp("nodes")
    write_secret(root)
    tokens = [{"name": name, "sha256": hash_of(name).hex(), "stores": of} for name, of in TOKENS.items()]
    (root / "tokens.json").write_text(json.dumps({"tokens": tokens}))
    (root / "tokens.json").chmod(0o600)
    ways = dict.fromkeys(("one", "two"), kafka_broker.bootstrap_servers)
    with ExitStack() as stack:
        settings = f"node.peer.secret.file={root / 'secret'}", f"server.tokens.file={root / 'tokens.json'}"
        made = Scene(ways, kafka_broker.bootstrap_servers, root, stack, *settings)
        made.one, made.two = made.every["one"], made.every["two"]
        for machine in made.every.values():
            machine.server.client.headers.update(MAY)
        made.send()
        for machine in made.every.values():
            machine.start_worker()
        wait_for_both(made)
        yield made


def wait_for_both(scene: Scene) -> None:
    wait_until(lambda: all(len(each.active()) == 1 for each in scene.every.values()), HANGING_S)
    for each in scene.every.values():
        asked = {"position_bound": scene.bound(), "wait_ms": 30_000, "require_active": "true"}
        wait_until(lambda: each.get("/v1/stores/counts/range", **asked).status_code == 200, HANGING_S)  # noqa: B023


@pytest.fixture(params=["one", "two"])
def machine(scene: Scene, request: pytest.FixtureRequest) -> Machine:
    return scene.every[request.param]


def url(machine: Machine) -> str:
    return str(machine.server.client.base_url).rstrip("/")


def post(machine: Machine, *stores: str, **members: Any) -> httpx.Response:
    return machine.server.client.post("/v1/snapshots", json={"stores": stores or STORES, **members})


def made(machine: Machine, *stores: str, **members: Any) -> dict[str, Any]:
    """A new one. On a busy machine a link is silent for a second now and then: that is 421, and asked again."""
    answers: list[httpx.Response] = []

    def is_answered() -> bool:
        answers.append(post(machine, *stores, **members))
        return answers[-1].status_code not in (421, 503)

    wait_until(is_answered, HANGING_S)
    assert answers[-1].status_code == 201, answers[-1].text
    found: dict[str, Any] = answers[-1].json()
    return found


def known(machine: Machine, **members: Any) -> dict[str, Any]:
    """The one of this pin."""
    wait_until(lambda: post(machine, "counts", **members).status_code == 200, HANGING_S)
    found: dict[str, Any] = post(machine, "counts", **members).json()
    return found


def table(part: dict[str, Any]) -> list[dict[str, Any]]:
    answer = httpx.get(part["url"], timeout=HANGING_S, headers=MAY)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = pa.ipc.open_stream(answer.content).read_all().to_pylist()
    return found


def counts(snapshot: dict[str, Any]) -> dict[str, int]:
    return {
        row["key"]: json.loads(row["value"]) for part in snapshot["stores"]["counts"].values() for row in table(part)
    }


def test_either_makes_one_of_all_partitions_and_each_node_gives_its_own(scene: Scene, machine: Machine) -> None:
    expected = dict(scene.sent)
    snapshot = made(machine)
    scene.send()
    assert list(snapshot["stores"]) == STORES
    for parts in snapshot["stores"].values():
        assert {each["node"] for each in parts.values()} == set(scene.every)
        for each in parts.values():
            assert each["url"] == url(scene.every[each["node"]]) + each["path"]
    assert counts(snapshot) == expected
    windows = [row for part in snapshot["stores"]["windows"].values() for row in table(part)]
    assert {row["key"] for row in windows} == set(expected)
    offsets = snapshot["position"][f"in-{scene.run}"]
    assert sum(offset + 1 for offset in offsets.values()) >= sum(expected.values())
    for each in scene.every.values():
        assert each.get(f"/v1/snapshots/{snapshot['id']}").json() == snapshot
        assert snapshot in each.get("/v1/snapshots").json()["snapshots"]
    wait_for_both(scene)


def test_either_renews_and_releases_it_everywhere(scene: Scene, machine: Machine) -> None:
    other = next(each for each in scene.every.values() if each is not machine)
    snapshot = made(machine, ttl_s=60)
    path = f"/v1/snapshots/{snapshot['id']}"
    renewed = other.server.client.patch(path, json={"ttl_s": 600})
    assert renewed.status_code == 200, renewed.text
    assert renewed.json()["expires_at"] > snapshot["expires_at"] + 500_000
    for name in scene.every:
        manifest = scene.root / name / scene.app.application_id / "snapshots" / snapshot["id"] / "snapshot.json"
        assert json.loads(manifest.read_bytes())["expires_at_ms"] > snapshot["expires_at"] + 500_000
    assert other.server.client.delete(path).status_code == 204
    assert snapshot["id"] not in {each for some in scene.directories().values() for each in some}
    for each in scene.every.values():
        assert each.get(path).status_code == 410
    for part in snapshot["stores"]["counts"].values():
        assert httpx.get(part["url"], headers=MAY).status_code == 410
    assert machine.get("/v1/snapshots/" + "0" * 24).status_code == 404


def test_a_node_that_does_not_keep_a_part_says_who_does(scene: Scene, machine: Machine) -> None:
    snapshot = made(machine)
    for number, part in snapshot["stores"]["counts"].items():
        for each in scene.every.values():
            answer = each.get(part["path"])
            if each.name == part["node"]:
                assert answer.status_code == 200
                continue
            assert (answer.status_code, answer.json()["reason"]) == (421, "NOT_PRESENT")
            assert answer.json()["owner"] == url(scene.every[part["node"]])
            assert answer.json()["partition"] == int(number)
    path = snapshot["stores"]["counts"]["0"]["path"]
    assert machine.get(path[:-1] + "7").status_code == 404


def test_the_python_client_reads_each_part_where_it_is(scene: Scene, machine: Machine) -> None:
    with Client(url(machine), token="everything") as client, client.snapshot(["counts"]) as snapshot:
        found = [row for p in range(PARTITIONS) for batch in snapshot.read("counts", p) for row in batch.to_pylist()]
    assert {row["key"]: json.loads(row["value"]) for row in found} == scene.sent


def test_every_node_looks_at_the_token(scene: Scene, machine: Machine) -> None:
    path = f"/v1/snapshots/{made(machine)['id']}"
    for each in scene.every.values():
        client = each.server.client
        assert client.get(path, headers={"Authorization": "Bearer windows"}).status_code == 403
        assert client.patch(path, json={"ttl_s": 9}, headers={"Authorization": "Bearer another"}).status_code == 403
        assert client.get(path, headers={"Authorization": "Bearer nobody"}).status_code == 401
        assert client.get(f"{path}/part").status_code == 404


def test_a_pin_is_one_snapshot_at_whichever_node_it_is_asked_for(scene: Scene) -> None:
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(post, each, "counts", pin="p") for each in (*scene.every.values(), *scene.every.values())]
        answers = [each.result() for each in asked]
    assert {each.status_code for each in answers} <= {200, 201, 503}, [each.text for each in answers]
    last = [post(each, "counts", pin="p") for each in scene.every.values()]
    ids = {each.json()["id"] for each in (*answers, *last) if each.status_code != 503}
    assert len(ids) == 1
    (kept,) = ids
    assert scene.two.server.client.delete(f"/v1/snapshots/{kept}").status_code == 204
    for each in scene.every.values():
        assert post(each, "counts", pin="p").status_code == 410
    assert kept not in {each for some in scene.directories().values() for each in some}


class LinkBreaks:
    """Breaks the link from node two to node one when node one, the keeper of what both own, has come to a step of
    finishing a snapshot; after node two, which has finished its part by then."""

    def __init__(self, scene: Scene, step: str, then: Callable[[], None]) -> None:
        self._scene, self._step, self._then = scene, step, then
        self._seen = 0

    def reached(self, step: str) -> None:
        self._seen += step == self._step
        if self._seen == 2 and step == self._step:
            nodes = self._scene.two.server.serving.nodes
            link = None if nodes is None else nodes.others["one"].link
            assert link is not None
            asyncio.run_coroutine_threadsafe(link.close(), link._exchange._loop).result(HANGING_S)
            self._then()


def test_a_snapshot_whose_keeper_is_lost_as_it_finishes_is_whole_under_its_pin(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks = LinkBreaks(scene, "snapshot:manifest-written", lambda: None)
    monkeypatch.setattr(snapshot_directory, "reached", breaks.reached)
    lost = post(scene.two, "counts", pin="lost")
    assert (lost.status_code, lost.json()["reason"]) == (421, "NOT_PRESENT"), lost.text
    found = [known(each, pin="lost") for each in (scene.two, scene.one)]
    assert found[0] == found[1]
    assert counts(found[0]) == scene.sent
    assert scene.one.server.client.delete(f"/v1/snapshots/{found[0]['id']}").status_code == 204


def test_what_was_left_of_one_that_its_keeper_has_not_is_made_anew_under_its_pin(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RetryLaterError("The disk is full.")

    breaks = LinkBreaks(scene, "snapshot:parts-made", fail)
    monkeypatch.setattr(snapshot_directory, "reached", breaks.reached)
    before = scene.directories()
    assert post(scene.two, "counts", pin="left").status_code == 421
    (left,) = set(scene.directories()["two"]) - set(before["two"])
    wait_until(lambda: post(scene.two, "counts", pin="left").status_code == 503, HANGING_S)
    monkeypatch.setattr(cluster, "_MADE_WITHIN_MS", 0)
    snapshot = made(scene.two, "counts", pin="left")
    assert counts(snapshot) == scene.sent
    assert known(scene.one, pin="left") == snapshot
    assert left not in {each for some in scene.directories().values() for each in some}
    assert scene.one.server.client.delete(f"/v1/snapshots/{snapshot['id']}").status_code == 204


def test_what_is_no_id_of_a_snapshot_is_none_at_any_node(scene: Scene) -> None:
    nodes = scene.one.server.serving.nodes
    assert nodes is not None
    for each in scene.every.values():
        for wrong in ("%C3%A4", "..", "0%3Fx", ""):
            answer = each.get(f"/v1/snapshots/{nodes.own.directory[:8]}{wrong}")
            assert (answer.status_code, answer.json()["reason"]) == (404, "DOES_NOT_EXIST"), answer.text
        answer = each.server.client.post("/v1/snapshots", content=rb'{"stores": ["counts"], "pin": "\ud800"}')
        assert answer.status_code == 422, answer.text


@pytest.mark.parametrize(
    "asked", [pytest.param("one", marks=long_only("another node is asked, after one that is not there")), "nobody,two"]
)
def test_spark_reads_each_part_from_the_node_that_keeps_it(scene: Scene, session: SparkSession, asked: str) -> None:
    urls = ",".join("http://127.0.0.1:1" if name == "nobody" else url(scene.every[name]) for name in asked.split(","))
    before = [reads(each) for each in scene.every.values()]
    expected = dict(scene.sent)
    with stateline.spark.cut(session, urls, ["counts", "windows"], token="everything") as cut:
        found = {row["key"]: row["value"] for row in rows(cut.frame("counts"))}
        assert found == expected
        assert cut.frame("counts", columns=["key"]).where("key >= 'k3'").count() == sum(key >= "k3" for key in expected)
        assert cut.frame("windows").count() == len(expected)
    assert all(now > then for now, then in zip(map(reads, scene.every.values()), before, strict=True))
    assert read(session, urls, "counts", prefix="k1", lease="ttl", token="everything").count() == sum(
        key[:2] == "k1" for key in expected
    )


def reads(machine: Machine) -> int:
    """How often parts of snapshots were read of this node."""
    route = re.escape("/v1/snapshots/{id}/stores/{store}/partitions/{partition}")
    counted = rf'^stateline_http_requests_total\{{.*outcome="ok",route="{route}".*\}} (\d+)'
    return sum(map(int, re.findall(counted, machine.server.client.get("/metrics").text, re.M)))


@pytest.fixture(scope="module")
def kept(scene: Scene) -> dict[str, Any]:
    """The only one that is left of those before."""
    for each in scene.one.get("/v1/snapshots").json()["snapshots"]:
        assert scene.one.server.client.delete(f"/v1/snapshots/{each['id']}").status_code == 204
    return made(scene.one, "counts")


def test_of_one_that_cannot_be_made_everywhere_nothing_is_left(scene: Scene, kept: dict[str, Any]) -> None:
    """A worker stands still when it has linked its part, and is killed."""
    scene.two.stop_worker()
    scene.two.start_worker(STATELINE_TEST_STOP_AT="checkpoint:linked")
    wait_for_both(scene)
    worker = scene.two.worker
    assert worker is not None
    stood_still = Event()

    def ask() -> httpx.Response:
        while True:  # a link may be silent for a moment before that
            answer = post(scene.one, "counts")
            if stood_still.is_set():
                return answer

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        wait_until(lambda: stands_still(worker.pid), HANGING_S)
        stood_still.set()
        scene.two.stop_worker(signal.SIGKILL)
        answer = asked.result()
    assert (answer.status_code, answer.json()["reason"]) == (421, "NOT_PRESENT"), answer.text
    assert answer.json()["owner"] == url(scene.two)
    assert answer.json()["store"] == "counts"
    assert isinstance(answer.json()["partition"], int)
    assert "'two'" in answer.json()["detail"]
    wait_until(lambda: scene.directories() == {"one": [kept["id"]], "two": [kept["id"]]}, HANGING_S)


def test_a_node_that_owns_nothing_makes_one_of_what_the_other_owns(scene: Scene, kept: dict[str, Any]) -> None:
    """The worker of the other node is gone, and its part has gone over."""
    wait_until(lambda: len(scene.one.active()) == PARTITIONS, HANGING_S)
    snapshot = made(scene.two)
    assert {part["node"] for parts in snapshot["stores"].values() for part in parts.values()} == {"one"}
    assert scene.directories() == {"one": sorted((snapshot["id"], kept["id"])), "two": [kept["id"]]}
    assert counts(snapshot) == scene.sent
    assert counts(kept) == scene.sent, "a partition that has moved stays where it was"
    assert scene.two.server.client.delete(f"/v1/snapshots/{snapshot['id']}").status_code == 204
    assert scene.directories() == {"one": [kept["id"]], "two": [kept["id"]]}


def test_without_a_node_the_parts_of_others_are_read_renewed_and_released(scene: Scene, kept: dict[str, Any]) -> None:
    pinned = made(scene.one, "counts", pin="remembered")
    assert pinned["id"] in scene.directories()["two"], "it only remembers the pin"
    nodes = scene.one.server.serving.nodes
    assert nodes is not None
    of_two = f"{nodes.others['two'].entry.directory[:8]}{'0' * 16}"
    scene.two.stop_server()
    wait_until(lambda: len(scene.one.get("/v1/nodes").json()["nodes"]) == 1, HANGING_S)
    for method in ("GET", "PATCH", "DELETE"):
        answer = scene.one.server.client.request(method, f"/v1/snapshots/{of_two}", content=b"{}")
        assert (answer.status_code, answer.json()["reason"]) == (421, "NOT_PRESENT"), "nobody else can know of it"
    assert scene.one.get(f"/v1/snapshots/{'0' * 24}").status_code == 404
    path, client = f"/v1/snapshots/{kept['id']}", scene.one.server.client
    for part in kept["stores"]["counts"].values():
        answer = scene.one.get(part["path"])
        assert answer.status_code == (200 if part["node"] == "one" else 421)
        assert answer.status_code == 200 or "'two'" in answer.json()["detail"]
    renewed = client.patch(path, json={"ttl_s": 900})
    assert (renewed.status_code, renewed.json()["reason"]) == (421, "NOT_PRESENT")
    assert client.get(path).json()["expires_at"] > kept["expires_at"] + 500_000
    renewed = client.patch(f"/v1/snapshots/{pinned['id']}", json={"ttl_s": 900})
    assert renewed.status_code == 200, renewed.text
    assert renewed.json()["expires_at"] > pinned["expires_at"] + 500_000
    for each in (kept, pinned):
        assert client.delete(f"/v1/snapshots/{each['id']}").status_code == 204
    left = sorted((kept["id"], pinned["id"]))
    assert scene.directories() == {"one": [], "two": left}, "there they go when their leases end"


def stands_still(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
