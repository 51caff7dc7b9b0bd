"""A node that cannot work leaves its group, so that others run its tasks, and comes back when it can."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from confluent_kafka import murmur2
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from stateline.log import Log, open_log
from support import TESTS
from support.kafka.shared_broker import SharedBroker
from support.processes.forked import Forked
from support.processes.node_secret import write_secret
from support.processes.ports import free_port
from support.processes.query_server import wait_until
from support.processes.running_worker import create, produce
from support.processes.small_disk import full, new_small_disk, read_only
from support.run.length import long_only
from support.run.patience import HANGING_S

PARTITIONS = 4
KEYS = [f"k{n}" for n in range(40)]
POISON = [
    next(f"poison{n}" for n in range(100) if murmur2(b"poison%d" % n, PARTITIONS) == p) for p in range(PARTITIONS)
]
# So long that nothing that is done because of it is done while a test waits.
SESSION_S = 240
DISK_MIB = 48


class Node:
    """One `stateline run`."""

    def __init__(self, name: str, root: Path, run: str, bootstrap: str, secret: Path, runs: Sequence[str]) -> None:
        self.name, self.directory, self.run, self._runs = name, root / name, run, runs
        self.directory.mkdir(exist_ok=True)
        self.url = f"http://127.0.0.1:{free_port()}"
        self.crashes_if, self._log = root / f"{name}.crashes", root / f"{name}.log"
        self._settings = [
            f"bootstrap.servers={bootstrap}",
            f"state.dir={self.directory}",
            f"node.name={name}",
            f"server.port={self.url.rpartition(':')[2]}",
            f"node.peer.secret.file={secret}",
            "num.standby.replicas=1",
            "commit.interval.ms=50",
            "consumer.heartbeat.interval.ms=300",
            "processing.guarantee=exactly_once_v2",
            "default.state.isolation.level=read_committed",
            f"session.timeout.ms={1000 * SESSION_S}",
        ]
        self._processes: dict[str, Forked] = {}
        self.client = httpx.Client(base_url=self.url)

    def start(self, *commands: str) -> None:
        """All that it runs, or these of it."""
        for command in commands or self._runs:
            line = [command, "support.apps.sick_app:app", *(p for s in self._settings for p in ("--set", s))]
            environment = {**os.environ, "SICK_RUN": self.run, "SICK_IF": str(self.crashes_if)}
            with self._log.open("ab") as output:
                self._processes[command] = Forked(line, cwd=TESTS, env=environment, output=output.fileno())

    def end(self, *commands: str) -> None:
        for command in commands or [*self._processes]:
            process = self._processes.pop(command)
            process.terminate()
            process.wait(HANGING_S)

    def ended(self, command: str) -> int:
        """Wait until it ends by itself; its exit code."""
        return self._processes.pop(command).wait(HANGING_S)

    def reasons(self) -> str:
        """Why it is not ready; empty when it is, or does not answer."""
        answer = self.get("/readyz")
        return "" if answer is None or answer.status_code == 200 else " ".join(answer.json()["reasons"])

    def printed(self) -> str:
        return self._log.read_text(errors="replace")

    def get(self, path: str, **parameters: Any) -> httpx.Response | None:
        with suppress(httpx.TransportError):
            return self.client.get(path, params=parameters)
        return None

    def status(self, path: str, **parameters: Any) -> int:
        answer = self.get(path, **parameters)
        return 0 if answer is None else answer.status_code

    def tasks(self) -> dict[str, str]:
        """Which it has, and in which role, as it says itself."""
        answer = self.get("/v1/nodes")
        if answer is None or answer.status_code != 200:
            return {}
        told = answer.json()["nodes"][self.name]["tasks"]
        return {task: each["role"] for task, each in told.items()}

    def active(self) -> set[str]:
        return {task for task, role in self.tasks().items() if role == "active"}


class Scene:
    """Two nodes or more of one application, and what is written for them."""

    def __init__(self, bootstrap: str, root: Path, stack: ExitStack) -> None:
        self.run, self.root, self.bootstrap = uuid4().hex[:8], root, bootstrap
        self.log: Log = stack.enter_context(closing(open_log(bootstrap, root)))
        self._secret, self._stack = write_secret(root), stack
        create(self.log, {f"in-{self.run}": PARTITIONS})
        self.sent = 0
        self.nodes: dict[str, Node] = {}

    def add(self, name: str, runs: Sequence[str] = ("run",)) -> Node:
        node = self.nodes[name] = Node(name, self.root, self.run, self.bootstrap, self._secret, runs)
        self._stack.callback(node.client.close)
        self._stack.callback(node.end)
        node.start()
        return node

    def send(self) -> None:
        """One record of each key more."""
        produce(self.log, f"in-{self.run}", [(key.encode(), (1).to_bytes(8), 1_000_000) for key in KEYS])
        self.sent += 1

    def write(self, key: str) -> None:
        produce(self.log, f"in-{self.run}", [(key.encode(), (1).to_bytes(8), 1_000_000)])

    def is_shared(self) -> bool:
        """Whether each has two tasks and follows the other's two, and is ready."""
        return all(
            sorted(node.tasks().values()) == ["active"] * 2 + ["standby"] * 2 and node.status("/readyz") == 200
            for node in self.nodes.values()
        )

    def owner_answers(self, node: Node) -> bool:
        """Whether all keys are answered by owners at this node, with all that was sent."""
        answer = node.get("/v1/stores/counts/range", require_active="true", limit=1000)
        if answer is None or answer.status_code != 200:
            return False
        told = {e["key"]: e["value"] for e in answer.json()["entries"]}
        return {key: told.get(key) for key in KEYS} == dict.fromkeys(KEYS, self.sent)


