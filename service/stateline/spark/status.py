"""How far a pipeline is: from Spark's events to a value, a file and the log."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from stateline.spark.frames import SKIPPED

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """How far a pipeline is. `state` is ``running`` once a micro-batch is through, or none was needed."""

    pipeline: str
    pid: int
    state: str
    query_id: str
    batch_id: int
    rows_in: int
    skipped: int
    duration_ms: int
    updated_at_ms: int


Progress = Callable[[PipelineStatus], None]
"""Gets the status after each micro-batch, on a thread of Spark's."""


def log_progress(status: PipelineStatus) -> None:
    """One line per micro-batch, and a warning when records were left out."""
    _logger.info(
        "pipeline %s: micro-batch %d: %d rows in %d ms", status.pipeline, status.batch_id, status.rows_in,
        status.duration_ms,
    )  # fmt: skip
    if status.skipped:
        _logger.warning(
            "pipeline %s: left out %d records that are not JSON of their schema",
            status.pipeline,
            status.skipped,
        )


class StatusListener(StreamingQueryListener):
    """Turns Spark's events about one query into `PipelineStatus`. Spark calls it on a thread of its own."""

    def __init__(self, pipeline: str, path: Path, progress: Progress) -> None:
        self.path = path
        self._pipeline = pipeline
        self._progress = progress
        self._query_id = ""
        self._ready = False
        self._ended = threading.Event()

    def wait_until_ended(self, timeout_s: float) -> bool:
        """Wait for Spark's last event, which follows the last progress; False when it did not come in time."""
        return self._ended.wait(timeout_s)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's name
        if event.name == self._pipeline:
            self._query_id = str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  # Spark's name
        p = event.progress
        if str(p.id) != self._query_id:
            return
        skipped = sum(row["records"] for n, row in p.observedMetrics.items() if n.startswith(f"{SKIPPED}."))
        duration_ms = int(p.durationMs.get("triggerExecution", 0))
        status = self._status(p.batchId, p.numInputRows, skipped, duration_ms)
        self._write(status)
        self._progress(status)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802  # Spark's name
        if str(event.id) == self._query_id and not self._ready:
            self._write(self._status(-1, 0, 0, 0))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  # Spark's name
        if str(event.id) == self._query_id:
            self._ended.set()

    def _status(self, batch_id: int, rows_in: int, skipped: int, duration_ms: int) -> PipelineStatus:
        now = time.time_ns() // 1_000_000
        return PipelineStatus(
            self._pipeline,
            os.getpid(),
            "running",
            self._query_id,
            batch_id,
            rows_in,
            skipped,
            duration_ms,
            now,
        )

    def _write(self, status: PipelineStatus) -> None:
        if not self._ready:
            self._ready = True
            _logger.info("pipeline %s is ready", self._pipeline)
        unfinished = self.path.with_suffix(".tmp")
        unfinished.write_bytes(orjson.dumps(asdict(status)))
        unfinished.replace(self.path)


def read_status(directory: Path) -> dict[str, Any] | None:
    """The newest `PipelineStatus` in a pipeline's directory, as written; None when none runs or none is ready."""
    try:
        status: dict[str, Any] = orjson.loads((directory / "status.json").read_bytes())
    except FileNotFoundError:
        return None
    return status
