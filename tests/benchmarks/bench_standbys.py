"""Standbys: how fast one follows and what that costs, how soon it has taken over, and what it takes from ingest.

Two nodes, exactly once, each a worker on a directory of its own; the store counts records per key. Its input and its
changelog are written first as a worker would have left them (`bench_recovery.fill`).

- follow: a node that comes reads its half of the changelog before it joins: ≥ 300,000 records/s.
- cost: both nodes process the same records without and with one standby of each task, in turns. What the standbys add
  to the processor time of both, ÷ what it is without: ≤ 0.5. Ingest with ÷ without, on the same cores: ≥ 0.75.
- loss: one of three nodes with a standby each is killed, worker and server, while 10,000 records a second come; under
  each guarantee. Until another one answers for its task with `require_active`: the session's timeout + 2 s; from when
  the group gives that one the task until it runs: ≤ 1 s. Who is asked 20 times a second for what a standby may answer
  leaves nobody without an answer for longer than 1.5 s. Each count at its Position is compared in the end.

`bench_standbys.py RECORDS` takes another number of records of the changelog.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

from bench_recovery import KEYS, PARTITIONS, RECORDS, Feeder, Input, fill
from cores import cpu_s
from figures import at_least, at_most
from http_client import Connection
from processes import answers, free_port, until
from recovery_app import made

from stateline.deployment.workers.instance_file import read_instances
from stateline.log import Log
from stateline.log.kafka import KafkaLog
from stateline_store import TopicPartition
from support.kafka.kafka_broker import KafkaBroker

SESSION_MS = 10_000
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly_once_v2", "at_least_once"
INGESTED, ROUNDS = 1_000_000, 5
_ASKED_PER_S = 20
_CHECKED = 50  # keys of each partition
_COMMITTED = "isolation_level=read_committed"
_RUNS = re.compile(r"a standby here until now, runs after ([\d.]+) s")
_HERE = Path(__file__).parent
_RESTING_CORES = 0.15  # of a worker that has nothing to do
APPLICATION = made("store").application_id


class Node:
    """One of them: its directory, and its worker while it runs. `program` is what Python runs."""

    program: Sequence[str] = ("-m", "stateline")

    def __init__(self, servers: str, root: Path, name: str, standbys: int, guarantee: str = EXACTLY_ONCE) -> None:
        self.name, self.directory = name, root / name
        self.directory.mkdir()
        self.output = root / f"{name}.txt"
        self.settings = {
            "bootstrap.servers": servers,
            "state.dir": self.directory,
            "node.name": name,
            "processing.guarantee": guarantee,
            "session.timeout.ms": SESSION_MS,
            "num.standby.replicas": standbys,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.server: subprocess.Popen[bytes] | None = None

    def command(self, name: str, **more: object) -> list[str]:
        settings = {**self.settings, **{key.replace("_", "."): value for key, value in more.items()}}
        pairs = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        return [*self.program, name, "recovery_app:app", *pairs]

    @contextmanager
    def working(self) -> Iterator[None]:
        with self._killed_at_the_end(self.command("worker")) as self.process:
            yield

    @contextmanager
    def serving(self, port: int) -> Iterator[None]:
        with self._killed_at_the_end(self.command("serve", server_port=port)) as self.server:
            yield

    @contextmanager
    def _killed_at_the_end(self, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
        with self.output.open("ab") as output:
            child = subprocess.Popen([sys.executable, *command], cwd=_HERE, stdout=output, stderr=output)
        try:
            yield child
        finally:
            child.kill()
            child.wait()

    def tasks(self) -> list[str]:
        """The states of its tasks."""
        return sorted(self._tasks().values())

    def running(self) -> list[int]:
        """The partitions of the tasks that it runs."""
        return [int(task.partition("_")[2]) for task, state in self._tasks().items() if state == "running"]

    def _tasks(self) -> Mapping[str, str]:
        found = [each.tasks for each in read_instances(self.directory / APPLICATION).values()]
        return found[0] if found else {}

    def cpu_s(self) -> float:
        """Processor time of its worker so far."""
        assert self.process is not None
        return cpu_s(self.process.pid)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Its worker and its server."""
        for each in (self.process, self.server):
            assert each is not None
            each.kill()


def follow(servers: str, root: Path, records: int) -> None:
    """A second node comes: from the first task that it follows until it has joined with its half."""
    one, two = (Node(servers, root, name, 1) for name in ("one", "two"))
    with one.working():
        until(lambda: one.tasks() == ["running"] * PARTITIONS, "the first node has restored all", 0.02)
        with two.working():
            until(lambda: "standby" in two.tasks(), "it follows", 0.002)
            began_s = time.perf_counter()
            until(lambda: "running" in two.tasks(), "it has joined", 0.002)
            at_least("a standby follows, records/s", records / 2 / (time.perf_counter() - began_s), 300_000)


