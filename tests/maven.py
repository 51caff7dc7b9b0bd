"""Jars from Maven for tests: fetched once per machine, into a folder of the repository's `.cache`."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

_CACHE = Path(__file__).parents[1] / ".cache"
_TIMEOUT_S = 600.0


class JarsUnavailableError(Exception):
    """The jars cannot be had here; the message says what is missing."""


def jars(pom: Path, name: str) -> Path:
    """The folder `.cache/<name>` with the jars that this pom depends on, fetched when it is not there yet.

    `name` should tell their version: a folder that is there is never looked into again. It may be a path of several
    parts. Several processes may call this at once: the first to finish wins. Raises `JarsUnavailableError` without
    mvn, or when Maven fails.
    """
    folder = _CACHE / name
    if folder.is_dir():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise JarsUnavailableError(f"The jars of {pom} need 'mvn', which is not on the PATH.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        fetched = Path(scratch) / "jars"
        _fetch(maven, pom, fetched)
        try:
            fetched.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder


def _fetch(maven: str, pom: Path, folder: Path) -> None:
    command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise JarsUnavailableError(f"Maven did not fetch the jars of {pom} within {_TIMEOUT_S:.0f} s.") from error
    if done.returncode:
        raise JarsUnavailableError(f"Maven could not fetch the jars of {pom}: {done.stdout}{done.stderr}")
