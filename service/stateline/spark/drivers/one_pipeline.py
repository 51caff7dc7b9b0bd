"""Runs one pipeline, from its topics through the user's function into its result topics, until it is stopped.

Files in ``<state.dir>/<application.id>/pipelines/<name>/``: ``checkpoint`` is Spark's. ``.lock`` is the driver's lock.
``.spark-lock`` is the lock of its JVM, which writes the checkpoint and can outlive a killed driver briefly.
``status.json`` is the status (`drivers.status`). With ``pipeline.checkpoint.location`` only the checkpoint is
elsewhere: locks and status describe processes of this machine.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import AnalysisException
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.streaming.query import StreamingQuery

from stateline.config.settings import Config
from stateline.deployment.pipelines.status import pipelines_directory
from stateline.dsl.app import App
from stateline.log import Log
from stateline.model.pipeline import Pipeline
from stateline.spark.columns import DELETED
from stateline.spark.drivers.process import LOOK_INTERVAL_S, jvm_lock
from stateline.spark.drivers.root_cause import (
    first_line,
    is_of_other_state,
    kind_of,
    root_cause,
    sentence_of,
    start_cause,
)
from stateline.spark.drivers.status import Progress, StatusFile, StatusListener, log_progress
from stateline.spark.operators import state_requests  # noqa: F401  # it refuses other versions of PySpark
from stateline.spark.operators.declared import declared_operators
from stateline.spark.operators.ktable import KTable
from stateline.spark.sink.checkpoint import planned_ends
from stateline.spark.sink.checkpoint_folder import CheckpointFolder, checkpoint_folder
from stateline.spark.sink.dead_letters import dead_letters_of
from stateline.spark.sink.epoch_sink import EpochSink
from stateline.spark.sink.epoch_writer import TransactionTimeouts
from stateline.spark.sink.receiving import RowReceiver
from stateline.spark.sources.frames import TopicFrames
from stateline_store import DoesNotExistError, StatelineError, TopologyError

RESULT = "stateline.result"
"""The observed metric of a pipeline's query: `rows` of its function, and `tombstones` among them."""

_EVENTS_TIMEOUT_S = 60.0  # a busy machine gives Spark's listener its turn late
_EVENTS_AT_STOP_TIMEOUT_S = 2.0  # a stopped query need not report its end
_BATCH_TIMEOUT_S = 10.0  # how long a stop, of 30 s, waits for the current micro-batch


def pipeline_of(app: App, name: str) -> Pipeline:
    """Return the pipeline of this name. Raises `DoesNotExistError` if there is none."""
    pipelines = app.topology().pipelines
    if name not in pipelines:
        known = ", ".join(pipelines) or "none"
        raise DoesNotExistError(f"{app.application_id} has no pipeline {name!r}; it has {known}.")
    return pipelines[name]


def pipeline_directory(config: Config, name: str) -> Path:
    return pipelines_directory(config.state_dir.resolve(), config.application_id) / name


def pipeline_checkpoint(session: SparkSession, config: Config, name: str) -> CheckpointFolder:
    """Return the pipeline's checkpoint. Other nodes may reach it too (``pipeline.checkpoint.location``)."""
    place = config.pipeline_checkpoint_location or str(config.state_dir.resolve())
    return checkpoint_folder(session, f"{place}/{config.application_id}/pipelines/{name}/checkpoint")


def row_receiver(session: SparkSession, directory: Path, port: int = 0) -> RowReceiver:
    """Return a receiver for results, at the addresses where executors reach the driver. Raises the errors of
    `RowReceiver`."""
    given = session.sparkContext.getConf()
    host = given.get("spark.driver.host") or "127.0.0.1"
    return RowReceiver(given.get("spark.driver.bindAddress") or host, host, directory, port=port)


