"""What a rebalance costs the tasks that stay: how long each takes no records while a second worker joins.

Sixteen tasks of four stores, on a real broker, exactly once. In turns with workers that close and open every task, as
they did before tasks could be suspended.

`bench_rebalance.py ROUNDS` takes another number of rounds than three.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest.mock import patch

import processes  # noqa: F401 - finds the tests' modules
from streams_app import made

from stateline.deployment.configured_log import configured_log
from stateline.dsl.app import App
from stateline.log import Log, NewTopic
from stateline.log.kafka import KafkaLog
from stateline.worker.loop.worker import Worker
from stateline.worker.tasks.task import Task, TaskState
from stateline_store import TopicPartition
from stateline_store.task_id import TaskId
from support.kafka.kafka_broker import KafkaBroker
from support.processes.running_worker import configured, eventually, produce, running

PARTITIONS, RECORDS, KEYS = 16, 200_000, 50_000


class Pauses:
    """Of each task: when it took records last, and how long it did not then, until it was run or resumed."""

    def __init__(self) -> None:
        self._since: dict[TaskId, float] = {}
        self._lock = threading.Lock()
        self.seconds: dict[TaskId, float] = {}

    def begin(self, task: Task) -> None:
        if task.state is TaskState.RUNNING:
            with self._lock:
                self._since.setdefault(task.id, time.monotonic())

    def end(self, task: Task) -> None:
        with self._lock:
            if (since := self._since.pop(task.id, None)) is not None:
                self.seconds[task.id] = time.monotonic() - since


@contextmanager
def noted(pauses: Pauses) -> Iterator[None]:
    """Every task tells of its pauses."""
    suspend, close, resume, run = Task.suspend, Task.close, Task.resume, Task.run

    def suspending(task: Task) -> None:
        pauses.begin(task)
        suspend(task)

    def closing_(task: Task) -> None:
        pauses.begin(task)
        close(task)

    def resuming(task: Task, *arguments: object) -> None:
        resume(task, *arguments)  # type: ignore[arg-type]  # handed through
        pauses.end(task)

    def running_(task: Task, *arguments: object) -> None:
        run(task, *arguments)  # type: ignore[arg-type]  # handed through
        pauses.end(task)

    with (
        patch.object(Task, "suspend", suspending),
        patch.object(Task, "close", closing_),
        patch.object(Task, "resume", resuming),
        patch.object(Task, "run", running_),
    ):
        yield


def count(worker: Worker) -> int:
    """How many tasks take records."""
    return len(worker.tasks.running)


def one_round(broker: KafkaBroker, number: int, *, kept: bool) -> list[float]:
    """A second worker joins; the pauses of the tasks that stay with the first one, in seconds."""
    app: App = made("four", f"rebalance-{number}")
    with tempfile.TemporaryDirectory() as state:
        settings = {"bootstrap__servers": broker.bootstrap_servers, "processing__guarantee": "exactly_once_v2"}
        config = configured(app, Path(state), commit__interval__ms=100, **settings)
        with closing(configured_log(config)) as log, running(app, config, log, "one") as one:
            eventually(lambda: count(one) == PARTITIONS, "all tasks run")
            eventually(lambda: is_worked_off(log, app.application_id), "the input is worked off", 300)
            pauses = Pauses()
            as_left = Task.is_as_left if kept else lambda *_: False
            with (
                noted(pauses),
                patch.object(Task, "is_as_left", as_left),
                running(app, config, log, "two") as two,
            ):
                eventually(
                    lambda: len(pauses.seconds) == PARTITIONS and count(two) == PARTITIONS // 2, "both have a half"
                )
                stayed = [pauses.seconds[task] for task in one.tasks.all]
    return stayed


def is_worked_off(log: Log, group: str) -> bool:
    with closing(log.admin()) as admin:
        sources = [TopicPartition("events", number) for number in range(PARTITIONS)]
        ends = {source: end for source, (_, end) in admin.bounds(sources).items()}
        return admin.committed(group, ends) == ends


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    pauses: dict[bool, list[float]] = {True: [], False: []}
    with KafkaBroker() as broker, closing(KafkaLog(broker.bootstrap_servers)) as log:
        with closing(log.admin()) as admin:
            admin.create_topics([NewTopic("events", PARTITIONS)])
        produce(log, "events", ((b"key-%08d" % (n * 7919 % KEYS), b"v" * 100, 1_000 + n) for n in range(RECORDS)))
        for number in range(2 * rounds):
            kept = number % 2 == 0
            pauses[kept] += one_round(broker, number, kept=kept)
    for kept, seconds in pauses.items():
        what = "suspended" if kept else "closed and opened"
        print(f"{what}: {statistics.median(seconds):.2f} s in the median, {max(seconds):.2f} s at most")


if __name__ == "__main__":
    main()