@pytest.fixture
def scene(kafka_broker: SharedBroker, tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(kafka_broker.bootstrap_servers, tmp_path, stack)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """The state directory of the node `one`, on a file system of its own."""
    with new_small_disk(tmp_path / "one", DISK_MIB) as found:
        yield found


def until_two_has_all(scene: Scene) -> float:
    """Write until node `two` owns all tasks; how long that took. It is no session's end."""
    one, two, began_s = scene.nodes["one"], scene.nodes["two"], time.monotonic()
    while len(two.active()) < PARTITIONS:
        scene.send()
        told = one.reasons() + two.reasons()
        assert "restores it first" not in told, told
        assert time.monotonic() < began_s + SESSION_S, f"{told}\n{one.printed()}"
        time.sleep(0.2)
    wait_until(lambda: scene.owner_answers(two), HANGING_S)
    return time.monotonic() - began_s


def comes_back(scene: Scene) -> None:
    wait_until(scene.is_shared, HANGING_S)
    scene.send()
    for node in scene.nodes.values():
        wait_until(lambda node=node: scene.owner_answers(node), HANGING_S)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("refuses", "why"),
    [
        pytest.param(full, "No space left", id="full"),
        pytest.param(read_only, "Read-only", id="read-only", marks=long_only("a full disk refuses as well")),
    ],
)
def test_a_node_whose_disk_refuses_leaves_its_group_and_joins_it_again_when_the_disk_takes_all(
    scene: Scene, disk: Path, refuses: Callable[[Path], AbstractContextManager[None]], why: str
) -> None:
    one, two = scene.add("one"), scene.add("two")
    scene.send()
    wait_until(scene.is_shared, HANGING_S)
    with refuses(disk):
        until_two_has_all(scene)
        wait_until(lambda: two.status("/readyz") == 200, HANGING_S)
        wait_until(lambda: "The worker has left its group" in one.reasons(), HANGING_S)
        assert "Worker 'worker-0' of this node does not run its tasks" in one.reasons()
        assert why in one.reasons()
        told = two.get("/v1/nodes")
        assert told is not None
        assert why in told.json()["nodes"]["one"]["worker_faults"]["worker-0"]
        assert "worker-0 ended" not in one.printed(), "it waits, and is not started again and again"
    comes_back(scene)
    assert one.reasons() == ""


def test_a_worker_whose_disk_is_read_only_at_its_start_ends_and_takes_no_place_in_its_group(
    scene: Scene, disk: Path
) -> None:
    (disk / f"sick-{scene.run}").mkdir()
    with read_only(disk):
        one = scene.add("one", runs=("worker",))
        assert one.ended("worker") == 1
    assert "Read-only file system. The file system is read-only: mount it writable" in one.printed()
    with closing(scene.log.admin()) as admin:
        assert not admin.members(f"sick-{scene.run}"), "a session that began with this would keep tasks from others"


