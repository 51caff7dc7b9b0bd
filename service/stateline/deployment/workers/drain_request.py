"""``<application>/instances/<instance>.drain``: somebody wants this worker to leave its group for good; and
``<application>/pipelines/<pipeline>/.drain``: that another node runs this pipeline.

An empty file, which `stateline node drain` makes. A worker of that name that finds it hands over what it has, and takes
nothing more until it is started anew: then it removes the file. So does a pipeline's driver. On disk: never change.
"""

from __future__ import annotations

from pathlib import Path

from stateline.deployment.workers.instance_file import instances_directory
from stateline_store.files.durable_files import refused


def drain_path(application: Path, instance: str) -> Path:
    """Where it is asked of this instance."""
    return instances_directory(application) / f"{instance}.drain"


def ask_to_drain(application: Path, instance: str) -> None:
    """Have this worker leave. Raises `RetryLaterError` where nothing can be written."""
    _touch(drain_path(application, instance))


def pipeline_drain_path(directory: Path) -> Path:
    """Where it is asked of a pipeline, in its directory."""
    return directory / ".drain"


def ask_pipeline_to_drain(directory: Path) -> None:
    """Have this pipeline's driver stop, and another node's go on. Raises as `ask_to_drain`."""
    _touch(pipeline_drain_path(directory))


def _touch(path: Path) -> None:
    try:
        path.touch()
    except OSError as error:
        raise refused(path, "written", error) from error