def message_of(error: BaseException) -> str:
    """Return the error in one line, with its type unless it is one of Stateline's."""
    text = " ".join(str(error).split())
    return text if isinstance(error, StatelineError) else f"{type(error).__name__}: {text or 'no message'}"


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """One run of a pipeline by this process. The caller holds the pipeline's lock."""

    pipeline: Pipeline
    config: Config
    log: Log
    directory: Path
    frames: TopicFrames
    status: StatusFile
    starts: threading.Semaphore
    """Held while the function runs, and its query is planned and started."""
    has_started: Callable[[], None] = lambda: None
    """Called when the query has started."""
    may_write: Callable[[], bool] = lambda: True
    """Whether no other node can run the pipeline now."""

    @property
    def _checkpoint(self) -> CheckpointFolder:
        return pipeline_checkpoint(self.frames.session, self.config, self.pipeline.name)

    def until(
        self, stopping: threading.Event, *, available_now: bool = False, progress: Progress | None = None
    ) -> None:
        """Run it on this thread until `stopping` is set or the query ends.

        `progress` is called after each micro-batch, on another thread. Without it, progress is logged. Raises
        `TopologyError` for a pipeline that cannot run, `RecordError` for a record that cannot be read or written, the
        sink's errors, or `StatelineError` with the query's root cause. The result topics then hold whole micro-batches,
        and the next run continues after the last one.
        """
        with jvm_lock(self.frames.session, self.directory / ".spark-lock"), ExitStack() as start:
            start.callback(self.has_started)
            start.enter_context(self.starts)
            if not stopping.is_set():
                self._run_query(stopping, available_now, progress or log_progress, start.close)

    def _run_query(
        self, stopping: threading.Event, available_now: bool, progress: Progress, has_started: Callable[[], None]
    ) -> None:
        with declared_operators() as operators:
            result = _result_frame(self.pipeline, self.frames)
        letters = dead_letters_of(self.config, self.log, self.frames, self.pipeline)
        planned = partial(planned_ends, self.frames.session) if self.config.pipelines_move else None
        sink = EpochSink(
            self.log, self.config.application_id, self.pipeline, self._checkpoint,
            row_receiver(self.frames.session, self.directory, self.config.pipeline_results_port),
            letters, operators, self.may_write, planned,
            TransactionTimeouts(self.config.transaction_timeout_ms, self.config.pipeline_transaction_timeout_max_ms),
        )  # fmt: skip
        listener = StatusListener(self.status, progress, sink.written)
        streams = self.frames.session.streams
        streams.addListener(listener)
        try:
            sink.open(result.schema)
            gate = BatchGate(sink, self._begin)
            query = self._start(_observed(result), gate, available_now)
            has_started()
            _wait(query, gate, stopping)
            # Otherwise the last progress is not reported.
            listener.wait_until_ended(_EVENTS_AT_STOP_TIMEOUT_S if stopping.is_set() else _EVENTS_TIMEOUT_S)
            _raise_failure(self.pipeline.name, query, sink, stopping)
        finally:
            sink.close()
            streams.removeListener(listener)

    def _begin(self) -> None:
        self.frames.settle_statics(self.log, self.pipeline.static)
        if self.status.now.state == "waiting":
            self.status.change(state="running")

    def _start(self, result: DataFrame, gate: BatchGate, available_now: bool) -> StreamingQuery:
        writer = (
            result.writeStream.queryName(self.pipeline.name)
            .outputMode(self.pipeline.output_mode)
            .option("checkpointLocation", str(self._checkpoint))
            .foreachBatch(gate)
        )
        if available_now:
            writer = writer.trigger(availableNow=True)
        else:
            own = self.pipeline.trigger_ms
            interval_ms = self.config.spark_trigger_interval_ms if own is None else own
            writer = writer.trigger(processingTime=f"{interval_ms} milliseconds")
        try:
            return writer.start()
        except AnalysisException as error:
            raise TopologyError(f"Pipeline {self.pipeline.name!r} cannot run: {first_line(str(error))}") from error
        except (Py4JJavaError, CapturedException) as error:  # of its checkpoint's files, for instance
            raise _failed(self.pipeline.name, start_cause(error)) from error


class BatchGate:
    """Stands between Spark and the sink, so that a stop comes between two micro-batches. If Spark is stopped within
    one, it searches the text of the resulting failure with a regular expression that overflows the stack for long
    texts."""

    def __init__(self, sink: Callable[[DataFrame, int], None], begins: Callable[[], None] = lambda: None) -> None:
        """`begins` is called at the start of each micro-batch."""
        self._sink, self._begins = sink, begins
        self._shut = False
        self._writing = threading.Lock()  # held while the sink writes, on Spark's thread

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        with self._writing:
            if self._shut:
                raise StatelineError("The pipeline stops.")  # ends the query; the batch is computed again
            self._begins()
            self._sink(frame, batch_id)

    def shut(self, timeout_s: float) -> None:
        """Write no further micro-batch, and wait for the current one."""
        self._shut = True
        if self._writing.acquire(timeout=timeout_s):
            self._writing.release()


def _result_frame(pipeline: Pipeline, frames: TopicFrames) -> DataFrame:
    streams = [frames.stream(topic) for topic in pipeline.reads]
    tables = [frames.table(topic) for topic in pipeline.tables]
    statics = [frames.static(topic) for topic in pipeline.static]
    try:
        result = pipeline.function(*streams, *tables, *statics)
    except AnalysisException as error:
        raise TopologyError(f"Pipeline {pipeline.name!r} cannot run: {first_line(str(error))}") from error
    except StatelineError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise StatelineError(
            f"The function of pipeline {pipeline.name!r} raised {message_of(error)} ({where.filename}, line "
            f"{where.lineno})."
        ) from error
    if isinstance(result, KTable):
        result = result.to_stream()
    if not isinstance(result, DataFrame) or not result.isStreaming:
        raise TopologyError(
            f"Pipeline {pipeline.name!r} returned {type(result).__name__}, not a streaming DataFrame: return what it "
            "makes of its first arguments."
        )
    return result


def _observed(result: DataFrame) -> DataFrame:
    """Return the same rows, counted for listeners of the query: the sink reports no rows to Spark."""
    deleted = F.coalesce(F.col(DELETED), F.lit(False)) if DELETED in result.columns else F.lit(False)
    return result.observe(RESULT, F.count(F.lit(1)).alias("rows"), F.count_if(deleted).alias("tombstones"))


def _wait(query: StreamingQuery, gate: BatchGate, stopping: threading.Event) -> None:
    """Wait until the query ends or must stop. A stop lets the sink finish its micro-batch."""
    while query.isActive and not stopping.wait(LOOK_INTERVAL_S):
        pass
    if query.isActive:
        gate.shut(_BATCH_TIMEOUT_S)
        query.stop()


def _raise_failure(name: str, query: StreamingQuery, sink: EpochSink, stopping: threading.Event) -> None:
    if stopping.is_set():
        return  # the next run computes the abandoned micro-batch again
    if isinstance(sink.failure, StatelineError):
        raise sink.failure
    if query.exception() is not None:
        cause = root_cause(query, sink.failure)
        if is_of_other_state(cause):
            raise TopologyError(
                f"Pipeline {name!r} cannot go on from its checkpoint: {cause} {sink.identity.after_a_change}"
            )
        raise _failed(name, cause) from sink.failure


def _failed(name: str, cause: str) -> StatelineError:
    return kind_of(cause)(f"Pipeline {name!r} failed: {sentence_of(cause)}")
