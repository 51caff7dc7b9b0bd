"""Committed point queries over HTTP against Kafka Streams: the same topic as a timestamped table in RocksDB, asked by
a TimestampedKeyQuery behind the JDK's HTTP server. Requests per second, Stateline ÷ Kafka Streams: idle at least 1;
while each ingests at full speed at least 3, and p99 at most a quarter.

Stateline is a worker and `stateline serve` with one process and with two. Kafka Streams is a process with one stream
thread and with two, with transactional stores and without. One of the six is measured at a time, and the others stand
still (SIGSTOP). wrk asks for keys at random over 32 connections: first with nothing to ingest, then while each works
off a backlog that was written before. Between the two all ingest the same: what a producer writes at an even rate that
Kafka Streams can follow. "free" is on all cores, "pinned" with all processes of a side on one core, and broker and wrk
on the others. Kafka Streams answers with 2, 4 or 8 threads, whichever give the most. With transactional stores its
reads are committed; without, they see what is not committed. The best of each side is compared.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from cores import CORES, awake, go_on, pin, stand_still
from figures import at_least, at_most
from http_client import Connection
from key_server import build, key_server
from processes import Table, server_process, until_committed, until_ready, worker
from topic import PARTITIONS, TOPIC, Group, key_of, loaded_broker, produce, produce_evenly
from wrk import Load, load

from stateline.log.kafka import KafkaLog
from stateline_store import TopicPartition
from support.kafka.java_streams import BY_STORES

KEYS = 200_000
BACKLOG = 5_000_000
ROUNDS = 3
IDLE_S = 1
BUSY_S = 2
EVEN_RATE = 50_000
SESSION_MS = 120_000

OURS = f"/v1/stores/{TOPIC}/keys/%s?isolation_level=read_committed"
THEIRS = "/keys/%s"


@dataclass
class Side:
    """Something that answers: its ports (by number of threads, if several), processes and consumer group."""

    name: str
    path: str
    ports: dict[int, int]
    processes: list[int]
    group: Group

    @contextmanager
    def working(self, layout: str) -> Iterator[None]:
        """The side runs, placed on its cores, and has caught up with whatever it missed while it stood still."""
        place(layout, self.processes)
        with awake(self.processes):
            time.sleep(0.2)
            with Connection(self.ports[min(self.ports)]) as connection:
                for number in range(20 * PARTITIONS):
                    status, body = connection.get(self.path % key_of(number).decode())
                    assert status == 200, body
            yield

    def load(self, threads: int, seconds: int, script: Path) -> Load:
        """What wrk sees."""
        return load(self.ports[threads], self.path % "key-%08d", KEYS, seconds, script)


def place(layout: str, side: list[int]) -> None:
    """Everything on all cores, or the side on the first one and all the rest, wrk and broker, on the others."""
    pin([os.getpid()], CORES if layout == "free" else CORES[1:])
    if layout == "pinned":
        pin(side, CORES[:1])


LAYOUTS = ("free", "pinned") if len(CORES) > 1 else ("free",)


class Turns:
    """Loads of all sides, in turns."""

    def __init__(self, sides: list[Side], script: Path) -> None:
        self._sides = sides
        self.script = script
        self.loads: dict[str, list[Load]] = {}
        self.ingested: dict[str, list[float]] = {}

    def take(self, layout: str, seconds: int, pools: dict[str, int]) -> None:
        """Measure every side so often, anew; and how many records per second it ingests meanwhile."""
        self.loads = {side.name: [] for side in self._sides}
        self.ingested = {side.name: [] for side in self._sides}
        for _ in range(ROUNDS):
            for side in self._sides:
                with side.working(layout):
                    began, before = time.monotonic(), side.group.committed()
                    self.loads[side.name].append(side.load(pools[side.name], seconds, self.script))
                    rate = (side.group.committed() - before) / (time.monotonic() - began)
                    self.ingested[side.name].append(rate)

    def best_pools(self, seconds: int) -> dict[str, int]:
        """With how many threads each side answers the most."""
        return {side.name: self._best_pool(side, seconds) for side in self._sides}

    def _best_pool(self, side: Side, seconds: int) -> int:
        if len(side.ports) == 1:
            return min(side.ports)
        with side.working("free"):
            found = {threads: side.load(threads, seconds, self.script).rate for threads in side.ports}
        print(f"  {side.name}: " + ", ".join(f"{threads} threads {rate:,.0f}/s" for threads, rate in found.items()))
        return max(found, key=lambda threads: found[threads])

    def report(self, what: str) -> tuple[list[Load], list[Load]]:
        """Print the figures; the loads of the better of Stateline's sides and of Kafka Streams', by their rates."""
        best: dict[str, list[Load]] = {}
        for side in self._sides:
            loads, ingested = self.loads[side.name], statistics.median(self.ingested[side.name])
            print(f"  {what}: {side.name} {middle(loads)}; {ingested:,.0f} records/s ingested", flush=True)
            if side.path not in best or middle(loads).rate > middle(best[side.path]).rate:
                best[side.path] = loads
        return best[OURS], best[THEIRS]


def middle(loads: list[Load]) -> Load:
    """The median of each figure."""
    return Load(
        statistics.median(each.rate for each in loads),
        statistics.median(each.median_ms for each in loads),
        statistics.median(each.p99_ms for each in loads),
    )


def ratio(ours: Iterable[float], theirs: Iterable[float]) -> float:
    """The median of the ratios of rounds."""
    return statistics.median(our / their for our, their in zip(ours, theirs, strict=True))


def rates(loads: list[Load]) -> list[float]:
    """Requests per second of each."""
    return [each.rate for each in loads]


def slowest(loads: list[Load]) -> list[float]:
    """The p99 of each, in ms."""
    return [each.p99_ms for each in loads]


def compare_idle(turns: Turns) -> None:
    """Measure and print while there is nothing to ingest."""
    pools = turns.best_pools(BUSY_S)  # long enough for Java's compiler
    for layout in LAYOUTS:
        turns.take(layout, IDLE_S, pools)
        ours, theirs = turns.report(f"idle, {layout}")
        at_least(f"{layout}: requests per second idle ÷ Kafka Streams", ratio(rates(ours), rates(theirs)), 1)


def compare_at_one_rate(turns: Turns, sides: list[Side], servers: str) -> None:
    """The same while each side follows a producer that writes `EVEN_RATE` records per second: Kafka Streams with one
    stream thread, and Stateline with two server processes."""
    chosen = [*sides[: len(BY_STORES)], sides[-1]]
    pools, path = turns.best_pools(IDLE_S), turns.script
    found: dict[str, list[Load]] = {side.name: [] for side in chosen}
    place("free", [])
    with ProcessPoolExecutor(1) as pool:
        for side in chosen * ROUNDS:
            with side.working("free"):
                until_committed(side.group, records(servers))
                producing = pool.submit(produce_evenly, servers, EVEN_RATE, KEYS, time.monotonic() + BUSY_S + 1)
                time.sleep(0.5)
                found[side.name].append(side.load(pools[side.name], BUSY_S, path))
                producing.result()
    for name, loads in found.items():
        print(f"  both ingest {EVEN_RATE:,} records/s: {name} {middle(loads)}", flush=True)
    *javas, ours = found.values()
    theirs = max(javas, key=lambda loads: middle(loads).rate)
    at_least("requests per second at the same ingest ÷ Kafka Streams", ratio(rates(ours), rates(theirs)), 3)
    at_most("p99 at the same ingest ÷ Kafka Streams", ratio(slowest(ours), slowest(theirs)), 0.25)


def records(servers: str) -> int:
    """How many records the topic has."""
    with closing(KafkaLog(servers)) as log, closing(log.admin()) as admin:
        return sum(admin.log_end(TopicPartition(TOPIC, partition)) for partition in range(PARTITIONS))


def compare_busy(turns: Turns, sides: list[Side], servers: str) -> None:
    """The same while each side works off a backlog. Raises `RuntimeError` when one was through with it."""
    pools: dict[str, int] = {}
    for layout in LAYOUTS:
        place("free", [])
        produce(servers, BACKLOG, KEYS)
        pools = pools or turns.best_pools(IDLE_S)
        turns.take(layout, BUSY_S, pools)
        if any(side.group.committed() >= records(servers) for side in sides):
            raise RuntimeError("A side was through with the backlog: BACKLOG has to be larger.")
        ours, theirs = turns.report(f"ingesting, {layout}")
        at_least(f"{layout}: requests per second under ingest ÷ Kafka Streams", ratio(rates(ours), rates(theirs)), 3)
        at_most(f"{layout}: p99 under ingest ÷ Kafka Streams", ratio(slowest(ours), slowest(theirs)), 0.25)


def start(servers: str, state_dir: Path, stack: ExitStack) -> list[Side]:
    """All sides, with all keys in their tables, standing still."""
    sides, class_path = [], build(state_dir / "build")
    for threads, javas in product((1, 2), BY_STORES):
        theirs = stack.enter_context(key_server(class_path, servers, state_dir, threads, javas))
        theirs.until_ready()
        group = stack.enter_context(closing(Group(servers, theirs.group)))
        name = f"Kafka Streams ({javas} stores, {threads} stream thread{'s' * (threads > 1)})"
        sides.append(Side(name, THEIRS, theirs.ports, [theirs.process.pid], group))
    group = stack.enter_context(closing(Group(servers)))
    keeper = stack.enter_context(worker(servers, state_dir, {"session.timeout.ms": SESSION_MS}))
    for processes in (1, 2):
        settings = {"server.processes": processes}
        port, child = stack.enter_context(server_process(servers, state_dir, settings))
        until_ready(port)
        name = f"Stateline ({processes} server process{'es' * (processes > 1)})"
        sides.append(Side(name, OURS, {1: port}, [keeper.pid, child.pid], group))
    for side in sides:
        until_committed(side.group, KEYS)
    with closing(Table(state_dir)) as table:
        table.until_all(group, KEYS)
    for side in sides:
        stack.callback(go_on, side.processes)
        stand_still(side.processes)
    return sides


def main() -> None:
    if shutil.which("wrk") is None:
        sys.exit("wrk is missing: install it (Debian: wrk).")
    with ExitStack() as stack:
        servers = stack.enter_context(loaded_broker(KEYS, KEYS))
        state_dir = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sides = start(servers, state_dir, stack)
        turns = Turns(sides, state_dir / "keys.lua")
        compare_idle(turns)
        compare_at_one_rate(turns, sides, servers)
        compare_busy(turns, sides, servers)


if __name__ == "__main__":
    main()
