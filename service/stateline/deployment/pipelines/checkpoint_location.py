"""Find the checkpoints that all nodes reach, and make sure that all nodes mean the same directory.

A URL (``hdfs://…``, ``s3a://…``) is unique. For a path, ``<path>/<application>/pipelines/.location`` has an id:

    {"location": UUID}

On disk: never change. The first node makes it. It tells apart two machines with different directories at one path, for
example because one has not mounted it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import orjson

from stateline.config.settings import Config
from stateline.deployment.pipelines.status import pipelines_directory
from stateline_store import ConfigurationError, DamagedDataError

_NAME = ".location"


def is_url(location: str) -> bool:
    """Whether Hadoop's `FileSystem` reaches it, not the operating system."""
    return "://" in location


def location_id(config: Config) -> str:
    """The id of `pipeline.checkpoint.location`: the URL, or the id of the directory, made if it has none.

    Raises `ConfigurationError` if the directory is missing or not writable, `DamagedDataError` if its file has no id.
    """
    location = config.pipeline_checkpoint_location
    assert location is not None, "whoever asks has looked"
    if is_url(location):
        return location
    place = Path(location)
    if not place.is_dir():
        raise _unusable(config, "there is no such directory: mount it here, or make it")
    folder = pipelines_directory(place, config.application_id)
    path, made = folder / _NAME, folder / f"{_NAME}.{uuid4()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        made.write_bytes(orjson.dumps({"location": str(uuid4())}))  # each time, to check that it is writable
        with suppress(FileExistsError):  # atomic, for one node only; NFS has no locks of directories
            path.hardlink_to(made)
        content = path.read_bytes()
    except OSError as error:
        raise _unusable(config, f"{error.filename or path}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            made.unlink(missing_ok=True)
    try:
        return str(orjson.loads(content)["location"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedDataError(f"{path} is not the JSON that Stateline writes: delete that file.") from error


def _unusable(config: Config, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"pipeline.checkpoint.location = {str(config.pipeline_checkpoint_location)!r} (from "
        f"{config.origin('pipeline.checkpoint.location')}) cannot be used: {why}."
    )
