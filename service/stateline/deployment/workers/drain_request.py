"""``<application>/instances/<instance>.drain`` asks a worker to leave its group for good.
``<application>/pipelines/<pipeline>/.drain`` asks a driver to let another node run its pipeline.

`stateline node drain` makes these empty files. The worker or driver hands over, and takes nothing until its next start,
which removes the file. On disk: never change.
"""

from __future__ import annotations

from pathlib import Path

from stateline.deployment.workers.instance_file import instances_directory
from stateline_store.files.durable_files import refused


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
