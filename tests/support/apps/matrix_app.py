"""An application with a store of every kind, in two copies: on disk and in memory; and what each of its partitions
should answer, from plain dicts.

Its worker and its server run as an operator starts them (`Deployment`); several partitions, real processes.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from stateline import serdes, stores
from stateline.dsl.app import App
from stateline.log import Log, open_log
from stateline.model.store_definition import StoreDefinition
from stateline.serde.partitioner import home_partition
from stateline.worker import InputRecord
from support import TESTS
from support.apps import kinds_app
from support.apps.kinds_app import HISTORY_MS, Event, Oracle
from support.processes.forked import Forked
from support.processes.ports import free_port
from support.processes.query_server import wait_until
from support.processes.running_worker import create, produce
from support.run.patience import HANGING_S

PARTITIONS = 3
ON_DISK, IN_MEMORY = "", "-in-memory"
COPIES = (ON_DISK, IN_MEMORY)


def build(run: str) -> App:
    """Each store twice; the processor writes both copies alike."""
    app = App(f"matrix-{run}")
    events = app.topic(f"events-{run}", key=serdes.string, value=serdes.json)
    for copy in COPIES:
        _add(app, events, copy, persistent=copy == ON_DISK)
    return app


def _add(app: App, events: Any, copy: str, *, persistent: bool) -> None:
    common: dict[str, Any] = {"key": serdes.string, "value": serdes.json, "persistent": persistent}
    history = kinds_app._time(HISTORY_MS)
    definitions: list[StoreDefinition] = [
        *(replace(each, name=each.name + copy) for each in kinds_app.definitions(persistent)),
        stores.key_value(f"plain{copy}", **common),
        stores.timestamped_key_value(f"stamped{copy}", **common),
    ]
    made = [app.store(definition) for definition in definitions]
    app.table(events, store=f"latest{copy}", persistent=persistent)
    versions = app.table(events, store=f"table{copy}", versioned=history, persistent=persistent)

    def keep(record: InputRecord, *views: Any) -> None:
        *of_kinds, plain, stamped, table = views
        views_of_kinds: Any = (*of_kinds, table)
        kinds_app.keep(record, *views_of_kinds)
        plain.put(record.key, record.value)
        stamped.put(record.key, record.value)

    app.process(events, stores=[*made, versions], name=f"keep{copy}")(keep)


class _KeyValues:
    """Entries by key, as (value, timestamp or None)."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[Any, int | None]] = {}


class PartitionOracle(Oracle):
    """What the records of one partition make of every store; the key-value stores have their rows in `entries`."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = {name: _KeyValues() for name in ("plain", "stamped", "latest")}

    def take(self, event: Event) -> None:
        """Process one record."""
        self.process([event])
        key, value, at = event
        for name, kept in self.entries.items():
            if value is None:
                kept.rows.pop(key, None)
            else:
                kept.rows[key] = (value, None if name == "plain" else at)


class History:
    """The records of every partition in order, and what any number of them make of the stores."""

    def __init__(self) -> None:
        self.records: dict[int, list[Event]] = {p: [] for p in range(PARTITIONS)}
        self.at = cache(self._at)

    def add(self, events: list[Event]) -> None:
        for event in events:
            self.records[home_partition(event[0].encode(), PARTITIONS)].append(event)

    def ends(self) -> dict[int, int]:
        """The offset of the last record of each partition."""
        return {p: len(records) - 1 for p, records in self.records.items()}

    def _at(self, partition: int, offset: int) -> PartitionOracle:
        oracle = PartitionOracle()
        for event in self.records[partition][: offset + 1]:
            oracle.take(event)
        return oracle


class Deployment:
    """The application's log and state directory; workers and servers are processes of their own."""

    module = "support.apps.matrix_app"

    def __init__(self, root: Path, servers: str, run: str) -> None:
        self.root, self.run, self.topic = root, run, f"events-{run}"
        self.servers = servers or f"embedded:{root / 'log.db'}"
        self.log: Log = open_log(self.servers, root)
        self.history = History()
        create(self.log, {self.topic: PARTITIONS})

    def send(self, events: list[Event]) -> None:
        """Write these records, and remember them."""
        written = [(key.encode(), None if v is None else json.dumps(v).encode(), at) for key, v, at in events]
        self.history.add(events)  # first: an answer may have them before this returns
        produce(self.log, self.topic, written)

    @contextlib.contextmanager
    def worker(self, **settings: Any) -> Iterator[Forked]:
        """A worker process; stopped in order at the end unless it was killed, so that it commits what it has."""
        with self._process("worker", self.root / "worker.log", **settings) as process:
            yield process
            if process.poll() is None:
                process.terminate()
                assert process.wait(HANGING_S) == 0, (self.root / "worker.log").read_text()[-3000:]

    @contextlib.contextmanager
    def server(self, **settings: Any) -> Iterator[httpx.Client]:
        """A server process, and a client of it that finds it listening."""
        port = free_port()
        log = self.root / "server.log"
        with self._process("serve", log, server__port=port, **settings) as process:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANGING_S) as client:
                wait_until(lambda: process.poll() is not None or _listens(client), 120)
                assert process.poll() is None, log.read_text()[-3000:]
                yield client
            process.terminate()
            assert process.wait(HANGING_S) == 0

    @contextlib.contextmanager
    def _process(self, command: str, log: Path, **settings: Any) -> Iterator[Forked]:
        given = {"bootstrap__servers": self.servers, "state__dir": self.root / "s"} | settings
        words = [command, f"{self.module}:app"]
        for name, value in given.items():
            words += ["--set", f"{name.replace('__', '.')}={value}"]
        environment = {**os.environ, "MATRIX_RUN": self.run}
        with log.open("ab") as output:
            process = Forked(words, cwd=TESTS, env=environment, output=output.fileno())
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def wait_for(self, client: httpx.Client, level: str, ends: dict[int, int]) -> None:
        """Until every store has come so far at this level ("committed" or "uncommitted")."""
        wanted = {str(p): {self.topic: {str(p): end}} for p, end in ends.items()}

        def there(store: str) -> bool:
            response = client.get(f"/v1/stores/{store}/position")
            return response.status_code == 200 and response.json()[level] == wanted

        for name in build(self.run).topology().stores:
            wait_until(lambda name=name: there(name), 120)  # type: ignore[misc]  # a default that binds the name


def _listens(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


app = build(os.environ.get("MATRIX_RUN", "none"))
