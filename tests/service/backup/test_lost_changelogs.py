"""All nodes and all changelogs are lost. The application continues from source topics and backups."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from stateline import InputRecord, StoreView, serdes, stores
from stateline.backup.location import BackupLocation
from stateline.cli.backup.lost_changelogs import restored_without_changelogs
from stateline.cli.backup.making import make_now
from stateline.cli.backup.restoring import restored
from stateline.cli.reset import execution
from stateline.cli.reset.scope import Asked
from stateline.cli.table import Row
from stateline.config.loading import load_config
from stateline.config.settings import Config
from stateline.deployment.refused_stores import StoresRefusedError
from stateline.dsl.app import App
from stateline.log import Log
from stateline.worker.loop.worker import Worker
from stateline_store import (
    ConfigurationError,
    DoesNotExistError,
    InvalidArgumentError,
    NotPresentError,
    RetryLaterError,
    StateDirectory,
)
from stateline_store.inspection.offline_entries import Entry, entries
from stateline_store.rocksdb.offline_store import OfflineStore
from support import TESTS
from support.apps.counting_app import counting
from support.apps.recovered_app import LOGGED, PARTITIONS, STORES, recovered
from support.processes.running_worker import Stores, create, eventually, produce, running
from support.run.length import long_or_short, on_one_log
from support.run.patience import HANGING_S

KILLED = -signal.SIGKILL
STEPS = long_or_short(
    (
        "reset:begun",
        "lost:changelogs-deleted",
        "lost:changelogs-created",
        "lost:stores-deleted",
        "copy:stores-placed#2",
        "lost:stores-placed",
        "lost:rows-written#2",
        "lost:task-restored",
        "lost:offsets-set",
    ),
    ("lost:changelogs-deleted", "lost:rows-written#2", "lost:task-restored"),  # rows are gone, half there, or all there
)
Rows = list[tuple[bytes, bytes | None, int]]


def records(first: int, last: int) -> Rows:
    """Records of a few keys, nine seconds apart. Some have no value, and one key is never heard of again."""
    found: Rows = [
        (b"k%d" % (n % 11), None if n % 13 == 5 else json.dumps(n).encode(), 1_000_000 + n * 9_000)
        for n in range(first, last)
    ]
    return [(b"old", b"1", 1), *found] if first == 0 else found


def _backs_up(app: App, config: Config, partitions: int) -> bool:
    with suppress(NotPresentError, RetryLaterError):
        return bool(make_now(app, config)["partitions"] == partitions)
    return False


class Scene:
    """An application, and another one over the same topic that nothing happens to."""

    def __init__(self, log: Log, bootstrap: str, guarantee: str, tmp_path: Path, url: str) -> None:
        self.log, self.bootstrap, self.guarantee, self.path, self.url = log, bootstrap, guarantee, tmp_path, url
        self.id, self.topic = f"app-{uuid4().hex[:8]}", f"in-{uuid4().hex[:8]}"
        self.app, self.reference = recovered(self.id, self.topic), recovered(f"{self.id}-reference", self.topic)
        self.written: Counter[bytes] = Counter()
        self._readers = 0
        create(log, {self.topic: PARTITIONS})

    def settings(self, disk: str) -> dict[str, str]:
        return {
            "state.dir": str(self.path / disk),
            "commit.interval.ms": "50",
            "bootstrap.servers": self.bootstrap,
            "processing.guarantee": self.guarantee,
            "session.timeout.ms": "3000",
            "node.name": disk,
            "backup.location": self.url,
        }

    def config(self, disk: str = "one", app: App | None = None) -> Config:
        given = [f"{name}={value}" for name, value in self.settings(disk).items()]
        return load_config((app or self.app).application_id, environment={}, overrides=given)

    def write(self, rows: Rows) -> None:
        self.written.update(key for key, _, _ in rows)
        produce(self.log, self.topic, rows)

    def works(
        self, disk: str = "one", app: App | None = None, then: Callable[[App, Config], object] | None = None
    ) -> None:
        """Run a worker until it has counted each record once, do something, and stop it."""
        app, config = app or self.app, self.config(disk, app)
        self._readers += 1
        with running(app, config, self.log):
            stored = Stores(app, config, self.path / f"readers-{self._readers}")

            def counted() -> dict[bytes, int]:
                return {key: json.loads(n) for key, n in stored.rows("counts", PARTITIONS).items()}

            eventually(lambda: counted() == self.written, f"{self.written} is counted, and not {counted()}")
            if then is not None:
                then(app, config)

    def backs_up(self, app: App, config: Config) -> None:
        """Make a backup, as soon as the worker has told that it runs its tasks."""

        eventually(lambda: _backs_up(app, config, len(STORES) * PARTITIONS), "a backup of all stores is made")

    def loses(self, *, topics: Iterable[str] | None = None) -> None:
        """Delete all nodes' directories and all changelogs."""
        names = [f"{self.id}-{store}-changelog" for store in LOGGED] if topics is None else topics
        with closing(self.log.admin()) as admin:
            admin.delete_topics(names)
        shutil.rmtree(self.path / "one" / self.id)

    def restore(self, disk: str = "one", only: Iterable[int] = ()) -> list[Row]:
        return restored_without_changelogs(self.app, self.config(disk), None, [*only], print)

    def command(self, step: str = "") -> tuple[int, str]:
        """Run the real command. Returns its exit code and output."""
        given = [f"--set={name}={value}" for name, value in self.settings("one").items()]
        line = ["backup", "restore", "support.apps.recovered_app:app", "--changelogs-lost", *given]
        environment = {
            **os.environ,
            "RECOVERED_ID": self.id,
            "RECOVERED_TOPIC": self.topic,
            "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{TESTS}",
            **({"STATELINE_CRASH_AT": step} if step else {}),
        }
        done = subprocess.run(
            [sys.executable, "-m", "stateline", *line], env=environment, capture_output=True, text=True, check=False,
            timeout=HANGING_S,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def stored(self, disk: str, app: App, names: Iterable[str] = STORES) -> dict[str, list[Entry]]:
        """Every row of these stores on this disk."""
        directory, topology = StateDirectory(self.path / disk, app.application_id), app.topology()
        found: dict[str, list[Entry]] = {}
        for name in names:
            definition = topology.stores[name]
            for number in range(PARTITIONS):
                task = str(topology.subtopology_of(name).task_id(number))
                with OfflineStore(directory.store(task, name, timestamped=definition.timestamped)) as store:
                    found[f"{name}-{number}"] = list(entries(store, None, None, timestamped=definition.timestamped))
        return found

    def is_like_the_reference(self, disk: str = "one", names: Iterable[str] = STORES) -> None:
        self.works("reference", self.reference)
        assert self.stored(disk, self.app, names) == self.stored("reference", self.reference, names)


@pytest.fixture(params=["at_least_once", "exactly_once_v2"])
def guarantee(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def scene(log: Log, bootstrap: str, guarantee: str, tmp_path: Path, url: str) -> Scene:
    return Scene(log, bootstrap, guarantee, tmp_path, url)


def _backed_up(scene: Scene) -> None:
    """Write, back up, write more, and lose everything but the source topic and the backup."""
    scene.write(records(0, 60))
    scene.works(then=scene.backs_up)
    scene.write(records(60, 90))
    scene.works()
    scene.loses()


def _empty(backups: Path) -> None:
    """Delete all backups, but not their directory: without it, a worker waits until it is mounted."""
    shutil.rmtree(backups)
    backups.mkdir()


@on_one_log("kafka", "test_a_restore_that_is_killed_at_any_step_is_completed_by_the_same_command restores on it")
@pytest.mark.parametrize("url", ["s3"], indirect=True)
def test_an_application_continues_from_its_backups_as_if_nothing_was_lost(scene: Scene) -> None:
    _backed_up(scene)
    with pytest.raises(StoresRefusedError, match="is missing"):
        Worker(scene.app, scene.config(), scene.log, instance="worker-0").run()
    shutil.rmtree(scene.path / "one" / scene.id)
    rows = scene.restore()
    assert [(row["task"], row["outcome"], row["why"]) for row in rows] == [
        (f"0_{number}", "restored", "") for number in range(PARTITIONS)
    ]
    scene.works()  # what came after the backup is counted once
    scene.write(records(90, 120))
    scene.works()
    scene.is_like_the_reference()
    with pytest.raises(InvalidArgumentError, match="has records, so it is not lost"):
        scene.restore()


@on_one_log("embedded", "rows of changelogs are read alike on both")
def test_another_machine_restores_the_same_rows_from_the_new_changelogs(scene: Scene) -> None:
    _backed_up(scene)
    scene.restore()
    scene.works("two")
    scene.is_like_the_reference("two", (*LOGGED, "newest"))


@on_one_log("embedded", "directories and resets are alike on both")
@pytest.mark.parametrize("guarantee", ["at_least_once"], indirect=True)
def test_a_later_backup_is_restored_as_well_once_changelogs_were_lost(scene: Scene) -> None:
    _backed_up(scene)
    scene.restore()
    scene.works(then=scene.backs_up)
    shutil.rmtree(scene.path / "one" / scene.id)
    assert {row["outcome"] for row in restored(scene.app, scene.config(), None, None)} == {"restored"}
    _empty(Path(scene.url))  # the worker has what was restored, or nothing
    scene.works()
    scene.is_like_the_reference()


@on_one_log("embedded", "the steps are the same on both")
@pytest.mark.parametrize("guarantee", ["at_least_once"], indirect=True)
@pytest.mark.parametrize("step", STEPS)
def test_a_restore_that_is_killed_at_any_step_is_completed_by_the_same_command(scene: Scene, step: str) -> None:
    _backed_up(scene)
    code, said = scene.command(step)
    assert code == KILLED, said
    with pytest.raises(ConfigurationError, match=r"backup restore .* --changelogs-lost"):
        Worker(scene.app, scene.config(), scene.log, instance="worker-0").run()
    code, said = scene.command()
    assert code == 0, said
    scene.works()
    scene.is_like_the_reference()


@on_one_log("embedded", "it is the same on both")
def test_nothing_is_changed_while_the_application_runs(scene: Scene) -> None:
    _backed_up(scene)
    with closing(scene.log.consumer(scene.id)) as member:
        member.subscribe([scene.topic], lambda _: None, lambda _: None)
        member.poll(1, 1.0)
        with pytest.raises(RetryLaterError, match="Nothing was changed"):
            scene.restore()
    with closing(scene.log.admin()) as admin:
        assert f"{scene.id}-counts-changelog" not in admin.topics()


@on_one_log("embedded", "it is the same on both")
def test_a_task_without_a_backup_is_refused_before_anything_is_changed(scene: Scene) -> None:
    _backed_up(scene)
    location = BackupLocation(scene.url, scene.id)
    location.delete_files([each.digest for each in location.files()])
    with pytest.raises(DoesNotExistError, match="has no backup of task 0_0 to restore"):
        scene.restore()
    with closing(scene.log.admin()) as admin:
        assert f"{scene.id}-counts-changelog" not in admin.topics()


@on_one_log("embedded", "it is the same on both")
def test_a_restore_that_cannot_be_completed_ends_with_a_reset_of_everything(scene: Scene) -> None:
    _backed_up(scene)
    assert scene.command("lost:stores-placed")[0] == KILLED
    _empty(scene.path / "backups")
    execution.reset(scene.app, scene.config(), Asked(), dry_run=False, agreed=lambda: True, say=print, warn=print)
    scene.works()
    scene.is_like_the_reference()


def _refused(app: App, scene: Scene) -> str:
    config = scene.config(app=app)
    with pytest.raises(InvalidArgumentError) as refused:
        restored_without_changelogs(app, config, None, [], print)
    return str(refused.value)


@on_one_log("embedded", "no log is asked")
def test_subtopologies_that_repartition_topics_connect_are_refused_with_the_command_that_starts_them_over(
    scene: Scene,
) -> None:
    create(scene.log, {f"{scene.id}-in": 1, f"{scene.id}-alone": 1})
    said = _refused(counting(scene.id), scene)
    assert re.search(r"would write records to .*-values-repartition a second time, and subtopology 2", said), said
    assert "stateline reset" in said
    assert "--subtopology 0 --subtopology 2" in said


@on_one_log("embedded", "no log is asked")
def test_a_store_in_memory_is_refused(scene: Scene) -> None:
    app = App(scene.id)
    source = app.topic(scene.topic, key=serdes.string, value=serdes.json)
    store = app.store(stores.key_value("light", key=serdes.string, value=serdes.json, persistent=False))

    @app.process(source, stores=[store])
    def keep(record: Any, light: Any) -> None:
        light.put(record.key, record.value)

    assert "its rows were in its changelog alone" in _refused(app, scene)


class Two:
    """An application of two subtopologies, which was backed up, and lost its disk and both changelogs."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.app = scene, App(scene.id)
        self.topics = [f"{scene.id}-{name}" for name in "ab"]
        create(scene.log, dict.fromkeys(self.topics, 1))
        for name, topic in zip("ab", self.topics, strict=True):
            source = self.app.topic(topic, key=serdes.string, value=serdes.json)
            store = self.app.store(stores.key_value(f"of_{name}", key=serdes.string, value=serdes.json))
            self.app.process(source, stores=[store], name=name)(_put)
        config = scene.config(app=self.app)
        for topic in self.topics:
            produce(scene.log, topic, [(b"k", b"1", 1)])
        with running(self.app, config, scene.log):
            eventually(lambda: _backs_up(self.app, config, 2), "both stores are backed up")
        with closing(scene.log.admin()) as admin:
            admin.delete_topics([f"{scene.id}-of_{name}-changelog" for name in "ab"])
        shutil.rmtree(scene.path / "one" / scene.id)

    def restore(self, *only: int) -> list[Row]:
        return restored_without_changelogs(self.app, self.scene.config(app=self.app), None, only, print)

    def start(self) -> None:
        Worker(self.app, self.scene.config(app=self.app), self.scene.log, instance="worker-0").run()


def _put(record: InputRecord, kept: StoreView) -> None:
    kept.put(record.key, record.value)


@on_one_log("embedded", "it is the same on both")
@pytest.mark.parametrize("guarantee", ["at_least_once"], indirect=True)
def test_a_worker_refuses_subtopologies_that_were_not_restored(scene: Scene) -> None:
    two = Two(scene)
    assert [(row["task"], row["outcome"]) for row in two.restore(1)] == [("1_0", "restored")]
    with pytest.raises(StoresRefusedError, match="of_a"):
        two.start()


@on_one_log("embedded", "it is the same on both")
@pytest.mark.parametrize("guarantee", ["at_least_once"], indirect=True)
def test_a_restore_is_not_completed_by_one_of_fewer_subtopologies(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = Two(scene)

    def fail(step: str) -> None:
        if step == "lost:task-restored":
            raise RetryLaterError("interrupted")

    with monkeypatch.context() as patched:
        patched.setattr("stateline.cli.backup.lost_changelogs.reached", fail)
        with pytest.raises(RetryLaterError, match="interrupted"):
            two.restore()
    with pytest.raises(ConfigurationError, match="changelogs-lost"):
        two.restore(1)
    assert {row["outcome"] for row in two.restore()} == {"restored"}
