"""The stores of a backup that a task takes: declarations have changed since, or the location refuses."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from stateline import serdes, stores
from stateline.backup.location import BackupLocation
from stateline.cli.backup.lost_changelogs import restored_without_changelogs
from stateline.cli.backup.making import make_now
from stateline.cli.backup.places import Backups
from stateline.cli.backup.reading import verified
from stateline.cli.backup.restoring import restored
from stateline.cli.check.run import check
from stateline.config.settings import Config
from stateline.dsl.app import App
from stateline.log import Log
from stateline.log.embedded import EmbeddedLog
from stateline.log.interface import NewTopic
from stateline.model.store_definition import DAY_MS
from stateline.worker.loop.worker import Worker
from stateline_store import NotPresentError, RetryLaterError, TopologyError
from stateline_store.snapshots.backup import backup_id
from support.http.faulty_proxy import Answered, FaultyProxy
from support.processes.running_worker import Stores, configured, create, eventually, produce, running
from support.run.length import long_only

ID, TOPIC = "app", "in"
BEFORE, AFTER = ("kept", "quiet", "gone"), ("added", "kept", "quiet")


def counting(*names: str, other: str = "", value: Any = serdes.json) -> App:
    """Counts the records of a key in each of these stores, of which `quiet` has no changelog."""
    app = App(ID)
    common: dict[str, Any] = {"key": serdes.string, "value": value}
    if other:  # as subtopology 0, so that the other one has another number without it
        kept = app.store(stores.key_value(f"of_{other}", **common))
        app.process(app.topic(other, **common), stores=[kept], name="other")(_count)
    made = [app.store(stores.key_value(name, logged=name != "quiet", **common)) for name in names]
    app.process(app.topic(TOPIC, **common), stores=made, name="count")(_count_thrice)
    return app


def _count(record: Any, view: Any) -> None:
    view.put(record.key, (view.get(record.key) or 0) + 1)


def _count_thrice(record: Any, one: Any, two: Any, three: Any) -> None:
    for view in (one, two, three):
        _count(record, view)


class Scene:
    def __init__(self, log: Log, path: Path, url: str) -> None:
        self.log, self.path, self.url, self._readers = log, path, url, 0
        create(log, {TOPIC: 1, "more": 1})

    def config(self, app: App) -> Config:
        log = f"embedded:{self.path / 'log.db'}"
        return configured(app, self.path / "state", backup__location=self.url, bootstrap__servers=log)

    def works(self, app: App, then: Callable[[App, Config], object] | None = None, **expected: int) -> None:
        """Write a record more, and run a worker until its stores have these counts."""
        produce(self.log, TOPIC, [(b"k", json.dumps(1).encode(), 1_000)])
        config = self.config(app)
        self._readers += 1
        with running(app, config, self.log):
            with closing(Stores(app, config, self.path / f"readers-{self._readers}")) as stored:

                def found() -> dict[str, int]:
                    return {name: int(stored.rows(name, 1).get(b"k", b"0")) for name in expected}

                eventually(lambda: found() == expected, f"{expected} are counted")
            if then is not None:
                then(app, config)

    def backups(self, app: App) -> Backups:
        config = self.config(app)
        return Backups(BackupLocation.of(config), config, app)

    def loses(self) -> None:
        shutil.rmtree(self.path / "state" / ID)


@pytest.fixture
def scene(tmp_path: Path, url: str) -> Iterator[Scene]:
    """An application that was backed up after one record, processed another, and lost its disk."""
    with closing(EmbeddedLog(tmp_path / "log.db")) as log:
        made = Scene(log, tmp_path, url)
        before = counting(*BEFORE, other="more")
        produce(log, "more", [(b"k", b"1", 1_000)])
        made.works(before, _backs_up, kept=1, quiet=1, gone=1, of_more=1)
        made.works(before, kept=2, quiet=2, gone=2)
        made.loses()
        yield made


def _backs_up(app: App, config: Config) -> None:
    def is_made() -> bool:
        with suppress(NotPresentError, RetryLaterError):
            return make_now(app, config)["partitions"] == len(app.topology().stores)
        return False

    eventually(is_made, "all stores are backed up")


def test_declared_stores_are_restored_and_new_ones_begin_empty(scene: Scene) -> None:
    after = counting(*AFTER)
    rows = restored(after, scene.config(after), None, None)
    assert [(row["task"], row["outcome"]) for row in rows] == [("0_0", "restored"), (None, "left out")]
    assert rows[1]["why"] == "Not declared any more, so left out: gone, of_more."
    scene.works(after, kept=3, quiet=2, added=1)


def test_a_worker_takes_declared_stores_and_logs_the_others(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    scene.works(counting(*AFTER), kept=3, quiet=2, added=1)
    assert "Task 0_0: Not declared any more, so left out: gone, of_more." in caplog.messages


def test_a_worker_whose_disk_was_lost_says_what_the_backup_lacks(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.works(counting(*BEFORE, other="more"), kept=3, quiet=2, gone=3)
    (told,) = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert told == (
        "Store 'quiet' has the input of in-0 up to offset 0, but the group has processed it up to offset 1: offset 1 "
        "is missing. The store has no changelog, so nothing brings this input."
    )


def test_a_worker_without_backups_says_so(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ((backup, node),) = BackupLocation(scene.url, ID).manifests()
    BackupLocation(scene.url, ID).delete_manifest(backup, node)
    scene.works(counting(*BEFORE, other="more"), kept=3, quiet=1, gone=3)
    assert f"Task 1_0 is read from its changelogs alone: {scene.url} has no backup of it" in caplog.messages


def test_changelogs_are_written_again_for_declared_stores(scene: Scene) -> None:
    after = counting(*AFTER)
    with closing(scene.log.admin()) as admin:
        admin.delete_topics([f"{ID}-{name}-changelog" for name in ("kept", "gone")])
    rows = restored_without_changelogs(after, scene.config(after), None, [], print)
    assert [(row["task"], row["outcome"]) for row in rows] == [("0_0", "restored"), (None, "left out")]
    scene.works(after, kept=3, quiet=3, added=2)


def test_stores_that_are_not_declared_any_more_are_no_damage(scene: Scene) -> None:
    after = counting(*AFTER)
    rows, faults = verified(scene.backups(after))
    assert faults == 0
    assert [(row["task"], row["outcome"]) for row in rows] == [(None, "left out"), (None, "whole")]


@pytest.mark.parametrize("also", ["", "damaged"])
def test_a_whole_backup_of_stores_with_other_types_is_not_told_as_damaged(scene: Scene, also: str) -> None:
    after = counting(*BEFORE, value=serdes.int64)
    location = BackupLocation(scene.url, ID)
    if also:
        location.delete_files([each.digest for each in location.files()])
    rows, faults = verified(scene.backups(after))
    assert faults == 1
    assert [(row["task"], row["outcome"]) for row in rows] == [
        (None, "left out"), ("0_0", also or "declared otherwise"),
    ]  # fmt: skip
    if not also:
        (made,) = (each for each, _ in location.manifests())
        assert rows[1]["why"] == (
            f"The backup {made} has 'gone' as key_value with keys of string and values of json. The application "
            "declares key_value with keys of string and values of int64. Declare it as it was, or give it a new name: "
            "it then starts empty."
        )


def test_a_location_that_refuses_is_not_told_as_damage(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise RetryLaterError("It is away.")

    monkeypatch.setattr(BackupLocation, "checked_piece", refuses)
    rows, faults = verified(scene.backups(counting(*BEFORE, other="more")))
    assert (faults, {row["outcome"] for row in rows}) == (2, {"not checked"})


def test_a_backup_that_lacks_other_nodes_is_not_told_as_whole_without_a_word(scene: Scene) -> None:
    """As if another node had the other partition of each store and had written nothing."""
    app = counting(*BEFORE, other="more")
    location = BackupLocation(scene.url, ID)
    (name,) = location.manifests()
    made = location.read(*name)
    location.write(replace(made, stores={store: {**told, "partitions": 2} for store, told in made.stores.items()}))
    rows, faults = verified(scene.backups(app))
    assert faults == 0
    assert [(row["node"], row["task"], row["outcome"]) for row in rows] == [
        (made.node, None, "whole"), (None, "0_1", "missing"), (None, "1_1", "missing"),
    ]  # fmt: skip


@pytest.fixture
def proxy(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """Stands before the object store, once there is a backup."""
    port = urlsplit(os.environ["AWS_ENDPOINT_URL"]).port
    assert port is not None
    with closing(FaultyProxy(port)) as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
        yield made


OVER_S3 = pytest.mark.parametrize("url", ["s3"], indirect=True)


@OVER_S3
def test_a_worker_waits_for_a_location_that_refuses_if_only_a_backup_has_rows(
    scene: Scene, proxy: FaultyProxy, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.faults.append(Answered("403 Forbidden"))
    scene.works(counting(*AFTER), kept=3, quiet=2, added=1)
    (told,) = _warnings(caplog, "waits for its backup")
    assert "asks again in 1 s" in told
    assert "Only a backup has the rows of quiet" in told
    assert "unset backup.location" in told


@OVER_S3
def test_a_worker_without_such_rows_reads_the_changelogs_at_once(scene: Scene, proxy: FaultyProxy) -> None:
    proxy.faults.extend([Answered("403 Forbidden")] * 100)
    scene.works(counting("kept", "added", "new"), kept=3, added=1)


def test_an_old_backup_still_brings_rows_that_no_changelog_has(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    app = counting(*AFTER)
    location = BackupLocation(scene.url, ID)
    (name,) = location.manifests()
    made = location.read(*name)
    location.write(replace(made, created_at_ms=made.created_at_ms - 2 * DAY_MS))
    scene.works(app, kept=3, quiet=2, added=1)
    (told,) = _warnings(caplog, "only stores without a changelog are taken: quiet.")
    assert "delete.retention.ms" in told
    scene.loses()
    (row, _) = restored(app, scene.config(app), None, None)
    assert row["outcome"] == "restored"
    scene.works(app, kept=4, quiet=2, added=2)


def test_a_worker_tells_that_rows_without_a_changelog_are_lost(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    location = BackupLocation(scene.url, ID)
    location.delete_files([each.digest for each in location.files()])
    scene.works(counting(*AFTER), kept=3, quiet=1, added=1)
    assert _warnings(caplog, "begins without the rows of quiet")


@pytest.mark.parametrize(
    "url", ["directory", pytest.param("s3", marks=long_only("test_pod_without_volumes.py reads S3"))], indirect=True
)
@pytest.mark.parametrize("harm", ["flipped", "truncated", "gone"])
def test_a_worker_takes_an_older_backup_if_a_file_of_the_newest_is_damaged(
    scene: Scene, harm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = counting(*AFTER)
    scene.works(app, _backs_up, kept=3, quiet=2, added=1)
    scene.loses()
    location = BackupLocation(scene.url, ID)
    older, newest = (location.read(*name) for name in location.manifests())
    digest = min(newest.named - older.named)
    (size,) = (file.size for file in location.files() if file.digest == digest)
    content = b"".join(location.checked_piece(digest, size, "the file"))
    damaged = tmp_path / "damaged"
    damaged.write_bytes(content[:-1] if harm == "truncated" else bytes([content[0] ^ 1]) + content[1:])
    location.delete_files([digest])
    if harm != "gone":
        location.put_file(digest, damaged, damaged.stat().st_size)
    caplog.set_level(logging.INFO)
    scene.works(app, kept=4, quiet=2, added=2)
    (told,) = _warnings(caplog, f"cannot begin with the backup {newest.id}")
    assert digest in told
    assert any(f"begins with the backup {older.id}" in message for message in caplog.messages)


def test_a_worker_tries_every_older_backup_until_one_is_whole(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    location = BackupLocation(scene.url, ID)
    (name,) = location.manifests()
    made = location.read(*name)
    lost = {path: ["0" * 64] * len(digests) for path, digests in made.digests.items()}
    for later in range(1, 8):
        location.write(replace(made, id=backup_id(made.created_at_ms + later), digests=lost))
    scene.works(counting(*AFTER), kept=3, quiet=2, added=1)
    assert len(_warnings(caplog, "cannot begin with the backup")) == 7


@pytest.mark.parametrize("topic", ["gone", "created again"])
def test_a_lost_changelog_is_told_with_the_restore_of_its_backups_before_the_reset(scene: Scene, topic: str) -> None:
    app = counting(*BEFORE, other="more")
    app.target = "shop:app"
    scene.works(app, kept=3, quiet=2, gone=3)
    with closing(scene.log.admin()) as admin:
        admin.delete_topics([f"{ID}-kept-changelog"])
        if topic == "created again":
            admin.create_topics([NewTopic(f"{ID}-kept-changelog", 1)])
    with pytest.raises(TopologyError) as raised:
        Worker(app, scene.config(app), scene.log, instance="worker-0").run()
    checked = {found.message for found in check(app, scene.config(app)).findings if found.level == "refused"}
    assert checked
    for told in (str(raised.value), *checked):
        before, _, after = told.partition("stateline backup restore shop:app --changelogs-lost. Or bring the topic")
        assert "To restore the newest backups, stop the application everywhere: " in before
        assert "stateline reset" not in before
        assert "stateline reset shop:app --subtopology 1" in after


def test_a_restore_names_the_topics_that_its_stores_do_not_fit(scene: Scene) -> None:
    app = counting(*BEFORE, other="more")
    app.target = "shop:app"
    with closing(scene.log.admin()) as admin:
        admin.delete_topics([f"{ID}-kept-changelog", f"{ID}-of_more-changelog", "more"])
        admin.create_topics([NewTopic("more", 1)])
    of_more, counted = restored(app, scene.config(app), None, None)
    assert [row["outcome"] for row in (of_more, counted)] == ["not restored"] * 2
    mean = "the backup's offsets mean other records now."
    assert of_more["why"] == f"app-of_more-changelog is gone, more was created again: {mean}"
    assert counted["why"] == (
        f"app-kept-changelog is gone: {mean} To write lost changelogs again, stop the application everywhere: "
        "stateline backup restore shop:app --changelogs-lost"
    )


def test_a_check_says_which_backup_brings_rows_that_no_changelog_has(scene: Scene) -> None:
    app = counting(*BEFORE, other="more")
    ((backup, node),) = BackupLocation(scene.url, ID).manifests()
    lacks = "but the group has processed it up to offset 1: offset 1 is missing. The store has no changelog, so"
    told = {found.message for found in check(app, scene.config(app)).findings}
    assert f"Task 1_0 would start here from the backup {backup}." in told
    assert f"Store 'quiet' has the input of in-0 up to offset 0, {lacks} nothing brings this input." in told
    BackupLocation(scene.url, ID).delete_manifest(backup, node)
    told = {found.message for found in check(app, scene.config(app)).findings}
    assert any("None of the newest 100 backups fits these tasks: 1_0. Their stores" in each for each in told)
    shutil.rmtree(scene.url)
    told = {found.message for found in check(app, scene.config(app)).findings}
    gone = f"backup.location was not looked at: {scene.url} does not exist, so it has no backups. Mount it, or set "
    assert any(each.startswith(gone) for each in told)
    assert not Path(scene.url).exists()


def test_a_check_promises_no_backup_that_the_start_refuses(scene: Scene) -> None:
    app = counting(*BEFORE, other="more", value=serdes.int64)
    told = {found.message for found in check(app, scene.config(app)).findings}
    assert not any("would start here from the backup" in each for each in told)
    (empty,) = (each for each in told if "Their stores without a changelog would start empty." in each)
    assert "None of the newest 100 backups fits these tasks: 1_0." in empty
    assert "has 'gone' as key_value with keys of string and values of json. The application declares" in empty


def _warnings(caplog: pytest.LogCaptureFixture, said: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING and said in r.getMessage()]
