"""`TestDriver`: an application in one process and on one thread, which goes on only when a test says so."""

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
from stateline.testing.clock import MovedClock
from stateline.testing.http_client import ServedClient
from stateline.testing.place import DriverFolder
from stateline.testing.records import DeadLetter, Record, TopicReader, TopicWriter
from stateline.testing.stepped import SteppedWorker
from stateline.testing.stores import TestedStore, tested_store
from stateline.worker.loop.worker import Worker
from stateline_store import ConfigurationError, InvalidArgumentError, StoreClosedError
from stateline_store.clock import now_ms


class TestDriver:
    """Runs what an application declares, but for its pipelines, as a worker and a server do.

    What is piped is processed when the call returns, and all that comes of it in other topics of the application; with
    `autocommit` it is committed, too. Nothing sleeps, and no clock moves but by `advance_wall_clock`. What a worker
    would end with is raised by the call that made it process the record; then the state is that of the last commit, and
    the record is read again by whatever goes on, as in production.

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
        """`partitions`: of all topics that an application's owner creates, or of some by name, the others having 1.
        `config`: settings over those of the `App`, such as ``{"processing.guarantee": "exactly_once_v2"}``; environment
        and files are not looked at. `wall_clock_ms`: where the wall clock stands, in milliseconds since the epoch; None
        is now.

        Raises `TopologyError` for an application that cannot run as declared, `ConfigurationError` for settings,
        `InvalidArgumentError` for arguments that cannot be.
        """
        if not isinstance(app, App):
            raise InvalidArgumentError(f"{shown(app)} is no App: give the App itself, as in TestDriver(app).")
        self.autocommit = autocommit
        """Whether each call commits what it has processed. May be changed between calls."""
        self._app = app
        self._topology = topology = app.topology()
        self._clock = MovedClock(now_ms() if wall_clock_ms is None else checked_timestamp(wall_clock_ms))
        self._writer, self._reader = TopicWriter(topology), TopicReader(topology)
        self._definitions = {**topology.stores, **topology.global_tables}
        self._stepped: SteppedWorker | None = None
        with ExitStack() as failed:
            self._place = DriverFolder(app, config or {})
            failed.callback(self._place.close)
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
        """Write a record, and process it. `value` None deletes the key; without `timestamp_ms` it has the time of the
        wall clock; without `partition` it goes where Kafka's producers put its key.

        Raises `DoesNotExistError` for a topic that no worker of the application reads, `InvalidArgumentError` for a key
        or value that is none of the topic's types, and what processing raises: `RecordError` under the policy `fail`.
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
        """As `pipe`, of a record whose key and value are these bytes, whether the topic's serdes can read them or not.
        Its timestamp may be negative. A record that cannot be read meets ``deserialization.exception.handler``."""
        self._running()
        record = Record(key, value, timestamp_ms, headers, partition)
        self._writer.write(self._place.log, topic, [record], self._clock.now_ms(), as_bytes=True)
        self.process()

    def pipe_all(self, topic: str | Topic, records: Iterable[Record]) -> None:
        """As `pipe`, many records at once, which takes less time: all are written, then they are processed."""
        self._running()
        self._writer.write(self._place.log, topic, records, self._clock.now_ms())
        self.process()

    def process(self) -> None:
        """Process what there is to be read: something may be there after an `abort` or a `crash` without `autocommit`,
        and after a failure. Raises as `pipe`."""
        self._running().work(commits=self.autocommit)

    def commit(self) -> None:
        """Commit what was processed, process what can be read then, and so on, until all is committed. Exactly once
        what was forwarded is seen from then on. Raises as `pipe`."""
        self._running().work(commits=True)

    def abort(self) -> None:
        """Drop what is not committed, as a worker does whose transaction fails: stores are as of the last commit. The
        input since is read again, with `autocommit` at once, without it by whatever is called next. At least once, what
        was forwarded stays. Raises as `pipe`."""
        self._running().start_over()
        self._go_on()

    def advance_wall_clock(self, by: int | timedelta) -> None:
        """Move the wall clock by so many milliseconds, or a `timedelta`, and call what is due by it: a punctuation is
        called once, however much time has passed. Raises `InvalidArgumentError` for a time back, and as `pipe`."""
        self._clock.advance(by)
        self.process()

    @property
    def wall_clock_ms(self) -> int:
        """Where the wall clock stands, in milliseconds since the epoch."""
        return self._clock.now_ms()

    def read(self, topic: str | Topic) -> list[Record]:
        """The records of this topic that were committed since the last call for it, of all partitions, in the order of
        their offsets. Raises `DoesNotExistError` for a topic that the application does not have."""
        self._running()
        return self._reader.read(self._place.log, topic)

    def dead_letters(self) -> list[DeadLetter]:
        """The records that were set aside since the last call. Raises `ConfigurationError` where the application has no
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
        """A store, a table or a global table. Raises `DoesNotExistError` for one that the application does not have."""
        level = self._place.config.default_state_isolation_level
        return tested_store(lambda: self._worker, self._definitions, name, level)

    @property
    def client(self) -> httpx.Client:
        """A client of the server, which answers in this process: ``driver.client.get("/v1/stores")``. The server starts
        with the first request, and ends with the driver. An answer comes as a whole: streams without an end, such as
        changes, raise `httpx.ReadTimeout` after 30 s, or the request's own ``timeout``."""
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
        """Kill the worker and start another one: files and topics are as they were at this moment, and what was not
        committed is gone. The input since is read again as after an `abort`. Raises as `pipe`."""
        self._served.stop()
        killed, self._stepped = self._running(), None
        left = self._place.copied()
        killed.kill()
        self._place.move(left)
        self._stepped = SteppedWorker(self._app, self._place, self._clock)
        self._go_on()

    def close(self) -> None:
        """Stop, and delete what is in files. A second call does nothing."""
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
