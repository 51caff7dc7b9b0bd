"""``<application>/pipelines/<pipeline>/status.json``: how far a pipeline is, as its driver says.

JSON of `PipelineStatus`, in the order of its members. On disk: never change. It is there from the start of a pipeline's
driver until it is stopped in order; whether one lives tells the pipeline's ``.lock`` beside it. Replaced by rename.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import orjson

from stateline.deployment.json_files import decoded

MOST_BYTES = 64 * 1024
"""Of a status that other machines take."""
State = Literal["starting", "running", "waiting", "restarting", "failed"]
"""`running` from the first micro-batch on, `waiting` when there is nothing to read, `restarting` after a failure, until
it starts again, `failed` when it does not: the caller has to act first."""


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """How far a pipeline is; a restart of it changes only what it says. Times are milliseconds since the epoch.

    It has an attribute per member of the file. `batch_id` to `duration_ms`, `rows_out` to `batch_at_ms` are the newest
    micro-batch's, -1, 0 and nothing before the first. `lag` is how many records its topics have behind it, None where
    no source says so. `totals` are sums since the driver started; `restarts` counts since the pipeline was last stopped
    in order.
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

    @classmethod
    def decode(cls, content: bytes) -> PipelineStatus:
        """Raises `DamagedDataError` for what is none, or of another version."""
        return decoded(cls, content)

    def encode(self) -> bytes:
        """The file's bytes."""
        return orjson.dumps(self)


def pipelines_directory(state_dir: Path, application_id: str) -> Path:
    """Where an application's pipelines have a directory each, by their names."""
    return state_dir / application_id / "pipelines"


def status_path(directory: Path) -> Path:
    """In a pipeline's directory."""
    return directory / "status.json"


def lock_path(directory: Path) -> Path:
    """What a pipeline's driver has locked while it lives."""
    return directory / ".lock"


def read_status(directory: Path) -> PipelineStatus | None:
    """The newest one in a pipeline's directory; None when it was stopped in order, or never ran.

    Raises `OSError` when it cannot be read, `DamagedDataError` as `decode` does.
    """
    try:
        return PipelineStatus.decode(status_path(directory).read_bytes())
    except FileNotFoundError:
        return None
