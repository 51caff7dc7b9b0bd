"""How far a pipeline is: from Spark's events to a value, a file and the log."""

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
from stateline.spark.sink.written import BatchResult
from stateline.spark.sources.frames import SKIPPED
from stateline_store import DamagedDataError, RetryLaterError
from stateline_store.clock import now_ms

_logger = logging.getLogger(__name__)

# Spark's names for the steps of a micro-batch, without the whole. The sink's own are most of addBatch.
_MOST_OF_ERROR = 8_000  # characters
_STEPS = ("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitOffsets")


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


def _keep_to_itself(pipeline: str, status: PipelineStatus | None) -> None:
    """Of a driver whose status nobody follows in the log."""


class StatusFile:
    """A pipeline's status, in memory and as ``status.json``, which others read. Thread-safe.

    Belongs to whoever has the pipeline's lock. What a driver that did not stop in order has left is a restart.
    """

    def __init__(
        self, pipeline: str, directory: Path, report: Callable[[str, PipelineStatus | None], object] = _keep_to_itself
    ) -> None:
        """`report` is told of each change, and None at the end, by the pipeline's name; it returns at once."""
        self._report = report
        left = _left_by_another(directory)
        self._path = status_path(directory)
        self._lock = threading.Lock()  # Spark's events come on a thread of their own
        self._open = True
        at_start = PipelineStatus(
            pipeline, os.getpid(), state="starting", query_id="", batch_id=-1, rows_in=0, skipped=0, duration_ms=0,
            updated_at_ms=now_ms(), rows_out=0, tombstones=0, dead_lettered=0, lag=None, lag_by_topic={},
            watermark_ms=None, steps_ms={}, batch_at_ms=None, totals={}, restarts=0,
            last_error=None, last_error_at_ms=None, next_start_at_ms=None,
        )  # fmt: skip
        self._status = (
            at_start
            if left is None
            else replace(
                at_start, restarts=left.restarts + 1, last_error=left.last_error, last_error_at_ms=left.last_error_at_ms
            )
        )
        self._write()

    @property
    def now(self) -> PipelineStatus:
        """The status."""
        return self._status

    def change(self, **changes: Any) -> PipelineStatus:
        """Change these members; the status then. Of an error it keeps 8,000 characters."""
        if changes.get("last_error") is not None:
            changes["last_error"] = changes["last_error"][:_MOST_OF_ERROR]
        with self._lock:
            self._status = replace(self._status, updated_at_ms=now_ms(), **changes)
            if self._open:
                self._write()
            return self._status

    def remove(self) -> None:
        """The pipeline was stopped in order: nothing is written any more."""
        with self._lock:
            self._open = False
            self._path.unlink(missing_ok=True)
            self._report(self._status.pipeline, None)

    def _write(self) -> None:
        self._report(self._status.pipeline, self._status)
        try:
            publish(self._path, self._status.encode(), mode=0o666, only_writer=True)  # the driver holds the lock
        except RetryLaterError as error:  # nothing but the telling depends on it
            _logger.warning("pipeline %s: its status cannot be written: %s", self._status.pipeline, error)


def _left_by_another(directory: Path) -> PipelineStatus | None:
    """What a driver that did not stop in order has left; nothing where it was of another version, or no status."""
    try:
        return read_status(directory)
    except DamagedDataError as error:
        _logger.warning("%s cannot be read and is written again: %s", status_path(directory), error)
        return None


class StatusListener(StreamingQueryListener):
    """Turns Spark's events about one query into its `PipelineStatus`. Spark calls it on a thread of its own."""

    def __init__(self, status: StatusFile, progress: Progress, written: Callable[[int], BatchResult | None]) -> None:
        """`written` gives what the sink says of a micro-batch, None of one that it knows nothing of."""
        self._status = status
        self._pipeline = status.now.pipeline
        self._progress = progress
        self._written = written
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
    """Topic → offsets that it has behind what was read, from each source's (end, latest) offsets as JSON.

    A source that does not say, or that reads no topics, is left out. The largest, where several read one topic.
    """
    found: dict[str, int] = {}
    for end, latest in sources:
        read = _offsets(end)
        for topic, partitions in _offsets(latest).items():
            behind = sum(max(0, offset - read.get(topic, {}).get(p, 0)) for p, offset in partitions.items())
            found[topic] = max(behind, found.get(topic, 0))
    return found


def _batch(p: StreamingQueryProgress, written: BatchResult) -> dict[str, Any]:
    """The members of a status that a micro-batch changes."""
    skipped = sum(row["records"] for n, row in p.observedMetrics.items() if n.startswith(f"{SKIPPED}."))
    lag = lag_of((source.endOffset, source.latestOffset) for source in p.sources)
    watermark = p.eventTime.get("watermark")
    steps = {step: int(p.durationMs[step]) for step in _STEPS if step in p.durationMs}
    steps |= {
        "compute": written.compute_ms,
        "arrange": written.arrange_ms,
        "produce": written.produce_ms,
        "commit": written.commit_ms,
    }
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
    """``{"topic": {"0": 5}}``, as Spark's Kafka source and the embedded log's write them; nothing for other JSON."""
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
