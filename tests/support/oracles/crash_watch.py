"""What crash tests hold a worker to: input that keeps coming, an oracle, and a reader that compares all the time.

Under exactly-once what the reader sees must be, at every moment, exactly what the input up to the Position that comes
with it makes. Under at-least-once records may count twice after a crash, never be missed; a table is exact under both.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from uuid import uuid4

from stateline.config.loading import load_config
from stateline.deployment.workers.instance_file import read_instances
from stateline.log import Log, Producer, Record
from stateline_store import LogUnavailableError, TopicPartition
from support import TESTS
from support.apps import crash_app
from support.processes.forked import Forked
from support.processes.running_worker import Stores, create, eventually, read_all
from support.run.length import long_or_short
from support.run.patience import HANGING_S

PARTITIONS = 2
_LOG_AWAY_S = 180.0
# Between batches of the feeder, and between looks of the watcher: how much is written and seen between two kills.
_FEED_S, _LOOK_S = long_or_short((0.01, 0.002), (0.08, 0.02))
COMMIT_MS = long_or_short(20, 50)
KEYS = 40
_KEYS = [[b"p%d-%d" % (partition, n) for n in range(KEYS)] for partition in range(PARTITIONS)]


class Oracle:
    """What each input partition makes of the stores, one record after the other. Plain dicts, no product code."""

    def __init__(self, partitions: int = PARTITIONS) -> None:
        self.inputs: list[list[tuple[bytes, int]]] = [[] for _ in range(partitions)]
        self.counts: list[dict[bytes, list[int]]] = [{} for _ in range(partitions)]
        self.newest: list[dict[bytes, int]] = [{} for _ in range(partitions)]
        self.at = [0] * partitions

    def go_to(self, partition: int, offset: int) -> None:
        """Apply the input up to and including this offset."""
        for key, value in self.inputs[partition][self.at[partition] : offset + 1]:
            n, total = self.counts[partition].get(key, [0, 0])
            self.counts[partition][key] = [n + 1, total + value]
            self.newest[partition][key] = value
        self.at[partition] = max(self.at[partition], offset + 1)


class Feeder(threading.Thread):
    """Writes input for as long as the killing goes on, `keys` of each partition."""

    def __init__(
        self,
        log: Log,
        topic: str,
        oracle: Oracle,
        pause_s: float = _FEED_S,
        keys: Sequence[Sequence[bytes]] = _KEYS,
        since_ms: int = 0,
    ) -> None:
        """A record's time is its value after `since_ms`."""
        super().__init__(name="feeder")
        self._since_ms = since_ms
        self._keys = keys
        self._log, self._topic, self._oracle, self._pause_s = log, topic, oracle, pause_s
        self._random = random.Random(1)
        self.done = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._feed()
        except BaseException as error:  # noqa: BLE001 - raised again by the test's own thread
            self.error = error

    def _feed(self) -> None:
        producer = self._log.producer()
        while not self.done.wait(self._pause_s):
            for _ in range(40):
                partition = self._random.randrange(len(self._keys))
                key = self._random.choice(self._keys[partition])
                value = self._random.randrange(1_000)
                # The oracle hears of it first: the worker cannot see a record that the oracle does not know.
                self._oracle.inputs[partition].append((key, value))
                data, at_ms = value.to_bytes(8, "big"), self._since_ms + value
                producer.produce(self._topic, key, data, timestamp_ms=at_ms, partition=partition)
            self._flush(producer)
        producer.close()

    def _flush(self, producer: Producer) -> None:
        """Also when the log is away for a while: what is queued stays queued, in its order."""
        deadline = time.monotonic() + _LOG_AWAY_S
        while True:
            try:
                producer.flush()
                return
            except LogUnavailableError:
                if time.monotonic() > deadline:
                    raise


