"""What the workers have written down for the servers: `topology.json` and `instances/*.json`.

    <application>/topology.json          {"subtopologies": [{"ordinal", "partitions", …}],
                                          "stores": {name: {"subtopology", "changelog"}}, …}
    <application>/instances/<name>.json  {"instance", "process_id", "pid", "socket", "tasks": {task: "created" |
    "restoring" | "running" | "suspended"}}
    <application>/instances/<name>.lock  locked while that worker lives

The first two are replaced by rename, so a reader sees a whole file or none. Fields that are not read here are ignored.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from stateline.model.task_id import TaskId
from stateline_store import NotReadyError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Placement:
    """Which task family holds a store, and in how many partitions. `changelog` is None without one. `refused` says why
    no worker runs it any more."""

    subtopology: int
    partitions: int
    changelog: str | None
    refused: str | None = None

    def task_id(self, partition: int) -> str:
        """The text of the `TaskId` that has this partition, as in `Instance.tasks`."""
        return str(TaskId(self.subtopology, partition))


@dataclass(frozen=True, slots=True)
class Instance:
    """One worker process, as it described itself. It may be gone: a killed one leaves its file."""

    name: str
    pid: int
    socket: Path
    tasks: Mapping[str, str]


def read_placements(application: Path) -> dict[str, Placement]:
    """Store → placement. Raises `NotReadyError` when no worker has written it yet, or it cannot be read."""
    path = application / "topology.json"
    try:
        return _placements(orjson.loads(path.read_bytes()))
    except FileNotFoundError as error:
        raise NotReadyError(
            f"No worker has started yet in {application}: start one (stateline worker), then ask again."
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, KeyError, TypeError) as error:
        raise NotReadyError(f"{path} cannot be read ({error!r}): restart a worker, it writes it anew.") from error


def read_instances(application: Path) -> dict[str, Instance]:
    """Instance → its description. A file that makes no sense is left out, with a warning.

    Raises `NotReadyError` when the operating system refuses the directory or a file.
    """
    instances = {}
    for path in _instance_files(application / "instances"):
        try:
            instance = _instance(orjson.loads(path.read_bytes()))
        except FileNotFoundError:
            continue  # it left between the listing and the reading
        except OSError as error:
            raise unreadable(path, error) from error
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("%s cannot be read and is left out: %r", path, error)
            continue
        instances[instance.name] = instance
    return instances


def lock_path(application: Path, instance: str) -> Path:
    """What this instance has locked while it lives."""
    return application / "instances" / f"{instance}.lock"


def unreadable(path: Path, error: OSError) -> NotReadyError:
    """What to say when the operating system refuses `path`, or what it names in the error."""
    return NotReadyError(
        f"{error.filename or path} cannot be read ({error.strerror or error}): give the server's user access to the "
        "state directory (state.dir), or repair it."
    )


def _instance_files(directory: Path) -> list[Path]:
    """Not by `glob`, to which a directory that may not be read is an empty one."""
    try:
        return sorted(directory / name for name in os.listdir(directory) if name.endswith(".json"))
    except FileNotFoundError:
        return []  # no worker has started yet
    except OSError as error:
        raise unreadable(directory, error) from error


def _placements(document: Mapping[str, Any]) -> dict[str, Placement]:
    partitions = {int(s["ordinal"]): int(s["partitions"]) for s in document["subtopologies"]}
    return {
        name: Placement(
            int(store["subtopology"]),
            partitions[int(store["subtopology"])],
            store["changelog"],
            store.get("refused"),
        )
        for name, store in document["stores"].items()
    }


def _instance(document: Mapping[str, Any]) -> Instance:
    tasks = {str(task): str(state) for task, state in document["tasks"].items()}
    return Instance(str(document["instance"]), int(document["pid"]), Path(document["socket"]), tasks)
