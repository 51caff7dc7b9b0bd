"""`stateline adopt`: what it prints, and its exit codes. `tests/conformance` adopts what Java has written."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from stateline.cli.main import main
from stateline.log import open_log
from support.processes.running_worker import create, produce

APP = """
from stateline import App, serdes, stores
app = App("adopting", config={"bootstrap.servers": "embedded"})
for name in ("counts", "noted"):
    definition = stores.timestamped_key_value(name, key=serdes.string, value=serdes.string)
    app.external_store(definition, of="java")
"""
LOCKS = "import fcntl, sys; fcntl.lockf(file := open(sys.argv[1], 'r+'), fcntl.LOCK_EX); print(1, flush=True); input()"


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two stores of an application `java`, one of them with headers. Their changelogs have a record each."""
    (tmp_path / "adopting.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    with closing(open_log("embedded", tmp_path / ".stateline")) as log:
        create(log, {"java-counts-changelog": 1, "java-noted-changelog": 1})
        produce(log, "java-counts-changelog", [(b"a", b"1", 5)])
        produce(log, "java-noted-changelog", [(b"a", b"1", 5)])
    directory = tmp_path / "kafka-streams" / "java"
    for name, family in (("counts", "keyValueWithTimestamp"), ("noted", "keyValueWithTimestampAndHeaders")):
        path = directory / "0_0" / "rocksdb" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        families = {each: Options(raw_mode=True) for each in ("default", family, "offsets")}
        with closing(Rdict(str(path), options, column_families=families)) as db:
            rows = {
                family: {b"a": struct.pack(">q", 5) + b"1"},
                "offsets": {f"java-{name}-changelog-0".encode(): bytes(8)},
            }
            for each, content in rows.items():
                with closing(db.get_column_family(each)) as opened:
                    for key, value in content.items():
                        opened[key] = value
    (directory / ".lock").touch()
    return directory


def test_it_lists_what_it_adopts_and_says_of_each_other_store_why_not(
    java: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["adopt", "adopting:app", "--from", str(java.parent), "--json"]) == 1
    said = capsys.readouterr()
    counts, noted = json.loads(said.out)
    assert (counts["store"], counts["outcome"], counts["rows"], counts["offset"]) == ("counts", "adopted", 1, 0)
    assert (noted["store"], noted["outcome"], noted["rows"]) == ("noted", "refused", None)
    assert "Refused: store noted of task 0_0. Its rows have record headers" in said.err
    assert main(["inspect", ".stateline", "--store", "counts"]) == 0
    assert "counts" in capsys.readouterr().out


def test_it_takes_the_directory_of_the_application_itself(java: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adopt", "adopting:app", "--from", str(java), "--dry-run"]) == 1
    assert "would be adopted" in capsys.readouterr().out
    assert not Path(".stateline/adopting/0_0").exists()


def test_it_refuses_a_directory_that_a_process_has_locked(java: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = subprocess.Popen(
        [sys.executable, "-c", LOCKS, str(java / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert held.stdout is not None
    held.stdout.readline()
    try:
        assert main(["adopt", "adopting:app", "--from", str(java.parent)]) == 1
    finally:
        held.communicate(b"\n")
    assert f"is in use by process {held.pid}" in capsys.readouterr().err


@pytest.mark.parametrize(("source", "why"), [("nowhere", "no such directory"), (".", "it has no tasks of java")])
def test_it_refuses_a_directory_without_stores_of_the_application(
    source: str, why: str, java: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["adopt", "adopting:app", "--from", source]) == 2
    assert why in capsys.readouterr().err
    assert main(["adopt", "adopting:app", "--from", ".stateline"]) == 2
    assert "own state.dir" in capsys.readouterr().err
