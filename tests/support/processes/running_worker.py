"""A worker on a thread of the test process, and what tests ask of it while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stateline.config.loading import load_config
from stateline.config.settings import Config
from stateline.dsl.app import App
from stateline.log import Log, NewTopic, Record
from stateline.worker.loop.worker import Worker
from stateline_store import NotPresentError, RetryLaterError, SecondaryReader, StateDirectory, TopicPartition
from support.run.patience import HANGING_S, pause_s


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = HANGING_S) -> None:
    """Wait until the condition holds; fail with `what` when it never does."""
    began_s = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - began_s
        assert waited_s < timeout_s, f"Waited {timeout_s} s in vain: {what}"
        time.sleep(pause_s(waited_s))


def configured(app: App, state_dir: Path, **settings: Any) -> Config:
    """A configuration with a short commit interval unless the test sets another. A transaction lasts until its
    commit."""
    values = {"state.dir": str(state_dir), "commit.interval.ms": "50"}
    values |= {name.replace("__", "."): str(value) for name, value in settings.items()}
    values.setdefault("transaction.timeout.ms", str(max(60_000, int(values["commit.interval.ms"]))))
    return load_config(app.application_id, environment={}, overrides=[f"{k}={v}" for k, v in values.items()])


@contextmanager
def running(app: App, config: Config, log: Log, instance: str = "worker-0") -> Iterator[Worker]:
    """Run a worker until the block ends; what it raised is raised here."""
    worker = Worker(app, config, log, instance=instance)
    raised: list[BaseException] = []

    def work() -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001 - raised again by the test's own thread
            raised.append(error)

    thread = threading.Thread(target=work, name=instance)
    thread.start()
    try:
        yield worker
    except Exception as error:
        _stop(worker, thread)
        if raised:  # what the test waited for in vain, most likely
            raise raised[0] from error
        raise
    _stop(worker, thread)
    if raised:
        raise raised[0]


def _stop(worker: Worker, thread: threading.Thread) -> None:
    worker.stop()
    thread.join(HANGING_S)
    assert not thread.is_alive(), "The worker did not stop."


def create(log: Log, topics: Mapping[str, int]) -> None:
    """Create topics with their partition counts."""
    admin = log.admin()
    admin.create_topics([NewTopic(name, partitions) for name, partitions in topics.items()])
    admin.close()


def produce(log: Log, topic: str, records: Iterable[tuple[Any, ...]]) -> dict[TopicPartition, int]:
    """Write (key, value, timestamp) records, or those with headers behind; the last offset of each partition."""
    producer = log.producer()
    for key, value, timestamp_ms, *headers in records:
        producer.produce(topic, key, value, timestamp_ms=timestamp_ms, headers=headers[0] if headers else ())
    offsets = producer.flush()
    producer.close()
    return offsets


def read_all(log: Log, topic: str, partitions: int) -> list[Record]:
    """Every visible record of a topic."""
    admin, consumer = log.admin(), log.consumer()
    ends = {TopicPartition(topic, p): admin.watermarks(TopicPartition(topic, p))[1] for p in range(partitions)}
    consumer.assign(dict.fromkeys(ends, 0))
    found: list[Record] = []

    def at_end() -> bool:
        found.extend(consumer.poll(1_000, 0.05))
        return all((consumer.next_offset(tp) or 0) >= end for tp, end in ends.items())

    eventually(at_end, f"{topic} is read")
    consumer.close()
    admin.close()
    return found


class Stores:
    """Committed reads of an application's stores from outside its worker. Rows are the stored bytes."""

    def __init__(self, app: App, config: Config, scratch: Path) -> None:
        self._topology = app.topology()
        self._directory = StateDirectory(config.state_dir, app.application_id)
        self._scratch = scratch
        self._readers: dict[tuple[str, int], SecondaryReader] = {}

    def reader(self, store: str, partition: int) -> SecondaryReader | None:
        """The reader of one partition, refreshed; None while there is no store: not opened yet, or wiped. Who is told
        to ask again, as its owner changes it faster than it is read, does."""
        until_s = time.monotonic() + HANGING_S
        while True:
            try:
                known = self._readers.get((store, partition))
                if known is None:
                    known = self._readers[store, partition] = self._open(store, partition)
                known.refresh()
            except NotPresentError:
                if (dropped := self._readers.pop((store, partition), None)) is not None:
                    dropped.close()
                return None
            except RetryLaterError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.02)
            else:
                return known

    def _open(self, store: str, partition: int) -> SecondaryReader:
        task = str(self._topology.subtopology_of(store).task_id(partition))
        timestamped = self._topology.stores[store].timestamped
        return SecondaryReader(
            self._directory.store(task, store, timestamped=timestamped),
            self._directory.notice(task, store, timestamped=timestamped),
            self._scratch / f"{store}-{partition}",
        )

    def rows(self, store: str, partitions: int) -> dict[bytes, bytes]:
        """Every committed row of a store, timestamps cut off."""
        cut = 8 if self._topology.stores[store].timestamped else 0
        found: dict[bytes, bytes] = {}
        for partition in range(partitions):
            reader = self.reader(store, partition)
            if reader is not None:
                with reader.range(None, None) as rows:
                    found |= {key: value[cut:] for key, value in rows}
        return found

    def offset(self, store: str, topic: str, partition: int) -> int:
        """How far into this input partition the committed state of the store has come; -1 for nothing."""
        reader = self.reader(store, partition)
        found = None if reader is None else reader.position.get(topic, partition)
        return -1 if found is None else found

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
