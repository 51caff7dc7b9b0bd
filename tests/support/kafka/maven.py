"""Jars from Maven for tests: fetched once per machine, into a folder of the repository's `.cache`."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import CACHE

_TIMEOUT_S = 600.0


class JarsUnavailableError(Exception):
    """The jars cannot be had here; the message says what is missing."""


@contextmanager
def one_at_a_time(task: str) -> Iterator[None]:
    """Only one of this repository's processes is in here for this task: what it makes in `.cache`, others then find.

    A process that dies lets the next one in. Maven needs it too, whose own repository is not made for two at once.
    """
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{task}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        yield


def jars(pom: Path, name: str) -> Path:
    """The folder `.cache/<name>` with the jars that this pom depends on, fetched when it is not there yet.

    `name` should tell their version: a folder that is there is never looked into again. It may be a path of several
    parts. Several processes may call this at once: one fetches, the others wait for it. Raises `JarsUnavailableError`
    without mvn, or when Maven fails.
    """
    folder = CACHE / name
    if folder.is_dir():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise JarsUnavailableError(f"The jars of {pom} need 'mvn', which is not on the PATH.")
    with one_at_a_time("maven"):
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                fetched = Path(scratch) / "jars"
                _fetch(maven, pom, fetched)
                fetched.rename(folder)
    return folder


def _fetch(maven: str, pom: Path, folder: Path) -> None:
    command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise JarsUnavailableError(f"Maven did not fetch the jars of {pom} within {_TIMEOUT_S:.0f} s.") from error
    if done.returncode:
        raise JarsUnavailableError(f"Maven could not fetch the jars of {pom}: {done.stdout}{done.stderr}")
