"""``<application>/pipelines/<pipeline>/status.json``: a pipeline's progress, written by its driver.

JSON of `PipelineStatus`, in the order of its members. On disk: never change. Replaced by rename. It exists from the
start of a driver until an orderly stop. The pipeline's ``.lock`` beside it tells whether the driver lives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import orjson

from stateline.deployment.json_files import decoded

MOST_BYTES = 64 * 1024
"""Limit of a status that other machines read."""
State = Literal["starting", "running", "waiting", "restarting", "failed"]
"""`running` from the first micro-batch on; `waiting` if there is nothing to read; `restarting` after a failure, until
the next start; `failed` if it does not start again before the caller acts."""


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """A pipeline's progress, with the members of the file. Times are milliseconds since the epoch.

    `batch_id` to `duration_ms` and `rows_out` to `batch_at_ms` are the newest micro-batch's; before the first they are
    -1, 0 or empty. `lag` counts the records left in its topics, None if no source tells. `totals` are sums since the
    driver's start. `restarts` counts since the last orderly stop.
    """

    pipeline: str
    pid: int
    state: State
    query_id: str
    batch_id: int
    rows_in: int
    skipped: int
    duration_ms: int
    updated_at_ms: int
    rows_out: int
    tombstones: int
    dead_lettered: int
    lag: int | None
    lag_by_topic: Mapping[str, int]
    watermark_ms: int | None
    steps_ms: Mapping[str, int]
    batch_at_ms: int | None
    totals: Mapping[str, int]
    restarts: int
    last_error: str | None
    last_error_at_ms: int | None
    next_start_at_ms: int | None

    def encode(self) -> bytes:
        return orjson.dumps(self)


def pipelines_directory(state_dir: Path, application_id: str) -> Path:
    """The folder with a directory per pipeline, by name."""
    return state_dir / application_id / "pipelines"


def status_path(directory: Path) -> Path:
    return directory / "status.json"


def lock_path(directory: Path) -> Path:
    """A pipeline's driver locks it while it lives."""
    return directory / ".lock"


def read_status(directory: Path) -> PipelineStatus | None:
    """The newest status; None after an orderly stop, or if the pipeline never ran.

    Raises `OSError` if it cannot be read, `DamagedDataError` for other content.
    """
    try:
        return decoded(PipelineStatus, status_path(directory).read_bytes())
    except FileNotFoundError:
        return None
