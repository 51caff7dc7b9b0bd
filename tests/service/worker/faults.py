"""Applications, a place for workers to run in, and ways to make them fail. On the embedded log."""

from __future__ import annotations

import itertools
import math
import shutil
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from stateline import serdes, stores
from stateline.config.settings import Config
from stateline.dsl.app import App
from stateline.log.embedded import EmbeddedLog
from stateline.log.embedded_file import OFFSET_BITS
from stateline.processing.store_views import StoreView
from stateline.worker import InputRecord
from stateline.worker.loop.worker import Worker
from stateline.worker.tasks.task import Task
from stateline_store import (
    IsolationLevel,
    PoisonedError,
    StateDirectory,
    TopicPartition,
)
from support.processes.running_worker import Stores, configured, create, produce, read_all
from support.run.patience import HANGING_S

IN = TopicPartition("in", 0)
CHANGELOG = "app-counts-changelog"
NEVER_MS = 800_000  # a commit interval that no test lives to see
EXACTLY_ONCE = {"processing__guarantee": "exactly_once_v2"}
GUARANTEES = ["at_least_once", "exactly_once_v2"]

Look = Callable[[InputRecord], object]


def counting(
    look: Look = lambda _: None,
    *,
    table: bool = False,
    logged: bool = True,
    persistent: bool = True,
    also: bool = False,
    name: str = "app",
    topic: str = "in",
    store: str = "counts",
) -> App:
    """Counts the records of each key; `look` sees each one first. `table`: beside it, the newest value of each key.

    `also`: a second store counts too.
    """
    app = App(name)
    source = app.topic(topic, key=serdes.string, value=serdes.string)
    if table:
        app.table(source, store="newest")
    names = [store, "again"] if also else [store]
    kept: dict[str, Any] = {"key": serdes.string, "value": serdes.json}
    made = [app.store(stores.key_value(n, **kept, logged=logged, persistent=persistent)) for n in names]

    @app.process(source, stores=made)
    def count(record: InputRecord, *views: StoreView) -> None:
        look(record)
        for view in views:
            view.put(record.key, (view.get(record.key) or 0) + 1)

    return app


def table_only() -> App:
    app = App("app")
    app.table(app.topic("in", key=serdes.string, value=serdes.json), store="newest")
    return app


Entry = tuple[bytes | None, bytes, int]


def entries(keys: Sequence[str], times: int = 1) -> list[Entry]:
    return [(key.encode(), b"%d" % n, n) for n in range(times) for key in keys]


class Watched(Worker):
    """A worker on the test's own thread, which ends when the condition holds: looked at after each turn."""

    until: Callable[[], bool]
    deadline: float

    def reach(self, condition: Callable[[], bool]) -> None:
        self.until, self.deadline = condition, time.monotonic() + HANGING_S
        self.run()

    def turn(self) -> None:
        """One of the worker's rounds, whatever the condition."""
        super()._turn()

    def _turn(self, most_rest_s: float = math.inf) -> None:
        self.turn()
        assert time.monotonic() < self.deadline, "The worker never came to the condition."
        if self.until():
            self.stop()

    def read_up_to(self, source: TopicPartition) -> int:
        """The next offset to read, committed or not; 0 while nobody reads."""
        return max((task.processing.next_offsets.get(source, 0) for task in self.tasks.running), default=0)

    def staged(self, store: str, key: bytes) -> bytes:
        """What a timestamped store of the one task holds for a key now, committed or not; b"" for nothing."""
        (task,) = self.tasks.all.values()
        return (dict(task.stores.transactional)[store].reader(IsolationLevel.READ_UNCOMMITTED).get(key) or b"")[8:]

    def waiting(self) -> bool:
        return bool(self._manager.waiting)


