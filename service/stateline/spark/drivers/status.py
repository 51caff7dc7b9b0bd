"""Turns Spark's events into a pipeline's status, in memory, in a file and in the log."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from stateline.deployment.json_files import publish
from stateline.deployment.pipelines.status import PipelineStatus, read_status, status_path
from stateline.serde.iso_times import epoch_ms, iso_time
from stateline.spark.sink.epoch_writer import BatchResult
from stateline.spark.sources.frames import SKIPPED
from stateline_store import DamagedDataError, RetryLaterError
from stateline_store.clock import now_ms

_logger = logging.getLogger(__name__)

# Spark's names for the steps of a micro-batch. The sink's steps are most of addBatch.
_MOST_OF_ERROR = 8_000  # characters
_SINK_STEPS = ("compute", "arrange", "produce", "commit")
_STEPS = ("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitOffsets")


Progress = Callable[[PipelineStatus], None]
"""Gets the status after each micro-batch, on one of Spark's threads."""


def log_progress(status: PipelineStatus) -> None:
    """Log one line per micro-batch, and a warning if records were left out."""
    _logger.info(
        "pipeline %s: micro-batch %d: %d rows in %d ms", status.pipeline, status.batch_id, status.rows_in,
        status.duration_ms,
    )  # fmt: skip
    if status.skipped:
        _logger.warning(
            "pipeline %s: left out %d records that are not JSON of their schema", status.pipeline, status.skipped
        )


Report = Callable[[str, PipelineStatus | None], object]
"""Gets the pipeline's name and each new status, and None at the end. It returns at once."""


class StatusFile:
    """A pipeline's status, in memory and as ``status.json``. Thread-safe. It belongs to the holder of the pipeline's
    lock. A status left by a driver that did not stop in order counts as a restart."""

    def __init__(self, pipeline: str, directory: Path, report: Report = lambda pipeline, status: None) -> None:
        self._report = report
        left = _left_by_another(directory)
        self._path = status_path(directory)
        self._lock = threading.Lock()  # Spark's events come on a thread of their own
        self._open = True
        self.now = PipelineStatus(
            pipeline, os.getpid(), state="starting", query_id="", batch_id=-1, rows_in=0, skipped=0, duration_ms=0,
            updated_at_ms=now_ms(), rows_out=0, tombstones=0, dead_lettered=0, lag=None, lag_by_topic={},
            watermark_ms=None, steps_ms={}, batch_at_ms=None, totals={}, restarts=0,
            last_error=None, last_error_at_ms=None, next_start_at_ms=None,
        )  # fmt: skip
        if left is not None:
            self.now = replace(
                self.now, restarts=left.restarts + 1, last_error=left.last_error, last_error_at_ms=left.last_error_at_ms
            )
        self._write()

    def change(self, **changes: Any) -> PipelineStatus:
        """Change these members and return the status. Keeps 8,000 characters of an error."""
        if changes.get("last_error") is not None:
            changes["last_error"] = changes["last_error"][:_MOST_OF_ERROR]
        with self._lock:
            self.now = replace(self.now, updated_at_ms=now_ms(), **changes)
            if self._open:
                self._write()
            return self.now

    def remove(self) -> None:
        """Delete the file: the pipeline stopped in order."""
        with self._lock:
            self._open = False
            self._path.unlink(missing_ok=True)
            self._report(self.now.pipeline, None)

    def _write(self) -> None:
        self._report(self.now.pipeline, self.now)
        try:
            publish(self._path, self.now.encode(), mode=0o666, only_writer=True)  # the driver holds the lock
        except RetryLaterError as error:  # the pipeline does not depend on the file
            _logger.warning("pipeline %s: its status cannot be written: %s", self.now.pipeline, error)


def _left_by_another(directory: Path) -> PipelineStatus | None:
    """Return the status that an earlier driver left, or None if there is none or it cannot be read."""
    try:
        return read_status(directory)
    except DamagedDataError as error:
        _logger.warning("%s cannot be read and is written again: %s", status_path(directory), error)
        return None


