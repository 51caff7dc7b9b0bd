"""Jars from Maven, fetched once per machine into the repository's `.cache`."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stateline_store import ConfigurationError
from support import CACHE

_TIMEOUT_S = 600.0
_SHORT_LIVED = "-XX:TieredStopAtLevel=1"  # half the processor time of a JVM that compiles all the way


class JarsUnavailableError(ConfigurationError):
    """The jars cannot be had here; the message says what is missing."""


def maven_environment() -> dict[str, str]:
    """What Maven is started with; the user's own options win."""
    return {**os.environ, "MAVEN_OPTS": f"{_SHORT_LIVED} {os.environ.get('MAVEN_OPTS', '')}".strip()}


@contextmanager
def one_at_a_time(task: str) -> Iterator[None]:
    """Hold this task's lock in `.cache`: one process does the task, and the others find its result.

    The lock ends with its process. Maven needs it too: two of them cannot share one local repository.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{task}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        yield


def jars(pom: Path, name: str, *options: str) -> Path:
    """Return the folder `.cache/<name>` with the jars that this pom depends on. Fetch them if it is missing.

    `name` should contain their version, because an existing folder is never checked. It may have several parts.
    `options` are Maven's. Several processes may call this at once: one fetches, the others wait. Raises
    `JarsUnavailableError` if `mvn` is missing or fails.
    """
    folder = CACHE / name
    if folder.is_dir():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise JarsUnavailableError(f"The jars of {pom} need 'mvn', which is not on the PATH: install Maven.")
    with one_at_a_time("maven"):
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                fetched = Path(scratch) / "jars"
                _fetch([maven, "-q", "-B", "-f", str(pom), *options], fetched)
                fetched.rename(folder)
    return folder


def _fetch(maven: list[str], folder: Path) -> None:
    command = [*maven, "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    try:
        done = subprocess.run(
            command, env=maven_environment(), capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise JarsUnavailableError(f"Maven did not fetch the jars within {_TIMEOUT_S:.0f} s: {command}") from error
    if done.returncode:
        raise JarsUnavailableError(f"Maven could not fetch the jars ({command}): {done.stdout}{done.stderr}")
