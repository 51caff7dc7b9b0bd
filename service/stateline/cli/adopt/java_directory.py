"""Find the stores of a Kafka Streams application in its state directory, and whether it still runs."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stateline_store import ConfigurationError, LockedError
from stateline_store.adoption.java_store import JavaFiles, find_java_store, java_stores
from stateline_store.task_id import TaskId

_GLOBAL = "global"  # Kafka Streams' directory of global stores
_FLOCK = struct.Struct("hhqqi4x")  # Linux, 64 bits: type, whence, start, length, pid


@dataclass(frozen=True, slots=True)
class JavaDirectory:
    """The directory of one application."""

    path: Path

    def stores(self, name: str, *, is_global: bool) -> Iterator[tuple[str, JavaFiles]]:
        """Yield the task's id and the files of each partition of this store."""
        tasks = [_GLOBAL] if is_global else task_ids(self.path)
        for task in tasks:
            if (files := find_java_store(self.path / task, name)) is not None:
                yield task, files

    def names(self) -> set[str]:
        """Return the names of all stores here."""
        return {name for task in [*task_ids(self.path), _GLOBAL] for name in java_stores(self.path / task)}


def java_directory(source: Path, application_id: str) -> JavaDirectory | None:
    """Return the directory of this application: below `source`, or `source` itself. None if neither has tasks.

    Raises `ConfigurationError` if `source` is no directory, `LockedError` if the application runs.
    """
    if not source.is_dir():
        raise ConfigurationError(f"--from {source}: there is no such directory. Give Kafka Streams' state.dir.")
    for path in (source / application_id, source):
        if path.is_dir() and (task_ids(path) or (path / _GLOBAL).is_dir()):
            _refuse_in_use(path)
            return JavaDirectory(path)
    return None


def task_ids(application: Path) -> list[str]:
    """Return the ids of the tasks in an application's directory, in order of their numbers."""
    names = [entry.name for entry in application.iterdir() if entry.is_dir()]
    return sorted(filter(TaskId.is_one, names), key=TaskId.parse)


def _refuse_in_use(application: Path) -> None:
    """Java locks with `fcntl`. Asking for the holder changes nothing and needs only the right to read."""
    try:
        handle = os.open(application / ".lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_, holder = _FLOCK.unpack(fcntl.fcntl(handle, fcntl.F_GETLK, asked))
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EINVAL):
            raise
        return
    finally:
        os.close(handle)
    if kind != fcntl.F_UNLCK:
        raise LockedError(
            f"{application} is in use by process {holder}, which holds its .lock. Stop the Kafka Streams application "
            "and try again. Nothing was adopted."
        )
