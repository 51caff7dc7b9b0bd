"""Stateline's operators beside Kafka Streams 4.4.0 and Quix Streams, on one broker, in one run, in turns.

Each program works off the same topics under an application.id of its own, committing every 100 ms, with one thread or
process unless it says two. The rate is taken from the moment when a fifth has been committed, when Java has compiled
what it runs, to the moment when all is. `bench_streams.py JOB …` runs some of the jobs. Kafka Streams runs with
transactional stores and with its default, and the better of the two is compared.

- table: the newest value of each key, the topic its own changelog: ≥ 5 × Kafka Streams, ≥ 4 × Quix Streams.
- count: records per key, with a changelog: ≥ 2 × Kafka Streams, ≥ 2 × Quix Streams.
- processor: the same count by a function of the application's: ≥ 1.0 × Kafka Streams' count.
- four: count, count in tumbling windows, count in sessions, and a versioned table, all of one topic: ≥ 2 × Kafka
  Streams, which gives the table a changelog, where ours has its topic.
- joined, groupcount, customers (`streams_operators.py`): two streams joined, a table's rows counted by another key, and
  two tables joined by foreign key: ≥ 1.5 × Kafka Streams; peak memory ÷ the JVM's ≤ 0.5.
- guarantee: count exactly once ÷ at least once ≥ 0.8.
- two: count by two workers ÷ by one, as it is.
- memory: peak of the worker's resident memory after a table of 2 million keys ÷ the JVM's ≤ 0.5.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from cores import family_cpu_s, memory_mb
from figures import at_least, at_most
from processes import process, program, until  # finds the tests' modules, too
from streams_operators import OPERATORS, Operator

from stateline.log import NewTopic
from stateline.log.kafka import KafkaLog
from stateline_store import TopicPartition
from support.kafka.java_streams import BY_STORES, TRANSACTIONAL, JavaStreams
from support.kafka.kafka_broker import KafkaBroker

RECORDS, KEYS, PARTITIONS, ROUNDS = 1_000_000, 200_000, 4, 3
BEGUN = 0.2
VALUES = 10_007  # a prime number: keys and values have no common rhythm
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly_once_v2", "at_least_once"
JAVAS = {f"Kafka Streams, {javas} stores": javas for javas in BY_STORES}
INPUTS = {"table": ["table"]}
JAVA_STORES = {
    "table": ["table"],
    "four": ["count", "tumbling", "session", "versionedevents"],
    **{name: [name] for name in OPERATORS},
}
_QUIX = "3.28.1"
_CACHE = Path(__file__).parents[2] / ".cache"
_HERE = Path(__file__).parent


class Bench:
    """A broker with the topics, and how fast programs work them off."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self._log = KafkaLog(servers)
        self._admin = self._log.admin()

    def close(self) -> None:
        self._admin.close()
        self._log.close()

    def fill(self, name: str, records: int, keys: int) -> None:
        """Make a topic of so many records, each key in turn, half a millisecond apart. Each value ends with a number of
        eight digits below `VALUES`, and each key gets another one every time."""
        self._admin.create_topics([NewTopic(name, PARTITIONS)])
        values = [os.urandom(46).hex().encode() + b"%08d" % n for n in range(VALUES)]
        start_ms = time.time_ns() // 1_000_000 - 3_600_000
        with closing(self._log.producer()) as producer:
            for n in range(records):
                key = b"key-%08d" % (n % keys)
                producer.produce(name, key, values[n % VALUES], timestamp_ms=start_ms + n // 2)
            producer.flush()

    def create(self, name: str) -> None:
        """Make an empty topic."""
        self._admin.create_topics([NewTopic(name, PARTITIONS)])

    def rate(self, group: str, topics: Sequence[str], records: int = RECORDS, between: Sequence[str] = ()) -> float:
        """Records of one topic per second, from a fifth to the end of all. `between` has the internal topics, without
        the group's name, in the order in which they are worked off."""
        places = [TopicPartition(name, p) for name in topics for p in range(PARTITIONS)]
        total = records * len(topics)

        def committed() -> int:
            return sum(self._admin.committed(group, places).values())

        until(lambda: committed() >= BEGUN * total, f"{group} has begun", 0.01)
        begun_s, before = time.perf_counter(), committed()
        until(lambda: committed() >= total, f"{group} is at the end", 0.01)
        for name in between:
            self._until_worked_off(group, f"{group}-{name}")
        return (total - before) / len(topics) / (time.perf_counter() - begun_s)

    def _until_worked_off(self, group: str, topic: str) -> None:
        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]

        def is_worked_off() -> bool:
            committed = self._admin.committed(group, places)
            # The end may be a transaction's marker, which no consumer reads.
            return all(committed.get(place, 0) + 2 >= self._admin.log_end(place) for place in places)

        until(is_worked_off, f"{topic} is at the end", 0.01)

    @contextmanager
    def directory(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)

    @contextmanager
    def workers(self, job: str, guarantee: str, number: int = 1, prefix: str = "") -> Iterator[tuple[str, list[int]]]:
        """Stateline's, so many: the group's name, and the processes' ids."""
        group = f"ours-{uuid.uuid4().hex[:8]}"
        pids = []
        with ExitStack() as stack, _environment(STREAMS_JOB=job, STREAMS_ID=group, STREAMS_PREFIX=prefix):
            state_dir = stack.enter_context(self.directory())
            for index in range(number):
                given = {
                    "bootstrap.servers": self.servers,
                    "state.dir": state_dir,
                    "commit.interval.ms": 100,
                    "processing.guarantee": guarantee,
                    "group.instance.id": f"{group}-{index}",
                }
                pairs = [part for name, setting in given.items() for part in ("--set", f"{name}={setting}")]
                command = ["-m", "stateline", "worker", "streams_app:app", "--instance", f"worker-{index}", *pairs]
                pids.append(stack.enter_context(process(command, state_dir / f"worker-{index}.txt")).pid)
            yield group, pids

    @contextmanager
    def java(self, job: str, guarantee: str, javas: str, prefix: str = "") -> Iterator[tuple[str, list[int]]]:
        """Kafka Streams with stores of this kind: the group's name, and the process's id."""
        group = f"java-{uuid.uuid4().hex[:8]}"
        settings = {
            "num.stream.threads": 1,
            "processing.guarantee": guarantee,
            "commit.interval.ms": 100,
            TRANSACTIONAL: BY_STORES[javas],
        }
        with self.directory() as place:
            stores = JAVA_STORES.get(job, ["count"])
            given: Any = {"prefix": prefix, "settings": settings, "java_options": ["-Xmx2g"]}
            with JavaStreams(self.servers, group, stores, place, partitions=PARTITIONS, **given) as streams:
                streams.start()
                yield group, [streams.pid]

    @contextmanager
    def quix(self, job: str, guarantee: str) -> Iterator[tuple[str, list[int]]]:
        """Quix Streams: the group's name, and the process's id."""
        group = f"quix-{uuid.uuid4().hex[:8]}"
        spoken = "exactly-once" if guarantee == EXACTLY_ONCE else "at-least-once"
        with self.directory() as place:
            command = [str(quix_python()), str(_HERE / "quix_peer.py")]
            command += [job, self.servers, group, str(place), spoken]
            with program(command, place / "quix.txt") as child:
                yield group, [child.pid]

    def rates(self, job: str, peers: Mapping[str, Callable[[], object]]) -> dict[str, float]:
        """The median rate of each of these, which run in turns."""
        topics = INPUTS.get(job, ["events"])
        found: dict[str, list[float]] = {name: [] for name in peers}
        for _ in range(ROUNDS):
            for name, start in peers.items():
                with start() as (group, _pids):  # type: ignore[attr-defined]  # all are context managers
                    found[name].append(self.rate(group, topics))
                print(f"  {job}, {name}: {found[name][-1]:,.0f} records/s", flush=True)
        return {name: statistics.median(rates) for name, rates in found.items()}


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]


