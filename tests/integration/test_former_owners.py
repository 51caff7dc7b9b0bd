"""A worker that stands still in the middle of a commit, is replaced, and goes on: what it writes is nobody's state.

At least once no transaction keeps it out: a disk that restores from the changelog has to tell its records apart.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from uuid import uuid4

import pytest

from stateline.config.loading import load_config
from stateline.log import Log
from stateline_store import TopicPartition
from support import TESTS
from support.apps import steps_app
from support.processes.forked import Forked
from support.processes.running_worker import Stores, create, eventually, produce
from support.run.length import on_one_log
from support.run.patience import HANGING_S

SESSION_MS = {"embedded": 1_500, "kafka": 3_000}
KEYS = 10


class Scene:
    """One run of `steps_app`: its input, the sums that it makes, and workers on disks of their own."""

    def __init__(self, bootstrap: str, log: Log, root: Path) -> None:
        self.run, self.log, self.root = uuid4().hex[:8], log, root
        self.source = TopicPartition(f"numbers-{self.run}", 0)
        self.changelog = TopicPartition(f"steps-{self.run}-sums-changelog", 0)
        create(log, {self.source.topic: 1})
        self.admin = log.admin()
        session = SESSION_MS["embedded" if bootstrap.startswith("embedded") else "kafka"]
        self._settings = [f"bootstrap.servers={bootstrap}", "commit.interval.ms=20", f"session.timeout.ms={session}"]
        self.sums: dict[bytes, int] = {}
        self._sent = 0
        self._stack = ExitStack()
        self._stack.callback(self.admin.close)

    def send(self) -> None:
        """One more record of each key."""
        records = [(b"k%d" % n, self._sent + n, 1) for n in range(KEYS)]
        produce(self.log, self.source.topic, [(key, value.to_bytes(8, "big"), at) for key, value, at in records])
        self._sent += KEYS
        for key, value, _ in records:
            self.sums[key] = self.sums.get(key, 0) + value

    def start(self, disk: str, stop_at: str = "") -> Forked:
        words = ["worker", "support.apps.steps_app:app"]
        for setting in (*self._settings, f"state.dir={self.root / disk}"):
            words += ["--set", setting]
        environment = {**os.environ, "STEPS_RUN": self.run, "STATELINE_TEST_STOP_AT": stop_at}
        with self.output(disk).open("ab") as file:
            worker = Forked(words, cwd=TESTS, env=environment, output=file.fileno())
        self._stack.callback(worker.wait)
        self._stack.callback(worker.kill)
        return worker

    def output(self, disk: str) -> Path:
        return self.root / f"{disk}.log"

    def is_committed(self) -> bool:
        """Whether the group has come to the end of the input."""
        return self.admin.committed(f"steps-{self.run}", [self.source]).get(self.source) == self._sent

    def rows(self, disk: str) -> dict[bytes, int]:
        """The committed sums on this disk."""
        app = steps_app.build(self.run)
        overrides = [*self._settings, f"state.dir={self.root / disk}"]
        config = load_config(app.application_id, environment={}, overrides=overrides)
        with closing(Stores(app, config, self.root / "scratch" / uuid4().hex)) as found:
            return {key: int.from_bytes(value, "big") for key, value in found.rows("sums", 1).items()}

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def scene(bootstrap: str, log: Log, tmp_path: Path) -> Iterator[Scene]:
    with closing(Scene(bootstrap, log, tmp_path)) as made:
        yield made


def stands_still(worker: Forked) -> bool:
    state = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"


@on_one_log("kafka", "a broker fences the former owner")
def test_what_a_worker_writes_that_was_replaced_in_the_middle_of_a_commit_is_in_no_restored_store(scene: Scene) -> None:
    zombie = scene.start("zombie", "commit:still-owner#3")
    while not stands_still(zombie):
        scene.send()
        eventually(lambda: scene.is_committed() or stands_still(zombie), "the first worker commits or stands still")
    assert not scene.is_committed(), "it stands still with work that is not committed"
    heir = scene.start("heir")
    eventually(scene.is_committed, "another takes over")
    scene.send()
    eventually(scene.is_committed, "the new owner goes on")
    end = scene.admin.log_end(scene.changelog)

    zombie.send_signal(signal.SIGCONT)
    eventually(lambda: scene.admin.log_end(scene.changelog) > end, "the former owner writes")
    zombie.kill()
    zombie.wait()
    assert scene.is_committed()
    heir.terminate()
    assert heir.wait(HANGING_S) == 0, scene.output("heir").read_text()[-2_000:]
    assert scene.rows("heir") == scene.sums

    restored = scene.start("empty")
    scene.send()
    eventually(scene.is_committed, "an empty disk is restored and goes on")
    eventually(lambda: scene.rows("empty") == scene.sums, f"{scene.rows('empty')} becomes {scene.sums}")
    restored.terminate()
    assert restored.wait(HANGING_S) == 0, scene.output("empty").read_text()[-2_000:]
    assert "were left out: a worker wrote them after another had taken over" in scene.output("empty").read_text()

    again = scene.start("heir")
    scene.send()
    eventually(scene.is_committed, "the disk of the former heir goes on")
    eventually(lambda: scene.rows("heir") == scene.sums, f"{scene.rows('heir')} becomes {scene.sums}")
    again.terminate()
    assert again.wait(HANGING_S) == 0, scene.output("heir").read_text()[-2_000:]
