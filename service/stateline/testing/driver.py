"""`TestDriver`: an application in one process and on one thread, which works only when a test calls it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from types import TracebackType
from typing import Any

import httpx

from stateline.dsl.app import App
from stateline.log.interface import Headers
from stateline.log.timestamps import checked_timestamp
from stateline.model.topic import Topic
from stateline.serde.plain import shown
from stateline.testing.http_client import ServedClient
from stateline.testing.place import DriverFolder
from stateline.testing.records import DeadLetter, Record, TopicReader, TopicWriter
from stateline.testing.stepped import MovedClock, SteppedWorker
from stateline.testing.stores import TestedStore, tested_store
from stateline.worker.loop.worker import Worker
from stateline_store import ConfigurationError, InvalidArgumentError, StoreClosedError
from stateline_store.clock import now_ms


class TestDriver:
    """Runs an application as a worker and a server do, without its pipelines.

    A call to `pipe` processes the record, and everything that follows from it in other topics of the application. With
    `autocommit` it also commits. Nothing sleeps, and only `advance_wall_clock` moves the clock. If an error would end a
    worker, the call raises it. The state is that of the last commit then, and the next call reads the record again, as
    in production.

    Close it, or use it in a `with` block: its files are in memory or among the temporary ones. One thread uses it.
    """

    __test__ = False  # pytest takes it for no test

    def __init__(
        self,
        app: App,
        *,
        partitions: int | Mapping[str, int] = 1,
        config: Mapping[str, Any] | None = None,
        autocommit: bool = True,
        wall_clock_ms: int | None = None,
    ) -> None:
        """`partitions` is for all topics that an application's owner creates, or by name: unnamed topics get 1. Names
        that a pattern of `App.stream` matches are its topics, unless ``topology.pattern.topics`` is set.
        `config` has settings over those of the `App`, such as ``{"processing.guarantee": "exactly_once_v2"}``.
        Environment and files are ignored. `wall_clock_ms` is the clock's first time in milliseconds since the epoch,
        None for now.

        Raises `TopologyError` for an application that cannot run as declared, `ConfigurationError` for wrong settings,
        and `InvalidArgumentError` for wrong arguments.
        """
        if not isinstance(app, App):
            raise InvalidArgumentError(f"{shown(app)} is no App: give the App itself, as in TestDriver(app).")
        self.autocommit = autocommit
        """Whether each call commits what it has processed. May be changed between calls."""
        self._app = app
        self._clock = MovedClock(now_ms() if wall_clock_ms is None else checked_timestamp(wall_clock_ms))
        self._stepped: SteppedWorker | None = None
        with ExitStack() as failed:
            self._place = DriverFolder(app, config or {}, partitions if isinstance(partitions, Mapping) else ())
            failed.callback(self._place.close)
            topology = app.topology()  # its stores and topics are as the settings want them
            self._writer, self._reader = TopicWriter(topology), TopicReader(topology)
            self._definitions = dict(topology.all_stores)
            self._place.create_topics(topology, partitions)
            self._served = ServedClient(app, self._place, lambda: self._worker)
            self._stepped = SteppedWorker(app, self._place, self._clock)
            failed.pop_all()

    def pipe(
        self,
        topic: str | Topic,
        key: Any,
        value: Any,
        *,
        timestamp_ms: int | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """Write a record, and process it. `value` None deletes the key. Without `timestamp_ms` it gets the wall clock's
        time. Without `partition` it goes where Kafka's producers put its key.

        Raises `DoesNotExistError` for a topic that no worker of the application reads, `InvalidArgumentError` for a key
        or value of another type than the topic's, and errors of processing, such as `RecordError` under the policy
        `fail`.
        """
        self.pipe_all(topic, [Record(key, value, timestamp_ms, headers, partition)])

    def pipe_bytes(
        self,
        topic: str | Topic,
        key: bytes | None,
        value: bytes | None,
        *,
        timestamp_ms: int | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """`pipe` a record with these bytes as key and value, readable or not. Its timestamp may be negative. An
        unreadable record meets ``deserialization.exception.handler``."""
        self._running()
        record = Record(key, value, timestamp_ms, headers, partition)
        self._writer.write(self._place.log, topic, [record], self._clock.now_ms(), as_bytes=True)
        self.process()

    def pipe_all(self, topic: str | Topic, records: Iterable[Record]) -> None:
        """`pipe` many records at once, which is faster: all are written before they are processed."""
        self._running()
        self._writer.write(self._place.log, topic, records, self._clock.now_ms())
        self.process()

    def process(self) -> None:
        """Process unread records. There are some after a failure, or after `abort` or `crash` without `autocommit`.
        Raises as `pipe`."""
        self._running().work(commits=self.autocommit)

    def commit(self) -> None:
        """Commit, process what can be read then, and repeat until everything is committed. Exactly once, forwarded
        records are visible from then on. Raises as `pipe`."""
        self._running().work(commits=True)

    def abort(self) -> None:
        """Drop everything uncommitted, like a worker whose transaction fails. The input since the last commit is read
        again: with `autocommit` now, otherwise by the next call. At least once, forwarded records stay. Raises as
        `pipe`."""
        self._running().start_over()
        self._go_on()

    def advance_wall_clock(self, by: int | timedelta) -> None:
        """Move the wall clock by milliseconds or a `timedelta`. Each punctuation that is due is called once, however
        much time has passed. Raises `InvalidArgumentError` for a negative time, and as `pipe`."""
        self._clock.advance(by)
        self.process()

    @property
    def wall_clock_ms(self) -> int:
        """The wall clock's time, in milliseconds since the epoch."""
        return self._clock.now_ms()

    def read(self, topic: str | Topic) -> list[Record]:
        """Return the records that were committed to this topic since the last call, by partition and offset. Raises
        `DoesNotExistError` for a topic that the application does not have."""
        self._running()
        return self._reader.read(self._place.log, topic)

    def dead_letters(self) -> list[DeadLetter]:
        """Return the dead letters since the last call. Raises `ConfigurationError` without
        ``errors.dead.letter.queue.topic.name``."""
        self._running()
        topic = self._place.config.dead_letter_topic
        if topic is None:
            raise ConfigurationError(
                "There are no dead letters without errors.dead.letter.queue.topic.name: set it in the App's config, or "
                "in that of the driver."
            )
        return self._reader.dead_letters(self._place.log, topic)

    def store(self, name: str) -> TestedStore:
        """Return a store, a table or a global table. Raises `DoesNotExistError` for a name that the application does
        not have."""
        level = self._place.config.default_state_isolation_level
        return tested_store(lambda: self._worker, self._definitions, name, level)

    @property
    def client(self) -> httpx.Client:
        """A client of the server, which answers in this process: ``driver.client.get("/v1/stores")``. The first request
        starts the server. Answers come as a whole: endless streams, such as changes, raise `httpx.ReadTimeout` after 30
        s, or the request's own ``timeout``."""
        self._running()
        return self._served.client

    def restart(self) -> None:
        """Stop the worker, which commits, and start another one with the same state. Raises as `pipe`."""
        self._served.stop()
        stopped, self._stepped = self._running(), None
        stopped.stop()
        self._stepped = SteppedWorker(self._app, self._place, self._clock)
        self.process()  # tables in memory are read anew

    def crash(self) -> None:
        """Kill the worker, and start another one on its files and topics. Uncommitted state is gone. Its input is read
        again, as after `abort`. Raises as `pipe`."""
        self._served.stop()
        killed, self._stepped = self._running(), None
        left = self._place.copied()
        killed.kill()
        self._place.move(left)
        self._stepped = SteppedWorker(self._app, self._place, self._clock)
        self._go_on()

    def close(self) -> None:
        """Stop, and delete all files. A second call does nothing."""
        with ExitStack() as last_first:
            last_first.callback(self._place.close)
            if self._stepped is not None:
                last_first.callback(self._stepped.kill)
            last_first.callback(self._served.close)
            self._stepped = None

    def __enter__(self) -> TestDriver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _go_on(self) -> None:
        if self.autocommit:
            self.process()

    def _running(self) -> SteppedWorker:
        if self._stepped is None:
            raise StoreClosedError("This test driver is closed, or could not be started again: make another one.")
        return self._stepped

    @property
    def _worker(self) -> Worker:
        return self._running().worker