class Places:
    """Where the group stands, and where its input ends."""

    def __init__(self, log: Log) -> None:
        self._log, self._admin = log, log.admin()
        self._input = [TopicPartition("events", p) for p in range(PARTITIONS)]

    @property
    def end(self) -> int:
        """Where it ends in each partition."""
        (found,) = set(self._admin.committed_ends(self._input).values())
        return found

    def is_worked_off(self) -> bool:
        committed = self._admin.committed(APPLICATION, self._input)
        return committed == self._admin.committed_ends(self._input)

    def more(self, input_: Input, count: int) -> None:
        """So many records more of input."""
        with closing(self._log.producer()) as producer:
            now_ms = time.time_ns() // 1_000_000
            for partition, keys in enumerate(input_.keys):
                rows = [(keys[n % len(keys)], b"v", now_ms) for n in range(count // PARTITIONS)]
                producer.produce_all("events", partition, rows)
            producer.flush()

    def close(self) -> None:
        self._admin.close()


def ingest(servers: str, log: Log, root: Path, input_: Input, standbys: int) -> tuple[float, float]:
    """Records per second, and processor seconds of both nodes for all of them."""
    nodes = [Node(servers, root, name, standbys) for name in ("one", "two")]
    settled = sorted(["running"] * (PARTITIONS // 2) + ["standby"] * (PARTITIONS // 2 * standbys))
    with ExitStack() as stack, closing(Places(log)) as places:
        for node in nodes:
            stack.enter_context(node.working())
        until(lambda: all(node.tasks() == settled for node in nodes), "both have their tasks", 0.1)
        until(lambda: all(map(_rests, nodes)), "standbys have read what there was", 0.1)
        for node in nodes:
            node.send(signal.SIGSTOP)
        places.more(input_, INGESTED)
        before = sum(node.cpu_s() for node in nodes)
        began_s = time.perf_counter()
        for node in nodes:
            node.send(signal.SIGCONT)
        until(places.is_worked_off, "all is processed", 0.02)
        rate = INGESTED / (time.perf_counter() - began_s)
        time.sleep(2.0)
        return rate, sum(node.cpu_s() for node in nodes) - before


def _rests(node: Node) -> bool:
    """Whether it has nothing to do for a second."""
    before_s = node.cpu_s()
    time.sleep(1.0)
    return node.cpu_s() - before_s < _RESTING_CORES


def cost(servers: str, log: Log, root: Path, input_: Input) -> None:
    found: dict[int, list[tuple[float, float]]] = {0: [], 1: []}
    for number in range(ROUNDS):
        for standbys, seen in sorted(found.items(), reverse=number % 2 == 1):  # what a machine does meanwhile hits both
            place = root / f"ingest-{number}-{standbys}"
            place.mkdir()
            seen.append(ingest(servers, log, place, input_, standbys))
            print(f"  {standbys} standbys: {seen[-1][0]:,.0f} records/s, {seen[-1][1]:.1f} s of processor", flush=True)
            time.sleep(SESSION_MS / 1000 + 2)  # their names are the group's until then
    pairs = [*zip(found[0], found[1], strict=True)]
    at_most("what standbys add ÷ what owners cost", statistics.median(b[1] / a[1] - 1 for a, b in pairs), 0.5)
    at_least("ingest with a standby each ÷ without", statistics.median(b[0] / a[0] for a, b in pairs), 0.75)


class Asker(threading.Thread):
    """Asks for one key at nodes in turn, `_ASKED_PER_S` times a second, from its start until the block ends."""

    def __init__(self, ports: Sequence[int], key: bytes, accepted: str) -> None:
        super().__init__(name=accepted)
        self._ports, self._path = ports, f"/v1/stores/counts/keys/{key.decode()}?{_COMMITTED}&{accepted}"
        self._done = threading.Event()
        self._answered_s: list[float] = []

    def run(self) -> None:
        while not self._done.wait(1 / _ASKED_PER_S):
            if answers(self._ports[len(self._answered_s) % len(self._ports)], self._path):
                self._answered_s.append(time.perf_counter())

    @property
    def longest_gap_s(self) -> float:
        """For how long there was no answer, up to now."""
        return max(after - before for before, after in pairwise([*self._answered_s, time.perf_counter()]))

    def __enter__(self) -> Asker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()


def _are_settled(nodes: Sequence[Node]) -> bool:
    """Whether all have joined, and each task runs and is followed once."""
    states = Counter(state for node in nodes for state in node.tasks())
    return all(node.running() for node in nodes) and states == {"running": PARTITIONS, "standby": PARTITIONS}


def _said(node: Node) -> list[float]:
    """How long each promotion took, as its worker has said until now."""
    return [float(each) for each in _RUNS.findall(node.output.read_text())]


def loss(servers: str, log: Log, root: Path, input_: Input, guarantee: str) -> None:
    """One of three nodes is killed, its worker and its server, while the others are asked for what it had."""
    (root / "secret").write_text("of these nodes alone")
    (root / "secret").chmod(0o600)
    nodes = [Node(servers, root, name, 1, guarantee) for name in ("one", "two", "three")]
    ports = [free_port() for _ in nodes]
    with ExitStack() as stack, closing(Places(log)) as places:
        for node, port in zip(nodes, ports, strict=True):
            node.settings["node.peer.secret.file"] = root / "secret"
            stack.enter_context(node.working())
            stack.enter_context(node.serving(port))
        until(lambda: _are_settled(nodes), "all is settled", 0.1)
        time.sleep(SESSION_MS / 1000)
        until(lambda: _are_settled(nodes), "all is settled still", 0.1)
        lost, left = nodes[0], nodes[1:]
        partition = lost.running()[0]
        key = input_.keys[partition][0]
        bound = quote(json.dumps({"events": {str(partition): 0}}))
        feeding = stack.enter_context(ExitStack())
        feeding.enter_context(Feeder(log, input_, places.end))
        asked = [
            stack.enter_context(Asker(ports[1:], key, accepted))
            for accepted in ("max_staleness_ms=60000", f"position_bound={bound}&wait_ms=0")
        ]
        time.sleep(2.0)
        before = [len(_said(node)) for node in left]
        killed_s = time.perf_counter()
        lost.kill()
        owner = f"/v1/stores/counts/keys/{key.decode()}?{_COMMITTED}&require_active=true"
        until(lambda: answers(ports[1], owner), "another node has the task", 0.005)
        took_s = time.perf_counter() - killed_s
        what = f"({guarantee})"
        beyond_s = took_s - SESSION_MS / 1000
        at_most(f"after the loss of a node its tasks answer beyond the session {what}", beyond_s, 2, " s")
        promoted = [s for node, count in zip(left, before, strict=True) for s in _said(node)[count:]]
        at_most(f"promotion of a standby {what}", max(promoted), 1, " s")
        time.sleep(1.0)
        for each in asked:
            at_most(f"longest gap of {each.name.partition('=')[0]} {what}", each.longest_gap_s, 1.5, " s")
        feeding.close()
        until(places.is_worked_off, "all is processed", 0.1)
        most = math.inf if guarantee == AT_LEAST_ONCE else 0
        wrong = [found for found in checked(ports[1], input_) if not 0 <= found[2] <= most]
        at_most(f"counts that are not those of their Position {what}", len(wrong), 0, f" of {PARTITIONS * _CHECKED}")
        if wrong:
            print(f"  key, count, records too many: {wrong[:5]}", flush=True)


def checked(port: int, input_: Input) -> Iterator[tuple[str, int, int]]:
    """Keys of each partition, their counts, and how many more these are than there were records."""
    with Connection(port) as connection:
        for partition, keys in enumerate(input_.keys):
            for number in range(0, len(keys), len(keys) // _CHECKED)[:_CHECKED]:
                status, body = connection.get(f"/v1/stores/counts/keys/{keys[number].decode()}?{_COMMITTED}")
                assert status == 200, body
                told = json.loads(body)
                offset = told["position"]["events"][str(partition)]
                yield told["key"], told["value"], told["value"] - input_.count(partition, number, offset)


def main(arguments: Sequence[str]) -> None:
    records = int(arguments[0]) if arguments else RECORDS
    input_ = Input(min(KEYS, records // 10))
    os.environ["RECOVERY_JOB"] = "store"
    with KafkaBroker() as broker, closing(KafkaLog(broker.bootstrap_servers)) as log:
        fill(log, records, input_)
        servers = broker.bootstrap_servers
        with tempfile.TemporaryDirectory() as directory:
            follow(servers, Path(directory), records)
        time.sleep(SESSION_MS / 1000 + 2)
        for guarantee in (EXACTLY_ONCE, AT_LEAST_ONCE):
            with tempfile.TemporaryDirectory() as directory:
                loss(servers, log, Path(directory), input_, guarantee)
            time.sleep(SESSION_MS / 1000 + 2)
    with KafkaBroker() as broker, closing(KafkaLog(broker.bootstrap_servers)) as log:
        fill(log, KEYS, input_)
        with tempfile.TemporaryDirectory() as directory:
            cost(broker.bootstrap_servers, log, Path(directory), input_)


if __name__ == "__main__":
    main(sys.argv[1:])
