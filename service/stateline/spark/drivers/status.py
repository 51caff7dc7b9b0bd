"""How far a pipeline is: from Spark's events to a value, a file and the log."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import orjson
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from stateline.spark.sink.epoch_sink import Written
from stateline.spark.sink.rows import now_ms
from stateline.spark.sources.frames import SKIPPED

_logger = logging.getLogger(__name__)

State = Literal["starting", "running", "waiting", "restarting", "failed"]
"""`running` from the first micro-batch on, `waiting` when there is nothing to read, `restarting` after a failure, until
it starts again, `failed` when it does not: the caller has to act first."""

# Spark's names for the steps of a micro-batch, without the whole. The sink's own are most of addBatch.
_STEPS = ("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitOffsets")


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """How far a pipeline is; a restart of it changes only what it says. Times are milliseconds since the epoch.

    `batch_id` to `duration_ms`, `rows_out` to `batch_at_ms` are the newest micro-batch's, -1, 0 and nothing before the
    first. `lag` is how many records its topics have behind it, None where no source says so. `totals` are sums since
    the driver started; `restarts` counts since the pipeline was last stopped in order.
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
    rows_out: int = 0
    tombstones: int = 0
    dead_lettered: int = 0
    lag: int | None = None
    lag_by_topic: Mapping[str, int] = field(default_factory=dict)
    watermark_ms: int | None = None
    steps_ms: Mapping[str, int] = field(default_factory=dict)
    batch_at_ms: int | None = None
    totals: Mapping[str, int] = field(default_factory=dict)
    restarts: int = 0
    last_error: str | None = None
    last_error_at_ms: int | None = None
    next_start_at_ms: int | None = None


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


class StatusFile:
    """A pipeline's status, in memory and as ``status.json``, which others read. Thread-safe.

    Belongs to whoever has the pipeline's lock. What a driver that did not stop in order has left is a restart.
    """

    def __init__(self, pipeline: str, directory: Path) -> None:
        left = read_status(directory) or {}
        self._path = directory / "status.json"
        self._lock = threading.Lock()  # Spark's events come on a thread of their own
        self._open = True
        self._status = PipelineStatus(
            pipeline, os.getpid(), "starting", "", -1, 0, 0, 0, now_ms(),
            restarts=int(left["restarts"]) + 1 if "restarts" in left else 0,
            last_error=left.get("last_error"), last_error_at_ms=left.get("last_error_at_ms"),
        )  # fmt: skip
        self._write()

    @property
    def now(self) -> PipelineStatus:
        """The status."""
        return self._status

    def change(self, **changes: Any) -> PipelineStatus:
        """Change these members; the status then."""
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

    def _write(self) -> None:
        unfinished = self._path.with_suffix(".tmp")
        try:
            unfinished.write_bytes(orjson.dumps(asdict(self._status)))
            unfinished.replace(self._path)
        except OSError as error:  # nothing but the telling depends on it
            _logger.warning("pipeline %s: its status cannot be written: %s", self._status.pipeline, error)


class StatusListener(StreamingQueryListener):
    """Turns Spark's events about one query into its `PipelineStatus`. Spark calls it on a thread of its own."""

    def __init__(self, status: StatusFile, progress: Progress, written: Callable[[], Written | None]) -> None:
        """`written` gives what the sink says of the newest micro-batch, None before the first."""
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
        written = self._written()
        changes = _batch(p, written if written and written.batch_id == p.batchId else Written(p.batchId))
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
    """Topic → records that it has behind what was read, from each source's (end, latest) offsets as JSON.

    A source that does not say, or that reads no topics, is left out. The largest, where several read one topic.
    """
    found: dict[str, int] = {}
    for end, latest in sources:
        read = _offsets(end)
        for topic, partitions in _offsets(latest).items():
            behind = sum(max(0, offset - read.get(topic, {}).get(p, 0)) for p, offset in partitions.items())
            found[topic] = max(behind, found.get(topic, 0))
    return found


def read_status(directory: Path) -> dict[str, Any] | None:
    """The newest `PipelineStatus` in a pipeline's directory, as written; None when it was stopped in order, or never
    ran. Raises `OSError` when it cannot be read."""
    try:
        status: dict[str, Any] = orjson.loads((directory / "status.json").read_bytes())
    except FileNotFoundError:
        return None
    return status


def _batch(p: StreamingQueryProgress, written: Written) -> dict[str, Any]:
    """The members of a status that a micro-batch changes."""
    skipped = sum(row["records"] for n, row in p.observedMetrics.items() if n.startswith(f"{SKIPPED}."))
    lag = lag_of((source.endOffset, source.latestOffset) for source in p.sources)
    watermark = p.eventTime.get("watermark")
    steps = {step: int(p.durationMs[step]) for step in _STEPS if step in p.durationMs}
    steps |= {
        "compute": written.compute_ms,
        "encode": written.encode_ms,
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
        "watermark_ms": int(datetime.fromisoformat(watermark).timestamp() * 1000) if watermark else None,
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
