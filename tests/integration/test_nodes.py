"""Two linked nodes on a real broker: either answers any question with what the owners of its partitions have."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pyarrow as pa
import pytest
from mcp.client.client import Client

from stateline.config.loading import load_config
from stateline.config.settings import Config
from stateline.deployment.nodes_topic import known_nodes, say_node
from stateline.query.values import CopyStatus, Outcome, PartitionAnswer, QueryRows
from stateline.query.wire import WireRequest
from stateline.server.contract.request_id import AskedBy
from stateline.server.guard.proofs import Proof
from stateline.server.guard.tokens import hash_of
from stateline.server.nodes.acceptance import check_accepted
from stateline.server.nodes.node_map import HeldTask, NodeMap
from stateline.server.routing.cluster_copies import ClusterCopies
from stateline.server.routing.copies import Copies
from stateline_store import ConfigurationError, StateDirectory
from stateline_store.files.process_metadata import PROCESS_FILE
from support.apps import changes_app
from support.http.agent import called, with_client
from support.kafka.kafka_broker import KafkaBroker
from support.processes.change_scene import reading
from support.processes.linked_nodes import HasNothing, node_config, running_node
from support.processes.machines import PARTITIONS, Machine, Machines
from support.processes.node_secret import write_secret
from support.processes.query_server import wait_until
from support.processes.served_here import served_here
from support.run.length import long_only
from support.run.patience import HANGING_S

EVERYTHING = {"from": 0, "to": 2**62}
_AS_ON_DISK = long_only("its changes go from node to node as those of a store on disk")
OTHER_FEEDS = [pytest.param(store, marks=_AS_ON_DISK) for store in ("memory", "cache")]


def write_tokens(file: Path, **stores: str | list[str]) -> None:
    """Tokens that are their own names, each for these stores."""
    tokens = [{"name": name, "sha256": hash_of(name).hex(), "stores": of} for name, of in stores.items()]
    file.write_text(json.dumps({"tokens": tokens}))
    file.chmod(0o600)


@pytest.fixture(scope="module")
def machines(kafka_broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    root = tmp_path_factory.mktemp("nodes")
    write_secret(root)
    ways = dict.fromkeys(("one", "two"), kafka_broker.bootstrap_servers)
    for name in ways:
        write_tokens(root / f"{name}.json", everything="*")
    settings = (
        f"node.peer.secret.file={root / 'secret'}",
        f"server.tokens.file={root / '{name}.json'}",
        "server.changes.heartbeat.ms=100",
    )
    with ExitStack() as stack:
        made = Machines(ways, kafka_broker.bootstrap_servers, root, stack, *settings)
        for machine in made.every.values():
            machine.server.client.headers["Authorization"] = "Bearer everything"
        made.send()
        for machine in made.every.values():
            machine.start_worker()
        wait_until(lambda: all(len(each.active()) == 1 for each in made.every.values()), HANGING_S)
        wait_until(lambda: all(len(each.partitions()) == PARTITIONS for each in made.every.values()), HANGING_S)
        made.send()
        yield made


@pytest.fixture(params=["one", "two"])
def machine(machines: Machines, request: pytest.FixtureRequest) -> Machine:
    found = machines.every[request.param]
    asked = {"position_bound": machines.bound(), "wait_ms": 30_000}
    wait_until(lambda: found.get("/v1/stores/counts/range", **asked).status_code == 200, HANGING_S)
    return found


def body(machine: Machine, path: str, **parameters: Any) -> dict[str, Any]:
    answer = machine.get(path, **parameters)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_an_agent_at_one_node_reads_the_keys_of_both(machines: Machines, machine: Machine) -> None:
    terms = {"store": "counts", "position_bound": json.loads(machines.bound()), "wait_ms": 5_000}

    async def ask(client: Client) -> None:
        nodes = set()
        for key, count in machines.sent.items():
            found = (await called(client, "get", key=key, **terms)).body
            assert found["value"] == count
            nodes |= {each["node"] for each in found["partitions"].values()}
        assert nodes == set(machines.every)

    with_client(f"http://127.0.0.1:{machine.server.port}", ask, "everything")


def test_every_key_is_answered_by_its_owner(machines: Machines, machine: Machine) -> None:
    nodes = set()
    for key, count in machines.sent.items():
        told = body(machine, f"/v1/stores/counts/keys/{key}", position_bound=machines.bound(), wait_ms=30_000)
        assert told["value"] == count
        for each in told["partitions"].values():
            assert each["served_by"] == "active"
            nodes.add(each["node"])
    assert nodes == set(machines.every)
    assert machine.get("/v1/stores/counts/keys/none").json()["found"] is False


def test_keys_of_either_over_one_connection_are_answered_beside_the_routes(
    machines: Machines, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (ClusterCopies, Copies):
        monkeypatch.setattr(kind, "ask", None)
    bound = quote(machines.bound())
    with socket.create_connection(("127.0.0.1", machine.server.port), timeout=HANGING_S) as connection:
        received = connection.makefile("rb")
        for key, count in [*machines.sent.items()] * 3:
            line = f"GET /v1/stores/counts/keys/{key}?position_bound={bound} HTTP/1.1"
            head = f"{line}\r\nHost: localhost\r\nAuthorization: Bearer everything\r\n\r\n"
            connection.sendall(head.encode())
            head = "".join(iter(lambda: received.readline().decode(), "\r\n")).lower()
            told = json.loads(received.read(int(head.partition("content-length: ")[2].split()[0])))
            assert (told.get("key"), told.get("value")) == (key, count), told


def test_a_range_over_both_is_in_order_and_pages_and_streams(machines: Machines, machine: Machine) -> None:
    wanted = sorted(machines.sent.items())
    bound: dict[str, Any] = {"position_bound": machines.bound(), "wait_ms": 5_000}
    told = body(machine, "/v1/stores/counts/range", **bound)
    assert [(e["key"], e["value"]) for e in told["entries"]] == wanted
    assert {each["node"] for each in told["partitions"].values()} == set(machines.every)
    page = body(machine, "/v1/stores/counts/range", limit=7, **bound)
    found = page["entries"]
    while "cursor" in page:
        page = body(machine, "/v1/stores/counts/range", cursor=page["cursor"])
        found += page["entries"]
    assert [(e["key"], e["value"]) for e in found] == wanted
    lines = machine.server.client.get(
        "/v1/stores/counts/range", headers={"Accept": "application/x-ndjson"}, params=bound
    )
    assert [(e["key"], e["value"]) for e in map(json.loads, lines.text.splitlines())] == wanted
    stream = "application/vnd.apache.arrow.stream"
    arrow = machine.server.client.get("/v1/stores/counts/range", headers={"Accept": stream}, params=bound)
    rows = pa.ipc.open_stream(arrow.content).read_all().to_pylist()
    assert [(row["key"], json.loads(row["value"])) for row in rows] == wanted


@pytest.mark.parametrize("store", ["counts", "memory"])
def test_a_page_is_answered_at_any_node(machines: Machines, machine: Machine, store: str) -> None:
    path = f"/v1/stores/{store}/range"
    others = itertools.cycle(each for each in machines.every.values() if each is not machine)
    first = page = body(machine, path, limit=7, position_bound=machines.bound(), wait_ms=30_000)
    found = page["entries"]
    while "cursor" in page:
        asked = [next(others), machine][len(found) % 2]  # pages of seven: the others', then its own, and so on
        assert asked.server.client.head(path, params={"cursor": page["cursor"]}).status_code == 200
        again = page["cursor"]
        page = body(asked, path, cursor=again)
        assert body(asked, path, cursor=again) == page
        found += page["entries"]
        assert page["partitions"] == first["partitions"]
    assert [(entry["key"], entry["value"]) for entry in found] == sorted(machines.sent.items())
    cursor, other = first["cursor"], next(others)
    for forged in (cursor[:-9] + ("A" if cursor[-9] != "A" else "B") + cursor[-8:], "A" * 6 + cursor[6:]):
        refused = other.get(path, cursor=forged)
        assert (refused.status_code, refused.json()["reason"]) == (404, "DOES_NOT_EXIST")
    assert other.get(path, cursor=cursor).status_code == 410, "of a page that was given long ago"
    assert other.get("/v1/stores/windows/windows", cursor=cursor).status_code == 422
    handed_on = other.server.client.get(path, params={"cursor": cursor}, headers={"stateline-handed-on": "1"})
    assert handed_on.json()["reason"] == "CURSOR_EXPIRED", "nobody hands on what was handed on"


def cut_link(machine: Machine) -> None:
    """End its link with the other node, which is made anew a second later."""
    assert machine.server.serving.nodes is not None
    (other,) = machine.server.serving.nodes.others.values()
    assert other.link is not None
    assert other.dialing is not None
    asyncio.run_coroutine_threadsafe(other.link.close(), other.dialing.get_loop()).result(HANGING_S)


@pytest.mark.parametrize("store", ["counts", *OTHER_FEEDS])
def test_a_change_feed_waits_for_a_node_that_is_out_of_reach_and_goes_on(machines: Machines, store: str) -> None:
    machine = machines.every["one"]
    with reading(machine.server.client, store, from_="latest") as reader:
        machines.send()
        assert {event.data["key"] for event in reader.take(len(machines.sent))} == set(machines.sent)
        cut_link(machine)
        machines.send()
        assert {event.data["key"] for event in reader.take(len(machines.sent))} == set(machines.sent)
        reader.beat()


@pytest.mark.parametrize("store", ["counts", *OTHER_FEEDS])
def test_a_reader_of_change_rows_plans_at_any_node(machines: Machines, store: str) -> None:
    path = f"/v1/stores/{store}/changes"
    machine, other = machines.every.values()
    told = body(machine, f"{path}/offsets", **{"from": "earliest"})
    assert body(other, f"{path}/offsets")["end"] == told["end"]
    keys: list[str] = []
    for p, end in told["end"].items():
        asked = {"partition": p, "begin": 0, "end": end, "topic_id": told["topic_id"], "columns": "key"}
        rows = pa.ipc.open_stream(other.get(f"{path}/rows", **asked).content).read_all()
        keys += rows.column("key").to_pylist()
    assert set(keys) == set(machines.sent)


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("store", ["counts", "memory"])
def test_the_owner_alone_may_be_asked_of_either(machine: Machine, machines: Machines, store: str, level: str) -> None:
    asked = {"isolation_level": level, "require_active": "true", "wait_ms": 5_000}
    told = body(machine, f"/v1/stores/{store}/range", **asked)
    assert {each["served_by"] for each in told["partitions"].values()} == {"active"}
    assert {entry["key"]: entry["value"] for entry in told["entries"]} == machines.sent


def test_other_kinds_of_stores_are_whole_at_either(machine: Machine, machines: Machines) -> None:
    keys = sorted(machines.sent)
    windows = body(machine, "/v1/stores/windows/windows", **EVERYTHING)["entries"]
    assert sorted(entry["key"] for entry in windows) == keys
    assert body(machine, "/v1/stores/memory/count")["approximate_entries"] == len(keys)
    for key in keys[:6]:
        assert body(machine, f"/v1/stores/visits/keys/{key}/sessions", **EVERYTHING)["entries"]
        assert len(body(machine, f"/v1/stores/history/keys/{key}/versions", **EVERYTHING)["entries"]) == 1
    many = machine.server.client.post("/v1/stores/counts/query", json={"type": "keys", "keys": keys}).json()
    assert len(many["entries"]) == len(keys)
    position = body(machine, "/v1/stores/counts/position")
    assert set(position["committed"]) == set(position["uncommitted"]) == {"0", "1"}


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize(("path", "asked"), [("history/range", {"as_of": 1_000_000}), ("visits/sessions", {"from": 1})])
def test_versions_and_sessions_of_all_keys_are_in_order_over_both(
    machine: Machine, machines: Machines, path: str, asked: dict[str, int], level: str
) -> None:
    told = body(machine, f"/v1/stores/{path}", limit=7, isolation_level=level, **asked)
    found = told["entries"]
    while "cursor" in told:
        told = body(machine, f"/v1/stores/{path}", cursor=told["cursor"])
        found += told["entries"]
    assert [entry["key"] for entry in found] == sorted(machines.sent)
    assert {each["node"] for each in told["partitions"].values()} == set(machines.every)
    parameters: dict[str, Any] = {**asked, "isolation_level": level}
    accepts = [{"Accept": "application/x-ndjson"}, {"Accept": "application/vnd.apache.arrow.stream"}]
    lines, arrow = (machine.server.client.get(f"/v1/stores/{path}", headers=h, params=parameters) for h in accepts)
    assert [json.loads(line) for line in lines.text.splitlines()] == found
    assert pa.ipc.open_stream(arrow.content).read_all()["key"].to_pylist() == sorted(machines.sent)


def test_nodes_tell_who_they_are_and_who_owns_what(machines: Machines, machine: Machine) -> None:
    told = body(machine, "/v1/nodes")
    urls = {name: str(each.server.client.base_url).rstrip("/") for name, each in machines.every.items()}
    assert (told["application"], told["node"]) == (machines.app.application_id, machine.name)
    assert told["key_types"]["counts"] == "string"
    assert {name: each["url"] for name, each in told["nodes"].items()} == urls
    assert all(each["reached"] for each in told["nodes"].values())
    owners = {p: each["node"] for p, each in machine.partitions().items()}
    assert told["stores"]["counts"] == {p: urls[node] for p, node in owners.items()}
    assert machine.get("/readyz").status_code == 200


def test_the_other_node_is_told_the_id_of_the_client_s_request(
    machines: Machines, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (other,) = (each for each in machines.every.values() if each is not machine)
    node, found, for_nodes = machine.server.serving.config.node, list[str](), other.server.serving.for_nodes
    points = for_nodes.points

    def point(path: str, query: str, shown: Proof | None, asked_by: AskedBy) -> bytes | None:
        found.append(f"{asked_by.node} point {asked_by.request_id}")
        return points(path, query, shown, asked_by)

    monkeypatch.setattr(for_nodes, "points", point)
    monkeypatch.setattr(for_nodes, "tell", lambda by, kind, *_: found.append(f"{by.node} {kind} {by.request_id}"))

    def ask(number: str, path: str, **parameters: str) -> httpx.Response:
        return machine.server.client.get(path, headers={"x-request-id": number}, params=parameters)

    for key in machines.sent:
        ask("mine-7", f"/v1/stores/counts/keys/{key}", isolation_level="read_committed")
    assert f"{node} point mine-7" in found
    assert all(each.endswith(" mine-7") for each in found)
    page = ask("mine-8", "/v1/stores/counts/range", limit="1")
    assert f"{node} query mine-8" in found
    ask("mine-9", "/v1/stores/counts/range", cursor=page.json()["cursor"], limit=str(len(machines.sent)))
    assert f"{node} more mine-9" in found


@pytest.fixture
def tokens(machines: Machines) -> Iterator[Path]:
    """The folder of the tokens files, which are each node's own."""
    folder = machines.every["one"].server.serving.config.state_dir.parent
    yield folder
    for name in machines.every:
        write_tokens(folder / f"{name}.json", everything="*")