def quix_python() -> Path:
    """The interpreter of an environment with Quix Streams, made once. Its pins must not meet Stateline's."""
    python = _CACHE / f"quix-{_QUIX}" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", f"quixstreams=={_QUIX}"], check=True)
    return python


def against_peers(bench: Bench, job: str, java: float, quix: float | None) -> None:
    """Exactly once, against Kafka Streams with one thread and Quix Streams."""
    peers: dict[str, Callable[[], object]] = {"Stateline": lambda: bench.workers(job, EXACTLY_ONCE)}
    peers |= {name: partial(bench.java, job, EXACTLY_ONCE, javas) for name, javas in JAVAS.items()}
    if quix is not None:
        peers["Quix Streams"] = lambda: bench.quix(job, EXACTLY_ONCE)
    rates = bench.rates(job, peers)
    at_least(f"{job}, records/s ÷ Kafka Streams'", rates["Stateline"] / max(rates[name] for name in JAVAS), java)
    if quix is not None:
        at_least(f"{job}, records/s ÷ Quix Streams'", rates["Stateline"] / rates["Quix Streams"], quix)


def processor(bench: Bench) -> None:
    peers: dict[str, Callable[[], object]] = {"Stateline": lambda: bench.workers("processor", EXACTLY_ONCE)}
    peers |= {name: partial(bench.java, "count", EXACTLY_ONCE, javas) for name, javas in JAVAS.items()}
    rates = bench.rates("processor", peers)
    best = max(rates[name] for name in JAVAS)
    at_least("a processor that counts ÷ Kafka Streams' count", rates["Stateline"] / best, 1.0)


