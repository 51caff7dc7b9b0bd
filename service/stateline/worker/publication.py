"""What a worker tells other processes of this machine through files: the topology, and who runs which task.

- ``<application>/topology.json``: subtopologies with their partition counts, stores with their changelogs, and the
  topics that these are made of with their partitions. Every worker writes the same one, and reads at its start what the
  last one has counted. A worker that ends because of these counts says so by store (`refused`).
- ``<application>/instances/<instance>.json``: one per worker process; its lock file beside it is held while it lives.
- ``<application>/instances/<instance>.figures``: what that worker has counted, as JSON (`figures`).

All are replaced by an atomic rename: a reader sees the old or the new, never a half.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any
from uuid import UUID

import orjson

from stateline.deployment.partition_counts import counts_as_json, counts_of_json
from stateline.log.interface import TopicInfo
from stateline.model.topic import checked_name
from stateline.model.topology import Topology
from stateline_store import IsolationLevel, LockedError
from stateline_store.durable_files import refused

logger = logging.getLogger(__name__)

_LOCK_LOOKS, _LOCK_PAUSE_S = 10, 0.02
_SOCKET_PATH_BYTES = 100  # sun_path has 104 (macOS) to 108 bytes (Linux)


def topology_document(
    topology: Topology,
    partitions: Mapping[int, int],
    default_isolation_level: IsolationLevel,
    counted: Mapping[str, TopicInfo] = MappingProxyType({}),
) -> dict[str, Any]:
    """The content of ``topology.json``."""
    return {
        "application_id": topology.application_id,
        "default_isolation_level": str(default_isolation_level),
        "subtopologies": [
            {
                "ordinal": s.ordinal,
                "partitions": partitions[s.ordinal],
                "sources": [topic.name for topic in s.sources],
                "stores": [store.name for store in s.stores],
                "processors": [processor.name for processor in s.processors],
            }
            for s in topology.subtopologies
        ],
        "stores": {
            name: {
                "subtopology": topology.subtopology_of(name).ordinal,
                "changelog": definition.changelog(topology.application_id),
            }
            for name, definition in topology.stores.items()
        },
        "topics": counts_as_json(counted),
    }


def read_counted(path: Path) -> dict[str, TopicInfo]:
    """The topics that stores were made of, as the last worker has written them down in this ``topology.json``; none
    when there is no such file, or it says nothing of it."""
    return counts_of_json(_read(path).get("topics", {}))


def publish_refusal(path: Path, reasons: Mapping[str, str], document: Callable[[], dict[str, Any]]) -> None:
    """Say in ``topology.json`` why nobody runs these stores, and leave what is there otherwise; where nothing is there
    yet, `document` makes it. The next worker that runs them writes it anew."""
    said = _read(path) or document()
    for name, why in reasons.items():
        if name in said["stores"]:
            said["stores"][name]["refused"] = why
    publish(path, said)


def _read(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, orjson.JSONDecodeError) as error:
        logger.warning("%s cannot be read and is written anew: %s", path, error)
        return {}
    return document


def publish(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON file so that readers never see half of it. Raises `RetryLaterError` where nothing can be written."""
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(orjson.dumps(document, option=orjson.OPT_INDENT_2))
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)  # a full disk shall not fill with names
            raise
    except OSError as error:
        raise refused(path, "written", error) from error


def _lock(file: IO[str]) -> None:
    """Hold the lock. A server that looks whether a worker lives has it for a moment, so one look is not enough.

    Raises `BlockingIOError` when it is held all the time.
    """
    for _ in range(_LOCK_LOOKS - 1):
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(_LOCK_PAUSE_S)
    return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class InstanceFile:
    """One worker's presence. Raises `LockedError` when a live worker of this name exists already."""

    def __init__(self, application: Path, instance: str) -> None:
        directory = application / "instances"
        self.instance = checked_name("worker instance", instance)
        self._path = directory / f"{instance}.json"
        self._figures = directory / f"{instance}.figures"
        try:
            directory.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._lock = (directory / f"{instance}.lock").open("a")
        except OSError as error:
            raise refused(directory, "written", error) from error
        try:
            _lock(self._lock)
        except BlockingIOError as error:
            self._lock.close()
            raise LockedError(
                f"A worker named {instance!r} is running on {application} already: stop it, or the `stateline run` "
                "that it belongs to; a `stateline worker` of its own can take another name (--instance)."
            ) from error
        with contextlib.suppress(OSError):  # `update` says so
            self._forget()  # what one of this name said that was killed

    def update(self, socket: Path, tasks: Mapping[str, str], process_id: UUID) -> None:
        """Say which tasks this worker has, in which state, and on which directory (`StateDirectory.process_id`)."""
        publish(
            self._path,
            {
                "instance": self.instance,
                "process_id": str(process_id),
                "pid": os.getpid(),
                "socket": str(socket),
                "tasks": dict(tasks),
            },
        )

    def publish_figures(self, document: Mapping[str, Any]) -> None:
        """Replace what this worker tells of its counts. Raises `RetryLaterError` where nothing can be written."""
        publish(self._figures, document)

    def remove(self) -> None:
        """A clean exit: nothing of this worker is left but its name's lock file."""
        self._forget()
        self._lock.close()

    def _forget(self) -> None:
        self._path.unlink(missing_ok=True)
        self._figures.unlink(missing_ok=True)


def socket_path(application: Path, instance: str) -> Path:
    """Where this worker answers queries: beside its instance file, where whoever shares the state directory sees it.

    A unix socket's path holds about 100 bytes: from a deeper state directory it moves to the temporary one.
    """
    path = application.resolve() / "instances" / f"{instance}.sock"
    if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES:
        return path
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    directory = Path(tempfile.gettempdir()) / f"stateline-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory / f"{digest}.sock"
