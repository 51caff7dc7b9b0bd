"""``<application>/instances/<instance>.json``: a worker process, described for servers.

    {"instance", "process_id": UUID of the directory, "member_id": by which its consumer group knows it, or null,
     "generation": of the group when it was given the tasks, -1 of none, "pid",
     "socket": path where it answers queries,
     "tasks": {task: "created" | "standby" | "restoring" | "running" | "suspended"},
     "global_tables": "restoring" | "running", or null of an application without any,
     "drained": whether it was asked to drain and has handed over what it had}

Indented by two, replaced by rename. A killed worker leaves its file. ``<instance>.lock`` beside it is locked while the
worker lives, and has the number of its starts.

``<instance>.drain`` asks the worker to leave its group for good. ``<application>/pipelines/<pipeline>/.drain`` asks a
driver to let another node run its pipeline. `stateline node drain` makes these empty files. The worker or driver hands
over, and takes nothing until its next start, which removes the file.

On disk: never change.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import orjson

from stateline.deployment.json_files import decoded
from stateline.deployment.stores.topology_file import GLOBAL_TABLES, unreadable
from stateline_store import DamagedDataError
from stateline_store.files.durable_files import refused

_LOCK = ".lock"  # on disk: never change
_COUNT_BYTES = 21  # on disk: never change
STANDBY = "standby"
"""The state of a task that another worker has and this one follows. On disk: never change."""


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A worker process, with the members of the file. `process_id` is the `StateDirectory`'s. The process may have
    ended."""

    instance: str
    process_id: UUID | None = None
    member_id: str | None = None
    generation: int = -1
    pid: int
    socket: Path
    tasks: Mapping[str, str]
    global_tables: str | None = None
    drained: bool = False

    def state_of(self, task_id: str) -> str | None:
        """The state of this task, or of `GLOBAL_TABLES`; None if the worker does not have it."""
        return self.global_tables if task_id == GLOBAL_TABLES else self.tasks.get(task_id)

    def has(self, task_id: str) -> bool:
        """Whether its group has assigned this task to it. A standby is another worker's task."""
        return self.state_of(task_id) not in (None, STANDBY)

    def encode(self) -> bytes:
        return orjson.dumps(self, str, orjson.OPT_INDENT_2)


def instance_path(application: Path, instance: str) -> Path:
    return instances_directory(application) / f"{instance}.json"


def lock_path(application: Path, instance: str) -> Path:
    return instances_directory(application) / f"{instance}{_LOCK}"


def locked_instances(application: Path) -> list[str]:
    """The instances that were ever started here; none if that cannot be read."""
    try:
        names = os.listdir(instances_directory(application))
    except OSError:
        return []
    return sorted(name.removesuffix(_LOCK) for name in names if name.endswith(_LOCK))


def starts(application: Path, instance: str) -> int | None:
    """How often this instance was started; None if its lock does not say so."""
    try:
        text = lock_path(application, instance).read_bytes()[:_COUNT_BYTES].strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def counted(times: int) -> bytes:
    """The lock's content for this number of starts. Its length is fixed, so that it replaces the old content."""
    return b"%*d\n" % (1 - _COUNT_BYTES, times)


def instances_directory(application: Path) -> Path:
    return application / "instances"


def read_instances(application: Path) -> dict[str, Instance]:
    """Instance → its description. A damaged file is left out with a warning.

    Raises `NotReadyError` if the operating system refuses the directory or a file.
    """
    instances = {}
    for path in _instance_files(instances_directory(application)):
        try:
            found = decoded(Instance, path.read_bytes())
        except FileNotFoundError:
            continue  # it was deleted after the listing
        except OSError as error:
            raise unreadable(path, error) from error
        except DamagedDataError as error:
            _log.warning("%s cannot be read and is left out: %s", path, error)
            continue
        instances[found.instance] = found
    return instances


def _instance_files(directory: Path) -> list[Path]:
    """`glob` would take an unreadable directory for an empty one."""
    try:
        return sorted(directory / name for name in os.listdir(directory) if name.endswith(".json"))
    except FileNotFoundError:
        return []  # no worker has started yet
    except OSError as error:
        raise unreadable(directory, error) from error


def drain_path(application: Path, instance: str) -> Path:
    return instances_directory(application) / f"{instance}.drain"


def ask_to_drain(application: Path, instance: str) -> None:
    """Raises `RetryLaterError` if the file cannot be written."""
    _touch(drain_path(application, instance))


def pipeline_drain_path(directory: Path) -> Path:
    return directory / ".drain"


def ask_pipeline_to_drain(directory: Path) -> None:
    """Raises `RetryLaterError` if the file cannot be written."""
    _touch(pipeline_drain_path(directory))


def _touch(path: Path) -> None:
    try:
        path.touch()
    except OSError as error:
        raise refused(path, "written", error) from error