def guarantee(bench: Bench) -> None:
    rates = bench.rates("count", {g: (lambda g=g: bench.workers("count", g)) for g in (EXACTLY_ONCE, AT_LEAST_ONCE)})  # type: ignore[misc]  # a lambda's defaults have no types
    at_least("count, exactly once ÷ at least once", rates[EXACTLY_ONCE] / rates[AT_LEAST_ONCE], 0.8)


def two(bench: Bench) -> None:
    rates = bench.rates("count", {str(n): (lambda n=n: bench.workers("count", EXACTLY_ONCE, n)) for n in (1, 2)})  # type: ignore[misc]
    print(f"count by two workers ÷ by one, on {os.cpu_count()} cores: {rates['2'] / rates['1']:.2f}", flush=True)


def memory(bench: Bench) -> None:
    del bench  # a broker of its own: the topic has other records
    peaks, records = {}, 2_000_000
    with KafkaBroker() as broker, closing(Bench(broker.bootstrap_servers)) as own:
        own.fill("table", records, records)
        starts = {name: partial(own.java, "table", EXACTLY_ONCE, javas) for name, javas in JAVAS.items()}
        for name, start in {"Stateline": partial(own.workers, "table", EXACTLY_ONCE), **starts}.items():
            with start() as (group, pids):
                own.rate(group, ["table"], records)
                peaks[name] = memory_mb(pids[0])
                print(f"  memory, {name}: {peaks[name]:,.0f} MB", flush=True)
    at_most("memory at 2 million keys ÷ the JVM's", peaks["Stateline"] / min(peaks[name] for name in JAVAS), 0.5)


def operator(bench: Bench, job: str, given: Operator) -> None:
    """Exactly once, against Kafka Streams with one thread, over topics of its own."""
    prefix = f"{job}-"
    for name, (records, keys) in given.topics.items():
        bench.fill(prefix + name, records, keys)
    for name in given.results:
        bench.create(prefix + name)
    topics, records = [prefix + name for name in given.measured], given.topics[given.measured[0]][0]
    peers: dict[str, Any] = {"Stateline": partial(bench.workers, job, EXACTLY_ONCE, prefix=prefix)}
    peers |= {name: partial(bench.java, job, EXACTLY_ONCE, javas, prefix) for name, javas in JAVAS.items()}
    rates: dict[str, list[float]] = {name: [] for name in peers}
    peaks: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(ROUNDS):
        for name, start in peers.items():
            with start() as (group, pids):
                rates[name].append(bench.rate(group, topics, records, given.between))
                peaks[name].append(memory_mb(pids[0]))
                spent_us = family_cpu_s(pids[0]) * 1e6 / (records * len(topics))
            figures = f"{rates[name][-1]:,.0f} records/s, {peaks[name][-1]:,.0f} MB, {spent_us:.0f} µs of processor"
            print(f"  {job}, {name}: {figures} per record, its start included", flush=True)
    rate, peak = ({name: statistics.median(each) for name, each in of.items()} for of in (rates, peaks))
    at_least(f"{job}, records/s ÷ Kafka Streams'", rate["Stateline"] / max(rate[name] for name in JAVAS), 1.5)
    at_most(f"{job}, memory ÷ the JVM's", peak["Stateline"] / min(peak[name] for name in JAVAS), 0.5)


JOBS: dict[str, Callable[[Bench], None]] = {
    "table": lambda bench: against_peers(bench, "table", 5, 4),
    "count": lambda bench: against_peers(bench, "count", 2, 2),
    "processor": processor,
    "four": lambda bench: against_peers(bench, "four", 2, None),
    **{job: partial(operator, job=job, given=given) for job, given in OPERATORS.items()},
    "guarantee": guarantee,
    "two": two,
    "memory": memory,
}


def main() -> None:
    chosen = sys.argv[1:] or list(JOBS)
    with KafkaBroker() as broker, closing(Bench(broker.bootstrap_servers)) as bench:
        if set(chosen) - set(OPERATORS):
            for name in ("events", "table"):
                bench.fill(name, RECORDS, KEYS)
        for job in chosen:
            JOBS[job](bench)


if __name__ == "__main__":
    main()
