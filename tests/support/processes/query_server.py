"""A worker and a server for tests: stores owned by a thread of this process, the server in a process of
its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
from confluent_kafka import murmur2

from stateline import serdes
from stateline.config.loading import load_config
from stateline.deployment.stores.topology_file import (
    PublishedStore,
    PublishedSubtopology,
    PublishedTopology,
    publish_topology,
)
from stateline.dsl.app import App
from stateline.query.values import HostedPartition
from stateline.serde.plain import Serde
from stateline.server import serve
from stateline.stores import key_value
from stateline.worker.files.registration import Registration
from stateline.worker.queries.query_socket import QuerySocket
from stateline.worker.queries.snapshots import SnapshotMaker
from stateline_store import (
    KeyValueStore,
    Position,
    StateDirectory,
    StoreContext,
    StoreState,
    TimestampedKeyValueStore,
    TopicPartition,
    TransactionalStore,
)
from support import TESTS
from support.processes.forked import Forked
from support.processes.ports import free_port
from support.run.patience import HANGING_S, MOST_PAUSE_S, pause_s

PARTITIONS = 3
TOPIC = "flights"
# Of a timestamp far from now, so that no clock can be confused with it.
TIMESTAMP_MS = 1_362_000_000_000


def make_app(value: Serde = serdes.json) -> App:
    """Every kind of store that there is, over one topic of three partitions, whose tables have values of this type."""
    app = App("flights-app")
    topic = app.topic(TOPIC, key=serdes.string, value=value)
    app.table(topic, store="aircraft")
    app.table(topic, store="cache", persistent=False)
    counts = app.store(key_value("counts", key=serdes.int64, value=serdes.int64))
    blobs = app.store(key_value("blobs", key=serdes.bytes, value=serdes.bytes))
    places = app.store(key_value("places", key=serdes.json, value=serdes.json))

    @app.process(topic, stores=[counts, blobs, places])
    def update(record: Any, counts: Any, blobs: Any, places: Any) -> None: ...

    return app


def wait_until(condition: Callable[[], bool], timeout_s: float = HANGING_S, most_pause_s: float = MOST_PAUSE_S) -> None:
    """Poll until it holds; fails loudly when it does not."""
    began_s = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - began_s
        assert waited_s < timeout_s, "the condition did not come true in time"
        time.sleep(pause_s(waited_s, most_pause_s))


class OwningWorker:
    """Owns the stores of all partitions on a thread that alternates between answering queries and jobs."""

    def __init__(self, state_dir: Path, name: str = "w1", app: App | None = None) -> None:
        self._app = app or make_app()
        self.application = StateDirectory(state_dir, "flights-app").application
        self.name = name
        self.stores: dict[tuple[str, int], KeyValueStore] = {}
        self.states: dict[int, StoreState] = {}
        self._next_offset = [0] * PARTITIONS
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._state_dir = state_dir
        self._killed = False
        self._registration = Registration(self.application, name)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        self.run(lambda: None)

    def run(self, job: Callable[[], Any]) -> Any:
        """Do this on the owning thread and return what it returns."""
        future: Future[Any] = Future()
        self._jobs.put((job, future))
        return future.result(HANGING_S)

    def put(self, key: str, value: Any, *, partition: int | None = None) -> TopicPartition:
        """Stage a record of the topic in both tables; where it went."""
        return TopicPartition(TOPIC, self.run(lambda: self._put(key, value, partition)))

    def put_all(self, entries: Mapping[str, Any]) -> None:
        """The same for many, each a record of its own. Quicker: a job alone may have to wait 2 ms for its turn."""
        records = list(entries.items())
        for first in range(0, len(records), 1_000):  # queries are answered in between
            self.run(partial(self._put_each, records[first : first + 1_000]))

    def offset(self, partition: int) -> int:
        """The offset of the last record put into this partition."""
        return self._next_offset[partition] - 1

    def commit(self) -> None:
        """Commit every store, then announce it."""
        self.run(self.commit_here)

    def commit_here(self) -> None:
        """What `commit` does; on the owning thread."""
        for store in self.stores.values():
            store.commit({})
        self.socket.announce_commit()

    def set_state(self, state: StoreState) -> None:
        """Publish this state of every partition."""
        self.run(lambda: self._set_state(state))

    def close(self, *, killed: bool = False) -> None:
        """Stop as a worker does that exits cleanly, or leave everything about as one that is killed."""
        self._killed = killed
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join(HANGING_S)

    def _put_each(self, records: Sequence[tuple[str, Any]]) -> None:
        for key, value in records:
            self._put(key, value, None)

    def _put(self, key: str, value: Any, partition: int | None) -> int:
        data, text = key.encode(), None if value is None else json.dumps(value).encode()
        number = murmur2(data, PARTITIONS) if partition is None else partition
        for name in ("aircraft", "cache"):
            table = self.stores[name, number]
            assert isinstance(table, TimestampedKeyValueStore)
            table.put_with_timestamp(data, text, TIMESTAMP_MS)
        position = Position.of({TopicPartition(TOPIC, number): self._next_offset[number]})
        self._next_offset[number] += 1
        for (_, p), store in self.stores.items():
            if p == number:
                store.advance(position)
                store.publish_staged()
        return int(number)

    def _set_state(self, state: StoreState) -> None:
        for (_, partition), store in self.stores.items():
            store.set_state(state)
            self.states[partition] = state

    def _work(self) -> None:
        self._open()
        while (item := self._next_job()) is not None:
            job, future = item
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 - it is raised again where the job was asked for
                future.set_exception(error)
        self.socket.close()
        if self._killed:
            self._registration.lock.close()  # as the system does
            return  # nobody says that the stores are closed, and the instance's file stays
        self._registration.remove()
        for store in self.stores.values():
            store.close()

    def _next_job(self) -> tuple[Callable[[], Any], Future[Any]] | None:
        while True:
            with contextlib.suppress(queue.Empty):
                return self._jobs.get_nowait()
            self.socket.let_in(0.002)

    def _open(self) -> None:
        directory = StateDirectory(self._state_dir, "flights-app")
        topology = self._app.topology()
        for definition in topology.stores.values():
            for partition in range(PARTITIONS):
                store = definition.build()
                assert isinstance(store, TransactionalStore)
                store.init(StoreContext(f"0_{partition}", directory.task(f"0_{partition}"), types=definition.types))
                self.stores[definition.name, partition] = store  # type: ignore[assignment]  # most are of this kind
        self._set_state(StoreState.ACTIVE)
        snapshots = SnapshotMaker(directory, topology, self._hosted)
        declared = {definition.name: definition.description for definition in topology.stores.values()}
        self.socket = QuerySocket(
            self._state_dir / f"{self.name}.sock", self._hosted, handlers=snapshots.handlers, declared=declared
        )
        self._publish(sorted(topology.stores))

    def _hosted(self, store: str, partition: int) -> HostedPartition | None:
        found = self.stores.get((store, partition))
        return None if found is None else HostedPartition(found, self.states[partition])

    def _publish(self, stores: list[str]) -> None:
        subtopology = PublishedSubtopology(0, PARTITIONS, [TOPIC], stores, [])
        placed = {name: PublishedStore(0, TOPIC) for name in stores}
        publish_topology(self.application, PublishedTopology("", "read_uncommitted", [subtopology], placed, {}, "", ""))
        tasks = {f"0_{partition}": "running" for partition in range(PARTITIONS)}
        self._registration.update(self._state_dir / f"{self.name}.sock", tasks, uuid4())


@contextlib.contextmanager
def server_process(state_dir: Path, *settings: str) -> Iterator[httpx.Client]:
    """A server over this state directory, and a client of it; stopped as an operator would, and expected
    to go.
    """
    port = free_port()
    given = (f"--set={setting}" for setting in (f"state.dir={state_dir}", f"server.port={port}", *settings))
    process = Forked(["serve", "support.apps.flights_app:app", *given], cwd=TESTS, env=os.environ, output=2)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANGING_S) as client:
            wait_until(lambda: process.poll() is not None or _answers(client))
            assert process.poll() is None, "the server ended at once"
            yield client
            process.terminate()
            assert process.wait(HANGING_S) == 0
    finally:
        process.kill()
        process.wait()


def from_another_address(client: httpx.Client) -> httpx.Client:
    """Another caller of this server: who has no token is known by the address."""
    transport = httpx.HTTPTransport(local_address="127.0.0.2")
    return httpx.Client(base_url=client.base_url, transport=transport, timeout=HANGING_S)


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("state_dir")
    parser.add_argument("settings", nargs="*")
    given = parser.parse_args()
    config = load_config("flights-app", overrides=[f"state.dir={given.state_dir}", *given.settings])
    serve(make_app(), config)
