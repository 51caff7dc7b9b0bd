"""Stores on disk that the application does not declare: a start says so once, and a command frees their space."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stateline import serdes
from stateline.cli.state import stores as cli_stores
from stateline.dsl.app import App
from stateline.log import open_log
from stateline_store import DoesNotExistError, LockedError, RetryLaterError, StateDirectory
from stateline_store.files.relocation_journal import journal_path
from support.processes.running_worker import Stores, configured, create, eventually, produce, running

TEXT: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
ROWS = {b"a": b"1", b"b": b"2"}


def kept(store: str) -> App:
    app = App("app")
    app.table(app.topic("in", **TEXT), store=store)
    app.global_table(app.topic("all", **TEXT), store=f"{store}_everywhere")
    return app


def works(app: App, tmp_path: Path, store: str, *, instance: str = "worker-0") -> None:
    config = configured(app, tmp_path / "state")
    with (
        closing(open_log("embedded", tmp_path)) as log,
        running(app, config, log, instance=instance),
        closing(Stores(app, config, tmp_path / f"readers-{store}-{instance}")) as found,
    ):
        eventually(lambda: found.rows(store, 1) == ROWS, "all is read")


@pytest.fixture
def renamed(tmp_path: Path) -> tuple[App, Path]:
    """An application whose store has another name now, and its state directory."""
    with closing(open_log("embedded", tmp_path)) as log:
        create(log, {"in": 1, "all": 1})
        produce(log, "in", [(key, value, 1) for key, value in ROWS.items()])
    works(kept("old"), tmp_path, "old")
    return kept("new"), tmp_path / "state"


def test_a_start_warns_once_of_all_leftovers_and_names_the_command(
    renamed: tuple[App, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    works(renamed[0], tmp_path, "new")
    (said,) = (record.getMessage() for record in caplog.records if "does not declare" in record.getMessage())
    assert "old (1 task, " in said
    assert "old_everywhere (1 task, " in said
    assert "`stateline stores MODULE:APP --delete NAME`" in said
    caplog.clear()
    works(renamed[0], tmp_path, "new", instance="worker-1")
    assert "does not declare" not in caplog.text, "of several workers one says it"


def test_the_listing_says_it_as_well_and_what_is_declared_is_no_leftover(renamed: tuple[App, Path]) -> None:
    app, state = renamed
    assert "old (1 task, " in str(cli_stores.leftover_stores(app, configured(app, state)))
    assert cli_stores.leftover_stores(kept("old"), configured(app, state)) is None


def test_a_leftover_is_deleted_and_the_other_stores_stay(renamed: tuple[App, Path], tmp_path: Path) -> None:
    app, state = renamed
    works(app, tmp_path, "new")
    said = cli_stores.delete(app, configured(app, state), "old")
    assert re.match(r"Deleted 'old' \(1 task, 0\.\d MB: 0_0\)\. If it has a changelog topic, that stays\. ", said)
    assert re.search(r"stateline topics \S+ --delete \S+-old-changelog$", said)
    assert "old_everywhere" in str(cli_stores.leftover_stores(app, configured(app, state)))
    cli_stores.delete(app, configured(app, state), "old_everywhere")
    assert cli_stores.leftover_stores(app, configured(app, state)) is None
    assert not [path for path in state.rglob("old*") if path.suffix != ".notice"], "which readers look at"
    with closing(Stores(app, configured(app, state), tmp_path / "after")) as found:
        assert found.rows("new", 1) == ROWS


def test_nothing_is_deleted_while_a_worker_has_one_of_its_tasks(renamed: tuple[App, Path]) -> None:
    app, state = renamed
    directory = StateDirectory(state, "app")
    other = directory.lock_task("0_5")  # where the store is as well
    (directory.task("0_5") / "rocksdb" / "old").mkdir(parents=True)
    with pytest.raises(LockedError, match=r"'old' is not deleted: .*0_5.* is held by process .*Stop the application"):
        cli_stores.delete(app, configured(app, state), "old")
    assert (directory.task("0_0") / "rocksdb" / "old-v2").is_dir()
    other.release()
    cli_stores.delete(app, configured(app, state), "old")
    assert not (directory.task("0_5") / "rocksdb" / "old").exists()


def test_what_is_declared_or_not_there_or_about_to_move_is_not_deleted(renamed: tuple[App, Path]) -> None:
    app, state = renamed
    config = configured(app, state)
    with pytest.raises(DoesNotExistError, match=r"declares 'new'.*stateline reset MODULE:APP --store new"):
        cli_stores.delete(app, config, "new")
    with pytest.raises(DoesNotExistError, match=r"no files of a store 'other'. Leftovers: old, old_everywhere"):
        cli_stores.delete(app, config, "other")
    journal_path(StateDirectory(state, "app")).write_text("{}")
    with pytest.raises(RetryLaterError, match=r"relocation of stores .* was interrupted"):
        cli_stores.delete(app, config, "old")
