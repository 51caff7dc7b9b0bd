"""Runs an application with operators to the end of its input, and reads what is in its stores and topics then."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stateline.dsl.app import App
from stateline.log import Log, Record
from stateline.log.embedded import EmbeddedLog
from stateline.model.internal_topics import required_topics
from stateline_store import TopicPartition
from stateline_store.rows.timestamped_rows import TIMESTAMP
from support import TESTS
from support.processes.forked import Forked
from support.processes.running_worker import Stores, configured, create, eventually, produce, read_all, running
from support.run.length import long_only
from support.run.patience import HANGING_S

_LONG = long_only("either guarantee, and either size of slices, is that of another run of this test")
# Pairs of the guarantee, and of how many records are processed at a time.
SLICES_OF_5 = [("at_least_once", 5), ("exactly_once_v2", 5_000), pytest.param("exactly_once_v2", 5, marks=_LONG)]
SLICES_OF_1 = [
    ("at_least_once", 1),
    ("exactly_once_v2", 5_000),
    pytest.param("at_least_once", 5_000, marks=_LONG),
    pytest.param("exactly_once_v2", 1, marks=_LONG),
]
Given = tuple[Any, Any, int]  # key and value, bytes or text or None, and timestamp


def as_bytes(data: Any) -> bytes | None:
    return None if data is None else data if isinstance(data, bytes) else str(data).encode()


@dataclass
class Scene:
    """One application, its log and its state. `partitions` is of the topics that the test creates, or each one's."""

    app: App
    root: Path
    partitions: int | Mapping[str, int] = 3
    settings: Mapping[str, Any] = field(default_factory=dict)
    log: Log = field(init=False)

    def __post_init__(self) -> None:
        self.log = EmbeddedLog(self.root / "log.db")
        self.config = configured(self.app, self.root / "state", **self.settings)
        topology = self.app.topology()
        # The test creates what users do; the worker creates the rest.
        self.create(*required_topics(topology))

    def create(self, *topics: str) -> None:
        create(self.log, {topic: self.count(topic) for topic in topics})

    def count(self, topic: str) -> int:
        """How many partitions the topic is created with."""
        return self.partitions if isinstance(self.partitions, int) else self.partitions[topic]

    def send(self, topic: str, records: Sequence[Given]) -> None:
        produce(self.log, topic, [(as_bytes(key), as_bytes(value), at) for key, value, at in records])

    def work_off(self) -> None:
        """Run a worker until it has committed all that there is, what it wrote itself included; what ended it before
        is raised."""
        with running(self.app, self.config, self.log) as worker:
            threads = [thread for thread in threading.enumerate() if thread.name == "worker-0"]  # none: it has ended
            eventually(
                lambda: self._is_worked_off() or not any(thread.is_alive() for thread in threads),
                "the worker is at the end of its input",
            )
        self.failures = worker.failures

    def run_until_killed(self, module: ModuleType, kill_at: str) -> None:
        """Run the application of this module in a process of its own, which kills itself at this step."""
        settings = {
            "bootstrap.servers": f"embedded:{self.root / 'log.db'}",
            "processing.guarantee": self.config.processing_guarantee,
            "state.dir": str(self.config.state_dir),
            "commit.interval.ms": "1",
            "group.instance.id": "the-worker",
            **self.settings,
        }
        command = ["worker", f"{module.__name__}:app"]
        command += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        environment = {**os.environ, "PYTHONPATH": str(TESTS), "STATELINE_CRASH_AT": kill_at}
        folder, log = Path(module.__file__ or "").parent, self.root / "worker.log"
        with log.open("ab") as output:
            process = Forked(command, cwd=folder, env=environment, output=output.fileno())
            try:
                ended = process.wait(HANGING_S)
            finally:
                process.kill()
                process.wait()
        assert ended == -signal.SIGKILL, log.read_text()[-2_000:]

    def _is_worked_off(self) -> bool:
        admin = self.log.admin()
        try:
            names = [topic.name for s in self.app.topology().subtopologies for topic in s.sources]
            counts = {name: info.partitions for name, info in admin.topics().items()}
            if not all(name in counts for name in names):
                return False
            places = [TopicPartition(name, number) for name in names for number in range(counts[name])]
            committed = admin.committed(self.app.application_id, places)
            return all(committed.get(place, 0) >= admin.log_end(place) for place in places)
        finally:
            admin.close()

    def rows(self, store: str) -> dict[bytes, tuple[bytes, int]]:
        """Key → value and timestamp of every committed row of a timestamped store."""
        found: dict[bytes, tuple[bytes, int]] = {}
        stores = Stores(self.app, self.config, self.root / "scratch")
        try:
            counts = [self.partitions] if isinstance(self.partitions, int) else self.partitions.values()
            for partition in range(max(counts)):
                reader = stores.reader(store, partition)
                if reader is not None:
                    with reader.range(None, None) as rows:
                        found |= {key: (row[8:], TIMESTAMP.unpack_from(row)[0]) for key, row in rows}
        finally:
            stores.close()
        return found

    def written(self, topic: str) -> list[Record]:
        return read_all(self.log, topic, self.count(topic))
