"""Jars from Maven for tests: fetched once per machine, into a folder of the repository's `.cache`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from stateline.demo.broker import JarsUnavailableError, maven
from support import CACHE

__all__ = ["JarsUnavailableError", "jars", "one_at_a_time"]


def one_at_a_time(task: str) -> AbstractContextManager[None]:
    """Only one of this repository's processes is in here for this task, as `maven.one_at_a_time` says."""
    return maven.one_at_a_time(CACHE, task)


def jars(pom: Path, name: str) -> Path:
    """The folder `.cache/<name>` with the jars that this pom depends on, as `maven.jars` says."""
    return maven.jars(pom, CACHE, name)