class Place:
    """A log with a topic `in`, machines (state directories), and readers of what workers there committed."""

    def __init__(self, root: Path, partitions: int = 1, session_timeout_ms: int = 60_000) -> None:
        self.root = root
        self.log = EmbeddedLog(root / "log.db", session_timeout_ms=session_timeout_ms)
        create(self.log, {"in": partitions})
        self.admin = self.log.admin()
        self._scratch = itertools.count()
        self._closing = ExitStack()
        self._closing.callback(self.admin.close)

    def close(self) -> None:
        self._closing.close()
        self.log.close()

    def config(self, app: App, machine: str = "m", **settings: Any) -> Config:
        return configured(app, self.root / machine, **settings)

    def stores(self, app: App, config: Config) -> Stores:
        found = Stores(app, config, self.root / f"scratch-{next(self._scratch)}")
        self._closing.callback(found.close)
        return found

    def worker(self, app: App, config: Config) -> Watched:
        return Watched(app, config, self.log, instance="watched")

    def work_off(self, app: App, config: Config, offset: int, store: str = "counts", topic: str = "in") -> Stores:
        """Run a worker until the store has committed this offset of partition 0."""
        found = self.stores(app, config)
        self.worker(app, config).reach(lambda: found.offset(store, topic, 0) >= offset)
        return found

    def commit_once(self, app: App, config: Config, next_offset: int) -> None:
        """Run a worker until it has read this far; with an interval that is never over it commits as it leaves."""
        worker = self.worker(app, config)
        worker.reach(lambda: worker.read_up_to(IN) == next_offset)

    def send(self, records: Sequence[Entry], topic: str = "in") -> None:
        produce(self.log, topic, records)

    def send_each_partition(self, partitions: int, count: int) -> None:
        """`count` records of key `p<n>` to each partition n."""
        with closing(self.log.producer()) as producer:
            for n in range(partitions * count):
                p = n % partitions
                producer.produce("in", b"p%d" % p, b"v", timestamp_ms=n, partition=p)
            producer.flush()

    def lose_disk(self, config: Config) -> None:
        shutil.rmtree(config.state_dir)

    def forget_group_offsets(self) -> None:
        self.write("DELETE FROM group_offsets")

    def delete(self, topic: str, first: int, last: int) -> None:
        """Delete the records of a topic's partition 0 from offset `first` to `last`: those at its beginning as its
        retention does, others as compaction."""
        if first == 0:
            self.admin.delete_records({TopicPartition(topic, 0): last + 1})
            return
        query = "SELECT id FROM partitions WHERE topic = ? AND partition = 0"
        with closing(sqlite3.connect(self.root / "log.db")) as file:
            ((partition_id,),) = file.execute(query, (topic,)).fetchall()
        base = partition_id << OFFSET_BITS
        self.write("DELETE FROM records WHERE id BETWEEN ? AND ?", base + first, base + last)

    def write(self, statement: str, *parameters: Any) -> None:
        """Change the log's file behind its back."""
        with closing(sqlite3.connect(self.root / "log.db")) as file:
            file.execute(statement, parameters)
            file.commit()

    def task(self, number: int = 0) -> Path:
        return StateDirectory(self.root / "m", "app").task(f"0_{number}")

    def changelog(self) -> list[tuple[bytes | None, bytes | None]]:
        return [(r.key, r.value) for r in read_all(self.log, CHANGELOG, 1)]


def fail_commit_of_stores(
    monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception] = PoisonedError
) -> list[str]:
    """The log is committed and the stores are not, as after a crash in between, at this commit (1 is the first). The
    worker starts over after a `PoisonedError`, and ends with others."""
    commit_stores, failed = Task.commit_stores, list[str]()
    numbers = itertools.count(1)

    def fail_once(task: Task, *others: Any) -> None:
        if next(numbers) == number:
            failed.append(str(task.id))
            raise error("between the log's commit and the store's")
        commit_stores(task, *others)

    monkeypatch.setattr(Task, "commit_stores", fail_once)
    return failed


def two_topics() -> App:
    """A table of `in`, and a count of `other`."""
    app = App("app")
    app.table(app.topic("in", key=serdes.string, value=serdes.string), store="newest")
    other = app.topic("other", key=serdes.string, value=serdes.string)
    counts = app.store(stores.key_value("counts", key=serdes.string, value=serdes.json))

    @app.process(other, stores=[counts])
    def count(record: InputRecord, counts: StoreView) -> None:
        counts.put(record.key, (counts.get(record.key) or 0) + 1)

    return app


def work_off_and_make_anew(place: Place, app: App, config: Config, found: Stores, count: int) -> None:
    """Ten records of `a` in each topic are worked off; then both are deleted and made anew with `count` of `b`."""
    create(place.log, {"other": 1})
    for topic in ("in", "other"):
        place.send(entries("a", 10), topic)
    place.worker(app, config).reach(lambda: both(found) == (9, 9))
    place.admin.delete_topics(["in", "other"])
    create(place.log, {"in": 1, "other": 1})
    for topic in ("in", "other"):
        place.send(entries("b", count), topic)


def both(found: Stores) -> tuple[int, int]:
    return found.offset("newest", "in", 0), found.offset("counts", "other", 0)


def rename(place: Place, topic: str) -> None:
    """Give the topic another id, and leave its offsets as they are: as one made anew, longer, looks to a consumer."""
    place.write("UPDATE topics SET topic_id = 'another' WHERE name = ?", topic)
