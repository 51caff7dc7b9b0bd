"""``<application>/instances/<instance>.drain``: somebody wants this worker to leave its group for good.

An empty file, which `stateline node drain` makes. A worker of that name that finds it hands over what it has, and takes
nothing more until it is started anew: then it removes the file. On disk: never change.
"""

from __future__ import annotations

from pathlib import Path

from stateline.deployment.instance_file import instances_directory
from stateline_store.durable_files import refused


def drain_path(application: Path, instance: str) -> Path:
    """Where it is asked of this instance."""
    return instances_directory(application) / f"{instance}.drain"


def ask_to_drain(application: Path, instance: str) -> None:
    """Have this worker leave. Raises `RetryLaterError` where nothing can be written."""
    path = drain_path(application, instance)
    try:
        path.touch()
    except OSError as error:
        raise refused(path, "written", error) from error
