"""A worker's name on its machine: its lock, and the files by which servers know it.

The files are `stateline.deployment.workers.instance_file`'s and `stateline.deployment.workers.figures`'.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO
from uuid import UUID

from stateline.deployment.json_files import publish
from stateline.deployment.workers.figures import WorkerFigures, figures_path
from stateline.deployment.workers.instance_file import (
    Instance,
    counted,
    instance_path,
    instances_directory,
    lock_path,
    starts,
)
from stateline.model.topic import checked_name
from stateline_store import LockedError
from stateline_store.files.durable_files import FILE_MODE, refused

_LOCK_LOOKS, _LOCK_PAUSE_S = 10, 0.02
_SOCKET_NAME_BYTES = 80  # of the 100 or so that an address has (`unix_sockets`)


def _lock(file: IO[bytes]) -> None:
    """Take the lock. A server that checks whether a worker lives holds it for a moment, so this tries several times.
    Raises `BlockingIOError` if it stays held."""
    for _ in range(_LOCK_LOOKS - 1):
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(_LOCK_PAUSE_S)
    return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Registration:
    """One worker's. Raises `LockedError` if a live worker of this name exists."""

    def __init__(self, application: Path, instance: str) -> None:
        directory = instances_directory(application)
        self.instance = checked_name("worker instance", instance)
        self._path = instance_path(application, instance)
        self._figures = figures_path(application, instance)
        try:
            directory.mkdir(mode=0o750, parents=True, exist_ok=True)
            lock = os.open(lock_path(application, instance), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            self.lock = os.fdopen(lock, "r+b", buffering=0)
        except OSError as error:
            raise refused(directory, "written", error) from error
        try:
            _lock(self.lock)
        except BlockingIOError as error:
            self.lock.close()
            raise LockedError(
                f"A worker named {instance!r} is running on {application} already: stop it, or the `stateline run` "
                "that it belongs to; a `stateline worker` of its own can take another name (--instance)."
            ) from error
        with contextlib.suppress(OSError):  # a full disk takes what is overwritten in its place
            os.pwrite(self.lock.fileno(), counted((starts(application, instance) or 0) + 1), 0)
        with contextlib.suppress(OSError):  # `update` says so
            self._forget()  # the files of a killed worker of this name

    def update(
        self,
        socket: Path,
        tasks: Mapping[str, str],
        process_id: UUID,
        member_id: str | None = None,
        generation: int = -1,
        global_tables: str | None = None,
        drained: bool = False,
    ) -> None:
        """Publish this worker's instance file. `process_id` is `StateDirectory.process_id`."""
        found = Instance(
            instance=self.instance, process_id=process_id, member_id=member_id, generation=generation,
            pid=os.getpid(), socket=socket, tasks=dict(tasks),
            global_tables=global_tables, drained=drained,
        )  # fmt: skip
        publish(self._path, found.encode())

    def publish_figures(self, figures: WorkerFigures) -> None:
        publish(self._figures, figures.encode())

    def remove(self) -> None:
        self._forget()
        self.lock.close()

    def _forget(self) -> None:
        self._path.unlink(missing_ok=True)
        self._figures.unlink(missing_ok=True)


def socket_path(application: Path, instance: str) -> Path:
    """Return the path of the query socket. A name too long for a socket's address is replaced by its digest."""
    name = f"{instance}.sock"
    if len(name) > _SOCKET_NAME_BYTES:
        name = f"{hashlib.sha256(instance.encode()).hexdigest()[:16]}.sock"
    return instances_directory(application.resolve()) / name