class Follower(threading.Thread):
    """Reads the input back into the oracle. What the log has is what counts: after all its brokers were killed, it was
    seen to have more records than the producer was given, in another order."""

    def __init__(self, log: Log, topic: str, oracle: Oracle) -> None:
        super().__init__(name="follower")
        self._log, self._inputs = log, oracle.inputs
        self._partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        self.done = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with closing(self._log.consumer()) as consumer:
                consumer.assign(dict.fromkeys(self._partitions, 0))
                while not self.done.is_set():
                    with suppress(LogUnavailableError):
                        self._take(consumer.poll(1_000, 0.02))
        except BaseException as error:  # noqa: BLE001 - raised again by the test's own thread
            self.error = error

    def _take(self, records: list[Record]) -> None:
        for record in records:
            inputs = self._inputs[record.partition]
            assert record.offset == len(inputs), f"the input goes on at {record.offset} after {len(inputs)} records"
            assert record.key is not None
            assert record.value is not None
            inputs.append((record.key, int.from_bytes(record.value, "big")))

    def has_all(self) -> bool:
        """Whether it has read to the end of the log, or something is wrong."""
        with closing(self._log.admin()) as admin:
            ends = [admin.watermarks(partition)[1] for partition in self._partitions]
        return self.error is not None or ends == [len(records) for records in self._inputs]


class Watcher(threading.Thread):
    """Reads committed state again and again and holds it against the oracle."""

    def __init__(self, stores: Stores, topic: str, inputs: Oracle, exact: bool) -> None:
        super().__init__(name="watcher")
        self._stores, self._topic, self._exact = stores, topic, exact
        self._oracles = {"counts": Oracle(), "newest": Oracle()}
        for oracle in self._oracles.values():
            oracle.inputs = inputs.inputs
        self._last: dict[tuple[str, int], int] = {}
        self.done = threading.Event()
        self.looks = 0
        self.moves = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.done.is_set():
                for partition in range(PARTITIONS):
                    self.look("counts", partition)
                    self.look("newest", partition)
                self.done.wait(_LOOK_S)
        except BaseException as error:  # noqa: BLE001 - raised again by the test's own thread
            self.error = error

    def look(self, store: str, partition: int) -> None:
        reader = self._stores.reader(store, partition)
        if reader is None:
            return
        found = reader.position.get(self._topic, partition)
        offset = -1 if found is None else found
        last = self._last.get((store, partition), -1)
        assert offset >= last, f"{store}-{partition} went back from {last} to {offset}"
        self._last[store, partition] = offset
        self.looks += 1
        self.moves += offset > last
        with reader.range(None, None) as rows:
            seen = dict(rows)
        self._compare(store, partition, offset, seen)

    def offsets(self) -> dict[tuple[str, int], int]:
        """(store, partition) → how far its committed state was seen."""
        return self._last.copy()

    def finished(self, partition: int, end: int) -> bool:
        """Whether both stores of the partition were seen at the end of the input, or something is wrong."""
        at_end = all(self._last.get((store, partition), -1) >= end for store in self._oracles)
        return at_end or self.error is not None

    def _compare(self, store: str, partition: int, offset: int, seen: dict[bytes, bytes]) -> None:
        oracle = self._oracles[store]
        eventually(lambda: len(oracle.inputs[partition]) > offset, f"the input up to {offset} is known")
        oracle.go_to(partition, offset)
        if store == "newest":
            newest = {key: int.from_bytes(value[8:], "big") for key, value in seen.items()}
            assert newest == oracle.newest[partition], f"newest-{partition} at {offset}"
            return
        counts = {key: json.loads(value) for key, value in seen.items()}
        wanted = oracle.counts[partition]
        if self._exact:
            assert counts == wanted, f"counts-{partition} at {offset}"
        for key, (n, total) in wanted.items():
            assert counts[key][0] >= n, f"{key!r} lost records at {offset}"
            assert counts[key][1] >= total, f"{key!r} lost records at {offset}"


def start_worker(
    run: str,
    settings: list[str],
    output: Path,
    restore_slice: int = 5_000,
    command: str = "worker",
    variables: Mapping[str, str] = MappingProxyType({}),
    options: Sequence[str] = (),
) -> Forked:
    """`stateline worker`, or another command, with the application of this run, as a process with these options and
    environment variables besides; what it prints is appended to `output`."""
    words = [command, "support.apps.crash_app:app", *options]
    for setting in settings:
        words += ["--set", setting]
    with output.open("ab") as file:
        environment = {**os.environ, "CRASH_RUN": run, "CRASH_RESTORE_SLICE": str(restore_slice), **variables}
        return Forked(words, cwd=TESTS, env=environment, output=file.fileno())


def runs(worker: Forked, application: Path) -> bool:
    """Whether it is this worker that has said that its tasks run, or it has ended. A killed one leaves its file."""
    said = read_instances(application).get("worker-0")
    if worker.poll() is not None:
        return True
    return said is not None and said.pid == worker.pid and set(said.tasks.values()) == {"running"}


