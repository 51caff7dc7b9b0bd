"""A snapshot of 10 million records over HTTP: the median under 200 ms (the slowest is printed beside it), while ingest
loses less than a tenth. Read as Arrow: at least a million rows per second.

The stores are owned by this process, in a loop as the worker's: slices of records, a commit every 100 ms, requests of
the server between slices. Rounds with snapshots, one every second, and without take turns.
"""

from __future__ import annotations

import http.client
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
from figures import at_least, at_most
from ingest_app import app
from processes import server, until_ready
from topic import TOPIC, key_of, value

from stateline.deployment.stores.topology_file import PublishedTopology, publish_topology
from stateline.query.values import HostedPartition
from stateline.worker.files.registration import Registration, socket_path
from stateline.worker.queries.query_socket import QuerySocket
from stateline.worker.queries.snapshots import SnapshotMaker
from stateline_store import IsolationLevel, StateDirectory, StoreContext, StoreState, TimestampedKeyValueStore

ROWS = 10_000_000
PARTITIONS = 4
BATCH = 100_000
SLICE = 1_000
COMMIT_S = 0.1
ROUND_S = 5.0
ROUNDS = 4


class Owner:
    """The stores, and what a worker does with them."""

    def __init__(self, state_dir: Path) -> None:
        self._directory = StateDirectory(state_dir, app.application_id)
        topology, application = app.topology(), self._directory.application
        definition = topology.stores[TOPIC]
        self._stores: list[TimestampedKeyValueStore] = []
        for partition in range(PARTITIONS):
            store = definition.build()
            assert isinstance(store, TimestampedKeyValueStore)
            store.init(StoreContext(f"0_{partition}", self._directory.task(f"0_{partition}")))
            store.set_state(StoreState.ACTIVE)
            self._stores.append(store)
        self._values = [value() for _ in range(1000)]
        self._instance = Registration(application, "worker-0")
        path, handlers = socket_path(application, "worker-0"), self._maker().handlers
        self._socket = QuerySocket(path, self._hosted, handlers=handlers)
        levels = IsolationLevel.READ_COMMITTED
        publish_topology(application, PublishedTopology.of(topology, {0: PARTITIONS}, levels))
        tasks = {f"0_{partition}": "running" for partition in range(PARTITIONS)}
        self._instance.update(path, tasks, self._directory.process_id())

    def load(self) -> None:
        """All records, spread over the partitions."""
        for first in range(0, ROWS, BATCH):
            store = self._stores[first // BATCH % PARTITIONS]
            values = self._values
            store.put_all_with_timestamp((key_of(n), values[n % 1000], n) for n in range(first, first + BATCH))
            store.commit({})

    def serve(self, done: threading.Event) -> None:
        """Answer, and do nothing else."""
        while not done.is_set():
            self._socket.let_in(0.005)

    def ingest(self, seconds: float) -> float:
        """Overwrite records for so long, answering between slices; how many per second."""
        began = committed = time.perf_counter()
        slices = 0
        while (now := time.perf_counter()) - began < seconds:
            store, first = self._stores[slices % PARTITIONS], slices * SLICE * 37 % ROWS
            values = self._values
            store.put_all_with_timestamp((key_of(n), values[n % 1000], n) for n in range(first, first + SLICE))
            slices += 1
            if now - committed >= COMMIT_S:
                for each in self._stores:
                    each.commit({})
                self._socket.announce_commit()
                committed = now
            self._socket.let_in()
        return slices * SLICE / (now - began)

    def close(self) -> None:
        self._socket.close()
        self._instance.remove()
        for store in self._stores:
            store.close()

    def _maker(self) -> SnapshotMaker:
        return SnapshotMaker(self._directory, app.topology(), self._hosted)

    def _hosted(self, name: str, partition: int) -> HostedPartition | None:
        return HostedPartition(self._stores[partition], StoreState.ACTIVE) if name == TOPIC else None


class Snapshots(threading.Thread):
    """Makes one every second and releases it, while told to."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self.wanted, self.done = threading.Event(), threading.Event()
        self.seconds: list[float] = []

    def run(self) -> None:
        while not self.done.wait(1.0):
            if not self.wanted.is_set():
                continue
            began = time.perf_counter()
            made = ask(self._port, "POST", "/v1/snapshots", {"stores": [TOPIC]})
            self.seconds.append(time.perf_counter() - began)
            ask(self._port, "DELETE", f"/v1/snapshots/{json.loads(made)['id']}")


def ask(port: int, method: str, path: str, body: object = None) -> bytes:
    """The answer, which has to be a good one."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        answer = response.read()
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: {response.status} {answer[:500]!r}")
        return answer


@contextmanager
def serving(owner: Owner) -> Iterator[None]:
    """The owner answers on a thread of its own meanwhile."""
    done = threading.Event()
    thread = threading.Thread(target=owner.serve, args=(done,))
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def read_rate(port: int) -> float:
    """Rows per second of one partition, from the first request on: the checkpoint is opened in it."""
    made = json.loads(ask(port, "POST", "/v1/snapshots", {"stores": [TOPIC]}))
    path = made["stores"][TOPIC]["0"]["path"]
    ask(port, "GET", f"{path}?upper=")  # opens it
    rates = []
    for _ in range(3):
        began, rows = time.perf_counter(), 0
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request("GET", path)
            with pa.ipc.open_stream(connection.getresponse()) as reader:
                for batch in reader:
                    rows += batch.num_rows
        rates.append(rows / (time.perf_counter() - began))
        print(f"  {rows:,} rows read as Arrow, {rates[-1]:,.0f}/s", flush=True)
    ask(port, "DELETE", f"/v1/snapshots/{made['id']}")
    return statistics.median(rates)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        state_dir = Path(directory)
        with closing(Owner(state_dir)) as owner:
            began = time.perf_counter()
            owner.load()
            print(f"  {ROWS:,} records written in {time.perf_counter() - began:.0f} s", flush=True)
            with server("embedded", state_dir) as port:
                with serving(owner):
                    until_ready(port)
                    rate = read_rate(port)
                snapshots = Snapshots(port)
                snapshots.start()
                losses = []
                for _ in range(ROUNDS):
                    snapshots.wanted.clear()
                    plain = owner.ingest(ROUND_S)
                    snapshots.wanted.set()
                    beside = owner.ingest(ROUND_S)
                    losses.append(1 - beside / plain)
                    print(f"  ingest {plain:,.0f}/s, with snapshots {beside:,.0f}/s", flush=True)
                with serving(owner):
                    snapshots.done.set()
                    snapshots.join()
    print(f"  {len(snapshots.seconds)} snapshots, the slowest {max(snapshots.seconds) * 1000:.0f} ms")
    at_most("a snapshot of 10 million records, the median", statistics.median(snapshots.seconds) * 1000, 200, " ms")
    at_most("what ingest loses to a snapshot every second", statistics.median(losses) * 100, 10, " %")
    at_least("rows of a snapshot read as Arrow over HTTP", rate / 1e6, 1.0, " M/s")


if __name__ == "__main__":
    main()
