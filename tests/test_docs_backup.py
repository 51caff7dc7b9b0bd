"""The commands of docs/backup.md recover the application of the README."""

from __future__ import annotations

import re
import shlex
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from stateline.log.embedded import EmbeddedLog
from test_docs_changes import ROOT, blocks, entries, stateline, worker

PAGE = (ROOT / "docs/backup.md").read_text(encoding="utf-8")


def run(command: str, directory: Path) -> None:
    """A machine without the program `sqlite3` copies by the library that Python brings: the same call."""
    if command.startswith("sqlite3") and shutil.which("sqlite3") is None:
        source, copy = sqlite3.connect(directory / ".stateline/log.db"), sqlite3.connect(directory / "backup.db")
        with closing(source), closing(copy):
            source.backup(copy)
    else:
        subprocess.run(command, shell=True, cwd=directory, check=True)


def test_a_copy_of_the_running_log_alone_brings_every_store_back(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(blocks((ROOT / "README.md").read_text(encoding="utf-8"), "python")[0])
    copying, restoring = (re.findall(r"^\$ (.*)$", block, re.MULTILINE) for block in blocks(PAGE, "console")[:2])
    stateline(tmp_path, "topics", "hello:app", "--create", "--partitions", "1")
    stateline(tmp_path, "produce", "hello:app", "orders", typed='alice\t{"amount": 30}\nbob\t{"amount": 5}\n')
    with worker(tmp_path, tmp_path / "before"):
        for command in copying:
            run(command, tmp_path)
        stateline(tmp_path, "produce", "hello:app", "orders", typed='carol\t{"amount": 1}\n')
    for command in restoring:
        run(command, tmp_path)
    stateline(tmp_path, "produce", "hello:app", "orders", typed='alice\t{"amount": 12}\n')
    with worker(tmp_path, tmp_path / "after"):
        pass
    assert entries(tmp_path, "totals") == {"alice": 42, "bob": 5}


def test_the_commands_of_the_page_of_backups_make_check_and_restore_one(tmp_path: Path) -> None:
    page = (ROOT / "docs/operations/backups.md").read_text(encoding="utf-8")
    commands = [line for block in blocks(page, "console") for line in re.findall(r"^\$ stateline (.*)$", block, re.M)]
    given = [shlex.split(line.replace("/tmp/backups", str(tmp_path / "backups"))) for line in commands]
    *making, restoring, without_changelogs = given
    assert [words[1] for words in given] == ["now", "list", "verify", "list", "restore", "restore"]
    (tmp_path / "hello.py").write_text(blocks((ROOT / "README.md").read_text(encoding="utf-8"), "python")[0])
    stateline(tmp_path, "topics", "hello:app", "--create", "--partitions", "1")
    stateline(tmp_path, "produce", "hello:app", "orders", typed='alice\t{"amount": 30}\nbob\t{"amount": 5}\n')
    with worker(tmp_path, tmp_path / "before"):
        told = [stateline(tmp_path, *words) for words in making]
    assert all("whole" in each for each in told[1:])
    shutil.rmtree(tmp_path / ".stateline/hello")
    assert "restored" in stateline(tmp_path, *restoring)
    stateline(tmp_path, "produce", "hello:app", "orders", typed='alice\t{"amount": 12}\n')
    with worker(tmp_path, tmp_path / "after"):
        pass
    assert entries(tmp_path, "totals") == {"alice": 42, "bob": 5}
    shutil.rmtree(tmp_path / ".stateline/hello")
    with closing(EmbeddedLog(tmp_path / ".stateline/log.db")) as log, closing(log.admin()) as admin:
        admin.delete_topics(["hello-totals-changelog"])
    assert "restored" in stateline(tmp_path, *without_changelogs)
    stateline(tmp_path, "produce", "hello:app", "orders", typed='bob\t{"amount": 1}\n')
    with worker(tmp_path, tmp_path / "again"):
        pass
    assert entries(tmp_path, "totals") == {"alice": 42, "bob": 6}
