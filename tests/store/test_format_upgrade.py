"""Which files a store is opened on while formats change, and how plain ones are deleted."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from stateline_store import (
    CallerError,
    KeyValueStore,
    NotPresentError,
    RetryLaterError,
    SecondaryReader,
    StoreContext,
    TimestampedKeyValueStore,
    TopologyError,
    VersionedStore,
    WindowStore,
)
from stateline_store.files.directory import notice_path, store_path
from stateline_store.inspection.format_upgrade import (
    Files,
    UpgradeMode,
    check_plain_files,
    choose_files,
    has_plain_files,
    remove_plain_files,
    withdraw_plain_files,
)
from stateline_store.layout import Layout
from stateline_store.rocksdb.engine import RocksDBEngine
from support.rocksdb import offsets_of

TIMESTAMPED = Layout("key_value", timestamped=True)
STEPS = ["upgrade:plain-withdrawn", "upgrade:plain-moved", "upgrade:notice-removed", "upgrade:plain-deleted"]


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A task with a plain store and, beside it, a timestamped one of the same name; both hold a row."""
    for store in (KeyValueStore("s"), TimestampedKeyValueStore("s"), KeyValueStore("other")):
        with closing(store):
            store.init(StoreContext("0_0", tmp_path))
            store.put(b"a", b"1")
            store.commit({})
    return tmp_path


def names(task: Path) -> list[str]:
    return sorted(str(path.relative_to(task)) for path in [*task.iterdir(), *(task / "rocksdb").iterdir()])


WITH_PLAIN = ["other.notice", "rocksdb", "rocksdb/other", "rocksdb/s", "rocksdb/s-v2", "s-v2.notice", "s.notice"]
WITHOUT_PLAIN = ["other.notice", "rocksdb", "rocksdb/other", "rocksdb/s-v2", "s-v2.notice"]


@pytest.mark.parametrize(
    ("timestamped", "mode", "there", "files"),
    [
        (False, None, True, Files.DECLARED),
        (False, "in_place", True, Files.DECLARED),
        (True, None, False, Files.DECLARED),
        (True, None, True, Files.DECLARED),
        (True, "in_place", True, Files.PLAIN_AND_BUILD),
        (True, "roll_over", True, Files.PLAIN),
        (True, "in_place", False, Files.DECLARED),
        (True, "roll_over", False, Files.DECLARED),
    ],
)
def test_the_directory_s_name_and_the_settings_decide(
    tmp_path: Path, timestamped: bool, mode: UpgradeMode | None, there: bool, files: Files
) -> None:
    for holds_rows, path in (
        (there, store_path(tmp_path, "s", timestamped=False)),
        (True, store_path(tmp_path, "s", timestamped=True)),
    ):
        path.mkdir(parents=True)
        if holds_rows:
            (path / "CURRENT").touch()
    assert choose_files(tmp_path, "s", timestamped=timestamped, mode=mode) is files


def test_plain_files_are_deleted_with_their_notice_and_nothing_else(task: Path) -> None:
    assert names(task) == WITH_PLAIN
    assert has_plain_files(task, "s")
    remove_plain_files(task, "s")
    assert names(task) == WITHOUT_PLAIN
    assert not has_plain_files(task, "s")
    remove_plain_files(task, "s")
    assert names(task) == WITHOUT_PLAIN


def test_readers_of_plain_files_are_told_that_they_go(task: Path, tmp_path: Path) -> None:
    store, notice = (find(task, "s", timestamped=False) for find in (store_path, notice_path))
    with closing(SecondaryReader(store, notice, tmp_path / "scratch")) as reader:
        remove_plain_files(task, "s")
        with pytest.raises(NotPresentError):
            reader.refresh()


def test_readers_of_plain_files_can_be_sent_away_while_the_files_stay(task: Path, tmp_path: Path) -> None:
    withdraw_plain_files(task, "s")
    withdraw_plain_files(task, "none of this name")
    store, notice = (find(task, "s", timestamped=False) for find in (store_path, notice_path))
    with pytest.raises(NotPresentError):
        SecondaryReader(store, notice, tmp_path / "scratch")
    assert names(task) == WITH_PLAIN


@pytest.mark.parametrize("step", STEPS)
def test_a_removal_that_is_killed_is_gone_on_with(task: Path, step: str) -> None:
    program = "import pathlib, sys; from stateline_store.inspection.format_upgrade import *; "
    program += "remove_plain_files(pathlib.Path(sys.argv[1]), 's')"
    environment = os.environ | {"STATELINE_CRASH_AT": step}
    killed = subprocess.run([sys.executable, "-c", program, str(task)], env=environment, check=False)
    assert killed.returncode == -9
    assert has_plain_files(task, "s") is (step != "upgrade:plain-deleted")
    remove_plain_files(task, "s")
    assert names(task) == WITHOUT_PLAIN
    with closing(TimestampedKeyValueStore("s")) as store:
        store.init(StoreContext("0_0", task))
        assert store.get(b"a") == b"1"


def test_what_the_file_system_refuses_to_delete_is_named_and_can_be_tried_again(
    task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied", str(source))

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        with pytest.raises(RetryLaterError, match=r"rocksdb/s cannot be removed: Permission denied"):
            remove_plain_files(task, "s")
    assert has_plain_files(task, "s")
    remove_plain_files(task, "s")
    assert names(task) == WITHOUT_PLAIN


def test_plain_files_of_the_declared_kind_pass_and_stay_as_they_are(task: Path) -> None:
    check_plain_files(task, "s", TIMESTAMPED)
    check_plain_files(task, "none of this name", TIMESTAMPED)
    assert names(task) == WITH_PLAIN
    with closing(KeyValueStore("s")) as store:
        store.init(StoreContext("0_0", task))
        assert store.get(b"a") == b"1"


@pytest.mark.parametrize(
    "store",
    [
        WindowStore("s", retention_ms=1000, window_size_ms=10),
        VersionedStore("s", history_retention_ms=1000),
    ],
    ids=["window", "versioned"],
)
def test_files_of_another_kind_are_refused(tmp_path: Path, store: WindowStore | VersionedStore) -> None:
    with closing(store):
        store.init(StoreContext("0_0", tmp_path))
    with pytest.raises(TopologyError, match=f"holds a {store.kind} store, but the application declares a key_value"):
        check_plain_files(tmp_path, "s", TIMESTAMPED)


def test_values_with_timestamps_under_the_plain_name_are_refused(task: Path) -> None:
    remove_plain_files(task, "s")
    store_path(task, "s", timestamped=True).rename(store_path(task, "s", timestamped=False))
    with pytest.raises(TopologyError, match="holds a timestamped_key_value store"):
        check_plain_files(task, "s", TIMESTAMPED)


def test_a_newer_format_is_refused(task: Path) -> None:
    engine = RocksDBEngine(store_path(task, "s", timestamped=False))
    offsets_of(engine)[b"format_version"] = (9).to_bytes(4, "big")
    engine.close()
    with pytest.raises(CallerError, match="format version 9"):
        check_plain_files(task, "s", TIMESTAMPED)


def test_damaged_plain_files_do_not_stop_an_upgrade_that_needs_them_no_more(
    task: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (store_path(task, "s", timestamped=False) / "CURRENT").write_text("damaged")
    check_plain_files(task, "s", TIMESTAMPED)
    assert "rocksdb/s" in caplog.text
