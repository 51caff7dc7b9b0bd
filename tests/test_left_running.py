"""What tests have started ends with them, whatever has become of them: shown by runs of pytest of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from support import TESTS
from support.run.ending import OWNER, marked
from support.run.left_running import RUN
from support.run.patience import HANGING_S

MARK = "LEFT_RUNNING"
CONFTEST = """
import os, subprocess, sys
import pytest
from support.run.left_running import LeftRunning

def pytest_configure(config):
    config.pluginmanager.register(LeftRunning())

def start(value):
    # A session of its own, and a grandchild that has lost its parent, as a driver's JVM may.
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'])"
    environment = {**os.environ, os.environ["MARK"]: value}
    subprocess.run([sys.executable, "-c", code], env=environment, start_new_session=True, check=True)

@pytest.fixture(scope="module")
def of_several_tests():
    start("module")
"""
MODULE = """
import os, signal, time
from conftest import start
from support import TESTS
from support.processes.forked import Forked
from support.run.ending import marked

forked = []

def running(value):
    return len(marked(os.environ["MARK"] + "=" + value))

def test_fails(of_several_tests, tmp_path):
    start("test")
    assert running("test") == 1
    settings = ["--set", f"state.dir={tmp_path}", "--set", "server.port=0"]
    with (tmp_path / "output").open("w") as file:
        command = ["serve", "support.apps.changes_app:app", *settings]
        forked.append(Forked(command, cwd=TESTS, env={**os.environ, "CHANGES_RUN": "1"}, output=file.fileno()))
    raise AssertionError("meant to be")

def test_finds_only_what_the_fixture_started():
    assert running("test") == 0
    assert running("module") == 1
    assert forked[0].wait(600) == -signal.SIGKILL

def test_is_killed_with_pytest():
    start("test")
    if "KILLED" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[subprocess.CompletedProcess[str], str]]:
    """Runs pytest on the module above; the variable that only what it starts has."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_module.py").write_text(MODULE)
    mark = f"{MARK}_{uuid4().hex}"
    environment = {name: value for name, value in os.environ.items() if name not in (RUN, OWNER)}
    environment |= {"MARK": mark, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(tmp_path)]

    def run(**variables: str) -> tuple[subprocess.CompletedProcess[str], str]:
        given = environment | variables
        return subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True, check=False), mark

    return run


@pytest.mark.parametrize("variables", [{}, {"KILLED": "1"}])
def test_nothing_is_left_running(
    run: Callable[..., tuple[subprocess.CompletedProcess[str], str]], variables: dict[str, str]
) -> None:
    done, mark = run(**variables)
    if variables:
        assert done.returncode == -signal.SIGKILL
    else:
        assert "1 failed, 2 passed" in done.stdout, done.stdout
    until_s = time.monotonic() + HANGING_S
    while any(marked(f"{mark}={value}") for value in ("test", "module")):
        assert time.monotonic() < until_s, "the guard has not ended them"
        time.sleep(0.02)
