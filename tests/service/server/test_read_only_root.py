"""A root that is read-only, /tmp with it: temporary files are in the state directory, or the error says what to set."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from stateline.config.loading import load_config
from stateline.config.temporary import use_temporary_directory
from stateline_store import KeyValueStore, StateDirectory, StoreContext
from support.processes.ports import free_port
from support.processes.query_server import wait_until
from support.run.patience import HANGING_S

STATELINE = str(Path(sys.executable).with_name("stateline"))
CODE = """
from stateline import App, serdes

app = App("hello")
app.table(app.topic("in", key=serdes.string, value=serdes.string), store="newest")
"""
# The state directory alone stays writable, if it is to.
READ_ONLY = 'mount --bind "$0" "$0" && mount --bind /tmp /tmp && {} mount -o remount,bind,ro /tmp && '
READ_ONLY += 'mount -o remount,bind,ro / && cd /proc && exec "$@"'
WRITABLE = 'mount --bind "$0" "$0" &&'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"mount namespaces are not allowed here: {tried.stderr.strip()}")
    (tmp_path / "hello.py").write_text(CODE)
    (tmp_path / "state").mkdir()
    return tmp_path


def read_only(folder: Path, *command: str, writable: bool = True) -> Sequence[str]:
    script = READ_ONLY.format(WRITABLE if writable else "")
    environment = ["env", "-u", "TMPDIR", f"PYTHONPATH={folder}"]
    return ["unshare", "--mount", "sh", "-c", script, str(folder / "state"), *environment, STATELINE, *command]


def test_a_server_keeps_its_temporary_files_in_the_state_directory(folder: Path) -> None:
    port, log = free_port(), folder.parent / f"{folder.name}.log"
    command = ["serve", "hello:app", "--set", f"state.dir={folder / 'state'}", "--set", f"server.port={port}"]
    with log.open("wb") as output:
        process = subprocess.Popen(read_only(folder, *command), stdout=output, stderr=output)

    def answers() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=HANGING_S).status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_until(lambda: process.poll() is not None or answers())
        assert process.poll() is None, log.read_text()
        assert len([*(folder / "state" / "hello" / "tmp").glob("*/stateline-server-*")]) == 1
        assert f"Temporary files are in {folder}/state/hello/tmp, because none of /tmp" in log.read_text()
    finally:
        process.terminate()
        code = process.wait(HANGING_S)
    assert code == 0, log.read_text()
    assert not [*(folder / "state" / "hello" / "tmp").iterdir()]


def test_a_server_that_can_write_nowhere_says_which_variable_to_set(folder: Path) -> None:
    (folder / "state" / "hello").mkdir()
    command = ["serve", "hello:app", "--set", f"state.dir={folder / 'state'}", "--set", f"server.port={free_port()}"]
    ended = subprocess.run(
        read_only(folder, *command, writable=False),
        capture_output=True, text=True, check=False, timeout=HANGING_S,
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr
    assert "Set the environment variable TMPDIR to a directory" in ended.stderr
    assert f"none of /tmp, /var/tmp, /usr/tmp and {folder}/state/hello/tmp can be written" in ended.stderr


def test_inspect_says_which_variable_to_set(folder: Path) -> None:
    directory = StateDirectory(folder / "state", "hello")
    directory.lock_task("0_0").release()
    store = KeyValueStore("newest")
    store.init(StoreContext("0_0", directory.task("0_0")))
    store.commit({})
    store.close()
    ended = subprocess.run(
        read_only(folder, "inspect", str(folder / "state"), writable=False),
        capture_output=True, text=True, check=False, timeout=HANGING_S,
    )  # fmt: skip
    assert "Set the environment variable TMPDIR to a directory" in ended.stdout + ended.stderr


def test_what_a_killed_process_left_is_deleted_and_what_a_live_one_has_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config("hello", environment={}, overrides=[f"state.dir={tmp_path}"])
    place = tmp_path / "hello" / "tmp"
    left = place / "left"
    left.mkdir(parents=True)
    (place / "left.lock").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # as where nothing but the working directory is left
    for _ in range(2):
        use_temporary_directory(config)
        held = Path(tempfile.gettempdir())
        assert held.parent == place
        assert not left.exists()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert len([*place.glob("*/")]) == 2
    shutil.rmtree(place)