def as_holder(machine: Machine, token: str, path: str, **parameters: Any) -> httpx.Response:
    return machine.server.client.get(path, headers={"Authorization": f"Bearer {token}"}, params=parameters)


def test_a_page_counts_against_the_scans_of_the_node_that_is_asked_alone(
    machines: Machines, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (other,) = (each for each in machines.every.values() if each is not machine)
    path = "/v1/stores/counts/range"
    cursor = body(machine, path, limit=7)["cursor"]
    monkeypatch.setattr(machine.server.limits, "_scans_max", 0)
    assert machine.get(path, cursor=cursor).status_code == 429
    assert other.get(path, cursor=cursor).status_code == 200
    monkeypatch.undo()
    monkeypatch.setattr(other.server.limits, "_scans_max", 0)
    refused = other.get(path, cursor=cursor)
    assert (refused.status_code, refused.json()["reason"]) == (429, "TOO_MANY_REQUESTS")
    assert machine.get(path, cursor=cursor).status_code == 200


def test_a_token_is_looked_at_by_the_node_that_answers_too(machines: Machines, tokens: Path) -> None:
    one, two = machines.every["one"], machines.every["two"]
    write_tokens(tokens / "one.json", everything="*", narrow="*", unknown="*")
    write_tokens(tokens / "two.json", everything="*", narrow=["windows"])
    owners = {p: each["node"] for p, each in one.partitions().items()}
    (theirs,) = (p for p, node in owners.items() if node == two.name)
    (ours,) = (p for p, node in owners.items() if node == one.name)
    for token, status, reason in (("narrow", 403, "FORBIDDEN"), ("unknown", 401, "UNAUTHENTICATED")):
        refused = as_holder(one, token, "/v1/stores/counts/range", partition=theirs)
        assert refused.json()["detail"].startswith("Node 'two': The token "), refused.text
        assert refused.json()["detail"].endswith("Give all nodes the same server.tokens.file.")
        assert (refused.status_code, refused.json()["reason"]) == (status, reason)
        assert ("WWW-Authenticate" in refused.headers) == (status == 401)
        assert as_holder(one, token, "/v1/stores/counts/range", partition=ours).status_code == 200
        keys = {as_holder(one, token, f"/v1/stores/counts/keys/{key}").status_code for key in machines.sent}
        assert keys == {200, status}
        some = as_holder(one, token, "/v1/stores/counts/range", allow_partial="true").json()
        assert set(some["partitions"]) == {ours}
        assert some["failures"][theirs]["reason"] == reason
    assert as_holder(one, "narrow", "/v1/stores/windows/windows", **EVERYTHING).status_code == 200
    page = body(two, "/v1/stores/counts/range", limit=2)
    for token, status in (("narrow", 403), ("unknown", 401), ("everything", 200)):
        assert as_holder(one, token, "/v1/stores/counts/range", cursor=page["cursor"]).status_code == status


def test_a_token_that_is_taken_back_ends_a_scan_that_another_node_keeps_open(machines: Machines, tokens: Path) -> None:
    one = machines.every["one"]
    page = body(one, "/v1/stores/counts/range", limit=2)
    write_tokens(tokens / "two.json", other="*")
    seen, answer = 0, one.get("/v1/stores/counts/range", cursor=page["cursor"])
    while answer.status_code == 200 and "cursor" in answer.json():
        seen, answer = seen + 1, one.get("/v1/stores/counts/range", cursor=answer.json()["cursor"])
    assert (answer.status_code, answer.json()["reason"]) == (401, "UNAUTHENTICATED")


def test_who_waits_for_another_node_is_refused_when_the_server_that_was_asked_stops(machines: Machines) -> None:
    one = machines.every["one"]
    (elsewhere,) = machines.every["two"].active()
    ends: dict[str, dict[str, int]] = json.loads(machines.bound())
    far = json.dumps({topic: dict.fromkeys(offsets, 10**9) for topic, offsets in ends.items()})
    asked: dict[str, str | int] = {"partition": elsewhere, "position_bound": far, "wait_ms": 50_000}
    stopping = served_here(machines.root / "one", *one.settings, app=machines.app, until_ready=False)
    with stopping as here, ThreadPoolExecutor() as pool:
        here.client.headers["Authorization"] = "Bearer everything"
        wait_until(lambda: here.client.get("/readyz").status_code == 200, HANGING_S)
        waiting = pool.submit(here.client.get, "/v1/stores/counts/range", params=asked)
        wait_until(lambda: here.serving.limits.waiting > 0, HANGING_S)
        assert here.serving.nodes is not None
        (other,) = here.serving.nodes.others.values()
        assert other.dialing is not None
        other.dialing.get_loop().call_soon_threadsafe(here.serving.readiness.stop)
        told = waiting.result(HANGING_S)
    assert (told.status_code, told.json()["reason"]) == (503, "NOT_READY")


class Rogue(HasNothing):
    """Says that it is the owner of whatever it is asked for, with a value of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[object] = []

    async def answer(self, request: WireRequest, shown: Proof | None) -> Outcome:
        self.asked.append(request)
        self.shown.append(shown)
        position = request.terms.bound.position
        return PartitionAnswer(QueryRows([(b"forged", b"666")]), position, CopyStatus("active", 0, 0, 0), offset=10**9)

    def point(self, path: str, query: str, shown: Proof | None, asked_by: AskedBy) -> bytes | None:
        self.shown.append(shown)
        return b'{"value": 666}'


@pytest.fixture
def rogue(machines: Machines) -> Iterator[Rogue]:
    """A node that knows the secret and claims every task, in the newest generation; no member of the group."""
    wait_until(lambda: all(shows(each, machines.sent) for each in machines.every.values()), HANGING_S)
    name, topology, forging = machines.app.application_id, machines.app.topology(), Rogue()
    settings = machines.every["one"].server.serving.config
    config = node_config(f"node.peer.secret.file={settings.node_peer_secret_file}")
    made = {"application": name, "topology": topology.digest(), "tasks": topology.tasks_digest()}
    with running_node("rogue", config, answers=forging, **made) as node:
        node.map = NodeMap(
            1, {f"{s.ordinal}_{p}": HeldTask("active", 10**6) for s in topology.subtopologies for p in (0, 1)}
        )
        say_node(machines.log, name, "rogue", node.entry)
        wait_until(lambda: all(of_rogue(each).get("tasks") for each in machines.every.values()), HANGING_S)
        yield forging
        say_node(machines.log, name, "rogue", None)
        wait_until(lambda: not any(map(of_rogue, machines.every.values())), HANGING_S)


def shows(machine: Machine, sent: Mapping[str, int]) -> bool:
    told = {key: machine.get(f"/v1/stores/counts/keys/{key}").json().get("value") for key in sent}
    return told == sent


def of_rogue(machine: Machine) -> dict[str, Any]:
    found: dict[str, Any] = machine.get("/v1/nodes").json()["nodes"].get("rogue", {})
    return found


def test_a_node_that_claims_what_the_group_has_not_given_it_is_not_asked(machines: Machines, rogue: Rogue) -> None:
    for machine in machines.every.values():
        for key, count in machines.sent.items():
            for require_active in ("true", "false"):
                told = machine.get(f"/v1/stores/counts/keys/{key}", require_active=require_active)
                assert told.status_code == 200, told.text
                assert told.json()["value"] == count
        owners = machine.get("/v1/nodes").json()["stores"]["counts"].values()
        assert "http://rogue" not in owners
        assert None not in owners
    assert rogue.shown == []


@long_only("test_claims.py has whose claims count while the owner is away")
def test_a_node_that_claims_more_is_not_believed_either_while_the_owner_is_away(
    machines: Machines, rogue: Rogue
) -> None:
    one, two = machines.every["one"], machines.every["two"]
    (theirs,) = two.active()
    until = time.monotonic() + HANGING_S
    two.stop_worker()
    try:
        statuses = set()
        while "NOT_ACTIVE" not in statuses and time.monotonic() < until:
            told = one.get("/v1/stores/counts/range", partition=theirs)
            statuses.add(told.json().get("reason", "ok"))
            assert "forged" not in told.text
            assert "http://rogue" not in told.text
    finally:
        two.start_worker()
    wait_until(lambda: two.active() == {theirs}, HANGING_S)
    assert all(isinstance(each, Proof) for each in rogue.shown)


def until_named(machines: Machines, node: str) -> None:
    """Until the registry has this node: it says so again after another server of its directory has left."""
    wait_until(lambda: node in known_nodes(machines.log, machines.app.application_id), HANGING_S)


def test_a_node_that_all_others_refuse_is_not_started(machines: Machines, tmp_path: Path) -> None:
    bootstrap = machines.every["one"].server.serving.config.bootstrap_servers
    topology, given = machines.app.topology(), [f"state.dir={tmp_path}", f"bootstrap.servers={bootstrap}"]

    def with_secret(secret: str, name: str = "three") -> Config:
        file = write_secret(tmp_path, secret)
        overrides = [*given, f"node.name={name}", f"node.peer.secret.file={file}"]
        return load_config(topology.application_id, environment={}, overrides=overrides)

    check_accepted(with_secret("a secret of these nodes alone"), topology)
    check_accepted(load_config(topology.application_id, environment={}, overrides=given), topology)
    with pytest.raises(ConfigurationError, match="does not take this node's proof: give both the same secret"):
        check_accepted(with_secret("a secret that nobody has"), topology)
    alone = changes_app.build("nobody-else").topology()
    check_accepted(with_secret("a secret that nobody has"), alone)
    until_named(machines, "one")
    with pytest.raises(ConfigurationError, match="runs already, and it refuses this node: it calls itself 'one'"):
        check_accepted(with_secret("a secret of these nodes alone", "one"), topology)


def test_a_node_with_a_copy_of_the_directory_of_one_that_runs_is_not_started(
    machines: Machines, tmp_path: Path
) -> None:
    one = machines.every["one"]
    name = machines.app.application_id
    copied = StateDirectory(tmp_path, name).application / PROCESS_FILE
    copied.write_bytes((machines.root / "one" / name / PROCESS_FILE).read_bytes())
    overrides = [*one.settings, f"state.dir={tmp_path}", "node.name=copy"]
    until_named(machines, "one")
    with pytest.raises(ConfigurationError, match="it refuses this node: it has the state directory of node 'one', or"):
        check_accepted(load_config(name, environment={}, overrides=overrides), machines.app.topology())


def test_a_server_that_has_just_started_reaches_other_nodes_from_its_first_answer_on(machines: Machines) -> None:
    two = machines.every["two"]
    asked: dict[str, Any] = {"position_bound": machines.bound(), "wait_ms": 30_000}
    two.stop_server()
    with served_here(machines.root / "two", *two.settings, app=machines.app, until_ready=False) as here:
        first = here.client.get("/v1/stores/counts/range", headers={"Authorization": "Bearer everything"}, params=asked)
        assert first.status_code == 200, first.text
        assert {each["key"] for each in first.json()["entries"]} == set(machines.sent)
        assert {each["node"] for each in first.json()["partitions"].values()} == {"one", "two"}
