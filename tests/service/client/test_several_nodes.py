"""Both clients and two nodes on a real broker: owners are asked directly, whatever becomes of them and their URLs."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import httpx
import pytest

from stateline.client import Client, Position, Retries, Session
from stateline.serde.partitioner import home_partition
from support.http.blocking import blocking_client
from support.http.faulty_proxy import FaultyProxy, faulty_proxy
from support.kafka.kafka_broker import KafkaBroker
from support.processes.machines import KEYS, PARTITIONS, Machine, Machines, started
from support.processes.node_secret import write_secret
from support.processes.ports import free_port
from support.processes.query_server import wait_until
from support.run.patience import HANGING_S

Connect = Callable[..., Client]
PATIENT = Retries(deadline_s=120, longest_pause_s=0.5)


class Scene:
    """Node one, whose server runs here, and node two, whose processes can be killed and whose URL is a proxy's."""

    def __init__(self, machines: Machines, two: list[str], proxy: FaultyProxy) -> None:
        self.machines, self.proxy = machines, proxy
        self.one: Machine = machines.every["one"]
        self.url = str(self.one.server.client.base_url).rstrip("/")
        self.two = [started(command, two, machines.run) for command in ("serve", "worker")]
        self.urls = {"one": self.url, "two": proxy.url}
        self._two_port = proxy.target

    def owners(self) -> dict[str, str]:
        """Key → the name of its node, as node one says."""
        stores = self.one.get("/v1/nodes").json()["stores"]["counts"]
        names = {url: name for name, url in self.urls.items()}
        return {key: names[stores[str(home_partition(key.encode(), PARTITIONS))]] for key in KEYS}

    def is_spread(self) -> bool:
        """Whether each node has a partition, and both know it of both."""
        urls = list(self.urls.values())
        told = [_nodes(f"http://127.0.0.1:{port}") for port in (self.one.server.port, self._two_port)]
        return all(sorted(filter(None, each.get("counts", {}).values())) == sorted(urls) for each in told)

    def asked(self) -> Counter[tuple[str, str]]:
        """How many requests each node has answered, by route."""
        found: Counter[tuple[str, str]] = Counter()
        for name, port in (("one", self.one.server.port), ("two", self._two_port)):
            for line in httpx.get(f"http://127.0.0.1:{port}/metrics").text.splitlines():
                if line.startswith("stateline_http_request_seconds_count{"):
                    labels, _, count = line.rpartition(" ")
                    found[name, labels.partition('route="')[2].partition('"')[0]] += int(float(count))
        return found

    @contextlib.contextmanager
    def counting(self) -> Iterator[Counter[tuple[str, str]]]:
        """What both were asked within the block, once it is over."""
        asked, before = Counter[tuple[str, str]](), self.asked()
        yield asked
        asked.update(self.asked())
        asked.subtract(before)

    def end(self) -> None:
        for process in self.two:
            process.send_signal(signal.SIGKILL)
            process.wait(HANGING_S)


KEY, NODES = "/v1/stores/{store}/keys/{key}", "/v1/nodes"


def _nodes(url: str) -> dict[str, dict[str, str | None]]:
    try:
        found: dict[str, dict[str, str | None]] = httpx.get(f"{url}/v1/nodes").json().get("stores", {})
    except httpx.TransportError:
        return {}
    return found


