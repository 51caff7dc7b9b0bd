"""Backups from before a reset: rows that no changelog has must not come back, and those of a restore must not go."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from stateline import serdes, stores
from stateline.backup.location import BackupLocation
from stateline.cli.backup.lost_changelogs import restored_without_changelogs
from stateline.cli.backup.making import make_now
from stateline.cli.backup.restoring import restored
from stateline.cli.check.run import check
from stateline.cli.reset import execution
from stateline.cli.reset.scope import Asked
from stateline.cli.table import Row
from stateline.config.settings import Config
from stateline.deployment.stores.resets import Reset, ResetWork, newest_reset, without_stale
from stateline.dsl.app import App
from stateline.log import Log
from stateline.log.embedded import EmbeddedLog
from stateline_store import DoesNotExistError, NotPresentError, RetryLaterError
from stateline_store.snapshots.backup import Backup
from support.processes.running_worker import Stores, configured, create, eventually, produce, running
from support.run.length import long_only

ID = "app"
STORE_OF = {"in": "quiet", "more": "logged"}


def counting() -> App:
    """Counts in `quiet`, which has no changelog, and in another subtopology in `logged`."""
    app, common = App(ID), dict[str, Any](key=serdes.string, value=serdes.json)
    for topic, name in STORE_OF.items():
        store = app.store(stores.key_value(name, logged=name == "logged", **common))
        app.process(app.topic(topic, **common), stores=[store], name=f"count_{name}")(_count)
    return app


def with_table() -> App:
    """The same with the table `newest` beside `logged`, which come first."""
    app = counting()
    app.table(app.topic("more", key=serdes.string, value=serdes.json), store="newest")
    return app


def _count(record: Any, view: Any) -> None:
    view.put(record.key, (view.get(record.key) or 0) + 1)


class Scene:
    """One node. Each life writes a record to each topic, and returns the counts when all input is processed."""

    def __init__(self, log: Log, path: Path, url: str) -> None:
        self.log, self.path, self.url, self._lives = log, path, url, 0
        self.declared = counting
        create(log, dict.fromkeys(STORE_OF, 1))

    @property
    def config(self) -> Config:
        log = f"embedded:{self.path / 'log.db'}"
        return configured(self.declared(), self.path / "state", backup__location=self.url, bootstrap__servers=log)

    def works(self, then: Callable[[], object] = lambda: None) -> dict[str, int]:
        self._lives += 1
        last = b"life-%d" % self._lives
        for topic in STORE_OF:
            produce(self.log, topic, [(b"k", b"1", 1_000), (last, b"1", 1_000)])
        app, config = self.declared(), self.config
        with (
            running(app, config, self.log),
            closing(Stores(app, config, self.path / f"readers-{self._lives}")) as stored,
        ):
            for name in STORE_OF.values():
                eventually(lambda name=name: last in stored.rows(name, 1), f"{name} has all input")  # type: ignore[misc]
            found = {name: int(stored.rows(name, 1)[b"k"]) for name in STORE_OF.values()}
            then()
        return found

    def backs_up(self) -> None:
        def is_made() -> bool:
            with suppress(NotPresentError, RetryLaterError):
                return make_now(self.declared(), self.config)["partitions"] == len(self.declared().topology().stores)
            return False

        eventually(is_made, "all stores are backed up")

    def resets(self, asked: Asked) -> None:
        execution.reset(
            self.declared(), self.config, asked, dry_run=False, agreed=lambda: True, say=print, warn=logging.warning
        )

    def loses_disk(self) -> None:
        shutil.rmtree(self.path / "state" / ID)

    def restores_changelogs(self, backup_id: str | None = None, only: Sequence[int] = ()) -> list[Row]:
        with closing(self.log.admin()) as admin:
            admin.delete_topics([*admin.topics([f"{ID}-logged-changelog"])])
        return restored_without_changelogs(self.declared(), self.config, backup_id, only, print)


@pytest.fixture
def scene(tmp_path: Path, url: str) -> Iterator[Scene]:
    """A node that was backed up after one record."""
    with closing(EmbeddedLog(tmp_path / "log.db")) as log:
        made = Scene(log, tmp_path, url)
        assert made.works(made.backs_up) == {"quiet": 1, "logged": 1}
        yield made


EVERYTHING, ONE_STORE = Asked(), Asked(stores=("quiet",))
EITHER = [pytest.param(EVERYTHING, marks=long_only("a worker and a refused restore have either reset")), ONE_STORE]


@pytest.mark.parametrize("asked", [EVERYTHING, ONE_STORE])
def test_a_worker_takes_no_rows_from_before_a_reset(
    scene: Scene, asked: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    scene.works()
    scene.resets(asked)
    said = [found.message for found in check(counting(), scene.config).findings]
    assert not [each for each in said if "would start here from the backup" in each]
    assert scene.works(scene.backs_up) == {"quiet": 3, "logged": 3}
    scene.loses_disk()
    caplog.set_level(logging.INFO)
    assert scene.works() == {"quiet": 4, "logged": 4}  # a backup from after it is taken
    assert len([each for each in caplog.messages if "begins with the backup" in each]) == len(STORE_OF)


@pytest.mark.parametrize("asked", EITHER)
def test_the_command_restores_no_rows_from_before_a_reset(scene: Scene, asked: Asked) -> None:
    scene.works()
    scene.resets(asked)
    rows = restored(counting(), scene.config, None, None)
    (quiet,) = [row for row in rows if row["task"] == "0_0"]
    assert (quiet["outcome"], quiet["why"]) == ("not restored", "Its stores were reset since its backups.")
    assert scene.works() == {"quiet": 3, "logged": 3}


@pytest.mark.parametrize("asked", [EVERYTHING, ONE_STORE])
def test_a_restore_of_lost_changelogs_takes_no_backup_from_before_a_reset(scene: Scene, asked: Asked) -> None:
    (older,) = BackupLocation(scene.url, ID).manifests()
    scene.resets(asked)
    assert scene.works() == {"quiet": 2, "logged": 2}
    with pytest.raises(DoesNotExistError) as raised:
        scene.restores_changelogs()
    assert f"no backup of task 0_0 to restore. Its stores were reset since the backup {older[0]}." in str(raised.value)
    assert "stateline reset MODULE:APP --store quiet. Restore the others with --subtopology N." in str(raised.value)
    if asked is EVERYTHING:
        with pytest.raises(DoesNotExistError, match=r"no backup of task 1_0 to restore\. Its stores were reset"):
            scene.restores_changelogs(only=[1])
    else:
        scene.restores_changelogs(only=[1])
        assert scene.works() == {"quiet": 3, "logged": 3}


@pytest.mark.parametrize("asked", EITHER)
def test_a_restore_of_lost_changelogs_takes_a_backup_from_after_a_reset(scene: Scene, asked: Asked) -> None:
    (older,) = BackupLocation(scene.url, ID).manifests()
    scene.resets(asked)
    scene.works(scene.backs_up)
    scene.loses_disk()
    with pytest.raises(DoesNotExistError, match="Its stores were reset since the backup"):
        scene.restores_changelogs(older[0])
    scene.restores_changelogs()
    assert scene.works() == {"quiet": 3, "logged": 3}


def test_a_restore_of_lost_changelogs_leaves_out_a_table_that_was_reset_alone(scene: Scene) -> None:
    scene.declared = with_table
    scene.works(scene.backs_up)
    scene.resets(Asked(stores=("newest",)))
    told = {row["task"]: row["why"] for row in scene.restores_changelogs()}
    assert told == {"0_0": "Reset since, so read again: newest.", "1_0": ""}
    assert scene.works() == {"quiet": 3, "logged": 3}


def test_a_restore_of_lost_changelogs_keeps_its_own_backup_usable(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.works()
    scene.restores_changelogs()
    scene.loses_disk()
    caplog.set_level(logging.INFO)
    assert scene.works() == {"quiet": 3, "logged": 3}
    assert any("Task 0_0 begins with the backup" in each for each in caplog.messages)


def test_a_backup_that_a_restore_passed_over_brings_nothing_back(scene: Scene) -> None:
    (older,) = BackupLocation(scene.url, ID).manifests()
    scene.works(scene.backs_up)
    scene.restores_changelogs(older[0])
    scene.loses_disk()
    assert scene.works() == {"quiet": 3, "logged": 3}


def test_backups_after_the_one_that_a_restore_continued_with_are_older_than_it() -> None:
    work = ResetWork(stores=("kept",), backup="20261129T000000.000Z")
    reset = Reset(9, "done", everything=3, stores={"kept": 9, "other": 5}, work=work)

    def stale(epoch: int, backup_id: str) -> frozenset[str]:
        found = reset.stale_in_backup(epoch, backup_id)
        return frozenset({"everything"}) if found.everything else found.stores

    assert stale(9, "20261130T000000.000Z") == frozenset()
    assert stale(8, "20261130T000000.000Z") == {"kept"}
    assert stale(8, "20261129T000000.000Z") == frozenset()
    assert stale(4, "20261128T000000.000Z") == {"other"}
    assert stale(2, "20261128T000000.000Z") == {"everything"}


def test_a_manifest_tells_its_reset_and_an_older_manifest_its_time(scene: Scene) -> None:
    scene.resets(ONE_STORE)
    scene.works(scene.backs_up)
    location, reset = BackupLocation(scene.url, ID), newest_reset(scene.log, ID)
    assert reset is not None
    before, after = (location.read(*name) for name in location.manifests())
    assert (before.reset_epoch, after.reset_epoch) == (0, reset.epoch)
    for made, expected in ((before, {"logged"}), (after, {"quiet", "logged"})):
        assert {part.store for part in without_stale(made, reset).copy.parts} == expected
        told = json.loads(made.encode())
        del told["reset_epoch"]
        old = Backup.decode(json.dumps(told).encode(), "there")
        assert old.reset_epoch == made.created_at_ms
        assert {part.store for part in without_stale(old, reset).copy.parts} == expected
