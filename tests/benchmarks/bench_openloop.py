"""Committed reads of a key at a fixed rate (open loop, 64 connections), while both sides follow an even ingest: against
Kafka Streams with one stream thread behind the JDK's HTTP server, in one run: once with transactional stores, and once
without. The one with the lower p99 is compared.

Asked 1,000 and 5,000 times a second, beside 0, 20,000 and 50,000 records a second, in turns; whoever is not measured
stands still. p50 and longest at most Kafka Streams', p99 at most a quarter of it at 1,000 a second and half of it at
5,000. What it costs is the processor time of the side, and of the broker beside it.

Then Stateline alone. The first answer after ten seconds without questions, beside 50,000 records a second: at most
10 ms. Uncommitted reads beside 50,000 records a second: p99 at most 10 ms; beside a backlog: 20 ms. Processor seconds
of the server for a million questions. What worker and server take that have nothing to do: less than 1 % of a core.

Then a server with a scan process, which nobody asks anything large, beside one without, in three turns: median of the
answers and processor time of a question at most 1.05 times those of the one without.

Then Stateline beside a bare ASGI application that does the same read (`bare_asgi`), at 5,000 a second: at most 0.6 of
its processor time. And Stateline at 1,000 a second beside 50,000 records a second: at most twice the processor time of
a read beside none.

`bench_openloop.py NAME …` takes some of: rates, pauses, uncommitted, idle, processes, scanning, bare.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cores import awake, cpu_s, family, go_on, stand_still
from figures import at_least, at_most, percentile
from http_client import Connection
from key_server import build, key_server
from processes import Table, answers, free_port, process, server_process, until, until_committed, until_ready, worker
from topic import PARTITIONS, TOPIC, Group, key_of, loaded_broker, produce, produce_evenly

from stateline.log.kafka import KafkaLog
from stateline_store import TopicPartition
from support.kafka.java_streams import BY_STORES

KEYS = 200_000
SECONDS = float(os.environ.get("SECONDS", "12"))
ROUNDS = int(os.environ.get("ROUNDS", "1"))
RATES = (1_000, 5_000)
INGEST = (0, 20_000, 50_000)
# Processor seconds for a million questions; beside ingest half of what it took before servers followed by themselves.
MOST_SERVER_S = {(5_000, 0): 40.0, (5_000, 50_000): 41.5, (1_000, 50_000): 102.5}
PAUSES, PAUSE_S = 6, 10.0
IDLE_S = 20.0
SESSION_MS = 120_000

PEERS = {f"Kafka Streams, {javas} stores": javas for javas in BY_STORES}
OURS = f"/v1/stores/{TOPIC}/keys/%s?isolation_level=read_committed"
UNCOMMITTED = f"/v1/stores/{TOPIC}/keys/%s?isolation_level=read_uncommitted"
THEIRS = "/keys/%s"


@dataclass
class Side:
    """Something that answers: its processes by what they are, and its consumer group."""

    name: str
    path: str
    port: int
    processes: Mapping[str, int]
    group: Group

    def cpu_s(self) -> dict[str, float]:
        """Processor seconds that each has taken."""
        return {name: sum(map(_cpu_s, family(pid))) for name, pid in self.processes.items()}


def _cpu_s(pid: int) -> float:
    try:
        return cpu_s(pid)
    except FileNotFoundError:
        return 0.0


@dataclass
class Scene:
    """What runs."""

    servers: str
    broker: int
    root: Path
    sides: dict[str, Side] = field(default_factory=dict)

    def __post_init__(self) -> None:
        chosen = random.Random(7)
        self.keys = self.root / "keys"
        self.keys.write_text("\n".join(key_of(chosen.randrange(KEYS)).decode() for _ in range(20_000)))

    @contextmanager
    def running(self, side: Side) -> Iterator[None]:
        """This side alone, when it has caught up."""
        with awake(side.processes.values()):
            until_committed(side.group, self.records())
            self.ask(side, 1_000, 2.0)
            yield

    def records(self) -> int:
        with closing(KafkaLog(self.servers)) as log, closing(log.admin()) as admin:
            return sum(admin.log_end(TopicPartition(TOPIC, partition)) for partition in range(PARTITIONS))

    @contextmanager
    def ingesting(self, rate: float, seconds: float) -> Iterator[None]:
        """A producer of its own writes so many records a second, for so long."""
        if not rate:
            yield
            return
        command = [sys.executable, __file__, "produce", self.servers, str(rate), str(time.monotonic() + seconds)]
        child = subprocess.Popen(command)
        try:
            time.sleep(1.5)  # it has begun
            yield
        finally:
            assert child.wait(120) == 0

    def ask(self, side: Side, rate: float, seconds: float, path: str = "") -> array[float]:
        """Seconds of each answer, from when the question was due."""
        output = self.root / "taken"
        command = ["asker.py", str(rate), str(seconds), str(output), path or side.path, str(side.port), str(self.keys)]
        with process(command, self.root / "asker.txt") as child:
            child.wait()
        return array("d", output.read_bytes())


@dataclass
class Measured:
    """One side at one rate."""

    taken: array[float]
    cpu_s: dict[str, float]
    broker_s: float
    wall_s: float
    records: int

    @property
    def p50_ms(self) -> float:
        return statistics.median(self.taken) * 1000

    @property
    def p99_ms(self) -> float:
        return percentile(self.taken, 0.99) * 1000

    @property
    def max_ms(self) -> float:
        return max(self.taken) * 1000

    def __str__(self) -> str:
        cpu = ", ".join(f"{name} {used / self.wall_s * 100:.0f} %" for name, used in self.cpu_s.items())
        return (
            f"p50 {self.p50_ms:.2f} ms, p99 {self.p99_ms:.1f} ms, longest {self.max_ms:.0f} ms; of a core: {cpu}, "
            f"broker {self.broker_s / self.wall_s * 100:.0f} %; {self.records / self.wall_s:,.0f} records/s"
        )


def measure(scene: Scene, side: Side, rate: float, ingest: float, path: str = "") -> Measured:
    with scene.running(side), scene.ingesting(ingest, SECONDS + 4):
        before, broker_s, began_s = side.cpu_s(), _cpu_s(scene.broker), time.monotonic()
        records = side.group.committed()
        taken = scene.ask(side, rate, SECONDS, path)
        wall_s, after = time.monotonic() - began_s, side.cpu_s()
        used = {name: after[name] - before[name] for name in after}
        return Measured(
            taken, used, _cpu_s(scene.broker) - broker_s, wall_s, side.group.committed() - records
        )  # fmt: skip


def rates(scene: Scene) -> None:
    """Each side at each rate, beside each ingest. The peer is the one of the two with the lower p99."""
    for ingest in INGEST:
        for rate in RATES:
            pairs = []
            for _ in range(ROUNDS):
                found = {name: measure(scene, scene.sides[name], rate, ingest) for name in ("Stateline", *PEERS)}
                for name, each in found.items():
                    print(f"  {rate:,}/s beside {ingest:,}/s: {name} {each}", flush=True)
                theirs = min((each for name, each in found.items() if name in PEERS), key=lambda each: each.p99_ms)
                pairs.append((found["Stateline"], theirs))
            what = f"at {rate:,}/s beside {ingest:,} records/s ÷ Kafka Streams'"
            share = 0.25 if rate == RATES[0] else 0.5
            at_most(f"p50 {what}", statistics.median(o.p50_ms / t.p50_ms for o, t in pairs), 1)
            at_most(f"p99 {what}", statistics.median(o.p99_ms / t.p99_ms for o, t in pairs), share)
            at_most(f"longest {what}", statistics.median(o.max_ms / t.max_ms for o, t in pairs), 1)
            if (rate, ingest) in MOST_SERVER_S:
                million_s = statistics.median(o.cpu_s["server"] / len(o.taken) * 1e6 for o, _ in pairs)
                what_for = f"server's processor seconds for a million at {rate:,}/s beside {ingest:,}"
                at_most(what_for, million_s, MOST_SERVER_S[rate, ingest])
            if ingest:
                per = [(o.broker_s / o.records) / (t.broker_s / t.records) for o, t in pairs]
                at_most(f"broker's processor time per record {what}", statistics.median(per), 1)


def pauses(scene: Scene) -> None:
    """The first answers after ten seconds without questions."""
    side, firsts, all_ = scene.sides["Stateline"], [], []
    with scene.running(side), scene.ingesting(50_000, PAUSES * (PAUSE_S + 0.2) + 3):
        for _ in range(PAUSES):
            time.sleep(PAUSE_S)
            taken = []
            with Connection(side.port) as one:
                for number in range(2 * PARTITIONS):
                    began_s = time.monotonic()
                    status, body = one.get(side.path % key_of(number).decode())
                    taken.append(time.monotonic() - began_s)
                    assert status == 200, body
            firsts.append(taken[0] * 1000)
            all_.append(max(taken) * 1000)
    print("  after a pause, the first: " + ", ".join(f"{each:.1f}" for each in firsts) + " ms", flush=True)
    print(f"  the longest of the first {2 * PARTITIONS}: " + ", ".join(f"{each:.1f}" for each in all_) + " ms")
    at_most("first answer after 10 s without questions", statistics.median(firsts), 10, " ms")


def uncommitted(scene: Scene) -> None:
    """What is staged, while the worker is busy."""
    side = scene.sides["Stateline"]
    found = measure(scene, side, 1_000, 50_000, UNCOMMITTED)
    print(f"  uncommitted at 1,000/s beside 50,000 records/s: {found}")
    at_most("p99 of uncommitted reads beside 50,000 records/s", found.p99_ms, 10, " ms")
    with scene.running(side):
        stand_still([side.processes["worker"]])
        produce(scene.servers, 4_000_000, KEYS)
        go_on([side.processes["worker"]])
        time.sleep(1.0)
        taken = scene.ask(side, 200, 4.0, UNCOMMITTED)
        assert side.group.committed() < scene.records(), "the backlog has to be larger"
    at_most("p99 of uncommitted reads beside a backlog", percentile(taken, 0.99) * 1000, 20, " ms")


def idle(scene: Scene) -> None:
    """Nothing to do."""
    side = scene.sides["Stateline"]
    with scene.running(side):
        time.sleep(3)
        before = side.cpu_s()
        time.sleep(IDLE_S)
        for name, used in side.cpu_s().items():
            at_most(f"an idle {name}, of a core", (used - before[name]) / IDLE_S * 100, 1, " %")


def processes(scene: Scene) -> None:
    """Two server processes, beside one."""
    one, two = scene.sides["Stateline"], scene.sides["Stateline, two server processes"]
    for ingest in (0, 50_000):
        found = [measure(scene, side, 5_000, ingest) for side in (one, two)]
        for side, each in zip((one, two), found, strict=True):
            print(f"  5,000/s beside {ingest:,}/s: {side.name} {each}", flush=True)
        at_least(f"one's p99 ÷ two's beside {ingest:,} records/s", found[0].p99_ms / found[1].p99_ms, 0.9)


def scanning(scene: Scene) -> None:
    """A scan process that has nothing to do, beside none."""
    sides = [scene.sides[name] for name in ("Stateline", NO_SCANS)]
    for rate, ingest in ((1_000, 0), (5_000, 0), (1_000, 50_000)):
        pairs = []
        for turn in range(3):
            found = {side.name: measure(scene, side, rate, ingest) for side in (sides[::-1] if turn % 2 else sides)}
            for name, each in found.items():
                print(f"  {rate:,}/s beside {ingest:,}/s: {name} {each}", flush=True)
            pairs.append((found["Stateline"], found[NO_SCANS]))
        what = f"at {rate:,}/s beside {ingest:,} records/s with a scan process ÷ without"
        at_most(f"p50 {what}", statistics.median(o.p50_ms / t.p50_ms for o, t in pairs), 1.05)
        per = [(o.cpu_s["server"] / len(o.taken)) / (t.cpu_s["server"] / len(t.taken)) for o, t in pairs]
        at_most(f"the server's processor time {what}", statistics.median(per), 1.05)


def bare(scene: Scene) -> None:
    """A bare ASGI application beside Stateline, and Stateline beside an ingest."""
    ours, theirs = scene.sides["Stateline"], scene.sides[BARE]

    def cost_us(side: Side, rate: float, ingest: float) -> float:
        found = measure(scene, side, rate, ingest)
        print(f"  {rate:,}/s beside {ingest:,}/s: {side.name} {found}", flush=True)
        return found.cpu_s["server"] / len(found.taken) * 1e6

    pairs = [(cost_us(ours, 5_000, 0), cost_us(theirs, 5_000, 0)) for _ in range(3)]
    what = "the server's processor time of a read at 5,000/s ÷ a bare ASGI application's"
    at_most(what, statistics.median(o / t for o, t in pairs), 0.6)
    pairs = [(cost_us(ours, 1_000, 50_000), cost_us(ours, 1_000, 0)) for _ in range(3)]
    what = "the server's processor time of a read at 1,000/s beside 50,000 records/s ÷ beside none"
    at_most(what, statistics.median(busy / quiet for busy, quiet in pairs), 2)


PARTS = {
    "rates": rates, "pauses": pauses, "uncommitted": uncommitted, "idle": idle, "processes": processes,
    "scanning": scanning, "bare": bare,
}  # fmt: skip
NO_SCANS = "Stateline, no scan process"
BARE = "a bare ASGI application"


def start(scene: Scene, stack: ExitStack, *, peer: bool, two: bool, no_scans: bool, with_bare: bool) -> None:
    """All sides, with all keys, standing still."""
    servers, root = scene.servers, scene.root
    group = stack.enter_context(closing(Group(servers)))
    keeper = stack.enter_context(worker(servers, root, {"session.timeout.ms": SESSION_MS}))
    port, child = stack.enter_context(server_process(servers, root))
    running = {"worker": keeper.pid, "server": child.pid}
    scene.sides["Stateline"] = Side("Stateline", OURS, port, running, group)
    if two:
        name = "Stateline, two server processes"
        port, child = stack.enter_context(server_process(servers, root, {"server.processes": 2}))
        running = {"worker": keeper.pid, "server": child.pid}
        scene.sides[name] = Side(name, OURS, port, running, group)
    if no_scans:
        port, child = stack.enter_context(server_process(servers, root, {"server.scan.processes": 0}))
        running = {"worker": keeper.pid, "server": child.pid}
        scene.sides[NO_SCANS] = Side(NO_SCANS, OURS, port, running, group)
    if peer:
        class_path = build(root / "build")
        for name, javas in PEERS.items():
            theirs = stack.enter_context(key_server(class_path, servers, root, 1, javas))
            theirs.until_ready()
            theirs_group = stack.enter_context(closing(Group(servers, theirs.group)))
            side = Side(name, THEIRS, max(theirs.ports.values()), {name: theirs.process.pid}, theirs_group)
            scene.sides[name] = side
            until_committed(theirs_group, KEYS)
            best_pool(scene, side, theirs.ports)
    with closing(Table(root)) as table:
        table.until_all(group, KEYS)
    if with_bare:
        port = free_port()
        child = stack.enter_context(process(["bare_asgi.py", str(root), str(port)], root / "bare.txt"))
        until(lambda: answers(port, f"/keys/{key_of(0).decode()}"), "the bare application answers", 0.05)
        scene.sides[BARE] = Side(BARE, THEIRS, port, {"worker": keeper.pid, "server": child.pid}, group)
    for side in scene.sides.values():
        if side.path == OURS:
            until_ready(side.port)
    for side in scene.sides.values():
        stack.callback(go_on, side.processes.values())
        stand_still(side.processes.values())


def best_pool(scene: Scene, side: Side, ports: Mapping[int, int]) -> None:
    """Let Kafka Streams answer with the number of threads that is best for it, warm."""
    found = {}
    for port in [*ports.values()] * 2:
        side.port = port
        found[port] = percentile(scene.ask(side, 5_000, 3.0), 0.99)
    side.port = min(found, key=lambda port: found[port])


def main() -> None:
    wanted = sys.argv[1:] or list(PARTS)
    with ExitStack() as stack:
        servers = stack.enter_context(loaded_broker(KEYS, KEYS))
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        scene = Scene(servers, broker_of(servers), root)
        peer, two, no_scans = ("rates" in wanted, "processes" in wanted, "scanning" in wanted)
        start(scene, stack, peer=peer, two=two, no_scans=no_scans, with_bare="bare" in wanted)
        for name in wanted:
            PARTS[name](scene)


def broker_of(servers: str) -> int:
    """The broker's process: a child of this one."""
    (found,) = [pid for pid in family(os.getpid()) if "kafka.Kafka" in Path(f"/proc/{pid}/cmdline").read_text()]
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["produce"]:
        produce_evenly(sys.argv[2], float(sys.argv[3]), KEYS, float(sys.argv[4]))
    else:
        main()
