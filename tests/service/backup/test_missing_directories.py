"""A location whose directory is missing, as without its mount: it refuses, and is not taken for an empty one."""

from __future__ import annotations

import json
import logging
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stateline import App, serdes, stores
from stateline.backup.location import BackupLocation
from stateline.cli.backup.making import make_now
from stateline.config.settings import Config
from stateline.log.embedded import EmbeddedLog
from stateline_store import RetryLaterError
from support.processes.running_worker import Stores, configured, create, eventually, produce, running


def test_a_missing_directory_refuses_until_it_is_mounted(tmp_path: Path) -> None:
    location = BackupLocation(str(tmp_path / "mount"), "app")
    with pytest.raises(RetryLaterError, match=r"mount cannot list backups: there is no such directory\. Mount it"):
        location.manifests()
    assert not (tmp_path / "mount").exists()
    (tmp_path / "mount").mkdir()
    assert location.manifests() == []
    (tmp_path / "mount").rmdir()
    with pytest.raises(RetryLaterError), location.lease("1"):
        pass
    assert not (tmp_path / "mount").exists()


def test_only_the_last_directory_is_created(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert BackupLocation(str(tmp_path / "made"), "app", create=True).manifests() == []
    location = BackupLocation(str(tmp_path / "mount" / "made"), "app", create=True)
    assert "made cannot be created: " in caplog.text
    with pytest.raises(RetryLaterError, match="there is no such directory"):
        location.manifests()
    assert not (tmp_path / "mount").exists()


def _count(record: Any, view: Any) -> None:
    view.put(record.key, (view.get(record.key) or 0) + 1)


def test_a_worker_waits_for_a_missing_mount_if_only_a_backup_has_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app, mount = App("app"), tmp_path / "mount"
    common: dict[str, Any] = {"key": serdes.string, "value": serdes.json}
    quiet = app.store(stores.key_value("quiet", logged=False, **common))
    app.process(app.topic("in", **common), stores=[quiet])(_count)

    def config(disk: str) -> Config:
        log = f"embedded:{tmp_path / 'log.db'}"
        return configured(app, tmp_path / disk, backup__location=str(mount), bootstrap__servers=log)

    def counts(disk: str, number: int) -> None:
        with closing(Stores(app, config(disk), tmp_path / f"readers-{disk}")) as stored:
            eventually(lambda: int(stored.rows("quiet", 1).get(b"k", b"0")) == number, f"{number} is counted")

    mount.mkdir()
    with closing(EmbeddedLog(tmp_path / "log.db")) as log:
        create(log, {"in": 1})
        produce(log, "in", [(b"k", json.dumps(1).encode(), 1_000)])
        with running(app, config("first"), log):
            counts("first", 1)
            eventually(lambda: make_now(app, config("first"))["partitions"] == 1, "it is backed up")
        mount.rename(tmp_path / "away")
        produce(log, "in", [(b"k", json.dumps(1).encode(), 1_000)])
        mounting = threading.Timer(1.5, lambda: (tmp_path / "away").rename(mount))
        with caplog.at_level(logging.WARNING), running(app, config("second"), log):
            mounting.start()
            counts("second", 2)
    assert any("waits for its backup" in each and "no such directory" in each for each in caplog.messages)