class StatusListener(StreamingQueryListener):
    """Turns Spark's events about one query into its `PipelineStatus`. Spark calls it on its own thread."""

    def __init__(self, status: StatusFile, progress: Progress, written: Callable[[int], BatchResult | None]) -> None:
        """`written` returns the sink's result of a micro-batch, or None if it has none."""
        self._status = status
        self._pipeline = status.now.pipeline
        self._progress = progress
        self._written = written
        self._query_id = ""
        self._ready = False
        self._ended = threading.Event()

    def wait_until_ended(self, timeout_s: float) -> bool:
        """Wait for Spark's last event, which follows the last progress. Return False if it did not come in time."""
        return self._ended.wait(timeout_s)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's name
        if event.name == self._pipeline:
            self._query_id = str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  # Spark's name
        p = event.progress
        if str(p.id) != self._query_id:
            return
        self._say_ready()
        changes = _batch(p, self._written(p.batchId) or BatchResult(p.batchId))
        totals = _added(self._status.now.totals, changes)
        self._progress(self._status.change(state="running", query_id=self._query_id, totals=totals, **changes))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802  # Spark's name
        if str(event.id) != self._query_id:
            return
        self._say_ready()
        by_topic = self._status.now.lag_by_topic
        none = {"lag": 0, "lag_by_topic": dict.fromkeys(by_topic, 0)} if by_topic else {}
        self._status.change(state="waiting", query_id=self._query_id, **none)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  # Spark's name
        if str(event.id) == self._query_id:
            self._ended.set()

    def _say_ready(self) -> None:
        if not self._ready:
            self._ready = True
            _logger.info("pipeline %s is ready", self._pipeline)


def lag_of(sources: Iterable[tuple[str | None, str | None]]) -> dict[str, int]:
    """Return topic → offsets not yet read, from each source's (end, latest) offsets as JSON. Sources without topics or
    offsets are left out. If several sources read a topic, the largest lag counts."""
    found: dict[str, int] = {}
    for end, latest in sources:
        read = _offsets(end)
        for topic, partitions in _offsets(latest).items():
            behind = sum(max(0, offset - read.get(topic, {}).get(p, 0)) for p, offset in partitions.items())
            found[topic] = max(behind, found.get(topic, 0))
    return found


def _batch(p: StreamingQueryProgress, written: BatchResult) -> dict[str, Any]:
    skipped = sum(row["records"] for n, row in p.observedMetrics.items() if n.startswith(f"{SKIPPED}."))
    lag = lag_of((source.endOffset, source.latestOffset) for source in p.sources)
    watermark = p.eventTime.get("watermark")
    steps = {step: int(p.durationMs[step]) for step in _STEPS if step in p.durationMs}
    steps |= {step: getattr(written, f"{step}_ms") for step in _SINK_STEPS}
    return {
        "batch_id": p.batchId,
        "rows_in": p.numInputRows,
        "skipped": skipped,
        "duration_ms": int(p.durationMs.get("triggerExecution", 0)),
        "rows_out": written.rows,
        "tombstones": written.tombstones,
        "dead_lettered": written.dead_lettered,
        "lag": sum(lag.values()) if lag else None,
        "lag_by_topic": lag,
        "watermark_ms": epoch_ms(iso_time(watermark)) if watermark else None,
        "steps_ms": steps,
        "batch_at_ms": now_ms(),
    }


_TOTALS = ("rows_in", "rows_out", "tombstones", "skipped", "dead_lettered")


def _added(totals: Mapping[str, int], batch: Mapping[str, int]) -> dict[str, int]:
    sums = {name: totals.get(name, 0) + batch[name] for name in _TOTALS}
    return {"batches": totals.get("batches", 0) + 1, **sums}


def _offsets(text: str | None) -> dict[str, dict[str, int]]:
    """Return ``{"topic": {"0": 5}}`` from the JSON of Spark's Kafka source or the embedded log's, else nothing."""
    try:
        tree = orjson.loads(text or "null")
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(tree, dict):
        return {}
    return {
        topic: {p: offset for p, offset in partitions.items() if isinstance(offset, int)}
        for topic, partitions in tree.items()
        if isinstance(partitions, dict)
    }
