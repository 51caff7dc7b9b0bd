"""Stores of every kind, filled and owned by this process, and a server beside it: what `bench_scans` and `bench_sql`
ask."""

from __future__ import annotations

import importlib
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from processes import server_process, until_ready
from topic import key_of, value

from stateline.backup.location import BackupLocation
from stateline.backup.writing import BackupWriter
from stateline.deployment.stores.topology_file import PublishedTopology, publish_topology
from stateline.dsl.app import App
from stateline.query.values import HostedPartition
from stateline.serde.plain import type_name
from stateline.worker.files.registration import Registration, socket_path
from stateline.worker.queries.query_socket import QuerySocket
from stateline.worker.queries.snapshots import SnapshotMaker
from stateline_store import (
    IsolationLevel,
    SessionStore,
    StateDirectory,
    StoreContext,
    StoreState,
    TimestampedKeyValueStore,
    TransactionalStore,
    VersionedStore,
    Windowed,
    WindowStore,
)
from stateline_store.clock import now_ms
from stateline_store.snapshots.backup import Backup, backup_id
from stateline_store.snapshots.checkpoints import CheckpointPart, link_database
from stateline_store.snapshots.store_copies import StoreCopy

PARTITIONS = 4
_SLICE = 10_000
_WINDOW_MS = 60_000
_I64 = struct.Struct(">q")
_WINDOWS_OF_A_KEY = 10


class Owner:
    """The stores, each with so many rows of these values in turn, spread over the partitions; it answers on a thread of
    its own."""

    def __init__(self, app: App, state_dir: Path, rows: dict[str, int], values: Sequence[bytes]) -> None:
        self._values = values
        self._directory = StateDirectory(state_dir, app.application_id)
        topology, application = app.topology(), self._directory.application
        self._topology = topology
        self._stores: dict[tuple[str, int], TransactionalStore] = {}
        for name, definition in topology.stores.items():
            for partition in range(PARTITIONS):
                store = definition.build()
                assert isinstance(store, TransactionalStore)
                store.init(StoreContext(f"0_{partition}", self._directory.task(f"0_{partition}")))
                store.set_state(StoreState.ACTIVE)
                self._stores[name, partition] = store
                self._fill(store, partition, rows.get(name, 0))
                store.commit({})
        self._instance = Registration(application, "worker-0")
        handlers = SnapshotMaker(self._directory, topology, self._hosted).handlers
        self._socket = QuerySocket(path := socket_path(application, "worker-0"), self._hosted, handlers=handlers)
        level = IsolationLevel.READ_COMMITTED
        publish_topology(application, PublishedTopology.of(topology, {0: PARTITIONS}, level))
        self._instance.update(
            path, {f"0_{p}": "running" for p in range(PARTITIONS)}, self._directory.process_id()
        )  # fmt: skip
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def back_up(self, location: Path) -> None:
        """Write a backup of the stores to this directory. For the time before anybody asks."""
        told, parts, linked = {}, [], self._directory.application / "linked"
        for (name, partition), store in self._stores.items():
            definition = self._topology.stores[name]
            database = self._directory.store(f"0_{partition}", name, timestamped=definition.timestamped)
            directory = f"0_{partition}/{database.name}"
            (linked / directory).parent.mkdir(parents=True, exist_ok=True)
            lengths = link_database(database, linked / directory)
            position = store.position(IsolationLevel.READ_COMMITTED)
            parts.append(CheckpointPart(name, partition, directory, store.commit_number, 0, position, lengths))
            told[name] = {
                "kind": definition.kind, "key_type": type_name(definition.key),
                "value_type": type_name(definition.value), "retention_ms": definition.retention_ms,
                "window_size_ms": definition.window_size_ms, "partitions": PARTITIONS,
            }  # fmt: skip
        at_ms, copy = now_ms(), StoreCopy.of("here", {}, parts, linked)
        backup = Backup(backup_id(at_ms), "node", self._topology.application_id, at_ms, "", told, {}, {}, {}, copy)
        target = BackupLocation(str(location), self._topology.application_id, create=True)
        BackupWriter(target, "node", 3_600_000, -1).write(backup, linked, threading.Event())

    def close(self) -> None:
        """Stop answering, and close the stores."""
        self._done.set()
        self._thread.join()
        self._socket.close()
        self._instance.remove()
        for store in self._stores.values():
            store.close()

    def _fill(self, store: TransactionalStore, partition: int, rows: int) -> None:
        values = self._values
        for first in range(partition, rows, PARTITIONS * _SLICE):
            numbers = range(first, min(rows, first + PARTITIONS * _SLICE), PARTITIONS)
            if isinstance(store, TimestampedKeyValueStore):
                store.put_all_with_timestamp((key_of(n), values[n % len(values)], 1_000 + n) for n in numbers)
            for n in numbers:
                key, at_ms = key_of(n // _WINDOWS_OF_A_KEY), 10**12 + n % _WINDOWS_OF_A_KEY * _WINDOW_MS
                if isinstance(store, WindowStore):
                    store.put(key, _I64.pack(n), at_ms)
                elif isinstance(store, SessionStore):
                    store.put(Windowed(key, at_ms, at_ms + 1_000), _I64.pack(n))
                elif isinstance(store, VersionedStore):
                    store.put(key_of(n), values[n % len(values)], at_ms)
            store.commit({})

    def _serve(self) -> None:
        while not self._done.is_set():
            self._socket.let_in(0.05)

    def _hosted(self, name: str, partition: int) -> HostedPartition | None:
        store = self._stores.get((name, partition))
        return None if store is None else HostedPartition(store, StoreState.ACTIVE)


@contextmanager
def scene(
    root: Path,
    rows: dict[str, int],
    module: str = "scan_app",
    values: Sequence[bytes] = (),
    settings: Mapping[str, object] = MappingProxyType({}),
    backup: Path | None = None,
) -> Iterator[tuple[int, int]]:
    """The port and process of a server with these settings, beside an owner of the module's stores with so many rows,
    of random values unless told. Their backup is in the directory `backup`."""
    owner = Owner(importlib.import_module(module).app, root, rows, values or [value() for _ in range(1000)])
    try:
        if backup is not None:
            owner.back_up(backup)
        with server_process("embedded", root, settings, module) as (port, child):
            until_ready(port)
            yield port, child.pid
    finally:
        owner.close()
