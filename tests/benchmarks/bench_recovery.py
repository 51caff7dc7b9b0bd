"""A worker comes back: after kill -9 beside a changelog of 10 million records, and to an empty disk.

The store counts records per key, exactly once. Its input and its changelog are written as a worker would have left
them: one changelog record for each key and commit, with the Position in the last one's headers.

- empty disk: all of the changelog is restored, and all of a table's topic: ≥ 300,000 records/s each.
- kill -9 in the middle of ingest, five times: from the start of the process until an answer over HTTP shows input that
  was not committed when its predecessor died ≤ 2 s; restore < 1 s. Each answer's count is held against its Position.

`bench_recovery.py RECORDS` takes another number of records.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from pathlib import Path

from figures import at_least, at_most
from processes import answers, free_port, process, until  # finds the tests' modules, too
from recovery_app import made

from stateline.deployment.workers.instance_file import read_instances
from stateline.log import Log, NewTopic
from stateline.log.kafka import KafkaLog
from stateline.model.internal_topics import created_topics
from stateline.processing.changelog import position_headers
from stateline.serde.partitioner import home_partition
from stateline_store import Position, TopicPartition
from support.kafka.kafka_broker import KafkaBroker

RECORDS, KEYS, PARTITIONS, COMMIT, ROUNDS = 10_000_000, 1_000_000, 4, 20_000, 5
FED_PER_S = 10_000
_SAID = re.compile(r"^(\S+ \S+) .*: (Restoring|Restored) .*?(\d+) (?:offsets|records)$", re.MULTILINE)
_HERE = Path(__file__).parent


class Input:
    """The keys of each partition, which come in turn: the record at offset n counts its key for the
    n // len(keys) + 1st time."""

    def __init__(self, keys: int) -> None:
        self.keys: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        for number in range(keys):
            key = b"key-%08d" % number
            self.keys[home_partition(key, PARTITIONS)].append(key)

    def key(self, partition: int, offset: int) -> bytes:
        return self.keys[partition][offset % len(self.keys[partition])]

    def count(self, partition: int, first: int, offset: int) -> int:
        """How often the key of the record at offset `first` was there, up to this offset."""
        return (offset - first) // len(self.keys[partition]) + 1 if offset >= first else 0