@pytest.fixture(scope="module")
def scene(kafka_broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    root, servers, port = tmp_path_factory.mktemp("nodes"), kafka_broker.bootstrap_servers, free_port()
    write_secret(root)
    with ExitStack() as stack:
        given = (f"node.peer.secret.file={root / 'secret'}", "default.state.isolation.level=read_committed")
        machines = Machines({"one": servers}, servers, root, stack, *given)
        proxy = stack.enter_context(faulty_proxy(port))
        two = [*machines.settings("two", servers), f"server.port={port}", f"node.url={proxy.url}"]
        scene = Scene(machines, two, proxy)
        stack.callback(scene.end)
        scene.one.start_worker()
        machines.send()
        wait_until(scene.is_spread, HANGING_S)
        asked = {"position_bound": machines.bound(), "wait_ms": 30_000}
        wait_until(lambda: scene.one.get("/v1/stores/counts/range", **asked).status_code == 200, HANGING_S)
        yield scene


def every_key(client: Client, **terms: Any) -> dict[str, str | None]:
    """Key → the node that has answered for it, asked one after the other."""
    counts, found = client.store("counts"), {}
    for key in KEYS:
        answer = counts.get(key, **terms)
        assert answer.value == 1
        (found[key],) = {each.node for each in answer.partitions.values()}
    return found


def test_a_client_of_one_node_asks_the_owners_of_all_keys_themselves(scene: Scene, connect: Connect) -> None:
    client, owners = connect(scene.url), scene.owners()
    with scene.counting() as asked:
        assert every_key(client) == owners
    assert asked["two", NODES] == 1, "once looked at"
    # As the first answer named a node; anew only if one of them was not heard of just then.
    assert 1 <= asked["one", NODES] <= 2, "asked for the map, and not with every answer"
    with scene.counting() as asked:
        assert every_key(client) == owners
        assert all(len(list(client.store("history").versions(key))) == 1 for key in KEYS)
    wanted = Counter(owners.values())
    for node in ("one", "two"):
        assert asked[node, KEY] == asked[node, f"{KEY}/versions"] == wanted[node]
        assert asked[node, NODES] == 0


def test_owners_are_not_asked_by_who_does_not_want_it(scene: Scene, connect: Connect) -> None:
    client, owners = connect(scene.url, ask_owners=False), scene.owners()
    with scene.counting() as asked:
        assert every_key(client) == every_key(client) == owners
    assert (asked["one", KEY], asked["two", KEY], asked["one", NODES]) == (2 * len(KEYS), 0, 0)


def test_what_no_node_has_alone_is_asked_of_the_one_that_was_given(scene: Scene, connect: Connect) -> None:
    client = connect(scene.url)
    every_key(client)
    with scene.counting() as asked:
        entries = list(client.store("counts").range(page_size=7))
        assert [entry.key for entry in entries] == sorted(KEYS)
        assert len(client.store("counts").get_many(KEYS).entries) == len(KEYS)
        partition = home_partition(next(k for k, node in scene.owners().items() if node == "two").encode(), PARTITIONS)
        assert client.store("counts").count(partitions=[partition]).approximate_entries < len(KEYS)
    assert asked["one", "/v1/stores/{store}/range"] == 6
    assert asked["two", "/v1/stores/{store}/count"] == 1, "of one partition its owner is asked"
    assert asked["two", "/v1/stores/{store}/range"] == 0


def test_of_several_addresses_any_may_be_down(scene: Scene, connect: Connect) -> None:
    client = connect([f"http://127.0.0.1:{free_port()}", scene.url])
    assert every_key(client) == scene.owners()
    assert sum(1 for _ in client.store("counts").range(page_size=7)) == len(KEYS)
    assert sum(batch.num_rows for batch in client.store("counts").range().batches()) == len(KEYS)
    client.check_health()
    assert set(client.nodes().nodes) == {"one", "two"}


@pytest.mark.parametrize("lost", [True, False], ids=["nobody", "another application"])
def test_a_url_where_its_node_is_not_found_is_left_alone_for_a_while(
    scene: Scene, connect: Connect, server: httpx.URL, *, lost: bool
) -> None:
    """As where clients come through a load balancer, and nodes call themselves what only they can reach."""
    two, scene.proxy.target = scene.proxy.target, free_port() if lost else server.port or 0
    scene.proxy.lose_connections()
    try:
        client, owners, before = connect(scene.url), scene.owners(), len(scene.proxy.requests)
        with scene.counting() as asked:
            assert every_key(client) == every_key(client) == owners
        assert asked["one", KEY] == 2 * len(KEYS)
        paths = [each.split(b" ")[1] for each in scene.proxy.requests[before:]]
        assert set(paths) == {b"/v1/nodes"}
        assert len(paths) < len(KEYS), "once for a while, which slow reads may outlast"
    finally:
        scene.proxy.target = two
        scene.proxy.lose_connections()


def test_a_connection_that_is_lost_in_between_is_nothing_to_who_asks(scene: Scene, connect: Connect) -> None:
    client, owners = connect(scene.url), scene.owners()
    every_key(client)
    scene.proxy.lose_connections()
    assert every_key(client) == owners


def test_one_server_is_asked_nothing_but_the_questions(server: httpx.URL, connect: Connect, worker: Any) -> None:
    """On the embedded log, or alone."""
    worker.put("alone", 1)
    worker.commit()
    client, before = connect(server).store("aircraft"), _requests(server)
    for _ in range(10):
        assert client.get("alone").value == 1
    asked = _requests(server) - before
    assert asked[KEY] == 10
    assert {route for route, count in asked.items() if count} <= {KEY, "/metrics"}


def _requests(url: httpx.URL) -> Counter[str]:
    found: Counter[str] = Counter()
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        if line.startswith("stateline_http_request_seconds_count{"):
            labels, _, count = line.rpartition(" ")
            found[labels.partition('route="')[2].partition('"')[0]] += int(float(count))
    return found


class Loop:
    """Reads every key again and again, in a session, until it is ended; and a change feed of one partition."""

    def __init__(self, scene: Scene, kind: Any, partition: int) -> None:
        self.nodes: set[str | None] = set()
        self.rounds = 0
        self.changes: list[str] = []
        self.ending = threading.Event()
        self._scene, self._kind, self._partition = scene, kind, partition

    def read(self) -> None:
        seen, last, values = Session(wait_ms=60_000), Position(), dict.fromkeys(KEYS, 0)
        with self._kind(self._scene.url, session=seen, retries=PATIENT) as client:
            counts = client.store("counts")
            while not self.ending.is_set():
                nodes = set[str | None]()
                for key in KEYS:
                    answer = counts.get(key)
                    nodes |= {each.node for each in answer.partitions.values()}
                    assert answer.value >= values[key], "an answer went back"
                    values[key] = answer.value
                assert seen.position("counts").merge(last) == seen.position("counts")
                last, self.nodes, self.rounds = seen.position("counts"), nodes, self.rounds + 1

    def follow(self, wanted: int) -> None:
        with self._kind([self._scene.proxy.url, self._scene.url], retries=PATIENT) as client:
            following = client.store("counts").changes(since="earliest", partitions=[self._partition])
            with closing(following) as changes:
                for change in changes:
                    self.changes.append(f"{change.key}={change.value}")
                    if len(self.changes) == wanted:
                        return


def test_a_node_that_is_killed_costs_no_reader_more_than_time(scene: Scene) -> None:
    """Its partition goes to the other one, in the middle of loops of reads and of change feeds."""
    lost = [key for key, node in scene.owners().items() if node == "two"]
    partition = home_partition(lost[0].encode(), PARTITIONS)
    loops = [Loop(scene, kind, partition) for kind in (Client, blocking_client)]
    with ThreadPoolExecutor(2 * len(loops)) as pool:
        done = [pool.submit(loop.read) for loop in loops]
        done += [pool.submit(loop.follow, 2 * len(lost)) for loop in loops]
        try:
            both = list(done)
            wait_until(lambda: _failed(both) or all(loop.nodes == {"one", "two"} for loop in loops), HANGING_S)
            wait_until(lambda: _failed(both) or all(len(loop.changes) == len(lost) for loop in loops), HANGING_S)
            scene.end()
            scene.proxy.lose_connections()
            scene.machines.send()
            wait_until(lambda: _failed(both) or all(loop.nodes == {"one"} for loop in loops), HANGING_S)
        finally:
            for loop in loops:
                loop.ending.set()
        for each in done:
            each.result(HANGING_S)
    for loop in loops:
        assert sorted(loop.changes) == sorted(f"{key}={n}" for key in lost for n in (1, 2)), "none lost, none twice"


def _failed(done: list[Any]) -> bool:
    return any(each.done() and each.exception() is not None for each in done)
