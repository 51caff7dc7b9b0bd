"""Three nodes that are drained, stopped and started anew, one after the other, while each is written to and asked."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import murmur2

from stateline.client import Client, Retries
from support import TESTS
from support.kafka.shared_broker import SharedBroker
from support.processes.forked import Forked
from support.processes.machines import KEYS, Machines, started
from support.processes.node_secret import write_secret
from support.processes.ports import free_port
from support.processes.query_server import wait_until
from support.run.length import long_only
from support.run.patience import HANGING_S

PARTITIONS = 3
NAMES = ("one", "two", "three")
STALE: dict[str, Any] = {"max_staleness_ms": 60_000}
PLACES = {key: murmur2(key.encode(), PARTITIONS) for key in KEYS}
IN_PARTITION = {p: [key for key in KEYS if PLACES[key] == p] for p in range(PARTITIONS)}


class Node:
    """A worker and a server, each a process of its own."""

    def __init__(self, machines: Machines, bootstrap: str, name: str) -> None:
        port = free_port()
        self.name, self.url, self.machines = name, f"http://127.0.0.1:{port}", machines
        self._settings = [*machines.settings(name, bootstrap), f"server.port={port}"]
        self.processes: dict[str, Forked] = {}
        self.client = httpx.Client(base_url=self.url, timeout=HANGING_S)

    def start(self) -> None:
        self.processes = {
            command: started(command, self._settings, self.machines.run) for command in ("worker", "serve")
        }

    def look_after(self) -> None:
        """Start again what has ended, as a supervisor does: at its start a worker waits for Kafka, but not for ever."""
        for command, process in self.processes.items():
            if process.poll() is not None:
                self.processes[command] = started(command, self._settings, self.machines.run)

    def drain(self) -> None:
        """`stateline node drain`, and wait for it."""
        settings = [part for each in self._settings for part in ("--set", each)]
        environment = {**os.environ, "CHANGES_RUN": self.machines.run}
        line = ["node", "drain", "support.apps.changes_app:app", *settings]
        assert Forked(line, cwd=TESTS, env=environment, output=os.open(os.devnull, os.O_WRONLY)).wait(HANGING_S) == 0

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        assert [process.wait(HANGING_S) for process in self.processes.values()] == [0, 0]

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(HANGING_S)
        self.client.close()

    def told(self, path: str) -> Any:
        """What it answers; None while it does not."""
        try:
            answer = self.client.get(path)
        except httpx.TransportError:
            return None
        return answer.json() if answer.status_code == 200 else None

    def has_its_share(self) -> bool:
        """Whether it reaches all, and each owns a task."""
        self.look_after()
        nodes = self.told("/v1/nodes")
        if nodes is None or self.told("/readyz") is None:
            return False
        every = [nodes["nodes"].get(name) for name in NAMES]
        return all(
            each is not None and each["reached"] and "active" in {task["role"] for task in each["tasks"].values()}
            for each in every
        )

    def covered(self, bound: str) -> list[str]:
        """The partitions of which it has all of this itself: what it owns, and what it follows."""
        answer = self.client.get("/v1/stores/counts/range", params={"position_bound": bound})
        told = answer.json()["partitions"] if answer.status_code == 200 else {}
        return [p for p, each in told.items() if each["node"] == self.name]


@pytest.fixture
def nodes(kafka_broker: SharedBroker, tmp_path: Path) -> Iterator[dict[str, Node]]:
    secret = write_secret(tmp_path)
    settings = (f"node.peer.secret.file={secret}", "num.standby.replicas=1")
    with ExitStack() as stack:
        servers = kafka_broker.bootstrap_servers
        machines = Machines({}, servers, tmp_path, stack, *settings, partitions=PARTITIONS)
        machines.send()
        made = {name: Node(machines, servers, name) for name in NAMES}
        for node in made.values():
            stack.callback(node.kill)
            node.start()
        yield made


def wrong(told: Mapping[str, int], keys: Iterable[str], position: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """What is told of these keys, where it is not what their partition has at this Position: every record counts, and
    each round has one of each key. (A copy that its node had for a moment may be as old as who asks has allowed, and
    have none yet.)"""
    offsets = {p: offset for of_topic in position.values() for p, offset in of_topic.items()}
    found = {}
    for key in keys:
        round_ = IN_PARTITION[PLACES[key]]
        expected = (offsets.get(str(PLACES[key]), -1) - round_.index(key)) // len(round_) + 1
        if told.get(key, 0) != expected:
            found[key] = (told.get(key), expected)
    return found


class Asking:
    """Asks nodes, as long as its block lasts, what standbys may answer: each that is not taken out, and all by a client
    that knows of them."""

    def __init__(self, nodes: Mapping[str, Node], machines: Machines) -> None:
        self.nodes, self.machines = nodes, machines
        self.bound = machines.bound()
        self.failed: list[Any] = []
        self.count = Counter[str]()
        self._out = {name: threading.Lock() for name in nodes}
        self._is_over = threading.Event()

    @contextmanager
    def without(self, node: Node) -> Iterator[None]:
        """Nobody asks this one itself."""
        with self._out[node.name]:
            yield

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._ask_all, args=(node,)) for node in self.nodes.values()]
        threads += [threading.Thread(target=self._ask_by_client), threading.Thread(target=self._write)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join(HANGING_S)

    def _write(self) -> None:
        while not self._is_over.wait(0.3):
            self.machines.send()

    def _ask_all(self, node: Node) -> None:
        keys = itertools.cycle(KEYS)
        with httpx.Client(base_url=node.url, timeout=HANGING_S) as client:
            while not self._is_over.wait(0.05):
                if self._out[node.name].acquire(blocking=False):
                    try:
                        for terms in (STALE, {"position_bound": self.bound}):
                            self._ask(node, client, next(keys), terms)
                    finally:
                        self._out[node.name].release()

    def _ask(self, node: Node, client: httpx.Client, key: str, terms: Mapping[str, str]) -> None:
        for path in (f"keys/{key}", "range"):
            began_s = time.monotonic()
            answer = client.get(f"/v1/stores/counts/{path}", params=terms)
            told, asked = answer.json(), (node.name, path, [*terms], time.monotonic() - began_s)
            if answer.status_code != 200:
                self.failed.append((*asked, answer.text))
                continue
            values = {key: told["value"]} if "value" in told else {e["key"]: e["value"] for e in told["entries"]}
            if bad := wrong(values, KEYS if path == "range" else [key], told["position"]):
                self.failed.append((*asked, bad, told["partitions"]))
            for each in told["partitions"].values():
                self.count[each["served_by"]] += 1

    def _ask_by_client(self) -> None:
        urls = [node.url for node in self.nodes.values()]
        with Client(urls, retries=Retries(deadline_s=HANGING_S), **STALE) as client:
            for key in itertools.cycle(KEYS):
                if self._is_over.wait(0.05):
                    return
                try:
                    answer = client.store("counts").get(key)
                    if bad := wrong({key: answer.value}, [key], answer.position.to_json()):
                        self.failed.append(("client", bad))
                except Exception as error:  # noqa: BLE001 - whatever it is, it failed
                    self.failed.append(("client", repr(error)))
                self.count["client"] += 1


@long_only("test_standbys.py loses an owner, and test_rolling_upgrade.py restarts each node under questions")
def test_nobody_who_accepts_standbys_is_refused_while_one_node_after_the_other_is_restarted(
    nodes: dict[str, Node],
) -> None:
    machines = nodes["one"].machines
    wait_until(lambda: all(node.has_its_share() for node in nodes.values()), HANGING_S)
    machines.send()  # what a node had before all came is a copy that nobody keeps: it does not have this
    until_settled(nodes, machines.bound())
    asking = Asking(nodes, machines)
    with asking.running():
        for node in nodes.values():
            wait_until(lambda: all(node.has_its_share() for node in nodes.values()), HANGING_S)
            before = machines.bound()
            wait_until(lambda before=before: machines.bound() != before, HANGING_S)  # type: ignore[misc]
            bound = machines.bound()
            until_settled(nodes, bound)
            asking.bound = bound
            node.drain()
            with asking.without(node):
                node.stop()
                node.start()
                wait_until(node.has_its_share, HANGING_S)
    assert asking.failed == [], f"{len(asking.failed)} failed: {asking.failed[:5]}; {asking.count}"
    assert {"active", "standby", "client"} <= asking.count.keys()


def until_settled(nodes: Mapping[str, Node], bound: str) -> None:
    """Of each task two nodes have all of this: its owner, and its standby."""

    def are_followed() -> bool:
        found = Counter(p for node in nodes.values() for p in node.covered(bound))
        return len(found) == PARTITIONS and min(found.values()) >= 2

    wait_until(are_followed, HANGING_S)
