"""docs/tutorial.md is true: typed as a reader would, from an empty folder, on the embedded log and on a broker."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from support.kafka.shared_broker import SharedBroker
from support.processes.ports import free_port
from support.run.length import long_only
from support.run.patience import HANGING_S
from test_docs import ROOT, assert_shown, document

PAGE = document("docs/tutorial.md")
_FILE = re.compile(r"^(?:(Add to) )?`([\w.]+)`:\n\n```\w+\n(.*?)^```", re.DOTALL | re.MULTILINE)
_CONSOLE = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
_LONGEST_S = 120.0  # until an answer is what the page shows: a worker that was killed may have to leave its group first


class Written(NamedTuple):
    """A file that the page lets the reader write, or add to."""

    name: str
    text: str
    added: bool


class Typed(NamedTuple):
    """A command that the page lets the reader type, and what it shows below it."""

    command: str
    shown: str


def steps(page: str) -> list[Written | Typed]:
    """What the reader does, in the order of the page."""
    found: list[tuple[int, Written | Typed]] = [
        (match.start(), Written(match[2], match[3], match[1] is not None)) for match in _FILE.finditer(page)
    ]
    for block in _CONSOLE.finditer(page):
        for match in re.finditer(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block[1], re.MULTILINE):
            found.append((block.start() + match.start(), Typed(match[1], match[2])))
    return [step for _, step in sorted(found, key=lambda each: each[0])]


class Reader:
    """Somebody with two terminals in one folder: in the second one the application runs."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self.folder, self.port = folder, free_port()
        self._run: subprocess.Popen[str] | None = None
        path = os.pathsep.join([str(ROOT / "service"), str(ROOT / "store")])
        commands = folder / ".commands"
        commands.mkdir()
        for name, arguments in (("python", ""), ("stateline", " -m stateline")):
            (commands / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{arguments} "$@"\n')
            (commands / name).chmod(0o755)
        self.environment = {
            **os.environ,
            "PYTHONPATH": path,
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "STATELINE_SERVER_PORT": str(self.port),
            **settings,
        }

    def write(self, file: Written) -> None:
        path = self.folder / file.name
        before = f"{path.read_text()}\n\n" if file.added else ""
        path.write_text(before + self._here(file.text))

    def type(self, typed: Typed) -> None:
        """Type it; its answer is what the page shows, of a question once the application has come so far."""
        if typed.command.startswith("stateline run "):
            self.start(typed)
            return
        if typed.command.startswith("stateline reset "):
            self.stop()
        if not typed.command.startswith("curl "):
            assert_said(self._said(typed.command), typed)
            return
        deadline = time.monotonic() + _LONGEST_S
        while True:
            try:
                assert_said(self._said(typed.command), typed)
                return
            except (AssertionError, json.JSONDecodeError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def start(self, typed: Typed) -> None:
        self.stop()
        self._run = subprocess.Popen(
            ["bash", "-c", f"exec {typed.command}"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._run.stdout is not None
        said = []
        for line in self._run.stdout:
            said.append(line)
            if "Answering at" in line:
                assert re.search(pattern(self._here(typed.shown).strip()), line.strip()), line
                return
        raise AssertionError("".join(said))

    def stop(self) -> None:
        """Ctrl-C."""
        if self._run is None:
            return
        self._run.send_signal(signal.SIGINT)
        said, _ = self._run.communicate(timeout=HANGING_S)
        assert self._run.returncode == 0, said
        self._run = None

    def leave(self) -> None:
        if self._run is not None:
            with suppress(AssertionError):
                self.stop()

    def _said(self, command: str) -> str:
        done = subprocess.run(
            ["bash"],
            input=self._here(command),  # not an argument: `pkill -f` would find itself
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=HANGING_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def _here(self, text: str) -> str:
        return re.sub(r"(localhost|127\.0\.0\.1):8000", rf"\1:{self.port}", text)


def pattern(shown: str) -> str:
    """A regular expression of what is shown: `…` stands for anything."""
    return ".*".join(re.escape(part) for part in shown.split("…"))


def assert_said(said: str, typed: Typed) -> None:
    """Of an answer of the server the members that are shown; of everything else the text."""
    if typed.command.startswith("curl "):
        shown = re.sub(r",? *…", "", typed.shown)
        assert_shown(json.loads(shown), json.loads(said), typed.command)
    else:
        assert re.fullmatch(pattern(typed.shown.strip()), said.strip(), re.DOTALL), f"{typed.command}:\n{said}"


@pytest.fixture(
    params=["embedded", pytest.param("kafka", marks=long_only("the same commands run on the embedded log"))]
)
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reader]:
    settings = {}
    if request.param == "kafka":
        broker: SharedBroker = request.getfixturevalue("kafka_broker")
        settings["STATELINE_BOOTSTRAP_SERVERS"] = broker.bootstrap_servers
        settings["STATELINE_SESSION_TIMEOUT_MS"] = "6000"  # a reset waits for that of the worker that was stopped
    reader = Reader(tmp_path, settings)
    try:
        yield reader
    finally:
        reader.leave()


def test_the_tutorial_works_as_it_is_typed(reader: Reader) -> None:
    for step in steps(PAGE):
        if isinstance(step, Written):
            reader.write(step)
        else:
            reader.type(step)
    reader.stop()


def test_the_tutorial_has_everything_in_it() -> None:
    typed = [step.command for step in steps(PAGE) if isinstance(step, Typed)]
    for command in ("topics", "produce", "run", "check", "reset", "consume"):
        assert any(f"stateline {command} " in line for line in typed), command
    assert "python -m pytest -q" in typed
