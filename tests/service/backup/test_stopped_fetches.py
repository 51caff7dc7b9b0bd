"""A worker that ends, or loses its task, while it fetches a backup: it stops, and leaves no other worker's files."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from stateline import App, serdes, stores
from stateline.backup.location import BackupLocation
from stateline.cli.backup.making import make_now
from stateline.config.settings import Config
from stateline.log.embedded import EmbeddedLog
from stateline.worker.loop.worker import Worker
from stateline.worker.restore.backed_up_tasks import BackedUpTasks
from stateline.worker.tasks.task import Task
from stateline.worker.tasks.task_settings import TaskSettings
from stateline_store import NotPresentError, RetryLaterError
from support.processes.running_worker import Stores, configured, create, eventually, produce, running
from support.run.patience import HANGING_S

KEYS = 500
_SLICE_BYTES = 64


def _keep(record: Any, view: Any) -> None:
    view.put(record.key, record.value)


def keeping() -> App:
    app, common = App("app"), dict[str, Any](key=serdes.string, value=serdes.json)
    quiet = app.store(stores.key_value("quiet", logged=False, **common))
    app.process(app.topic("in", **common), stores=[quiet])(_keep)
    return app


class Slow:
    """Lets pieces come in slices of `_SLICE_BYTES`, slowly until `is_slow` is cleared. Counts the slices."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_slow, self.begun, self.slices = True, threading.Event(), 0
        whole = BackupLocation.checked_piece

        def slowly(location: BackupLocation, digest: str, size: int, name: str) -> Iterator[bytes]:
            content = b"".join(whole(location, digest, size, name))
            for begin in range(0, size, _SLICE_BYTES):
                if self.is_slow:
                    time.sleep(0.02)
                yield content[begin : begin + _SLICE_BYTES]
                self.slices += 1
                self.begun.set()

        monkeypatch.setattr(BackupLocation, "checked_piece", slowly)


@pytest.fixture
def config(tmp_path: Path, url: str) -> Config:
    """Of a node that has lost its disk, and has a backup."""
    log = f"embedded:{tmp_path / 'log.db'}"
    made, lost = (
        configured(keeping(), tmp_path / name, backup__location=url, bootstrap__servers=log) for name in ("a", "b")
    )

    def is_backed_up() -> bool:
        with suppress(NotPresentError, RetryLaterError):
            return make_now(keeping(), made)["partitions"] == 1
        return False

    with closing(EmbeddedLog(tmp_path / "log.db")) as embedded:
        create(embedded, {"in": 1})
        rows = ((b"%d" % n, json.dumps("some text " * 10).encode(), 1_000) for n in range(KEYS))
        produce(embedded, "in", rows)
        with running(keeping(), made, embedded), closing(Stores(keeping(), made, tmp_path / "reads")) as stored:
            eventually(lambda: len(stored.rows("quiet", 1)) == KEYS, "all is processed")
            eventually(is_backed_up, "it is backed up")
    return lost


def test_a_worker_that_ends_waits_for_no_download_and_another_fetches_beside_its_files(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    copies = config.state_dir / "app" / "copies"
    with closing(EmbeddedLog(tmp_path / "log.db")) as log:
        with running(keeping(), config, log):
            assert slow.begun.wait(HANGING_S)
            before = slow.slices
        assert slow.slices - before < 100 < KEYS * 100 // _SLICE_BYTES
        left = {path: path.read_bytes() for path in copies.rglob("*") if path.is_file()}
        assert {path.relative_to(copies).parts[0] for path in left} == {"0_0.worker-0"}
        slow.is_slow = False
        with (
            running(keeping(), config, log, "worker-1"),
            closing(Stores(keeping(), config, tmp_path / "more")) as stored,
        ):
            eventually(lambda: len(stored.rows("quiet", 1)) == KEYS, "the backup's rows are here")
        assert left == {path: path.read_bytes() for path in copies.rglob("*") if path.is_file()}


def test_a_task_that_comes_back_is_fetched_again_when_its_stopped_fetch_has_ended(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    with closing(EmbeddedLog(tmp_path / "log.db")) as log, closing(log.admin()) as admin:
        worker = Worker(keeping(), config, log, instance="worker-0")
        fetched = BackedUpTasks(worker.context)
        ids = {"in": admin.topics(["in"])["in"].topic_id}
        (subtopology,) = worker.context.topology.subtopologies
        task = Task(subtopology, 0, TaskSettings.of(worker.context, {}, lambda: None))
        assert not fetched.is_ready(task, ids)
        assert slow.begun.wait(HANGING_S)
        for _ in range(3):
            fetched.forget(task.id)
            before = slow.slices
            assert not fetched.is_ready(task, ids)
        eventually(lambda: not fetched.is_ready(task, ids) and slow.slices > before + 10, "it is fetched again")
        slow.is_slow = False
        eventually(lambda: fetched.is_ready(task, ids), "its stores are here")
        assert (task.directory / "rocksdb" / "quiet").exists()
        fetched.close()
        worker.leave()
