"""`stateline backup list`, `verify` and `prune` of a location, without the application's code."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stateline.backup.location import BackupLocation
from stateline.cli.backup.listing import age, size
from stateline.cli.main import main
from stateline_store.snapshots.backup import Backup
from support.written_backups import write_backup

Run = Callable[..., str]
_KEEP_ONE = ("--set=backup.retention.ms=1000", "--set=backup.keep=1")
OLDER = "20200101T000000.000Z"
_AGO_S = 4 * 24 * 60 * 60


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A location with two backups of two tasks, of which the older one is four days old."""
    found = str(tmp_path / "backups")
    for number in range(2):
        rows = [(b"k%d" % n, b"%d" % number) for n in range(100)]
        write_backup(tmp_path / f"{number}", found, "totals", {0: rows, 1: rows})
        if number == 0:
            _make_older(found)
    return found


def _make_older(url: str) -> None:
    location = BackupLocation(url, "app")
    (name,) = location.manifests()
    made = location.read(*name)
    location.delete_manifest(*name)
    stores = {each: {**told, "subtopology": 0} for each, told in made.stores.items()}
    location.write(replace(made, id=OLDER, created_at_ms=made.created_at_ms - _AGO_S * 1000, stores=stores))
    for file in (Path(url) / "app" / "files").iterdir():
        os.utime(file, (time.time() - _AGO_S,) * 2)


@pytest.fixture
def run(url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command of this location, and return what it prints."""
    monkeypatch.chdir(tmp_path)

    def told(command: str, *words: str, code: int = 0) -> str:
        ended = main(["backup", command, "--backup", url, *words])
        said = capsys.readouterr()
        assert ended == code, said.err
        return said.out if code == 0 or said.out else said.err

    return told


def test_a_list_has_a_line_for_each_backup(run: Run, url: str) -> None:
    newest = BackupLocation(url, "app").manifests()[-1][0]
    head, new, old = (re.split(" {2,}", line) for line in run("list").splitlines())
    assert head == ["backup", "made at", "age", "nodes", "tasks", "size", "state"]
    assert (new[0], new[3:5], new[6]) == (newest, ["1", "2"], "whole")
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ", new[1])
    assert re.fullmatch(r"\d+\.\d KiB", new[5])
    assert (old[0], old[2], old[6]) == (OLDER, "4 d", "whole")


def test_a_list_names_tasks_that_a_backup_lacks(run: Run, url: str) -> None:
    location = BackupLocation(url, "app")
    made = location.read(OLDER, "node")
    location.write(replace(made.of_task("0_0"), committed={}))
    assert run("list").splitlines()[2].endswith("  lacks 0_1")
    assert run("verify", "--id", made.id).splitlines()[-1].startswith(f"{made.id}  -     0_1   missing  No node has it")


def test_json_and_a_flag_have_the_parts_of_nodes(run: Run) -> None:
    rows = json.loads(run("list", "--application-id", "app", "--json"))
    assert [*rows[0]] == ["backup", "node", "age_s", "stores", "partitions", "files", "bytes"]
    assert [(row["node"], row["partitions"]) for row in rows] == [("node", 2)] * 2
    assert run("list", "--nodes").splitlines()[0].split() == [*rows[0]]


def test_verify_reads_every_backup_if_told(run: Run, url: str) -> None:
    outcomes = [(row["backup"], row["outcome"]) for row in json.loads(run("verify", "--json"))]
    newest = BackupLocation(url, "app").manifests()[-1][0]
    assert outcomes == [(newest, "whole")]
    _flip(url, BackupLocation(url, "app").read(OLDER, "node"))
    rows = json.loads(run("verify", "--all", "--json", code=1))
    assert {(row["backup"], row["outcome"]) for row in rows} == {
        (newest, "whole"),
        (OLDER, "damaged"),
    }
    (Path(url) / f"app/backups/{OLDER}/node.json").write_text("{}")
    (_, damaged) = json.loads(run("verify", "--all", "--json", code=1))
    assert (damaged["outcome"], damaged["task"]) == ("damaged", None)
    assert "is no manifest of a backup" in damaged["why"]


def _flip(url: str, of: Backup) -> None:
    """Change a byte of a file that this backup alone has."""
    newest = BackupLocation(url, "app").manifests()[-1]
    digest = min(of.named - BackupLocation(url, "app").read(*newest).named)
    file = Path(url) / "app" / "files" / digest
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_a_dry_prune_tells_what_a_prune_deletes_and_changes_nothing(run: Run, url: str) -> None:
    before = _files(url)
    (told,) = json.loads(run("prune", "--dry-run", "--json", *_KEEP_ONE))
    assert told["backups"] == [{"backup": OLDER, "node": "node"}]
    assert told["files to delete"] > 0
    text = run("prune", "--dry-run", *_KEEP_ONE)
    assert f"{OLDER}  node" in text
    assert _files(url) == before
    (done,) = json.loads(run("prune", "--json", *_KEEP_ONE))
    kinds = ("backups", "files", "bytes")
    assert [done[f"deleted {kind}"] for kind in kinds] == [told[f"{kind} to delete"] for kind in kinds]
    (nothing,) = json.loads(run("prune", "--dry-run", "--json", *_KEEP_ONE))
    assert [nothing[f"{kind} to delete"] for kind in kinds] == [0, 0, 0]


def _files(url: str) -> dict[str, Any]:
    return {str(each): each.stat().st_mtime_ns for each in Path(url).rglob("*")}


def test_a_prune_without_the_application_does_not_guess_its_settings(run: Run, url: str) -> None:
    before = _files(url)
    told = run("prune", "--set", "backup.keep=1", code=2)
    assert "Give --set backup.retention.ms=…, as they have them." in told
    assert _files(url) == before


def test_mistakes_are_told(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert "has no backups of 'other', but of app." in run("list", "--application-id", "other", code=2)
    assert "leave out MODULE:APP or --backup" in run("list", "shop:app", code=2)
    assert "leave out --id or --all" in run("verify", "--all", "--id", "1", code=2)
    assert main(["backup", "list"]) == 2
    assert "Give MODULE:APP, or --backup LOCATION" in capsys.readouterr().err
    assert main(["backup", "list", "shop:app", "--application-id", "app"]) == 2
    assert "--application-id is for --backup" in capsys.readouterr().err
    assert main(["backup", "list", "--backup", "nowhere"]) == 2
    assert "nowhere is no directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (1024**2 - 1, "1.0 MiB"), (5 * 1024**5, "5120.0 TiB")],
)
def test_sizes_have_units(count: int, shown: str) -> None:
    assert size(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0 s"), (59, "59 s"), (60, "1 min"), (7_199, "1 h"), (86_400 * 7, "7 d")]
)
def test_ages_have_units(seconds: int, shown: str) -> None:
    assert age(seconds) == shown