def check_forwarded(log: Log, run: str, inputs: Oracle, *, exact: bool) -> None:
    """What the application forwarded, held against what all of the input makes of it."""
    for partition, records in enumerate(inputs.inputs):
        inputs.go_to(partition, len(records) - 1)
    wanted = sum(n // 10 for counts in inputs.counts for n, _ in counts.values())
    found = [0]

    def all_are_visible() -> bool:
        # A broker answers that a transaction is committed before readers see all of it.
        found[0] = len(read_all(log, f"tenths-{run}", PARTITIONS))
        return found[0] >= wanted

    eventually(all_are_visible, "all that was forwarded is there")
    assert not exact or found[0] == wanted, f"{found[0]} records instead of {wanted}"


class WatchedRun:
    """One load over one disk, watched from the first record to the last: workers come and are killed meanwhile.

    `follow`: the input is what the log has (`Follower`), not what was given to its producer.
    """

    def __init__(
        self,
        bootstrap: str,
        log: Log,
        guarantee: str,
        root: Path,
        *,
        state_dir: Path | None = None,
        follow: bool = False,
        feed_s: float = _FEED_S,
    ) -> None:
        self.name, self._log, self._exact = uuid4().hex[:8], log, guarantee == "exactly_once_v2"
        self.topic = f"numbers-{self.name}"
        create(log, {self.topic: PARTITIONS, f"tenths-{self.name}": PARTITIONS})
        self.settings = [
            f"bootstrap.servers={bootstrap}",
            f"processing.guarantee={guarantee}",
            f"state.dir={state_dir or root / 'state'}",
            f"commit.interval.ms={COMMIT_MS}",
            "group.instance.id=the-worker",
        ]
        app = crash_app.build(self.name)
        config = load_config(app.application_id, environment={}, overrides=self.settings)
        self._application = Path(config.state_dir) / app.application_id
        self._stores = Stores(app, config, root / "scratch")
        self._oracle = Oracle()
        self._feeder = Feeder(log, self.topic, Oracle() if follow else self._oracle, feed_s)
        self._follower = Follower(log, self.topic, self._oracle) if follow else None
        self.watcher = Watcher(self._stores, self.topic, self._oracle, self._exact)
        self.output = root / "worker.log"

    def __enter__(self) -> WatchedRun:
        self._feeder.start()
        if self._follower is not None:
            self._follower.start()
        self.watcher.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._feeder.done.set()
        self.watcher.done.set()
        self._feeder.join()
        self.watcher.join()
        self._stores.close()
        errors = [self._feeder.error, self.watcher.error]
        if self._follower is not None:
            self._follower.done.set()
            self._follower.join()
            errors.insert(0, self._follower.error)
        for found in errors:
            if found is not None:
                raise found

    @property
    def inputs(self) -> list[list[tuple[bytes, int]]]:
        """(key, value) of each partition, as they are written."""
        return self._oracle.inputs

    def start_worker(self, **variables: str) -> Forked:
        """The next worker, on the disk that the last one left, with these environment variables."""
        return start_worker(self.name, self.settings, self.output, variables=variables)

    def start_another(self, instance: str, output: Path) -> Forked:
        """A worker beside the one of `start_worker`, on the same disk, with an identity of its own."""
        settings = [*self.settings, f"group.instance.id=the-{instance}"]
        return start_worker(self.name, settings, output, options=["--instance", instance])

    def work_off(self) -> None:
        """End the input; a last worker comes to its end, is seen there, and leaves when it is asked to."""
        self._feeder.done.set()
        self._feeder.join()
        if self._follower is not None:
            eventually(self._follower.has_all, "the whole input is read back")
        worker = self.start_worker()
        eventually(lambda: runs(worker, self._application), "the last worker runs")
        for partition, records in enumerate(self._oracle.inputs):
            at_end = partial(self.watcher.finished, partition, len(records) - 1)
            eventually(at_end, "the last worker reaches the end")
        worker.terminate()
        assert worker.wait(HANGING_S) == 0, self.output.read_text()[-2_000:]

    def check_forwarded(self) -> None:
        """As the function of that name."""
        check_forwarded(self._log, self.name, self._oracle, exact=self._exact)
