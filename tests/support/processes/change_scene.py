"""A worker and a server as processes over one log, and readers of the changes that the server feeds."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import orjson

from stateline.log import Log, Record
from stateline.server.changes.routes import change_members
from stateline_store import TopicPartition
from support import TESTS
from support.apps import changes_app
from support.processes.forked import Forked
from support.processes.ports import free_port
from support.processes.query_server import wait_until
from support.processes.running_worker import create, produce, read_all
from support.run.patience import HANGING_S

PARTITIONS = 2
FIRST = [("a", 1), ("b", 2), ("a", {"x": [1, 2]}), ("b", None), ("c", "ü\n"), ("a", 4), ("d", 5), ("d", None), ("e", 6)]
# Of now, and the beginning of a window: retention deletes what is older than a day from changelogs of windows.
TIME_MS = time.time_ns() // 1_000_000 // changes_app.SIZE_MS * changes_app.SIZE_MS
BEAT_MS = 100
PATIENCE_S = HANGING_S
MAX_BEATS = 60_000 // BEAT_MS  # in a row: nothing more will come


class Event(NamedTuple):
    """One event: its name, its id, its data."""

    name: str
    id: str
    data: Any


class Reader:
    """Reads one stream of events; a comment is an event without a name."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.id = ""
        self._lines = response.iter_lines()

    def __iter__(self) -> Iterator[Event]:
        name, data = "", list[str]()
        for line in self._lines:
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "id":
                self.id = value
            elif field == "data":
                data.append(value)
            elif line == ":":
                yield Event("", self.id, None)
            elif not line and name:
                yield Event(name, self.id, json.loads("\n".join(data)))
                name, data = "", []

    def take(self, count: int) -> list[Event]:
        """So many changes, heartbeats left out."""
        found: list[Event] = []
        beats = 0
        while len(found) < count:
            event = next(iter(self))
            assert event.name in ("", "change"), event
            found += [event] if event.name else []
            beats = 0 if event.name else beats + 1
            assert beats < MAX_BEATS, f"{len(found)} changes came, and then none: {found[-3:]}"
        return found

    def beat(self) -> None:
        """The next thing that comes is a heartbeat."""
        assert next(iter(self)).name == ""

    def end(self) -> Any:
        """What the last event says; changes before it are passed over."""
        return next(event for event in self if event.name == "end").data


class Scene:
    """An application of its own on a log: input goes to two partitions, each key to one."""

    def __init__(self, bootstrap: str, log: Log, root: Path, *settings: str) -> None:
        self.run = uuid4().hex[:8]
        self.log, self.bootstrap, self.state_dir = log, bootstrap, root / "state"
        self.source = f"in-{self.run}"
        self.application_id = f"changes-{self.run}"
        self._settings = [
            f"bootstrap.servers={bootstrap}",
            f"state.dir={self.state_dir}",
            "commit.interval.ms=50",
            "session.timeout.ms=6000",
            "group.instance.id=the-worker",
            f"server.changes.heartbeat.ms={BEAT_MS}",
            *settings,
        ]
        self._output = root / "output.log"
        self._closing = ExitStack()
        create(log, {self.source: PARTITIONS})
        self._sent = 0
        self.processes: list[Forked] = []
        """All that were started, in order."""

    def __enter__(self) -> Scene:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def topic(self, store: str) -> str:
        """Where the changes of this store are read from."""
        return self.source if store in changes_app.TABLES else f"{self.application_id}-{store}-changelog"

    def start_worker(self) -> Forked:
        """A worker, to be ended by the test or at the end of it."""
        return self._start("worker")

    def start_server(self, *settings: str) -> tuple[Forked, httpx.Client]:
        """A server, and a client of it."""
        port = free_port()
        process = self._start("serve", f"server.port={port}", *settings)
        client = self._closing.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S))
        wait_until(lambda: process.poll() is not None or _answers(client), PATIENCE_S)
        assert process.poll() is None, self.output()
        return process, client

    def send(self, entries: Iterable[tuple[str, Any]]) -> None:
        """Write records; a value of None deletes. Each is a second later than the one before."""
        producer = self.log.producer()
        for key, value in entries:
            data = None if value is None else json.dumps(value).encode()
            at, partition = TIME_MS + 1000 * self._sent, sum(key.encode()) % PARTITIONS
            producer.produce(self.source, key.encode(), data, timestamp_ms=at, partition=partition)
            self._sent += 1
        producer.flush()
        producer.close()

    def end(self, partition: int) -> int:
        """The offset of the last record of the input's partition."""
        admin = self.log.admin()
        end = admin.watermarks(TopicPartition(self.source, partition))[1]
        admin.close()
        return end - 1

    def bound(self) -> str:
        """A position bound on all that was sent."""
        return json.dumps({self.source: {str(p): self.end(p) for p in range(PARTITIONS) if self.end(p) >= 0}})

    def settle(self, client: httpx.Client, store: str = "counts") -> Any:
        """Wait until a store has committed all that was sent; the answer's position."""
        parameters = {"isolation_level": "read_committed", "position_bound": self.bound(), "wait_ms": "20000"}

        answers: list[httpx.Response] = []

        def settled() -> bool:
            answers.append(client.get(f"/v1/stores/{store}/count", params=parameters))
            return answers[-1].status_code == 200

        wait_until(settled, PATIENCE_S)
        return answers[-1].json()["position"]

    def records(self, store: str) -> list[Record]:
        """What the log's own consumer reads from the topic of this store."""
        return read_all(self.log, self.topic(store), PARTITIONS)

    def changes(self, store: str) -> list[dict[str, Any]]:
        """These records as the change feed shows them; by partition and offset."""
        definition = changes_app.build(self.run).topology().stores[store]
        members = [orjson.loads(orjson.dumps(change_members(definition, record))) for record in self.records(store)]
        return sorted(members, key=placed)

    def produce_to(self, topic: str, entries: Iterable[tuple[bytes, bytes | None, int]]) -> None:
        """Write raw records."""
        produce(self.log, topic, entries)

    def output(self) -> str:
        """The end of what the processes have printed."""
        return self._output.read_text()[-2_000:]

    def _start(self, command: str, *settings: str) -> Forked:
        line = [command, "support.apps.changes_app:app"]
        for setting in (*self._settings, *settings):
            line += ["--set", setting]
        environment = {**os.environ, "CHANGES_RUN": self.run}
        with self._output.open("ab") as file:
            process = Forked(line, cwd=TESTS, env=environment, output=file.fileno())
        self._closing.callback(_end, process)
        self.processes.append(process)
        return process


def placed(change: Mapping[str, Any]) -> tuple[int, int]:
    """Where in its topic a change stands."""
    return change["partition"], change["offset"]


@contextmanager
def reading(client: httpx.Client, store: str, *, last: str | None = None, **parameters: str) -> Iterator[Reader]:
    """Read the changes of a store; `last` is the id of the last event seen, `from_` the parameter `from`."""
    headers = {} if last is None else {"Last-Event-ID": last}
    named = {name.rstrip("_"): value for name, value in parameters.items()}
    with client.stream("GET", f"/v1/stores/{store}/changes", params=named, headers=headers) as response:
        assert response.status_code == 200, (response.read(), response.text)
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Reader(response)


def logs_held_by(process: Forked) -> int:
    """How many connections to an embedded log a process has."""
    held = 0
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            held += descriptor.readlink().name.startswith("log.db")
        except OSError:
            continue  # it was closed
    return held


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def _end(process: Forked) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