@long_only("test_stopped_run.py has one node whose topic has grown")
def test_nodes_whose_topic_has_grown_answer_the_last_state_of_all_partitions(scene: Scene) -> None:
    nodes = scene.add("one"), scene.add("two")
    scene.send()
    wait_until(scene.is_shared, HANGING_S)
    wait_until(lambda: all(map(scene.owner_answers, nodes)), HANGING_S)
    client, topic = AdminClient({"bootstrap.servers": scene.bootstrap}), f"in-{scene.run}"
    client.create_partitions([NewPartitions(topic, PARTITIONS + 2)])[topic].result()

    def is_stopped(node: Node) -> bool:
        answer = node.get("/readyz")
        return answer is not None and "stopped" in answer.json()

    def counted(node: Node, **terms: Any) -> dict[str, int]:
        answer = node.get("/v1/stores/counts/range", limit=1000, **terms)
        if answer is None or answer.status_code != 200 or topic not in answer.json().get("stopped", ""):
            return {}
        return {entry["key"]: entry["value"] for entry in answer.json()["entries"]}

    for node in nodes:
        wait_until(partial(is_stopped, node), HANGING_S)
    for node in nodes:
        wait_until(lambda node=node: counted(node) == dict.fromkeys(KEYS, 1), HANGING_S)  # type: ignore[misc]
        wait_until(lambda node=node: "worker-0 cannot run" in node.printed(), HANGING_S)  # type: ignore[misc]
        told = node.get(f"/v1/stores/counts/keys/{KEYS[0]}")
        assert told is not None
        assert (told.status_code, told.json()["value"]) == (200, 1)


@long_only("test_crash_loop.py of the worker has who leaves, and a full disk makes a node leave here")
def test_so_does_one_whose_worker_fails_at_a_record_that_others_can_process(scene: Scene) -> None:
    one, two = scene.add("one"), scene.add("two")
    scene.send()
    wait_until(scene.is_shared, HANGING_S)
    one.crashes_if.touch()
    for key in POISON:
        scene.write(key)
    wait_until(lambda: one.status("/readyz") == 503, HANGING_S)
    until_two_has_all(scene)
    wait_until(lambda: "Its last 2 starts have failed" in one.reasons(), HANGING_S)
    wait_until(lambda: two.status("/readyz") == 200, HANGING_S)
    assert one.printed().count("worker-0 ended") <= 3
    (file,) = one.directory.glob("*/instances/worker-0.starts")
    file.unlink()
    comes_back(scene)


@long_only("test_fitness.py of the worker has who leaves, and a full disk makes a node leave here")
def test_so_does_one_whose_server_is_gone_until_there_is_one_again(scene: Scene) -> None:
    one, two = scene.add("one", runs=("worker", "serve")), scene.add("two", runs=("worker", "serve"))
    scene.send()
    wait_until(scene.is_shared, HANGING_S)
    one.end("serve")
    until_two_has_all(scene)
    assert "No server of this node runs any more" in one.printed()
    wait_until(lambda: two.status("/readyz") == 200, HANGING_S)
    one.start("serve")
    comes_back(scene)


@long_only("test_crash_loop.py of the worker has who leaves and who stays")
def test_a_record_at_which_every_worker_fails_stays_with_one_of_them(scene: Scene) -> None:
    one, two = scene.add("one"), scene.add("two")
    scene.send()
    wait_until(scene.is_shared, HANGING_S)
    for node in (one, two):
        node.crashes_if.touch()
    scene.write(POISON[0])
    wait_until(lambda: any("Every worker may fail" in node.printed() for node in (one, two)), HANGING_S)
    wait_until(lambda: len(one.active() | two.active()) == PARTITIONS // 2, HANGING_S)
    (well,) = [node for node in (one, two) if node.active()]
    sick = two if well is one else one
    ended = well.printed().count("worker-0 ended")
    wait_until(lambda: sick.printed().count("worker-0 ended") > 7, HANGING_S)
    assert well.printed().count("worker-0 ended") == ended, "it does not come to the other one again"