def fill(log: Log, records: int, input_: Input) -> None:
    """The topics, as workers have left them that have committed everything."""
    with closing(log.admin()) as admin:
        internal = created_topics(made("store").topology())
        topics = [NewTopic(name, PARTITIONS) for name in ("events", "rows")]
        admin.create_topics([*topics, *(NewTopic(t.name, PARTITIONS, t.settings) for t in internal)])
        changelog = internal[0].name
    start_ms = time.time_ns() // 1_000_000 - 3_600_000
    with closing(log.producer()) as producer:
        for first in range(0, records // PARTITIONS, COMMIT):
            offsets = range(first, min(first + COMMIT, records // PARTITIONS))
            for partition, keys in enumerate(input_.keys):
                size = len(keys)
                at = [(keys[n % size], start_ms + n // 10, n // size + 1) for n in offsets]
                producer.produce_all("events", partition, [(key, b"v", ms) for key, ms, _ in at])
                producer.produce_all("rows", partition, [(key, b"%050d" % count, ms) for key, ms, count in at])
                position = Position.of({TopicPartition("events", partition): offsets[-1]})
                rows = [(key, count.to_bytes(8, "big"), ms) for key, ms, count in at]
                producer.produce_all(changelog, partition, rows, position_headers(position))
        producer.flush()
    for job, topic in (("store", "events"), ("table", "rows")):
        with closing(log.consumer(made(job).application_id)) as consumer:
            ends = {TopicPartition(topic, p): records // PARTITIONS for p in range(PARTITIONS)}
            consumer.assign(ends)
            consumer.commit(ends)


class Feeder(threading.Thread):
    """More input, as much in each second, for as long as the block runs."""

    def __init__(self, log: Log, input_: Input, next_offset: int) -> None:
        super().__init__(name="feeder")
        self._log, self._input, self._next = log, input_, next_offset
        self._done = threading.Event()

    def run(self) -> None:
        with closing(self._log.producer()) as producer:
            while not self._done.wait(0.05):
                offsets = range(self._next, self._next + FED_PER_S // PARTITIONS // 20)
                for partition in range(PARTITIONS):
                    now_ms = time.time_ns() // 1_000_000
                    rows = [(self._input.key(partition, n), b"v", now_ms) for n in offsets]
                    producer.produce_all("events", partition, rows)
                producer.flush()
                self._next = offsets.stop

    def __enter__(self) -> Feeder:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()


class Place:
    """A broker with the topics, and the disk of one job."""

    def __init__(self, servers: str, job: str, state_dir: Path) -> None:
        self.servers, self.job, self.state_dir = servers, job, state_dir
        self.output = state_dir / "worker.txt"
        self._application = state_dir / made(job).application_id

    def command(self, name: str, **settings: object) -> list[str]:
        given = {
            "bootstrap.servers": self.servers,
            "state.dir": self.state_dir,
            "processing.guarantee": "exactly_once_v2",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        pairs = [part for name, setting in given.items() for part in ("--set", f"{name}={setting}")]
        return ["-m", "stateline", name, "recovery_app:app", *pairs]

    def until_running(self) -> None:
        """Wait until every task of the worker runs."""
        until(self._runs, "the worker runs all of its tasks", 0.002)

    def _runs(self) -> bool:
        said = read_instances(self._application).get("worker-0")
        return said is not None and list(said.tasks.values()) == ["running"] * PARTITIONS

    def restored(self) -> tuple[int, float]:
        """How many records the worker says that it restored, and in how many seconds, of all tasks together."""
        found = [(datetime.fromisoformat(at), kind, int(n)) for at, kind, n in _SAID.findall(self.output.read_text())]
        begun = [at for at, kind, _ in found if kind == "Restoring"]
        ended = [at for at, kind, _ in found if kind == "Restored"]
        seconds = (max(ended) - min(begun)).total_seconds() if begun else 0.0
        return sum(n for _, kind, n in found if kind == "Restored"), seconds


@contextmanager
def working(place: Place) -> Iterator[None]:
    """A worker until the block ends, killed then."""
    command = [sys.executable, *place.command("worker", group_instance_id="the-worker")]
    with place.output.open("wb") as output:
        worker = subprocess.Popen(command, cwd=_HERE, stdout=output, stderr=output)
    try:
        yield
    finally:
        worker.kill()
        worker.wait()


def from_an_empty_disk(place: Place, records: int) -> None:
    with working(place):
        place.until_running()
    count, seconds = place.restored()
    if count < records * 0.99:
        raise RuntimeError(f"{count:,} of {records:,} records were restored: {place.output.read_text()[-4000:]}")
    at_least(f"restore of a {place.job} from an empty disk, records/s", count / seconds, 300_000)


class Asked:
    """What the server answers of one key, held against what it must be."""

    def __init__(self, port: int, input_: Input) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        self._input, self._path = input_, f"/v1/stores/counts/keys/{input_.key(0, 0).decode()}"

    def offset(self) -> int:
        """How much of the input the committed answer reflects; -1 for none."""
        self._connection.request("GET", f"{self._path}?isolation_level=read_committed")
        answer = self._connection.getresponse()
        body = json.loads(answer.read())
        if answer.status != 200:
            return -1
        offset = int(body["position"]["events"]["0"])
        if body["value"] != (wanted := self._input.count(0, 0, offset)):
            raise RuntimeError(f"The count is {body['value']} at offset {offset}, where it must be {wanted}.")
        return offset


def killed(place: Place, log: Log, input_: Input, records: int) -> None:
    port, back, restores = free_port(), list[float](), list[float]()
    with ExitStack() as stack:
        serve = place.command("serve", server_port=port)
        stack.enter_context(process(serve, place.state_dir / "server.txt"))
        until(lambda: answers(port, "/healthz"), "the server answers", 0.05)
        asked = Asked(port, input_)
        stack.enter_context(Feeder(log, input_, records // PARTITIONS))
        for number in range(ROUNDS + 1):
            begun_s = time.perf_counter()
            with working(place):
                before = asked.offset()
                until(lambda least=before: asked.offset() > least, "there is a new answer")  # type: ignore[misc]
                if number:  # somebody was killed before
                    back.append(time.perf_counter() - begun_s)
                    place.until_running()
                    count, seconds = place.restored()
                    restores.append(seconds)
                    print(f"  back after {back[-1]:.2f} s, {count:,} records restored in {seconds:.2f} s", flush=True)
                time.sleep(1 + number / 7)  # ingest goes on
    print(f"  killed: back after {statistics.median(back):.2f} s in the median", flush=True)
    at_most("after kill -9, the first new committed answer", max(back), 2, " s")
    at_most("after kill -9, restore", max(restores), 1, " s")


def main(arguments: Sequence[str]) -> None:
    records = int(arguments[0]) if arguments else RECORDS
    input_ = Input(min(KEYS, records // 10))
    with KafkaBroker() as broker, closing(KafkaLog(broker.bootstrap_servers)) as log:
        began_s = time.perf_counter()
        fill(log, records, input_)
        print(f"  {records:,} records of each topic written in {time.perf_counter() - began_s:.0f} s", flush=True)
        for job in ("table", "store"):
            os.environ["RECOVERY_JOB"] = job
            with tempfile.TemporaryDirectory() as directory:
                place = Place(broker.bootstrap_servers, job, Path(directory))
                from_an_empty_disk(place, records)
                if job == "store":
                    killed(place, log, input_, records)


if __name__ == "__main__":
    main(sys.argv[1:])
